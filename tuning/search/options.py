"""Options of a sweep besides its preset: how it searches, how much it may spend, how it chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anchorfl.tasks.metrics.scores import FAMILIES, Metrics
from anchorfl.tuning.search.results import Rule

MOST_SEEDS = 1000
"""Of a search, and of its final runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """Options of ``anchorfl sweep``."""

    searcher: Literal["optuna", "random", "grid"] = "optuna"
    """``optuna``: TPE; ``random``; ``grid``: every combination of grid points. Trial 0 is the preset's own point."""
    scheduler: Literal["asha", "median", "none"] = "asha"
    """Rule that stops trials early: ``asha`` (Li et al., 2020), ``median`` (the median stopping rule), ``none``."""
    trials: int = 30
    """Points to try, the preset's own included. Of a grid, all of them unless this is given; fewer are its first."""
    hours: float = 0.0
    """Stop the search after so many hours of wall time, over all its starts; 0: no limit."""
    cost: float = 0.0
    """Stop the search at this cost: what its trials reserved, times the prices below; 0: no limit."""
    cpu_price: float = 0.0
    """Price of a CPU for an hour, in the currency of ``cost``."""
    gpu_price: float = 0.0
    """Price of a GPU for an hour."""
    against: Literal["", "megabytes", "seconds"] = ""
    """Second objective, to be small: ``megabytes`` that a run of a trial moved, or ``seconds`` of its rounds. The
    report shows the front of trials that none beats in both; the chosen one is still that of the best score."""
    rounds: int = 0
    """Rounds of a whole trial; 0: those of the preset. The chosen point always gets the preset's."""
    grace: int = 0
    """Rounds before a trial may be stopped; 0: the method's warm-up, or an eighth of ``rounds`` where that is more."""
    reduction: int = 3
    """ASHA keeps one in so many trials at every rung; rungs lie at grace, grace x reduction, ..."""
    seeds: int = 2
    """Seeds per point, run in step and scored by their mean: the preset's seed and the next ones."""
    metric: str = ""
    """Score on the validation split, one of those of ``evaluation.metrics``; empty: its first, ``f1_macro`` of
    decisions or ``p_at_1`` of ranking."""
    rule: Rule = "last"
    """One figure of a trial's curve: ``last`` round, ``mean5`` of the last five scored rounds, ``best`` round."""
    finals: int = 3
    """Fresh seeds on which the chosen point is run in full and tested once; 0: none."""
    reference: bool = False
    """Run the preset's own point on the fresh seeds, too."""
    slots: int = 1
    """Client actors of a trial; clients share them where there are fewer slots than clients."""
    cpus: float = 1.0
    """CPUs of a trial, shared out over its server and its slots."""
    concurrent: int = 0
    """Trials at one time; 0: as many as the cluster holds."""
    register: str = ""
    """Register the model of the first final run under this name in MLflow."""

    def __post_init__(self) -> None:
        lowest = {"trials": 1, "seeds": 1, "slots": 1, "reduction": 2, "rounds": 0, "grace": 0, "finals": 0}
        for name, low in (lowest | {"concurrent": 0, "hours": 0, "cost": 0, "cpu_price": 0, "gpu_price": 0}).items():
            value = getattr(self, name)
            if not low <= value < math.inf:
                what = "a finite number" if not math.isfinite(value) else f"at least {low}"
                raise ValueError(f"--{name.replace('_', '-')} {value}: must be {what}")
        if max(self.seeds, self.finals) > MOST_SEEDS:
            raise ValueError(f"--seeds {self.seeds} --finals {self.finals}: must be at most {MOST_SEEDS}")
        if not 0 < self.cpus < math.inf:
            raise ValueError(f"--cpus {self.cpus}: must be a finite number above 0")

    def check_together(self) -> None:
        """Raise ValueError where two options do not fit; not when one is made, as a resumed sweep is given few."""
        if self.against and self.scheduler != "none":
            raise ValueError(f"--against {self.against} compares whole trials: give --scheduler none")
        if self.cost and not (self.cpu_price or self.gpu_price):
            raise ValueError("--cost needs --cpu-price or --gpu-price: what an hour of one costs")


def resolve_metric(options: SweepOptions, metrics: Metrics) -> str:
    """Return the measure by which a sweep chooses. ValueError where runs with these metrics do not have it."""
    family = FAMILIES[metrics]
    names = [measure.name for measure in (*family.measures, *family.some)]
    if options.metric and options.metric not in names:
        raise ValueError(
            f"--metric {options.metric}: with evaluation.metrics = {metrics!r} there are {', '.join(names)}"
        )
    return options.metric or names[0]


@dataclass(frozen=True, slots=True)
class TrialRounds:
    """Resolved lengths of a trial."""

    whole: int
    """Rounds of a whole trial."""
    grace: int
    """Rounds before it may be stopped."""


def resolve_rounds(options: SweepOptions, preset_rounds: int, warm_up: int) -> TrialRounds:
    """Return rounds and grace period. ValueError where trials would end within the grace period's reach."""
    whole = options.rounds or preset_rounds
    grace = options.grace or max(warm_up, whole // 8, 1)
    if options.scheduler != "none" and grace >= whole:
        raise ValueError(
            f"a trial has {whole} rounds and may not be stopped before round {grace} (--grace, or the method's"
            " warm-up): raise --rounds, lower --grace, or give --scheduler none"
        )
    return TrialRounds(whole, grace)
