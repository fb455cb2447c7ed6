"""Growth in a long run: readings of its processes round by round, and straight lines through them.

Read are the driver, each actor (in it, by a call) and Ray's two daemons (from outside): own memory (USS, bytes),
objects that Python's collector tracks, blocks of Python's allocator, handles of open files and sockets, threads, CPU
time; references to Ray's objects; the run folder. Used by ``benchmarks/soak.py`` and ``tests/ray/test_long_life.py``.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from scipy import stats

from anchorfl.pipeline.execution.ray_executor import RayExecutor
from benchmarks.readings import least_seconds

DAEMONS = ("raylet", "gcs_server")


@dataclass(frozen=True, slots=True)
class Slope:
    """Change per round of one series."""

    per_round: float
    half: float
    """Half width of the 95 % interval."""
    mean: float
    """Over the same rounds."""

    @property
    def least(self) -> float:
        """Lower end of the interval: the least growth."""
        return self.per_round - self.half


def slope(x_N: np.ndarray, y_N: np.ndarray) -> Slope:
    """Return the straight line by least squares through three points or more."""
    apart_N = x_N - x_N.mean()
    square = float(apart_N @ apart_N)
    per_round = float(apart_N @ y_N) / square
    left_N = y_N - y_N.mean() - per_round * apart_N
    error = float(np.sqrt(left_N @ left_N / (len(x_N) - 2) / square))
    return Slope(per_round, float(stats.t.ppf(0.975, len(x_N) - 2)) * error, float(y_N.mean()))


@dataclass
class Series:
    """Readings by name: round and value of each."""

    rounds: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, round_: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.rounds.setdefault(name, []).append(round_)
            self.values.setdefault(name, []).append(float(value))

    def slopes(self, settled: int) -> dict[str, Slope]:
        """Return the slopes of the series that have three readings or more from round ``settled`` on."""
        out = {}
        for name, rounds in self.rounds.items():
            kept = [(r, v) for r, v in zip(rounds, self.values[name], strict=True) if r >= settled]
            if len(kept) > 2:
                out[name] = slope(*np.array(kept, dtype=float).T)
        return out


def grown(slopes: Mapping[str, Slope], limits: Mapping[str, float]) -> dict[str, float]:
    """Return the series whose interval lies above the allowed change: name -> lower end of the interval.

    limits: change per round by the name of a series, or of a reading of any process (``uss``).
    """
    allowed = {name: limits.get(name, limits.get(name.split("/")[-1])) for name in slopes}
    return {
        name: slopes[name].least for name, limit in allowed.items() if limit is not None and slopes[name].least > limit
    }


def inside(_: Any = None) -> dict[str, float]:
    """Return this process's id, own memory (USS, bytes), objects that Python's collector tracks, blocks of Python's
    allocator, handles of open files and sockets, and threads. Rubbish that waits for collection does not count.
    """
    gc.collect()
    me = psutil.Process()
    return {
        "pid": me.pid,
        "uss": me.memory_full_info().uss,
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "handles": me.num_fds(),
        "threads": me.num_threads(),
    }


def references() -> dict[str, float]:
    """Return the references to Ray's objects and actors that any process holds, and the objects in the shared store, by
    the command ``ray memory``, which takes two seconds.
    """
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "ray.scripts.scripts", "memory", "--address", address]
    joining = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # or 127.0.0.1 is taken for another address
    text = subprocess.run(command, env=joining, capture_output=True, text=True, check=True, timeout=120).stdout
    stored = re.search(r"Plasma memory usage \d+ MiB, (\d+) objects", text)
    if stored is None:
        raise RuntimeError(f"'ray memory' of Ray {ray.__version__} says something else than was expected:\n{text}")
    kinds = r"LOCAL_REFERENCE|ACTOR_HANDLE|PINNED_IN_MEMORY|USED_BY_PENDING_TASK|CAPTURED_IN_OBJECT"
    return {"ray/references": len(re.findall(kinds, text)), "ray/stored_objects": float(stored[1])}


class Reader:
    """A reader of one run's processes, on a Ray of this process, into ``series``."""

    def __init__(self, executor: RayExecutor, folder: Path, series: Series) -> None:
        self.executor, self.folder, self.series = executor, folder, series
        self.pids: dict[str, int] = {}
        self._cpu: dict[str, float] = {}
        self._round = 0

    def read(self, round_: int, count_references: bool = False) -> None:
        """Take readings after round ``round_``."""
        values = self._cpu_since(round_)
        actor_pool, run = self.executor.actor_pool, self.executor.run
        slots = range(self.executor.layout.actors)
        actors = {"server": actor_pool.server} | {f"client_{slot:03d}": actor_pool.client(slot, run) for slot in slots}
        asked = {who: actor.__ray_call__.remote(inside) for who, actor in actors.items()}
        found = {"driver": inside()} | {who: ray.get(ref) for who, ref in asked.items()}
        for who, held_ in found.items():
            self.pids[who] = int(held_.pop("pid"))
            values |= {f"{who}/{what}": value for what, value in held_.items()}
        for process in psutil.Process().children(recursive=True):
            if process.name() in DAEMONS:
                self.pids[process.name()] = process.pid
                values[f"{process.name()}/uss"] = process.memory_full_info().uss
                values[f"{process.name()}/handles"] = process.num_fds()
                values[f"{process.name()}/threads"] = process.num_threads()
        all_, free = ray.cluster_resources(), ray.available_resources()
        values["ray/store"] = all_["object_store_memory"] - free["object_store_memory"]
        values |= {"machine/load": os.getloadavg()[0], "machine/yardstick_ms": yardstick()}
        values |= on_disk(self.folder) | (references() if count_references else {})
        self.series.add(round_, values)
        self._cpu, self._round = self._cpu_now(), round_

    def _cpu_now(self) -> dict[str, float]:
        return {who: sum(psutil.Process(pid).cpu_times()[:2]) for who, pid in self.pids.items()}

    def _cpu_since(self, round_: int) -> dict[str, float]:
        """Return the milliseconds of CPU per round since the last reading, by process."""
        now, passed = self._cpu_now(), round_ - self._round
        return {f"{who}/cpu_ms": 1e3 * (now[who] - before) / passed for who, before in self._cpu.items()}


def yardstick() -> float:
    """Return the CPU milliseconds of some fixed work: how fast this machine is now, which others use, too."""
    return 1e3 * least_seconds(lambda: sum(range(500_000)), 3)


def on_disk(folder: Path) -> dict[str, float]:
    """Return the bytes of a run folder's record and of the rest, and its number of files."""
    files = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    records = files.get(folder / "metrics.jsonl", 0)
    return {"folder/records": records, "folder/rest": sum(files.values()) - records, "folder/files": len(files)}
