"""What a person sees while a sweep goes: a line per trial that ended, and on a terminal a live line between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from anchorfl.pipeline.run.progress import format_duration
from anchorfl.tuning.search.study import Entry


class Watch:
    """Trials, scores, time left. say: takes a line; live: rewrites the last one, None where that is no terminal."""

    def __init__(
        self, count: int, at_once: int, log: Callable[[str], None], live: Callable[[str], None] | None
    ) -> None:
        self.count, self.at_once, self.log, self.live = count, at_once, log, live
        self.quiet = True  # while a ledger is replayed
        self.status: dict[int, str] = {}
        self.best: tuple[float, int] | None = None
        self.began, self.spent = time.monotonic(), list[float]()

    def start(self) -> None:
        """The replay is over: speak."""
        self.quiet, self.began = False, time.monotonic()
        done = {s: sum(v == s for v in self.status.values()) for s in ("finished", "stopped", "failed", "running")}
        if self.status:
            self.log("going on: " + ", ".join(f"{n} trials {s}" for s, n in done.items() if n))

    def suggested(self, entry: Entry) -> None:
        """A trial exists."""
        self.status[entry.number] = "running"

    def reported(self, entry: Entry, round_: int) -> None:
        """A trial finished a round."""
        if self.live and not self.quiet:
            running = sum(s == "running" for s in self.status.values())
            score = 100 * entry.records[round_]["score"]
            self.live(f"trial {entry.number} round {round_}: {score:.2f}  {running} running  {self._rest()}")

    def ended(self, entry: Entry) -> None:
        """A trial is over."""
        self.status[entry.number] = entry.status
        if entry.records:
            record = entry.records[entry.rounds]
            self.spent.append(record["seconds"])
            if entry.status == "finished" and (self.best is None or record["score"] > self.best[0]):
                self.best = (record["score"], entry.number)
        if not self.quiet:
            self.log(self._line(entry))

    def _line(self, entry: Entry) -> str:
        if entry.status == "failed":
            return f"trial {entry.number:>3} failed: {entry.error}"
        record = entry.records[entry.rounds]
        sd = statistics.stdev(record["scores"].values()) if len(record["scores"]) > 1 else 0.0
        word = "" if entry.status == "finished" else f", stopped at round {entry.rounds}"
        return (
            f"trial {entry.number:>3} {100 * record['score']:6.2f} ± {100 * sd:.2f}{word}  {named(entry.point)}"
            f"  {record['seconds']:.0f} s  {self._rest()}"
        )

    def _rest(self) -> str:
        ended = [s for s in self.status.values() if s != "running"]
        best = f"best {100 * self.best[0]:.2f} (trial {self.best[1]})  " if self.best else ""
        left = max(0, self.count - len(ended)) * statistics.fmean(self.spent) / self.at_once if self.spent else 0.0
        return f"{best}{len(ended)}/{self.count} done" + (f"  about {format_duration(left)} left" if left else "")


def named(point: Mapping[str, object]) -> str:
    """A point in one line."""
    return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())


def spread(scores: Sequence[float]) -> str:
    """Mean and, of several, sd (ddof 1), in percent."""
    sd = f" ± {100 * statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{100 * statistics.fmean(scores):.2f}{sd}"
