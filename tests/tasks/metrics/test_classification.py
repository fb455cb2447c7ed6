"""The five scores of a single-label classifier against scikit-learn, and by hand where that has no answer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score, roc_auc_score

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.classification import auc, classification
from anchorfl.tasks.metrics.scores import FAMILIES, family_of

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NAMES = [measure.name for measure in FAMILIES["classification"].measures]


def made(seed, rows, classes, levels=0):
    """True classes, scores [N, C] and decisions by them; levels: so many different scores, for ties."""
    rng = np.random.default_rng(seed)
    true = rng.integers(classes, size=rows)
    score_NC = rng.integers(levels, size=(rows, classes)) / levels if levels else rng.random((rows, classes))
    return true, score_NC, score_NC.argmax(1)


def scored(true, score_NC, predicted, known_NC=None):
    eye = np.eye(score_NC.shape[1])
    known_NC = np.ones_like(score_NC) if known_NC is None else known_NC
    return classification(eye[predicted], score_NC, eye[true], known_NC)


@QUICK
@given(st.integers(0, 999), st.integers(2, 60), st.integers(2, 6), st.sampled_from([0, 3]))
def test_every_figure_equals_sklearn(seed, rows, classes, levels):
    true, score_NC, predicted = made(seed, rows, classes, levels)
    got = scored(true, score_NC, predicted)
    present = np.unique(true)
    macro = {"labels": present, "average": "macro", "zero_division": 0}
    sides = [c for c in present if (true != c).any()]
    each = [roc_auc_score(true == c, score_NC[:, c]) for c in sides]
    want = {
        "f1_macro": f1_score(true, predicted, **macro),
        "accuracy": accuracy_score(true, predicted),
        "precision_macro": precision_score(true, predicted, **macro),
        "recall_macro": recall_score(true, predicted, **macro),
        "auc": np.mean(each) if each else 0.0,
    }
    micro = recall_score(true, predicted, average="micro")
    want["sum"] = (want["accuracy"] + micro + want["precision_macro"] + want["f1_macro"] + want["auc"]) / 5
    assert list(got.values) == NAMES
    assert got.values == pytest.approx(want)
    assert got.per_class["auc"][sides] == pytest.approx(each)
    assert got.per_class["precision"] == pytest.approx(
        precision_score(true, predicted, labels=np.arange(classes), average=None, zero_division=0)
    )


def test_the_area_of_all_classes_is_sklearns_one_against_the_rest():
    """All classes have rows, and scores sum to 1: FedBM's reference takes exactly this call."""
    true, score_NC, predicted = made(0, 200, 5)
    score_NC /= score_NC.sum(1, keepdims=True)
    want = roc_auc_score(np.eye(5)[true], score_NC, average="macro", multi_class="ovr")
    assert scored(true, score_NC, predicted).values["auc"] == pytest.approx(want)


@QUICK
@given(st.integers(0, 999), st.integers(1, 30))
def test_the_area_is_the_share_of_pairs(seed, rows):
    """Counted pair by pair, ties one half; exactly, in whole numbers."""
    true, score_NC, _ = made(seed, rows, 3, levels=4)
    auc_C, sides_C = auc(score_NC, np.eye(3, dtype=bool)[true])
    for c in range(3):
        positive, negative = score_NC[true == c, c], score_NC[true != c, c]
        pairs = [(p > n) + (p == n) / 2 for p in positive for n in negative]
        assert sides_C[c] == bool(pairs)
        assert auc_C[c] == (sum(pairs) / len(pairs) if pairs else 0)


def test_equal_scores_and_a_class_without_rows():
    """All scores equal: every area is one half. Class 2 has no row: it is in no mean, and a note says so."""
    got = scored(np.array([0, 1, 1, 0]), np.zeros((4, 3)), np.array([0, 0, 1, 2]))
    assert got.per_class["auc"].tolist() == [0.5, 0.5, 0]
    assert got.values["auc"] == 0.5
    assert got.values["precision_macro"] == pytest.approx((1 / 2 + 1) / 2)
    assert got.values["recall_macro"] == pytest.approx(1 / 2)
    assert got.values["f1_macro"] == pytest.approx((2 / 4 + 2 / 3) / 2)
    assert got.values["sum"] == pytest.approx((1 / 2 + 1 / 2 + 3 / 4 + 7 / 12 + 1 / 2) / 5)
    assert got.notes == ("1 of 3 classes have no row, or all of them; AUC leaves them out",)


def test_one_class_alone_and_no_rows_at_all_stay_finite():
    alone = scored(np.zeros(3, dtype=int), np.eye(3), np.zeros(3, dtype=int))
    assert alone.values == {**dict.fromkeys(NAMES, 1.0), "auc": 0.0, "sum": 0.8}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        none = classification(np.ones((0, 2)), np.ones((0, 2)), np.ones((0, 2)), np.ones((0, 2)))
    assert none.values == dict.fromkeys(NAMES, 0.0)


def test_rows_without_a_known_class_count_nowhere():
    true, score_NC, predicted = made(3, 40, 4)
    hidden = np.arange(40) % 3 == 0
    known_NC = np.repeat(~hidden[:, None], 4, axis=1)
    want = scored(true[~hidden], score_NC[~hidden], predicted[~hidden])
    assert scored(true, score_NC, predicted, known_NC).values == want.values


def test_scores_without_an_order_are_refused():
    with pytest.raises(InputError, match=r"row 1 has a score that is not finite: the model diverged; lower optimizer"):
        scored(np.array([0, 1]), np.array([[1, 0], [np.nan, 0]]), np.array([0, 1]))


def test_names_and_what_chooses():
    family = FAMILIES["classification"]
    assert family.primary.name == "f1_macro"
    assert [m.name for m in family.also] == ["sum"]
    assert family_of("auc") is family
    assert family_of("accuracy").primary == family.primary
    line = scored(*made(1, 50, 3)[:2], made(1, 50, 3)[2]).line
    assert [word for word in ("F1", "acc", "AUC") if word in line] == ["F1", "acc", "AUC"]
