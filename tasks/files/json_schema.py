"""JSON from files that anyone may have edited: read it, and name its first value of another type than annotations say.

msgspec checks the types; ``json`` reads the text (docs/why-by-hand.md says why).
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from anchorfl.tasks.errors import InputError

LARGEST = 2**63
"""Whole numbers reach no further: beyond it no array could hold them."""


def parsed(text: str | bytes, hint: Any, where: object, remedy: str) -> Any:
    """Return the value of a JSON text, which is of the type ``hint``. where: the file; remedy: what to do about damage.

    Raises InputError where the text is no JSON, or of other types.
    """
    try:
        content = json.loads(text, parse_int=_whole)
    except RecursionError:
        fault = "brackets within brackets within brackets"
    except ValueError as error:  # no JSON, no UTF-8, or too large a number
        fault = str(error)
    else:
        fault = type_error(content, hint)
    if fault:
        raise InputError(f"{where} is damaged ({fault})" + (f"; {remedy}" if remedy else ""))
    return content


def type_error(value: Any, hint: Any, at: str = "") -> str:
    """Return the first fault of a value out of JSON that should be of a type, with its path; "" if there is none."""
    try:
        converted(value, hint, at)
    except ValueError as error:
        return str(error)
    return ""


def converted(value: Any, hint: Any, at: str = "") -> Any:
    """Return a value out of JSON as its type has it: a dataclass from an object, a tuple from a list.

    hint: whatever msgspec takes; a field may be missing where it has a default. at: path of the value itself.
    Raises ValueError with the path of the first fault. A dataclass has no other fields than its own.
    """
    result, message = _attempt(value, hint)
    if message:
        keys, fault = _located(value, hint, message)
    elif keys := _unknown(value, result):
        fault = "unknown field"
    else:
        return result
    where = ".".join(map(str, [at, *keys] if at else keys))[:200]
    raise ValueError(f"{where or 'the content'}: {fault}")


def _attempt(value: Any, hint: Any) -> tuple[Any, str]:
    try:
        return msgspec.convert(value, hint), ""
    except msgspec.ValidationError as error:
        return None, str(error)


def _located(value: Any, hint: Any, message: str) -> tuple[list[Any], str]:
    """Return the path of a fault and what it is. In place of the key of an object msgspec says [...]."""
    fault, path = re.fullmatch(r"(.*?)(?: - at `\$([^`]*)`)?", message, re.DOTALL).groups("")  # type: ignore[union-attr]
    keys = list[Any]()
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":
            value = _narrowed(value, keys, hint, message)
            keys.extend(_inside(value, keys))
        else:
            keys.append(name or int(index))
    return keys, fault[:1].lower() + fault[1:]


def _narrowed(value: Any, keys: list[Any], hint: Any, message: str) -> Any:
    """Return the value with one entry alone in the object at ``keys``: the one that ``message`` is about."""
    entries = list(_inside(value, keys).items())
    while len(entries) > 1:
        half = entries[: len(entries) // 2]
        wrong = _attempt(_replaced(value, keys, dict(half)), hint)[1] == message
        entries = half if wrong else entries[len(half) :]
    return _replaced(value, keys, dict(entries))


def _inside(value: Any, keys: list[Any]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _replaced(value: Any, keys: list[Any], inner: Any) -> Any:
    if not keys:
        return inner
    out = value.copy()
    out[keys[0]] = _replaced(value[keys[0]], keys[1:], inner)
    return out


def _unknown(value: Any, result: Any) -> list[str]:
    """Return the path of a key that is no field of the dataclass made from it, which msgspec lets pass."""
    if not is_dataclass(result):
        return []
    names = {f.name for f in fields(result)}
    for key in value:
        if key not in names:
            return [key]
        if below := _unknown(value[key], getattr(result, key)):
            return [key, *below]
    return []


def _whole(digits: str) -> int:
    """Return a whole number. ValueError where no array could hold it."""
    if abs(number := int(digits)) >= LARGEST:
        raise ValueError(f"a number of {len(digits)} digits is too large")
    return number
