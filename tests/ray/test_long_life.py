"""A run of 150 rounds grows by nothing but its record; the same readings notice a leak of one thing per round.

``python -m benchmarks.soak`` is the long version: docs/long-life.md.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass

import pytest
import ray
import torch
from ray import cloudpickle

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.lifecycle import open_loop
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.storage.run_folder import lock_run
from benchmarks.growth import Reader, Series, Slope, grown
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module

LIMITS = {
    "objects": 0.5, "handles": 0.2, "threads": 0.1, "references": 0.5, "files": 0.1, "uss": 100_000.0,
    "gcs_server/uss": 15_000.0, "folder/rest": 10.0,
}  # fmt: skip
"""Change per round that is too much: half an object, a handle in five rounds, 100 kB; Ray's daemon that used to keep
every task got 43 kB larger in a round.
"""


def many_rounds(executor_of, experiment, folder, rounds: int, settled: int, every: int) -> dict[str, Slope]:
    """Slopes from round ``settled`` on, of 4 clients on 2 actors, read every so many rounds; references three times."""
    e = experiment(
        "fedavg", federation={"rounds": rounds, "clients_per_round": 4, "epochs": 1},
        cluster={"executor": "ray", "clients_per_actor": 2},
    )  # fmt: skip
    series = Series()
    with lock_run(folder), open(os.devnull, "w") as nowhere:
        executor = executor_of(make_run_spec(e, quiet))
        loop = open_loop(executor.run_spec, executor, folder, Progress(rounds, out=nowhere), quiet)
        reader = Reader(executor, folder, series)
        for round_ in loop.steps():
            if round_ >= settled and (round_ - settled) % every == 0:
                reader.read(round_, count_references=(round_ - settled) % ((rounds - settled) // 2) == 0)
        loop.tracker.end("FINISHED")
        executor.close()
    return series.slopes(settled)


@pytest.mark.slow
def test_nothing_grows_but_the_journal(experiment, tmp_path):
    slopes = many_rounds(RayExecutor, experiment, tmp_path / "run", 150, 30, 30)
    assert grown(slopes, LIMITS) == {}
    assert {"driver/objects", "server/handles", "client_001/uss", "gcs_server/uss", "ray/references"} <= slopes.keys()
    assert 100 < slopes["folder/records"].per_round < 5000


@dataclass(frozen=True, kw_only=True)
class Leaking(Averaging):
    """FedAvg whose client 0 keeps a tensor and opens a file in every round."""

    name = "fedavg"

    def trainer(self, ctx):
        return LeakingTrainer(ctx)


class LeakingTrainer(AveragingTrainer):
    kept: list = []  # noqa: RUF012  # the leak

    def update(self):
        if self.ctx.card.client == 0:
            self.kept.append((torch.ones(100_000), open(os.devnull)))  # noqa: SIM115  # the leak
        return super().update()


class Hoarding(RayExecutor):
    """Keeps a reference to an object of every round."""

    def __init__(self, run_spec):
        leaking = Leaking()
        super().__init__(
            dataclasses.replace(run_spec, experiment=dataclasses.replace(run_spec.experiment, method=leaking))
        )
        self.hoard: list = []

    def round(self, round_, *others):
        self.hoard.append([ray.put(round_)])
        return super().round(round_, *others)


@pytest.mark.slow
def test_a_leak_of_one_thing_per_round_is_noticed(experiment, tmp_path):
    slopes = many_rounds(Hoarding, experiment, tmp_path / "run", 50, 10, 10)
    found = grown(slopes, LIMITS)
    leaks = {"client_000/objects", "client_000/handles", "client_000/uss", "driver/objects", "ray/references"}
    assert leaks <= found.keys()
    assert not any(name.startswith(("client_001/", "server/")) for name in found)
    assert slopes["client_000/uss"].per_round == pytest.approx(400_000, rel=0.2)
