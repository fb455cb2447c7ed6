"""Label collection (FedALC, section IV-B): the labels of an instance, when every client knows only some of them.

Once, before training, each client sends a digest of every instance that carries its label, and a digest of the label;
the server merges equal digests into label sets and counts which labels occur together. It sees no instance. What a
digest hides depends on ``matching`` (docs/label-collection.md). The paper hashes the first network's embeddings, here
it is the encoded instance itself.

Shape suffixes: N rows, C classes, P (row, class) pairs, G digests that differ, M messages.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence
from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.sparse_rows import RowBlock
from anchorfl.tasks.contract import Card, ClientData

Matching = Literal["hmac", "sha256"]
"""``hmac``: HMAC-SHA-256 with a key that the clients share and the server does not have. ``sha256``: plain SHA-256,
obfuscation only."""
DIGEST_BYTES = 32
"""Bytes of a digest."""
MIN_KEY_BYTES = 16
"""Bytes; a shorter key could be found by trying."""


@dataclass(frozen=True, slots=True)
class LabelMessage:
    """A client's message before round 1: the digest of its one label, and those of the rows that carry it, sorted and
    each once, so that it says neither the order of its rows nor how often one stands there.

    A client sends 32 bytes per instance and 32 more.
    """

    label: Tensor
    """uint8 [32]: the digest of the label; [0] where no row has one."""
    digest_P: Tensor
    """uint8 [P, 32]: the digests of rows."""


def run_key(seed: int) -> bytes:
    """Return the clients' key in a simulation, out of the run's seed: 32 bytes, for the client side alone.

    It is as secret as the seed, so it stands for a key and is none. Clients of a real federation draw one at random and
    pass it on without the server.
    """
    return b"".join(seed_for("label-sets", "key", part, seed).to_bytes(8, "big") for part in range(DIGEST_BYTES // 8))


def canonical(data: ClientData) -> Iterator[bytes]:
    """Yield the bytes of every encoded instance: equal for equal instances, whatever the other rows and their padding.

    Sparse: its pairs by ascending feature, without padding and zeros; tokens: ids without padding; images and series:
    shape, type and values. A head tells the kinds apart. Little-endian on every machine.
    """
    x_N = data.x.detach().cpu().numpy()
    if data.length_N is None:
        head = f"dense {x_N.dtype.name} {x_N.shape[1:]}|".encode()
        dtype = x_N.dtype.newbyteorder("<")
        return (head + np.ascontiguousarray(x, dtype=dtype).tobytes() for x in x_N)
    if x_N.ndim == 2 and x_N.dtype.kind == "i":
        return (b"tokens|" + x_L[x_L != 0].astype("<i4").tobytes() for x_L in x_N)
    if x_N.ndim == 3 and x_N.shape[2] == 2:
        return _pairs(x_N)
    raise ValueError(f"rows with a length must be tokens [N, L] or pairs [N, L, 2], not {x_N.dtype} {x_N.shape}")


def _pairs(x_NL2: npt.NDArray[np.float32]) -> Iterator[bytes]:
    """Yield the bytes of sparse rows, P pairs in all; a pair of value 0 says no more than a missing one."""
    nonzero_NL = (x_NL2[..., 0] != 0) & (x_NL2[..., 1] != 0)
    number_P, value_P = (x_NL2[..., i][nonzero_NL].astype(kind) for i, kind in enumerate(("<i4", "<f4")))
    length_N = nonzero_NL.sum(1)
    row_P = np.repeat(np.arange(len(length_N)), length_N)
    # stored rows ascend already, and sorting all pairs takes longer than all else here
    if ((np.diff(row_P) == 0) & (np.diff(number_P) <= 0)).any():
        order_P = np.lexsort((value_P, number_P, row_P))
        number_P, value_P = number_P[order_P], value_P[order_P]
    numbers, values = number_P.tobytes(), value_P.tobytes()
    end_N = 4 * np.cumsum(length_N)
    for start, end in zip((end_N - 4 * length_N).tolist(), end_N.tolist(), strict=True):
        yield b"sparse|" + numbers[start:end] + values[start:end]


def digests(data: ClientData, matching: Matching = "hmac", key: bytes = b"") -> list[bytes]:
    """Return 32 bytes per row. key: of ``hmac``, at least 16 bytes, equal on all clients; empty for ``sha256``.

    Raises ValueError on a key that is too short, or that would not be used.
    """
    return _hashed(canonical(data), matching, key)


def label_digest(class_: int, matching: Matching = "hmac", key: bytes = b"") -> bytes:
    """Return 32 bytes for a label, by the same key as the rows'. No row has such bytes. Errors as ``digests``."""
    return _hashed([b"label|" + class_.to_bytes(4, "little")], matching, key)[0]


def _hashed(contents: Iterable[bytes], matching: Matching, key: bytes) -> list[bytes]:
    if matching == "sha256":
        if key:
            raise ValueError(
                "plain sha256 uses no key, so its digests would be open to guessing; use matching = 'hmac'"
            )
        return [hashlib.sha256(content).digest() for content in contents]
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(
            f"the key of hmac has {len(key)} bytes; give at least {MIN_KEY_BYTES}, drawn at random, without the server"
        )
    return [hmac.digest(key, content, "sha256") for content in contents]


def label_message(parts: Iterable[RowBlock], matching: Matching = "hmac", key: bytes = b"") -> LabelMessage:
    """Return a client's message: its known positives. parts: its rows. Errors as ``digests``; ValueError where the
    client has several classes.
    """
    digest_P, class_P = [np.zeros((0, DIGEST_BYTES), np.uint8)], [np.zeros(0, np.int32)]
    for part in parts:
        labels = part.labels
        if part.known_BC is not None:
            labels = labels.where(part.known_BC[labels.row_P, labels.class_P])
        digest_B = np.frombuffer(b"".join(digests(part.data, matching, key)), np.uint8).reshape(-1, DIGEST_BYTES)
        digest_P.append(digest_B[labels.row_P])
        class_P.append(labels.class_P)
    class_K = np.unique(np.concatenate(class_P))
    if len(class_K) > 1:
        raise ValueError(f"labels are collected from clients of one class, and this one has {len(class_K)}")
    label = label_digest(int(class_K[0]), matching, key) if len(class_K) else b""
    return message_of(label, np.concatenate(digest_P))


def message_of(label: bytes, digest_P: npt.NDArray[np.uint8]) -> LabelMessage:
    """Return the message of a label's digest and those of its rows [P, 32], in any order."""
    name_P = np.unique(np.ascontiguousarray(digest_P).view(f"S{DIGEST_BYTES}").ravel())
    kept_P = name_P.view(np.uint8).reshape(-1, DIGEST_BYTES)
    return LabelMessage(torch.from_numpy(np.frombuffer(label, np.uint8).copy()), torch.from_numpy(kept_P.copy()))


def merge_label_sets(messages: Sequence[LabelMessage], class_M: Sequence[int], classes: int) -> Labels:
    """Return the label sets: one row per digest that differs from the others, its labels ascending.

    class_M: the class of every sender, which the server knows from the row of class embeddings that it trains; the
    digest of a label says only whether two senders mean the same one. Rows are in the order of the digests, so that
    nothing depends on who sent when. A label that several clients, or one twice, send for a digest counts once. Equal
    instances are one row (they are counted once: n_all of eq. 9).

    Raises ValueError on a message whose parts do not fit, or on labels that are not one for each class.
    """
    meaning: dict[bytes, int] = {}
    for sender, (sent, class_) in enumerate(zip(messages, class_M, strict=True)):
        _check(sent, sender)
        label = sent.label.numpy().tobytes()
        if label and meaning.setdefault(label, class_) != class_:
            raise ValueError(f"message {sender}: its label is that of class {meaning[label]}, and it has {class_}")
    if len(set(meaning.values())) < len(meaning):
        raise ValueError("clients of one class sent different labels: they have different keys")
    parts = [sent.digest_P.numpy() for sent in messages]
    name_P = np.concatenate([np.zeros((0, DIGEST_BYTES), np.uint8), *parts]).view(f"S{DIGEST_BYTES}").ravel()
    class_P = np.repeat(np.asarray(class_M, dtype=np.int64), [len(part) for part in parts])
    order_P = np.argsort(name_P, kind="stable")
    name_P = name_P[order_P]
    new_P = np.ones(len(name_P), dtype=np.bool_)
    new_P[1:] = name_P[1:] != name_P[:-1]
    row_P = np.cumsum(new_P) - 1
    pair_P = np.unique(row_P * classes + class_P[order_P])
    length_G = np.bincount(pair_P // classes, minlength=int(new_P.sum()))
    offset_G1 = np.concatenate([[0], np.cumsum(length_G, dtype=np.int64)])
    return Labels((pair_P % classes).astype(np.int32), offset_G1, classes)


def _check(sent: LabelMessage, sender: int) -> None:
    label, digest_P = sent.label, sent.digest_P
    if digest_P.dtype != torch.uint8 or digest_P.ndim != 2 or digest_P.shape[1] != DIGEST_BYTES:
        shape = tuple(digest_P.shape)
        raise ValueError(f"message {sender}: digests are {digest_P.dtype} {shape}, not uint8 [P, {DIGEST_BYTES}]")
    if label.dtype != torch.uint8 or label.shape != ((DIGEST_BYTES,) if len(digest_P) else (0,)):
        shape = tuple(label.shape)
        raise ValueError(f"message {sender}: a label of {label.dtype} {shape} does not fit {len(digest_P)} digests")


def cooccurrence_counts(labels: Labels) -> Any:
    """Return ``Y^T Y`` as a SciPy CSR array [C, C] of int64: rows with both classes; on the diagonal, rows of a class.

    Only pairs that occur are held, so that memory follows the number of label pairs and not C squared.
    """
    from scipy import sparse  # here: a run that collects no labels does without it

    ones_P = np.ones(len(labels.class_P), dtype=np.int64)
    shape = (len(labels), labels.classes)
    y_NC = sparse.csr_array((ones_P, labels.class_P, labels.offset_N1), shape=shape)
    count_CC = (y_NC.T @ y_NC).tocsr()
    count_CC.sort_indices()
    return count_CC


def collect_labels(messages: Sequence[LabelMessage], cards: Sequence[Card]) -> LabelCooccurrence:
    """Return how often labels occur together, by the clients' messages. cards: of the senders, of one class each.

    Errors as ``merge_label_sets``.
    """
    class_M = [int(card.identified_C.nonzero()[0]) for card in cards]
    labels = merge_label_sets(messages, class_M, len(cards[0].identified_C))
    return LabelCooccurrence.from_counts(cooccurrence_counts(labels), len(labels))
