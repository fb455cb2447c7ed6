"""Training in bfloat16: the encoder's products in 8 bits of precision instead of 24, on hardware that is faster so.

Weights, gradients of weights, losses, optimiser, means and everything in evaluation mode stay float32: torch's
autocast, around the encoder alone. Results differ from float32's in the third digit of a product; that is why it is a
switch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _lowered(kind: type[nn.Module]) -> type[nn.Module]:
    """The same kind of encoder, whose training passes are in bfloat16."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if not self.training:
            return kind.forward(self, x)  # type: ignore[no-any-return]
        # without autocast's cache, which does not see that an optimiser has changed a weight in place
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out: Tensor = kind.forward(self, x)
        return out.float()

    return type(kind.__name__, (kind,), {"forward": forward})


def use_bfloat16(encoder: nn.Module) -> None:
    """Turn an encoder into one that trains in bfloat16, in place; its parameters stay as they are, float32."""
    encoder.__class__ = _lowered(type(encoder))
