"""An encoder that starts from weights on disk instead of drawn ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from anchorfl.models.weight_files import WeightsError, tensors

ENCODER, HEAD = "encoder.", "head."
"""Prefixes of all tensors in the file of a whole classifier, such as a run's ``model/weights.safetensors``."""


class StartError(ValueError):
    """A file of weights that cannot be used: one line that says what is wrong, where, and how to mend it."""


def read_start(path: Path) -> dict[str, Tensor]:
    """Return the encoder's tensors of a safetensors file by name; of a whole classifier, those below ``encoder.``."""
    try:
        values = tensors(path.read_bytes())
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}; give the path of a .safetensors file") from error
    except WeightsError as error:
        raise StartError(f"{path}: no safetensors file ({error}); weights are read in that format alone") from error
    whole = all(name.startswith((ENCODER, HEAD)) for name in values)  # others' networks have parts of that name, too
    encoder = {name.removeprefix(ENCODER): value for name, value in values.items() if name.startswith(ENCODER)}
    return encoder if whole and encoder else values


def start_from(encoder: nn.Module, values: Mapping[str, Tensor], where: str, may_lack: Sequence[str] = ()) -> None:
    """Copy ``values`` into ``encoder``; names, shapes and types must agree. where: the file, for errors.

    may_lack: prefixes of tensors that keep their drawn values where the file has none of them. StartError names the
    first tensor that does not fit; the encoder is unchanged then.
    """
    mine = encoder.state_dict()
    if not values.keys() & mine.keys() and all(ENCODER + name in mine for name in values):
        values = {ENCODER + name: value for name, value in values.items()}  # its one part has that name
    lacking = tuple(prefix for prefix in may_lack if not any(name.startswith(prefix) for name in values))
    needed = {name for name in mine if not name.startswith(lacking)} if lacking else set(mine)
    hint = "give weights of the same network, stem, norm and width, under the names of docs/networks.md"
    for part, what in (("parametrizations.", "adapters (lora_rank)"), ("encoders.", "several encoders")):
        if any(part in name for name in values) and not any(part in name for name in mine):
            raise StartError(
                f"{where}: weights of a network with {what}, which start no other; give those of one without"
            )
    for name in sorted(needed | values.keys()):
        if name not in values or name not in needed:
            what = "is missing" if name not in values else "is not part of this encoder"
            raise StartError(f"{where}: tensor {name!r} {what}; {hint}")
        got, expected = values[name], mine[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise StartError(
                f"{where}: tensor {name!r} is {got.dtype} {tuple(got.shape)},"
                f" this encoder's is {expected.dtype} {tuple(expected.shape)}; {hint}"
            )
        if got.is_floating_point() and not bool(torch.isfinite(got).all()):
            raise StartError(f"{where}: tensor {name!r} holds values that are not finite; make the file anew")
    encoder.load_state_dict(dict(values), strict=not lacking)
