"""Random walks on a table of co-occurrences, against an independent count of their steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from anchorfl.models.label_names import skip_gram, walks

Graph = Callable[..., npt.NDArray[np.float64]]


def test_transitions_follow_the_edge_weights() -> None:
    """Oracle: count(i -> j) / count(i) ~ weight_ij / sum_j weight_ij, standard error sqrt(p (1 - p) / count(i))."""
    rng = np.random.default_rng(7)
    weight_KK = np.triu(rng.exponential(size=(7, 7)) * (rng.random((7, 7)) < 0.6), 1)
    weight_KK += weight_KK.T
    weight_KK[2, :] = weight_KK[:, 2] = 0.0
    path_RL = walks(weight_KK, walks_per_node=1000, length=40, rng=np.random.default_rng(1))
    count_KK = np.zeros((7, 7))
    for walk in path_RL.tolist():
        for here, there in pairwise(walk):
            count_KK[here][there] += 1
    for node in set(range(7)) - {2}:
        p_K = weight_KK[node] / weight_KK[node].sum()
        seen = count_KK[node].sum()
        assert seen > 4000
        error_K = np.abs(count_KK[node] / seen - p_K)
        assert (error_K <= 4 * np.sqrt(p_K * (1 - p_K) / seen) + 1e-12).all()  # no edge: never walked
    assert (path_RL != 2).all()


def test_every_connected_node_starts_its_share_of_walks(graph: Graph) -> None:
    path_RL = walks(graph((0, 1, 1.0), (1, 3, 2.0), nodes=4), walks_per_node=5, length=3, rng=np.random.default_rng(0))
    assert path_RL.shape == (15, 3)
    assert path_RL.dtype == np.int32
    passes = path_RL[:, 0].reshape(5, 3).tolist()
    assert [sorted(one_pass) for one_pass in passes] == [[0, 1, 3]] * 5
    assert passes != [passes[0]] * 5  # shuffled


def test_extreme_weights_stay_on_edges(graph: Graph) -> None:
    weight_KK = graph((0, 1, 1e308), (0, 2, 1e308), (1, 2, 5e-324), (3, 4, 5e-324), nodes=6)
    path_RL = walks(weight_KK, walks_per_node=50, length=50, rng=np.random.default_rng(0))
    assert (weight_KK[path_RL[:, :-1], path_RL[:, 1:]] > 0).all()
    assert set(path_RL[:, 1][path_RL[:, 0] == 0].tolist()) == {1, 2}


class Topmost(np.random.Generator):
    """Draws nothing but the largest number below 1."""

    def random(self, size: int) -> npt.NDArray[np.float64]:  # type: ignore[override]  # walks needs this form only
        """Return ``size`` times the largest double below 1."""
        return np.full(size, np.nextafter(1.0, 0.0))


def test_a_draw_that_rounds_up_stays_in_its_row(graph: Graph) -> None:
    weight_KK = graph((0, 9, 1.0), (8, 9, 1.0), (1, 2, 1.0), nodes=10)
    path_RL = walks(weight_KK, walks_per_node=1, length=10, rng=Topmost(np.random.PCG64(0)))
    assert (weight_KK[path_RL[:, :-1], path_RL[:, 1:]] > 0).all()


@pytest.mark.parametrize("nodes", [1, 3])
def test_no_edge_no_walk(nodes: int) -> None:
    path_RL = walks(np.zeros((nodes, nodes)), length=4, rng=np.random.default_rng(0))
    assert path_RL.shape == (0, 4)
    np.testing.assert_array_equal(skip_gram(path_RL, nodes, width=2, seed=0), np.zeros((nodes, 2), np.float32))
