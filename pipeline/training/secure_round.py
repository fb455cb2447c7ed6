"""A round whose server learns the sum of the clients' updates alone: both halves around the protocol of
``secure_aggregation.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import clip_step, norm_of
from anchorfl.pipeline.algorithm.contract import ClientResult, Method, ServerState, Update
from anchorfl.pipeline.algorithm.exact_sums import (
    ExactSums,
    Grid,
    Steps,
    beyond,
    impossible,
    message_of_steps,
    steps_of,
)
from anchorfl.pipeline.algorithm.secure_aggregation import (
    KEYS_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    Keys,
    Participant,
    Revealed,
    threshold_of,
    unmasked,
)
from anchorfl.pipeline.training.errors import QuorumError, UpdateError
from anchorfl.pipeline.training.gathering import Part
from anchorfl.tasks.contract import Card


@dataclass(frozen=True, slots=True)
class SecureRound:
    """What every client of a round is given beside the broadcast."""

    grid: Grid
    """On which its update becomes whole numbers."""
    keys: Keys
    """Of all clients that may answer."""


@dataclass(frozen=True)
class MaskedUpdate:
    """What a client sends in such a round in place of its update."""

    terms: dict[str, dict[str, Any]]
    """``exact_sums.Steps`` of its contribution, under its masks."""


class Clients(Protocol):
    """The clients of a run as the server reaches them for what is said beside their updates."""

    def keys(self, round_: int, clients: Sequence[int]) -> Keys:
        """Return the public keys of those of these clients that are there."""

    def reveal(self, round_: int, keys: Keys, answered: Sequence[int]) -> Revealed:
        """Return the shares of those who answered that open the sum."""


@dataclass(frozen=True)
class SimulatedClients:
    """All clients in this process. Nothing is secret here; what they say is what they would say from afar."""

    secret: bytes
    """Of all of them."""

    def keys(self, round_: int, clients: Sequence[int]) -> Keys:
        """Return the public keys of these clients, which are all there."""
        return {client: Participant(client, round_, self.secret).public_keys for client in sorted(clients)}

    def reveal(self, round_: int, keys: Keys, answered: Sequence[int]) -> Revealed:
        """Return what those who answered say, once all have sent each other their shares."""
        each = {client: Participant(client, round_, self.secret) for client in keys}
        sent = {client: participant.shares(keys) for client, participant in each.items()}
        return {
            client: each[client].reveal(keys, {other: sent[other][client] for other in keys}, answered)
            for client in answered
        }


@dataclass(frozen=True)
class Masking:
    """The client's half."""

    method: Method[Any, Any]
    clip_norm: float
    """Longest step of a client, cut here and not by the server; 0: none is cut."""
    secret: bytes
    """Of this site."""

    def masked(self, card: Card, round_: int, sent: ServerState, update: Update, secure: SecureRound) -> MaskedUpdate:
        """Return what a client sends. UpdateError where its update has no place on the grid."""
        if fault := messages.shape_mismatch(update.weights, sent.weights) or messages.not_finite(update):
            raise UpdateError(fault)
        if self.clip_norm:
            weights, _ = clip_step(update.weights, sent.weights, self.clip_norm)
            update = replace(update, weights=weights)
        contribution = self.method.contribution(ClientResult(card, update))
        rows_I = torch.tensor([card.num_examples])
        largest = {name: float(weight_I) for name, weight_I in self.method.largest_weights(rows_I).items()}
        fits = norm_of(update.weights) <= secure.grid.largest_norm
        if not fits or not ExactSums().fits(contribution, secure.grid, largest):
            large = beyond(contribution, secure.grid) or ("" if fits else "its norm is out of scale")
            what = f"values are too large to be summed under masks ({large}" if large else (
                "contribution cannot be summed under masks (a term's weight is no whole number, or more than"
                " largest_weights says, or a tensor is not float32"
            )  # fmt: skip
            raise UpdateError(f"its {what}; federation.secure_aggregation)")
        steps = steps_of(contribution, secure.grid)
        participant = Participant(card.client, round_, self.secret)
        values_P = participant.masked(secure.keys, _joined(steps))
        return MaskedUpdate(_taken_apart(values_P, steps))


@dataclass
class _Group:
    """Clients whose masked updates have one form."""

    form: Steps
    total_P: npt.NDArray[np.uint64]
    clients: list[int]


class MaskedSum:
    """The server's half: the sum of what came in, and what becomes of it."""

    def __init__(self, round_: int, secure: SecureRound, clients: Clients) -> None:
        self.round, self.secure, self.clients = round_, secure, clients
        self._groups: list[_Group] = []

    @property
    def answered(self) -> list[int]:
        """Whose masked updates came in, ascending."""
        return sorted(client for group in self._groups for client in group.clients)

    def add(self, client: int, update: MaskedUpdate) -> str:
        """Add what a client sent. Return why that cannot be; '' where it was."""
        if client not in self.secure.keys:
            return "it gave no keys for this round"
        kinds = {t.dtype for _, t in messages.tensors(update.terms)}
        if kinds != {torch.int64}:
            return f"it holds {', '.join(sorted(map(str, kinds))) or 'nothing'}, and no whole numbers"
        if not all(_is_term(term) for term in update.terms.values()):
            return "its terms are no values and weights"
        form = messages.form_of(update.terms)
        same = (group for group in self._groups if messages.form_of(group.form) == form)
        if (group := next(same, None)) is not None:
            group.total_P += _joined(update.terms)
            group.clients.append(client)
        else:
            self._groups.append(_Group(update.terms, _joined(update.terms), [client]))
        return ""

    def drop_others(self) -> dict[int, str]:
        """Leave out updates of another form than most have; return why, by client."""
        self._groups.sort(key=lambda group: (-len(group.clients), min(group.clients)))
        first, others = self._groups[:1], self._groups[1:]
        self._groups = first
        nested = "its masked update is nested otherwise than those of most clients"
        return {
            client: messages.shape_mismatch(group.form, first[0].form) or nested
            for group in others
            for client in group.clients
        }

    def clear(self) -> None:
        """Forget what came in."""
        self._groups = []

    def part(self) -> Part:
        """Return the sum of all clients in the clear. QuorumError where too few answered, or still do, to open it, or
        what is opened is no sum.
        """
        answered, keys, grid = self.answered, self.secure.keys, self.secure.grid
        if (least := threshold_of(len(keys))) > len(answered):
            raise QuorumError(
                f"{len(answered)} of {len(keys)} clients answered, and {least} must, so that their sum can be opened"
                " (federation.secure_aggregation)"
            )
        (group,) = self._groups  # somebody answered, and ``drop_others`` left one
        try:
            total_P = unmasked(group.total_P, keys, answered, self.clients.reveal(self.round, keys, answered))
        except ValueError as error:
            raise QuorumError(f"the sum cannot be opened: {error}") from error
        steps = _taken_apart(total_P, group.form)
        if term := impossible(steps, grid, len(answered)):
            raise QuorumError(
                f"what was opened is no sum of {term!r}: a share or an update of one of the {len(answered)} clients is"
                " false"
            )
        return Part(message_of_steps(steps, grid, answered), dict.fromkeys(answered, 0.0))

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of keys and shares, as they are sent and as they are passed on, of the clients of this round."""
        keys, answered = len(self.secure.keys), len(self.answered)
        return KEYS_BYTES * keys * (1 + keys) + 2 * SEALED_BYTES * keys * keys + SHARE_BYTES * answered * keys


def _is_term(term: object) -> bool:
    """Return whether a part of a masked update is one term of ``Steps``."""
    return (
        isinstance(term, dict)
        and term.keys() == {"values", "weight"}
        and isinstance(term["weight"], Tensor)
        and isinstance(term["values"], dict)
        and all(isinstance(value, Tensor) for value in term["values"].values())
    )


def _joined(steps: Steps) -> npt.NDArray[np.uint64]:
    """Return all numbers as words in one array of their own."""
    flat = torch.cat([t.reshape(-1) for _, t in messages.tensors(steps)])
    return flat.numpy().view(np.uint64)


def _taken_apart(values_P: npt.NDArray[np.uint64], form: Steps) -> Steps:
    """Return the words of ``_joined`` as tensors again, by their signs."""
    rest = [torch.from_numpy(values_P.view(np.int64))]

    def taken(_: str, t: Tensor) -> Tensor:
        here, rest[0] = rest[0][: t.numel()], rest[0][t.numel() :]
        return here.view(t.shape)

    return messages.rebuild(form, taken)
