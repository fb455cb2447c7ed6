"""A message as tensors by path and a JSON text, for frameworks that carry arrays: dicts by their keys, dataclasses by
their names, which are looked up in the method's module. No pickle.
"""

from __future__ import annotations

import json
import sys
from collections import ChainMap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Method, Update
from anchorfl.pipeline.training.secure_round import MaskedUpdate
from anchorfl.tasks.errors import InputError

NO_UPDATE = InputError, AttributeError, KeyError, TypeError, ValueError, RuntimeError
"""Errors of a message that is no update of the method, from its form to what the method reads of it."""
Form = str | dict[str, Any]
"""The form of a message: a tensor's path; or the forms of a dict's or a dataclass's parts."""


def taken_apart(message: object) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a message by their paths, on the CPU, and its form."""
    tensors = {path: t.detach().cpu().contiguous() for path, t in messages.tensors(message)}
    return tensors, json.dumps(_form(message, ""))


def put_together(tensor_at: Callable[[str], Tensor], form: str, method: Method[Any, Any]) -> Any:
    """Return the message of a form. tensor_at: path -> tensor.

    Names of dataclasses are those of the modules of the method and its bases. Raises InputError where there is no such
    name, what ``tensor_at`` raises where a tensor lacks, ValueError, TypeError or RecursionError where it is no form.
    """
    modules = (vars(sys.modules[kind.__module__]) for kind in type(method).__mro__)
    names = ChainMap({MaskedUpdate.__name__: MaskedUpdate}, *modules)

    def build(part: Form) -> Any:
        if isinstance(part, str):
            return tensor_at(part)
        if not (isinstance(part, dict) and isinstance(part.get("of"), dict)):
            raise TypeError("the form of a message is a path, or has parts: this is neither")
        inner = {name: build(each) for name, each in part["of"].items()}
        if "is" not in part:
            return inner
        kind = names.get(part["is"])
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise InputError(f"a message is a {part['is']!r}, unknown to {method.name!r} here: the versions differ")
        return kind(**inner)

    return build(json.loads(form))


def as_update(message: Any, secure: bool) -> Update | MaskedUpdate:
    """Return a message that should be an update, masked in a ``secure`` round. InputError: it is none."""
    if not isinstance(message, MaskedUpdate if secure else Update):
        raise InputError(f"it is a {type(message).__name__}")
    return message


def _form(message: object, path: str) -> Form:
    if isinstance(message, Tensor):
        return path
    if isinstance(message, dict):
        return {"of": {key: _form(value, messages.below(path, key)) for key, value in message.items()}}
    of = {f.name: _form(getattr(message, f.name), messages.below(path, f.name)) for f in fields(message)}  # type: ignore[arg-type]
    return {"is": type(message).__name__, "of": of}
