"""A tiny BERT and a maker of graphs, for the tests of class names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.tiny_bert import saved_bert


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return the folder of a tiny BERT, to be read only."""
    return saved_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def graph():
    """Return a maker of the symmetric weights [K, K] of a graph out of its edges (node, node, weight)."""

    def make(*edges: tuple[int, int, float], nodes: int) -> npt.NDArray[np.float64]:
        weight_KK = np.zeros((nodes, nodes))
        for i, j, weight in edges:
            weight_KK[i, j] = weight_KK[j, i] = weight
        return weight_KK

    return make
