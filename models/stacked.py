"""Several networks of one shape as one: their weights lie side by side, and one pass is a pass of each.

``stack`` makes the network that holds them; ``torch.vmap`` runs it. Convolutions become grouped ones, linear layers
batched products; every network's sums are its own, so the results differ from its own pass by rounding alone.

Shape suffixes: K networks, B rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import Dropout, MaskSource
from anchorfl.models.encoders.resnet import ResNet
from anchorfl.models.encoders.transformer import TransformerEncoder


class StackedMasks(MaskSource):
    """The source of the dropout masks of several networks: each has its generator, and gets the numbers that it would
    get alone.
    """

    def __init__(self, *, lookup: bool) -> None:
        super().__init__(lookup=lookup)
        self.generators: Sequence[torch.Generator] = ()
        """Of the networks of the next pass."""
        self.rows: Sequence[int] = ()
        """Rows that each has in it; the others, up to the longest, are padding."""
        self.lengths: Sequence[int] | None = None
        """Positions that the longest row of each has; None: all that the pass has."""

    def mask(self, like: Tensor, p: float, positions: tuple[int, ...] = ()) -> Tensor:
        """Return the mask of one of the networks: to be called under ``torch.vmap`` alone."""
        out: Tensor = _StackedMask.apply(like, self, p, positions)  # type: ignore[no-untyped-call]
        return out

    def masks(self, like_KB: Tensor, p: float, positions: tuple[int, ...]) -> Tensor:
        """Return the masks of all networks; 0 at padding. ``positions`` are dimensions of one network's."""
        out = torch.zeros_like(like_KB)
        for k, (generator, rows) in enumerate(zip(self.generators, self.rows, strict=True)):
            size = [rows, *like_KB.shape[2:]]
            if self.lengths is not None:
                for dimension in positions:
                    size[dimension] = self.lengths[k]
            if rows:
                self.generator = generator
                out[k][tuple(map(slice, size))] = super().mask(like_KB.new_empty(size), p)
        return out


class _StackedMask(torch.autograd.Function):
    """A mask as an operation that ``torch.vmap`` asks for all networks at once."""

    generate_vmap_rule = False

    @staticmethod
    def forward(like: Tensor, source: StackedMasks, p: float, positions: tuple[int, ...]) -> Tensor:
        raise RuntimeError("masks of several networks are drawn under torch.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], like: Tensor, source: StackedMasks, p: float, positions: tuple[int, ...]
    ) -> tuple[Tensor, int]:
        return source.masks(like.detach().movedim(in_dims[0], 0), p, positions), 0


def stack(model: Classifier, count: int) -> Classifier:
    """Return a network whose parameters, and buffers of the state dict, are those of ``count`` networks of the shape
    of ``model``: [K, ...], uninitialized.
    """
    stacked = copy.deepcopy(model)
    stacked.masks = StackedMasks(lookup=model.masks.lookup)
    saved = stacked.state_dict().keys()
    for prefix, module in stacked.named_modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                module.register_parameter(name, nn.Parameter(value.new_empty(count, *value.shape)))
        for name, value in list(module.named_buffers(recurse=False)):
            if f"{prefix}.{name}" in saved:
                module.register_buffer(name, value.new_empty(count, *value.shape))
        if isinstance(module, Dropout):
            module.source = stacked.masks
        if isinstance(module, ResNet):
            module.channels_last = False  # an order of memory that vmap does not know
        if isinstance(module, TransformerEncoder):
            module.stacked = True
    return stacked
