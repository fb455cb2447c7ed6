"""What a task is: data, label space, objective, and what a client may disclose. A task is a value, not a class
hierarchy.

Shape suffixes: N rows of a client, B rows of a batch, C classes, L positions (tokens or time steps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["single", "multi"]
InputKind = Literal["tokens", "series", "image", "sparse"]


class InputError(ValueError):
    """Bad input by the user: one line that says what is wrong, where, and how to mend it. The command line exits
    with 2.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """Which data, how they are cut into clients, and what a client knows."""

    name: str = "digits"
    """Name of the data set, a key of ``tasks.TASKS``."""
    root: str = ""
    """Folder of the raw files; empty: ``$ANCHORFL_DATA/<folder of the data set>``, then ``$ANCHORFL_DATA`` itself."""
    cache: str = ""
    """Folder for prepared data, or its address (``s3://bucket/folder``, ``gs://...``) for nodes that share no disk;
    empty: ``$ANCHORFL_CACHE``, else ``~/.cache/anchorfl``."""
    variant: str = ""
    """Variant of the raw files where a data set has several (r8: ``stemmed``, the default, or ``textgcn``)."""
    clients: int = 10
    """Number of clients (n in the papers)."""
    partition: Literal["k_classes", "dirichlet", "iid"] = "k_classes"
    """``k_classes``: rows IID over the clients, each client identifies k random classes of its own data (FedAlign,
    4.1); ``dirichlet``: label ratios Dir(beta) over the clients, a client identifies what it holds; ``iid``: rows
    IID, all known."""
    classes_per_client: int = 3
    """k of ``k_classes`` (R8-8: 3)."""
    beta: float = 0.5
    """Concentration of ``dirichlet``, > 0; smaller is more skewed."""
    cover: bool = True
    """Draw again (bounded, seeded) until every class is identified by at least one client; false: a class that nobody
    identifies is an error that names it."""
    validation: float = 0.1
    """Share of the training rows held out for validation, stratified by class, in [0, 1)."""
    min_count: int = 100
    """Words seen at least this often in the training texts form the vocabulary (R8-8: 100)."""
    max_tokens: int = 1000
    """Longer texts are cut to this many words."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where raw files come from, for ``anchorfl data``."""

    files: tuple[str, ...]
    """Names below the data folder; each may also stand there with or without ``.gz``. Empty: bundled with a library."""
    url: str
    licence: str
    gated: bool = False
    """True where access must be applied for."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What one encoded sample looks like; saved beside the final weights so that a model can be used without its
    data.
    """

    kind: InputKind
    shape: tuple[int, ...]
    """Of one sample: tokens ``(max_tokens,)``, series ``(steps, features)``, image ``(channels, height, width)``."""
    vocabulary: tuple[str, ...] = ()
    """Tokens only: word of every id; id 0 is padding, id 1 any unknown word."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows. ``denominator`` is the size of the mini-batch that they were cut from, which every mean divides by.

    x: inputs (tokens int32 [B, L], 0 = padding; series float32 [B, L, features]; image float32 [B, channels, H, W]);
    y_BC: 0/1 labels; known_BC: 1 where the label was given; weight_BC: weight of the entry in the loss (0 = absent).
    """

    x: Tensor
    y_BC: Tensor
    known_BC: Tensor
    weight_BC: Tensor
    denominator: int


@dataclass(frozen=True, slots=True)
class ClientData:
    """All rows of one client, or of a split of the server. Fields as in ``Batch``, N rows; length_N: real positions
    of a row (None where rows have no length: images).
    """

    x: Tensor
    y_NC: Tensor
    known_NC: Tensor
    weight_NC: Tensor
    length_N: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y_NC)

    def rows(self, index_B: Tensor, denominator: int | None = None) -> Batch:
        """The rows at ``index_B`` as a batch, padding cut to their longest."""
        x = self.x[index_B]
        if self.length_N is not None and len(index_B):
            x = x[:, : max(1, int(self.length_N[index_B].max()))]
        size = len(index_B) if denominator is None else denominator
        return Batch(x, self.y_NC[index_B], self.known_NC[index_B], self.weight_NC[index_B], size)


@dataclass(frozen=True, slots=True)
class Card:
    """Everything that a client discloses before training. A method may use nothing else.

    count_C: int64, its labelled positive samples per class; aware_C: bool, its identified classes.
    """

    client: int
    num_examples: int
    count_C: Tensor
    aware_C: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """How logits become a loss; the only place that knows single- from multi-label."""

    kind: Kind
    class_balanced: bool = True
    """Multi-label only: weigh positives and negatives of a class against each other (methods/fedalign.md, Losses)."""

    def weights(self, y_NC: Tensor, known_NC: Tensor, strength_NC: Tensor | float = 1.0) -> Tensor:
        """Weight of every entry in the loss, from the client's current labels; ``strength_NC`` scales entries
        (alpha).
        """
        if self.kind == "single":
            return known_NC * y_NC * strength_NC
        if not self.class_balanced:
            return known_NC * strength_NC
        pos_C = 1 + (known_NC * y_NC).sum(0)
        neg_C = 1 + (known_NC * (1 - y_NC)).sum(0)
        return known_NC * (y_NC * neg_C + (1 - y_NC) * pos_C) / (pos_C + neg_C) * strength_NC

    def loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """Sum over the rows of ``batch``, divided by its denominator (single) or denominator x C (multi)."""
        if self.kind == "single":
            logp_BC = F.log_softmax(logits_BC, dim=-1)
            return -(batch.weight_BC * logp_BC).sum() / batch.denominator
        raw_BC = F.binary_cross_entropy_with_logits(logits_BC, batch.y_BC, reduction="none")
        return (batch.weight_BC * raw_BC).sum() / (batch.denominator * logits_BC.shape[-1])

    def scores(self, logits_BC: Tensor) -> Tensor:
        """Confidence per class: softmax (single) or sigmoid (multi)."""
        return logits_BC.softmax(-1) if self.kind == "single" else logits_BC.sigmoid()

    def predict(self, logits_BC: Tensor) -> Tensor:
        """0/1 decisions: the one best class (single; the first of equals), or sigmoid > 0.5 (multi)."""
        if self.kind == "single":
            return F.one_hot(logits_BC.argmax(-1), logits_BC.shape[-1]).to(logits_BC.dtype)
        return (logits_BC > 0).to(logits_BC.dtype)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """rows: ids of the client's training rows, ascending int64; classes: ascending indices of its identified
    classes.
    """

    rows: npt.NDArray[np.int64]
    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A partition: who holds what. Pure function of labels, options and seed; stored and logged as an artifact."""

    clients: tuple[ClientPlan, ...]
    validation: npt.NDArray[np.int64]
    """Row ids held out for validation."""
    seed: int


Encode = Callable[[pa.Table, InputSpec], pa.Table]


@dataclass(frozen=True, slots=True)
class Task:
    """A data set with its label space. ``read`` gives the raw rows and never touches the network.

    read(folder, options) -> table with ``row`` int64 (unique id), ``split`` string (train or test), ``labels``
    list<int32> (positive classes) and the raw payload columns, in file order. fit(train rows without the validation
    split, options) -> InputSpec. encode(table, spec) -> the same rows with ``x`` (tokens: list<int32>; else
    fixed-size list<float>) in place of the payload; it is applied block by block and must not look across rows.

    """

    name: str
    title: str
    class_names: tuple[str, ...]
    kind: Kind
    payload: str
    """Name of the raw payload column (``text``, ``pixels``)."""
    source: Source
    folder: str
    """Folder of the raw files below ``$ANCHORFL_DATA``; empty where nothing is needed."""
    read: Callable[[Path | None, TaskOptions], pa.Table]
    fit: Callable[[pa.Table, TaskOptions], InputSpec]
    encode: Encode
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Category -> class names, where the papers have categories."""
