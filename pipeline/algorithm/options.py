"""Options of local training and of the aggregation, as plain values. Nothing slow is imported: the command line lists
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Aggregation = Literal["mean", "median", "trimmed_mean", "krum"]
LEAST_NOISE = 0.01
"""Epsilon of less noise is in the thousands after a single round."""


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
    """Sort a mini-batch by length and cut it into pieces of at most this many padded positions (of sparse rows, and on
    a GPU: 64 times as many), whose gradients add up; 0: one piece. Same mathematics."""
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
    not. Generated images have a rule of their own (docs/methods/fedbm.md)."""
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
        if not (0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise ValueError("optimizer: momentum must be in [0, 1) and weight_decay at least 0")

    @property
    def augments(self) -> bool:
        """True where training changes images at random."""
        return bool(self.crop) or self.flip != "none"


def in_round(options: OptimizerOptions, round_: int) -> OptimizerOptions:
    """Return the options as they stand in a round, counted from 1."""
    return replace(options, lr=options.lr * options.lr_decay ** (round_ - 1))
