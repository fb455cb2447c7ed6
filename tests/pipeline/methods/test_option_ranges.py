"""Options of methods, optimizer and aggregation: the ends of every range are taken, and what lies beyond is refused."""

from __future__ import annotations

import math

import pytest

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.aggregation import Aggregator
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.methods import METHODS
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment

ABOVE = 1e-9
"""The least number that a range above 0 is tried with."""
ONE_CLASS = {
    "margin": ((ABOVE, 1.0), (0.0, 1.1)), "class_embedding_lr": ((0.0, 5.0), (-0.1,)), "server_lr": ((ABOVE,), (0.0,)),
    "server_eps": ((ABOVE,), (0.0,)), "server_lr_decay": ((ABOVE, 1.0), (0.0, 1.1)),
    "class_embedding_lr_decay": ((ABOVE, 1.0), (0.0, 1.1)),
}  # fmt: skip
PUSH = {
    "lambda_": ((0.0,), (-0.1,)), "eta_s": ((ABOVE,), (0.0,)), "neighbours": ((1,), (0,)),
    "nu": ((ABOVE, 2.0), (0.0, 2.1)), "spread_steps": ((1,), (0,)), "spread_cap": ((0.0,), (-0.1,)),
    "class_embedding_lr": ((ABOVE, 5.0), (0.0, -0.1)),  # lambda_ is above 0
}  # fmt: skip
RANGES = {
    "fedalc": ONE_CLASS | PUSH,
    "fedaws": ONE_CLASS | PUSH,
    "fedalc-fixed": {
        "alpha": ((0.0,), (-0.1,)), "beta": ((0.0,), (-0.1,)), "nu": ((ABOVE, 2.0), (0.0, 2.1)),
        "steps": ((0, 1), (-1,)), "lr": ((ABOVE,), (0.0,)), "tolerance": ((0.0,), (-ABOVE,)),
    },
    "fedalign": {
        "data_lr": ((ABOVE,), (0.0,)), "label_lr": ((ABOVE,), (0.0,)), "alpha": ((0.0,), (-0.1,)),
        "q1": ((50.0, 99.99), (49.9, 100.0)), "q2": ((0.01, 99.0), (0.0, 99.1)),
    },
    "fedbm": {
        "tau": ((ABOVE,), (0.0,)), "generator_lr": ((ABOVE,), (0.0,)), "lambda_div": ((0.0,), (-0.1,)),
        "lambda_dis": ((0.0,), (-0.1,)), "synthetic_per_batch": ((1,), (0,)), "generator_every": ((1,), (0,)),
        "generator_steps": ((1,), (0,)), "generator_batch": ((2,), (1,)),
    },
    "feddyn": {"alpha": ((ABOVE,), (0.0,))},
    "fedetf": {"gamma": ((0.0,), (-0.1,)), "first_scale": ((ABOVE,), (0.0,))},
    "anchor": {
        "expected": ((0.0,), (-0.1,)), "certain": ((0.0,), (-0.1,)), "gamma": ((0.0,), (-0.1,)),
        "synthetic_per_batch": ((0,), (-1,)), "generator_every": ((1,), (0,)),
    },
    "fedgela": {"scale": ((ABOVE,), (0.0,)), "power": ((0.0,), (-0.1,))},
    "fedlgt": {"layers": ((1,), (0,)), "shown": ((0.0, 1.0), (-0.1, 1.1)), "margin": ((0.0, 0.5), (-0.1, 0.6))},
    "fedmlh": {"hash_tables": ((1,), (0,)), "buckets": ((1,), (0,)), "class_embedding_lr": ((0.0,), (0.1,))},
    "fedmlp": {
        "warm_up": ((1,), (0,)), "positive_share": ((0.0, 1.0), (-0.1, 1.1)),
        "negative_share": ((0.0, 1.0), (-0.1, 1.1)),
        "teacher": ((0.0,), (-0.1,)), "tau": ((0.0,), (-0.1,)),
    },
    "fednh": {"rho": ((0.0, 1.0), (-0.1, 1.1)), "first_scale": ((ABOVE,), (0.0,))},
    "fedproto": {"lambda_": ((0.0,), (-0.1, math.nan))},
    "fedprox": {"mu": ((0.0,), (-0.1, math.nan))},
    "fedpu": {"lambda_": ((0.0,), (-0.1,)), "prior": ((0.0, 1.0), (-0.1, 1.1))},
    "fedrep": {"head_epochs": ((0,), (-1,))},
    "fedrod": {"gamma": ((0.0,), (-0.1,))},
    "fedrs": {"alpha": ((0.0, 1.0), (-0.1, 1.1))},
    "fedtsp": {
        "lambda_": ((0.0,), (-0.1, math.nan)), "prompt_length": ((0,), (-1,)), "prompt_steps": ((1,), (0,)),
        "prompt_lr": ((ABOVE,), (0.0,)),
    },
    "moon": {"mu": ((0.0,), (-0.1,)), "tau": ((ABOVE,), (0.0,))},
    "scaffold": {"server_lr": ((ABOVE,), (0.0,))},
    OptimizerOptions: {
        "lr": ((ABOVE,), (0.0,)), "lr_decay": ((ABOVE, 1.0), (0.0, 1.1)), "batch_size": ((0, 1), (-1,)),
        "microbatch_tokens": ((0, 1), (-1,)), "crop": ((0, 1), (-1,)), "weight_decay": ((0.0,), (-0.1,)),
    },
    Aggregator: {
        "trim_fraction": ((0.0, 0.499), (-0.1, 0.5)), "num_malicious": ((1,), (0,)), "num_selected": ((1,), (0,)),
        "clip_norm": ((0.0, ABOVE), (-0.1, math.inf)),
    },
    FederationOptions: {"dp_noise": ((0.0,), (-0.1, 0.0099, math.inf)), "dp_delta": ((ABOVE, 0.999), (0.0, 1.0))},
    ModelOptions: {"width": ((1,), (0,)), "dropout": ((0.0, 0.99), (-0.1, 1.0)), "feedforward": ((1,), (0,))},
}  # fmt: skip


@pytest.mark.parametrize(("of", "option"), [(of, option) for of, options in RANGES.items() for option in options])
def test_the_ends_of_a_range_are_taken_and_no_more(of, option):
    make = METHODS[of] if isinstance(of, str) else of
    taken, refused = RANGES[of][option]
    for value in taken:
        assert getattr(make(**{option: value}), option) == value
    for value in refused:
        with pytest.raises(ValueError, match=option.removeprefix("num_")):
            make(**{option: value})


@pytest.mark.parametrize(
    ("of", "option"),
    [
        (of, option)
        for of, options in RANGES.items()
        for option, (_, refused) in options.items()
        if isinstance(refused[0], float)
    ],
)
def test_no_range_has_what_is_no_number(of, option):
    """Nor is infinity an option of any run, though from Python it is at the end of some ranges."""
    with pytest.raises(ValueError, match=option.removeprefix("num_")):
        (METHODS[of] if isinstance(of, str) else of)(**{option: math.nan})
    sections = {OptimizerOptions: "optimizer", Aggregator: "federation.aggregator", FederationOptions: "federation",
                ModelOptions: "model"}  # fmt: skip
    if of is not Aggregator:  # whose options have other names in a run
        name, section = (of, "method") if isinstance(of, str) else ("fedavg", sections[of])
        for value in (math.inf, -math.inf, math.nan):
            with pytest.raises(InputError, match=rf"{section}.{option} = -?(inf|nan): must be a finite number"):
                with_options(small_experiment(name), {f"{section}.{option}": value})


def test_momentum_is_below_one_and_for_sgd():
    for momentum in (0.0, 0.999):
        assert OptimizerOptions(name="sgd", momentum=momentum).momentum == momentum
    for options in ({"name": "sgd", "momentum": 1.0}, {"name": "sgd", "momentum": -0.1}, {"momentum": 0.5}):
        with pytest.raises(ValueError, match="momentum"):
            OptimizerOptions(**options)
