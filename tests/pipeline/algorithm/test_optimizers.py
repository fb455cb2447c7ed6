"""The client's optimizer: torch's own steps, and a state that survives the way through a client's memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from anchorfl.pipeline.algorithm.optimizers import make, restore, state_of, without_compiler
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.tasks.errors import InputError

KINDS = [
    OptimizerOptions(name="adam", lr=0.01),
    OptimizerOptions(name="adam", lr=0.01, weight_decay=0.1),
    OptimizerOptions(name="sgd", lr=0.05, momentum=0.9),
    OptimizerOptions(name="sgd", lr=0.05, momentum=0.9, weight_decay=0.1),
    OptimizerOptions(name="sgd", lr=0.05),
]
ALL = pytest.mark.parametrize("options", KINDS, ids=lambda o: f"{o.name}-m{o.momentum}-d{o.weight_decay}")


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def start():
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(normal(3, 4, seed=1))
        net.bias.copy_(normal(3, seed=2))
    return net


def train(net, optimizer, steps):
    for step in steps:
        x, y = normal(8, 4, seed=10 + step), normal(8, 3, seed=50 + step)
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("options", KINDS[:3:2])
def test_moments_of_other_parameters_are_refused(options):
    """torch wrote past the end of its memory."""
    net = start()
    optimizer = make(options, net.parameters())
    train(net, optimizer, range(2))
    memory = state_of(optimizer, "all")
    restore(make(options, start().parameters()), "other", memory)  # of another name: nothing to do
    for parameters in (nn.Linear(4, 9).parameters(), [nn.Parameter(torch.zeros(3, 4))]):
        with pytest.raises(InputError, match=r"is no moment of the optimizer 'all': one over other parameters needs"):
            restore(make(options, parameters), "all", memory)
    for key in ("all.w", "all.-1.exp_avg", "all"):
        with pytest.raises(InputError, match=f"'{key}', of .* is no moment"):
            restore(make(options, start().parameters()), "all", memory | {key: torch.zeros(3, 4)})
    steps = {"all.0.step": torch.zeros(2)}
    with pytest.raises(InputError, match=r"'all\.0\.step', of \(2,\), is no moment"):
        restore(make(options, start().parameters()), "all", memory | steps)


@pytest.mark.parametrize("kind", ["NAdam", "ASGD", "Adafactor", "AdamW", "Adagrad", "RMSprop"])
def test_other_optimizers_have_other_state(kind):
    """Scalars, and rows and columns of a parameter."""
    first, second = start(), start()
    before, after = (getattr(torch.optim, kind)(net.parameters(), lr=0.01) for net in (first, second))
    train(first, before, range(2))
    second.load_state_dict(first.state_dict())
    restore(after, "all", state_of(before, "all"))
    for net, optimizer in ((first, before), (second, after)):
        train(net, optimizer, range(2, 4))
    assert torch.equal(first.weight, second.weight)


@ALL
def test_two_times_three_steps_are_six(options):
    """Restored in a fresh optimizer over a fresh network: the same bits as without a break."""
    whole = start()
    train(whole, make(options, whole.parameters()), range(6))

    first = start()
    before = make(options, first.parameters())
    train(first, before, range(3))
    memory, weights = state_of(before, "all"), {k: v.clone() for k, v in first.state_dict().items()}

    second = start()
    second.load_state_dict(weights)
    after = make(options, second.parameters())
    restore(after, "all", memory)
    train(second, after, range(3, 6))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_without_its_moments_adam_goes_elsewhere():
    """``reset``: a fresh optimizer in every round; an empty memory restores nothing."""
    kept, fresh = start(), start()
    for net, keeps in ((kept, True), (fresh, False)):
        optimizer = make(KINDS[0], net.parameters())
        train(net, optimizer, range(3))
        again = make(KINDS[0], net.parameters())
        restore(again, "all", state_of(optimizer, "all") if keeps else {})
        assert bool(again.state_dict()["state"]) is keeps
        train(net, again, range(3, 4))
    assert not torch.equal(kept.weight, fresh.weight)


@ALL
def test_state_has_storage_of_its_own_both_ways(options):
    net = start()
    optimizer = make(options, net.parameters())
    train(net, optimizer, range(2))
    memory = state_of(optimizer, "all")
    frozen = {k: v.clone() for k, v in memory.items()}
    train(net, optimizer, range(2))  # the optimizer that gave it goes on
    again = make(options, net.parameters())
    restore(again, "all", memory)
    train(net, again, range(2))  # and the one that got it
    assert all(torch.equal(memory[k], frozen[k]) for k in frozen)
    assert not any(v.requires_grad for v in memory.values())


def test_optimisers_share_a_memory_by_prefix():
    net = start()
    pair = {"theta": make(KINDS[0], [net.weight]), "omega": make(KINDS[0], [net.bias])}
    for optimizer in pair.values():
        train(net, optimizer, range(2))
    memory = state_of(pair["theta"], "theta") | state_of(pair["omega"], "omega")
    names = {"step", "exp_avg", "exp_avg_sq"}
    assert set(memory) == {f"{owner}.0.{name}" for owner in pair for name in names}
    again = make(KINDS[0], [net.bias])
    restore(again, "omega", memory)
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], memory["omega.0.exp_avg"])
    untouched = make(KINDS[0], [net.bias])
    restore(untouched, "ome", memory)  # part of a name is not the name
    assert untouched.state_dict()["state"] == {}


def test_the_rate_of_the_method_goes_before_that_of_the_options():
    w = [nn.Parameter(torch.ones(1))]
    assert make(KINDS[0], w).param_groups[0]["lr"] == 0.01
    assert make(KINDS[0], w, lr=0.5).param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"lr": 0.0}, "optimizer.lr = 0.0: must be above 0"),
        ({"lr": float("nan")}, "optimizer.lr = nan: must be above 0"),
        ({"batch_size": -1}, "optimizer.batch_size = -1: must be at least 1, or 0 for all rows"),
        ({"microbatch_tokens": -1}, "optimizer.microbatch_tokens = -1: must be 0 (off) or more"),
        ({"name": "sgd", "momentum": 1.0}, "optimizer: momentum must be in [0, 1) and weight_decay at least 0"),
        ({"momentum": 0.9}, "optimizer.momentum is SGD's: set it to 0, or optimizer.name to 'sgd'"),
        ({"name": "sgd", "momentum": -0.1}, "optimizer: momentum must be in [0, 1) and weight_decay at least 0"),
        (
            {"onednn": True, "precision": "bfloat16"},
            "optimizer.onednn is for float32: set it to False, or optimizer.precision to 'float32'",
        ),
        ({"weight_decay": -1.0}, "optimizer: momentum must be in [0, 1) and weight_decay at least 0"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, text):
    with pytest.raises(ValueError, match="optimizer") as caught:
        OptimizerOptions(**option)
    assert str(caught.value) == text


@ALL
def test_steps_are_torchs_own_bit_for_bit(options):
    ours, theirs = start(), start()
    mine = make(options, ours.parameters())
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[options.name]
    more = {"momentum": options.momentum} if options.name == "sgd" else {}
    other = kind(theirs.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True, **more)
    assert isinstance(mine, kind)
    train(ours, mine, range(5))
    train(theirs, other, range(5))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    moments = state_of(mine, "all")
    assert moments.keys() == state_of(other, "all").keys()
    assert all(torch.equal(value, state_of(other, "all")[name]) for name, value in moments.items())
    assert all(p.requires_grad and p.grad_fn is None for p in ours.parameters())


def test_a_step_is_torchs_after_another_optimiser_was_made():
    """torch wraps the step of a kind once more when the first one of it is made."""
    torch.optim.RMSprop(start().parameters())
    net, other = start(), start()
    train(net, without_compiler(torch.optim.RMSprop)(net.parameters()), range(3))
    train(other, torch.optim.RMSprop(other.parameters()), range(3))
    assert torch.equal(net.weight, other.weight)


RUN = """
import sys
from pathlib import Path
from tests.fuzz.runs import small
from tests.runs import quiet
from anchorfl.pipeline.run.lifecycle import run
for method in ("fedalign", "fedrod"):
    run(small(method), Path(sys.argv[1]) / method, quiet)
print(sorted({name.split(".")[0] for name in sys.modules} & {"sympy"}), "torch._dynamo" in sys.modules)
"""


def test_a_run_starts_without_what_only_draws():
    """matplotlib takes a second to import."""
    modules = "anchorfl.tuning.cli, anchorfl.pipeline.run.lifecycle, anchorfl.pipeline.execution.ray_actors"
    script = f"import sys, {modules}; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_training_does_without_torchs_compiler(tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"
