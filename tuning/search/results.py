"""Results of a sweep, as plain values: what the report shows, whatever searched and wherever it ran.

A point maps the name of a searched option, as it stands in the space (``q1``, ``optimizer.lr``), to its value.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from anchorfl.tuning.search.search_space import Space, Value

Rule = Literal["last", "mean5", "best"]
Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A point, run with every seed of the sweep in step."""

    number: int
    """From 0; trial 0 is the preset's own point."""
    point: Mapping[str, Value]
    """Searched name -> value."""
    status: Status
    """``stopped``: ended early by the scheduler."""
    curves: Mapping[int, Mapping[int, float]]
    """Seed -> round -> validation score (0 to 1) of every round that all seeds completed."""
    seconds: float = 0.0
    """Wall time in all."""
    training_seconds: float = 0.0
    """The part in which clients trained or models were scored."""
    expense: float = 0.0
    """Value of the second objective, a mean over seeds; 0 where the sweep has none."""
    error: str = ""
    """Reason of the failure, one line."""

    @property
    def rounds(self) -> int:
        """Number of rounds that all seeds completed."""
        return min((max(curve, default=0) for curve in self.curves.values()), default=0)

    def scores(self, rule: Rule) -> list[float]:
        """Return one score per seed, in order of seed; [] where there is none yet.

        ``last``: of the last round; ``mean5``: mean of the last five scored rounds; ``best``: of the best round.
        """
        out, last = [], self.rounds
        for seed in sorted(self.curves):
            curve = [value for round_, value in sorted(self.curves[seed].items()) if 0 < round_ <= last]
            if not curve:
                return []
            out.append({"last": curve[-1], "mean5": statistics.fmean(curve[-5:]), "best": max(curve)}[rule])
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalRun:
    """A point on a fresh seed with the full number of rounds, tested once."""

    seed: int
    """A fresh seed, none of the search's."""
    rounds: int
    """The preset's."""
    scores: Mapping[str, Mapping[str, float]]
    """Split -> metric -> value (0 to 1)."""
    folder: str
    """Run folder."""
    seconds: float = 0.0
    """Wall time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A whole sweep, as far as it has come."""

    name: str
    """Name of the folder."""
    preset: str
    task: str
    method: str
    space: Space
    """Searched name -> dimension."""
    searcher: str
    scheduler: str
    metric: str
    """Name of a measure (``f1_macro``), on the validation split."""
    rule: Rule
    seeds: tuple[int, ...]
    """The trials' seeds."""
    against: str = ""
    """Second objective: ``megabytes`` or ``seconds``; "" for none."""
    rounds: int
    """Rounds of a whole trial."""
    trials: tuple[Trial, ...]
    """By number; trial 0 is the preset's own point."""
    final_runs: tuple[FinalRun, ...] = ()
    """Runs of the chosen point."""
    reference_runs: tuple[FinalRun, ...] = ()
    """Runs of the preset's own point on the same seeds, where they were asked for."""
    seconds: float = 0.0
    """Wall time so far, over all starts."""
    notes: tuple[str, ...] = field(default=())
    """Notes for the report, a line each."""
    fresh_seeds: tuple[int, ...] = ()
    """Seeds of the final runs."""
    reference_wanted: bool = False
    """True where runs of the preset's own point were asked for."""
    final_runs_begun: bool = False
    """True where final runs were begun; all may have failed."""

    def missing_seeds(self, runs: Sequence[FinalRun]) -> list[int]:
        """Return the seeds of final runs that are not among ``runs``."""
        return [seed for seed in self.fresh_seeds if seed not in {run.seed for run in runs}]

    @property
    def needs_reference_runs(self) -> bool:
        """True where the preset's own point has final runs of its own: asked for, and not the chosen one."""
        return self.reference_wanted and self.best is not None and self.best.number != 0

    @property
    def complete(self) -> bool:
        """True where a trial was chosen and no final run lacks its result."""
        if self.best is None or self.missing_seeds(self.final_runs):
            return False
        return not (self.needs_reference_runs and self.missing_seeds(self.reference_runs))

    def ranked(self) -> list[Trial]:
        """Return the trials with a score, best first.

        Those with more rounds come first, then the order is by the mean over seeds of the rule's score; of equals the
        cheaper one where there is a second objective, then the lower number. So a trial that was stopped early is never
        chosen over a whole one.
        """
        scored = [t for t in self.trials if t.status != "failed" and t.scores(self.rule)]
        cost = {t.number: t.expense if self.against else 0.0 for t in scored}
        return sorted(scored, key=lambda t: (-t.rounds, -_score(self.rule, t), cost[t.number], t.number))

    @property
    def tied(self) -> list[Trial]:
        """Trials whose score is that of the best, itself among them, in order of number."""
        ranked = self.ranked()
        keys = [(t.rounds, _score(self.rule, t)) for t in ranked]
        equal = [trial for trial, key in zip(ranked, keys, strict=True) if key == keys[0]]
        return sorted(equal, key=lambda trial: trial.number)

    @property
    def best(self) -> Trial | None:
        """Trial that the rule chooses, on validation alone; None where none has a score."""
        return next(iter(self.ranked()), None)

    @property
    def front(self) -> list[Trial]:
        """Whole trials that none beats in both objectives, cheapest first: each next one costs more and scores more."""
        out = list[Trial]()
        whole = [t for t in self.ranked() if t.status == "finished"] if self.against else []
        for trial in sorted(whole, key=lambda t: t.expense):  # of equal expense the better one is first, as ranked
            if not out or _score(self.rule, trial) > _score(self.rule, out[-1]):
                out.append(trial)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as values of JSON: what was chosen, the trials without their curves, the final runs."""
        names = ("preset", "task", "method", "searcher", "scheduler", "metric", "rule", "against", "rounds", "seconds")
        return {name: getattr(self, name) for name in names} | {
            "complete": self.complete,
            "seeds": list(self.seeds),
            "chosen": self.best and self.best.number,
            "front": [trial.number for trial in self.front],
            "trials": [
                {
                    "number": trial.number, "point": dict(trial.point), "status": trial.status, "rounds": trial.rounds,
                    "scores": trial.scores(self.rule), "seconds": trial.seconds, "error": trial.error,
                    "expense": trial.expense,
                }
                for trial in self.trials
            ],
            "final_runs": [asdict(run) for run in self.final_runs],
            "reference_runs": [asdict(run) for run in self.reference_runs],
            "notes": list(self.notes),
        }  # fmt: skip


def seeds_text(seeds: Sequence[int]) -> str:
    """Return ``seed 0`` or ``seeds 0, 1``: "seeds 0" would read as a count."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _score(rule: Rule, trial: Trial) -> float:
    """Return the mean by which trials are ranked: means of equal scores differ in last bits."""
    return round(statistics.fmean(trial.scores(rule)), 12)


def tie_text(sweep: Sweep) -> str:
    """Return that several points have the best score, for a sweep in which they do."""
    return f"{len(sweep.tied)} points tie; the {'cheapest' if sweep.against else 'first'} is chosen"
