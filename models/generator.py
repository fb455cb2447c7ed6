"""FedBM's conditional generator: from the embedding of a class concept to an image, and the losses that train it.

Shape suffixes: B images, D width of the concepts, H height, W breadth, N classes' prompts, P pairs of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FILTERS = 128
DOUBLINGS = (128, 128, 64, 64)
"""Filters after each doubling of the size; where there are fewer, the last ones."""
JITTER = 1e-2
"""Deviation that is added to every number of a condition: the covariance of M prompts has at most rank M - 1."""
NEAR = 1e-5
"""Keeps the ratio of distances finite for equal images."""


def doublings(side: int) -> int:
    """Return how often the size doubles on the way to images with that many pixels a side: 128 pixels start from 8."""
    return next(k for k, least in ((4, 64), (3, 32), (2, 16), (1, 8)) if side >= least)


class Generator(nn.Module):
    """FedBM's generator: condition [B, D] -> image [B, channels, H, W] in [0, 1].

    A linear layer makes 128 small maps; 3x3 convolutions with BatchNorm and LeakyReLU follow, the size doubled between
    them, and a sigmoid. With D = 512 and 3 x 128 x 128 it has 4,758,211 weights. A size that is no multiple of its
    smallest maps is cut out of the middle of the next one. Raises ValueError on images below 8 pixels or not square.
    """

    def __init__(self, concept_width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, side = shape[0], shape[1]
        if len(shape) != 3 or shape[1] != shape[2] or side < 8:
            raise ValueError(f"images of {shape}: the generator makes square ones of at least 8 pixels a side")
        steps = doublings(side)
        self.side, self.first = side, -(-side // 2**steps)
        self.linear = nn.Linear(concept_width, FILTERS * self.first**2)
        layers: list[nn.Module] = [*_block(FILTERS, FILTERS)]
        before = FILTERS
        for filters in DOUBLINGS[len(DOUBLINGS) - steps :]:
            layers += _block(before, filters, DoublingConv)
            before = filters
        self.layers = nn.Sequential(*layers, nn.Conv2d(before, channels, 3, padding=1), nn.Sigmoid())

    def forward(self, z_BD: Tensor) -> Tensor:
        x = self.layers(self.linear(z_BD).view(len(z_BD), FILTERS, self.first, self.first))
        cut = (x.shape[-1] - self.side) // 2
        return x[..., cut : cut + self.side, cut : cut + self.side]  # type: ignore[no-any-return]


class DoublingConv(nn.Conv2d):
    """The nearest-neighbour doubling of the size, then a 3x3 convolution: [B, in, H, W] -> [B, out, 2H, 2W].

    Half of a 3x3 window on doubled maps looks at the same pixel twice. So a 2x2 convolution of the small maps, with
    those weights added, gives each of the four corners of a doubled pixel with 4/9 of the multiplications.
    """

    def forward(self, x: Tensor) -> Tensor:
        height, breadth = x.shape[-2:]
        corners = torch.cat([corner for rows in _halves(self.weight, 2) for corner in _halves(rows, 3)])
        y = F.conv2d(x, corners, padding=1).view(len(x), 2, 2, self.out_channels, height + 1, breadth + 1)
        at = [[y[:, i, j, :, i : i + height, j : j + breadth] for j in (0, 1)] for i in (0, 1)]
        return torch.stack([torch.stack(row, -1) for row in at], 3).flatten(4).flatten(2, 3)


def _halves(weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return a 3-wide kernel on doubled pixels as 2-wide ones on the pixels: for the first and second of a double."""
    one, two, three = weight.unbind(dim)
    return torch.stack([one, two + three], dim), torch.stack([one + two, three], dim)


def _block(before: int, after: int, convolution: type[nn.Conv2d] = nn.Conv2d) -> tuple[nn.Module, ...]:
    return convolution(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)


def conditions(concepts_CMD: Tensor, class_B: Tensor, rng: torch.Generator) -> Tensor:
    """Draw from the normal distribution of each class's prompt embeddings: [B, D].

    The distribution has their full covariance (divisor M - 1) and a jitter; draws are not brought to length 1. mean +
    sum_m eps_m (e_m - mean) / sqrt(M - 1) + jitter has that law, without a D x D matrix.
    """
    prompts, width = concepts_CMD.shape[1:]
    mean_CD = concepts_CMD.mean(1)
    out_BD = mean_CD[class_B] + JITTER * _normal((len(class_B), width), rng, concepts_CMD)
    if prompts > 1:
        spread_CMD = (concepts_CMD - mean_CD[:, None]) / (prompts - 1) ** 0.5
        out_BD = out_BD + torch.einsum("bm,bmd->bd", _normal((len(class_B), prompts), rng, out_BD), spread_CMD[class_B])
    return out_BD


def noise(width: int, class_B: Tensor, rng: torch.Generator, like: Tensor) -> Tensor:
    """Draw conditions that say nothing of the class: standard normal, [B, D] (ablation without concept conditions)."""
    return _normal((len(class_B), width), rng, like)


def _normal(shape: tuple[int, ...], rng: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device).to(like)


def diversity(z_BD: Tensor, x_B: Tensor, class_B: Tensor, classes: int) -> Tensor:
    """Return FedBM's L_div (eq. 7): the mean over pairs of a class of |z - z'|_1 / |x - x'|_1, then over all classes.

    A class with fewer than two images counts 0. Small where different conditions give different images.
    """
    index_2P = torch.triu_indices(len(z_BD), len(z_BD), 1, device=z_BD.device)
    index_2P = index_2P[:, class_B[index_2P[0]] == class_B[index_2P[1]]]
    one_P, other_P = index_2P
    x_BV = x_B.flatten(1)
    apart_z_P = (z_BD[one_P] - z_BD[other_P]).abs().sum(1)
    apart_x_P = (x_BV[one_P] - x_BV[other_P]).abs().sum(1)
    ratio_P = apart_z_P / (apart_x_P + NEAR * apart_z_P)
    total_C = torch.zeros(classes, dtype=ratio_P.dtype, device=z_BD.device).index_add(0, class_B[one_P], ratio_P)
    return (total_C / class_B[one_P].bincount(minlength=classes).clamp(min=1)).mean()


@dataclass
class Statistics:
    """The distances of a classifier's BatchNorm statistics in its last pass."""

    distance: list[Tensor] = field(default_factory=list)
    """L_dis of each layer."""

    def total(self) -> Tensor:
        """Return FedBM's L_dis (eq. 8), summed over the layers."""
        return torch.stack(self.distance).sum()


@contextmanager
def watch_batch_norm(classifier: nn.Module) -> Iterator[Statistics]:
    """Measure at each BatchNorm layer, in every pass within the block, the distance of its input to the statistics.

    The distance is the sum of the Euclidean norms between mean and biased variance of the input and the running ones.
    Nothing stays behind.
    """
    seen = Statistics()

    def before_all(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.distance.clear()

    def before(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        variance_C, mean_C = torch.var_mean(args[0], dim=(0, 2, 3), correction=0)
        apart = (variance_C - layer.get_buffer("running_var"), mean_C - layer.get_buffer("running_mean"))
        seen.distance.append(torch.linalg.vector_norm(apart[0]) + torch.linalg.vector_norm(apart[1]))

    hooks = [classifier.register_forward_pre_hook(before_all)]
    hooks += [m.register_forward_pre_hook(before) for m in batch_norm_layers(classifier)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def batch_norm_layers(classifier: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the layers whose running statistics L_dis compares with."""
    return [m for m in classifier.modules() if isinstance(m, nn.BatchNorm2d)]
