"""Memory of workers so far, and load of this machine, under the names of MLflow's page of system metrics."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import torch

MEGABYTE = 1e6


def peak(worker: str) -> dict[str, float]:
    """Return this process's peak memory in MB: resident (``worker``), and its GPU allocator's (``<worker>_gpu``)."""
    out = {worker: peak_resident() / MEGABYTE}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no annotation here
        out[f"{worker}_gpu"] = torch.cuda.max_memory_reserved() / MEGABYTE
    return out


def peak_resident() -> int:
    """Return the peak resident memory of this process in bytes."""
    # Linux's ru_maxrss outlives exec: a child of a large process starts with the peak of its parent. VmHWM does not.
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    high = next((line for line in lines if line.startswith("VmHWM:")), None)
    if high is not None:
        return int(high.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> dict[str, float]:
    """Return the load of this machine since the last call, in percent of all CPUs, and its memory in use."""
    memory = psutil.virtual_memory()
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(interval=None),
        "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
        "system/system_memory_usage_percentage": memory.percent,
    }
