"""CPU seconds of each aggregation of n updates of a million numbers, one thread: the table of
docs/robust-aggregation.md.

    python -m benchmarks.bench_aggregation
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from anchorfl.pipeline.algorithm.aggregation import clip_step, krum, mean_of, median_of, trimmed_mean_of
from anchorfl.pipeline.training.run_spec import one_thread
from benchmarks.readings import least_seconds

NUMBERS, TIMES = 1_000_000, 5


def works(count: int) -> list[Callable[[], object]]:
    """Return the aggregations of so many updates, in the order of the table."""
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
        cells = [f"{least_seconds(work, TIMES):.3f}" for work in works(count)]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
