"""Anchor with a generator: its limits, its loss against NumPy, who is sent what, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm.generator_training import (
    GENERATOR,
    GeneratorTraining,
    prediction_loss,
    random_concepts,
)
from anchorfl.pipeline.methods.anchor import Anchor, AnchorState, ExpectingTrainer, ImagesState
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.tasks.contract import Batch, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.testing import stopped_before
from tests.pipeline import compared
from tests.runs import quiet


@pytest.fixture
def images(experiment):
    """Return a function that makes an experiment of two rounds with these options."""

    def make(rounds=2, **options):
        e = experiment(
            "anchor", "digits", options=options, model={"network": "resnet8", "norm": "batch", "width": 8},
            optimizer={"skip_zero_rows": False, "microbatch_tokens": 0},
        )  # fmt: skip
        e = replace(e, task=replace(e.task, partition="iid"))
        return replace(e, federation=replace(e.federation, rounds=rounds, epochs=1))

    return make


def test_before_its_first_training_it_is_anchor_bit_for_bit(images):
    anchor, never = compared.history(images()), compared.history(images(synthetic_per_batch=4))
    for (weights, loss, *_), (its_weights, its_loss, *_) in zip(anchor, never, strict=True):
        assert loss == its_loss
        assert all(torch.equal(value, its_weights[name]) for name, value in weights.items())


def test_after_it_images_join_and_a_run_that_was_cut_off_goes_on_with_them(images, tmp_path, monkeypatch):
    monkeypatch.setattr(Anchor, "training", GeneratorTraining(prediction_loss, steps=2, batch=6))
    e = images(rounds=3, synthetic_per_batch=4, generator_every=1)
    whole = run(e, tmp_path / "whole", quiet)
    assert whole.checksum != run(images(rounds=3), tmp_path / "anchor", quiet).checksum
    with stopped_before(3):
        run(e, tmp_path / "cut", quiet)
    assert resume(tmp_path / "cut", quiet).checksum == whole.checksum


def trainer(rows_NC, images_SC, class_S, **attributes):
    """Return a client's half whose network gives back its rows, which are logits, with these images."""
    local = ExpectingTrainer.__new__(ExpectingTrainer)
    local.ctx = SimpleNamespace(objective=Objective("single"), rng=None)
    local.source = SimpleNamespace(draw=lambda count, rng: (images_SC[:count], class_S[:count]))
    local.per_batch, local.model = len(class_S), lambda x: x
    for name, value in attributes.items():
        setattr(local, name, value)
    return local


def test_the_loss_equals_numpy():
    """Two rows with a label, one that is of class 2 or 4 for certain and expected to be 2, and two images."""
    rng = torch.Generator().manual_seed(1)
    x_BC, x_SC = (torch.randn(rows, 5, generator=rng, dtype=torch.float64) for rows in (3, 2))
    class_S, count_C = torch.tensor([4, 1]), np.array([1, 1, 1, 2, 1])
    odds_C, target_C = torch.tensor([0.0, 0, 1, 0, 1]).double(), torch.tensor([0, 0, 0.9, 0, 0.1]).double()
    without_B1 = torch.tensor([[0.0], [0.0], [1.0]]).double()
    local = trainer(
        x_BC, x_SC, class_S, expected=1.0, certain=1.0, odds_C=odds_C, open_NC=without_B1.expand(3, 5),
        weight_NC=0.5 * without_B1.expand(3, 5), target_NC=without_B1 * target_C,
        prior_C=torch.from_numpy(count_C).double().log(),
    )  # fmt: skip
    y_BC = torch.nn.functional.one_hot(torch.tensor([0, 3, 0]), 5).double() * (1 - without_B1)
    batch = Batch(x_BC, y_BC, (1 - without_B1).expand(3, 5), y_BC, 3, torch.arange(3))

    rows, images = np.exp(x_BC.numpy()), np.exp(x_SC.numpy())
    p = rows / rows.sum(1, keepdims=True)
    want = -np.log(rows[0, 0] / (rows[0] * count_C).sum()) - np.log(2 * rows[1, 3] / (rows[1] * count_C).sum())
    want += 0.5 * ((p[2] - target_C.numpy()) ** 2).sum() - np.log(p[2, 2] + p[2, 4])
    want -= np.log(images[0, 4] / images[0].sum()) + np.log(images[1, 1] / images[1].sum())
    assert float(local.loss(batch)) == pytest.approx(want / 5)


def test_a_client_is_sent_each_generator_once_and_all_others_nothing_of_it():
    state = ImagesState(
        weights={}, control={}, missing=torch.zeros(()), generator={"w": torch.ones(1)}, version=torch.tensor(2),
        seen_version_I=torch.tensor([-1, 1, 2]),
    )  # fmt: skip
    method = Anchor(synthetic_per_batch=1)
    message = [method.client_message(state, SimpleNamespace(client=c)) for c in range(3)]
    assert [list(one) for one in message] == [[f"{GENERATOR}w"], [f"{GENERATOR}w"], []]
    sent = method.broadcast(state, None)
    assert (sent.generator, sent.version.numel(), sent.seen_version_I.numel()) == ({}, 0, 0)
    assert method.sends_client_messages
    assert not method.stackable
    assert not Anchor(synthetic_per_batch=1, control_variates=False, shares=False).sends_weights_alone
    assert Anchor(control_variates=False, shares=False).sends_weights_alone
    plain = AnchorState({}, {}, torch.zeros(()))
    assert Anchor().broadcast(plain, None) is plain
    assert not Anchor().sends_client_messages
    assert Anchor().stackable


def test_everybody_draws_the_same_concepts_and_classes_lie_apart():
    concepts_CMD = random_concepts(8, torch.zeros(0))
    assert torch.equal(concepts_CMD, random_concepts(8, torch.zeros(0)))
    mean_CD = concepts_CMD.mean(1)
    assert (torch.cdist(concepts_CMD.flatten(0, 1), mean_CD).argmin(1).view(8, -1) == torch.arange(8)[:, None]).all()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("toy-multi", "images of one class each, and this task is multi-label"),
        ("toy-single", r"makes images, the input is of kind '.*'"),
        ("digits", "compared with BatchNorm's running statistics, and this network has none"),
    ],
)
def test_what_it_cannot_do_is_refused_before_round_1(experiment, tmp_path, task, words):
    e = experiment("anchor", task, options={"synthetic_per_batch": 2})
    with pytest.raises(InputError, match=words):
        run(replace(e, task=replace(e.task, partition="iid")), tmp_path / "run", quiet)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
