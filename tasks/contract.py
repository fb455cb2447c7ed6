"""What a task is: data, label space, objective, what a client may disclose. A task is a value, no class hierarchy.

Shape suffixes: N rows of a client, B rows of a batch, C classes, L positions (tokens or time steps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import torch.nn.functional as F
from torch import Tensor

from tasks.plain_line import plain_line
from tasks.prompts import Wording
from tasks.scaling import Scaling

Kind = Literal["single", "multi"]
InputKind = Literal["tokens", "series", "image", "sparse"]


class InputError(ValueError):
    """Bad input by the user: one line that says what is wrong, where, and how to mend it. Exit code 2."""

    def __str__(self) -> str:
        return plain_line(super().__str__())


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """Which data, how they are cut into clients, and what a client knows."""

    name: str = "digits"
    """Name of the data set, a key of ``tasks.registry.TASKS``."""
    root: str = ""
    """Folder of the raw files; empty: ``$ANCHORFL_DATA/<folder of the data set>``, then ``$ANCHORFL_DATA`` itself."""
    cache: str = ""
    """Folder for prepared data, or its address (``s3://bucket/folder``, ``gs://...``) for nodes that share no disk;
    empty: ``$ANCHORFL_CACHE``, else ``~/.cache/anchorfl``."""
    variant: str = ""
    """Variant of the raw files where a data set has several (r8: ``stemmed``, the default, or ``textgcn``)."""
    fold: int = -1
    """Which fold is the test split (extrasensory: 0..4); -1: the run's seed modulo their number."""
    on_bad_row: Literal["error", "skip"] = "error"
    """What a bad row of the raw files does: stop with its place, or be left out, counted and listed."""
    min_positives: int = 0
    """Classes with fewer positive rows, over all splits, are left out of the label space (ExtraSensory: 11)."""
    image_size: int = 0
    """Height and width in pixels to which images are resized; 0: the data set's own default."""
    normalise: str = "auto"
    """How images in [0, 1] are scaled: ``auto``, by the data set (colour: ``imagenet``; grey: ``none``); ``imagenet``,
    its mean and deviation; ``none``; or ``mean/deviation``, numbers for all channels or each (``0.5/0.5``)."""
    clients: int = 10
    """Number of clients (n in the papers); ``one_class``: as many as classes have rows, or 0, which is that number."""
    partition: Literal["k_classes", "dirichlet", "iid", "categories", "subjects", "one_class"] = "k_classes"
    """``k_classes``: rows IID over the clients, each client identifies k random classes of its own data (FedAlign,
    4.1); ``dirichlet``: label ratios Dir(beta) over the clients, a client identifies what it holds; ``iid``: rows
    IID, all known; ``categories``: the classes by category over the clients, a row to the owner of its rarest class
    (FedAlign, ExtraSensory and MIMIC-III); ``subjects``: whole subjects or writers, identified is what is held
    (FedBM, FEMNIST); ``one_class``: one client per class, with all rows of that class (FedALC)."""
    keep_subjects: bool = False
    """``categories``: all rows of a subject go to one client (FedAlign, 4.1, in the text; not in its code)."""
    classes_per_client: int = 3
    """k of ``k_classes`` (R8-8: 3)."""
    beta: float = 0.5
    """Concentration of ``dirichlet``, > 0; smaller is more skewed."""
    cover: bool = True
    """Draw again (bounded, seeded) until somebody identifies every class; false: a class left over is an error."""
    validation: float = 0.1
    """Share of the training rows held out for validation, stratified by class, in [0, 1)."""
    validation_from: Literal["server", "clients"] = "server"
    """``server``: before the partition, all labels; ``clients``: of each client's rows, its labels (authors' code)."""
    min_count: int = 100
    """Words seen at least this often in the training texts form the vocabulary (R8-8: 100)."""
    max_tokens: int = 1000
    """Longer texts are cut to this many words."""
    parquet: str = ""
    """Your own data: a .parquet, .csv or .csv.gz file, below ``root`` if given, in place of ``name``."""
    labels: str = ""
    """Of ``parquet``, names with commas or patterns (``label_*``): columns of 0 and 1, a class each; or one column of
    class names or numbers (single-label), or of lists of them. An empty cell is a label that is not known."""
    inputs: str = ""
    """Of ``parquet``: columns of numbers, or one of texts, of lists of numbers (lists of those: series) or of paths of
    images; empty: all columns of numbers that are nothing else."""
    client: str = ""
    """Of ``parquet``: column that says whose row it is: partition ``subjects``, one client for every value."""
    split: str = ""
    """Of ``parquet``: column of train, validation and test; empty: a stratified fifth is drawn, whatever the seed."""
    class_names: str = ""
    """Of ``parquet``: file with a class name a line in their order, or ``id<TAB>name``: id is what the table holds."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where raw files come from, for ``anchorfl data``."""

    files: tuple[str, ...]
    """Names below the data folder, or patterns (``*.csv``, ``images/**/*.jpg``) that one file or more match; each may
    also stand there with or without ``.gz``. Empty: bundled with a library."""
    url: str
    licence: str
    gated: bool = False
    """True where access must be applied for."""
    optional: tuple[str, ...] = ()
    """As ``files``: those that are read where they are there, and not needed."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a user's table are (tasks/own/), saved beside the final weights so that the model can read
    another table of that form.
    """

    inputs: tuple[str, ...]
    """Columns of one sample, in the order of its features."""
    labels: tuple[str, ...] = ()
    """Columns of the labels."""
    values: tuple[str, ...] = ()
    """What stands in the table for each class: the name of its column, or a value."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What one encoded sample looks like; saved beside the final weights so that a model can be used without its
    data.
    """

    kind: InputKind
    shape: tuple[int, ...]
    """Of one sample: tokens ``(max_tokens,)``, series ``(steps, features)``, image ``(channels, height, width)``,
    sparse ``(features,)``."""
    vocabulary: tuple[str, ...] = ()
    """Tokens only: word of every id; id 0 is padding, id 1 any unknown word."""
    mean: tuple[float, ...] = ()
    """Fitted on the training rows: per feature (series; what a missing value becomes before scaling) or per channel
    (image). Empty: nothing is scaled."""
    std: tuple[float, ...] = ()
    """As ``mean``; the deviation to divide by, 1 where it is 0."""
    levels: int = 0
    """Image only: where not 0, ``x`` is stored and held as whole numbers 0..levels (at most 255) and becomes
    ``(x / levels - mean) / std`` batch by batch."""
    columns: Columns | None = None
    """Of a user's table only: what a sample was made of."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> InputSpec:
        """From the JSON of its fields; those that are missing (older files) have their defaults."""
        lists = {name: tuple(content[name]) for name in ("shape", "vocabulary", "mean", "std") if name in content}
        table = content.get("columns")
        columns = Columns(**{name: tuple(value) for name, value in table.items()}) if table else None
        return cls(kind=content["kind"], levels=content.get("levels", 0), columns=columns, **lists)

    def scaling(self) -> Scaling:
        """What stored inputs go through."""
        return Scaling.of(self.levels, self.mean, self.std)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows. ``denominator`` is the size of the mini-batch that they were cut from, which every mean divides by.

    x: inputs (tokens int32 [B, L], 0 = padding; series float32 [B, L, features]; image float32 [B, channels, H, W];
    sparse float32 [B, L, 2]: number of a feature from 1, exact below 2^24, and its value; 0 = padding);
    y_BC: 0/1 labels; known_BC: 1 where the label was given; weight_BC: weight of the entry in the loss (0 = absent);
    index_B: places of the rows among those that they were cut from, int64.
    """

    x: Tensor
    y_BC: Tensor
    known_BC: Tensor
    weight_BC: Tensor
    denominator: int
    index_B: Tensor


@dataclass(frozen=True, slots=True)
class ClientData:
    """All rows of one client, or of a split of the server. Fields as in ``Batch``, N rows, but x as it is stored, which
    ``scaling`` makes a batch's; length_N: real positions of a row (None where rows have no length: images).
    """

    x: Tensor
    y_NC: Tensor
    known_NC: Tensor
    weight_NC: Tensor
    length_N: Tensor | None = None
    scaling: Scaling = field(default_factory=Scaling)

    def __len__(self) -> int:
        return len(self.y_NC)

    def stored(self, index_B: Tensor) -> Tensor:
        """Inputs of the rows at ``index_B`` as they are stored, padding cut to their longest."""
        x = self.x[index_B]
        if self.length_N is None or not len(index_B):
            return x
        return x[:, : max(1, int(self.length_N[index_B].max()))]

    def rows(
        self, index_B: Tensor, denominator: int | None = None, change: Callable[[Tensor], Tensor] | None = None
    ) -> Batch:
        """The rows at ``index_B`` as a batch, padding cut to their longest; change: of the stored inputs."""
        x = self.stored(index_B)
        x = self.scaling(x if change is None else change(x))
        size = len(index_B) if denominator is None else denominator
        return Batch(x, self.y_NC[index_B], self.known_NC[index_B], self.weight_NC[index_B], size, index_B)


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
        """Weight of every entry in the loss, from the client's current labels; ``strength_NC`` scales it (alpha)."""
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


Encode = Callable[[pa.Table, InputSpec], pa.Table]


@dataclass(frozen=True, slots=True)
class Task:
    """A data set with its label space. ``read`` gives the raw rows and never touches the network.

    read(folder, options) -> table with ``row`` int64 (unique id), ``split`` string (train, test, and validation where
    one is published), ``labels`` list<int32> (positive classes), the raw payload column, and where they apply ``known``
    list<int32> (classes whose label the raw data give; null: all of them), ``subject`` string, ``piece_of`` int64 (rows
    with one number are pieces of one sequence), in file order. fit(train rows without the validation split, options) ->
    InputSpec. encode(table, spec) -> the same rows with ``x`` in place of the payload: tokens list<int32>; image with
    levels list<uint8>; sparse list<float32> (number of a feature from 1, value, number, value, ...); else
    list<float32>, flattened. It is applied block by block and must not look across rows.
    """

    name: str
    title: str
    class_names: tuple[str, ...]
    kind: Kind
    payload: str  # name of the raw payload column (``text``, ``pixels``)
    source: Source
    folder: str  # of the raw files below ``$ANCHORFL_DATA``; empty where nothing is needed
    read: Callable[[Path | None, TaskOptions], pa.Table]
    fit: Callable[[pa.Table, TaskOptions], InputSpec]
    encode: Encode
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Category -> class names, where the papers have categories."""
    subjects: str = ""
    """What ``subject`` holds: user, writer, patient, lesion; empty where there is no such column."""
    folds: int = 0
    """Number of published folds, for ``options.fold``; 0: none."""
    table_names: Mapping[str, str] = field(default_factory=dict)
    """Class name -> what the co-occurrence table of a paper's authors calls it, where that is another word."""
    named_files: Callable[[Path, TaskOptions], Iterable[str]] | None = None
    """Paths of further raw files, which those of ``source`` name: the images of a table."""
    wording: Wording | None = None
    """How sentences speak of its pictures and classes, for text encoders; None: it has no prompts of its own."""
