"""Pieces of runs that tests of several folders share: options, silent callbacks, an interruption, what records hold."""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager

import pytest

from anchorfl.pipeline.run.round_loop import RoundLoop

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


@contextmanager
def interrupted_before(number: int):
    """Expect the run in this block to be interrupted before round ``number``."""
    plain = RoundLoop._run_round

    def stopping(self, round_):
        if round_ == number:
            raise KeyboardInterrupt
        plain(self, round_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundLoop, "_run_round", stopping)
        with pytest.raises(KeyboardInterrupt):
            yield


def figures(metrics) -> dict[str, float]:
    """Return a round's metrics without what depends on the machine."""
    return {k: v for k, v in metrics.items() if not k.startswith(("time/", "system/"))}


def recorded(folder) -> list[dict]:
    """Return the recorded rounds of a run folder without what depends on the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [figures(line["metrics"]) | {"round": line["round"]} for line in lines]
