"""Krum against its definition, and what it promises about faulty clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm.aggregation import krum
from tests.pipeline.updates import QUICK, SEEDS, SHAPES, answers, poisoned


def krum_by_hand(values, faulty, keep):
    """Blanchard et al., section 4, word by word, over all floats in one vector."""
    vectors = [np.concatenate([v[n].numpy().astype(np.float64).ravel() for n in SHAPES]) for v in values]
    scores = []
    for i, one in enumerate(vectors):
        distances = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(vectors) if j != i)
        scores.append(sum(distances[: len(vectors) - faulty - 2]))
    return sorted(sorted(range(len(vectors)), key=lambda i: (scores[i], i))[:keep])


@QUICK
@given(SEEDS, st.integers(0, 3), st.integers(0, 4), st.data())
def test_krum_equals_its_definition(seed, faulty, more, data):
    count = 2 * faulty + 3 + more
    keep = data.draw(st.integers(1, count - faulty - 2))
    values = answers(seed, count)
    assert krum(values, faulty, keep) == krum_by_hand(values, faulty, keep)


@QUICK
@given(SEEDS)
def test_krum_chooses_the_same_clients_in_any_order(seed):
    values, order = answers(seed, 7), np.random.default_rng(seed).permutation(7)
    assert sorted(order[i] for i in krum([values[i] for i in order], 2, 3)) == krum(values, 2, 3)


@QUICK
@given(SEEDS)
def test_krum_leaves_out_a_client_that_is_far_from_all(seed):
    values = poisoned(answers(seed, 5), seed)
    assert not any(float(values[i]["w"].abs().max()) > 1e20 for i in krum(values, 1, 2))


@QUICK
@given(SEEDS, st.integers(1, 2), st.floats(0, 10))
def test_what_krum_chooses_is_near_a_good_client(seed, faulty, distance):
    """Its score is at most that of a good one, (N - f - 2) diameter^2, and one of its N - f - 2 nearest is good."""
    count = 2 * faulty + 3
    values, rng = answers(seed, count), np.random.default_rng(seed)
    lie = {n: torch.full(s, distance) for n, s in SHAPES.items() if n != "d"}  # the faulty agree with each other
    mixed = [v | lie if i < faulty else v for i, v in enumerate(values)]
    vectors = np.stack([np.concatenate([v[n].numpy().astype(np.float64).ravel() for n in SHAPES]) for v in mixed])
    good = vectors[faulty:]
    diameter2 = max(((a - b) ** 2).sum() for a in good for b in good)
    order = rng.permutation(count)
    (place,) = krum([mixed[i] for i in order], faulty)
    nearest2 = min(((vectors[order[place]] - g) ** 2).sum() for g in good)
    assert nearest2 <= (count - faulty - 2) * diameter2 * (1 + 1e-12)


def test_of_identical_updates_krum_keeps_the_first():
    values = answers(0, 1) * 7
    assert krum(values, 2, 1) == [0]
    assert krum(values, 2, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("count", "faulty", "keep", "text"),
    [
        (4, 1, 1, "Krum with 1 faulty clients needs 5 updates, not 4"),
        (6, 2, 1, "Krum with 2 faulty clients needs 7 updates, not 6"),
        (0, 0, 1, "Krum with 0 faulty clients needs 3 updates, not 0"),
        (5, -1, 1, "Krum with -1 faulty clients needs 3 updates, not 5"),
        (5, 1, 3, "Krum of 5 updates, 1 of them faulty, keeps 1 to 2, not 3"),
        (5, 1, 0, "Krum of 5 updates, 1 of them faulty, keeps 1 to 2, not 0"),
    ],
)
def test_krum_without_its_condition_is_an_error(count, faulty, keep, text):
    with pytest.raises(ValueError, match="Krum") as caught:
        krum(answers(0, count), faulty, keep)
    assert str(caught.value) == text
