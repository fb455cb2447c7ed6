"""Steps between updates and aggregation: which results go on, how they are cut, and what is counted."""

from __future__ import annotations

import torch

from anchorfl.pipeline.algorithm.aggregation import Aggregator
from anchorfl.pipeline.algorithm.contract import ClientResult, Update
from anchorfl.pipeline.algorithm.update_filters import ClipNorm, Krum, filters_of
from anchorfl.tasks.contract import Card

SENT = {"w": torch.tensor([1.0, 1.0])}


def results(*steps):
    """Make a result for every step from what was sent."""
    card = Card(0, 1, torch.ones(1), torch.ones(1, dtype=torch.bool))
    return [ClientResult(card, Update({"w": SENT["w"] + torch.tensor(step)})) for step in steps]


def test_options_name_the_steps_and_the_clip_comes_first():
    assert filters_of(Aggregator()) == filters_of(Aggregator(aggregation="median")) == []
    both = Aggregator(aggregation="krum", num_malicious=2, num_selected=3, clip_norm=0.5)
    assert filters_of(both) == [ClipNorm(0.5), Krum(2, 3)]


def test_a_clip_cuts_the_long_steps_and_counts_them():
    kept, metrics = ClipNorm(5.0).apply(results([3.0, 4.0], [6.0, 8.0], [0.0, 0.0]), SENT)
    steps = torch.stack([result.update.weights["w"] for result in kept]) - SENT["w"]
    assert torch.allclose(steps, torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]))
    assert metrics == {"aggregation/clipped": 1.0}


def test_krum_leaves_out_the_far_ones_and_counts_them():
    given = results([0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [50.0, 0.0], [0.1, 0.1])
    kept, metrics = Krum(1, 2).apply(given, SENT)
    assert len(kept) == 2
    assert not any(result is given[3] for result in kept)
    assert metrics == {"aggregation/rejected_by_krum": 3.0}
