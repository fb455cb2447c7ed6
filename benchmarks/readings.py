"""Readings that several benchmarks take: seconds, memory, the machine, and those of a process of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import psutil
import torch
from torch import Tensor

MEGABYTE = 1e6


def least_seconds(work: Callable[[], object], times: int, repeats: int = 1) -> float:
    """Return the CPU seconds of a call: the least of ``times``, each a mean over ``repeats`` calls, so that what else
    the machine does counts least.
    """
    taken = []
    for _ in range(times):
        began = time.process_time()
        for _ in range(repeats):
            work()
        taken.append((time.process_time() - began) / repeats)
    return min(taken)


def pass_seconds(forward: Callable[[], Tensor], backward: bool) -> float:
    """Return the CPU seconds of a network's pass, forward or forward and backward."""
    began = time.process_time()
    with nullcontext() if backward else torch.no_grad():
        out = forward()
        if backward:
            out.square().mean().backward()
    return time.process_time() - began


def pss() -> int:
    """Return the memory of this process and all below it, in bytes; what they share counts once."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(p.memory_full_info().pss for p in family if p.is_running())


def report(case: object, **reading: Any) -> None:
    """Print a reading as the line of JSON that ``reading_of`` looks for."""
    print(json.dumps({"case": case, **reading}), flush=True)


def reading_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the reading that a process of its own reports. Raise RuntimeError where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | dict(env or {}))
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def machine(*packages: str) -> dict[str, Any]:
    """Return CPUs, kind and load of this machine, and the versions of Python and the packages."""
    return {
        "cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version(),
        "load": os.getloadavg(), **{name: version(name) for name in packages},
    }  # fmt: skip
