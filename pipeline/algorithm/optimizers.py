"""The client's optimizer: its options, and its state as plain tensors, so that it can be a client's memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

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


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerOptions:
    """Local training. Defaults are FedAlign's (KDD 2023, section 5)."""

    name: Literal["adam", "sgd"] = "adam"
    """Kind of optimizer."""
    lr: float = 0.001
    """Learning rate, > 0. Methods with several optimizers (FedAlign) have their own rates in [method]."""
    lr_decay: float = 1.0
    """Factor on ``lr`` after every round, for every client, in (0, 1] (FedBM's reference code: 0.99)."""
    momentum: float = 0.0
    """SGD's momentum, in [0, 1)."""
    weight_decay: float = 0.0
    """L2 penalty, >= 0."""
    batch_size: int = 128
    """Rows of a mini-batch, 0: all rows of the client; means over it divide by its rows, the unlabeled included."""
    class_balanced: bool = True
    """Multi-label loss: weigh a class's positives and negatives against each other (FedAlign's reference code); false:
    plain binary cross-entropy (the paper)."""
    state: Literal["keep", "reset"] = "keep"
    """``keep``: a client's moments go on in its next round (FedAlign's reference code); ``reset``: they start anew."""
    skip_zero_rows: bool = True
    """Do not compute rows whose loss and gradient are zero (unlabeled ones). Same mathematics."""
    microbatch_tokens: int = 1024
    """Sort a mini-batch by length and cut it into pieces of at most this many padded positions (of sparse rows: 64
    times as many), whose gradients add up; 0: one piece. Same mathematics."""
    lookup_dropout: bool = True
    """Draw dropout masks from random bytes through a table instead of ``bernoulli_`` (CPU). Same distribution."""
    onednn: bool = False
    """Compute linear layers by oneDNN in place of the BLAS that torch was built with (CPU, float32): faster on AMD's
    processors with AVX-512, where MKL keeps to AVX2 (docs/speed.md). Same mathematics, other rounding."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the encoder's products in training; weights, losses, optimizer, merges and scores stay float32.
    ``bfloat16``: other results, and faster where the processor or GPU has such products (docs/speed.md)."""
    crop: int = 0
    """Images only: cut each at random out of itself with so many black pixels on every side, anew in every epoch; 0:
    not. FedBM's generated images have a rule of their own (docs/methods/fedbm.md)."""
    flip: Literal["none", "horizontal", "vertical", "both"] = "none"
    """Images only: flip each in this direction with probability 1/2, anew in every epoch."""

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"optimizer.lr = {self.lr}: must be above 0")
        if not 0 < self.lr_decay <= 1:
            raise ValueError(f"optimizer.lr_decay = {self.lr_decay}: must be in (0, 1]")
        if self.batch_size < 0:
            raise ValueError(f"optimizer.batch_size = {self.batch_size}: must be at least 1, or 0 for all rows")
        if self.microbatch_tokens < 0:
            raise ValueError(f"optimizer.microbatch_tokens = {self.microbatch_tokens}: must be 0 (off) or more")
        if self.onednn and self.precision != "float32":
            raise ValueError("optimizer.onednn is for float32: set it to False, or optimizer.precision to 'float32'")
        if self.crop < 0:
            raise ValueError(f"optimizer.crop = {self.crop}: must be at least 0 pixels")
        if self.name == "adam" and self.momentum:
            raise ValueError("optimizer.momentum is SGD's: set it to 0, or optimizer.name to 'sgd'")
        if not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise ValueError("optimizer: momentum must be in [0, 1) and weight_decay at least 0")

    @property
    def augments(self) -> bool:
        """True where training changes images at random."""
        return bool(self.crop) or self.flip != "none"


def in_round(options: OptimizerOptions, round_: int) -> OptimizerOptions:
    """Return the options as they stand in a round, counted from 1."""
    return replace(options, lr=options.lr * options.lr_decay ** (round_ - 1))


def make(
    options: OptimizerOptions, parameters: Iterable[Tensor], lr: float | None = None, round_: int = 1
) -> torch.optim.Optimizer:
    """Return the optimizer over ``parameters``. lr: in place of the options' rate, which ``in_round`` has decayed; it
    is decayed here, as in round ``round_``.
    """
    rate = options.lr if lr is None else lr * options.lr_decay ** (round_ - 1)
    if options.name == "adam":
        return Adam(parameters, lr=rate, weight_decay=options.weight_decay, fused=True)
    return SGD(parameters, lr=rate, momentum=options.momentum, weight_decay=options.weight_decay, fused=True)


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


def restore(optimizer: torch.optim.Optimizer, prefix: str, memory: Mapping[str, Tensor]) -> None:
    """Put back what ``state_of`` took out; nothing where ``memory`` holds nothing of this prefix."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in memory.items():
        optimizer_name, _, rest = key.partition(".")
        if optimizer_name == prefix:
            index, _, name = rest.partition(".")
            state.setdefault(int(index), {})[name] = value.clone()
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
