"""CPU seconds of a mini-batch of 32 images in residual networks, the channels of a pixel apart and side by side.

One thread, in turn, medians. docs/networks.md quotes the ratio.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from anchorfl.models.build import build
from anchorfl.models.encoders.resnet import ResNet
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.training.run_spec import one_thread
from benchmarks.readings import pass_seconds

BATCH, PAIRS = 32, 9
CASES = (
    ("resnet8", "batch", 28), ("resnet8", "batch", 64), ("resnet8", "frozen", 28), ("resnet8", "group", 28),
    ("resnet20", "batch", 32), ("resnet20", "group", 32), ("resnet18", "batch", 28),
)  # fmt: skip


def encoder(network: str, norm: str, side: int) -> ResNet:
    options = ModelOptions(network=network, width=512 if network == "resnet18" else 64, norm=norm)
    made = build(
        options, input_kind="image", shape=(3, side, side), vocabulary=0, classes=8, head="linear", unit=False,
        vectors_CP=None, seed=0, start=None,
    ).encoder  # fmt: skip
    assert isinstance(made, ResNet)
    return made


def seconds(made: ResNet, x: Tensor, side_by_side: bool, train: bool) -> float:
    made.channels_last = side_by_side
    made.train(train)
    return pass_seconds(lambda: made(x), train)


def main() -> None:
    one_thread()
    print(f"| network, norm, pixels | training: apart, side by side | ratio | scores: ratio |\n|{'---|' * 4}")
    for network, norm, side in CASES:
        made = encoder(network, norm, side)
        x = torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
        ratios, cells = [], ""
        for train in (True, False):
            pairs = [tuple(seconds(made, x, order, train) for order in (False, True)) for _ in range(PAIRS)]
            ratios.append(statistics.median(apart / together for apart, together in pairs))
            if train:
                cells = ", ".join(f"{statistics.median(column):.3f} s" for column in zip(*pairs, strict=True))
        print(f"| {network}, {norm}, {side} | {cells} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
