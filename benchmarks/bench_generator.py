"""CPU seconds of a pass of FedBM's generator, with doubling convolutions and with a doubling before each convolution.

One thread, in turn. docs/methods/fedbm.md quotes the ratio.
"""

from __future__ import annotations

import copy
import statistics

import torch
from torch import nn

from anchorfl.models.generator import DoublingConv, Generator
from anchorfl.pipeline.training.run_spec import one_thread
from benchmarks.readings import pass_seconds

WIDTH, BATCH, PAIRS = 512, 32, 7
SIDES = (28, 64, 128)


def in_two_steps(generator: Generator) -> Generator:
    """Return a copy with the same weights, whose doublings are layers of their own."""
    made = copy.deepcopy(generator)
    layers: list[nn.Module] = []
    for layer in made.layers:
        if isinstance(layer, DoublingConv):
            plain = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1, bias=False)
            plain.weight = layer.weight
            layers += [nn.Upsample(scale_factor=2), plain]
        else:
            layers.append(layer)
    made.layers = nn.Sequential(*layers)
    return made


def main() -> None:
    one_thread()
    print(f"| {BATCH} images of | pass | in two steps | doubling convolutions | ratio | apart by |\n|{'---|' * 6}")
    for side in SIDES:
        ours = Generator(WIDTH, (3, side, side))
        plain = in_two_steps(ours)
        z_BD = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            apart = float((ours(z_BD) - plain(z_BD)).abs().max())
        for backward in (False, True):
            turns = [lambda made=made: made(z_BD) for made in (plain, ours)]  # noqa: B023
            pairs = [[pass_seconds(turn, backward) for turn in turns] for _ in range(PAIRS)]
            two, one = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(p / o for p, o in pairs)
            name = "forward and backward" if backward else "forward"
            print(f"| {side} x {side} | {name} | {two:.3f} s | {one:.3f} s | {ratio:.2f} | {apart:.0e} |", flush=True)


if __name__ == "__main__":
    main()
