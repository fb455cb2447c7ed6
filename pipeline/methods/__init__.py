"""The methods by name, written out by hand. A method's module is imported when the method is asked for."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch, which the command line does without
    from anchorfl.pipeline.algorithm.contract import Method

HOME = {
    "fedalc": "fedalc:FedALC",
    "fedalc-fixed": "fedalc_fixed:FedALCFixed",
    "fedalign": "fedalign:FedAlign",
    "fedavg": "fedavg:FedAvg",
    "fedavg-positive": "fedavg_positive:FedAvgPositive",
    "fedaws": "fedaws:FedAwS",
    "fedbm": "fedbm:FedBM",
    "feddyn": "feddyn:FedDyn",
    "fedetf": "fedetf:FedETF",
    "fedmlh": "fedmlh:FedMLH",
    "fednh": "fednh:FedNH",
    "fedproto": "fedproto:FedProto",
    "fedprox": "fedprox:FedProx",
    "fedpu": "fedpu:FedPU",
    "fedrep": "fedrep:FedRep",
    "fedrod": "fedrod:FedROD",
    "fedrs": "fedrs:FedRS",
    "flag": "flag:Flag",
    "moon": "moon:Moon",
    "scaffold": "scaffold:Scaffold",
}
"""Name of a method -> module of this folder, and class."""


class Methods(MutableMapping[str, "type[Method[Any, Any]]"]):
    """Name of a method -> its class, which is imported at the first look-up; names alone import nothing."""

    def __init__(self) -> None:
        self._loaded = dict[str, "type[Method[Any, Any]] | None"].fromkeys(HOME)

    def __getitem__(self, name: str) -> type[Method[Any, Any]]:
        method = self._loaded[name]
        if method is None:
            module, _, class_name = HOME[name].partition(":")
            found: type[Method[Any, Any]] = getattr(import_module(f"{__name__}.{module}"), class_name)
            method = self._loaded[name] = found
        return method

    def __setitem__(self, name: str, method: type[Method[Any, Any]]) -> None:
        self._loaded[name] = method

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def __contains__(self, name: object) -> bool:
        return name in self._loaded


METHODS = Methods()
