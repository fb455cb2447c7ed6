"""The round loop: select, broadcast, train, check, aggregate, evaluate, record, save.

It names no method and no data set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import RoundOutcome
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.execution.kept_memories import ROUND
from anchorfl.pipeline.run.callbacks import Callbacks
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.storage.backup import Backup
from anchorfl.pipeline.storage.checkpoint import Checkpoint, Checkpoints, Part
from anchorfl.pipeline.storage.run_record import RoundRecord
from anchorfl.pipeline.tracking.tracker import Tracker
from anchorfl.pipeline.training.errors import LostError
from anchorfl.pipeline.training.sampling import backup_clients, cohort_of
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import converted
from anchorfl.tasks.metrics.scores import FAMILIES, Scores

T = TypeVar("T")
STATE, SELECTED, MEMORY = "state", "selected", "memory-"
"""Names of a checkpoint's parts."""
MAX_RESTARTS = 2
"""Restarts in one round before a run gives up: what kills the server may be the round."""


@dataclass
class LoopState:
    """The round loop's own progress, beside the server's state and clients' memories; saved in every checkpoint."""

    round: int = 0
    """Rounds done; 0: only the initial weights are scored, or nothing."""
    best_round: int = 0
    """Round of the selected model so far; 0: none, or the last round is selected."""
    best_score: float = -1.0
    """Validation score of that round, in [0, 1]; -1: none."""
    seconds: float = 0.0
    """Wall time of all rounds."""
    failures: int = 0
    """Clients left out of a round, over all rounds."""
    retries: int = 0
    """Attempts of clients that were made again."""
    faults: dict[str, int] = field(default_factory=dict)
    """Kind of fault -> attempts that ended so."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """split -> metric -> value of the last scored round."""
    peak_score: float = -1.0
    """Best validation score so far, where ``evaluation.patience`` asks; -1: none."""
    since_peak: int = 0
    """Scored rounds since then."""
    stop: str = ""
    """Name of the callback that asked for the end, which waits for a round that is scored and saved; empty: none."""

    def summary(self, restarts: int = 0) -> str:
        """Return a line about all that went wrong; empty where nothing did."""
        parts = [f"{count} {kind}" for kind, count in self.faults.items() if count]
        lost = f"; started anew after the loss of the server: {restarts}" if restarts else ""
        if not parts and not lost:
            return ""
        return (
            f"faults: {sum(self.faults.values())} attempts of clients ({', '.join(parts) or 'none'}),"
            f" {self.retries} of them made again, clients left out of a round: {self.failures}{lost}"
        )


@dataclass
class RoundLoop:
    """The parts of a run, and its rounds."""

    experiment: Experiment
    class_names: Sequence[str]
    executor: Executor
    tracker: Tracker
    checkpoints: Checkpoints
    progress: Progress
    state: LoopState = field(default_factory=LoopState)
    """Progress of the loop itself."""
    best: Tensors = field(default_factory=dict)
    """The server's state of the selected round so far, path -> tensor; empty where the last round is selected."""
    backup: Backup | None = None
    """Keeps a copy of the run folder."""
    callbacks: Callbacks | None = None
    """Called after every round."""
    stopped: str = ""
    """Why the run ended before its last round; empty: it did not."""
    stopped_by_callback: bool = False
    """True where that was no option's doing."""
    restarts: int = 0
    """Restarts of the server so far."""
    unreported: RoundRecord | None = None
    """Record of the last round, until callbacks had it."""
    _restarts_recorded: int = 0
    _last_recorded: int = -1
    """Last round in the record; a restarted run computes some again, with the same bits, and records none twice."""
    _last_saved: int = 0
    """Round of the last checkpoint."""
    _clients_to_save: set[int] = field(default_factory=set)
    """Clients whose memories changed since the last checkpoint."""
    _runs_all_rounds: bool = False
    """The next round may start early: all rounds are computed, one after the other, by nobody but this loop."""

    def run(self) -> Tensors:
        """Run what is left of the rounds; return the server's state of the selected round."""
        self._runs_all_rounds = True
        try:
            for round_ in self.steps():
                if self._ends_early(round_):
                    break
            return self._with_recovery(partial(self._selected_state, self.state.round), "the end")
        finally:
            self.checkpoints.wait()  # however it ends: whoever comes next finds nobody writing

    def _selected_state(self, last: int) -> Tensors:
        """Return the server's state of the selected round, once the last one is saved."""
        self._run_up_to(last)  # again, where what it should have saved was lost
        self.checkpoints.wait()
        every = self.experiment.evaluation.save_state_every
        if self.stopped_by_callback and every and not self._due(last, every):
            self.checkpoints.keep(last, self.executor.snapshot())
        return self.best or self.executor.snapshot()

    def steps(self) -> Iterator[int]:
        """Run what is left of the rounds; yield each once it is recorded and saved, first the loop's present one."""
        for round_ in range(self.state.round, self.experiment.federation.rounds + 1):
            self._with_recovery(partial(self._run_up_to, round_), f"round {round_}")
            yield round_

    def _ends_early(self, round_: int) -> bool:
        """Report a round to the callbacks; return whether the run ends here, before its last round."""
        callbacks, record, self.unreported = self.callbacks, self.unreported, None
        if callbacks is not None and record is not None:
            callbacks.report(record)
            self.state.stop = callbacks.stop
        if round_ == self.experiment.federation.rounds:
            return False
        every = self.experiment.evaluation.every, self.experiment.cluster.checkpoint_every
        if self._is_out_of_patience(round_):
            rounds = self.state.since_peak
            self.stopped = f"after round {round_}: no better validation score in {rounds} scored rounds"
        elif callbacks is not None and round_ and callbacks.stop and all(self._due(round_, one) for one in every):
            self.stopped, self.stopped_by_callback = f"after round {round_} by callback {callbacks.stop}", True
        else:
            return False
        self.progress.log(f"stopped {self.stopped}")
        return True

    @property
    def goes_on(self) -> bool:
        """True where a round is left to run: an end that a callback asked for is none to whoever has no callback."""
        last = self.state.round
        return last < self.experiment.federation.rounds and not self._is_out_of_patience(last)

    def _is_out_of_patience(self, round_: int) -> bool:
        """Return whether a round that was scored is the last by ``evaluation.patience``."""
        patience = self.experiment.evaluation.patience
        return 0 < patience <= self.state.since_peak and round_ == self.state.round

    def test_selected(self, server_state: Tensors) -> dict[str, Scores]:
        """Return the test scores of the selected model, after the last round."""

        def test() -> dict[str, Scores]:
            self.executor.restore(server_state, {})
            return self.executor.scores(["test"])

        return self._with_recovery(test, "the test of the selected model")

    def test_last(self) -> dict[str, Scores]:
        """Return the test scores of the state after the last round, which its checkpoint has."""
        return self._with_recovery(lambda: self.executor.scores(["test"]), "the test of the last model")

    def client_scores(self, score: Callable[[Callable[[int], Tensors]], T]) -> T:
        """Return what ``score`` makes of the clients' memories after the last round, each of which it may ask for."""
        return self._with_recovery(lambda: score(self.executor.memory), "the test of the clients")

    def resume(self) -> None:
        """Go back to the last checkpoint; to the start where there is none."""
        with suppress(LostError):  # of what it was saving: that is computed again
            self.checkpoints.wait()
        self.state, self.best, self._clients_to_save, self._last_saved = LoopState(), {}, set(), 0
        checkpoint = self.checkpoints.load(self.progress.log)
        if checkpoint is None:
            return
        parts = checkpoint.parts
        self._check_memories(parts)
        try:
            state = _loop_state(checkpoint, self.experiment.federation.rounds)
            server_state, self.best = parts[STATE], parts.get(SELECTED, {})
            self.executor.restore(server_state, _Memories(parts))
        except InputError:  # of data or code that a worker lacks: the checkpoint is as it should be
            raise
        except (ValueError, KeyError) as error:
            path = self.checkpoints.index
            raise InputError(f"{path} is not of this run ({error}); start the run anew in another --output") from error
        self.state, self._last_saved = state, checkpoint.round
        self._last_recorded = max(self._last_recorded, checkpoint.round)

    def _check_memories(self, parts: Mapping[str, Tensors]) -> None:
        """Raise InputError where a checkpoint has numbers for clients' memories, and nobody says where these are."""
        first: Tensors = next((parts[name] for name in parts if name.startswith(MEMORY)), {})
        if ROUND in first and not (self.experiment.cluster.memories or self.experiment.task.sites):
            raise InputError(
                f"{self.checkpoints.index}: what clients keep is not in the checkpoint, but where --cluster.memories"
                " said when it was written: name that place again"
            )

    def _with_recovery(self, work: Callable[[], T], what: str) -> T:
        """Run ``work``; if the server is lost, restart it, go back to the last checkpoint and try again."""
        restarts = 0
        while True:
            try:
                if restarts:
                    self.executor.recover()
                    self.resume()
                return work()
            except LostError as error:
                if restarts == MAX_RESTARTS:
                    raise
                restarts += 1
                self.restarts += 1
                self.progress.log(f"  {what}: {error}; starting it anew and going on from the last checkpoint")

    def _run_up_to(self, round_: int) -> None:
        """Run all rounds up to ``round_`` that are not done; 0: score the initial weights."""
        if round_ == 0:
            self._score_initial_weights()
        for number in range(self.state.round + 1, round_ + 1):
            self._run_round(number)

    def _score_initial_weights(self) -> None:
        """Score the initial weights, while the first clients start: a first sign of life."""
        started = time.perf_counter()
        self.executor.warm_up(self._cohort(1))
        scores, scoring = self._evaluate(0)
        seconds = time.perf_counter() - started
        self._record(0, RoundOutcome(()), scores, seconds, scoring)
        self.progress.round(0, RoundOutcome(()), scores, seconds)

    def _run_round(self, round_: int) -> None:
        started = time.perf_counter()
        # 1. Broadcast, train on the clients, aggregate on the server.
        watch = partial(self.progress.watch, round_)
        outcome = self.executor.round(round_, self._cohort(round_), watch, self._backup_clients(round_))
        # 2. Let the next round's clients start: what follows decides nothing of it.
        self._start_next(round_ + 1)
        # 3. Evaluate; select by the validation split alone.
        scores, scoring = self._evaluate(round_)
        server_state = self.executor.snapshot()
        self._update_state(round_, outcome, scores, server_state)
        seconds = time.perf_counter() - started
        self.state.seconds += seconds
        # 4. Take hold of what has changed at the clients; it is fetched as it is saved, one after the other.
        memories = self._changed_memories(round_)
        # 5. Record. A round that is recorded and not saved is computed again after a kill, with the same bits; so that
        # there is one at most, the round before is saved first.
        self.checkpoints.wait()
        self._record(round_, outcome, scores, seconds, scoring)
        # 6. Save.
        self._save(round_, server_state, memories)
        self.progress.round(round_, outcome, scores, seconds)

    def _start_next(self, round_: int) -> None:
        if round_ > self.experiment.federation.rounds:
            return
        if self._runs_all_rounds:
            self.executor.start_next_round(round_, self._cohort(round_), self._backup_clients(round_))
        else:
            self.executor.warm_up(self._cohort(round_))

    def _evaluate(self, round_: int) -> tuple[dict[str, Scores], float]:
        """Return the scores by split, none where the round is not scored, and the seconds that they took."""
        experiment, started = self.experiment, time.perf_counter()
        if not self._due(round_, experiment.evaluation.every):
            return {}, 0.0
        is_selected = experiment.evaluation.model_selection == "last" and round_ == experiment.federation.rounds
        test = experiment.tested == "always" or (experiment.tested == "last" and is_selected)
        scores = self.executor.scores(["validation", "test"] if test else ["validation"])
        return scores, time.perf_counter() - started

    def _update_state(
        self, round_: int, outcome: RoundOutcome, scores: dict[str, Scores], server_state: Tensors
    ) -> None:
        """Count what went wrong, and keep the server's state where its validation score is the best so far."""
        state = self.state
        state.round = round_
        state.failures += len(outcome.failed)
        state.retries += len(outcome.retried)
        kinds = sorted({*state.faults, *outcome.kinds})
        state.faults = {kind: state.faults.get(kind, 0) + outcome.kinds[kind] for kind in kinds}
        self._clients_to_save |= {*outcome.answered}
        if not scores:
            return
        state.scores = {split: dict(v.values) for split, v in scores.items()}
        if self.experiment.evaluation.patience:
            by = self.experiment.evaluation.chosen_by or FAMILIES[self.experiment.evaluation.metrics].primary
            better = (value := float(scores["validation"].values[by.name])) > state.peak_score
            state.peak_score, state.since_peak = (value, 0) if better else (state.peak_score, state.since_peak + 1)
        measure = self.experiment.evaluation.chosen_by
        if measure is not None and (score := scores["validation"].values[measure.name]) > state.best_score:
            state.best_round, state.best_score, self.best = round_, score, server_state

    def _changed_memories(self, round_: int) -> dict[str, Part]:
        """Return what gives the memories that changed since the last checkpoint, where one is due."""
        if not self._due(round_, self.experiment.cluster.checkpoint_every):
            return {}
        return {f"{MEMORY}{c:05d}": self.executor.memory_later(c) for c in sorted(self._clients_to_save)}

    def _record(
        self, round_: int, outcome: RoundOutcome, scores: dict[str, Scores], seconds: float, scoring: float
    ) -> None:
        """Write the round into the record, unless it was recorded before a restart."""
        if round_ <= self._last_recorded:
            return
        record = record_of(round_, scores, self.class_names)
        metrics = round_metrics(outcome, seconds, scoring, self.experiment.selected_clients)
        metrics["failures/server_restarts"] = self.restarts - self._restarts_recorded
        self.unreported = replace(record, metrics=metrics | record.metrics)
        self.tracker.round(self.unreported)
        self._last_recorded, self._restarts_recorded = round_, self.restarts

    def _save(self, round_: int, server_state: Tensors, memories: dict[str, Part]) -> None:
        """Save a checkpoint where one is due; a kill before its end computes the round again, with the same bits."""
        if (every := self.experiment.evaluation.save_state_every) and self._due(round_, every):
            self.checkpoints.keep(round_, server_state)  # before the round counts as done
        if not self._due(round_, self.experiment.cluster.checkpoint_every):
            return
        selected = {SELECTED: self.best} if self.state.best_round > self._last_saved else {}
        parts: dict[str, Part] = {**memories, **selected, STATE: server_state}
        push = self.backup.push if self.backup else _nothing
        if self._runs_all_rounds:
            self.checkpoints.save_behind(round_, parts, vars(self.state), push)
        else:
            self.checkpoints.save(round_, parts, vars(self.state))
            push()
        self._clients_to_save, self._last_saved = set(), round_

    def _due(self, round_: int, every: int) -> bool:
        """Return whether something that happens every so many rounds, and after the last, happens now."""
        last = round_ == self.experiment.federation.rounds or self._is_out_of_patience(round_)
        return last or round_ % every == 0

    def _cohort(self, round_: int) -> list[int]:
        experiment = self.experiment
        return cohort_of(experiment.federation, experiment.task.clients, round_, experiment.seed)

    def _backup_clients(self, round_: int) -> list[int]:
        experiment, cohort = self.experiment, self._cohort(round_)
        fraction = experiment.federation.backup_fraction
        return backup_clients(experiment.task.clients, cohort, fraction, round_, experiment.seed)


class _Memories(Mapping[int, Tensors]):
    """The clients' memories among the parts of a checkpoint, each read when it is asked for."""

    def __init__(self, parts: Mapping[str, Tensors]) -> None:
        """Raise ValueError where a part is of no kind that there is."""
        self._parts = parts
        self._names = {int(name.removeprefix(MEMORY)): name for name in parts if name not in (STATE, SELECTED)}

    def __getitem__(self, client: int) -> Tensors:
        return self._parts[self._names[client]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _nothing() -> None:
    """Do nothing: there is no backup."""


def _loop_state(checkpoint: Checkpoint, rounds: int) -> LoopState:
    """Return the loop's state out of a checkpoint's notes. ValueError where it cannot be. rounds: of the whole run."""
    state: LoopState = converted(checkpoint.notes, LoopState, "notes")
    if not 0 <= state.best_round <= state.round == checkpoint.round <= rounds:
        raise ValueError(
            f"notes: round {state.round} of {rounds}, best round {state.best_round} in round {checkpoint.round}"
        )
    return state


def round_metrics(outcome: RoundOutcome, seconds: float, scoring: float, selected: int) -> dict[str, float]:
    """Return the metrics of a round beside its scores.

    seconds: of the whole round; scoring: of its evaluation; selected: clients that a round has, in the mean.
    """
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
    if outcome.failed or len(outcome.answered) != selected:  # backup clients came, or Poisson draws were others
        metrics["clients/completed"] = len(outcome.answered)
    return metrics


def record_of(round_: int, scores: Mapping[str, Scores], class_names: Sequence[str]) -> RoundRecord:
    """Return the record of a round's scores. scores: by split."""
    metrics: dict[str, float] = {}
    per_class: dict[str, dict[str, float]] = {}
    for split, s in scores.items():
        metrics |= {f"{split}/{name}": value for name, value in (s.values | s.counts).items()}
        for name, value_C in s.per_class.items():
            per_class[f"{split}/{name}"] = dict(zip(class_names, map(float, value_C), strict=True))
    return RoundRecord(round_, time.time(), metrics, per_class)


def weights_in(state: Tensors) -> Tensors:
    """Return the model's weights out of a server's state, path -> tensor."""
    prefix = "weights/"
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def final_checksum(state: Tensors) -> str:
    """Return the SHA-256 of the final weights, or of what else the server has where it has none."""
    return messages.checksum(weights_in(state) or state)
