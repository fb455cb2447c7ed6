"""Scores of clients' own models on Ray: the serial run's bits, from memories that stay where they are."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray import cloudpickle

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.methods.fedproto import FedProto
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.errors import QuorumError
from tests.runs import figures, nobody, on_ray, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module
SPLITS = ["validation", "test"]


def rounds_of(folder):
    """Return scores, losses and bytes of every round, and the scores of every class."""
    return [(figures(r.metrics), r.per_class) for r in read_records(folder)[0]]


@pytest.mark.parametrize(
    ("method", "options", "per_actor"),
    [
        ("fedproto", {}, 2),
        ("fedproto", {"inference": "prototype"}, 3),
        ("fedrep", {"evaluate_on": "clients", "head_epochs": 1}, 2),
    ],
)
def test_serial_and_ray_give_the_same_bits(experiment, tmp_path, method, options, per_actor):
    """2 of 4 clients a round, so that some are scored before they have been trained; at the end on their own rows."""
    e = experiment(method, options=options, federation={"clients_per_round": 2, "rounds": 3, "epochs": 1})
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, client_test="0.3"))
    expected = run(e, tmp_path / "serial", quiet)
    got = run(on_ray(e, clients_per_actor=per_actor), tmp_path / "ray", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    assert rounds_of(tmp_path / "ray") == rounds_of(tmp_path / "serial")
    assert not (tmp_path / "ray" / "model").exists()
    serial, ray = ((tmp_path / name / "client_scores.csv").read_bytes() for name in ("serial", "ray"))
    assert serial == ray


def test_memories_of_a_checkpoint_are_scored(experiment):
    run_spec = make_run_spec(experiment("fedproto"), quiet)
    serial = SerialExecutor(run_spec)
    serial.round(1, [0, 2], nobody)
    memories = {client: serial.memory(client) for client in (0, 2)}
    executor = RayExecutor(dataclasses.replace(run_spec, experiment=on_ray(run_spec.experiment, clients_per_actor=2)))
    executor.restore(serial.snapshot(), memories)
    assert as_lists(executor.scores(SPLITS)) == as_lists(serial.scores(SPLITS))
    serial.round(2, [1, 2], nobody)
    executor.round(2, [1, 2], nobody)
    assert as_lists(executor.scores(SPLITS)) == as_lists(serial.scores(SPLITS))
    assert messages.checksum(executor.memory(2)) == messages.checksum(serial.memory(2))
    executor.close()


def as_lists(scores):
    return {k: (s.values, {n: v.tolist() for n, v in s.per_class.items()}) for k, s in scores.items()}


@dataclass(frozen=True, kw_only=True)
class Faulty(FedProto):
    """Its actor dies when it scores a trained client, ``times`` times; each death leaves a file in ``folder``."""

    times: int
    folder: str

    def personal_model(self, model, sent, memory):
        died = len(list(Path(self.folder).iterdir()))
        if any(k.startswith("all.") for k in memory) and died < self.times:
            (Path(self.folder) / str(died)).touch()
            os._exit(1)
        return super().personal_model(model, sent, memory)


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_an_actor_that_dies_while_it_scores(experiment, tmp_path, times):
    """Once: a fresh one gives the same scores. Always: a mean over all clients there is not, and the run says why."""
    run_spec = make_run_spec(experiment("fedproto"), quiet)
    serial = SerialExecutor(run_spec)
    serial.round(1, [1], nobody)
    e = on_ray(run_spec.experiment, clients_per_actor=2)
    faulty = Faulty(times=times, folder=str(tmp_path))
    executor = RayExecutor(dataclasses.replace(run_spec, experiment=dataclasses.replace(e, method=faulty)))
    executor.round(1, [1], nobody)
    if times > 1:
        with pytest.raises(QuorumError, match=r"\Aclient 1's model could not be scored: ActorDiedError"):
            executor.scores(SPLITS)
        # a death that overtakes the actor's sign of life is not counted, so the attempts are two or three
        assert len(list(tmp_path.iterdir())) in (2, 3)
        for death in range(times):
            (tmp_path / str(death)).touch()
    assert as_lists(executor.scores(SPLITS)) == as_lists(serial.scores(SPLITS))  # nothing else was lost
    executor.close()
