"""Searchers and schedulers, all from Ray Tune and Optuna, behind the names of ``SweepOptions``."""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from anchorfl.tuning.search.options import SweepOptions, TrialRounds
from anchorfl.tuning.search.search_space import Choice, Dimension, Range, Space, Value, grid_points

HyperParams = dict[str, Value]
Report = dict[str, Any]
"""What searcher and scheduler hear of a round."""
ROUND, SCORE, EXPENSE = "training_iteration", "score", "expense"
"""Keys of what a searcher hears of a trial; the second objective's value is there where the sweep has one."""
REFUSED = -1.0
"""Score of a point that the options refuse, below any real one."""
START_UP = 10
"""Points that TPE draws at random before it models anything."""


class Grid(Searcher):
    """Every combination of the grid points, the last dimension fastest."""

    def __init__(self, space: Space) -> None:
        super().__init__(metric=SCORE, mode="max")
        cells = itertools.product(*(d.grid() for d in space.values()))
        self._cells: Iterator[HyperParams] = (dict(zip(space, cell, strict=True)) for cell in cells)

    def suggest(self, trial_id: str) -> HyperParams | None:
        """Return the next combination; None after the last."""
        return next(self._cells, None)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: a grid learns nothing."""


def most_trials(options: SweepOptions, space: Space, preset_point: Mapping[str, Value]) -> int:
    """Return how many trials there will be at most: a grid may have fewer points than trials were allowed."""
    return options.trials if options.searcher != "grid" else min(options.trials, grid_points(space, preset_point))


def make_searcher(options: SweepOptions, space: Space, seed: int, first: Mapping[str, Value] | None) -> Searcher:
    """Return the searcher; ``first``: a point inside the space that it is to know as its first suggestion."""
    if options.searcher == "grid":
        return Grid(space)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("ray.tune.search.optuna.optuna_search").setLevel(logging.ERROR)
    sampler: BaseSampler = RandomSampler(seed=seed)
    if options.searcher == "optuna":
        with warnings.catch_warnings():
            # multivariate, constant_liar: since Optuna 2.2 and 2.8
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = TPESampler(seed=seed, n_startup_trials=START_UP, multivariate=True, constant_liar=True)
    points = None if first is None else [{n: inner_of(space[n], v) for n, v in first.items()}]
    return OptunaSearch(
        {name: distribution_of(d) for name, d in space.items()},
        metric=[SCORE, EXPENSE] if options.against else SCORE,
        mode=["max", "min"] if options.against else "max",
        sampler=sampler,
        points_to_evaluate=points,
    )


def values_of(space: Space, suggested: Mapping[str, Any]) -> HyperParams:
    """Return the point of a suggestion: searched variables turned into the options' values."""
    return {n: d.value(suggested[n]) if isinstance(d, Range) else suggested[n] for n, d in space.items()}


def make_scheduler(options: SweepOptions, rounds: TrialRounds) -> TrialScheduler:
    """Return the scheduler. Its counts are rounds, its score the mean over seeds of the validation metric."""
    if options.scheduler == "asha":
        return ASHAScheduler(
            time_attr=ROUND,
            metric=SCORE,
            mode="max",
            max_t=rounds.whole,
            grace_period=rounds.grace,
            reduction_factor=options.reduction,
        )
    if options.scheduler == "median":
        # An infinite slice: trials are never paused to let others catch up, only stopped.
        return MedianStoppingRule(
            time_attr=ROUND,
            metric=SCORE,
            mode="max",
            grace_period=rounds.grace,
            min_time_slice=float("inf"),  # type: ignore[arg-type]
        )
    return FIFOScheduler()  # type: ignore[no-untyped-call]  # ray has no annotation here


def draw(
    searcher: Searcher, space: Space, number: int, known: Callable[[HyperParams], Report | None], attempts: int = 500
) -> tuple[str, HyperParams] | None:
    """Return the searcher's name of the next point of which nothing is known, and the point; None: there are no more.

    known: of a point what the searcher is to hear of it, {} for a failure; None: it is new. attempts: before a sampler
    counts as exhausted; a grid ends by itself.
    """
    for attempt in itertools.count() if isinstance(searcher, Grid) else range(attempts):
        name = f"{number:04d}" if attempt == 0 else f"{number:04d}-{attempt}"
        suggested = searcher.suggest(name)
        if suggested is None:
            return None
        point = dict(suggested) if isinstance(searcher, Grid) else values_of(space, suggested)
        report = known(point)
        if report is None:
            return name, point
        searcher.on_trial_complete(name, report or None, error=not report)
    return None


def refusal(searcher: Searcher) -> Report:
    """Return what a searcher hears of a point that the options refuse: the worst there is, as TPE would search a region
    of which it only heard failures for ever. Of two objectives there is no worst, so there it is a failure.
    """
    return {ROUND: 0, SCORE: REFUSED} if isinstance(searcher.metric, str) else {}


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """Return the searched variable of a dimension as Optuna takes it."""
    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.values)
    low, high = sorted((dimension.inner(dimension.low), dimension.inner(dimension.high)))
    if dimension.integer:
        return IntDistribution(math.ceil(low), math.floor(high), log=dimension.scale == "log")
    return FloatDistribution(low, high, log=dimension.scale != "linear")


def inner_of(dimension: Dimension, value: Value) -> Value:
    """Return the searched variable at a value."""
    return dimension.inner(float(value)) if isinstance(dimension, Range) else value
