"""Callbacks of a user: called after every round, they may look, draw, log and ask for the end, and change no bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anchorfl.pipeline.storage.run_record import RoundRecord
from anchorfl.tasks.errors import first_line


@dataclass(frozen=True)
class RoundReport:
    """A round that is over, as a callback is given it."""

    round: int
    """Its number; 0: the initial weights were scored."""
    rounds: int
    """Number of rounds of the run."""
    metrics: dict[str, float]
    """Metrics by name, as in ``metrics.jsonl``: ``validation/f1_macro``, ``train/loss``, ``time/round``, ...; scores
    only of rounds that are scored."""
    per_class: dict[str, dict[str, float]]
    """Score by name (``validation/f1``) -> class name -> value."""
    folder: Path
    """The run folder."""


Callback = Callable[[RoundReport], object]
"""Called with every round. ``True`` ends the run behind it, or behind the next round that is scored and saved."""


class CallbackError(RuntimeError):
    """A callback failed. The round that it was called with is recorded; the run goes on from its last checkpoint."""


class Callbacks:
    """The callbacks of a run, in order."""

    def __init__(self, callbacks: Sequence[Callback], rounds: int, folder: Path) -> None:
        self.callbacks, self.rounds, self.folder = callbacks, rounds, folder
        self.stop = ""
        """Name of the callback that asked for the end; empty: none did."""

    def asked_before(self, name: str) -> None:
        """Take up that a callback of that name, if it is among them, asked for the end before a kill."""
        if name in map(name_of, self.callbacks):
            self.stop = name

    def report(self, record: RoundRecord) -> None:
        """Call all with a round. CallbackError where one fails.

        What it does to torch's threads, default type, matrix products and gradients is undone: all could change bits.
        """
        for callback in self.callbacks:
            per_class = {name: dict(values) for name, values in record.per_class.items()}
            report = RoundReport(record.round, self.rounds, dict(record.metrics), per_class, self.folder)
            name = name_of(callback)
            threads, kind = torch.get_num_threads(), torch.get_default_dtype()
            products, gradients = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
            try:
                answer = callback(report)
                if answer is True or (isinstance(answer, np.bool_) and answer):
                    self.stop = self.stop or name
            except Exception as error:  # it is anybody's code
                raise CallbackError(
                    f"callback {name} failed after round {record.round}: {first_line(error)}; the round is recorded,"
                    " and anchorfl.resume goes on from the last checkpoint"
                ) from error
            finally:
                torch.set_num_threads(threads)
                torch.set_default_dtype(kind)
                torch.set_float32_matmul_precision(products)
                torch.set_grad_enabled(gradients)


def name_of(callback: Callback) -> str:
    """Return the name of a callback."""
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))
