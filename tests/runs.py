"""Pieces of runs that tests of several folders share: options, silent callbacks, what records hold."""

from __future__ import annotations

import dataclasses
import json

SMALL = (
    *("--cluster.executor", "serial", "--federation.rounds", "1", "--federation.epochs", "1", "--tracking.uri", "none"),
)
"""Options of a command line for the shortest run."""


def quiet(line: str) -> None:
    """Ignore a line of the log."""


def nobody(busy: int, done: int, failed: int) -> None:
    """Ignore the progress of a round."""


def on_ray(e, **cluster):
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray", **cluster))


def figures(metrics) -> dict[str, float]:
    """Return a round's metrics without what depends on the machine."""
    return {k: v for k, v in metrics.items() if not k.startswith(("time/", "system/"))}


def recorded(folder) -> list[dict]:
    """Return the recorded rounds of a run folder without what depends on the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [figures(line["metrics"]) | {"round": line["round"]} for line in lines]
