"""The methods by name: AnchorFL's, written out by hand, and plug-ins (``anchorfl.methods`` is their entry point group).

A method's module is imported when the method is asked for.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator, MutableMapping
from dataclasses import MISSING, fields
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints

from anchorfl.tasks.errors import InputError, first_line
from anchorfl.tasks.files.json_schema import converted
from anchorfl.tasks.plugins import METHOD, NAME, check_name_is_free, find_plugin, offered_name, plugin_names

if TYPE_CHECKING:  # torch, which the command line does without
    from anchorfl.pipeline.algorithm.contract import Method

HOME = {
    "anchor": "anchor:Anchor",
    "fedalc": "fedalc:FedALC",
    "fedalc-fixed": "fedalc_fixed:FedALCFixed",
    "fedalign": "fedalign:FedAlign",
    "fedavg": "fedavg:FedAvg",
    "fedavg-positive": "fedavg_positive:FedAvgPositive",
    "fedaws": "fedaws:FedAwS",
    "fedbm": "fedbm:FedBM",
    "feddyn": "feddyn:FedDyn",
    "fedetf": "fedetf:FedETF",
    "fedgela": "fedgela:FedGELA",
    "fedlgt": "fedlgt:FedLGT",
    "fedmlh": "fedmlh:FedMLH",
    "fedmlp": "fedmlp:FedMLP",
    "fednh": "fednh:FedNH",
    "fedproto": "fedproto:FedProto",
    "fedprox": "fedprox:FedProx",
    "fedpu": "fedpu:FedPU",
    "fedrep": "fedrep:FedRep",
    "fedrod": "fedrod:FedROD",
    "fedrs": "fedrs:FedRS",
    "fedtsp": "fedtsp:FedTSP",
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

WHERE = "[method] name"
PLACES = "server", "clients"
"""Where models are scored (``Method.evaluate_on``)."""
CHOSEN = ("evaluate_on",)
"""Parts of every method that may be an option of one."""


def method_names() -> list[str]:
    """Return the names of all methods: AnchorFL's, and those that installed packages offer."""
    return list(dict.fromkeys([*METHODS, *plugin_names(METHOD)]))


def find_method(name: str) -> type[Method[Any, Any]]:
    """Return the method of a name, or of ``package.module:Class``. InputError where there is none, or it is no method
    that options can make.
    """
    if name in METHODS:
        check_name_is_free(METHOD, name, f"{WHERE} = {name!r}", METHODS)
        return METHODS[name]
    found = find_plugin(METHOD, name, WHERE, METHODS)
    check_class(found, f"{WHERE} = {name!r}")
    if ":" not in name and found.name != name:
        raise InputError(f"{WHERE} = {name!r}: its class calls itself {found.name!r}: its entry point needs that name")
    if (again := method_name(found)) != name:  # records have the name of the class itself
        try:
            same = attrgetter(found.__qualname__)(sys.modules.get(found.__module__)) is found
        except AttributeError:
            same = False
        if not same:
            raise InputError(
                f"{WHERE} = {name!r}: records call this class {again}, and Python does not find it by that name: write"
                " the class at the top of its module, under its own name"
            )
    return cast("type[Method[Any, Any]]", found)


def method_name(method: type[Method[Any, Any]]) -> str:
    """Return the name by which ``find_method`` finds a method again."""
    return method.name if is_shipped(method) else offered_name(METHOD, method.name, method)


def is_shipped(method: type[Method[Any, Any]]) -> bool:
    """Return whether a method is one of AnchorFL's, and no plug-in."""
    return method.name in METHODS and METHODS[method.name] is method


def check_class(found: Any, where: str) -> None:
    """Raise InputError where an object is no method that options can make. where: it is named, for messages."""
    from anchorfl.pipeline.algorithm.aggregation import ROBUST
    from anchorfl.pipeline.algorithm.contract import Method, Supports
    from anchorfl.tasks.contract import LabelKind

    if not isinstance(found, type) or not issubclass(found, Method):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise InputError(f"{where}: {what} is no method: it has to inherit from anchorfl.Method (docs/plug-ins.md)")
    where = f"{where}: {found.__name__}"
    if "__dataclass_params__" not in vars(found) or not vars(found)["__dataclass_params__"].frozen:
        raise InputError(f"{where} needs @dataclass(frozen=True, kw_only=True) above it")
    if inspect.isabstract(found):
        raise InputError(f"{where} lacks {', '.join(sorted(found.__abstractmethods__))}")
    name = getattr(found, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{where} has no name of letters, digits, '.', '_' and '-': write name = \"mine\"")
    if name in METHODS and METHODS[name] is not found:
        raise InputError(f"{where} calls itself {name!r}, as a method of AnchorFL: give it a name of its own")
    place, supports = found.evaluate_on, found.supports  # where they are plain values: they may follow from options
    if isinstance(place, str) and place not in PLACES:
        raise InputError(f"{where}.evaluate_on = {place!r}: one of {', '.join(PLACES)}")
    for part, words in ("kinds", get_args(LabelKind)), ("robust", ROBUST):
        said = getattr(supports, part) if isinstance(supports, Supports) else ()
        if wrong := [word for word in said if word not in words]:
            raise InputError(f"{where}.supports.{part} has {wrong[0]!r}: there are {', '.join(words)}")
    _check_options(found, where, {*dir(Method), *Method.__annotations__}, {field.name for field in fields(Supports)})


def _check_options(found: Any, where: str, known: set[str], supported: set[str]) -> None:
    """Raise InputError where a field is of a type that no preset can say, or a value has no type.

    known: what is no option in any method. supported: what only ``Method.supports`` can say.
    """
    options = [field.name for field in fields(found) if field.init]
    if "name" in options:
        raise InputError(f"{where}.name is no option: write it without a type, name = {found.name!r}")
    try:
        hints = get_type_hints(found)
    except Exception as error:  # an annotation is any expression
        raise InputError(f"{where}: one of its types cannot be read ({first_line(error)})") from error
    if taken := [name for name in options if name in known and name not in CHOSEN]:
        raise InputError(f"{where}.{taken[0]} is part of every method, and no option: give it another name")
    for name in options:
        if not _is_option(hints[name]):
            raise InputError(
                f"{where}.{name} is of the type {getattr(hints[name], '__name__', hints[name])}, which no preset can"
                " say: options are str, int, float, bool, a Literal of them, or one of these | None"
            )
    for field in fields(found):
        if field.init and field.default is not MISSING:
            try:
                converted(field.default, hints[field.name], field.name)
            except ValueError as error:
                raise InputError(f"{where}.{field.name} = {field.default!r} is not of its type ({error})") from error
    for base in found.__mro__:
        for name, value in vars(base).items() if base.__module__ == found.__module__ else ():
            if name in supported and name not in hints and not isinstance(value, property) and not callable(value):
                raise InputError(
                    f"{where}: {base.__name__}.{name} is part of supports: write supports = Supports({name}={value!r})"
                )
            plain = isinstance(value, bool | int | float | str) and name not in hints
            if plain and name not in known and name[0] != "_" and not name.isupper():
                raise InputError(
                    f"{where}: {base.__name__}.{name} has no type, so it is no option: write"
                    f" {name}: {type(value).__name__} = {value!r}"
                )


def _is_option(hint: Any) -> bool:
    """Return whether presets and the command line can say a value of a type."""
    if get_origin(hint) is Literal:
        return all(isinstance(value, bool | int | float | str) for value in get_args(hint))
    if get_origin(hint) in (typing.Union, types.UnionType):
        rest = [h for h in get_args(hint) if h is not type(None)]
        return len(rest) == 1 and _is_option(rest[0])
    return hint in (str, int, float, bool)
