"""Rankings against plain loops, scikit-learn and figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.ranking import Ranking, propensities, top_classes
from anchorfl.tasks.metrics.scores import FAMILIES

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NAMES = [measure.name for measure in FAMILIES["ranking"].measures]


def scored(score_NC, y_NC, *, known_NC=None, propensity_C=None, chunk=None, **options):
    """Return the figures of whole matrices, added ``chunk`` rows at a time."""
    ranking = Ranking(*score_NC.shape, propensity_C, **options)
    labels, step = Labels.of_matrix(y_NC), chunk or max(1, len(score_NC))
    for start in range(0, len(score_NC), step):
        rows = np.arange(start, min(start + step, len(score_NC)))
        ranking.add(score_NC[rows], labels.take(rows), None if known_NC is None else known_NC[rows])
    return ranking.scores()


def plain(score_NC, y_NC, known_NC, propensity_C):
    """Return the same by loops over rows, classes and places, as the definitions read."""
    rows, classes = score_NC.shape
    out = {}
    for k in (1, 3, 5):
        hits, ndcg, gained, best = 0, [], [], []
        for n in range(rows):
            known = [c for c in range(classes) if known_NC[n, c]]
            true = {c for c in known if y_NC[n, c]}
            top = sorted(known, key=lambda c, n=n: (-score_NC[n, c], c))[:k]
            hits += len(true & set(top))
            dcg = sum(1 / math.log2(place + 2) for place, c in enumerate(top) if c in true)
            ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(true))))
            ndcg.append(dcg / ideal if true else 0.0)
            gained += [1 / propensity_C[c] for c in top if c in true]
            best += sorted((1 / propensity_C[c] for c in true), reverse=True)[:k]
        out[f"p_at_{k}"] = hits / k / rows
        out[f"ndcg_at_{k}"] = sum(ndcg) / rows
        out[f"psp_at_{k}"] = sum(gained) / sum(best) if best else 0.0
    each = []
    for c in range(classes):
        seen = [n for n in range(rows) if known_NC[n, c]]
        positive = [n for n in seen if y_NC[n, c]]
        precision = []
        for n in positive:
            among = [m for m in seen if score_NC[m, c] >= score_NC[n, c]]
            precision.append(sum(bool(y_NC[m, c]) for m in among) / len(among))
        if positive:
            each.append(sum(precision) / len(positive))
    out["map"] = sum(each) / len(each) if each else 0.0
    return out


def drawn(seed, rows, classes, ties):
    """Scores, labels, known masks and propensities; with ``ties`` scores have three values."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=(rows, classes))
    if ties:
        score = np.sign(score) * (np.abs(score) > 0.5)
    y, known = rng.random((rows, classes)) < 0.3, rng.random((rows, classes)) < 0.8
    return score, y, known, propensities(rng.integers(0, 30, classes), 40)


CASES = (st.integers(0, 9999), st.integers(1, 25), st.integers(1, 9), st.booleans())


@QUICK
@given(*CASES, st.booleans())
def test_equals_plain_loops(seed, rows, classes, ties, masked):
    score, y, known, propensity = drawn(seed, rows, classes, ties)
    if not masked:
        known[:] = True
    got = scored(score, y, known_NC=known if masked else None, propensity_C=propensity, chunk=7)
    assert list(got.values) == NAMES
    assert got.values == pytest.approx(plain(score, y, known, propensity), abs=1e-12)
    assert got.counts == {"rows_without_label": (~(y & known).any(1)).sum()}


@QUICK
@given(*CASES, st.integers(1, 12))
def test_neither_chunks_nor_the_order_of_rows_change_a_figure(seed, rows, classes, ties, chunk):
    score, y, known, propensity = drawn(seed, rows, classes, ties)
    whole = scored(score, y, known_NC=known, propensity_C=propensity)
    assert scored(score, y, known_NC=known, propensity_C=propensity, chunk=chunk).values == whole.values
    order = np.random.default_rng(seed).permutation(rows)
    again = scored(score[order], y[order], known_NC=known[order], propensity_C=propensity, chunk=chunk)
    assert again.values == whole.values
    assert np.array_equal(again.per_class["average_precision"], whole.per_class["average_precision"])


@QUICK
@given(*CASES)
def test_bounds_and_the_best_ranking(seed, rows, classes, ties):
    score, y, _, propensity = drawn(seed, rows, classes, ties)
    assert all(0 <= value <= 1 for value in scored(score, y, propensity_C=propensity).values.values())
    best = scored(y / propensity, y, propensity_C=propensity).values
    filled = y.any(1).mean()
    for k in (1, 3, 5):
        assert best[f"p_at_{k}"] == pytest.approx(np.minimum(y.sum(1), k).mean() / k)
        assert best[f"ndcg_at_{k}"] == pytest.approx(filled)
        assert best[f"psp_at_{k}"] == (1 if filled else 0)
    assert best["map"] == (1 if filled else 0)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_equals_sklearn_where_the_definitions_agree(kind):
    """nDCG without ties on rows that have a label; average precision with and without ties."""
    rng = np.random.default_rng(3)
    y = rng.random((60, 7)) < 0.3
    y[~y.any(1), 0] = True
    y[:, 6] = False
    score = rng.permutation(420).reshape(60, 7).astype(kind)
    got = scored(score, y).values
    for k in (1, 3, 5):
        assert got[f"ndcg_at_{k}"] == pytest.approx(ndcg_score(y, score, k=k))
    for some in (score, np.round(score / 60)):
        each = [average_precision_score(y[:, c], some[:, c]) for c in range(6)]
        result = scored(some, y, chunk=11)
        assert result.per_class["average_precision"] == pytest.approx([*each, 0.0])
        assert result.values["map"] == pytest.approx(np.mean(each))


def test_figures_worked_out_by_hand():
    """Two rows of four classes and one without a label; p = 1/2, 1/4, 1, 1."""
    y = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=bool)
    score = np.array([[0.9, 0.1, 0.8, 0.0], [0.9, 0.8, 0.1, 0.2], [1.0, 0.0, 0.0, 0.0]])
    got = scored(score, y, propensity_C=np.array([0.5, 0.25, 1, 1]))
    wanted = {"p_at_1": 1 / 3, "p_at_3": 2 / 9, "p_at_5": 3 / 15}  # C = 4 < 5: still over 5
    third, fourth, two = 1 / 2, 1 / math.log2(5), 1 + 1 / math.log2(3)
    wanted |= {"ndcg_at_1": 1 / 3, "ndcg_at_3": (1 + third) / two / 3, "ndcg_at_5": ((1 + third) / two + fourth) / 3}
    wanted |= {"psp_at_1": 2 / 5, "psp_at_3": 6 / 7, "psp_at_5": 7 / 7}
    wanted |= {"map": (1 / 3 + 1 / 2 + 1 / 2) / 3}  # class 0: 0.9 twice is one threshold
    assert got.values == pytest.approx(wanted)
    assert got.notes == ("1 of 3 rows have no known label; each counts 0 in P@k and nDCG@k",)
    assert got.line == "P@1 33.33  P@3 22.22  P@5 20.00"


@pytest.mark.parametrize("places", [1, 2, 3, 9])
def test_of_equal_scores_the_lower_index_comes_first(places):
    """numpy.argpartition and torch.topk promise no such order, and do not have it where rows are long."""
    rng = np.random.default_rng(0)
    score = rng.integers(0, 3, size=(50, 400)).astype(np.float32)
    score[0], score[1, 5:] = 0, -np.inf
    wanted = [sorted(range(400), key=lambda c, row=row: (-row[c], c))[:places] for row in score.tolist()]
    assert top_classes(score, places).tolist() == wanted
    assert top_classes(score[:, :2], places).tolist() == [
        sorted(range(2), key=lambda c, row=row: (-row[c], c))[:places] for row in score[:, :2].tolist()
    ]


def test_propensities_by_hand():
    """Jain et al.: N = 1000, A = 0.55, B = 1.5; rarer classes are less likely to be recorded."""
    got = propensities(np.array([0, 8, 500]), 1000)
    factor = (math.log(1000) - 1) * 2.5**0.55
    assert got == pytest.approx([1 / (1 + factor * math.exp(-0.55 * math.log(n + 1.5))) for n in (0, 8, 500)])
    assert (np.diff(got) > 0).all()
    assert propensities(np.array([1, 0]), 2).tolist() == [1, 1]
    assert propensities(np.zeros(2, dtype=np.int64), 0).tolist() == [1, 1]


def test_what_is_left_out_is_absent_and_said():
    score, y = np.random.default_rng(0).normal(size=(4, 6)), np.eye(4, 6, dtype=bool)
    got = scored(score, y, kept=23)
    assert list(got.values) == [name for name in NAMES if name[:3] not in ("psp", "map")]
    assert got.per_class == {}
    assert got.notes == (
        "PSP@k is left out: it needs the class counts of the training rows",
        "mAP is left out: it would have to hold 4 x 6 scores",
    )
    assert "map" in scored(score, y, kept=24).values


def test_no_rows_and_no_known_label_give_zeros():
    for rows, known in ((0, None), (3, np.zeros((3, 2), dtype=bool))):
        got = scored(np.zeros((rows, 2)), np.ones((rows, 2), dtype=bool), known_NC=known, propensity_C=np.ones(2))
        assert got.values == dict.fromkeys(NAMES, 0.0)


def test_bad_input_is_refused():
    y = Labels.of_matrix(np.eye(2, dtype=bool))
    ranking = Ranking(3, 2)
    ranking.add(np.eye(2), y)
    with pytest.raises(ValueError, match="2 of 3 rows were added"):
        ranking.scores()
    with pytest.raises(ValueError, match=r"scores \(2, 2\) for 2 rows of 2 classes, after 2 of 3 rows"):
        ranking.add(np.eye(2), y)
    with pytest.raises(ValueError, match=r"scores \(1, 3\)"):
        ranking.add(np.ones((1, 3)), y.take(np.array([0])))
    with pytest.raises(ValueError, match=r"scores \(1, 2\) for 1 rows of 3 classes"):
        ranking.add(np.ones((1, 2)), Labels.of_matrix(np.eye(3, dtype=bool)[:1]))
    with pytest.raises(InputError, match="row 2 has a score that is not finite"):
        ranking.add(np.array([[0, np.nan]]), y.take(np.array([0])))
