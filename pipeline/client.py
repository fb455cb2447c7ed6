"""The clients that one worker serves: their data, cached, and one model as a work-space. Plain torch, no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from pipeline import tree
from pipeline.contract import Global, Tensors
from pipeline.evaluate import Scoring
from pipeline.label_sets import run_key
from pipeline.row_cache import RowCache
from pipeline.setup import Setup
from pipeline.training import Fitted, fit
from tasks.contract import Card, ClientData, InputError
from tasks.metrics import Scores

CPU = torch.device("cpu")
TOLD_ROWS = 1 << 13
"""Rows at a time from which a client makes its message before round 1."""


def device_for(gpus: float, *, must: bool = False) -> torch.device:
    """The device of a process with this GPU share; on a GPU it limits itself to its part of the memory, and float32 is
    float32 in convolutions, too (cuDNN's default rounds their factors to 10 bits). must: InputError where there is no
    GPU; otherwise the CPU, since Ray's GPUs may be logical ones, which a node was started with.
    """
    if gpus <= 0 or not (must or torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        raise InputError(
            f"cluster: {gpus:g} of a GPU is asked for, but this torch ({torch.__version__}) sees none: set client_gpus"
            " and server_gpus to 0, or install torch for CUDA"
        )
    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_per_process_memory_fraction(min(1.0, gpus))
    return torch.device("cuda")


class ClientHost:
    """Trains any client of the run; what it keeps between calls is only what it could read again."""

    def __init__(self, setup: Setup, device: torch.device = CPU) -> None:
        self.device = device
        self.training = setup.training()
        self.prepared = setup.data()
        self.all_cards = self.prepared.cards()
        self.model = setup.model().to(device)
        self.first_memory = self.training.method.first_memory(self.model)
        self.metrics = setup.experiment.evaluation.metrics
        self.rows = RowCache(setup.experiment.cluster.cached_mb)
        self.scored: dict[object, dict[str, Scores]] = {}

    def fit(
        self, client: int, round_: int, broadcast: Global, memory: Tensors, letter: Tensors | None = None
    ) -> Fitted[Any]:
        """One client's round; a pure function of the arguments. Its result lies on the CPU."""
        card, rows = self._client(client)
        sent, own, alone = (
            tree.to(broadcast, self.device),
            tree.to(memory or self.first_memory, self.device),
            tree.to(letter or {}, self.device),
        )
        fitted = fit(self.training, self.model, card, rows, sent, own, round_, alone)
        return replace(fitted, update=tree.to(fitted.update, CPU), memory=tree.to(fitted.memory, CPU))

    @cached_property
    def scoring(self) -> Scoring:
        """Scores models on the server's splits, which are read when they are first asked for."""
        return Scoring(self.prepared, self.training.objective, self.metrics)

    def scores(self, sent: Global, memory: Tensors, splits: Sequence[str]) -> dict[str, Scores]:
        """Scores of the own model of the client that has this memory. sent: what it would be sent now. Those of a
        model that was scored before, since its client has not taken part meanwhile, are the ones it had.
        """
        own = tree.to(memory or self.first_memory, self.device)
        model = self.training.method.own(self.model, tree.to(sent, self.device), own)
        if model is not self.model:  # more than the weights decides, such as prototypes
            return self.scoring.scores(model, splits)
        key = tree.checksum(model.state_dict()), *splits
        found = self.scored.pop(key, None) or self.scoring.scores(model, splits)
        self.scored[key] = found  # the one asked for last comes last
        if len(self.scored) > len(self.all_cards):
            del self.scored[next(iter(self.scored))]
        return found

    def tell(self, client: int) -> object:
        """The message of a client before round 1."""
        rows = self.prepared.sparse_client(client)
        parts = (rows.part(start, start + TOLD_ROWS) for start in range(0, len(rows), TOLD_ROWS))
        return self.training.method.tell(self.all_cards[client], parts, run_key(self.training.seed))

    def _client(self, client: int) -> tuple[Card, ClientData]:
        return self.rows.get(client, lambda: self._read(client))

    def _read(self, client: int) -> tuple[Card, ClientData]:
        card, rows = self.all_cards[client], self.prepared.client(client, self.training.objective)
        # length_N stays on the CPU: it only decides how a mini-batch is cut.
        moved = {n: getattr(rows, n).to(self.device) for n in ("x", "y_NC", "known_NC", "weight_NC")}
        card = replace(card, count_C=card.count_C.to(self.device), aware_C=card.aware_C.to(self.device))
        return card, replace(rows, **moved, scaling=rows.scaling.to(self.device))
