"""Search spaces: what each method declares, with range, scale and reason, and what ``--space`` says instead.

Every method of ``anchorfl.pipeline.methods.METHODS`` has an entry in ``SPACES``; a test holds that. The package of a
plug-in offers its method's by an entry point of that name in the group ``anchorfl.search_spaces``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.schema import options_of, typed_option
from anchorfl.pipeline.methods import is_shipped
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.plugins import SEARCH_SPACE, find_plugin, names_code, plugin_names

if TYPE_CHECKING:  # torch, which the help of a sweep does without
    from anchorfl.pipeline.algorithm.contract import Method

Value = str | int | float | bool
FIXED = ("task.", "cluster.", "tracking.", "evaluation.", "class_embeddings.", "method.semantic", "model.weights",
         "federation.rounds", "seed", "output")  # fmt: skip
"""Options, or how they begin, that a sweep cannot vary: data, class-name vectors and first weights are made once,
before it starts."""
PRESET = "preset"
"""Searched name of the presets, where a sweep is over several."""
SYNTAX = (
    "low:high, log:low:high, tail:low:high, int:low:high, int:log:low:high, or values with commas; :n at the end gives"
    " n grid points"
)
MOST_STEPS = 10_000
"""Points of a grid, at most: all are made before any is tried."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    low: float
    """The lowest value."""
    high: float
    """The highest value."""
    scale: Literal["linear", "log", "tail"] = "linear"
    """``log``: even in the logarithm; ``tail``: in that of the distance to 100, for percentiles near the top."""
    integer: bool = False
    """Whole numbers alone."""
    steps: int = 5
    """Points of a grid, at least 2."""
    reason: str = ""
    """Reason for this range, for the report."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"{self.low:g}:{self.high:g}: low must be below high")
        if self.integer and math.ceil(self.low) > math.floor(self.high):
            raise ValueError(f"int:{self.low:g}:{self.high:g}: no whole number lies between")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"log:{self.low:g}:{self.high:g}: low must be above 0")
        if self.scale == "tail" and self.integer:
            raise ValueError(f"tail:{self.low:g}:{self.high:g}: a tail has no whole numbers alone")
        if self.scale == "tail" and self.high >= 100:
            raise ValueError(f"tail:{self.low:g}:{self.high:g}: high must be below 100")
        if not 2 <= self.steps <= MOST_STEPS:
            raise ValueError(f"a grid needs at least 2 points, and has at most {MOST_STEPS}")

    def inner(self, value: float) -> float:
        """Return the searched variable of a value: the value itself, or its distance to 100."""
        return 100 - value if self.scale == "tail" else value

    def value(self, inner: float) -> float | int:
        """Return the option's value, to five significant digits of the searched variable, and inside the range."""
        if self.integer:
            return min(max(round(inner), math.ceil(self.low)), math.floor(self.high))
        short = float(f"{inner:.5g}")
        value = float(f"{100 - short:.10g}") if self.scale == "tail" else short
        return min(max(value, self.low), self.high)

    def grid(self) -> list[Value]:
        """Return evenly spaced points, ends included, ascending."""
        low, high = sorted((self.inner(self.low), self.inner(self.high)))
        if self.scale == "linear":
            inner = [low + (high - low) * i / (self.steps - 1) for i in range(self.steps)]
        else:
            inner = [low * (high / low) ** (i / (self.steps - 1)) for i in range(self.steps)]
        return list(dict.fromkeys(sorted(self.value(x) for x in inner)))

    def holds(self, value: Value) -> bool:
        """Return whether a value lies inside."""
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Choice:
    """A list of values."""

    values: tuple[Value, ...]
    """All different."""
    reason: str = ""
    """Reason for these values, for the report."""

    def grid(self) -> list[Value]:
        """Return the values."""
        return list(self.values)

    def holds(self, value: Value) -> bool:
        """Return whether it is one of the values."""
        return value in self.values


Dimension = Range | Choice
Space = Mapping[str, Dimension]


@dataclass(frozen=True, slots=True)
class MethodSpace:
    """The declaration of a method: its search space and warm-up."""

    space: Space
    """Searched name -> dimension."""
    warm_up: int = 1
    """Rounds before its scores can be compared; a scheduler stops nothing before."""


def grid_points(space: Space, preset_point: Mapping[str, Value]) -> int:
    """Return the number of points of a grid: one more where the preset's point is none of them."""
    one_more = any(preset_point[name] not in dimension.grid() for name, dimension in space.items())
    return math.prod(len(dimension.grid()) for dimension in space.values()) + one_more


LAMBDA = Range(0.1, 1000, "log", steps=9, reason="FedALC's grid, 1 to 500, and a little more to both sides")

SPACES: Mapping[str, MethodSpace] = {
    "fedavg": MethodSpace(
        {
            "optimizer.lr": Range(
                1e-4, 1e-2, "log", reason="the one knob of plain averaging; two decades around Adam's 0.001"
            )
        }
    ),
    "fedalign": MethodSpace(
        {
            "q1": Range(
                90, 99.9, "tail", reason="share of rows that become positives, 10 % to 0.1 %: decades, so tail"
            ),
            "q2": Range(
                10, 99.9, reason="share of rows that become negatives; at q1 no row stays undecided (multi-label)"
            ),
            "alpha": Range(
                0.1, 10, "log", reason="weight of the alignment loss; a decade to each side of the paper's 1"
            ),
        },
        warm_up=4,  # the first pseudo-labels come from untrained anchors
    ),
    "anchor": MethodSpace(
        {
            "expected": Range(0.1, 10, "log", reason="a decade to each side of a label that is known"),
            "certain": Range(0.1, 10, "log", reason="likewise"),
            "gamma": Range(0, 2, reason="as FedROD's: 0 is plain cross-entropy"),
        },
        warm_up=3,  # the first expectations are an untrained model's
    ),
    "fedalc": MethodSpace({"lambda_": LAMBDA}, warm_up=5),
    "fedaws": MethodSpace({"lambda_": LAMBDA}, warm_up=5),
    "fedalc-fixed": MethodSpace(
        {"alpha": Range(1e-3, 10, "log", reason="pull of classes that occur together against the push, which is 1")}
    ),
    "fedavg-positive": MethodSpace(
        {
            "class_embedding_lr": Range(
                1e-3, 1, "log", reason="how fast the class rows follow, and so how fast they collapse"
            )
        },
        warm_up=5,
    ),
    "fedmlh": MethodSpace(
        {
            "buckets": Range(
                5,
                10_000,
                "log",
                integer=True,
                steps=8,
                reason="from a quarter of VOC's classes to the presets of Amazon and Wikipedia",
            ),
            "optimizer.lr": Range(1e-3, 1, "log", reason="from Adam's 0.001 to a decade above FedALC's 0.1"),
        }
    ),
    "fedbm": MethodSpace(
        {
            "tau": Choice((7.5, 12.5, 17.5), reason="those of the reference scripts, by data set and beta"),
            "lambda_dis": Choice((0.0, 0.1, 1.0, 10.0), reason="the paper's own list, and without"),
            "synthetic_per_batch": Choice((8, 16, 32), reason="the paper's own list"),
        },
        warm_up=10,  # the generator's first training is after round 5
    ),
    "feddyn": MethodSpace(
        {"alpha": Range(1e-3, 1, "log", reason="the authors' list, .001 to .1, and a decade above it")},
        warm_up=3,  # the first drifts are zeros
    ),
    "fedetf": MethodSpace(
        {
            "gamma": Range(0, 2, reason="0 is plain cross-entropy; the authors take 1"),
            "first_scale": Range(1, 20, "log", reason="the authors' 1 for residual networks and 10 for small ones"),
        }
    ),
    "fedgela": MethodSpace(
        {
            "scale": Range(1, 100, "log", reason="from nearly flat to nearly hard; the authors' own differ by 2e4"),
            "power": Choice((0.0, 0.5, 1.0), reason="the simplex alone, halfway, and the paper's"),
        }
    ),
    "fedlgt": MethodSpace(
        {
            "layers": Choice((1, 2, 3), reason="up to the authors' 3, which cost three times the time of one"),
            "shown": Choice((0.0, 0.5, 0.75), reason="without, less than the authors, and theirs"),
            "margin": Choice((0.0, 0.02, 0.1), reason="without, the authors' own, and five times that"),
        }
    ),
    "fedmlp": MethodSpace(
        {
            "positive_share": Range(1e-3, 0.1, "log", reason="a decade to each side of the authors' 0.01"),
            "negative_share": Range(1e-3, 0.1, "log", reason="from a fifth of the authors' 0.005 to twenty times that"),
            "teacher": Choice((0.0, 1.0, 10.0), reason="without, at the weight of the authors' code, and above it"),
            "tau": Choice((0.0, 1.0), reason="the classes as they are, and the paper's adjustment"),
        },
        warm_up=10,  # nothing is tagged before
    ),
    "fednh": MethodSpace(
        {"rho": Range(0.5, 1, reason="at 1 prototypes stay where they were drawn; the authors take 0.9")},
        warm_up=5,  # prototypes move by a tenth in a round
    ),
    "flag": MethodSpace(
        {"optimizer.lr": Range(1e-3, 1, "log", reason="from Adam's 0.001 to a decade above FedALC's 0.1")}
    ),
    "fedproto": MethodSpace(
        {
            "lambda_": Range(
                0.01, 10, "log", reason="weight of the distance to the prototypes; the authors take 1 and .1"
            )
        },
        warm_up=3,  # there are no prototypes before round 2
    ),
    "fedtsp": MethodSpace(
        {
            "lambda_": Range(0.1, 20, "log", reason="weight of the text prototypes; the authors take 7 and 8"),
            "prompt_lr": Range(1e-3, 0.1, "log", reason="a decade to both sides of the authors' 0.01"),
        }
    ),
    "fedprox": MethodSpace(
        {"mu": Range(1e-5, 1, "log", reason="the authors' list, .001 to 1, and the two smaller values of FedAlign")}
    ),
    "fedpu": MethodSpace(
        {"lambda_": Range(0.01, 10, "log", reason="weight of what unlabeled rows say; the authors take 1")}, warm_up=2
    ),
    "fedrep": MethodSpace(
        {"head_epochs": Range(1, 10, integer=True, reason="as many as of the body at least; the authors take 10")},
        warm_up=3,  # a client's head is the first one until it has taken part
    ),
    "fedrod": MethodSpace({"gamma": Range(0, 2, reason="0 is plain cross-entropy; the authors take 1")}),
    "fedrs": MethodSpace({"alpha": Range(0, 1, reason="its whole range; the authors' list is .1, .25, .5, .75, .9")}),
    "moon": MethodSpace(
        {
            "mu": Range(1e-3, 10, "log", reason="the authors' list; FedAlign's tables take 0.001"),
            "tau": Range(0.1, 1, "log", reason="around the authors' 0.5"),
        },
        warm_up=3,  # a client has a last model from its second round on
    ),
    "scaffold": MethodSpace(
        {
            "optimizer.lr": Range(1e-4, 1e-2, "log", reason="as for plain averaging"),
            "server_lr": Range(0.1, 1, "log", reason="above 1 it overshoots what the clients found"),
        },
        warm_up=3,  # the first control variates are zeros
    ),
}


def declared_space(method: type[Method[Any, Any]]) -> MethodSpace | None:
    """Return what a method, or the package of a plug-in, declares; None: nothing. InputError where that is no space."""
    if is_shipped(method):
        return SPACES.get(method.name)
    if method.name not in plugin_names(SEARCH_SPACE):
        return None
    return _method_space(method.name)


def _method_space(name: str) -> MethodSpace:
    """Return the space of an entry point, or of ``package.module:NAME``."""
    where = "--space"
    found = find_plugin(SEARCH_SPACE, name, where)
    if not isinstance(found, MethodSpace):
        raise InputError(f"{where} = {name!r}: a {type(found).__name__}, and no MethodSpace (docs/plug-ins.md)")
    return found


def space_of(experiment: Experiment, texts: Sequence[str] = ()) -> Space:
    """Return the space of a sweep: ``texts`` (``name=...``, or the ``package.module:NAME`` of a MethodSpace), or what
    the method declares. InputError on a bad one.
    """
    if not texts:
        declared = declared_space(type(experiment.method))
        if declared is None:
            raise InputError(
                f"method {experiment.method.name!r} declares no search space: say what to vary with --space NAME=RANGE"
                " (docs/sweeps.md)"
            )
        return declared.space if is_shipped(type(experiment.method)) else _checked(experiment, declared.space)
    space: dict[str, Dimension] = {}
    for text in texts:
        if "=" not in text and names_code(text):
            more = _checked(experiment, _method_space(text).space)
            if twice := sorted(space.keys() & more.keys()):
                raise InputError(f"--space names {twice[0]} twice")
            space |= more
            continue
        name, equals, spec = text.partition("=")
        if not equals:
            raise InputError(f"--space {text!r}: write name=...; {SYNTAX}")
        option = resolve(experiment, name)
        if option in {resolve(experiment, other) for other in space}:
            raise InputError(f"--space names {name} twice")
        try:
            space[name] = parse(spec)
            _check(experiment, option, space[name])
        except ValueError as error:
            raise InputError(f"--space {name}: {error}; {SYNTAX}") from error
    return space


def _checked(experiment: Experiment, space: Space) -> Space:
    """Return a declared space. InputError where it names what a sweep cannot vary."""
    for name, dimension in space.items():
        _check(experiment, resolve(experiment, name), dimension)
    return space


def _check(experiment: Experiment, option: str, dimension: Dimension) -> None:
    """Raise InputError where an option's type refuses values of a dimension: a search would leave out all of them."""
    for value in dimension.grid():
        typed_option(experiment, option, value)
    preset = none_as_text(options_of(experiment)[option])
    if isinstance(dimension, Range) and not isinstance(preset, int | float):
        raise InputError(f"{option}: the preset's own value, {preset}, lies on no range: give values with commas")


def none_as_text(value: Value | None) -> Value:
    """Return a value of an option as a point has it: no value is the text that options read as none."""
    return "none" if value is None else value


def resolve(experiment: Experiment, name: str) -> str:
    """Return the full name of an option (``q1`` -> ``method.q1``). InputError where a sweep cannot vary it."""
    known = options_of(experiment)
    full = name if name in known else f"method.{name}"
    if full not in known:
        short = [n.removeprefix("method.") for n in known]
        raise InputError(f"--space {name}: no such option{nearest(name, [*known, *short])}")
    if full in experiment.method.unused:
        raise InputError(
            f"--space {name}: {experiment.method.name} does not read it; name {experiment.method.unused[full]}"
        )
    if full.startswith(FIXED):
        raise InputError(
            f"--space {name}: data and class-name vectors are made once, before a sweep, and it decides itself on"
            " rounds, seeds and scores; start one sweep per value instead"
        )
    return full


def parse(spec: str) -> Dimension:
    """Return the dimension that a text describes. ValueError on a bad one.

    ``95:99.9``, ``log:0.1:1000``, ``tail:90:99.9``, ``int:1:5``, ``int:log:1:100``, each with ``:n`` for a grid, or
    ``0.1,1,10``.
    """
    if ":" not in spec:
        values = [_literal(v) for v in spec.split(",") if v.strip()]
        if len(values) != len(set(values)) or not values:
            raise ValueError(f"{spec!r}: give different values")
        return Choice(tuple(values))
    match = re.fullmatch(r"(?:(log|tail|int:log|int):)?([^:]+):([^:]+)(?::(\d{1,9}))?", spec)
    if match is None:
        raise ValueError(f"{spec!r} is not understood")
    kind, low, high, steps = match.groups()
    kinds = (kind or "").split(":")
    scale: Literal["linear", "log", "tail"] = "log" if "log" in kinds else "tail" if "tail" in kinds else "linear"
    return Range(_number(low), _number(high), scale, integer="int" in kinds, steps=int(steps) if steps else 5)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def _literal(text: str) -> Value:
    word = text.strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def describe(dimension: Dimension) -> str:
    """Return a dimension as ``--space`` takes it."""
    if isinstance(dimension, Choice):
        return ",".join(map(str, dimension.values))
    kind = "int:" * dimension.integer + ("" if dimension.scale == "linear" else f"{dimension.scale}:")
    return f"{kind}{dimension.low:.12g}:{dimension.high:.12g}:{dimension.steps}"
