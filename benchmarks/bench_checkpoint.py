"""CPU time, syncs and bytes of saving a checkpoint, by how many clients keep a memory and how many change in a round.

    python -m benchmarks.bench_checkpoint

Each client keeps Adam's moments of a network of 2,600 weights (21 KB). Clients take part at random;
the median of 30 saves after as many others is stated.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from anchorfl.pipeline.storage.checkpoint import Checkpoints

CASES = ((10, 5), (1_000, 5), (10_000, 5), (10_000, 100), (10_000, 1_000))
"""(clients that keep a memory, clients that change)."""
SAVES = 30


def tensors(seed: int) -> dict[str, torch.Tensor]:
    values = torch.full((10, 2, 260), float(seed))
    return {f"all.{i}.{name}": values[i, j] for i in range(10) for j, name in enumerate(("exp_avg", "exp_avg_sq"))}


def measure(kept: int, changed: int) -> None:
    """Print a row of the table."""
    rng, syncs, real = np.random.default_rng(0), list[int](), os.fsync
    state = {"weights/w": torch.zeros(2_600)}
    seconds, sizes = list[float](), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        with patch.object(os, "fsync", lambda handle: None):  # thousands of files, in versions that had them
            checkpoints.save(0, {"state": state} | {f"memory-{c:05d}": tensors(c) for c in range(kept)}, {})
        for round_ in range(1, 2 * SAVES + 1):
            clients = rng.choice(kept, size=changed, replace=False).tolist()
            parts = {"state": state} | {f"memory-{c:05d}": tensors(round_) for c in clients}
            with patch.object(os, "fsync", lambda handle: (syncs.append(handle), real(handle))):
                began = time.process_time()
                checkpoints.save(round_, parts, {"round": round_})
                seconds.append(time.process_time() - began)
        files = [path.stat().st_size for path in checkpoints.folder.iterdir()]
        sizes = [len(files), sum(files)]
    print(
        f"| {kept:,} | {changed:,} | {1e3 * statistics.median(seconds[SAVES:]):.1f} | {len(syncs) / len(seconds):.0f}"
        f" | {sizes[0]:,} | {sizes[1] / 1e6:,.1f} |",
        flush=True,
    )


def main() -> None:
    torch.set_num_threads(1)
    print(
        "| clients with a memory | change in a round | save, CPU ms | syncs | files | MB |\n|---|---|---|---|---|---|"
    )
    for case in CASES:
        measure(*case)


if __name__ == "__main__":
    main()
