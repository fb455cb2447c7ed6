"""FedGELA: its limit, its loss against NumPy, and what it sends.

Oracle, from the paper (Fan et al., NeurIPS 2023): with V = sqrt(C / (C - 1)) (I - 1/C), g the projection of a
representation at length 1 and s a fixed scale, client k trains the cross-entropy of the logits (C n_c / n) s V_c g, n_c
its number of samples of class c and n their sum. A class that it lacks has the logit 0 and stays in the softmax. Scores
are by V g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.models.heads import FrameHead
from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, HeadSpec
from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.pipeline.methods.fedgela import FedGELA
from anchorfl.pipeline.run.prepare import make_run_spec
from tests.pipeline import compared
from tests.pipeline.compared import C, D, base_loss, elsewhere
from tests.pipeline.methods.test_fedetf import SHAPES, logits
from tests.runs import quiet


class FixedScaleTrainer(AveragingTrainer):
    def make_optimizers(self):
        return {
            "all": make(self.ctx.optimizer, [*self.model.encoder.parameters(), *self.model.head.project.parameters()])
        }


@dataclass(frozen=True, kw_only=True)
class Plain(Averaging):
    """FedAvg on the network of FedGELA."""

    name = "plain"
    head = HeadSpec(kind="frame", first_scale=20.0)

    def trainer(self, ctx):
        return FixedScaleTrainer(ctx)


def framed(scale=20.0):
    model = compared.dense(FrameHead(C, D, scale))
    with torch.no_grad():
        model.head.scale.fill_(scale)
    return model


def test_without_adaptation_it_is_fedavg_on_its_network_bit_for_bit(experiment):
    e = experiment("fedgela", options={"power": 0.0})
    plain = compared.history(replace(e, method=Plain()))
    compared.assert_same_bits(compared.history(e), plain)
    adapted = compared.history(experiment("fedgela"))
    assert any(not torch.equal(adapted[0][0][name], value) for name, value in plain[0][0].items())


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_loss_and_gradient_equal_numpy(power):
    """Two of the four classes have no sample here: their logit is 0, or as it was where nothing is adapted."""
    local, micro_batches = compared.started(FedGELA(power=power), model=framed(3.0))
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    count_C = data.y_NC.numpy().sum(0)
    assert (count_C > 0).tolist() == [True, True, False, False]
    share_C = C * count_C / count_C.sum()
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))
    compared.assert_gradient(local, micro_batches, lambda w: base_loss("single", logits(w, x) * share_C**power, data))


def test_a_client_with_as_many_samples_of_each_class_adapts_nothing():
    local, _ = compared.started(FedGELA(), model=framed())
    card = replace(local.ctx.card, count_C=torch.full((C,), 7))
    assert torch.equal(FedGELA().trainer(replace(local.ctx, card=card)).length_C, torch.ones(C, dtype=torch.float64))


def test_a_client_without_a_labeled_row_has_no_number_that_is_none():
    local, _ = compared.started(FedGELA(), model=framed())
    card = replace(local.ctx.card, count_C=torch.zeros(C, dtype=torch.int64))
    assert torch.equal(FedGELA().trainer(replace(local.ctx, card=card)).length_C, torch.zeros(C, dtype=torch.float64))


def test_the_scale_starts_where_the_option_says_and_stays(experiment):
    """To the bit, through the mean of the clients, too."""
    e = experiment("fedgela", options={"scale": 3.3})
    first = make_run_spec(e, quiet).model()
    assert float(first.head.scale.detach()) == float(np.float32(3.3))
    for weights, *_ in compared.history(e):
        assert torch.equal(weights["weights/head.scale"], first.head.scale.detach())


def test_the_exact_tensors_on_the_wire():
    """FedAvg's of this network; neither the frame nor a client's lengths are among them."""
    compared.assert_wire(FedGELA(), model=framed, sent=SHAPES)


def test_the_savings_change_no_update():
    compared.assert_savings_agree(FedGELA())


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": float("nan")}, {"power": -0.1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=r"\Amethod\.scale = \S+ must be above 0, method\.power = \S+ at least 0\Z"):
        FedGELA(**options)
