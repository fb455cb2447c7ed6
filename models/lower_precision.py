"""Training in bfloat16: the encoder's products in 8 bits of precision instead of 24, on hardware that is faster so.

Weights, gradients of weights, losses, optimizer, means and everything in evaluation mode stay float32. Results differ
from float32's in the third digit of a product; that is why it is a switch.

On a GPU, and for convolutions, this is torch's autocast around the encoder. On a CPU oneDNN compiles a product for
every shape that it meets, and micro-batches have hundreds of them: a round of R8-8 was slower than in
float32, and took a gigabyte more in every worker. There, linear layers get their rows in multiples of ``ROWS``, the
others zeros, which change no sum; attention's own products, a tenth of the whole, stay float32.

Shape suffixes: R rows, I entries, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64


class _Product(torch.autograd.Function):
    """``x @ weight.T + bias`` and its two gradients by products in bfloat16; everything given and returned float32."""

    @staticmethod
    def forward(ctx: Any, x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        low_RI, low_OI = _pad_rows(x_RI), weight_OI.bfloat16()
        ctx.save_for_backward(low_RI, low_OI)
        out_RO = F.linear(low_RI, low_OI)[: len(x_RI)].float()
        return out_RO if bias_O is None else out_RO.add_(bias_O)

    @staticmethod
    def backward(ctx: Any, grad_RO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        low_RI, low_OI = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        low_RO = _pad_rows(grad_RO)
        return (
            (low_RO @ low_OI)[: len(grad_RO)].float() if for_x else None,
            (low_RO.T @ low_RI).float() if for_weight else None,
            grad_RO.sum(0) if for_bias else None,
        )


def _pad_rows(x_RI: Tensor) -> Tensor:
    """Return the rows in bfloat16, with rows of zeros up to a multiple of ``ROWS``."""
    rows, entries = x_RI.shape
    out = torch.empty(-(-rows // ROWS) * ROWS, entries, dtype=torch.bfloat16, device=x_RI.device)
    out[:rows] = x_RI
    out[rows:] = 0
    return out


class _Linear(nn.Linear):
    """``nn.Linear`` whose products in training are in bfloat16 on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or input.device.type != "cpu":
            return F.linear(input, self.weight, self.bias)
        out = _Product.apply(input.reshape(-1, input.shape[-1]), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out.view(*input.shape[:-1], -1)  # type: ignore[no-any-return]


def _bfloat16_class(kind: type[nn.Module], everywhere: bool) -> type[nn.Module]:
    """Return the same kind of encoder, whose training passes are in bfloat16. everywhere: by autocast on CPUs, too."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if not self.training or (x.device.type == "cpu" and not everywhere):
            return kind.forward(self, x)  # type: ignore[no-any-return]
        # without autocast's cache, which does not see that an optimizer has changed a weight in place
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out: Tensor = kind.forward(self, x)
        return out.float()

    return type(kind.__name__, (kind,), {"forward": forward})


def use_bfloat16(encoder: nn.Module) -> None:
    """Turn an encoder into one that trains in bfloat16, in place; its parameters stay as they are, float32."""
    convolves = any(isinstance(module, nn.Conv2d) for module in encoder.modules())
    if not convolves:
        for module in encoder.modules():
            if type(module) is nn.Linear:
                module.__class__ = _Linear
    encoder.__class__ = _bfloat16_class(type(encoder), convolves)
