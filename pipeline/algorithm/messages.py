"""Walk the tensors of a message: move, count, check, checksum, pack into flat buffers and unpack.

A message is a tensor, or a dataclass or dict of messages. Every leaf is a tensor, so that nothing here needs pickle.
Measured beside a library in docs/why-by-hand.md.
"""

from __future__ import annotations

import cmath
import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

M = TypeVar("M")


def below(path: str, name: str) -> str:
    """Return the path of a part of what lies at ``path``."""
    return f"{path}/{name}" if path else name


def tensors(message: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of every leaf, in a fixed order: fields as declared, dict entries as inserted."""
    if isinstance(message, Tensor):
        yield path, message
    elif isinstance(message, dict):
        for key, value in message.items():
            yield from tensors(value, below(path, key))
    elif is_dataclass(message):
        for f in fields(message):
            yield from tensors(getattr(message, f.name), below(path, f.name))
    else:
        raise TypeError(f"message field {path!r} is a {type(message).__name__}; messages hold tensors only")


def rebuild(message: M, leaf: Callable[[str, Tensor], Any], path: str = "") -> M:
    """Return the same message with every tensor replaced by ``leaf(path, tensor)``."""
    out: Any
    if isinstance(message, Tensor):
        out = leaf(path, message)
    elif isinstance(message, dict):
        out = {k: rebuild(v, leaf, below(path, k)) for k, v in message.items()}
    elif is_dataclass(message) and not isinstance(message, type):
        values = {f.name: rebuild(getattr(message, f.name), leaf, below(path, f.name)) for f in fields(message)}
        out = type(message)(**values)
    else:
        raise TypeError(f"message field {path!r} is a {type(message).__name__}; messages hold tensors only")
    return out  # type: ignore[no-any-return]  # the shape of the tree is that of M by construction


def to(message: M, device: torch.device | str) -> M:
    """Return the message with every tensor on ``device``. All that move of one type move in one copy, and lie one
    behind the other there: a GPU is waited for at every copy.
    """
    device = torch.device(device)
    alike: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
    for path, t in tensors(message):
        if t.device.type != device.type:
            alike.setdefault((t.dtype, t.device), {})[path] = t.detach()
    moved = dict[str, Tensor]()
    if not alike:
        return rebuild(message, lambda _, t: t)
    for parts in alike.values():
        flat = joined(list(parts.values()))
        if flat is None:
            flat = torch.cat([t.reshape(-1) for t in parts.values()])
        split = torch.split(flat.to(device), [t.numel() for t in parts.values()])
        moved |= {path: part.view(t.shape) for (path, t), part in zip(parts.items(), split, strict=True)}
    return rebuild(message, lambda path, t: moved.get(path, t))


def nbytes(message: object) -> int:
    """Return the bytes of all tensors: what the message costs on the wire."""
    return sum(t.numel() * t.element_size() for _, t in tensors(message))


def checksum(message: object) -> str:
    """Return the SHA-256 over path, dtype, shape and bits of every tensor, in the order of paths."""
    digest = hashlib.sha256()
    for path, t in sorted(tensors(message), key=lambda pair: pair[0]):
        digest.update(f"{path}|{t.dtype}|{tuple(t.shape)}|".encode())
        if t.numel():
            digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fill(template: M, values: Mapping[str, Tensor]) -> M:
    """Return ``template`` with the tensors of ``values`` (path -> tensor). ValueError where paths or shapes differ."""
    expected = dict(tensors(template))
    if expected.keys() != values.keys():
        missing, extra = sorted(expected.keys() - values.keys()), sorted(values.keys() - expected.keys())
        raise ValueError(f"tensors do not fit the state: missing {missing[:3]}, not expected {extra[:3]}")
    for path, e in expected.items():
        if values[path].shape != e.shape or values[path].dtype != e.dtype:
            raise ValueError(f"tensors do not fit the state: {_unlike(path, values[path], e)}")
    return rebuild(template, lambda path, _: values[path])


def form_of(message: object) -> Hashable:
    """Return shapes, types and nesting of a message, in order: what two of one form have in common."""
    if isinstance(message, Tensor):
        return tuple(message.shape), message.dtype
    if isinstance(message, dict):
        return tuple((key, form_of(value)) for key, value in message.items())
    if is_dataclass(message):
        return type(message), tuple(form_of(getattr(message, f.name)) for f in fields(message))
    raise TypeError(f"a {type(message).__name__} is no message; messages hold tensors only")


def shape_mismatch(message: object, template: object) -> str:
    """Return the first difference from a template: a tensor missing, extra, of another shape or type; '' for none."""
    got, expected = dict(tensors(message)), dict(tensors(template))
    if expected and not got:
        return "the update is empty"
    for path in sorted(expected.keys() | got.keys()):
        if path not in got or path not in expected:
            return f"tensor {path!r} is {'missing' if path not in got else 'not expected'}"
        t, e = got[path], expected[path]
        if t.shape != e.shape or t.dtype != e.dtype:
            return _unlike(path, t, e)
    return ""


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """Return contiguous tensors of a type as one flat tensor, without a copy, where each lies behind the one before it
    in one storage; None where they do not.
    """
    first, end = parts[0], parts[0].storage_offset()
    for t in parts:
        same = t.dtype == first.dtype and t.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or t.storage_offset() != end or not t.is_contiguous():
            return None
        end += t.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))


def not_finite(message: object) -> str:
    """Return the name of the first tensor that holds NaN or infinity; '' for none."""
    # a finite sum has finite terms; the reverse does not hold, since a sum may overflow
    inexact = [(path, t) for path, t in tensors(message) if t.is_floating_point() or t.is_complex()]
    whole = joined([t for _, t in inexact]) if inexact else None
    if whole is not None and cmath.isfinite(whole.sum().item()):
        return ""
    for path, t in inexact:
        if cmath.isfinite(t.sum().item()):
            continue
        if not bool(torch.isfinite(t).all()):
            return f"tensor {path!r} holds {int((~torch.isfinite(t)).sum())} non-finite values"
    return ""


def _unlike(path: str, got: Tensor, expected: Tensor) -> str:
    return f"tensor {path!r} is {got.dtype} {tuple(got.shape)}, expected {expected.dtype} {tuple(expected.shape)}"


@dataclass(frozen=True, slots=True)
class _Slot:
    """The position of a tensor in the flat buffer of its type."""

    dtype: str
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A message as one flat NumPy buffer per element type: one object on the wire instead of one per tensor."""

    skeleton: Any
    buffers: dict[str, npt.NDArray[Any]]


def pack(message: object, *, copy: bool = True) -> Packed:
    """Return a message with all its tensors in flat buffers (on the CPU). copy=False: where they lie, if they lie like
    that already, for whoever serializes them before they change.
    """
    parts: dict[str, list[Tensor]] = {}
    length: dict[str, int] = {}

    def slot_of(_: str, t: Tensor) -> _Slot:
        dtype = str(t.dtype).removeprefix("torch.")
        slot = _Slot(dtype, length.get(dtype, 0), tuple(t.shape))
        parts.setdefault(dtype, []).append(t.detach().cpu())
        length[dtype] = slot.start + t.numel()
        return slot

    skeleton = rebuild(message, slot_of)
    views = {dtype: None if copy else joined(part) for dtype, part in parts.items()}
    flat = {k: torch.cat([t.reshape(-1) for t in parts[k]]) if view is None else view for k, view in views.items()}
    return Packed(skeleton, {dtype: buffer.numpy() for dtype, buffer in flat.items()})


def unpack(packed: Packed, *, copy: bool = True) -> Any:
    """Return the message again, in storage of its own; copy=False: where it lies, for whoever only reads it.

    Else the copy is needed: ``torch.from_numpy`` of an array in Ray's object store is writable and would change what
    every other reader sees (docs/adr/0007).
    """
    flat = {k: torch.from_numpy(np.array(v, copy=True) if copy else v) for k, v in packed.buffers.items()}

    def fill_slots(node: Any) -> Any:
        if isinstance(node, _Slot):
            return flat[node.dtype][node.start : node.start + int(np.prod(node.shape))].view(node.shape)
        if isinstance(node, dict):
            return {k: fill_slots(v) for k, v in node.items()}
        return type(node)(**{f.name: fill_slots(getattr(node, f.name)) for f in fields(node)})

    return fill_slots(packed.skeleton)
