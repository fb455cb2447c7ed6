"""The contract of tasks: data, label space, objective, what a client may disclose. A task is a value, no class
hierarchy.

Shape suffixes: N rows of a client, B rows of a batch, C classes, L positions (tokens or time steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.prompts import Wording
from anchorfl.tasks.scaling import Scaling

if TYPE_CHECKING:  # torch, which the list of tasks does without
    from torch import Tensor

LabelKind = Literal["single", "multi"]
InputKind = Literal["tokens", "series", "image", "sparse"]
LONGEST_CLIENT = 200
"""Characters of a client's name, at most: NumPy gives every row of a column as many as the longest one has."""


@dataclass(frozen=True, slots=True)
class Source:
    """The raw files of a data set and where to get them, for ``anchorfl data``."""

    files: tuple[str, ...]
    """Names below the data folder, or patterns (``*.csv``, ``images/**/*.jpg``) that one file or more match; each may
    also stand there with or without ``.gz``. Empty: bundled with a library."""
    url: str
    licence: str
    gated: bool = False
    """True where access must be applied for."""
    optional: tuple[str, ...] = ()
    """Names or patterns, as ``files``, of files that are read where they are there, and not needed."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a user's table (tasks/tabular/). Saved beside the final weights, so that the model can read
    another table of that form.
    """

    inputs: tuple[str, ...]
    """Columns of one sample, in the order of its features."""
    labels: tuple[str, ...] = ()
    """Columns of the labels."""
    values: tuple[str, ...] = ()
    """The word in the table for each class: the name of its column, or a value."""
    separator: str = ""
    """What stands between the classes in a cell of one text column of labels; empty: a cell is one class."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Each text column among several inputs -> its words that have a feature, 1 where the word stands, else 0. A
    column of numbers is one feature."""
    dropped: tuple[int, ...] = ()
    """Places in ``values`` of the classes that had too few rows to be the model's."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The form of one encoded sample. Saved beside the final weights, so that a model can be used without its data."""

    kind: InputKind
    shape: tuple[int, ...]
    """Shape of one sample: tokens ``(max_tokens,)``, series ``(steps, features)``, image ``(channels, height, width)``,
    sparse ``(features,)``.
    """
    vocabulary: tuple[str, ...] = ()
    """Tokens only: word of every id; id 0 is padding, id 1 any unknown word."""
    mean: tuple[float, ...] = ()
    """Fitted on the training rows: per feature (series; what a missing value becomes before scaling) or per channel
    (image). Empty: nothing is scaled."""
    std: tuple[float, ...] = ()
    """Deviation to divide by, fitted as ``mean``; 1 where it is 0."""
    levels: int = 0
    """Image only: where not 0, ``x`` is stored and held as whole numbers 0..levels (at most 255) and becomes
    ``(x / levels - mean) / std`` batch by batch."""
    columns: Columns | None = None
    """User's table only: the columns that a sample is made of."""

    def fault(self) -> str:
        """Return what cannot be in it; empty where all can."""
        if min(self.shape, default=0) < 1:
            return f"a sample of shape {self.shape} cannot be"
        if len(self.shape) != {"image": 3, "series": 2}.get(self.kind, 1):
            return f"a sample of kind {self.kind!r} cannot have the shape {self.shape}"
        each = self.shape[0] if self.kind == "image" else self.shape[-1]
        if len(self.mean) != len(self.std) or len(self.mean) not in (0, each) or not all(map(math.isfinite, self.mean)):
            return f"{len(self.mean)} means and {len(self.std)} deviations do not fit the shape {self.shape}"
        if not all(0 < deviation < math.inf for deviation in self.std) or not 0 <= self.levels <= 255:
            return "a deviation must be above 0, and levels 0 to 255"
        return ""

    def scaling(self) -> Scaling:
        """Return the scaling that stored inputs go through."""
        return Scaling.of(self.levels, self.mean, self.std)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows, cut from a mini-batch."""

    x: Tensor
    """Inputs. Tokens: int32 [B, L], 0 = padding. Series: float32 [B, L, features]. Image: float32 [B, channels, H, W].
    Sparse: float32 [B, L, 2], the number of a feature from 1 (exact below 2^24) and its value; 0 = padding.
    """
    y_BC: Tensor
    """Labels, 0 or 1."""
    known_BC: Tensor
    """1 where the label was given, else 0."""
    weight_BC: Tensor
    """Weight of the entry in the loss; 0 = absent."""
    denominator: int
    """Size of the mini-batch that the rows were cut from; every mean divides by it."""
    index_B: Tensor
    """Positions of the rows among those that they were cut from, int64, on the device of the rows."""


@dataclass(frozen=True, slots=True)
class ClientData:
    """All rows of one client, or of a split of the server. Fields as in ``Batch``, with N rows."""

    x: Tensor
    """Inputs as they are stored; ``scaling`` makes them a batch's."""
    y_NC: Tensor
    known_NC: Tensor
    weight_NC: Tensor
    length_N: Tensor | None = None
    """Real positions of every row; None where rows have no length (images)."""
    scaling: Scaling = field(default_factory=Scaling)

    def __len__(self) -> int:
        return len(self.y_NC)

    def stored(self, index_B: Tensor) -> Tensor:
        """Return the inputs of the rows at ``index_B`` as they are stored, padding cut to their longest."""
        x = _rows_of(self.x, _near(index_B, self.x))
        if self.length_N is None or not len(index_B):
            return x
        return x[:, : max(1, int(self.length_N[index_B].max()))]

    def rows(
        self, index_B: Tensor, denominator: int | None = None, change: Callable[[Tensor], Tensor] | None = None
    ) -> Batch:
        """Return the rows at ``index_B`` as a batch, padding cut to their longest.

        denominator: of the batch; None: the number of rows. change: applied to the stored inputs, before they are
        scaled.
        """
        x = self.stored(index_B)
        x = self.scaling(x if change is None else change(x))
        size = len(index_B) if denominator is None else denominator
        at_B = _near(index_B, self.y_NC)
        y_BC, known_BC, weight_BC = (_rows_of(t, at_B) for t in (self.y_NC, self.known_NC, self.weight_NC))
        return Batch(x, y_BC, known_BC, weight_BC, size, at_B)


def _near(index_B: Tensor, values: Tensor) -> Tensor:
    """Return an index on the device of what it is for. On a GPU an index of the CPU would be waited for."""
    return index_B.to(values.device, non_blocking=True)


def _rows_of(values: Tensor, index_B: Tensor) -> Tensor:
    """Return ``values[index_B]`` by a call that copies whole rows, three times as fast on long ones."""
    return values.index_select(0, index_B)


@dataclass(frozen=True, slots=True)
class Card:
    """Everything that a client discloses before training. A method may use nothing else."""

    client: int
    num_examples: int
    """Number of rows."""
    count_C: Tensor
    """Labeled positive samples per class, int64."""
    identified_C: Tensor
    """Identified classes, bool."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss, the scores and the decisions that logits give. The only place that knows single- from multi-label."""

    kind: LabelKind
    class_balanced: bool = True
    """Multi-label only: weigh positives and negatives of a class against each other (docs/methods/fedalign.md)."""

    def weights(self, y_NC: Tensor, known_NC: Tensor, strength_NC: Tensor | float = 1.0) -> Tensor:
        """Return the weight of every entry in the loss, from the client's labels; ``strength_NC`` scales it (alpha)."""
        if self.kind == "single":
            return known_NC * y_NC * strength_NC
        if not self.class_balanced:
            return known_NC * strength_NC
        pos_C = 1 + (known_NC * y_NC).sum(0)
        neg_C = 1 + (known_NC * (1 - y_NC)).sum(0)
        return known_NC * (y_NC * neg_C + (1 - y_NC) * pos_C) / (pos_C + neg_C) * strength_NC

    def loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """Return the sum over the rows of ``batch``, divided by its denominator (single) or denominator x C (multi)."""
        if self.kind == "single":
            logp_BC = logits_BC.log_softmax(-1)
            return -(batch.weight_BC * logp_BC).sum() / batch.denominator
        import torch.nn.functional as F

        raw_BC = F.binary_cross_entropy_with_logits(logits_BC, batch.y_BC, reduction="none")
        return (batch.weight_BC * raw_BC).sum() / (batch.denominator * logits_BC.shape[-1])

    def scores(self, logits_BC: Tensor) -> Tensor:
        """Return the confidence per class: softmax (single) or sigmoid (multi)."""
        return logits_BC.softmax(-1) if self.kind == "single" else logits_BC.sigmoid()

    def predict(self, logits_BC: Tensor) -> Tensor:
        """Return 0/1 decisions: the one best class (single; the first of equals), or sigmoid > 0.5 (multi)."""
        if self.kind == "single":
            import torch.nn.functional as F

            return F.one_hot(logits_BC.argmax(-1), logits_BC.shape[-1]).to(logits_BC.dtype)
        return (logits_BC > 0).to(logits_BC.dtype)


Encode = Callable[[pa.Table, InputSpec], pa.Table]


@dataclass(frozen=True, slots=True)
class Task:
    """A data set with its label space."""

    name: str
    title: str
    class_names: tuple[str, ...]
    kind: LabelKind
    """``single``: one class per row; ``multi``: any number."""
    payload: str
    """Name of the raw payload column (``text``, ``pixels``)."""
    source: Source
    folder: str
    """Folder of the raw files below ``$ANCHORFL_DATA``; empty where nothing is needed."""
    read: Callable[[Path | None, TaskOptions], pa.Table]
    """``read(folder, options)`` returns the raw rows, in file order, and never touches the network. Columns: ``row``
    int64 (unique id); ``split`` string (train, test, and validation where one is published); ``labels`` list<int32>
    (positive classes); the raw payload. Where they apply: ``known`` list<int32> (classes whose label the raw data give;
    null: all of them); ``subject`` string; ``piece_of`` int64 (rows with one number are pieces of one sequence).
    """
    fit: Callable[[pa.Table, TaskOptions], InputSpec]
    """``fit(train, options)`` returns the spec; ``train``: the training rows without the validation split."""
    encode: Encode
    """``encode(table, spec)`` returns the same rows with ``x`` in place of the payload. Tokens: list<int32>; image with
    levels: list<uint8>; sparse: list<float32> (number of a feature from 1, value, number, value, ...); else
    list<float32>, flattened. It is applied block by block and must not look across rows.
    """
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Category -> class names, where the papers have categories."""
    subjects: str = ""
    """Meaning of ``subject``: user, writer, patient, lesion; empty where there is no such column."""
    folds: int = 0
    """Number of published folds, for ``options.fold``; 0: none."""
    table_names: Mapping[str, str] = field(default_factory=dict)
    """Class name -> its name in the co-occurrence table of a paper's authors, where that is another word."""
    named_files: Callable[[Path, TaskOptions], Iterable[str]] | None = None
    """Paths of further raw files, which those of ``source`` name: the images of a table."""
    wording: Wording | None = None
    """Words for its pictures and classes in prompts of text encoders; None: it has no prompts of its own."""
    dropped: tuple[str, ...] = ()
    """Classes that ``min_positives`` took out of the label space."""


CLASS_NAMES = b"anchorfl.class_names"
"""Key of the table's metadata under which ``read`` gives class names (JSON) that stand in the raw files only."""
