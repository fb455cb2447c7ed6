"""Which steps are recorded, and whose. That they give the same bits is for ``tests/pipeline/execution/test_gpu.py``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from anchorfl.pipeline.algorithm.contract import AveragingTrainer, ClientTrainer
from anchorfl.pipeline.training.cuda_graphs import PLAIN_STEPS, Replay
from anchorfl.tasks.contract import Batch


def batch(rows, denominator=4):
    part = torch.zeros(rows, 2)
    return Batch(part, part, part, part, denominator, torch.arange(rows))


@pytest.fixture
def replay(monkeypatch):
    """Return a ``Replay`` that lists what it does."""
    done = []
    trainer = SimpleNamespace(phase="", step=lambda batches: done.append("plain"))

    def record(self, batches):
        done.append("record")
        return lambda batches: done.append("replay")

    monkeypatch.setattr(Replay, "_record", record)
    replay = Replay(trainer)
    replay.done = done
    return replay


def test_the_third_mini_batch_of_a_shape_is_recorded_and_replayed(replay):
    for _ in range(PLAIN_STEPS + 3):
        replay([batch(3), batch(2)])
    assert replay.done == ["plain"] * PLAIN_STEPS + ["record", "replay", "replay", "replay"]


@pytest.mark.parametrize("other", [[batch(2)], [batch(3, 5)], [batch(3), batch(3)]])
def test_another_shape_size_or_number_of_pieces_is_recorded_for_itself(replay, other):
    for _ in range(PLAIN_STEPS + 1):
        replay([batch(3)])
    replay(other)
    assert replay.done[-3:] == ["record", "replay", "plain"]


def test_another_phase_is_recorded_for_itself(replay):
    for _ in range(PLAIN_STEPS + 1):
        replay([batch(3)])
    replay.trainer.phase = "body"
    replay([batch(3)])
    assert replay.done[-1] == "plain"


def test_a_mini_batch_without_rows_is_never_recorded(replay):
    for _ in range(PLAIN_STEPS + 2):
        replay([])
    assert set(replay.done) == {"plain"}


def test_a_trainer_says_for_itself_that_its_steps_can_be_replayed():
    class Counting(AveragingTrainer):
        pass

    assert AveragingTrainer.replayable
    assert not Counting.replayable
    assert not ClientTrainer.replayable
