"""The networks of plug-ins: encoders of other packages, by entry point or ``package.module:Name``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anchorfl.models.options import NETWORKS
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import NETWORK, check_name_is_free, find_plugin

if TYPE_CHECKING:  # torch
    from anchorfl.models.encoders.plug_in import MakeEncoder

WHERE = "[model] network"


def find_network(name: str) -> MakeEncoder | None:
    """Return what makes the encoder of a plug-in; None for a network of AnchorFL. InputError where there is none."""
    if name in NETWORKS:
        check_name_is_free(NETWORK, name, f"{WHERE} = {name!r}", NETWORKS)
        return None
    found: Any = find_plugin(NETWORK, name, WHERE, NETWORKS)
    if not callable(found) or not hasattr(found, "__qualname__"):
        raise InputError(
            f"{WHERE} = {name!r}: a {type(found).__name__}, and no class or function that makes an encoder"
        )
    return found  # type: ignore[no-any-return]  # what it makes is looked at when it is made
