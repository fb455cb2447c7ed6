"""FedRS: its limit, its loss against NumPy, both forms of its scale, and what it sends.

Oracle, from the paper (Li and Zhan, KDD 2021, eq. 8): client k trains the cross-entropy of softmax(alpha_k,c s_c) over
all classes c, s_c = w_c h + b_c, where alpha_k,c is 1 for the classes that k has and alpha for the others; the authors'
code takes alpha + (1 - alpha) n_c / max n. Scores are by the plain s_c.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorfl.pipeline.methods.fedrs import FedRS
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.tasks.contract import Card
from tests.pipeline import compared
from tests.pipeline.compared import arrays, assert_close, base_loss, elsewhere, gradient, logits
from tests.runs import quiet


@pytest.mark.parametrize("scaling", ["binary", "continuous"])
@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_with_alpha_one_it_is_fedavg_bit_for_bit(experiment, task, scaling):
    plain = compared.history(experiment("fedavg", task))
    compared.assert_same_bits(
        compared.history(experiment("fedrs", task, options={"alpha": 1.0, "scaling": scaling})), plain
    )


def test_with_alpha_below_one_it_is_not(experiment):
    plain, scaled = compared.history(experiment("fedavg")), compared.history(experiment("fedrs"))
    assert any(not torch.equal(scaled[0][0][name], value) for name, value in plain[0][0].items())


def test_binary_multi_label_is_fedavg_where_every_identified_class_has_a_positive(experiment):
    """Scaled logits are those without weight; in this task every client has a positive of each of its classes."""
    e = experiment("fedrs", "toy-multi", options={"alpha": 0.5})
    for card in make_run_spec(e, quiet).data().cards():
        assert torch.equal(card.count_C > 0, card.identified_C)
    compared.assert_same_bits(compared.history(e), compared.history(experiment("fedavg", "toy-multi")))


@pytest.mark.parametrize(("scaling", "expected"), [("binary", [1, 0.4, 1, 0.4]), ("continuous", [1, 0.4, 0.55, 0.4])])
def test_classes_that_a_client_has_are_those_of_its_samples(scaling, expected):
    """Class 1 it identifies and has no sample of; class 3 is neither."""
    card = Card(0, 10, torch.tensor([8, 0, 2, 0]), torch.tensor([True, True, True, False]))
    assert FedRS(alpha=0.4, scaling=scaling).scale(card).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("scaling", ["binary", "continuous"])
@pytest.mark.parametrize("kind", ["single", "multi"])
def test_loss_and_gradient_equal_numpy(kind, scaling):
    """The whole logit is scaled, its bias included."""
    local, micro_batches = compared.started(FedRS(alpha=0.3, scaling=scaling), kind)
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    count = data.y_NC.numpy().sum(0)
    assert (count > 0).tolist() == [True, True, False, False]
    scale = np.array([1 if n else 0.3 for n in count]) if scaling == "binary" else 0.3 + 0.7 * count / count.max()
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        return base_loss(kind, logits(w, x) * scale, data)

    compared.assert_gradient(local, micro_batches, whole)


@pytest.mark.parametrize(
    ("count", "scaling", "want"),
    [
        ([40, 10, 1, 0], "binary", [1, 1, 1, 0.2]),
        ([40, 10, 1, 0], "continuous", [1, 0.4, 0.22, 0.2]),
        ([0, 0, 0, 0], "binary", [0.2] * 4),
        ([0, 0, 0, 0], "continuous", [0.2] * 4),
        ([7, 7, 7, 7], "continuous", [1] * 4),
    ],
)
def test_the_scale_of_a_client(count, scaling, want):
    card = Card(0, 60, torch.tensor(count), torch.tensor(count) > 0)
    got = FedRS(alpha=0.2, scaling=scaling).scale(card)
    assert got.dtype == torch.float64
    assert np.allclose(got.numpy(), want, rtol=0, atol=1e-15)


def test_with_alpha_zero_rows_of_absent_classes_stay_and_others_do_not():
    """Their logit is 0 whatever their weights, so nothing pulls on these."""
    local, micro_batches = compared.started(FedRS(alpha=0.0))
    _, got = gradient(local, micro_batches)
    for name in ("head.weight", "head.bias"):
        assert not got[name][2:].any()
        assert got[name][:2].any()


def test_scores_are_by_plain_logits(experiment):
    """The server of FedRS scores weights as FedAvg's does, and the client's own model is not scaled either."""
    compared.assert_scored_as_fedavg(experiment, "fedrs", {"alpha": 0.1})
    local, _ = compared.started(FedRS(alpha=0.1))
    x = local.ctx.data.x
    assert_close({"": local.model(x).detach()}, {"": logits(arrays(local.model.state_dict()), x.numpy())}, 1e-13)


def test_the_exact_tensors_on_the_wire():
    compared.assert_wire(FedRS())


@pytest.mark.parametrize("scaling", ["binary", "continuous"])
def test_the_savings_change_no_update(scaling):
    compared.assert_savings_agree(FedRS(scaling=scaling))


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_a_bad_scale_is_refused(alpha):
    with pytest.raises(ValueError, match=rf"\Amethod\.alpha = {alpha}: must be in \[0, 1\]\Z"):
        FedRS(alpha=alpha)
