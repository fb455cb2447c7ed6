"""Seconds of CPU that each merge takes for a million numbers and n answers, on one thread: the table of
docs/robust-aggregation.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from anchorfl.pipeline.algorithm.aggregation import clip_step, krum, mean_of, median_of, trimmed_mean_of
from anchorfl.pipeline.training.run_spec import one_thread

NUMBERS, TIMES = 1_000_000, 5


def seconds(work: Callable[[], object]) -> float:
    """The least of several measurements, so that what else the machine does counts least."""
    taken = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def works(count: int) -> list[Callable[[], object]]:
    """The merges of so many answers, in the order of the table."""
    rng = torch.Generator().manual_seed(0)
    values = [{"w": torch.randn(NUMBERS, generator=rng)} for _ in range(count)]
    sent = {"w": torch.zeros(NUMBERS)}
    return [
        lambda: mean_of(values, [1] * count),
        lambda: median_of(values),
        lambda: trimmed_mean_of(values, 0.2),
        lambda: krum(values, 1),
        lambda: [clip_step(one, sent, 1.0) for one in values],
    ]


def main() -> None:
    one_thread()
    print("| n | mean | median | trimmed_mean | krum | clip_norm |\n|---|---|---|---|---|---|")
    for count in (5, 10, 50):
        print(f"| {count} | " + " | ".join(f"{seconds(work):.3f}" for work in works(count)) + " |", flush=True)


if __name__ == "__main__":
    main()
