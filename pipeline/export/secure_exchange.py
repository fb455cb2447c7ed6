"""What the sites of a round with secure aggregation say beside their updates, as JSON texts that a framework carries.

A site answers by ``answer`` and trains by ``masked_round``; the framework keeps a text for it between calls: its
secret, and what it has said in a round, so that it never says both halves of what would open a single update.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import msgspec

from anchorfl.pipeline.algorithm.messages import checksum
from anchorfl.pipeline.algorithm.secure_aggregation import SECRET_BYTES, Keys, Participant, Revealed, check_keys, digest
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.secure_round import SecureRound
from anchorfl.tasks.errors import InputError

Kind = Literal["keys", "shares", "reveal"]
Exchange = Callable[[Kind, int, Mapping[int, str]], Mapping[int, str]]
"""Send each of these clients a text in a round; return the answers of those who gave one."""
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What a site is asked."""

    round: int
    keys: dict[int, bytes] = field(default_factory=dict)
    """Of all clients of the round."""
    received: dict[int, bytes] = field(default_factory=dict)
    """What the others have for this one: their shares."""
    answered: tuple[int, ...] = ()
    """Those whose sum is to be opened."""


@dataclass(frozen=True)
class Kept:
    """What a site knows from before; nobody else sees it."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES))
    round: int = 0
    """Last round in which it sent an update or revealed shares."""
    keys: bytes = b""
    """Digest of the keys under which it did."""
    sent: str = ""
    """Checksum of what it trained on and of the grid; "": it has not yet."""
    answered: tuple[int, ...] = ()
    """Those for whom it revealed shares in that round; (): it has not yet."""

    def in_round(self, number: int, keys: Keys, sent: str = "") -> Kept:
        """Return what is kept once the site has sent something in a round. sent: checksum of what it trains on; "": it
        does not. InputError: it has, under other keys or on something else.
        """
        if number < self.round or (number == self.round and digest(keys) != self.keys):
            raise InputError(
                f"round {number}: asked again, under other keys: a second answer would give an update away"
            )
        now = self if number == self.round else replace(self, round=number, keys=digest(keys), sent="", answered=())
        if now.sent and sent and now.sent != sent:
            raise InputError(
                f"round {number}: asked again, to train on something else: a second answer would give an update away"
            )
        return replace(now, sent=sent or now.sent)


def answer(client: int, kind: str, text: str, kept: str) -> tuple[str, str]:
    """Return a site's answer, and what it keeps. kept: from before; "": nothing yet.

    InputError where the answer would give an update away; ValueError where the request is none.
    """
    before, request = _kept(kept), decoded(text, Request)
    participant = Participant(client, request.round, before.secret)
    if kind == "keys":
        return encoded(participant.public_keys), encoded(before)
    if kind == "shares":
        return encoded(participant.shares(request.keys)), encoded(before)
    now = before.in_round(request.round, request.keys)
    if now.answered not in ((), request.answered):
        raise InputError(f"round {request.round}: asked again, for a sum of others, which would give an update away")
    revealed = participant.reveal(request.keys, request.received, request.answered)
    return encoded(revealed), encoded(replace(now, answered=request.answered))


def masked_round(text: str, round_: int, kept: str, given: Mapping[str, object]) -> tuple[SecureRound, bytes, str]:
    """Return what ``text`` says of the round and the site's secret, and what it keeps. given: all that the update is
    made from beside the site's own. Other arguments and errors as ``answer``; InputError where the update would go in
    the clear, too.
    """
    if not text:
        raise InputError(
            f"round {round_}: asked for an update without masks, and federation.secure_aggregation is on here: it would"
            " be seen"
        )
    before, (number, secure) = _kept(kept), decoded(text, tuple[int, SecureRound])
    if number != round_:
        raise InputError(f"round {round_}: asked under the keys of round {number}: an answer would give an update away")
    # on another grid the same masks would hide the same values in other steps
    sent = hashlib.sha256(f"{checksum(dict(given))} {encoded(secure.grid)}".encode()).hexdigest()
    return secure, before.secret, encoded(before.in_round(number, secure.keys, sent))


def text_of(round_: int, secure: SecureRound | None) -> str:
    """Return what ``masked_round`` reads; "" for none."""
    return encoded((round_, secure)) if secure is not None else ""


@dataclass
class RemoteClients:
    """Clients at their sites (``secure_round.Clients``). Whoever is silent, or sends nonsense, is left out."""

    exchange: Exchange
    log: Log
    _shares: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)

    def keys(self, round_: int, clients: Sequence[int]) -> Keys:
        """Return the keys of those clients whose shares are with all others."""
        given = self._asked("keys", round_, dict.fromkeys(clients, Request(round_)), bytes)
        keys = {client: each for client, each in given.items() if self._are_keys(round_, client, each)}
        while keys:
            self._shares = self._asked("shares", round_, dict.fromkeys(keys, Request(round_, keys)), dict[int, bytes])
            if self._shares.keys() == keys.keys() and all(sent.keys() == keys.keys() for sent in self._shares.values()):
                break
            whole = [client for client, sent in self._shares.items() if sent.keys() == keys.keys()]
            keys = {client: keys[client] for client in whole}  # shares are of a round's very clients: once more
        return keys

    def reveal(self, round_: int, keys: Keys, answered: Sequence[int]) -> Revealed:
        """Return the shares that those give who are still there."""
        requests = {
            client: Request(round_, dict(keys), {other: self._shares[other][client] for other in keys}, tuple(answered))
            for client in answered
        }
        given = self._asked("reveal", round_, requests, dict[int, bytes])
        return {client: shares for client, shares in given.items() if shares.keys() == keys.keys()}

    def _are_keys(self, round_: int, client: int, keys: bytes) -> bool:
        try:
            check_keys(keys)
        except ValueError as error:
            self.log(f"round {round_}: the keys of client {client} are none: {error}")
            return False
        return True

    def _asked(self, kind: Kind, round_: int, requests: Mapping[int, Request], as_type: type[T]) -> dict[int, T]:
        out = dict[int, T]()
        answers = self.exchange(kind, round_, {client: encoded(request) for client, request in requests.items()})
        for client, text in sorted(answers.items()):
            try:
                out[client] = decoded(text, as_type)
            except ValueError as error:
                self.log(f"round {round_}: what client {client} says is no answer ({kind}): {error}")
        return out


def encoded(value: object) -> str:
    """Return a value as JSON, bytes in base64."""
    return msgspec.json.encode(value).decode()


def decoded(text: str, as_type: type[T]) -> T:
    """Return the value of a text. ValueError: it is none of this type."""
    return msgspec.json.decode(text, type=as_type)


def _kept(text: str) -> Kept:
    return decoded(text, Kept) if text else Kept()
