"""Memory of a worker that trains clients which it has not seen: what each leaves behind.

    python -m benchmarks.first_reads [--clients 1200] [--megabytes 1.94]

One process, a network of that size, clients of one or two digits (there are 1,294 training rows) that take no step,
each once. Prints the growth of the process since the first 50, and what the cache of rows holds. A straight line is a
leak; the heap's own fluctuation is some megabytes.
"""

from __future__ import annotations

import argparse

import psutil

from benchmarks.no_op import SIZES, no_op_executor

FIRST = 50
"""Clients after which the process has all that it needs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1200)
    parser.add_argument("--megabytes", choices=SIZES, default="1.94")
    options = parser.parse_args()
    executor = no_op_executor(options.clients, 10, options.megabytes, 0)
    sent, process, base = executor.server.broadcast(1), psutil.Process(), 0
    for number in range(1, options.clients + 1):
        executor.runner.fit(number - 1, 1, sent, {})
        if number == FIRST:
            base = process.memory_info().rss
        elif number % (options.clients // 10) == 0:
            grown, cached = process.memory_info().rss - base, executor.runner.rows.cached_bytes
            print(f"{number} clients: {grown / 1e6:+.0f} MB, cache {cached / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
