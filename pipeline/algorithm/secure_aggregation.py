"""Secure aggregation: the server learns the sum of what the clients of a round hold, and nothing of a single one.

The protocol of Bonawitz et al. (CCS 2017, Figure 4) for a server that keeps to it, in four exchanges of a round:

1. **keys**: every client u sends two X25519 public keys: one for messages to the others, one for masks.
2. **shares**: it cuts the private key of its masks, and the seed b_u of a mask of its own, into shares of which any
   ``threshold`` give them back (Shamir, 1979), and sends each other client one of each, encrypted, through the server.
3. **masked values**: x_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv), modulo 2^64, with the
   secret s_uv that u and v agree on by their keys. In the sum over all clients the masks of pairs cancel.
4. **reveal**: whoever answered gives the server its shares of b_u for those who answered, and of the mask key for those
   who did not, never both for one client. So the server takes off the masks that are left.

x_u are whole numbers (``exact_sums.steps_of``), so the sum is exact, whoever is lost. Everything a client sends follows
from its secret, the round and what it was sent: a process that died is replaced by another one. Masks and shares depend
on the keys of all: with one client fewer, they are other ones. What the server learns all the same, and what a server
that lies can do: docs/secure-aggregation.md.

Shape suffix: P values, which are whole numbers modulo 2^64.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Words = npt.NDArray[np.uint64]
Keys = Mapping[int, bytes]
"""Client -> its two public keys, one behind the other: for messages, for masks."""
Revealed = Mapping[int, Mapping[int, bytes]]
"""Client -> what it sent by ``Participant.reveal``."""

SECRET_BYTES = 32
"""Bytes of a secret: a private key, a seed."""
PRIME = 2**256 + 297
"""The smallest prime above all secrets: shares are numbers modulo it."""
SHARE_BYTES = 33
KEYS_BYTES = 2 * SECRET_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + 16
"""Bytes of the two shares that a client sends another one, encrypted, with the tag of AES-GCM."""


def threshold_of(clients: int) -> int:
    """Return how many of a round's clients must answer, and suffice to open its sum: more than half, two at least."""
    return max(2, clients // 2 + 1)


class Participant:
    """A client's half of a round."""

    def __init__(self, client: int, round_: int, secret: bytes) -> None:
        """secret: of the client's site, at least 32 bytes that the server does not know."""
        self.client, self.round, self._secret = client, round_, secret

    @cached_property
    def public_keys(self) -> bytes:
        """The client's two public keys."""
        return b"".join(key.public_key().public_bytes_raw() for key in (self._message_key, self._mask_key))

    def shares(self, keys: Keys) -> dict[int, bytes]:
        """Return a message to every client of ``keys``, itself included: its two shares, encrypted for it.

        ValueError where ``keys`` has not the client's own.
        """
        self._check(keys)
        parts = [
            split(secret, keys, threshold_of(len(keys)), self._derived(f"polynomial of the {name}", keys))
            for name, secret in (("mask key", self._mask_key.private_bytes_raw()), ("own mask", self._own_seed(keys)))
        ]
        return {
            other: AESGCM(self._sealing_key(keys, self.client, other)).encrypt(
                bytes(12), parts[0][other] + parts[1][other], None
            )
            for other in keys
        }

    def masked(self, keys: Keys, values_P: Words) -> Words:
        """Return the values under all masks. ValueError where ``keys`` has not the client's own."""
        self._check(keys)
        out_P = values_P + stream(self._own_seed(keys), len(values_P))
        for other in keys:
            if other != self.client:
                mask_P = stream(_pair_seed(self._mask_key, keys, other), len(out_P))
                _add(out_P, mask_P, self.client < other)
        return out_P

    def reveal(self, keys: Keys, received: Mapping[int, bytes], answered: Collection[int]) -> dict[int, bytes]:
        """Return the share of every client of ``keys`` that opens the sum: of its own mask where it is one of those
        that answered, else of its mask key. received: what every client sent this one by ``shares``.

        Its caller sees to it that a client answers this once in a round. ValueError where fewer answered than the
        threshold, or a message is not that client's.
        """
        if len({*answered} & keys.keys()) < threshold_of(len(keys)):
            raise ValueError(f"{len(answered)} of {len(keys)} clients answered, fewer than {threshold_of(len(keys))}")
        out = dict[int, bytes]()
        for other in keys:
            try:
                both = AESGCM(self._sealing_key(keys, other, self.client)).decrypt(bytes(12), received[other], None)
            except (InvalidTag, KeyError) as error:
                raise ValueError(f"client {other} sent no shares that client {self.client} can read") from error
            out[other] = both[SHARE_BYTES:] if other in answered else both[:SHARE_BYTES]
        return out

    def _check(self, keys: Keys) -> None:
        if keys.get(self.client) != self.public_keys:
            raise ValueError(f"the round's keys are not those that client {self.client} sent")

    def _derived(self, what: str, keys: Keys | None = None) -> bytes:
        """Return a secret of this round, and of these keys."""
        purpose = f"{what} of client {self.client} in round {self.round}".encode()
        return hmac.digest(self._secret, purpose + (b"" if keys is None else digest(keys)), "sha256")

    @cached_property
    def _message_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self._derived("message key"))

    @cached_property
    def _mask_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self._derived("mask key"))

    def _own_seed(self, keys: Keys) -> bytes:
        return self._derived("own mask", keys)

    def _sealing_key(self, keys: Keys, sender: int, receiver: int) -> bytes:
        """Return the key of the one message between two clients in this direction; one of them is this one."""
        other = receiver if sender == self.client else sender
        purpose = f"shares of {sender} for {receiver}".encode() + digest(keys)
        return agreed(self._message_key, keys[other][:SECRET_BYTES], purpose)


def check_keys(keys: bytes) -> None:
    """Raise ValueError where these are no two public keys that others can agree with."""
    if len(keys) != KEYS_BYTES:
        raise ValueError(f"{len(keys)} bytes, and two public keys have {KEYS_BYTES}")
    for start in (0, SECRET_BYTES):
        agreed(X25519PrivateKey.generate(), keys[start : start + SECRET_BYTES], b"check")


def unmasked(total_P: Words, keys: Keys, answered: Collection[int], revealed: Revealed) -> Words:
    """Return the sum of the values of those who answered, out of the sum of what they sent: the server's half.

    ValueError where fewer than the threshold revealed their shares, or those do not give the mask key of a client that
    was lost. A false share of another client's own mask is not found here: it leaves words at random.
    """
    threshold = threshold_of(len(keys))
    if len(revealed) < threshold:
        raise ValueError(f"{len(revealed)} of {len(keys)} clients gave their shares, and {threshold} must")
    holders = sorted(revealed)[:threshold]
    factors, out_P = _at_zero([_point(keys, holder) for holder in holders]), total_P.copy()
    for client in keys:
        secret = _joined(factors, [revealed[holder][client] for holder in holders])
        if client in answered:
            _add(out_P, stream(secret, len(out_P)), False)
            continue
        lost = X25519PrivateKey.from_private_bytes(secret)
        if lost.public_key().public_bytes_raw() != _mask_part(keys, client):
            raise ValueError(f"the shares do not give the key of client {client}, which was lost: one is false")
        for other in answered:  # it had added this for the one that was lost
            _add(out_P, stream(_pair_seed(lost, keys, other), len(out_P)), client < other)
    return out_P


def split(secret: bytes, keys: Keys, threshold: int, seed: bytes) -> dict[int, bytes]:
    """Return a share of a secret for every client of ``keys``; any ``threshold`` of them give it back.

    A share is the value of a polynomial modulo ``PRIME``, whose constant is the secret (Shamir, 1979). seed: of its
    other coefficients, 256 bits each, so that they are uniform up to 2^-247.
    """
    drawn = stream(seed, 4 * (threshold - 1)).tobytes()
    coefficients = [int.from_bytes(drawn[i : i + 32], "big") for i in range(0, len(drawn), 32)]
    out = {}
    for client in keys:
        value, x = 0, _point(keys, client)
        for coefficient in (*coefficients, int.from_bytes(secret, "big")):
            value = (value * x + coefficient) % PRIME
        out[client] = value.to_bytes(SHARE_BYTES, "big")
    return out


def _point(keys: Keys, client: int) -> int:
    """Return where the polynomial is asked for a client's share: its rank among the round's clients, from 1."""
    return sorted(keys).index(client) + 1


def _at_zero(points: Iterable[int]) -> list[int]:
    """Return Lagrange's factors, by which the values at these points give that at 0."""
    points, out = list(points), []
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        out.append(above * pow(below, -1, PRIME) % PRIME)
    return out


def _joined(factors: Iterable[int], shares: Iterable[bytes]) -> bytes:
    """Return the secret of some shares. ValueError where they are of no secret."""
    value = sum(f * int.from_bytes(share, "big") for f, share in zip(factors, shares, strict=True)) % PRIME
    if value.bit_length() > 8 * SECRET_BYTES:
        raise ValueError("the shares give no secret: one is false")
    return value.to_bytes(SECRET_BYTES, "big")


def _mask_part(keys: Keys, client: int) -> bytes:
    return keys[client][SECRET_BYTES:]


def _pair_seed(mine: X25519PrivateKey, keys: Keys, other: int) -> bytes:
    """Return the seed of the mask that a client shares with another one."""
    return agreed(mine, _mask_part(keys, other), b"mask" + digest(keys))


def digest(keys: Keys) -> bytes:
    """Return the sha256 of the keys of a round, with whose they are."""
    return hashlib.sha256(b"".join(client.to_bytes(8, "big") + keys[client] for client in sorted(keys))).digest()


def agreed(mine: X25519PrivateKey, theirs: bytes, purpose: bytes) -> bytes:
    """Return the key that two clients agree on: X25519, and HKDF-SHA256 with its purpose. ValueError: it is no key."""
    shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    return HKDF(hashes.SHA256(), SECRET_BYTES, None, b"anchorfl " + purpose).derive(shared)


def stream(key: bytes, count: int) -> Words:
    """Return pseudo-random words of a key that is used for nothing else: AES-256 in counter mode."""
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), "<u8").astype(np.uint64)


def _add(to_P: Words, mask_P: Words, plus: bool) -> None:
    (np.add if plus else np.subtract)(to_P, mask_P, out=to_P)
