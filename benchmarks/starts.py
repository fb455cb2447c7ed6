"""What two ways of starting save: a Ray of our own without three of its processes, and workers on huge pages.

    python -m benchmarks.starts ray [--repeats 3]      # ray.init, ray.shutdown, memory: as we start it, and as Ray does
    python -m benchmarks.starts pages [--repeats 4]    # CPU seconds of three rounds of FedAvg on R8-8, one thread

Each in a process of its own, in turn; medians, and every reading.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.presets import read_preset

ROUNDS = 3
PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def start_ray(way: str) -> list[float]:
    """Seconds of the start and of the end, MB (PSS) of this process and Ray's between the two."""
    if way == "as Ray does":
        ray_cluster._few_processes = contextlib.nullcontext  # type: ignore[assignment]  # what it would patch stays
    experiment = read_preset("digits/fedavg")
    began = time.perf_counter()
    ray_cluster.start(experiment.cluster)
    started = time.perf_counter()
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    used = sum(p.memory_full_info().pss for p in family if p.is_running()) / 1e6
    before_end = time.perf_counter()
    ray_cluster.stop()
    return [started - began, time.perf_counter() - before_end, used]


def train(_: str) -> list[float]:
    """CPU seconds of ``ROUNDS`` rounds after the first, which reads the data."""
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
        print(json.dumps(measure(options.one)))
        return
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, each in found.items():
            command = [sys.executable, "-m", "benchmarks.starts", options.what, "--one", way]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | ways[way])
            each.append(json.loads(done.stdout.splitlines()[-1]))
    for way, each in found.items():
        for name, column in zip(COLUMNS[options.what], zip(*each, strict=True), strict=True):
            readings = ", ".join(f"{value:.2f}" for value in column)
            print(f"{way:<12} {name:<10} {statistics.median(column):8.2f}   of {readings}")


if __name__ == "__main__":
    main()
