"""The round loop: choose, broadcast, fit, check, merge, evaluate, record, checkpoint. It names no method and no data
set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import RoundOutcome
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.storage.backup import Backup
from anchorfl.pipeline.storage.checkpoint import Checkpoint, Checkpoints
from anchorfl.pipeline.storage.run_record import RoundRecord
from anchorfl.pipeline.tracking.tracker import Tracker
from anchorfl.pipeline.training.errors import LostError
from anchorfl.pipeline.training.sampling import backup_clients, select
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import converted
from anchorfl.tasks.metrics.scores import Scores

T = TypeVar("T")
STATE, SELECTED, MEMORY = "state", "selected", "memory-"
"""Names of a checkpoint's parts."""
RECOVERIES = 2
"""How often in one round a run starts what it lost anew before it gives up: what kills the server may be the round."""


@dataclass
class Standing:
    """What the loop itself remembers between rounds, beside state and memories; saved in every checkpoint.

    best: (round, validation score) of the selected model where ``evaluation.model_selection`` is by validation.
    """

    round: int = 0
    best_round: int = 0
    best_score: float = -1.0
    seconds: float = 0.0
    failures: int = 0
    retries: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    """Kind of fault -> attempts that ended so."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """split -> metric -> value of the last scored round."""

    def summary(self, recovered: int = 0) -> str:
        """A line about all that went wrong; empty where nothing did."""
        parts = [f"{count} {kind}" for kind, count in self.faults.items() if count]
        lost = f"; started anew after the loss of the server: {recovered}" if recovered else ""
        if not parts and not lost:
            return ""
        return (
            f"faults: {sum(self.faults.values())} attempts of clients ({', '.join(parts) or 'none'}),"
            f" {self.retries} of them made again, clients left out of a round: {self.failures}{lost}"
        )


@dataclass
class Loop:
    """The parts of a run, and its rounds. ``best``: the state of the selected model so far (path -> tensor), empty
    where ``evaluation.model_selection`` is ``last``; ``backup``: keeps a copy of the run folder, or None.
    """

    experiment: Experiment
    class_names: Sequence[str]
    executor: Executor
    tracker: Tracker
    checkpoints: Checkpoints
    progress: Progress
    standing: Standing = field(default_factory=Standing)
    best: Tensors = field(default_factory=dict)
    backup: Backup | None = None
    recovered: int = 0
    """How often what was lost was started anew."""
    _told: int = 0
    _recorded: int = -1
    _saved: int = 0
    """Round of the last checkpoint."""
    _unsaved: set[int] = field(default_factory=set)
    """Clients whose memories changed since then."""
    _whole: bool = False
    """Whether all rounds are computed, one after the other, by nobody but this loop."""

    def run(self) -> Tensors:
        """Run what is left of the rounds; the state of the selected model."""
        self._whole = True
        for _ in self.steps():
            pass
        return self.best or self._surely(self.executor.snapshot, "the end")

    def tested(self, state: Tensors) -> dict[str, Scores]:
        """The test scores of the selected model, after the last round."""

        def test() -> dict[str, Scores]:
            self.executor.restore(state, {})
            return self.executor.scores(["test"])

        return self._surely(test, "the test of the selected model")

    def steps(self) -> Iterator[int]:
        """Run what is left of the rounds one by one; yields each round's number when it is recorded and saved, and at
        first the round that the loop stands at.
        """
        for round_ in range(self.standing.round, self.experiment.federation.rounds + 1):
            self._surely(partial(self._compute, round_), f"round {round_}")
            yield round_

    def _surely(self, work: Callable[[], T], what: str) -> T:
        """Do something; where the server is lost on the way, all since the last checkpoint again, on a new one."""
        gone = False
        for attempt in range(RECOVERIES + 1):
            try:
                if gone:
                    self.executor.recover()
                    self.resume()
                return work()
            except LostError as error:
                if attempt == RECOVERIES:
                    raise
                gone = True
                self.recovered += 1
                self.progress.log(f"  {what}: {error}; starting it anew and going on from the last checkpoint")
        raise AssertionError("the last attempt returns or raises")

    def _compute(self, round_: int) -> None:
        """All rounds up to ``round_`` that are not done; 0: score the initial weights."""
        if round_ == 0:
            self._begin()
        for number in range(self.standing.round + 1, round_ + 1):
            self._round(number)

    def resume(self) -> None:
        """Go on from the last checkpoint, where there is one."""
        self.standing, self.best, self._unsaved, self._saved = Standing(), {}, set(), 0
        found = self.checkpoints.load(self.progress.log)
        if found is None:
            return
        parts = dict(found.parts)
        try:
            standing = _standing(found)
            state, self.best = parts.pop(STATE), parts.pop(SELECTED, {})
            memories = {int(name.removeprefix(MEMORY)): memory for name, memory in parts.items()}
            self.executor.restore(state, memories)
        except (ValueError, KeyError) as error:
            path = self.checkpoints.index
            raise InputError(f"{path} is not of this run ({error}); start the run anew in another --output") from error
        self.standing, self._saved = standing, found.round
        self._recorded = max(self._recorded, found.round)

    def _begin(self) -> None:
        """Score the initial weights, while the first clients start: a first sign of life."""
        began = time.perf_counter()
        self.executor.expect(self._selected(1))
        scores, scoring = self._scores(0)
        seconds = time.perf_counter() - began
        self._note(_record(0, RoundOutcome(()), scores, self.class_names, seconds, scoring))
        self.progress.round(0, RoundOutcome(()), scores, seconds)

    def _round(self, round_: int) -> None:
        experiment, began = self.experiment, time.perf_counter()
        outcome = self.executor.round(
            round_, self._selected(round_), partial(self.progress.watch, round_), self._backup_clients(round_)
        )
        last = round_ == experiment.federation.rounds
        if self._whole and not last:  # what follows decides nothing of the next round, so its clients train meanwhile
            self.executor.ahead(round_ + 1, self._selected(round_ + 1), self._backup_clients(round_ + 1))
        elif not last:
            self.executor.expect(self._selected(round_ + 1))
        scored = last or round_ % experiment.evaluation.every == 0
        scores, scoring = self._scores(round_) if scored else ({}, 0.0)
        state = self.executor.snapshot()
        self._stand(round_, outcome, scores, state)
        seconds = time.perf_counter() - began
        self.standing.seconds += seconds
        self._unsaved |= {*outcome.answered}
        due = last or round_ % experiment.cluster.checkpoint_every == 0
        # All that comes from elsewhere, and may be lost there, comes before the round is written down.
        changed = {f"{MEMORY}{c:05d}": self.executor.memory(c) for c in sorted(self._unsaved)} if due else {}
        self._note(_record(round_, outcome, scores, self.class_names, seconds, scoring))
        if experiment.evaluation.save_state_every and (last or round_ % experiment.evaluation.save_state_every == 0):
            self.checkpoints.keep(round_, state)  # before the round counts as done: a kill in between does it again
        if due:
            if self.standing.best_round > self._saved:
                changed[SELECTED] = self.best
            self.checkpoints.save(round_, changed | {STATE: state}, vars(self.standing))
            self._unsaved, self._saved = set(), round_
            if self.backup is not None:
                self.backup.push()
        self.progress.round(round_, outcome, scores, seconds)

    def _note(self, record: RoundRecord) -> None:
        """Record a round; not one that was recorded and is computed again on a new server, with the same bits."""
        if record.round > self._recorded:
            record.metrics["failures/server_restarts"] = self.recovered - self._told
            self.tracker.round(record)
            self._recorded, self._told = record.round, self.recovered

    def _stand(self, round_: int, outcome: RoundOutcome, scores: dict[str, Scores], state: Tensors) -> None:
        """Bring the standing up to date; a round is selected here, by the validation split alone."""
        s = self.standing
        s.round = round_
        s.failures += len(outcome.failed)
        s.retries += len(outcome.retried)
        s.faults = {kind: s.faults.get(kind, 0) + outcome.kinds[kind] for kind in sorted({*s.faults, *outcome.kinds})}
        if not scores:
            return
        s.scores = {split: dict(v.values) for split, v in scores.items()}
        by = self.experiment.evaluation.chosen_by
        if by is not None and scores["validation"].values[by.name] > s.best_score:
            s.best_round, s.best_score, self.best = round_, scores["validation"].values[by.name], state

    def _scores(self, round_: int) -> tuple[dict[str, Scores], float]:
        """Scores by split, and the seconds that they took."""
        experiment, began = self.experiment, time.perf_counter()
        selected = experiment.evaluation.model_selection == "last" and round_ == experiment.federation.rounds
        test = experiment.tested == "always" or (experiment.tested == "last" and selected)
        scores = self.executor.scores(["validation", "test"] if test else ["validation"])
        return scores, time.perf_counter() - began

    def _selected(self, round_: int) -> list[int]:
        experiment = self.experiment
        return select(experiment.task.clients, experiment.selected_clients, round_, experiment.seed)

    def _backup_clients(self, round_: int) -> list[int]:
        experiment = self.experiment
        return backup_clients(
            experiment.task.clients,
            self._selected(round_),
            experiment.federation.backup_fraction,
            round_,
            experiment.seed,
        )


def _standing(found: Checkpoint) -> Standing:
    """What a checkpoint's notes say. ValueError where they cannot be."""
    standing: Standing = converted(found.notes, Standing, "notes")
    if not 0 <= standing.best_round <= standing.round == found.round:
        raise ValueError(f"notes: round {standing.round}, best round {standing.best_round} in round {found.round}")
    return standing


def _record(
    round_: int,
    outcome: RoundOutcome,
    scores: dict[str, Scores],
    class_names: Sequence[str],
    seconds: float,
    scoring: float,
) -> RoundRecord:
    metrics: dict[str, float] = {
        "communication/download_bytes": outcome.bytes_down,
        "communication/upload_bytes": outcome.bytes_up,
        "failures/dropped_clients": len(outcome.failed),
        "failures/retries": len(outcome.retried),
        **{f"failures/{kind}": count for kind, count in sorted(outcome.kinds.items())},
        **outcome.counts,
        "time/round": seconds,
        "time/clients": outcome.busy_seconds,
        "time/evaluate": scoring,
        **system_metrics.machine(),
        **{f"system/{worker}_memory_megabytes": size for worker, size in outcome.memory.items()},
    }
    if outcome.answered:
        metrics["train/loss"] = outcome.loss
    if outcome.failed:  # where stand-ins came, not the selected ones without those that failed
        metrics["clients/completed"] = len(outcome.answered)
    scored = record_of(round_, scores, class_names)
    return replace(scored, metrics=metrics | scored.metrics)


def record_of(round_: int, scores: Mapping[str, Scores], class_names: Sequence[str]) -> RoundRecord:
    """The record of what was scored of a round; scores: by split."""
    metrics: dict[str, float] = {}
    per_class: dict[str, dict[str, float]] = {}
    for split, s in scores.items():
        metrics |= {f"{split}/{name}": value for name, value in (s.values | s.counts).items()}
        for name, value_C in s.per_class.items():
            per_class[f"{split}/{name}"] = dict(zip(class_names, map(float, value_C), strict=True))
    return RoundRecord(round_, time.time(), metrics, per_class)


def weights_in(state: Tensors) -> Tensors:
    """The model's weights out of a state as path -> tensor."""
    prefix = "weights/"
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def final_checksum(state: Tensors) -> str:
    """SHA-256 of the final weights, or of what else the server has where it has none."""
    return messages.checksum(weights_in(state) or state)
