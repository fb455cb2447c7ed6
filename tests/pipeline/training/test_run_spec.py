"""What a run spec makes of its options: the network that every process builds."""

from __future__ import annotations

import torch

from anchorfl.models.onednn import OneDnnLinear
from anchorfl.pipeline.run.prepare import make_run_spec
from tests.runs import quiet


def model_of(e):
    return make_run_spec(e, quiet).model()


def test_the_head_has_the_parts_that_the_method_asks_for(experiment):
    """FedMLH's hash tables: each has rows of its own."""
    one, three = (model_of(experiment("fedmlh", "toy-multi", options={"hash_tables": n, "buckets": 4})) for n in (1, 3))
    assert 3 * one.state_dict()["head.rows"].numel() == three.state_dict()["head.rows"].numel()


def test_arithmetic_is_that_of_the_options_and_weights_stay(experiment):
    still = {"dropout": 0.0}
    plain = model_of(experiment(model=still))
    low = model_of(experiment(model=still, optimizer={"precision": "bfloat16"}))
    fast = model_of(experiment(optimizer={"onednn": True}))
    x = torch.randint(1, 5, (9, 4), dtype=torch.int32)
    assert not torch.equal(low.train().encoder(x), plain.train().encoder(x))
    assert torch.allclose(low.encoder(x), plain.encoder(x), atol=0.1)
    assert not any(type(module) is OneDnnLinear for module in plain.modules())
    assert any(type(module) is OneDnnLinear for module in fast.modules())
    for other in (low, fast):
        for name, value in plain.state_dict().items():
            assert torch.equal(other.state_dict()[name], value)
