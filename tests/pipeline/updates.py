"""Updates of several shapes and types, and what a faulty client makes of one."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**32)
SHAPES = {"w": (3, 4), "d": (5,), "scalar": (), "none": (0, 2)}
BAD = (1e30, -1e30, 0.0, 3.4e38, -3.4e38, 1e-30)
"""What an arbitrary client sends: also values whose differences overflow float32."""


def answers(seed, count, scale=1.0):
    """Updates of float32, with one tensor of float64 and a counter."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        one = {name: torch.from_numpy(np.asarray(scale * rng.normal(size=s), np.float32)) for name, s in SHAPES.items()}
        out.append(one | {"d": torch.from_numpy(rng.normal(size=5)), "n": torch.tensor(int(rng.integers(100)))})
    return out


def poisoned(values, seed):
    """Replace the first client's floats by the worst that float32 has, and shuffle the clients."""
    rng = np.random.default_rng(seed)
    bad = {
        name: torch.from_numpy(rng.choice(BAD, size=v.shape)).to(v.dtype) if v.is_floating_point() else v
        for name, v in values[0].items()
    }
    mixed = [bad, *values[1:]]
    return [mixed[i] for i in rng.permutation(len(mixed))]
