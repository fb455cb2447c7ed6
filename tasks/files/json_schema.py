"""JSON from files that anyone may have edited: whether a value is what its reader expects, as annotations say it."""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, NotRequired, Union, get_args, get_origin

from anchorfl.tasks.errors import InputError

LARGEST = 2**63
"""Whole numbers reach no further: beyond it no array could hold them."""


def parsed(text: str | bytes, hint: Any, where: object, mend: str) -> Any:
    """The value of a JSON text, which is of the type ``hint``. where: the file; mend: what can be done about damage.

    Raises InputError where the text is no JSON, or of other types.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        fault = "brackets within brackets within brackets"
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        fault = str(error)
    else:
        fault = misfit(content, hint)
    if fault:
        raise InputError(f"{where} is damaged ({fault})" + (f"; {mend}" if mend else ""))
    return content


def misfit(value: Any, hint: Any, at: str = "") -> str:
    """What is wrong with a value out of JSON that should be of an annotated type, and where in it; "" if nothing.

    hint: Any, None, bool, int, float (a whole number will do), str, ``Literal``, a union, ``list``, ``tuple`` (JSON has
    lists), ``dict`` with keys of text, a ``TypedDict`` or a dataclass, whose fields may lack where they have a default.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return ""
    if origin in (Union, types.UnionType):
        faults = [misfit(value, each, at) for each in inner]
        return "" if "" in faults else max(faults, key=len)  # what looked deepest says most
    if origin is Literal:
        return "" if value in inner and type(value) in map(type, inner) else _wrong(value, at, f"one of {inner}")
    if origin in (list, tuple, Sequence) or (origin is not None and issubclass(origin, Sequence)):
        return _list_misfit(value, inner, at)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            return _wrong(value, at, "an object")
        return next((fault for key in value if (fault := misfit(value[key], inner[1], _at(at, key)))), "")
    if typing.is_typeddict(hint) or is_dataclass(hint):
        return _fields_misfit(value, hint, at)
    if hint is float:
        return "" if _real(value) else _wrong(value, at, "a number")
    if hint is int:
        return "" if type(value) is int and abs(value) < LARGEST else _wrong(value, at, "a whole number")
    return "" if value is hint or type(value) is hint else _wrong(value, at, getattr(hint, "__name__", str(hint)))


def _list_misfit(value: Any, inner: tuple[Any, ...], at: str) -> str:
    if not isinstance(value, list):
        return _wrong(value, at, "a list")
    each = [inner[0]] * len(value) if len(inner) == 1 or inner[1] is Ellipsis else inner
    if len(each) != len(value):
        return _wrong(value, at, f"a list of {len(each)}")
    pairs = enumerate(zip(value, each, strict=True))
    return next((fault for i, (one, kind) in pairs if (fault := misfit(one, kind, _at(at, i)))), "")


def _fields_misfit(value: Any, hint: Any, at: str) -> str:
    """Of an object with known fields; a dataclass has no others."""
    if not isinstance(value, dict):
        return _wrong(value, at, "an object")
    hints, needed = _declared(hint)
    open_ended = typing.is_typeddict(hint)
    for key in sorted(needed - value.keys()):
        return f"{_at(at, key)} is missing"
    for key in value:
        if key not in hints and not open_ended:
            return f"{_at(at, key)} is unknown"
        if key in hints and (fault := misfit(value[key], hints[key], _at(at, key))):
            return fault
    return ""


@functools.cache
def _declared(hint: Any) -> tuple[dict[str, Any], set[str]]:
    """Types of the fields by name, and those that must be there."""
    hints = typing.get_type_hints(hint, include_extras=True)
    lacking = {name for name, kind in hints.items() if get_origin(kind) is NotRequired}
    if not getattr(hint, "__total__", True):
        lacking = set(hints)
    if is_dataclass(hint):
        lacking = {f.name for f in fields(hint) if f.default is not MISSING or f.default_factory is not MISSING}
    plain = {name: get_args(kind)[0] if get_origin(kind) is NotRequired else kind for name, kind in hints.items()}
    return plain, set(hints) - lacking


def _real(value: Any) -> bool:
    if type(value) is float:
        return True
    try:
        return type(value) is int and math.isfinite(float(value))
    except OverflowError:
        return False


def _at(place: str, key: object) -> str:
    return f"{place}.{key}".lstrip(".")[:200]


def _wrong(value: Any, at: str, expected: str) -> str:
    shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:40]
    return f"{at or 'the content'} is {shown}, not {expected}"
