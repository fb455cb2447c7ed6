"""The client's optimizer: its options, and its state as plain tensors, so that it can be a client's memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.tasks.errors import InputError

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def without_compiler(kind: type[OptimizerT]) -> type[OptimizerT]:
    """Return a kind of torch's optimizers that makes the same steps, and does not import torch's compiler at first use.

    torch wraps its optimizers' methods so that ``torch.compile`` meets them prepared; the wrappers import 800 modules,
    a second of CPU and 70 MB in every actor. Nothing here is compiled, so what they wrap is called without them.
    """
    wrapped = {name: f for name, f in inspect.getmembers(kind, inspect.isfunction) if hasattr(f, "__wrapped__")}
    plain = {name: inspect.unwrap(f) for name, f in wrapped.items()}
    # the one wrapper that does something: a step is not differentiated
    plain["step"] = torch.no_grad()(plain["step"])
    light: type[OptimizerT] = type(kind.__name__, (kind,), plain)
    return light


Adam = without_compiler(torch.optim.Adam)
SGD = without_compiler(torch.optim.SGD)


def make(
    options: OptimizerOptions, parameters: Iterable[Tensor], lr: float | None = None, round_: int = 1
) -> torch.optim.Optimizer:
    """Return the optimizer over ``parameters``, all on one device. lr: in place of the options' rate, which
    ``in_round`` has decayed; it is decayed here, as in round ``round_``.
    """
    rate = options.lr if lr is None else lr * options.lr_decay ** (round_ - 1)
    if options.name == "adam":
        parameters = list(parameters)
        recordable = all(p.is_cuda for p in parameters)  # in a CUDA graph (pipeline/training/cuda_graphs.py)
        return Adam(parameters, lr=rate, weight_decay=options.weight_decay, fused=True, capturable=recordable)
    return SGD(parameters, lr=rate, momentum=options.momentum, weight_decay=options.weight_decay, fused=True)


FUSED = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"))
"""Those that torch's fused steps write, each of its parameter's shape."""
MOMENTS = frozenset(("step", "exp_avg", "exp_avg_sq", "momentum_buffer"))
"""Ends of the names in an optimizer's state."""


def without_moments(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a client's memory without the state of its optimizers."""
    return {name: value for name, value in memory.items() if name.rpartition(".")[2] not in MOMENTS}


def state_of(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """Return moments and step counts as ``{prefix.index.name: tensor}``, in storage of its own."""
    return {
        f"{prefix}.{index}.{name}": value.detach().clone()
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
        if isinstance(value, Tensor)
    }


def _fits(parameters: Sequence[Tensor], index: str, name: str, value: Tensor) -> bool:
    """Return whether a value may be of the state of the parameter of that number. Those that torch's fused steps write
    have its shape; other optimizers have others.
    """
    if not index.isdecimal() or int(index) >= len(parameters):
        return False
    if name == "step":
        return value.numel() == 1
    return name not in FUSED or value.shape == parameters[int(index)].shape


def restore(optimizer: torch.optim.Optimizer, prefix: str, memory: Mapping[str, Tensor]) -> None:
    """Put back what ``state_of`` took out; nothing where ``memory`` holds nothing of this prefix.

    InputError where it is of other parameters: torch would write where their moments do not reach.
    """
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in memory.items():
        optimizer_name, _, rest = key.partition(".")
        if optimizer_name == prefix:
            index, _, name = rest.partition(".")
            if not _fits(parameters, index, name, value):
                raise InputError(
                    f"{key!r}, of {tuple(value.shape)}, is no moment of the optimizer {prefix!r}: one over other"
                    " parameters needs another name in make_optimizers, and a key of memory() must not begin with an"
                    " optimizer's; or the run folder was changed"
                )
            state.setdefault(int(index), {})[name] = value.clone()
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
