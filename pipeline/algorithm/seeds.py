"""Seeds by name: every random draw has a generator seeded by a hash of what it is for, never by arithmetic on seeds."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def seed_for(*names: str | int) -> int:
    """Return a 63-bit seed out of names, for example ``seed_for(seed, "client", 3, "round", 12)``.

    Of these torch's generator on a CPU takes the lowest 32: enough to keep streams apart, and not to keep a secret.
    """
    return int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:8], "big") >> 1


def torch_rng(*names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator seeded by names; one on a GPU draws other numbers than one on a CPU."""
    return torch.Generator(device).manual_seed(seed_for(*names))


def noise_rng(*names: str | int) -> np.random.Generator:
    """Return a generator of noise that has to stay a secret: all 256 bits of the hash seed its 128."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(names).encode()).digest(), "big"))


def numpy_rng(*names: str | int) -> np.random.Generator:
    """Return a NumPy generator seeded by names."""
    return np.random.default_rng(seed_for(*names))
