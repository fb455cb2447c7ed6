"""The progress of a sweep for a person: a line per trial that ended, and on a terminal a live line between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from anchorfl.pipeline.results.mean_sd import mean_sd_percent
from anchorfl.pipeline.run.progress import format_duration
from anchorfl.tuning.search.results import Rule
from anchorfl.tuning.search.study import TrialState
from anchorfl.tuning.sweep.records import as_trial


class SweepProgress:
    """An observer that prints trials, scores and the time left.

    rule: how a trial is scored; log: takes a line; live: rewrites the last one on a terminal.
    """

    def __init__(
        self, count: int, at_once: int, rule: Rule, log: Callable[[str], None], live: Callable[[str], None]
    ) -> None:
        self.count, self.at_once, self.rule, self.log, self.live = count, at_once, rule, log, live
        self.quiet = True  # while a ledger is replayed
        self.status: dict[int, str] = {}
        self.best: tuple[float, int] | None = None  # score, and the number below 0: of equals the lower one
        self.began, self.spent = time.monotonic(), list[float]()

    def start(self) -> None:
        """Begin to speak: the replay is over."""
        self.quiet, self.began = False, time.monotonic()
        done = {s: sum(v == s for v in self.status.values()) for s in ("finished", "stopped", "failed", "running")}
        if self.status:
            self.log("going on: " + ", ".join(f"{n} trials {s}" for s, n in done.items() if n))

    def on_suggest(self, trial: TrialState) -> None:
        """Count a new trial as running."""
        self.status[trial.number] = "running"

    def on_report(self, trial: TrialState, round_: int) -> None:
        """Rewrite the live line with a round of a trial."""
        if not self.quiet:
            running = sum(s == "running" for s in self.status.values())
            score = 100 * trial.records[round_]["score"]
            self.live(f"trial {trial.number} round {round_}: {score:.2f}  {running} running  {self._rest()}")

    def on_end(self, trial: TrialState) -> None:
        """Print a line for a trial that is over."""
        self.status[trial.number] = trial.status
        if trial.records:
            self.spent.append(trial.records[trial.rounds]["seconds"])
            key = statistics.fmean(as_trial(trial).scores(self.rule)), -trial.number
            if trial.status == "finished" and (self.best is None or key > self.best):
                self.best = key
        if not self.quiet:
            self.log(self._line(trial))

    def _line(self, trial: TrialState) -> str:
        if trial.status == "failed":
            return f"trial {trial.number:>3} failed: {trial.error}"
        record = trial.records[trial.rounds]
        word = "" if trial.status == "finished" else f", stopped at round {trial.rounds}"
        score = mean_sd_percent(as_trial(trial).scores(self.rule))
        return (
            f"trial {trial.number:>3}  {score}{word}  {format_point(trial.point)}"
            f"  {record['seconds']:.0f} s  {self._rest()}"
        )

    def _rest(self) -> str:
        ended = [s for s in self.status.values() if s != "running"]
        best = f"best {100 * self.best[0]:.2f} (trial {-self.best[1]})  " if self.best else ""
        left = max(0, self.count - len(ended)) * statistics.fmean(self.spent) / self.at_once if self.spent else 0.0
        return f"{best}{len(ended)}/{self.count} done" + (f"  about {format_duration(left)} left" if left else "")


def format_point(point: Mapping[str, object]) -> str:
    """Return a point in one line."""
    return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
