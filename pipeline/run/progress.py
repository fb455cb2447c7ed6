"""The output of a run for a person: one line per round, and on a terminal a live line within a round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from anchorfl.pipeline import terminal
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, RoundOutcome
from anchorfl.tasks.metrics.scores import Scores

NO_GPU_NOTE = (
    "  cluster: workers that have a share of a GPU by Ray train on the CPU, since their torch sees none: set"
    " --cluster.client_gpus and --cluster.server_gpus to 0, or install torch for CUDA on the nodes"
)


class Progress:
    """The lines of a run: round, last score, time left, clients that failed, loss, MB moved, seconds.

    On a terminal a line has as many of them as fit, and ``metrics.jsonl`` has them all.
    """

    def __init__(self, rounds: int, out: TextIO | None = None, *, quiet: bool = False) -> None:
        self.rounds, self.start = rounds, 0
        self.quiet = quiet
        """Print nothing."""
        self.out = out
        """Where the lines go; None: standard output."""
        self.began = time.perf_counter()
        self.moved = 0.0
        """Bytes sent and received, those before a resume included."""
        self.last = ""
        self.noted: set[str] = set()

    def log(self, line: str) -> None:
        """Print a line."""
        if not self.quiet:
            terminal.say(line, file=self.out)

    def watch(self, round_: int, busy: int, done: int, failed: int) -> None:
        """Renew the live line within a round, on a terminal only."""
        if self.quiet:
            return
        seconds = time.perf_counter() - self.began
        clients = f"clients {busy} busy, {done} done, {failed} failed"
        terminal.say_live(f"round {round_}/{self.rounds}  {clients}  {seconds:.0f} s  {self.last}", self.out)

    def round(self, round_: int, outcome: RoundOutcome, scores: Mapping[str, Scores], seconds: float) -> None:
        """Print the line of a round, and one for every fault in it."""
        self.moved += outcome.bytes_down + outcome.bytes_up
        if scores:
            split = "test" if "test" in scores else "validation"
            self.last = f"{split} {scores[split].line}"
        head = f"round {round_:>{len(str(self.rounds))}}/{self.rounds}  {self.last}"
        if not outcome.answered:
            self.log(f"{head}  initial weights")
            self._notes(scores)
            self.began = time.perf_counter()
            return
        left = (time.perf_counter() - self.began) / max(1, round_ - self.start) * (self.rounds - round_)
        parts = [head, f"{format_duration(left)} left", *([f"{len(outcome.failed)} failed"] if outcome.failed else [])]
        parts += [f"loss {outcome.loss:.4f}", format_bytes(self.moved), f"{seconds:.1f} s"]
        self.log(terminal.fitted(parts, terminal.width(self.out)))
        for failure in outcome.retried:
            self.log(f"  client {failure.client} tried again in round {round_} ({failure.kind}): {failure.reason}")
        for failure in outcome.failed:
            self.log(f"  client {failure.client} left out of round {round_} ({failure.kind}): {failure.reason}")
        for client in outcome.backups:
            self.log(f"  client {client} stood in")
        self._notes(scores, [NO_GPU_NOTE] if WITHOUT_GPU in outcome.counts else [])

    def _notes(self, scores: Mapping[str, Scores], more: Sequence[str] = ()) -> None:
        """Print the notes that it takes to read the scores, and ``more``, each once in a run."""
        lines = [f"  {split}: {note}" for split, s in scores.items() for note in s.notes]
        for line in (*lines, *more):
            if line not in self.noted:
                self.log(line)
                self.noted.add(line)


def format_duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_bytes(count: float) -> str:
    """Return bytes in the unit that shows one to three digits before the point, MB at least."""
    for unit, size in (("MB", 1e6), ("GB", 1e9)):
        if count < 999.95 * size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e12:.1f} TB"
