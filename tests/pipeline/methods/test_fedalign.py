"""FedAlign: alternating steps, its merge against NumPy, its limits, and what it sends."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from fedpu_one_term import FedAlignWithLabeledTerm, FedAlignWithUnlabeledTerm
from fedpu_terms import FedAlignWithTerms
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.models.build import build
from anchorfl.models.heads import LabelHead
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, ServerContext, ServerState, Update
from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods import fedalign
from anchorfl.pipeline.methods.fedalign import AlignState, AlignUpdate, FedAlign
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.run.lifecycle import run as run_experiment
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.saved_model import load_model
from anchorfl.pipeline.training.local_training import TrainingSpec, fit, infer
from anchorfl.tasks.contract import Card, ClientData, Objective
from tests.pipeline import compared
from tests.runs import quiet

QUICK = settings(max_examples=30, deadline=None, derandomize=True, database=None)
C, D, WORDS, LENGTH = 4, 6, 11, 7
SINGLE, MULTI = Objective("single"), Objective("multi")
OPTIONS = OptimizerOptions(batch_size=8, microbatch_tokens=20)
AWARE = torch.tensor([True, True, False, False])
PARTS = ("qkv", "out", "up", "down", "norm_attention", "norm_feedforward")
ENCODER = [
    "encoder.entry.weight",
    *(f"encoder.layer.{part}.{kind}" for part in PARTS for kind in ("weight", "bias")),
    "encoder.norm.weight",
    "encoder.norm.bias",
]


def network(head="label", vectors=D):
    first = torch.randn(C, vectors, generator=torch.Generator().manual_seed(4))
    return build(
        ModelOptions(width=D, heads=2, feedforward=5, dropout=0.0), input_kind="tokens", shape=(LENGTH,),
        vocabulary=WORDS, classes=C, head=head, unit=True, vectors_CP=first, seed=9,
    )  # fmt: skip


def client(kind="single", seed=0, rows=40):
    rng = np.random.default_rng(seed)
    length = torch.from_numpy(rng.integers(1, LENGTH + 1, size=rows))
    x = torch.from_numpy(rng.integers(1, WORDS, size=(rows, LENGTH)).astype(np.int32))
    x[torch.arange(LENGTH) >= length[:, None]] = 0
    if kind == "single":
        y = torch.eye(C)[torch.from_numpy(rng.integers(C, size=rows))]
        known = (y * AWARE).any(1, keepdim=True).float().expand(rows, C).clone()
    else:
        y = torch.from_numpy(rng.random((rows, C)) < 0.4).float()
        known = AWARE.float().expand(rows, C).clone()
    y = y * known
    card = Card(seed, rows, y.sum(0).long(), AWARE)
    return card, ClientData(x, y, known, Objective(kind).weights(y, known), length)


def started(method, kind="single", vectors=D, score=None):
    """Return the client half on a fresh model, and one mini-batch of labeled rows in two pieces."""
    model = network(vectors=vectors).train()
    card, data = client(kind)
    state = AlignState(weights_of(model), torch.zeros(0) if score is None else score)
    ctx = ClientContext(model, state, card, data, {}, Objective(kind), OPTIONS, infer, torch.Generator())
    return method.trainer(ctx), [data.rows(torch.arange(0, 5), 12), data.rows(torch.arange(5, 12), 12)]


def server(validate=None, clients=1):
    return ServerContext(network(), [client()[0]] * clients, SINGLE, validate, torch.Generator(), 1, 1)


def run(method, kind="single", epochs=2, model=None):
    model = network() if model is None else model
    card, data = client(kind)
    state = AlignState(weights_of(model), torch.zeros(0))
    return fit(TrainingSpec(method, Objective(kind), OPTIONS, epochs, 3), model, card, data, state, {}, 1)


# ---------------------------------------------------------------------------------------------------- alternating steps


def test_each_half_step_leaves_the_other_encoder_bit_equal_and_takes_a_forward_of_its_own():
    local, batch = started(FedAlign(alignment=False))
    model, seen, forwards = local.model, [], []
    model.encoder.register_forward_hook(lambda *_: forwards.append(len(seen)))
    for name, optimizer in local.optimizers.items():

        def spy(name=name, real=optimizer.step):
            before = {k: v.clone() for k, v in model.state_dict().items()}
            frozen = model.head if name == "theta" else model.encoder
            assert all(
                float(p.grad.abs().max()) == 0 for p in frozen.parameters()
            )  # no gradient reached the frozen half
            real()
            seen.append((name, {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}))

        optimizer.step = spy
    local.step(batch)
    assert [name for name, _ in seen] == ["theta", "omega"]
    assert seen[0][1] <= set(ENCODER)
    assert len(seen[0][1]) >= len(ENCODER) - 1
    assert seen[1][1] == {"head.table"}
    assert forwards == [0, 0, 1, 1]  # both pieces before the step on theta, and both again after it
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("vectors", [D, 3])
@pytest.mark.parametrize("alternating", [True, False])
def test_a_step_equals_two_adams_by_hand(alternating, vectors):
    """theta1 = Adam(theta0, dL/dtheta at (theta0, omega0)); then omega1 from dL/domega at (theta1, omega0), or at
    (theta0, omega0) in one step; omega is all of the label encoder, the projection included."""
    method = FedAlign(alignment=False, alternating=alternating, data_lr=0.01, label_lr=0.03)
    local, batch = started(method, vectors=vectors)
    twin = copy.deepcopy(local.model)
    loss = local.step(batch)
    whole = local.ctx.data.rows(torch.arange(12), 12)

    def gradients(part):
        parameters = list(part.parameters())
        return list(zip(parameters, torch.autograd.grad(SINGLE.loss(twin(whole.x), whole), parameters), strict=True))

    theta, omega = make(OPTIONS, twin.encoder.parameters(), 0.01), make(OPTIONS, twin.head.parameters(), 0.03)
    early = gradients(twin.head)
    for p, g in gradients(twin.encoder):
        p.grad = g
    first = float(SINGLE.loss(twin(whole.x), whole).detach())
    theta.step()
    second = float(SINGLE.loss(twin(whole.x), whole).detach())
    for p, g in gradients(twin.head) if alternating else early:
        p.grad = g
    omega.step()
    assert float(loss) == pytest.approx(second if alternating else first, abs=1e-6)
    for name, value in twin.head.state_dict().items():
        assert torch.allclose(local.model.head.state_dict()[name], value, atol=1e-5), name
    keys = slice(D, 2 * D)  # the keys' bias has no gradient but rounding, which Adam's first step makes as large as any
    for name, value in twin.encoder.state_dict().items():
        got = local.model.encoder.state_dict()[name].clone()
        if name == "layer.qkv.bias":
            got[keys] = value[keys]
        assert torch.allclose(got, value, atol=1e-5), name


def test_by_epochs_omega_takes_all_mini_batches_and_then_theta(monkeypatch):
    """The preprint's Algorithm 1: in each of 2 epochs the encoders move one after the other, 5 mini-batches each."""
    moved = []
    real = fedalign.AlignTrainer.step

    def spy(self, micro_batches):
        before = {k: v.clone() for k, v in self.model.state_dict().items()}
        loss = real(self, micro_batches)
        moved.append({k.partition(".")[0] for k, v in self.model.state_dict().items() if not torch.equal(v, before[k])})
        return loss

    monkeypatch.setattr(fedalign.AlignTrainer, "step", spy)
    run(FedAlign(alternate_every="epoch"))
    assert moved == [*[{"head"}] * 5, *[{"encoder"}] * 5] * 2


def test_by_epochs_a_pass_is_adam_on_one_encoder():
    """With one mini-batch a pass, the turns are those of a step in another order: omega at theta0, theta at omega1."""
    method = FedAlign(alignment=False, alternate_every="epoch", data_lr=0.01, label_lr=0.03)
    options = replace(OPTIONS, batch_size=0)
    model, twin = network(), network()
    card, data = client()
    state = AlignState(weights_of(model), torch.zeros(0))
    got = fit(TrainingSpec(method, SINGLE, options, 1, 3), model, card, data, state, {}, 1).update.weights
    whole = data.rows(torch.arange(len(data)), len(data))
    for part, rate in ((twin.head, 0.03), (twin.encoder, 0.01)):
        adam = make(OPTIONS, part.parameters(), rate)
        parameters = list(part.parameters())
        for p, g in zip(parameters, torch.autograd.grad(SINGLE.loss(twin(whole.x), whole), parameters), strict=True):
            p.grad = g
        adam.step()
    for name, value in twin.head.state_dict().items():
        assert torch.allclose(got[f"head.{name}"], value, atol=1e-5), name
    assert torch.allclose(got["encoder.entry.weight"], twin.encoder.state_dict()["entry.weight"], atol=1e-5)


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_the_alignment_loss_is_the_mean_over_the_rows_with_a_pseudo_label(kind):
    """Equation 10 in NumPy: loss = sum over labeled entries / N + alpha x sum over pseudo-labeled entries / N'."""
    method = FedAlign(q1=70.0, q2=30.0, alpha=0.5, own_mean=True)
    card, data = client(kind)
    model = network().eval()
    objective = Objective(kind, class_balanced=False)
    data = replace(data, weight_NC=objective.weights(data.y_NC, data.known_NC))
    ctx = ClientContext(
        model,
        AlignState(weights_of(model), torch.zeros(0)),
        card,
        data,
        {},
        objective,
        OPTIONS,
        infer,
        torch.Generator(),
    )
    rows = method.trainer(ctx).data()
    new_NC = ((rows.known_NC == 1) & (data.known_NC == 0)).numpy()
    logits_NC = model(data.x).detach().numpy().astype(np.float64)
    y_NC = rows.y_NC.numpy()
    if kind == "single":
        entry_NC = -y_NC * (logits_NC - np.log(np.exp(logits_NC).sum(1, keepdims=True)))
        rows_with = (new_NC & (y_NC == 1)).any(1).sum()
        scale = 1
    else:
        entry_NC = np.log1p(np.exp(logits_NC)) - y_NC * logits_NC
        rows_with = new_NC.any(1).sum()
        scale = C
    assert 0 < rows_with < len(data)
    given_NC = data.known_NC.numpy() == 1
    want = ((entry_NC * given_NC).sum() / len(data) + 0.5 * (entry_NC * new_NC).sum() / rows_with) / scale
    got = objective.loss(model(rows.x), rows.rows(torch.arange(len(rows)), len(rows)))
    assert float(got.detach()) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("unit", [True, False])
def test_the_logits_of_a_run_and_of_its_saved_model_have_unit_rows_or_not(experiment, tmp_path, unit):
    """Equation 4 is the plain dot product; the reference code brings the class rows of a single-label task to 1."""
    e = experiment("fedalign", options={"unit_classes": unit})
    run_experiment(e, tmp_path / "run", quiet)
    head = load_model(tmp_path / "run" / "model").model.head
    rows_CD, z_BD = head.classes().detach(), torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    length_C1 = rows_CD.norm(dim=1, keepdim=True)
    assert not torch.allclose(length_C1, torch.ones_like(length_C1), atol=0.05)
    want = z_BD @ (rows_CD / length_C1 if unit else rows_CD).T
    assert torch.allclose(head(z_BD), want, atol=1e-5)
    assert make_run_spec(e, quiet).model().head.unit == unit


# ------------------------------------------------------------------------------------------------------------ the merge


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("skip", [False, True])
@QUICK
@given(st.integers(0, 2**32))
def test_merge_equals_numpy(aggregate, skip, seed):
    """theta: plain mean over the clients that count (all of them where none has a label); omega row c: mean over its
    holders among ALL clients, whose class sets pseudo-positives extend if so asked; without a holder the row stays."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    before = {
        "encoder.w": rng.normal(size=(2, 3)),
        "head.table": rng.normal(size=(C, D)),
        "head.project.weight": rng.normal(size=3),
    }
    before = {k: v.astype(np.float32) for k, v in before.items()}
    sent = [{k: rng.normal(size=v.shape).astype(np.float32) for k, v in before.items()} for _ in range(count)]
    aware, pseudo = rng.random((2, count, C)) < [[[0.4]], [[0.3]]]
    counts = rng.integers(1, 50, size=(count, C)) * aware * (rng.random((count, 1)) < 0.6)
    results = []
    for m in range(count):
        card = Card(m, int(rng.integers(1, 999)), torch.from_numpy(counts[m]), torch.from_numpy(aware[m]))
        told_C = torch.from_numpy(pseudo[m] if aggregate else pseudo[m][:0])
        results.append(ClientResult(card, AlignUpdate({k: torch.from_numpy(v) for k, v in sent[m].items()}, told_C)))
    state = AlignState({k: torch.from_numpy(v) for k, v in before.items()}, torch.full((C,), 0.5))
    frozen = messages.checksum(state)
    merged = FedAlign(aggregate_pseudo=aggregate, skip_unlabeled_clients=skip).aggregate(state, results, server())

    labeled = [m for m in range(count) if counts[m].any()]
    counted = labeled if skip and labeled else range(count)
    for name in ("encoder.w", "head.project.weight"):
        want = np.mean([sent[m][name].astype(np.float64) for m in counted], axis=0)
        assert np.allclose(merged.weights[name], want, rtol=1e-6, atol=1e-8)
    for c in range(C):
        holders = [m for m in range(count) if aware[m, c] or (aggregate and pseudo[m, c])]
        got = merged.weights["head.table"][c].numpy()
        if holders:
            want = np.mean([sent[m]["head.table"][c].astype(np.float64) for m in holders], axis=0)
            assert np.allclose(got, want, rtol=1e-6, atol=1e-8)
        else:
            assert got.tobytes() == before["head.table"][c].tobytes()
    assert list(merged.weights) == list(before)
    assert torch.equal(merged.score_C, state.score_C)
    assert messages.checksum(state) == frozen


# --------------------------------------------------------------------------------------------------------------- limits


def test_without_alignment_and_alternation_it_is_fedavg_on_the_same_network():
    """One joint Adam step: two optimizers over disjoint weights, at one rate, are one optimizer over all."""
    method = FedAlign(alignment=False, alternating=False, data_lr=0.002, label_lr=0.002)
    model = network()
    card, data = client()
    got = run(method, model=model)
    options = replace(OPTIONS, lr=0.002)
    start = ServerState(weights_of(network()))
    want = fit(TrainingSpec(FedAvg(), SINGLE, options, 2, 3), model, card, data, start, {}, 1)
    assert messages.checksum(got.update.weights) == messages.checksum(want.update.weights)
    assert got.loss == want.loss


@pytest.mark.parametrize("alternating", [True, False])
def test_alpha_zero_is_no_alignment_bit_for_bit(alternating):
    """Single-label: every pseudo-labeled entry has weight 0, and no other weight changes."""
    method = FedAlign(q1=70.0, alternating=alternating)
    zero, off, on = (run(replace(method, **o)) for o in ({"alpha": 0.0}, {"alignment": False}, {}))
    assert messages.checksum(zero.update.weights) == messages.checksum(off.update.weights)
    assert messages.checksum(zero.memory) == messages.checksum(off.memory)
    assert messages.checksum(on.update.weights) != messages.checksum(off.update.weights)


def test_without_names_the_confidence_annotates(monkeypatch):
    kinds = []
    real = fedalign.anchor_scores
    monkeypatch.setattr(fedalign, "anchor_scores", lambda kind, *rest: kinds.append(kind) or real(kind, *rest))
    for method in (FedAlign(), FedAlign(anchor_score="dot"), FedAlign(semantic=False), FedAlign(alignment=False)):
        started(method)[0].data()
    assert kinds == ["cosine", "dot", "confidence"]
    assert (FedAlign().head.semantic, FedAlign(semantic=False).head.semantic) == (True, False)


@pytest.mark.parametrize("alternate_every", ["step", "epoch"])
def test_annotation_happens_once_per_round_or_once_per_epoch(monkeypatch, alternate_every):
    """By epochs, both passes of an epoch train on one annotation."""
    calls = []
    real = fedalign.pseudo_annotate
    monkeypatch.setattr(fedalign, "pseudo_annotate", lambda *a: calls.append(1) or real(*a))
    for refresh, times in (("round", 1), ("epoch", 3)):
        calls.clear()
        run(FedAlign(refresh=refresh, alternate_every=alternate_every), epochs=3)
        assert len(calls) == times


@pytest.mark.parametrize("alternating", [True, False])
def test_both_rates_fall_from_round_to_round(alternating):
    """Round 3 at rates that halve after every round is round 3 at a quarter of them, bit for bit."""

    def third_round(method, decay):
        card, data = client()
        state, options = AlignState(weights_of(network()), torch.zeros(0)), replace(OPTIONS, lr_decay=decay)
        return fit(TrainingSpec(method, SINGLE, options, 1, 3), network(), card, data, state, {}, 3).update.weights

    method = FedAlign(alternating=alternating, data_lr=0.008, label_lr=0.04)
    got, want = third_round(method, 0.5), third_round(replace(method, data_lr=0.002, label_lr=0.01), 1.0)
    assert messages.checksum(got) == messages.checksum(want)


def test_without_names_a_confidence_is_held_against_a_half():
    """``dot`` keeps both thresholds on their sides of 0.5: as a similarity, or as log-odds of 0."""
    y, known = torch.zeros(5, C), torch.zeros(5, C)
    data = ClientData(torch.arange(5)[:, None], y, known, MULTI.weights(y, known), torch.ones(5).long())
    score_NC = torch.tensor([-0.4, -0.1, 0.1, 0.3, 0.45])[:, None].expand(5, C)
    for semantic, positive in ((False, [3, 4]), (True, [])):
        method = FedAlign(q1=50.0, q2=25.0, anchor_score="dot", semantic=semantic)
        rows, _ = fedalign.pseudo_annotate(data, score_NC, torch.zeros(C).bool(), MULTI, method.thresholds(None))
        assert rows.y_NC[:, 0].nonzero().flatten().tolist() == positive
        assert ((rows.known_NC - rows.y_NC)[:, 0] == 1).nonzero().flatten().tolist() == [0]


def test_classes_that_got_a_pseudo_positive_in_any_epoch_are_told(monkeypatch):
    """Also those whose positives are gone in a later epoch."""
    got = iter([[False, False, True, False], [False, False, False, True], [False] * 4])
    real = fedalign.pseudo_annotate
    monkeypatch.setattr(fedalign, "pseudo_annotate", lambda *a: (real(*a)[0], torch.tensor(next(got))))
    update = run(FedAlign(refresh="epoch", aggregate_pseudo=True), epochs=3).update
    assert update.pseudo_C.tolist() == [False, False, True, True]


# ---------------------------------------------------------------------------------------------------- gate and messages


def test_only_the_gate_validates_and_broadcasts_scores():
    asked, score = [], torch.tensor([0.9, 0.8, 0.7, 0.1])
    ctx = server(lambda weights: asked.append(weights) or score)
    plain, gated = FedAlign(), FedAlign(positive_f1_gate=0.75)
    state = plain.begin(ctx)
    assert plain.broadcast(state, ctx) is state
    assert asked == []
    assert gated.begin(ctx).score_C.tolist() == [0] * C
    assert torch.equal(gated.broadcast(gated.begin(ctx), ctx).score_C, score)
    assert len(asked) == 1


def test_a_class_at_or_below_the_gate_gets_no_positive():
    method = FedAlign(q1=60.0, q2=40.0, positive_f1_gate=0.75, aggregate_pseudo=True)
    free, gated = (started(method, "multi", score=torch.tensor(s))[0] for s in ([1.0] * 4, [1.0, 1.0, 0.76, 0.75]))
    assert free.data().y_NC[:, 2:].sum(0).tolist() == [16, 16]
    assert gated.data().y_NC[:, 2:].sum(0).tolist() == [16, 0]
    assert free.update().pseudo_C.tolist() == [False, False, True, True]
    assert gated.update().pseudo_C.tolist() == [False, False, True, False]


@pytest.mark.parametrize(("method", "got"), [(FedAlign(), 0), (FedAlign(aggregate_pseudo=True), C)])
def test_the_exact_tensors_on_the_wire(method, got):
    weights = [f"weights/{name}" for name in (*ENCODER, "head.table")]
    update = run(method).update
    assert [path for path, _ in messages.tensors(update)] == [*weights, "pseudo_C"]
    assert (update.pseudo_C.dtype, tuple(update.pseudo_C.shape)) == (torch.bool, (got,))
    state = method.begin(server())
    assert [path for path, _ in messages.tensors(state)] == [*weights, "score_C"]
    assert messages.nbytes(state) == 4 * sum(
        p.numel() for p in network().parameters()
    )  # the gate is off: no byte for it
    assert [name for name, _ in messages.tensors(weights_of(network(vectors=3)))][-3:] == [
        "head.table", "head.project.weight", "head.project.bias",
    ]  # fmt: skip


def test_the_exact_tensors_of_fedavg_on_the_wire():
    model = network("linear")
    card, data = client()
    got = fit(TrainingSpec(FedAvg(), SINGLE, OPTIONS, 1, 3), model, card, data, ServerState(weights_of(model)), {}, 1)
    assert isinstance(got.update, Update)
    assert [path for path, _ in messages.tensors(got.update)] == [
        f"weights/{n}" for n in (*ENCODER, "head.weight", "head.bias")
    ]


@pytest.mark.parametrize(
    "option", [{"data_lr": 0.0}, {"label_lr": 0.0}, {"label_lr": -1.0}, {"q1": 10.0}, {"alpha": -0.5}]
)
def test_options_out_of_range_are_refused_in_one_line(option):
    with pytest.raises(ValueError, match=r"\Amethod\.[^\n]+\Z"):
        FedAlign(**option)


def test_fedpus_terms_at_weight_0_are_fedalign(experiment, finished_run):
    """Of ``fedpu_terms.py`` docs/results/r8-8.md says so; with a weight it is another method."""
    e = experiment("fedalign")
    plain = finished_run(e).checksum
    for weight in (0.0, 1.0):
        terms = FedAlignWithTerms(**asdict(e.method), lambda_=weight)
        assert (finished_run(replace(e, method=terms)).checksum == plain) == (weight == 0)


def test_fedpus_two_terms_are_its_one_and_its_other():
    """Less FedAlign's own, the gradients of ``fedpu_one_term.py`` add up to those of ``fedpu_terms.py``."""
    names_CD = torch.randn(compared.C, compared.D, generator=torch.Generator().manual_seed(2))
    methods = (FedAlign(), FedAlignWithUnlabeledTerm(), FedAlignWithLabeledTerm(), FedAlignWithTerms())
    plain, unlabeled, labeled, both = (
        compared.gradient(*compared.started(method, model=compared.dense(LabelHead(names_CD, compared.D, unit=True))))[
            1
        ]
        for method in methods
    )
    for name, slope in both.items():
        parts = [unlabeled[name] - plain[name], labeled[name] - plain[name]]
        assert all(np.abs(part).max() > 1e-3 for part in parts), name
        np.testing.assert_allclose(slope - plain[name], sum(parts), rtol=0, atol=1e-12)
