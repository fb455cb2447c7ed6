"""The clients that one worker serves: their data, cached, and one model as a work-space. Plain torch, no Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pipeline import tree
from pipeline.contract import Global, Tensors
from pipeline.setup import Setup
from pipeline.training import Fitted, fit
from tasks.contract import Card, ClientData

CPU = torch.device("cpu")


class ClientHost:
    """Trains any client of the run; what it keeps between calls is only what it could read again."""

    def __init__(self, setup: Setup, device: torch.device = CPU) -> None:
        self.device = device
        self.training = setup.training()
        self.prepared = setup.data()
        self.all_cards = self.prepared.cards()
        self.model = setup.model().to(device)
        self._rows: dict[int, tuple[Card, ClientData]] = {}

    def fit(self, client: int, round_: int, broadcast: Global, memory: Tensors) -> Fitted[Any]:
        """One client's round; a pure function of the arguments. Its result lies on the CPU."""
        card, rows = self._client(client)
        sent, own = tree.to(broadcast, self.device), tree.to(memory, self.device)
        fitted = fit(self.training, self.model, card, rows, sent, own, round_)
        return replace(fitted, update=tree.to(fitted.update, CPU), memory=tree.to(fitted.memory, CPU))

    def _client(self, client: int) -> tuple[Card, ClientData]:
        if client not in self._rows:
            card, rows = self.all_cards[client], self.prepared.client(client, self.training.objective)
            # length_N stays on the CPU: it only decides how a mini-batch is cut.
            moved = {n: getattr(rows, n).to(self.device) for n in ("x", "y_NC", "known_NC", "weight_NC")}
            card = replace(card, count_C=card.count_C.to(self.device), aware_C=card.aware_C.to(self.device))
            self._rows[client] = (card, replace(rows, **moved))
        return self._rows[client]
