"""The server's half of a run: the method's state, merged round by round, and its scores. Plain torch, no Ray."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import LARGEST_RATIO, mean_of, norm_of, out_of_scale
from anchorfl.pipeline.algorithm.contract import ClientResult, ServerContext, ServerState, Tensors, given
from anchorfl.pipeline.algorithm.exact_sums import Grid, bounds_of
from anchorfl.pipeline.algorithm.label_collection import run_key
from anchorfl.pipeline.algorithm.parameters import tied_weights
from anchorfl.pipeline.algorithm.seeds import noise_rng, torch_rng
from anchorfl.pipeline.algorithm.update_filters import filters_of
from anchorfl.pipeline.training.client import CPU
from anchorfl.pipeline.training.errors import RejectedError, UpdateError
from anchorfl.pipeline.training.evaluation import Scoring, evaluate
from anchorfl.pipeline.training.gathering import Gathering, Part
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.pipeline.training.secure_round import Clients, MaskedSum, SecureRound, SimulatedClients
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.prepared import SERVER_SPLITS
from anchorfl.tasks.metrics.scores import Floats, Scores


@dataclass
class _Round:
    """A round whose updates come in."""

    number: int
    sent: ServerState
    """What they are held against."""
    norm: float
    """Of the weights that were sent."""
    grid: Grid | None
    gathering: Gathering
    masked: MaskedSum | None = None
    """What came in of a round with ``federation.secure_aggregation``."""
    faults: dict[int, str] = field(default_factory=dict)
    """Client -> why its update cannot be merged."""

    @property
    def collected(self) -> Collection[int]:
        """Clients whose updates came in, and can be merged."""
        return self.gathering.norms.keys() if self.masked is None else self.masked.answered


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
        federation = run_spec.experiment.federation
        self.secure = federation.secure_aggregation
        self.clients: Clients | None = None
        # the clients of a secure round cut their steps themselves: nobody else sees one
        self.filters = [] if self.secure else filters_of(self.aggregator)
        self.privacy = federation.client_privacy(len(data.cards()))
        # now, since what it lacks or refuses should not be found out in the last round
        self.epsilon = self.privacy.epsilon(federation.rounds) if self.privacy else 0.0
        self.objective = objective
        self.cards = data.cards()
        self.model = run_spec.model()
        self.tied = tied_weights(self.model)
        texts = run_spec.texts()
        self.texts = None if texts is None else texts.to(device)
        self.scorer = self.model if device == CPU else run_spec.model().to(device)
        self.data = data
        first = SERVER_SPLITS if self.method.evaluate_on == "server" else ()
        self.scoring = Scoring(data, objective, run_spec.experiment.evaluation.metrics, first)
        self.splits = self.scoring.dense
        self.gathering = Gathering(self.method, self.cards)
        self._round: _Round | None = None
        self.largest_weights = self._largest_weights()
        self.state: ServerState = self.method.begin(replace(self._context(0), initial_messages=initial_messages))
        given(self.state, ServerState, "begin", self.method)
        self._sent: tuple[int, ServerState] = (-1, self.state)
        # weights that were scored last, and F1 per class on validation: a gate asks for those of the round before
        self._validated: tuple[Tensors, Floats] | None = None

    def broadcast(self, round_: int) -> ServerState:
        """Return the message to all selected clients of this round."""
        state = self.method.broadcast(self.state, self._context(round_))
        given(state, ServerState, "broadcast", self.method)
        state = self._with_ties(state)
        self._sent = round_, state  # what the updates of the round are held against
        if self._round is not None and round_ == self._round.number:
            self._round = None  # it begins anew
        return state

    def client_message(self, client: int) -> Tensors:
        """Return the message to this client alone; {} where the method sends none."""
        return self.method.client_message(self.state, self.cards[client]) if self.method.sends_client_messages else {}

    def finish_round(self, round_: int, weights: Tensors, answered_C: Tensor) -> None:
        """Take in a round that was computed at once (``Method.batched_round``)."""
        batched_round = self.method.batched_round()
        if batched_round is None:
            raise ValueError(f"{self.method.name} has no pooled rounds")
        self._take(self._with_ties(batched_round.finish_round(self.state, weights, answered_C, self._context(round_))))

    def grid(self, round_: int) -> Grid | None:
        """Return the grid on which workers may sum updates of this round; None where the server needs every update."""
        return self._begin(round_).grid if not self.filters and not self.secure else None

    def secure_round(self, round_: int, clients: Sequence[int]) -> SecureRound | None:
        """Begin a round whose updates come under masks: ask these clients, all that may answer, for their keys, and
        return what each of them is given. None where ``federation.secure_aggregation`` is off.
        """
        if not self.secure:
            return None
        begun = self._begin(round_)
        assert begun.grid is not None  # pipeline/run/prepare.py refuses methods without one
        self.clients = self.clients or SimulatedClients(run_key(self.run_spec.experiment.seed))
        secure = SecureRound(begun.grid, self.clients.keys(round_, clients))
        begun.masked = MaskedSum(round_, secure, self.clients)
        return secure

    def collect(self, round_: int, client: int, update: Any) -> None:
        """Take in a client's update, which must not change before ``aggregate``. That refuses what cannot be merged."""
        begun = self._begin(round_)
        if client in begun.faults or client in begun.collected:
            raise ValueError(f"round {round_}: client {client} has sent its update already")
        if begun.masked is not None:
            if fault := begun.masked.add(client, update):
                begun.faults[client] = fault
            return
        nested = not all(isinstance(value, Tensor) for value in update.weights.values())
        fault = "its weights are no tensors by their names" if nested else ""
        fault = fault or messages.shape_mismatch(update.weights, begun.sent.weights) or messages.not_finite(update)
        if fault:
            begun.faults[client] = fault
            return
        try:
            begun.gathering.add(client, update)
        except UpdateError as error:
            begun.faults[client] = str(error)

    def collect_part(self, round_: int, part: Part) -> None:
        """Take in what a worker made of several clients' updates. With a grid, it is not read any more afterwards."""
        begun = self._begin(round_)
        fault = messages.not_finite(part.sums) or _other_shape(part.sums, begun.sent.weights) if part.sums else ""
        if fault:
            begun.faults |= dict.fromkeys(part.norms, f"its sum with other clients', {fault}")
        else:
            begun.gathering.add_part(part)
        for client, update in part.whole.items():
            self.collect(round_, client, update)
        begun.gathering.flush()

    def aggregate(self, round_: int, clients: Sequence[int]) -> dict[str, float]:
        """Merge the updates of ``clients``, which are those that were collected. Returns by the name of the metric the
        seconds that it took, how many were clipped, and how many Krum left out, where the options say to. RejectedError
        where some cannot be merged, or would leave weights that nobody can train from; then none is, and those that are
        not named stay collected.
        """
        began_at, begun = time.perf_counter(), self._begin(round_)
        gathering = begun.gathering
        if {*clients} != {*begun.collected, *begun.faults}:
            raise ValueError(f"round {round_}: updates of {sorted(begun.collected)} to merge, not of {sorted(clients)}")
        faults, sent_norm = begun.faults, begun.norm
        faults |= gathering.drop_others() if begun.masked is None else begun.masked.drop_others()
        order = sorted(gathering.norms)
        norms = [gathering.norms[client] for client in order]
        # with privacy each by itself: one client must not decide whether others count
        large_I = [out_of_scale([n], sent_norm)[0] for n in norms] if self.privacy else out_of_scale(norms, sent_norm)
        for client, norm, large in zip(order, norms, large_I, strict=True):
            if large:
                faults[client] = f"its weights have the norm {norm:.3g}, and those that it was sent {sent_norm:.3g}"
                gathering.drop(client)
        if faults:
            begun.faults = {}
            raise RejectedError(faults)
        if begun.masked is not None:
            gathering.begin(begun.grid)
            gathering.add_part(begun.masked.part())
        merged, counts = self._merge(begun, self._context(round_))
        merged = self._with_ties(merged)
        if fault := messages.not_finite(merged.weights):
            if begun.masked is not None:  # it may be anybody's doing
                begun.masked.clear()
                raise RejectedError(dict.fromkeys(clients, f"merged, {fault}"))
            largest = order[norms.index(max(norms))]
            again = [] if gathering.drop(largest) else [client for client in order if client != largest]
            if again:  # a sum does not give a client back
                gathering.begin(begun.grid)
            by = f"merged by {type(self.method).__name__} with its update, the largest and finite"
            raise RejectedError({largest: f"{by}, {fault}"}, again)
        if fault := messages.not_finite(
            {f.name: getattr(merged, f.name) for f in fields(merged) if f.name != "weights"}
        ):
            raise InputError(
                f"round {round_}: the server's own step, not a client, left what nobody can train with: {fault}; lower"
                " the rates and weights in [method]"
            )
        if begun.masked is not None:
            counts["communication/key_exchange_bytes"] = float(begun.masked.exchanged_bytes)
        self._take(merged)
        return counts | {"time/aggregate": time.perf_counter() - began_at}

    def _merge(self, begun: _Round, ctx: ServerContext) -> tuple[ServerState, dict[str, float]]:
        """Return the state after the round, and the counts of the filters."""
        gathering, counts = begun.gathering, dict[str, float]()
        if self.filters or begun.grid is None:
            results: Sequence[ClientResult[Any]] = gathering.results()
            for step in self.filters:
                results, metrics = step.apply(results, begun.sent.weights)
                counts |= metrics
            if begun.grid is None:
                merged = self.method.aggregate(self.state, results, ctx)
                given(merged, ServerState, "aggregate", self.method)
                return merged, counts
            gathering = Gathering(self.method, self.cards)
            gathering.begin(begun.grid)
            for result in results:
                gathering.add(result.card.client, result.update)
        merged = self.method.merge(self.state, gathering.means(), ctx)
        given(merged, ServerState, "merge", self.method)
        if self.privacy is None:
            return merged, counts
        # by the answers, too: a round that is computed again may have others, which the same noise would uncover
        answers, mean = len(gathering.norms), messages.checksum(merged.weights)
        rng = noise_rng(self.run_spec.experiment.seed, "client privacy", "round", begun.number, answers, mean)
        weights = self.privacy.private_mean(merged.weights, begun.sent.weights, answers, rng)
        weights |= {name: begun.sent.weights[name] for name in self.method.constant}
        if ctx.round == ctx.rounds:
            counts["privacy/epsilon"] = self.epsilon
        return replace(merged, weights=weights), counts

    def _with_ties(self, state: ServerState) -> ServerState:
        """Return a state whose tied weights are one: a method changes them by their first name alone."""
        if not self.tied:
            return state
        tied = {name: state.weights[first].clone() for name, first in self.tied.items() if first in state.weights}
        return replace(state, weights={**state.weights, **tied})

    def _begin(self, round_: int) -> _Round:
        """Return the round, which begins where another one, or none, has begun."""
        if self._round is None or self._round.number != round_:
            sent_round, sent = self._sent
            if sent_round != round_:
                sent = self.broadcast(round_)
            norm = norm_of(sent.weights)
            grid = self._grid(norm)
            self.gathering.begin(None if self.filters else grid)
            self._round = _Round(round_, sent, norm, grid, self.gathering)
        return self._round

    def _grid(self, norm: float) -> Grid | None:
        """Return the grid of a round whose clients were sent weights of this norm; None where the method has to see
        every update, or each of their values.
        """
        if not self.method.sums or self.aggregator.average is not mean_of:
            return None
        fields = {name: getattr(self.state, name) for name in self.method.averaged}
        named = {name: value if isinstance(value, dict) else {name: value} for name, value in fields.items()}
        bounds = {name: bounds_of(tensors) for name, tensors in named.items()}
        return Grid(bounds, self.largest_weights, LARGEST_RATIO * max(1.0, norm))

    def _take(self, state: ServerState) -> None:
        """Make this the state. A round that had begun is forgotten."""
        self.state, self._round = state, None
        self.gathering.begin(None)

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
        self._take(messages.fill(self.state, values))
        self._sent = (-1, self.state)

    def _largest_weights(self) -> dict[str, float]:
        """Return the largest sum of the weights of all clients that may answer in a round, by term."""
        rows_I, experiment = torch.tensor(self.cards.rows), self.run_spec.experiment
        drawn = experiment.federation.selection == "poisson"  # each client by itself: a round may have them all
        most = len(rows_I) if drawn else experiment.selected_clients
        each = self.method.largest_weights(rows_I)
        return {name: float(weight_I.sort(descending=True).values[:most].sum()) for name, weight_I in each.items()}

    def _context(self, round_: int) -> ServerContext:
        experiment = self.run_spec.experiment
        return ServerContext(
            self.model, self.cards, self.objective, self._validate,
            torch_rng(experiment.seed, "server", "round", round_), round_, experiment.federation.rounds,
            concepts_CMD=self.run_spec.concepts_CMD, texts=self.texts, spec=self.data.manifest.spec,
            workspace=self.scorer, average=self.aggregator.average,
            noise_rng=noise_rng(experiment.seed, "server", "round", round_),
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


def _other_shape(sums: Mapping[str, Any], sent: Tensors) -> str:
    """Return the first tensor of a worker's sums that has another shape than the weight of its name; '' for none."""
    for term in sums["sums"].values():
        for name, value in term["values"].items():
            if name in sent and value.shape != sent[name].shape:
                return f"tensor {name!r} is {tuple(value.shape)}, expected {tuple(sent[name].shape)}"
    return ""
