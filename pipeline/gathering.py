"""What a running cluster has when a run joins it: nodes that its autoscaler makes for it, and what others use."""

from __future__ import annotations

import time

import ray

from pipeline.experiment import ClusterOptions
from tasks.contract import InputError


def gather(options: ClusterOptions, pause_s: float = 2.0) -> None:
    """Wait until the cluster has the CPUs and GPUs that ``options`` ask for, and tell its autoscaler to make nodes for
    them. InputError where they do not come in time.
    """
    wanted = {"CPU": options.gather_cpus, "GPU": options.gather_gpus}
    if not any(wanted.values()):
        return
    from ray.autoscaler.sdk import request_resources

    deadline = time.monotonic() + 60 * options.gather_minutes
    request_resources(bundles=[{name: 1} for name, count in wanted.items() for _ in range(count)])
    try:
        while True:
            have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # no annotation
            missing = {name: count for name, count in wanted.items() if have.get(name, 0.0) < count}
            if not missing:
                return
            if time.monotonic() > deadline:
                asked = " and ".join(f"{count} {name}s (has {have.get(name, 0):g})" for name, count in missing.items())
                raise InputError(
                    f"the cluster did not get {asked} within {options.gather_minutes:g} minutes: look at 'ray status'"
                    " for why, ask for less with --cluster.gather_gpus, or wait longer with --cluster.gather_minutes"
                )
            time.sleep(pause_s)
    finally:
        request_resources(bundles=[])  # a request outlives its maker, and would keep paid nodes for ever


def busy(total: float) -> str:
    """A line where others use some of the cluster's CPUs; "" where nobody does. A run's layout counts on all of them,
    and Ray lets actors wait for ever.
    """
    resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]  # no annotation
    used = total - resources.get("CPU", 0.0)
    if used < 0.01:
        return ""
    return (
        f"others use {used:g} of the cluster's {total:g} CPUs: a run shares out all of them, and waits until its"
        " part is free; runs that start together may wait for each other for ever (docs/cluster.md)"
    )
