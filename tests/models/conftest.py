"""What the tests of label names share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest


@pytest.fixture
def graph():
    """Makes the symmetric weights [K, K] of a graph out of its edges (node, node, weight)."""

    def make(*edges: tuple[int, int, float], nodes: int) -> npt.NDArray[np.float64]:
        weight_KK = np.zeros((nodes, nodes))
        for i, j, weight in edges:
            weight_KK[i, j] = weight_KK[j, i] = weight
        return weight_KK

    return make
