"""Mathematics that several methods share: pure functions over tensors.

Shape suffixes: C classes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

PERSONAL = "personal."
"""Prefix of a client's own weights in its memory."""


_PARTS: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], list[nn.Parameter]]] = WeakKeyDictionary()
_STATES: WeakKeyDictionary[nn.Module, tuple[dict[str, Tensor], list[Tensor | None]]] = WeakKeyDictionary()
"""Model -> its state dict, and the buffers that it had then."""


def parts_of(model: nn.Module) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """Return all modules within a model and its parameters, which are listed once: the walk takes longer than a copy
    of 2 MB.
    """
    if model not in _PARTS:  # the model itself would be kept for good
        _PARTS[model] = list(model.modules())[1:], list(model.parameters())
    return _PARTS[model]


def set_training(model: nn.Module) -> None:
    """Set all of a model to training, and all its parameters to be trained."""
    modules, parameters = parts_of(model)
    if not all(module.training for module in (model, *modules)):
        model.train()
    for parameter in parameters:
        if not parameter.requires_grad:
            parameter.requires_grad_(True)


def state_of_module(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state dict, detached: its own tensors. It is made once and not at every call, as the walk over
    the modules takes longer than a copy of 2 MB; and again where the model has moved to other memory, or has put
    another tensor in a buffer's place (``self.mean = ...``).
    """
    modules, parameters = parts_of(model)
    buffers = [value for module in (model, *modules) for value in module._buffers.values()]
    state, before = _STATES.get(model, (None, []))
    first = parameters[:1]
    moved = state is not None and first and all(first[0].data_ptr() != v.data_ptr() for v in state.values())
    if state is None or moved or list(map(id, buffers)) != list(map(id, before)):
        state = {name: value.detach() for name, value in model.state_dict().items()}
        _STATES[model] = state, buffers
    return state


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every weight and buffer of the model's state dict; those of a type lie one behind the other in
    one storage, as they travel (``messages.joined``).
    """
    values = state_of_module(model)
    kinds = dict.fromkeys((value.dtype, value.device) for value in values.values())
    out = dict[str, Tensor]()
    for kind in kinds:
        alike = {name: value for name, value in values.items() if (value.dtype, value.device) == kind}
        flat = torch.cat([value.reshape(-1) for value in alike.values()])
        parts = torch.split(flat, [value.numel() for value in alike.values()])
        out |= {name: part.view(value.shape) for (name, value), part in zip(alike.items(), parts, strict=True)}
    return {name: out[name] for name in values}


def tied_weights(model: nn.Module) -> dict[str, str]:
    """Return the names in the state dict of what the model has under another name, too -> the first of its names, which
    is that of ``named_parameters``.
    """
    first = dict[int, str]()
    names = {name: first.setdefault(id(value), name) for name, value in model.state_dict(keep_vars=True).items()}
    return {name: other for name, other in names.items() if name != other}


def load_sent(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model's own storage; parameters that were not sent become NaN, so that whoever uses one
    shows it. ValueError where a weight is not the model's.
    """
    values = state_of_module(model)
    if strange := [name for name, value in weights.items() if name not in values or values[name].shape != value.shape]:
        raise ValueError(f"not weights of this model: {strange[:3]}")
    if sent := [name for name in values if name in weights]:
        torch._foreach_copy_([values[name] for name in sent], [weights[name] for name in sent])
    for name, value in values.items():
        if name not in weights and value.is_floating_point():
            value.fill_(float("nan"))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with a prefix to every name: a part of a client's memory."""
    return {prefix + name: value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def log_prior(count_C: Tensor, gamma: float) -> Tensor:
    """Return the term that balanced softmax adds to the logits in training: ``gamma log n_c`` with counts of at least
    1, float64 [C] (Ren et al., NeurIPS 2020; gamma: FedROD).

    A class that a client lacks is pushed down by as much as one sample would be; log 0 would cut it out of the softmax.
    """
    return gamma * count_C.clamp(min=1).double().log()
