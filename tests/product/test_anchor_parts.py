"""Anchor with a generator (``benchmarks.anchor_parts``): its limit, its loss against NumPy, and who is sent what."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm.generator_training import GENERATOR
from anchorfl.tasks.contract import Batch, Objective
from benchmarks.anchor_parts import Generating, GeneratingState, GeneratingTrainer, random_concepts
from tests.pipeline import compared


@pytest.fixture
def images(experiment):
    e = experiment(
        "anchor", "digits", model={"network": "resnet8", "norm": "batch", "width": 8},
        optimizer={"skip_zero_rows": False, "microbatch_tokens": 0},
    )  # fmt: skip
    e = replace(e, task=replace(e.task, partition="iid"))
    return replace(e, federation=replace(e.federation, rounds=2, epochs=1))


def test_before_its_first_training_it_is_anchor_bit_for_bit(images):
    anchor = compared.history(images)
    never = compared.history(replace(images, method=Generating(generator_every=9)))
    for (weights, loss, *_), (its_weights, its_loss, *_) in zip(anchor, never, strict=True):
        assert loss == its_loss
        assert all(torch.equal(value, its_weights[name]) for name, value in weights.items())


def test_the_loss_equals_numpy():
    rng = torch.Generator().manual_seed(1)
    x_BD, x_SD, w_DC = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((3, 4), (2, 4), (4, 5)))
    class_B, class_S = torch.tensor([0, 3, 3]), torch.tensor([4, 1])
    trainer = GeneratingTrainer.__new__(GeneratingTrainer)
    trainer.ctx = SimpleNamespace(objective=Objective("single"), rng=None)
    trainer.source = SimpleNamespace(draw=lambda count, rng: (x_SD[:count], class_S[:count]))
    trainer.per_batch, trainer.model = 2, lambda x: x @ w_DC
    count_C = np.array([1, 1, 1, 2, 1])
    trainer.prior_C = torch.tensor(count_C).double().log()
    y_BC = torch.nn.functional.one_hot(class_B, 5).double()
    weight_BC = y_BC * torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    batch = Batch(x_BD, y_BC, torch.ones(3, 5), weight_BC, 3, torch.arange(3))
    of_rows = np.exp((x_BD @ w_DC).numpy()) * count_C
    of_images = np.exp((x_SD @ w_DC).numpy())
    want = -np.log(of_rows[0, 0] / of_rows[0].sum()) - np.log(of_rows[1, 3] / of_rows[1].sum())
    want -= np.log(of_images[0, 4] / of_images[0].sum()) + np.log(of_images[1, 1] / of_images[1].sum())
    assert float(trainer.loss(batch)) == pytest.approx(want / 5)


def test_a_client_is_sent_each_generator_once():
    state = GeneratingState({}, {}, torch.zeros(()), {"w": torch.ones(1)}, torch.tensor(2), torch.tensor([0, 1, 2]))
    message = [Generating().client_message(state, SimpleNamespace(client=c)) for c in range(3)]
    assert [list(one) for one in message] == [[f"{GENERATOR}w"], [f"{GENERATOR}w"], []]


def test_everybody_draws_the_same_concepts_and_classes_lie_apart():
    concepts_CMD = random_concepts(8, torch.zeros(0))
    assert torch.equal(concepts_CMD, random_concepts(8, torch.zeros(0)))
    mean_CD = concepts_CMD.mean(1)
    assert (torch.cdist(concepts_CMD.flatten(0, 1), mean_CD).argmin(1).view(8, -1) == torch.arange(8)[:, None]).all()
