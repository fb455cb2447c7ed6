"""Images as a network takes them, from what is stored: the one place that scales and normalizes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch, which the list of tasks does without
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scaling:
    """``(x / levels - mean) / std`` of every channel, on the device of its tensors.

    Without levels, inputs are stored as a network takes them, and calling it changes nothing. All fields are float32:
    tensors, as a GPU would multiply by the reciprocal of a Python number, which rounds differently.
    """

    levels: Tensor | None = None
    """Largest whole number that is stored."""
    mean: Tensor | None = None
    """[channels, 1, 1]; None where images stay in [0, 1]."""
    std: Tensor | None = None
    """Deviation, as ``mean``."""

    @classmethod
    def of(cls, levels: int, mean: Sequence[float] = (), std: Sequence[float] = ()) -> Scaling:
        """Return the scaling of an ``InputSpec``'s numbers; mean and deviation per channel, or none."""
        if not levels:
            return cls()
        import torch

        per_channel = (
            [torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (mean, std)] if mean else []
        )
        return cls(torch.tensor(levels, dtype=torch.float32), *per_channel)

    def __call__(self, x: Tensor) -> Tensor:
        """Return stored inputs [B, ...] as a network takes them."""
        return x if self.levels is None else self.unit(x.float().div_(self.levels))

    def unit(self, x_BCHW: Tensor) -> Tensor:
        """Return images in [0, 1] (of a generator, say) as a network takes real ones; gradients go through."""
        return x_BCHW if self.mean is None or self.std is None else (x_BCHW - self.mean) / self.std

    def to(self, device: torch.device) -> Scaling:
        """Return the same on another device."""
        return Scaling(*(None if t is None else t.to(device) for t in (self.levels, self.mean, self.std)))


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
