"""Seconds and memory of two ways of starting: a Ray without three of its processes, and workers on huge pages.

    python -m benchmarks.starts ray [--repeats 3]      # ray.init, ray.shutdown, memory: as we start it, and as Ray does
    python -m benchmarks.starts pages [--repeats 4]    # CPU seconds of three rounds of FedAvg on R8-8, one thread

Each in a process of its own, in turn; medians, and every reading.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.presets import read_preset
from benchmarks.readings import MEGABYTE, pss, reading_of, report

ROUNDS = 3
PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def start_ray(way: str) -> list[float]:
    """Return the seconds of the start and of the end, and MB (PSS) of this process and Ray's between the two."""
    if way == "as Ray does":
        ray_cluster._few_processes = contextlib.nullcontext  # type: ignore[assignment]  # what it would patch stays
    experiment = read_preset("digits/fedavg")
    began = time.perf_counter()
    ray_cluster.start(experiment.cluster)
    started = time.perf_counter()
    used = pss() / MEGABYTE
    before_end = time.perf_counter()
    ray_cluster.stop()
    return [started - began, time.perf_counter() - before_end, used]


def train(_: str) -> list[float]:
    """Return the CPU seconds of ``ROUNDS`` rounds after the first, which reads the data."""
    from benchmarks.round_ways import r8, serial

    run = serial(r8(), ROUNDS + 1)
    run(1)
    began = time.process_time()
    for round_ in range(2, ROUNDS + 2):
        run(round_)
    return [time.process_time() - began]


WAYS: dict[str, tuple[Callable[[str], list[float]], dict[str, dict[str, str]]]] = {
    "ray": (start_ray, {"ours": {}, "as Ray does": {}}),
    "pages": (train, {"huge pages": PAGES, "without": {"GLIBC_TUNABLES": ""}}),
}
COLUMNS = {"ray": ("start, s", "end, s", "memory, MB"), "pages": ("CPU s",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(WAYS))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    measure, ways = WAYS[options.what]
    if options.one:
        report(options.one, values=measure(options.one))
        return
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, each in found.items():
            command = [sys.executable, "-m", "benchmarks.starts", options.what, "--one", way]
            each.append(reading_of(command, ways[way])["values"])
    for way, each in found.items():
        for name, column in zip(COLUMNS[options.what], zip(*each, strict=True), strict=True):
            readings = ", ".join(f"{value:.2f}" for value in column)
            print(f"{way:<12} {name:<10} {statistics.median(column):8.2f}   of {readings}")


if __name__ == "__main__":
    main()
