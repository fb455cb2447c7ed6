"""What a sweep gave, as plain values: what the report shows, whatever searched and wherever it ran.

A point maps the name of a searched option, as it stands in the space (``q1``, ``optimizer.lr``), to its value.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from anchorfl.tuning.search.search_space import Space, Value

Rule = Literal["last", "mean5", "best"]
Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One point, run with every seed of the sweep in step.

    curves: seed -> round -> validation score (0 to 1) of every round that all seeds completed; ``stopped``: ended early
    by the scheduler; seconds: wall time in all; training_seconds: the part that clients trained or models were scored;
    error: why it failed, one line.
    """

    number: int
    point: Mapping[str, Value]
    status: Status
    curves: Mapping[int, Mapping[int, float]]
    seconds: float = 0.0
    training_seconds: float = 0.0
    error: str = ""

    @property
    def rounds(self) -> int:
        """Rounds that all seeds completed."""
        return min((max(curve, default=0) for curve in self.curves.values()), default=0)

    def scores(self, rule: Rule) -> list[float]:
        """One score per seed, in order of seed; [] where there is none yet.

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
class Final:
    """The chosen point on a fresh seed with the full number of rounds. scores: split -> metric -> value (0 to 1)."""

    seed: int
    rounds: int
    scores: Mapping[str, Mapping[str, float]]
    folder: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A whole sweep. metric: name of a measure (``f1_macro``), on the validation split; rounds: of a whole trial.

    Trial 0 is the preset's own point. finals: runs of the chosen point; references: runs of the preset's own point on
    the same seeds, where they were asked for (``compared``); fresh: these seeds; tested: whether final runs were begun,
    which may all have failed. seconds: wall time so far, over all
    starts.
    """

    name: str
    preset: str
    task: str
    method: str
    space: Space
    searcher: str
    scheduler: str
    metric: str
    rule: Rule
    seeds: tuple[int, ...]
    rounds: int
    trials: tuple[Trial, ...]
    finals: tuple[Final, ...] = ()
    references: tuple[Final, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
    fresh: tuple[int, ...] = ()
    compared: bool = False
    tested: bool = False

    def lacking(self, runs: Sequence[Final]) -> list[int]:
        """The seeds of final runs that are not among ``runs``."""
        return [seed for seed in self.fresh if seed not in {run.seed for run in runs}]

    @property
    def referred(self) -> bool:
        """Whether the preset's own point has final runs of its own: asked for, and not the chosen one."""
        return self.compared and self.best is not None and self.best.number != 0

    @property
    def whole(self) -> bool:
        """Whether a trial was chosen and no final run lacks its result."""
        if self.best is None or self.lacking(self.finals):
            return False
        return not (self.referred and self.lacking(self.references))

    def ranked(self) -> list[Trial]:
        """Trials with a score, best first: those with more rounds first, then by the mean over seeds of the rule's
        score; of equals the lower number. A trial that was stopped early is so never chosen over a whole one.
        """
        scored = [t for t in self.trials if t.status != "failed" and t.scores(self.rule)]
        return sorted(scored, key=lambda t: (-t.rounds, -statistics.fmean(t.scores(self.rule)), t.number))

    @property
    def best(self) -> Trial | None:
        """The trial that the rule chooses, on validation alone."""
        return next(iter(self.ranked()), None)
