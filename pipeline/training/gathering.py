"""The updates of a round as they come in: on the server, and on a worker that sends it one sum for several clients."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import mean_of, norm_of
from anchorfl.pipeline.algorithm.contract import ClientResult, Method
from anchorfl.pipeline.algorithm.exact_sums import Contribution, ExactSums, Grid, Means, is_weight, means_of
from anchorfl.pipeline.training.errors import UpdateError
from anchorfl.tasks.contract import Card


@dataclass(frozen=True)
class Part:
    """What a worker sends of the clients of a call."""

    sums: Mapping[str, Any] = field(default_factory=dict)
    """``ExactSums.message`` of two clients or more, or {}."""
    norms: Mapping[int, float] = field(default_factory=dict)
    """Norms of the weights of the clients in the sums."""
    whole: Mapping[int, Any] = field(default_factory=dict)
    """Updates of the other clients."""


class Gathering:
    """Takes in updates in any order and gives the same bits.

    Updates that fit the grid are in one sum, as soon as there are two; all others are kept as they came. Two, so that
    the mean of one client is that client's to the bit.
    """

    def __init__(self, method: Method[Any, Any], cards: Sequence[Card]) -> None:
        self.method, self.cards = method, cards
        self.sums = ExactSums()
        self.begin(None)

    def begin(self, grid: Grid | None) -> None:
        """Forget all. grid: of the round; None: keep every update."""
        self.grid = grid
        self.sums.clear()
        self.norms: dict[int, float] = {}
        self.whole: dict[int, Any] = {}
        self._first: int | None = None
        self._forms: dict[Hashable, list[int]] = {}
        """Clients by the form of what they contribute. Those of another form than the first are in no sum."""

    def add(self, client: int, update: Any) -> None:
        """Take in an update, which is read until ``flush``. It is copied where it has to be kept and there is a grid;
        without one it stays where it lies. UpdateError where it has no weight that a mean can have.
        """
        card, norm = self.cards[client], norm_of(update.weights)
        # before anything is kept: what is no update of the method fails here
        contribution = self.method.contribution(ClientResult(card, update)) if self.method.sums else None
        for name, term in contribution.terms.items() if contribution is not None else ():
            if not is_weight(term.weight):
                raise UpdateError(
                    f"its contribution() to the mean {name!r} has a weight that is negative or not finite, and no mean"
                    " has such"
                )
        form = None if contribution is None else _form(contribution)
        apart = form is not None and self._forms.setdefault(form, []) is not next(iter(self._forms.values()))
        if self.grid is None or contribution is None:
            self.whole[client] = update
        elif apart or not self._fits(card, contribution, norm):
            self.whole[client] = _copy(update)
        elif self._first is None and not self.sums.clients:
            self._first, self.whole[client] = client, _copy(update)
        else:
            self._add_first()
            self.sums.add(client, contribution)
        self.norms[client] = norm
        if form is not None:
            self._forms[form].append(client)

    def add_part(self, part: Part) -> None:
        """Take in the sums of a worker; its whole updates are for ``add``."""
        if part.sums:
            assert self.grid is not None  # the worker had it from here
            self._add_first()
            self.sums.add_message(part.sums, self.grid)
            self.norms |= part.norms

    def flush(self) -> None:
        """Be done with the memory of all updates so far, where there is a grid."""
        self.sums.flush()

    def part(self) -> Part:
        """Return all that was taken in, where it lies."""
        norms = {client: self.norms[client] for client in self.sums.clients}
        return Part(self.sums.message() if self.sums.clients else {}, norms, self.whole)

    def drop_others(self) -> dict[int, str]:
        """Leave out updates whose contribution has another form than most have; return why, by client. Nobody is, where
        workers sent sums: those are of this project's processes, in which all clients have one form.
        """
        known = {client for clients in self._forms.values() for client in clients}
        if not known.issuperset(self.sums.clients):
            return {}
        most = max(self._forms.values(), key=lambda clients: (len(clients), -min(clients, default=0)), default=[])
        others = known - {*most}
        if not others:
            return {}
        if next(iter(self._forms.values())) is most:
            for client in others:
                self.drop(client)
        else:  # which are in no sum
            kept = {client: self.whole[client] for client in most}
            self.begin(self.grid)
            for client, update in kept.items():
                self.add(client, update)
        why = "its contribution has other tensors, or other shapes, than those of most clients"
        return dict.fromkeys(sorted(others), why)

    def keep(self, client: int, update: Any) -> None:
        """Keep an update that ``add`` refuses as it came, for the server to say so."""
        self.whole[client] = _copy(update)

    def drop(self, client: int) -> bool:
        """Forget a client and return True; False where it is in the sums."""
        if client not in self.whole:
            return False
        del self.whole[client], self.norms[client]
        for clients in self._forms.values():
            if client in clients:
                clients.remove(client)
        if client == self._first:
            self._first = None
        return True

    def results(self) -> list[ClientResult[Any]]:
        """Return the whole updates, by client."""
        return [ClientResult(self.cards[client], self.whole[client]) for client in sorted(self.whole)]

    def means(self) -> Means:
        """Return the means over all clients."""
        others = [(r.card.client, self.method.contribution(r)) for r in self.results()]
        if self.grid is None or not self.sums.clients:
            return means_of(others, mean_of)
        return self.sums.means(others, self.grid)

    def _fits(self, card: Card, contribution: Contribution, norm: float) -> bool:
        assert self.grid is not None
        if not norm <= self.grid.largest_norm:
            return False
        rows_I = torch.tensor([card.num_examples])
        largest = {name: float(weight_I) for name, weight_I in self.method.largest_weights(rows_I).items()}
        return self.sums.fits(contribution, self.grid, largest)

    def _add_first(self) -> None:
        """Add the first that fits to the sums: it is not the only one."""
        if self._first is not None:
            result = ClientResult(self.cards[self._first], self.whole.pop(self._first))
            self.sums.add(self._first, self.method.contribution(result))
            self._first = None


def _form(contribution: Contribution) -> Hashable:
    """Return what two contributions have in common that can be in one sum."""
    terms = [
        (name, messages.form_of(dict(term.values)), torch.as_tensor(term.weight).shape)
        for name, term in contribution.terms.items()
    ]
    return tuple(terms), tuple(contribution.own)


def _copy(update: Any) -> Any:
    return messages.rebuild(update, lambda _, value: value.clone())
