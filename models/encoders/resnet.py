"""Residual networks for images: ResNet-18, -34 and -50, and the small ResNet-8 and -20 (He et al., CVPR 2016).

Table 1 of the paper with the projection shortcut of its option B. The bottleneck has its stride in the 3x3 convolution,
not in the first 1x1: the variant known as v1.5, whose sizes and scores are the ones in use today. The small ones are
those of section 4.2 (6n + 2 layers, n = 1 and 3), there with option A, whose shortcuts have no weights.
Shape suffixes: B rows, H and W pixels, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.models.options import Init

Network = Literal["resnet8", "resnet20", "resnet18", "resnet34", "resnet50"]
Stem = Literal["imagenet", "small"]
Norm = Literal["group", "batch", "frozen"]
MakeNorm = Callable[[int], nn.Module]

GROUPS = 32
"""Most groups of GroupNorm (Wu and He, ECCV 2018, section 4); at least two channels each."""
SMALL = 64
"""Largest height or width in pixels that gets the small stem where none is named."""
NARROW = 16
"""Channels of the first stage up to which a CPU has the channels of a pixel side by side, unless GroupNorm is used. The
same sums: where a convolution has few channels, putting them into its order and back costs as much as the products."""
LINEAR = "linear."
"""Prefix of the tensors behind the trunk; a file of weights that was made with another width lacks them."""


class FrozenBatchNorm(nn.Module):
    """BatchNorm with fixed statistics: in training as in evaluation mode a channel is scaled by numbers that no batch
    changes, so rows stay independent. Weight and bias are trained.

    Its tensors have BatchNorm's names, so that weights trained with one go on with the other.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False)


def norm_of(kind: Norm) -> MakeNorm:
    """Return the constructor of the normalization of a number of channels."""
    if kind == "group":
        return lambda channels: nn.GroupNorm(min(GROUPS, channels // 2), channels)
    return nn.BatchNorm2d if kind == "batch" else FrozenBatchNorm


def _conv(entry: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(entry, out, size, stride, padding=size // 2, bias=False)


def _shortcut(entry: int, out: int, stride: int, norm: MakeNorm) -> nn.Module:
    """Return option B: a 1x1 convolution where the shape changes, else the input itself."""
    if stride == 1 and entry == out:
        return nn.Identity()
    return nn.Sequential(_conv(entry, out, 1, stride), norm(out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the stride in the first, and a shortcut (figure 5, left)."""

    expansion = 1

    def __init__(self, entry: int, channels: int, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(entry, channels, 3, stride), norm(channels)
        self.conv2, self.norm2 = _conv(channels, channels, 3), norm(channels)
        self.downsample = _shortcut(entry, channels, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)) + self.downsample(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to four times the channels, and a shortcut (figure 5, right)."""

    expansion = 4

    def __init__(self, entry: int, channels: int, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        out = self.expansion * channels
        self.conv1, self.norm1 = _conv(entry, channels, 1), norm(channels)
        self.conv2, self.norm2 = _conv(channels, channels, 3, stride), norm(channels)
        self.conv3, self.norm3 = _conv(channels, out, 1), norm(out)
        self.downsample = _shortcut(entry, out, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        h = F.relu(self.norm2(self.conv2(h)), inplace=True)
        return F.relu(self.norm3(self.conv3(h)) + self.downsample(x), inplace=True)


LAYERS: dict[Network, tuple[type[BasicBlock] | type[Bottleneck], int, tuple[int, ...]]] = {
    "resnet8": (BasicBlock, 16, (1, 1, 1)),
    "resnet20": (BasicBlock, 16, (3, 3, 3)),
    "resnet18": (BasicBlock, 64, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, 64, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, 64, (3, 4, 6, 3)),
}
"""Block, channels of the first stage, which double from stage to stage, and how many blocks each of them has (table 1;
section 4.2)."""


class ResNet(nn.Module):
    """Image [B, channels, H, W] of any size -> z_BD: stem, stages of residual blocks, the mean over all pixels.

    - ``width``: D. The trunk gives 512 numbers a row (ResNet-50: 2048; ResNet-8 and -20: 64); a linear layer follows
      where ``width`` is another number.
    - ``stem``: ``imagenet``, a 7x7 convolution with stride 2 and max-pooling, which quarters height and width; or
      ``small``, a 3x3 convolution with stride 1, which keeps them.
    - ``init``: convolutions start ``he``, normal with variance 2 / fan-out (He et al., ICCV 2015), or ``torch``,
      uniform within 1 / sqrt(fan-in); normalizations as the identity, the linear layer as torch's.

    There is no dropout.
    """

    def __init__(
        self, network: Network, channels: int, width: int, *, stem: Stem, norm: Norm, init: Init = "he"
    ) -> None:
        super().__init__()
        block, first, depths = LAYERS[network]
        make_norm = norm_of(norm)
        self.stem = stem
        self.channels_last = first <= NARROW and norm != "group"
        self.conv1 = _conv(channels, first, 7, 2) if stem == "imagenet" else _conv(channels, first, 3)
        self.norm1 = make_norm(first)
        entry, self.stages = first, [f"layer{i}" for i in range(1, len(depths) + 1)]
        for stage, depth in enumerate(depths):
            out, blocks = first << stage, []
            for i in range(depth):
                blocks.append(block(entry, out, 2 if stage and i == 0 else 1, make_norm))
                entry = out * block.expansion
            self.add_module(self.stages[stage], nn.Sequential(*blocks))
        self.linear = nn.Identity() if entry == width else nn.Linear(entry, width)
        for module in self.modules():
            if init == "he" and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x)
        if self.channels_last and h.device.type == "cpu":
            h = h.contiguous(memory_format=torch.channels_last)
        h = F.relu(self.norm1(h), inplace=True)
        if self.stem == "imagenet":
            h = F.max_pool2d(h, 3, stride=2, padding=1)
        for stage in self.stages:
            h = self.get_submodule(stage)(h)
        z_BD: Tensor = self.linear(h.mean((2, 3)))
        return z_BD


def stem_for(shape: tuple[int, ...]) -> Stem:
    """Return the stem for images of ``shape`` (channels, height, width): small up to 64 pixels a side."""
    return "small" if max(shape[1:]) <= SMALL else "imagenet"
