"""FedETF: its limit, its loss against NumPy, and what it sends.

Oracle, from the paper (Li et al., ICCV 2023): with V = sqrt(C / (C - 1)) (I - 1/C), g the projection of a
representation at length 1 and s a trained scale, client k trains -log( n_y^gamma e^(s V_y g) / sum_c n_c^gamma
e^(s V_c g) ), n_c its number of samples of class c, at least 1. V is the same everywhere and nobody trains it. Scores
are by V g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.models.heads import FrameHead
from anchorfl.pipeline.algorithm.contract import Averaging, HeadSpec
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods.fedetf import FedETF
from anchorfl.pipeline.run.prepare import make_run_spec
from tests.pipeline import compared
from tests.pipeline.compared import C, D, base_loss, elsewhere, encode
from tests.runs import nobody, quiet

SHAPES = {"encoder.0.weight": (D, 5), "encoder.0.bias": (D,), "head.scale": (), "head.project.weight": (C, D),
          "head.project.bias": (C,)}  # fmt: skip

FRAME = (np.sqrt(C / (C - 1)) * (np.eye(C) - np.ones((C, C)) / C)).astype(np.float32)  # as a network holds it


@dataclass(frozen=True, kw_only=True)
class Plain(Averaging):
    """FedAvg on the network of FedETF."""

    name = "plain"
    head = HeadSpec(kind="frame")


def framed():
    return compared.dense(FrameHead(C, D, 1.0))


def logits(w, x_NF):
    g_NC = encode(w, x_NF) @ w["head.project.weight"].T + w["head.project.bias"]
    g_NC = g_NC / np.sqrt((g_NC**2).sum(1, keepdims=True))
    return w["head.scale"] * g_NC @ FRAME


def test_without_the_counts_it_is_fedavg_on_its_network_bit_for_bit(experiment):
    e = experiment("fedetf", options={"gamma": 0.0})
    plain = compared.history(replace(e, method=Plain()))
    compared.assert_same_bits(compared.history(e), plain)
    counted = compared.history(experiment("fedetf"))
    assert any(not torch.equal(counted[0][0][name], value) for name, value in plain[0][0].items())


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_loss_and_gradient_equal_numpy(gamma):
    """Scale and projection included; two of the four classes have no sample here."""
    local, micro_batches = compared.started(FedETF(gamma=gamma), model=framed())
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    count_C = data.y_NC.numpy().sum(0)
    assert (count_C > 0).tolist() == [True, True, False, False]
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        return base_loss("single", logits(w, x) + gamma * np.log(np.maximum(count_C, 1)), data)

    compared.assert_gradient(local, micro_batches, whole)


def test_a_client_without_a_labeled_row_shifts_nothing():
    local, _ = compared.started(FedETF(), model=framed())
    card = replace(local.ctx.card, count_C=torch.zeros(C, dtype=torch.int64))
    assert torch.equal(FedETF().trainer(replace(local.ctx, card=card)).prior_C, torch.zeros(C, dtype=torch.float64))


def test_scores_are_by_plain_cosines(experiment):
    """The counts of no client are in them, and no scale above 0 changes a decision."""
    executor = SerialExecutor(make_run_spec(experiment("fedetf"), quiet))
    executor.round(1, [0, 1, 2], nobody)
    scores = executor.scores(["validation", "test"])
    plain = SerialExecutor(make_run_spec(replace(experiment("fedetf"), method=Plain()), quiet))
    for scale in (1.0, 20.0):
        changed = executor.snapshot() | {"weights/head.scale": torch.tensor(scale)}
        plain.restore(changed, {})
        assert {n: s.values for n, s in plain.scores(["validation", "test"]).items()} == {
            n: s.values for n, s in scores.items()
        }


def test_the_scale_starts_where_the_option_says_and_is_trained(experiment):
    rounds = compared.history(experiment("fedetf", options={"first_scale": 7.0}))
    first = make_run_spec(experiment("fedetf", options={"first_scale": 7.0}), quiet).model()
    assert float(first.head.scale.detach()) == 7.0
    assert 0 < abs(float(rounds[-1][0]["weights/head.scale"]) - 7.0) < 1


def test_the_exact_tensors_on_the_wire():
    """FedAvg's of this network; the frame is not among them, and is the same before and after."""
    compared.assert_wire(FedETF(), model=framed, sent=SHAPES)
    model = framed()
    frame = model.head.frame.clone()
    compared.fitted(FedETF(), model=model)
    assert torch.equal(model.head.frame, frame)


def test_the_savings_change_no_update():
    compared.assert_savings_agree(FedETF())


@pytest.mark.parametrize("options", [{"gamma": -0.1}, {"gamma": float("nan")}, {"first_scale": 0.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(
        ValueError, match=r"\Amethod\.gamma = \S+ must be at least 0, method\.first_scale = \S+ above 0\Z"
    ):
        FedETF(**options)
