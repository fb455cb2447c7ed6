"""Seeds by name: what they are for decides them, and no two purposes share one."""

from __future__ import annotations

import itertools

import torch

from anchorfl.pipeline.algorithm.seeds import noise_rng, numpy_rng, seed_for, torch_rng


def test_names_that_read_alike_have_seeds_of_their_own():
    parts = (1, 12, 11, 2, "1", "12", "client", "client1", "")
    names = [pair for size in (1, 2, 3) for pair in itertools.product(parts, repeat=size)]
    seeds = {seed_for(*one) for one in names}
    assert len(seeds) == len(names)
    assert 0 <= min(seeds) <= max(seeds) < 2**63


def test_generators_follow_from_the_names():
    for draw in (
        lambda *names: torch.rand(3, generator=torch_rng(*names)).tolist(),
        lambda *names: [*numpy_rng(*names).random(3)],
        lambda *names: [*noise_rng(*names).random(3)],
    ):
        assert draw(7, "client", 3) == draw(7, "client", 3)
        assert draw(7, "client", 3) != draw(8, "client", 3) != draw(7, "client", 4)
    assert seed_for(4321, "model") == 9142705389949142777, "a change here changes every published result"


def test_noise_that_is_a_secret_has_more_seeds_than_can_be_tried():
    """torch's generator on a CPU keeps 32 bits of a seed: few enough to try them all."""
    low, high = (torch.Generator().manual_seed(5 + above) for above in (0, 1 << 40))
    assert torch.equal(torch.rand(3, generator=low), torch.rand(3, generator=high))
    assert noise_rng(7, "noise").bit_generator.seed_seq.entropy.bit_length() > 240
