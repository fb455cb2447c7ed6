"""Scores against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from anchorfl.tasks.metrics.decisions import score

QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@QUICK
@given(st.integers(0, 999), st.integers(1, 40), st.integers(2, 6))
def test_single_label_equals_sklearn(seed, rows, classes):
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(classes, size=(2, rows))
    eye = np.eye(classes)
    got = score("single", eye[predicted], eye[true], np.ones((rows, classes)))
    present = np.unique(true)
    assert got.macro_f1 == pytest.approx(f1_score(true, predicted, labels=present, average="macro", zero_division=0))
    assert got.accuracy == pytest.approx(accuracy_score(true, predicted))
    each = f1_score(true, predicted, labels=np.arange(classes), average=None, zero_division=0)
    assert np.allclose(got.f1_C, each)
    assert got.support_C.tolist() == np.bincount(true, minlength=classes).tolist()


@QUICK
@given(st.integers(0, 999), st.integers(1, 40), st.integers(1, 6))
def test_multi_label_equals_sklearn_over_known_rows(seed, rows, classes):
    rng = np.random.default_rng(seed)
    y, hit, known = rng.random((3, rows, classes)) < [[[0.3]], [[0.4]], [[0.7]]]
    got = score("multi", hit, y, known)
    f1, accuracy = [], []
    for c in range(classes):
        seen = known[:, c]
        if not (y[:, c] & seen).any():
            continue
        f1.append(f1_score(y[seen, c], hit[seen, c], zero_division=0))
        accuracy.append(accuracy_score(y[seen, c], hit[seen, c]))
        assert got.f1_C[c] == pytest.approx(f1[-1])
        assert got.accuracy_C[c] == pytest.approx(accuracy[-1])
    assert got.macro_f1 == pytest.approx(np.mean(f1) if f1 else 0)
    assert got.accuracy == pytest.approx(np.mean(accuracy) if accuracy else 0)


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_nothing_known_scores_zero_and_stays_finite(kind):
    got = score(kind, np.ones((3, 2)), np.ones((3, 2)), np.zeros((3, 2)))
    assert (got.macro_f1, got.accuracy, got.support_C.tolist()) == (0, 0, [0, 0])
    assert np.isfinite(got.f1_C).all()
    assert np.isfinite(score(kind, np.ones((0, 2)), np.ones((0, 2)), np.ones((0, 2))).accuracy_C).all()


def test_single_label_leaves_out_rows_without_a_known_class():
    y, known = np.eye(2)[[0, 1, 1]], np.array([[1, 1], [1, 1], [0, 0]])
    assert score("single", np.eye(2)[[0, 1, 0]], y, known).accuracy == 1


def test_what_is_no_decision_is_refused():
    with pytest.raises(ValueError, match="only 0 and 1"):
        score("multi", np.full((1, 2), np.nan), np.ones((1, 2)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="equal matrices"):
        score("multi", np.ones((1, 3)), np.ones((1, 2)), np.ones((1, 2)))
