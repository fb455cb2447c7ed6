"""The clients that one worker serves: their data, cached, and one model as a work-space. Plain torch, no Ray."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ServerState, Tensors
from anchorfl.pipeline.algorithm.label_collection import run_key
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.training.allocator import keep_freed_memory
from anchorfl.pipeline.training.evaluation import Scoring
from anchorfl.pipeline.training.local_training import FitResult, begin_fit, end_fit, local_steps
from anchorfl.pipeline.training.row_cache import MEGABYTE, RowCache
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.pipeline.training.secure_round import Masking, SecureRound
from anchorfl.pipeline.training.side_by_side import Lanes, Work, returned
from anchorfl.pipeline.training.stacked_training import Member, Stack, Workspace, check_trainer, groups_of
from anchorfl.tasks.contract import Card, ClientData
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.metrics.scores import Scores

CPU = torch.device("cpu")
LANES = 4
"""Clients that train at once on a GPU (docs/speed.md, "On a GPU")."""
CUDA_CONTEXT = 1 << 29
"""Bytes of a GPU that CUDA takes for a process, about, beside all that torch allocates."""
CACHED_SHARE = 0.25
"""Part of a process's share of a GPU that clients' rows may take."""
MESSAGE_ROWS = 1 << 13
"""Rows at a time from which a client makes its message before round 1."""


def device_for(gpus: float, *, must: bool = False) -> torch.device:
    """Return the device of a process with this GPU share, which on a GPU limits itself to its part of the memory: what
    torch allocates, to that part less ``CUDA_CONTEXT``. InputError where that leaves less than as much again.

    Float32 then is float32 in convolutions, too (cuDNN's default rounds their factors to 10 bits), and their sums have
    one order, so that a seed gives one result. must: InputError where there is no GPU; otherwise the CPU, since Ray's
    GPUs may be logical ones, which a node was started with.
    """
    if gpus <= 0 or not (must or torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        raise InputError(
            f"cluster: {gpus:g} of a GPU is asked for, but this torch ({torch.__version__}) sees none: set client_gpus"
            " and server_gpus to 0, or install torch for CUDA"
        )
    total = torch.cuda.get_device_properties(0).total_memory
    part = min(1.0, gpus) * total
    if part < 2 * CUDA_CONTEXT:
        raise InputError(
            f"cluster: {gpus:g} of this GPU is {part / 2**30:.2f} GiB, of which CUDA takes about half a GiB for each"
            f" process: set client_gpus to {math.ceil(200 * CUDA_CONTEXT / total) / 100:g} or more"
        )
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.cuda.set_per_process_memory_fraction((part - CUDA_CONTEXT) / total)
    return torch.device("cuda")


def cached_megabytes(options: ClusterOptions, device: torch.device) -> float:
    """Return how much memory clients' rows may take on a device: ``client_cache_mb``, and on a GPU no more than
    ``CACHED_SHARE`` of what the process may allocate.
    """
    if device == CPU or not torch.cuda.is_available():
        return options.client_cache_mb
    limit = torch.cuda.get_per_process_memory_fraction() * torch.cuda.get_device_properties(0).total_memory
    return min(options.client_cache_mb, CACHED_SHARE * limit / MEGABYTE)


@dataclass(frozen=True, slots=True)
class FitCall:
    """What a client is given in a round."""

    client: int
    broadcast: ServerState
    memory: Tensors
    """{}: it has none yet."""
    client_message: Tensors
    """To it alone."""
    secure: SecureRound | None = None
    """Where its update is for the sum alone: a ``MaskedUpdate`` is sent in its place."""


class ClientRunner:
    """Trains any client of the run; what it keeps between calls is only what it could read again."""

    def __init__(self, run_spec: RunSpec, device: torch.device = CPU) -> None:
        keep_freed_memory()
        self.device = device
        self.training = run_spec.training()
        self.prepared = run_spec.data()
        self.all_cards = self.prepared.cards()
        self.model = run_spec.model().to(device)
        self.first_memory = self.training.method.first_memory(self.model)
        self.metrics = run_spec.experiment.evaluation.metrics
        self.clip_norm = run_spec.experiment.federation.clip_norm
        self.secret = run_key(self.training.seed)
        """Of this process's clients, for secure aggregation: no secret in a simulation."""
        self.models = {0: self.model}
        self.lanes = Lanes(1 if device == CPU else LANES)
        """Clients that train at once."""
        self.rows = RowCache(cached_megabytes(run_spec.experiment.cluster, device))
        self.cached_scores: dict[object, dict[str, Scores]] = {}

    def fit(
        self, client: int, round_: int, broadcast: ServerState, memory: Tensors, client_message: Tensors | None = None,
        secure: SecureRound | None = None,
    ) -> FitResult[Any]:  # fmt: skip
        """Train a client in a round; a pure function of the arguments. Its result lies on the CPU."""
        return returned(self._fit(round_, FitCall(client, broadcast, memory, client_message or {}, secure), 0))

    def fit_all(self, round_: int, calls: Iterable[FitCall]) -> Iterator[tuple[FitCall, FitResult[Any] | Exception]]:
        """Train clients in a round, in their order; yield each one's result, or what went wrong with it. As ``fit``,
        bit for bit. A call is asked for when its client begins.
        """
        begun = deque[FitCall]()

        def works() -> Iterator[Work[FitResult[Any]]]:
            for call in calls:
                begun.append(call)
                yield partial(self._fit, round_, call)

        for result in self.lanes.run(works()):
            call = begun.popleft()
            if isinstance(result, PreparedDataError):
                raise result
            if isinstance(result, torch.OutOfMemoryError):  # the next attempt has all the room that there is
                self._free()
            yield call, result

    def _free(self) -> None:
        """Give back what is kept for speed alone."""
        self.rows.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fit(self, round_: int, call: FitCall, lane: int) -> Generator[None, None, FitResult[Any]]:
        began = time.perf_counter()
        card, rows = self._client(call.client)
        broadcast, memory, sent = call.broadcast, call.memory or self.first_memory, call.client_message
        if self.device != CPU:
            broadcast, memory = messages.to(broadcast, self.device), messages.to(memory, self.device)
            sent = messages.to(sent, self.device)
        fitting = begin_fit(self.training, self._model(lane), card, rows, broadcast, memory, round_, sent)
        loss = yield from local_steps(self.training, fitting, lane)
        return self._sent(end_fit(fitting.trainer, loss, began), call.client, round_, call.broadcast, call.secure)

    def _sent(
        self, result: FitResult[Any], client: int, round_: int, broadcast: ServerState, secure: SecureRound | None
    ) -> FitResult[Any]:
        """Return a client's result on the CPU, its update as it is sent."""
        if self.device != CPU:
            result = replace(result, update=messages.to(result.update, CPU), memory=messages.to(result.memory, CPU))
        if secure is None:
            return result
        sent = messages.to(broadcast, CPU)
        masking = Masking(self.training.method, self.clip_norm, self.secret)
        return replace(result, update=masking.masked(self.all_cards[client], round_, sent, result.update, secure))

    def _model(self, lane: int) -> Classifier:
        """Return the work-space of a lane."""
        if lane not in self.models:
            self.models[lane] = copy.deepcopy(self.model)
        return self.models[lane]

    def fit_stacked(
        self,
        round_: int,
        broadcast: ServerState,
        memories: Mapping[int, Tensors],
        client_messages: Mapping[int, Tensors],
        size: int,
        secure: SecureRound | None = None,
    ) -> Iterator[tuple[int, FitResult[Any] | Exception]]:
        """Train the clients that have a message, be it empty, as stacks of at most ``size``; yield each one's result,
        or what went wrong with it. As ``fit``, up to rounding. A stack that fails, or runs out of memory, is halved.
        """
        broadcast = messages.to(broadcast, self.device)
        waiting = deque[tuple[list[int], int]]([([*client_messages], size)])
        while waiting:
            clients, size = waiting.popleft()
            members = list[Member]()
            for client in clients:
                memory = messages.to(memories.get(client) or self.first_memory, self.device)
                try:
                    card, rows = self._client(client)
                    sent = messages.to(client_messages[client], self.device)
                    fitting = begin_fit(self.training, self.model, card, rows, broadcast, memory, round_, sent)
                    members.append(Member(fitting, fitting.trainer.data(), weights_of(self.model)))
                except PreparedDataError:
                    raise
                except Exception as error:  # costs this client alone
                    yield client, error
                    continue
                check_trainer(fitting.trainer)
            for group in groups_of(members, size):
                try:
                    yield from self._fit_stack(round_, broadcast, group, secure)
                except InputError:
                    raise
                except Exception as error:  # out of memory, or the fault of one of them
                    numbers = [member.fitting.trainer.ctx.card.client for member in group]
                    if len(numbers) > 1:  # once the others are done
                        waiting.append((numbers, (len(numbers) + 1) // 2))
                    else:
                        yield numbers[0], error
            if waiting:
                members.clear()
                self._free()

    def _fit_stack(
        self, round_: int, broadcast: ServerState, group: Sequence[Member], secure: SecureRound | None
    ) -> Iterator[tuple[int, FitResult[Any] | Exception]]:
        """Train a stack; yield each client's result, or what went wrong with it. Whatever the steps raise comes before
        the first.
        """
        numbers = [member.fitting.trainer.ctx.card.client for member in group]
        stack = Stack(self.training, self.workspace, group)
        stack.train()
        for k, client in enumerate(numbers):
            try:
                result = self._sent(stack.result(k), client, round_, broadcast, secure)
            except Exception as error:  # costs this client alone
                yield client, error
                continue
            yield client, result

    @cached_property
    def workspace(self) -> Workspace:
        """The networks of stacks."""
        return Workspace(self.model)

    @cached_property
    def scoring(self) -> Scoring:
        """Scoring on the server's splits, which are read when they are first asked for."""
        return Scoring(self.prepared, self.training.objective, self.metrics)

    def scores(self, sent: ServerState, memory: Tensors, splits: Sequence[str]) -> dict[str, Scores]:
        """Return the scores of the personal model of the client with this memory. sent: what it would be sent now.

        A model that was scored before, since its client has not taken part meanwhile, is not scored again.
        """
        model = self.personal_model(sent, memory)
        if model is not self.model:  # more than the weights decides, such as prototypes
            return self.scoring.scores(model, splits)
        key = messages.checksum(model.state_dict()), *splits
        scores = self.cached_scores.pop(key, None) or self.scoring.scores(model, splits)
        self.cached_scores[key] = scores  # the one asked for last comes last
        if len(self.cached_scores) > len(self.all_cards):
            del self.cached_scores[next(iter(self.cached_scores))]
        return scores

    def personal_model(self, sent: ServerState, memory: Tensors) -> Classifier:
        """Return the model of the client with this memory, until another is asked for. sent: as in ``scores``."""
        memory = messages.to(memory or self.first_memory, self.device)
        return self.training.method.personal_model(self.model, messages.to(sent, self.device), memory)

    def initial_message(self, client: int) -> object:
        """Return the message of a client before round 1."""
        rows = self.prepared.sparse_client(client)
        parts = (rows.part(start, start + MESSAGE_ROWS) for start in range(0, len(rows), MESSAGE_ROWS))
        return self.training.method.initial_message(self.all_cards[client], parts, run_key(self.training.seed))

    def _client(self, client: int) -> tuple[Card, ClientData]:
        return self.rows.get(client, lambda: self._read(client))

    def _read(self, client: int) -> tuple[Card, ClientData]:
        card, rows = self.all_cards[client], self.prepared.client(client, self.training.objective)
        # length_N stays on the CPU: it only decides how a mini-batch is cut.
        moved = {n: getattr(rows, n).to(self.device) for n in ("x", "y_NC", "known_NC", "weight_NC")}
        card = replace(card, count_C=card.count_C.to(self.device), identified_C=card.identified_C.to(self.device))
        return card, replace(rows, **moved, scaling=rows.scaling.to(self.device))
