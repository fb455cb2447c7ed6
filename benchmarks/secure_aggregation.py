"""What secure aggregation costs a client and the server in a round, in CPU seconds and bytes.

    python -m benchmarks.secure_aggregation          # a minute

A made-up update of so many values; every client of the round does what it would at its site. Without masks a client
does nothing and sends four bytes a value.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from anchorfl.pipeline.algorithm.secure_aggregation import Participant, unmasked
from anchorfl.pipeline.results.markdown import markdown_table


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """Return the median CPU seconds of a call."""
    each = []
    for _ in range(times):
        began = time.process_time()
        work()
        each.append(time.process_time() - began)
    return median(each)


def row(clients: int, size: int, lost: int) -> list[str]:
    """Return the row of a round in which some clients are lost after they gave their shares."""
    each = {client: Participant(client, 1, client.to_bytes(32, "big")) for client in range(clients)}
    keys = {client: one.public_keys for client, one in each.items()}
    values_P = np.arange(size, dtype=np.uint64)
    sent = {client: one.shares(keys) for client, one in each.items()}
    answered = list(range(lost, clients))
    total_P = np.sum([each[c].masked(keys, values_P) for c in answered], axis=0, dtype=np.uint64)
    received = {c: {other: sent[other][c] for other in keys} for c in keys}
    revealed = {c: each[c].reveal(keys, received[c], answered) for c in answered}
    assert (unmasked(total_P, keys, answered, revealed) == len(answered) * values_P).all()
    said = len(keys[0]) * (1 + clients) + 2 * sum(map(len, sent[0].values())) + sum(map(len, revealed[lost].values()))
    times = (
        seconds(lambda: each[lost].shares(keys)),
        seconds(lambda: each[lost].masked(keys, values_P)),
        seconds(lambda: each[lost].reveal(keys, received[lost], answered)),
        seconds(lambda: unmasked(total_P, keys, answered, revealed), 1),
    )
    bytes_ = f"{8 * size / 1e6:.2f}", f"{said / 1e3:.1f}"
    return [f"{clients}", f"{size:,}", f"{lost}", *(f"{1000 * t:.1f}" for t in times), *bytes_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    by_client = ["Shares, ms", "Masks, ms", "Reveal, ms"]
    head = ["Clients", "Values", "Lost", *by_client, "Server opens, ms", "Update, MB", "Keys and shares, kB"]
    rows = [
        row(clients, size, lost)
        for size in (100_000, 1_000_000)
        for clients in (5, 20, 100)
        for lost in (0, clients // 5)
    ]
    print(markdown_table([head, *rows]))


if __name__ == "__main__":
    main()
