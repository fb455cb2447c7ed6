"""Preparation of many rows and clients: seconds, memory of every process, and how long the result takes to open.

    python -m benchmarks.preparation                                # 10 M rows of 2 kB, 100,000 clients, two nodes
    python -m benchmarks.preparation --rows 1e6 --clients 10_000    # less
    python -m benchmarks.preparation --engine local                 # in one process

The rows are made up where they are encoded, as those of files are read there: 45 x 45 random bytes, which no
compression makes smaller. Two nodes of one CPU each, and a head without; their disk is this machine's. Needs room for
the result and, under Ray, twice as much again for what the exchange spills.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Objective, Source, Task
from anchorfl.tasks.ingest.ingest import Engine, prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.options import TaskOptions
from benchmarks.readings import MEGABYTE

SIDE, CLASSES = 45, 10
STORE = int(1.5e9)
"""Bytes of a node's object store."""


def mixed(values: np.ndarray) -> np.ndarray:
    """Return 64-bit numbers that look random (splitmix64)."""
    with np.errstate(over="ignore"):
        z = values * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def task_of(rows: int) -> Task:
    """Return the task of so many rows."""

    def read(folder: Path | None, options: TaskOptions) -> Table:
        row_N = np.arange(rows, dtype=np.int64)
        label_N = (mixed(row_N.astype(np.uint64)) % np.uint64(CLASSES)).astype(np.int32)
        labels = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), pa.array(label_N))
        split = pa.DictionaryArray.from_arrays(
            pa.array((row_N % 100 == 0).astype(np.int8)), pa.array(["train", "test"])
        )
        return pa.table({"row": row_N, "split": split, "labels": labels, "at": row_N})

    def fit(train: Table, options: TaskOptions) -> InputSpec:
        return InputSpec("image", (1, SIDE, SIDE), levels=255)

    def encode(table: Table, spec: InputSpec) -> Table:
        words = -(-SIDE * SIDE // 8)
        at_N = table["at"].to_numpy().astype(np.uint64)
        x_ND = mixed(at_N[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)).view(np.uint8)
        values = pa.array(np.ascontiguousarray(x_ND[:, : SIDE * SIDE]).ravel())
        offset_N1 = pa.array(np.arange(0, len(values) + 1, SIDE * SIDE, dtype=np.int32))
        x = pa.ListArray.from_arrays(offset_N1, values)
        return table.drop_columns(["at"]).append_column("x", x)

    names = tuple(f"class {c}" for c in range(CLASSES))
    return Task(
        f"made-up-{rows}", "made up", names, "single", "at", Source((), "made up", "none"), "", read, fit, encode
    )


class Watch(threading.Thread):
    """Peaks of this process's memory and of the largest worker's, in MB. What lies in the shared object store is not
    counted.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.driver, self.worker, self.done = 0.0, 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.3):
            self.driver = max(self.driver, own_memory(Path("/proc/self")))
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    if (folder / "cmdline").read_bytes().startswith(b"ray::"):
                        self.worker = max(self.worker, own_memory(folder))


def own_memory(process: Path) -> float:
    """Return the memory that a process shares with nobody, in MB."""
    lines = (line.split() for line in (process / "status").read_text().splitlines())
    return next((float(words[1]) / 1024 for words in lines if words[0] == "RssAnon:"), 0.0)


def nodes() -> None:
    """Start a head without CPUs and two nodes with one each, and connect to it."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)  # type: ignore[no-untyped-call]
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=STORE)  # type: ignore[no-untyped-call]
    ray.init(address=cluster.address, log_to_driver=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--engine", choices=("ray", "local"), default="ray")
    parser.add_argument("--cache", default="", help="folder; default: a new one, which is deleted")
    options = parser.parse_args()
    engine: Engine = options.engine
    if engine == "ray":
        nodes()
    watch = Watch()
    watch.start()
    with tempfile.TemporaryDirectory() as folder:
        task = TaskOptions(name="made-up", clients=options.clients, partition=options.partition,
                           cache=options.cache or folder)  # fmt: skip
        began, cpu = time.perf_counter(), time.process_time()
        prepared = prepare(task_of(int(options.rows)), task, 0, engine=engine, log=lambda line: print(
            f"{time.perf_counter() - began:7.1f} s  {line}", flush=True))  # fmt: skip
        seconds = time.perf_counter() - began
        watch.done.set()
        size = sum(file.stat().st_size for file in os.scandir(prepared.folder)) / MEGABYTE
        summary = os.path.getsize(f"{prepared.folder}/manifest.json")
        print(f"prepared in {seconds:.0f} s, of which the driver's CPU {time.process_time() - cpu:.0f} s")
        print(f"{len(os.listdir(prepared.folder))} files, {size:,.0f} MB; manifest.json {summary:,} bytes")
        print(f"driver's peak {watch.driver:,.0f} MB, largest worker's {watch.worker:,.0f} MB")
        began = time.perf_counter()
        again = Prepared.load(prepared.folder)
        opened = time.perf_counter() - began
        began = time.perf_counter()
        data = again.client(options.clients // 2, Objective("single"))
        first = time.perf_counter() - began
        began = time.perf_counter()
        for client in range(0, options.clients, max(1, options.clients // 100)):
            again.client(client, Objective("single"))
        each = 1e3 * (time.perf_counter() - began) / 100
        print(
            f"opened in {opened:.2f} s; a first client's {len(data)} rows in {first:.2f} s, then {each:.1f} ms a client"
        )


if __name__ == "__main__":
    main()
