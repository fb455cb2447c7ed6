"""Linear layers whose products oneDNN computes, for CPUs on which torch's BLAS leaves half of the speed unused.

The MKL that torch ships chooses its kernels by the processor's maker: on AMD's it keeps to AVX2, where oneDNN, which
torch ships too, takes AVX-512: 2.2 times the float32 products per second on a Zen 5 (benchmarks/products.py). The sums
are the same float32 sums in another order, so the last bits differ; that is why it is a switch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST = 2**22
"""Multiplications below which a product stays with the BLAS: a call of oneDNN's costs more, most with new shapes."""


def product(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Return ``a @ b`` by oneDNN, float32 on the CPU."""
    return _linear(a_MK, b_KN.T, None)


def _linear(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, weight_NK, bias_N, "none", [], "")
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        return _linear(x_MK, weight_NK, bias_N)

    @staticmethod
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_MK, weight_NK = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            product(grad_MN, weight_NK) if for_x else None,
            product(grad_MN.T, x_MK) if for_weight else None,
            grad_MN.sum(0) if for_bias else None,
        )


class OneDnnLinear(nn.Linear):
    """``nn.Linear`` whose three products oneDNN computes where they are float32 on the CPU and not tiny."""

    def forward(self, input: Tensor) -> Tensor:
        rows = input.numel() // max(input.shape[-1], 1)
        if input.device.type != "cpu" or input.dtype != torch.float32 or rows * self.weight.numel() < SMALLEST:
            return F.linear(input, self.weight, self.bias)
        out = _Linear.apply(input.reshape(rows, -1), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out.view(*input.shape[:-1], -1)  # type: ignore[no-any-return]


def use_onednn(model: nn.Module) -> None:
    """Turn the plain linear layers of ``model`` into such ones, in place; their parameters stay as they are.

    Raises ValueError where torch was built without oneDNN.
    """
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (available and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        raise ValueError("optimizer.onednn: this build of torch has no oneDNN: leave the option out")
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear
