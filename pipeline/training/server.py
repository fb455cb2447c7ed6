"""The server's half of a run: the method's state, merged round by round, and its scores. Plain torch, no Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import norm_of, out_of_scale
from anchorfl.pipeline.algorithm.contract import ClientResult, ServerContext, ServerState, Tensors
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.algorithm.update_filters import filters_of
from anchorfl.pipeline.training.client import CPU
from anchorfl.pipeline.training.errors import RejectedError
from anchorfl.pipeline.training.evaluation import Scoring, evaluate
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.prepared import SERVER_SPLITS
from anchorfl.tasks.metrics.scores import Floats, Scores


class Server:
    """Holds the state; every verb but ``aggregate``, ``finish_round`` and ``restore`` leaves it as it is."""

    def __init__(self, run_spec: RunSpec, initial_messages: Sequence[Any] = (), device: torch.device = CPU) -> None:
        """initial_messages: what the clients sent before round 1, in their order (``Method.initial_message``); device:
        on which it scores. The state and the method's steps are on the CPU.
        """
        data, objective = run_spec.data(), run_spec.objective()
        self.run_spec = run_spec
        self.method = run_spec.experiment.method
        self.aggregator = run_spec.experiment.federation.aggregator
        self.filters = filters_of(self.aggregator)
        self.objective = objective
        self.cards = data.cards()
        self.model = run_spec.model()
        self.scorer = self.model if device == CPU else run_spec.model().to(device)
        self.data = data
        first = SERVER_SPLITS if self.method.evaluate_on == "server" else ()
        self.scoring = Scoring(data, objective, run_spec.experiment.evaluation.metrics, first)
        self.splits = self.scoring.dense
        self.state: ServerState = self.method.begin(replace(self._context(0), initial_messages=initial_messages))
        self._sent: tuple[int, ServerState] = (-1, self.state)
        # weights that were scored last, and F1 per class on validation: a gate asks for those of the round before
        self._validated: tuple[Tensors, Floats] | None = None

    def broadcast(self, round_: int) -> ServerState:
        """Return the message to all selected clients of this round."""
        state: ServerState = self.method.broadcast(self.state, self._context(round_))
        self._sent = round_, state  # what the updates of the round are held against
        return state

    def client_message(self, client: int) -> Tensors:
        """Return the message to this client alone; {} where the method sends none."""
        return self.method.client_message(self.state, self.cards[client]) if self.method.sends_client_messages else {}

    def finish_round(self, round_: int, weights: Tensors, answered_C: Tensor) -> None:
        """Take in a round that was computed at once (``Method.batched_round``)."""
        batched_round = self.method.batched_round()
        if batched_round is None:
            raise ValueError(f"{self.method.name} has no pooled rounds")
        self.state = batched_round.finish_round(self.state, weights, answered_C, self._context(round_))

    def aggregate(self, round_: int, clients: Sequence[int], updates: Sequence[Any]) -> dict[str, float]:
        """Merge the updates of ``clients``, both in ascending order of client. Returns by the name of the metric the
        seconds that it took, how many were clipped, and how many Krum left out, where the options say to. RejectedError
        where some cannot be merged, or would leave weights that nobody can train from; then none is.
        """
        began = time.perf_counter()
        if list(clients) != sorted(set(clients)) or len(clients) != len(updates):
            raise ValueError(f"round {round_}: updates must come once per client and in order, got {list(clients)}")
        sent_round, sent = self._sent
        if sent_round != round_:
            sent = self.broadcast(round_)
        faults = {
            c: messages.shape_mismatch(u.weights, sent.weights) or messages.not_finite(u)
            for c, u in zip(clients, updates, strict=True)
        }
        if rejected := {client: fault for client, fault in faults.items() if fault}:
            raise RejectedError(rejected)
        norms, sent_norm = [norm_of(u.weights) for u in updates], norm_of(sent.weights)
        large = out_of_scale(norms, sent_norm)
        if any(large):
            reason = "its weights have the norm {:.3g}, and those that it was sent {:.3g}"
            named = {c: reason.format(n, sent_norm) for c, n, bad in zip(clients, norms, large, strict=True) if bad}
            raise RejectedError(named)
        results: Sequence[ClientResult[Any]]
        results = [ClientResult(self.cards[c], u) for c, u in zip(clients, updates, strict=True)]
        counts: dict[str, float] = {}
        for step in self.filters:
            results, metrics = step.apply(results, sent.weights)
            counts |= metrics
        merged = self.method.aggregate(self.state, results, self._context(round_))
        if fault := messages.not_finite(merged.weights):
            largest = clients[norms.index(max(norms))]
            raise RejectedError({largest: f"merged with its update, the largest, {fault}"})
        self.state = merged
        return counts | {"time/aggregate": time.perf_counter() - began}

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Score the current weights on ``splits`` (validation, test); a split without rows is left out."""
        self.scorer.load_state_dict(self.state.weights)
        scores = self.scoring.scores(self.scorer, splits)
        if "validation" in scores and (f1_C := scores["validation"].per_class.get("f1")) is not None:
            self._validated = self.state.weights, f1_C
        return scores

    def snapshot(self) -> Tensors:
        """Return the state as path -> tensor."""
        return dict(messages.tensors(self.state))

    def restore(self, values: Tensors) -> None:
        """Take the state back from ``snapshot``; ValueError where it is another method's."""
        self.state = messages.fill(self.state, values)
        self._sent = (-1, self.state)

    def _context(self, round_: int) -> ServerContext:
        experiment = self.run_spec.experiment
        return ServerContext(
            self.model, self.cards, self.objective, self._validate,
            torch_rng(experiment.seed, "server", "round", round_), round_, experiment.federation.rounds,
            concepts_CMD=self.run_spec.concepts_CMD, spec=self.data.manifest.spec, workspace=self.scorer,
            average=self.aggregator.average,
        )  # fmt: skip

    def _validate(self, weights: Tensors) -> Tensor:
        if self._validated is not None and self._validated[0] is weights:
            return torch.tensor(self._validated[1])
        rows = self.splits["validation"]
        if not len(rows):
            raise InputError(
                "this method needs validation rows (a gate on F1, for example): set task.validation above 0"
            )
        return torch.tensor(evaluate(self.scorer, weights, rows, self.objective).f1_C)
