"""FedPU: its limit, its risk against NumPy, its estimator, and what it sends.

Oracle (Lin et al., ICML 2022; derived in docs/methods/fedpu.md). Client k identifies the classes I, J are the others;
P are its N_P labeled rows, P_i those of class i, rho_i = N_i / N_P; U its unlabeled rows, of which a share pi_i is of
class i; p = softmax, h_c = -log(1 - p_c + eps) the loss of "it is not class c". With E the mean over rows,

    R = CE(P) + lambda_ { 1/|I| sum_i [E_U h_i - pi_i E_P_i h_i] + 1/|J| sum_j sum_i rho_i E_P_i h_j };

pi_i = prior rho_i, and a whole client as one mini-batch of N rows has the loss N_P/N R, as FedAvg's is N_P/N CE(P).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedpu_as_coded import FedPUAsCoded

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedpu import FedPU
from anchorfl.tasks.contract import Card, Objective
from tests.pipeline import compared
from tests.pipeline.compared import C, N, arrays, assert_close, elsewhere, gradient, logits, softmax

EPS = 1e-6


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(("task", "lambda_"), [("toy-single", 0.0), ("toy-multi", 0.0), ("toy-multi", 1.0)])
def test_without_its_terms_and_multi_label_it_is_fedavg_bit_for_bit(experiment, task, lambda_, weighting):
    """Multi-label: an identified class has no unlabeled row, and of another class nothing is known."""
    plain = compared.history(experiment("fedavg", task, options={"weighting": weighting}))
    got = compared.history(experiment("fedpu", task, options={"lambda_": lambda_, "weighting": weighting}))
    compared.assert_same_bits(got, plain)


def test_with_its_terms_it_is_not(experiment):
    plain, got = compared.history(experiment("fedavg")), compared.history(experiment("fedpu"))
    assert messages.checksum(got[0][0]) != messages.checksum(plain[0][0])


def risk(w, x, y, lambda_, prior):
    """Compute R by loops over classes; ``y``: class of a row, -1 without a label. Classes 0 and 1 are identified."""
    p = softmax(logits(w, x))
    h = -np.log(1 - p + EPS)
    labeled, own, other = y >= 0, (0, 1), (2, 3)
    total = np.mean([-np.log(p[n, y[n]]) for n in range(len(y)) if y[n] >= 0])
    for i in own:
        rho = (y == i).sum() / labeled.sum()
        total += lambda_ / len(own) * (h[~labeled, i].mean() - prior * rho * h[y == i, i].mean())
        for j in other:
            total += lambda_ / len(other) * rho * h[y == i, j].mean()
    return total


def classes(data):
    """Return the class of every row, -1 without a label."""
    y = data.y_NC.numpy()
    return np.where(y.any(1), y.argmax(1), -1)


@pytest.mark.parametrize(("lambda_", "prior"), [(1.0, 0.0), (0.4, 0.0), (2.0, 0.25)])
def test_loss_and_gradient_equal_numpy(lambda_, prior):
    local, micro_batches = compared.started(FedPU(lambda_=lambda_, prior=prior))
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    y = classes(data)
    share = (y >= 0).sum() / N
    assert share == 8 / 12  # P and U of different sizes, or their weights would not show
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        return share * risk(w, x, y, lambda_, prior)

    compared.assert_gradient(local, micro_batches, whole)
    assert local.active(data).all()


def test_the_authors_terms_equal_numpy():
    """``benchmarks/plug_ins/fedpu_as_coded.py``: no second term, and the mean of the first over all classes."""
    local, micro_batches = compared.started(FedPUAsCoded(lambda_=0.4))
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    y = classes(data)
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        p = softmax(logits(w, x))
        h = -np.log(1 - p + EPS)
        labels = np.mean([-np.log(p[n, y[n]]) for n in range(N) if y[n] >= 0])
        return (y >= 0).mean() * (labels + 0.4 * (h[y < 0, 0].mean() + h[y < 0, 1].mean()) / C)

    compared.assert_gradient(local, micro_batches, whole)


def test_mini_batches_average_to_the_whole():
    """However many labeled rows fall into each: the three losses of 4 rows have the mean of that of 12."""
    local, micro_batches = compared.started(FedPU(prior=0.2))
    data = local.ctx.data
    whole, slopes = gradient(local, micro_batches)
    parts = [gradient(local, [data.rows(index, 4)]) for index in torch.arange(N).split(4)]
    labeled = [int(data.y_NC[index].sum()) for index in torch.arange(N).split(4)]
    assert len(set(labeled)) > 1
    assert np.mean([loss for loss, _ in parts]) == pytest.approx(whole, abs=1e-13)
    assert_close({n: np.mean([g[n] for _, g in parts], axis=0) for n in slopes}, slopes, 1e-13)


def test_the_prior_takes_out_the_identified_rows_among_the_unlabeled():
    """U here holds every row of P once more, without its label, beside rows of other classes. With prior = N_P / N_U
    the risk is that of one who knows the hidden classes: "not class i" is asked of the rows that are not of class i.
    """
    local, _ = compared.started(FedPU())
    data = local.ctx.data
    y = classes(data)
    x = np.concatenate([data.x.numpy(), data.x.numpy()[y >= 0]])
    hidden = np.concatenate([np.full(N, 9), y[y >= 0]])[np.concatenate([y < 0, np.ones((y >= 0).sum(), bool)])]
    seen = np.concatenate([y, np.full((y >= 0).sum(), -1)])
    prior = (y >= 0).sum() / (seen < 0).sum()
    rows = [torch.cat([t, t.new_zeros((len(seen) - N, C))]) for t in (data.y_NC, data.known_NC, data.weight_NC)]
    more = replace(data, x=torch.from_numpy(x), y_NC=rows[0], known_NC=rows[1], weight_NC=rows[2])
    ctx = replace(local.ctx, data=more)
    loss = float(FedPU(prior=prior).trainer(ctx).gradients([more.rows(torch.arange(len(seen)))]))

    w = arrays(local.model.state_dict())
    p = softmax(logits(w, x))
    h_U = -np.log(1 - p + EPS)[seen < 0]
    expected = risk(w, x, seen, 1.0, 0.0)
    for i in (0, 1):
        expected -= h_U[:, i].mean() / 2
        expected += (h_U[:, i] * (hidden != i)).mean() / 2
    assert loss == pytest.approx((seen >= 0).mean() * expected, abs=1e-12)


@pytest.mark.parametrize(
    ("labeled", "aware"),
    [(N, [True] * 4), (N, [True, True, False, False]), (0, [True, True, False, False]), (0, [False] * 4)],
)
def test_clients_that_lack_a_part(labeled, aware):
    """No unlabeled row, no class of others, no labeled row, no class at all: finite, and what is left of the risk."""
    local, _ = compared.started(FedPU())
    data, identified_C = local.ctx.data, torch.tensor(aware)
    y = torch.eye(C, dtype=torch.float64)[torch.arange(N) % 2] * (torch.arange(N) < labeled)[:, None]
    rows = replace(data, y_NC=y, known_NC=y.any(1, keepdim=True).double().expand(N, C), weight_NC=y)
    ctx = replace(local.ctx, data=rows, card=Card(0, N, y.sum(0).long(), identified_C))
    got, slopes = gradient(FedPU().trainer(ctx), [rows.rows(torch.arange(N))])
    plain, _ = gradient(FedAvg().trainer(ctx), [rows.rows(torch.arange(N))])
    h = -np.log(1 - softmax(logits(arrays(local.model.state_dict()), data.x.numpy())) + EPS)
    others = h[:, ~identified_C.numpy()].mean() if labeled and not all(aware) else 0.0
    assert got == pytest.approx(plain + others, abs=1e-13)
    assert all(np.isfinite(g).all() for g in slopes.values())


def test_a_certain_mistake_stays_finite():
    """p_c = 1 on a row that is not c costs -log(eps), and no NaN comes back."""
    local, micro_batches = compared.started(FedPU())
    with torch.no_grad():
        local.model.head.weight.mul_(1e4)
    loss, slopes = gradient(local, micro_batches)
    assert np.isfinite(loss)
    assert all(np.isfinite(g).all() for g in slopes.values())


def test_multi_label_computes_no_row_more_than_fedavg():
    local, micro_batches = compared.started(FedPU(), "multi")
    plain, _ = compared.started(FedAvg(), "multi")
    assert local.ctx.objective == Objective("multi")
    assert torch.equal(local.active(local.ctx.data), plain.active(plain.ctx.data))
    assert gradient(local, micro_batches)[0] == gradient(plain, micro_batches)[0]


def test_the_exact_tensors_on_the_wire():
    """No prior and no count travels."""
    compared.assert_wire(FedPU())


def test_the_savings_change_no_update():
    """Unlabeled rows have a loss here, and are computed."""
    compared.assert_savings_agree(FedPU())


@pytest.mark.parametrize("options", [{"lambda_": -1.0}, {"prior": -0.1}, {"prior": 1.5}, {"lambda_": float("nan")}])
def test_bad_options_are_refused(options):
    ((name, value),) = options.items()
    line = r"\Amethod\.lambda_ = \S+ must be at least 0, method\.prior = \S+ in \[0, 1\]\Z"
    with pytest.raises(ValueError, match=line) as error:
        FedPU(**options)
    assert f"{name} = {value}" in str(error.value)
