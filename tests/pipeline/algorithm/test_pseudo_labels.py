"""Pseudo-annotation against an independent implementation of the rules in methods/fedalign.md, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.models.heads import LabelHead, LinearHead
from anchorfl.pipeline.algorithm.pseudo_labels import Thresholds, anchor_scores, pseudo_annotate
from anchorfl.tasks.contract import ClientData, Objective

SEEDS = st.integers(0, 2**32)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SINGLE, MULTI, PLAIN = Objective("single"), Objective("multi"), Objective("multi", class_balanced=False)


def case(seed, rows, classes, kind, ties):
    """Draw a client's rows as tasks disclose them (unknown: 0 in y), its class set, and scores in -0.3 .. 1.3."""
    rng = np.random.default_rng(seed)
    aware = rng.random(classes) < 0.4
    if kind == "single":
        true = np.eye(classes)[rng.integers(classes, size=rows)]
        known = np.repeat((true * aware).any(1, keepdims=True), classes, 1) * 1.0
    else:
        true = (rng.random((rows, classes)) < 0.4) * 1.0
        known = aware * (rng.random((rows, classes)) < 0.8) * 1.0  # some labels are missing in the raw data
    score = (rng.random((rows, classes)) * 1.6 - 0.3).astype(np.float32)
    return true * known, known, aware, score.round(1) if ties else score


def client(y, known, objective):
    y_NC, known_NC = (torch.from_numpy(a.astype(np.float32)) for a in (y, known))
    return ClientData(
        torch.arange(len(y))[:, None], y_NC, known_NC, objective.weights(y_NC, known_NC), torch.ones(len(y)).long()
    )


def by_the_rules(y, known, aware, score, kind, q1, q2, clamp, allowed):
    """y, known and 0/1 pseudo after the rules, and the classes that got a positive: two loops, no masks."""
    y, known, pseudo, got = y.copy(), known.copy(), np.zeros_like(y), np.zeros(len(aware), bool)
    unlabeled = [not row.any() for row in known]
    for c in range(len(aware)):
        if aware[c]:
            continue
        column = score[:, c].astype(np.float64)
        high, low = np.percentile(column, q1), np.percentile(column, q2)
        if clamp is not None and kind == "multi":
            high, low = max(clamp, high), min(clamp, low)
        for i in range(len(score)):
            if kind == "single" and not unlabeled[i]:
                continue
            best = next(k for k in range(len(aware)) if score[i, k] == max(score[i]))  # the first of equals
            positive = column[i] > high and (kind == "multi" or best == c) and (allowed is None or allowed[c])
            negative = column[i] < low and (kind == "multi" or best != c)
            if positive or negative:
                known[i, c], pseudo[i, c] = 1, 1
            if positive:
                y[i, c], got[c] = 1, True
    return y, known, pseudo, got


@pytest.mark.parametrize("clamp", [None, 0.5, 0.0])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("objective", [SINGLE, MULTI, PLAIN], ids=["single", "multi", "plain"])
@QUICK
@given(SEEDS)
def test_equals_the_rules_entry_by_entry(objective, gated, clamp, seed):
    """All else follows from the seed: Hypothesis alone would mostly try one row and two classes."""
    rng = np.random.default_rng(seed)
    rows, classes, ties = int(rng.integers(1, 26)), int(rng.integers(2, 6)), bool(rng.integers(2))
    q1, q2 = ((99, 50), (90, 90), (60, 40), (50, 50), (99.9, 0.1), (75, 20))[rng.integers(6)]
    alpha = (0.0, 0.3, 1.0)[rng.integers(3)]
    y, known, aware, score = case(seed, rows, classes, objective.kind, ties)
    allowed = rng.random(classes) < 0.5 if gated else None
    allowed_C = None if allowed is None else torch.from_numpy(allowed)
    limits = Thresholds(q1=q1, q2=q2, alpha=alpha, clamp=clamp, allowed_C=allowed_C)
    data = client(y, known, objective)
    got, classes_C = pseudo_annotate(data, torch.from_numpy(score), torch.from_numpy(aware), objective, limits)
    y_, known_, pseudo, got_C = by_the_rules(y, known, aware, score, objective.kind, q1, q2, clamp, allowed)
    assert np.array_equal(got.y_NC.numpy(), y_)
    assert np.array_equal(got.known_NC.numpy(), known_)
    assert np.array_equal(classes_C.numpy(), got_C)
    strength = torch.from_numpy(np.where(pseudo, np.float32(alpha), np.float32(1)))
    assert torch.equal(got.weight_NC, objective.weights(got.y_NC, got.known_NC, strength))
    assert got.y_NC.dtype == got.known_NC.dtype == got.weight_NC.dtype == torch.float32


@pytest.mark.parametrize("objective", [SINGLE, MULTI], ids=["single", "multi"])
@QUICK
@given(SEEDS)
def test_identified_classes_given_labels_and_inputs_stay(objective, seed):
    y, known, aware, score = case(seed, 1 + seed % 25, 2 + seed % 4, objective.kind, ties=True)
    data = client(y, known, objective)
    before = [t.clone() for t in (data.y_NC, data.known_NC, data.weight_NC)]
    got, _ = pseudo_annotate(
        data, torch.from_numpy(score), torch.from_numpy(aware), objective, Thresholds(q1=60, q2=40, alpha=0.5)
    )
    assert all(torch.equal(a, b) for a, b in zip(before, (data.y_NC, data.known_NC, data.weight_NC), strict=True))
    assert got.x is data.x
    assert got.length_N is data.length_N
    given = data.known_NC == 1
    assert torch.equal(got.y_NC[given], data.y_NC[given])
    assert torch.equal(got.known_NC[:, aware], data.known_NC[:, aware])
    assert (got.known_NC >= data.known_NC).all()
    if objective.kind == "single":
        labeled = given.any(1)
        assert torch.equal(got.known_NC[labeled], data.known_NC[labeled])
        assert torch.equal(got.weight_NC[labeled], data.weight_NC[labeled])
        assert (got.y_NC.sum(1) <= 1).all()  # one-hot, or unlabeled
        assert ((got.weight_NC > 0).sum(1) <= 1).all()  # an entry known to be 0 costs nothing under softmax


def test_single_label_by_hand():
    """Unaware of class 1; its column .0 .9 .8 .1 .2 has q75 = .8 and q25 = .1. Row 1 (.9) is positive, its own best;
    row 0 (.0) is negative; row 2 (.8) is not above .8; row 3 (.1) is not below .1; row 4 is labeled."""
    score = torch.tensor([[0.5, 0.0], [0.5, 0.9], [0.5, 0.8], [0.5, 0.1], [0.5, 0.2]])
    y, known = np.zeros((5, 2)), np.zeros((5, 2))
    y[4, 0], known[4] = 1, 1
    got, classes_C = pseudo_annotate(
        client(y, known, SINGLE), score, torch.tensor([True, False]), SINGLE, Thresholds(q1=75, q2=25, alpha=0.5)
    )
    assert got.y_NC.tolist() == [[0, 0], [0, 1], [0, 0], [0, 0], [1, 0]]
    assert got.known_NC.tolist() == [[0, 1], [0, 1], [0, 0], [0, 0], [1, 1]]
    assert got.weight_NC.tolist() == [[0, 0], [0, 0.5], [0, 0], [0, 0], [1, 0]]
    assert classes_C.tolist() == [False, True]


def test_a_given_label_of_a_class_that_the_client_does_not_identify_stays():
    """Row 9 scores highest and is labeled negative, row 0 scores lowest and is labeled positive."""
    y, known = np.zeros((10, 1)), np.zeros((10, 1))
    y[0], known[[0, 9]] = 1, 1
    data = client(y, known, MULTI)
    limits = Thresholds(q1=75, q2=25)
    got, _ = pseudo_annotate(data, torch.arange(10.0)[:, None], torch.zeros(1).bool(), MULTI, limits)
    assert got.y_NC[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    assert got.known_NC[:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert torch.equal(got.weight_NC, MULTI.weights(got.y_NC, got.known_NC)), (
        "pseudo-labels weigh as much as given ones"
    )


def test_a_client_that_knows_every_class_is_left_as_it_is():
    y, known, _, score = case(3, 12, 4, "multi", ties=False)
    data = client(y, known, MULTI)
    got, classes_C = pseudo_annotate(
        data, torch.from_numpy(score), torch.ones(4).bool(), MULTI, Thresholds(q1=60, q2=40)
    )
    assert torch.equal(got.known_NC, data.known_NC)
    assert torch.equal(got.weight_NC, data.weight_NC)
    assert not classes_C.any()


def test_the_gate_closes_positives_but_not_negatives():
    y, known = np.zeros((10, 2)), np.zeros((10, 2))
    score = torch.linspace(0, 1, 10)[:, None].expand(10, 2)
    limits = Thresholds(q1=80, q2=20, allowed_C=torch.tensor([True, False]))
    got, classes_C = pseudo_annotate(client(y, known, MULTI), score, torch.zeros(2).bool(), MULTI, limits)
    assert classes_C.tolist() == [True, False]
    assert got.y_NC.sum(0).tolist() == [2, 0]
    assert got.known_NC.sum(0).tolist() == [4, 2]


@pytest.mark.parametrize("width", [4, 3])
def test_scores_are_cosines_dot_products_or_the_models_confidence(width):
    """Anchors are the class representations behind the projection, whatever ``unit`` says."""
    rng = np.random.default_rng(0)
    z, vectors = (rng.normal(size=s).astype(np.float32) for s in ((6, 4), (3, width)))
    head = LabelHead(torch.from_numpy(vectors), 4, unit=True)
    anchors = head.classes().detach().numpy()
    cosine, dot = np.zeros((6, 3)), np.zeros((6, 3))
    for i in range(6):
        for c in range(3):
            dot[i, c] = (z[i] * anchors[c]).sum()
            cosine[i, c] = dot[i, c] / np.linalg.norm(z[i]) / np.linalg.norm(anchors[c])
    z_ND = torch.from_numpy(z)
    for kind, want in (("cosine", cosine), ("dot", dot)):
        got = anchor_scores(kind, head, z_ND, SINGLE)
        assert np.allclose(got, want, atol=1e-5)
        assert not got.requires_grad
    logits = head(z_ND).detach().numpy()
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.allclose(anchor_scores("confidence", head, z_ND, SINGLE), np.log(softmax / (1 - softmax)), atol=1e-5)
    assert np.array_equal(anchor_scores("confidence", head, z_ND, MULTI), logits)


@pytest.mark.parametrize("objective", [SINGLE, MULTI], ids=["single", "multi"])
@pytest.mark.parametrize("scale", [3, 60])
def test_confidences_of_1_still_have_an_order(objective, scale):
    """The rows are those above and below the percentiles of the confidences themselves, in numbers that can tell them
    apart: at a scale of 60 most are 1 in float32, and some in float64."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(scale * np.abs(rng.normal(size=(200, 4)))).float()
    y, known = np.zeros((200, 4)), np.zeros((200, 4))
    unaware, limits = torch.zeros(4).bool(), Thresholds(q1=90, q2=50, clamp=0.0)
    score_NC = anchor_scores("confidence", torch.nn.Identity(), logits, objective)
    got, _ = pseudo_annotate(client(y, known, objective), score_NC, unaware, objective, limits)
    x = logits.double().numpy().astype(np.longdouble)
    if objective.kind == "multi":
        rest = 1 / (1 + np.exp(x))  # 1 less the confidence
    else:
        e = np.exp(x - x.max(1, keepdims=True))
        rest = (e.sum(1, keepdims=True) - e) / e.sum(1, keepdims=True)
    best = np.eye(4, dtype=bool)[x.argmax(1)] if objective.kind == "single" else np.ones((200, 4), bool)
    least = np.sort(rest, axis=0)[20]  # 10 % of 200 rows lie above the 90th percentile
    assert np.array_equal(got.y_NC.numpy() > 0, (rest < least) & best)
    assert got.y_NC.sum(0).tolist() == [20] * 4 or objective.kind == "single"


def test_a_head_without_class_embeddings_has_no_anchors():
    with pytest.raises(TypeError, match="anchors are class embeddings, which a LinearHead does not have"):
        anchor_scores("cosine", LinearHead(4, 3), torch.ones(2, 4), SINGLE)
    assert anchor_scores("confidence", LinearHead(4, 3), torch.ones(2, 4), SINGLE).shape == (2, 3)


def test_percentiles_near_the_ends_are_taken():
    for q1, q2 in ((99.9, 0.1), (0.5, 0.1), (99.9, 99.5), (50.0, 50.0)):
        assert (Thresholds(q1, q2, alpha=0.0).q1, Thresholds(q1, q2).q2) == (q1, q2)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"q1": 100.0}, "method.q1 = 100.0, method.q2 = 50.0: percentiles lie strictly between 0 and 100"),
        ({"q2": 0.0}, "method.q1 = 99.0, method.q2 = 0.0: percentiles lie strictly between 0 and 100"),
        ({"q1": float("nan")}, "method.q1 = nan, method.q2 = 50.0: percentiles lie strictly between 0 and 100"),
        ({"q2": 99.5}, "method.q2 = 99.5 exceeds method.q1 = 99.0: a sample could be both; lower q2"),
        ({"alpha": -1.0}, "method.alpha = -1.0: must be at least 0"),
    ],
)
def test_thresholds_out_of_range_are_refused(option, text):
    with pytest.raises(ValueError, match="method") as caught:
        Thresholds(**({"q1": 99.0, "q2": 50.0} | option))
    assert str(caught.value) == text
