"""Label collection at AmazonCat-13K's size: time and peak memory of merging digests and counting co-occurrence.

    python -m benchmarks.label_sets [--instances 1186239] [--classes 13330] [--labels 5]

Made-up label sets: about ``--labels`` labels an instance, classes drawn by a power law; one client per class, which
sends the digests of its instances. The peak of the process is stated with what it held before merging. For the
clients' side, ``--hash`` rows of 71 sparse pairs are hashed first.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import psutil
import torch

from anchorfl.pipeline.algorithm.label_collection import (
    DIGEST_BYTES,
    LabelMessage,
    cooccurrence_counts,
    digests,
    label_digest,
    merge_label_sets,
    run_key,
)
from anchorfl.pipeline.execution.system_metrics import peak_resident
from anchorfl.tasks.contract import ClientData

MIB = 1 << 20


def made_up(instances: int, classes: int, labels: int, rng: np.random.Generator) -> list[LabelMessage]:
    """Return what one client per class sends."""
    weight_C = 1 / (np.arange(classes) + 10.0)
    bound_C = np.cumsum(weight_C / weight_C.sum())
    length_N = rng.poisson(labels - 1, instances) + 1
    row_P = np.repeat(np.arange(instances, dtype=np.int32), length_N)
    class_P = np.minimum(np.searchsorted(bound_C, rng.random(len(row_P))), classes - 1).astype(np.int32)
    pair_P = np.unique(class_P.astype(np.int64) * instances + row_P)
    digest_N = rng.integers(0, 256, (instances, DIGEST_BYTES), dtype=np.uint8)
    count_C = np.bincount(pair_P // instances, minlength=classes)
    rows = np.split((pair_P % instances).astype(np.int32), np.cumsum(count_C)[:-1])
    return [
        LabelMessage(
            torch.from_numpy(np.frombuffer(label_digest(c, key=run_key(0)), np.uint8).copy()),
            torch.from_numpy(digest_N[r]),
        )
        for c, r in enumerate(rows)
    ]


def hashing(instances: int, rng: np.random.Generator) -> float:
    """Return the seconds for the keyed digests of rows of 71 pairs."""
    x = np.stack([rng.integers(1, 203_883, (instances, 71)), rng.random((instances, 71))], -1).astype(np.float32)
    none = torch.zeros(instances, 1)
    data = ClientData(torch.from_numpy(x), none, none, none, torch.full((instances,), 71))
    began = time.perf_counter()
    digests(data, "hmac", run_key(0))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1_186_239)
    parser.add_argument("--classes", type=int, default=13_330)
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--hash", type=int, default=50_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    hashed = hashing(options.hash, rng)
    messages = made_up(options.instances, options.classes, options.labels, rng)
    pairs = sum(len(sent.digest_P) for sent in messages)
    before, peak_before = psutil.Process().memory_info().rss / MIB, peak_resident() / MIB
    began = time.perf_counter()
    labels = merge_label_sets(messages, range(options.classes), options.classes)
    merged = time.perf_counter() - began
    began = time.perf_counter()
    count_CC = cooccurrence_counts(labels)
    counted = time.perf_counter() - began
    held = (count_CC.data.nbytes + count_CC.indices.nbytes + count_CC.indptr.nbytes) / MIB
    print(
        f"hashed {options.hash} rows of 71 pairs in {hashed:.1f} s = {options.hash / hashed:.0f} rows/s\n"
        f"{len(messages)} messages, {pairs / 1e6:.2f} M digests, {pairs * DIGEST_BYTES / MIB:.0f} MiB: merged into "
        f"{len(labels)} label sets in {merged:.1f} s\n"
        f"co-occurrence [{options.classes}, {options.classes}] in {counted:.1f} s: {count_CC.nnz / 1e6:.2f} M entries, "
        f"{held:.0f} MiB (dense: {options.classes**2 * 8 / MIB:.0f} MiB)\n"
        f"peak of the process {peak_resident() / MIB:.0f} MiB; before merging it held {before:.0f}, its peak was "
        f"{peak_before:.0f}"
    )


if __name__ == "__main__":
    main()
