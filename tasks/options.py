"""Options of [task]: which data, how they are cut into clients, what a client knows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NewType

JsonText = NewType("JsonText", str)
"""Text of JSON; in a preset, a number, a list or a table may stand for it."""


def json_text(value: Any) -> JsonText:
    """Return a value as JSON: equal values as equal text, but for the order of keys."""
    return JsonText(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def table_stem(file: str) -> str:
    """Return the name of a user's table, for names of tasks and runs: ``data/My sales.csv.gz`` -> ``My-sales``."""
    return re.sub(r"[^A-Za-z0-9]+", "-", Path(file).name.split(".")[0]).strip("-") or ("own" if file else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """The options of [task]: which data, how they are cut into clients, and what a client knows."""

    name: str = "digits"
    """Name of the data set: one of ``anchorfl.tasks.registry.TASKS``, of a plug-in, or ``package.module:function``."""
    root: str = ""
    """Folder of the raw files, or its address (``s3://bucket/folder``, ``gs://...``), from which they are brought once;
    empty: ``$ANCHORFL_DATA/<folder of the data set>``, then ``$ANCHORFL_DATA`` itself."""
    cache: str = ""
    """Folder for prepared data, or its address (``s3://bucket/folder``, ``gs://...``) for nodes that share no disk;
    empty: ``$ANCHORFL_CACHE``, else ``~/.cache/anchorfl``."""
    variant: str = ""
    """Variant of the raw files where a data set has several (r8: ``stemmed``, the default, or ``textgcn``)."""
    fold: int = -1
    """The fold that is the test split (extrasensory: 0..4); -1: the run's seed modulo their number."""
    split_seed: int | None = -1
    """Seed of a test split, folds or writers (femnist) that are drawn; -1: the data set's own, so that all runs are
    tested on the same rows; ``none``: the run's, as the papers' codes draw them. Published splits stay."""
    on_bad_row: Literal["error", "skip"] = "error"
    """A bad row of the raw files: ``error``, stop with its location; ``skip``, leave it out, count and list it."""
    min_positives: int = 0
    """Classes with fewer positive rows, over all splits, are left out of the label space (ExtraSensory: 11)."""
    image_size: int = 0
    """Height and width in pixels to which images are resized; 0: the data set's own default."""
    normalize: str = "auto"
    """Scaling of images in [0, 1]: ``auto``, by the data set (color: ``imagenet``; grey: ``none``); ``imagenet``,
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
    """``categories``: all rows of a subject go to one client (FedAlign, section 5, in the text; not in its code)."""
    classes_per_client: int = 3
    """k of ``k_classes`` (R8-8: 3)."""
    beta: float = 0.5
    """Concentration of ``dirichlet``, > 0; smaller is more skewed."""
    identified: Literal["partition", "k_classes", "held", "all"] = "partition"
    """What a client identifies, whatever rows it holds: ``partition``, as said there; ``k_classes``, k random classes
    of its own rows, or those that it holds where they are fewer (FedAlign's PAMAP2-9: 5 classes of a subject);
    ``held``, those of its rows; ``all``."""
    client_classes: JsonText = JsonText("")
    """The classes that each client identifies, in place of a draw: a .json or .csv file (columns client and class, and
    seed where they differ by it), or its JSON: ``[["a", "b"], ["c"]]``, a list for each client, of names or numbers;
    or ``{"client": ["a"]}``; or ``{"seed": ...}`` of either, which leaves other seeds to be drawn. Empty: drawn."""
    cover: Literal["redraw", "any", "error"] = "redraw"
    """A class that a draw leaves to nobody: ``redraw``, draw again (bounded, seeded), so that the draw is uniform over
    the covering ones; ``any``, allowed, scored apart as ``f1_uncovered``; ``error``."""
    hidden_labels: float = 0.0
    """Share of the clients' training labels that are hidden at random, as if nobody had given them, in [0, 1): of the
    rows, or multi-label of the classes of every row. Labels for validation and tests stay."""
    validation: float = 0.1
    """Share of the training rows held out for validation, stratified by class, in [0, 1)."""
    validation_from: Literal["server", "clients"] = "server"
    """``server``: before the partition, all labels; ``clients``: of each client's rows, its labels (authors' code)."""
    client_test: JsonText = JsonText("none")
    """Test rows of every client's own, on which the final model is scored, client by client: ``none``; a share of its
    rows between 0 and 1, drawn after validation and partition, which nobody trains on; or ``split``, its rows of the
    test split (``subjects``; a table with ``client_column`` and ``split_column``)."""
    min_count: int = 100
    """Words seen at least this often in the training texts form the vocabulary (R8-8: 100)."""
    max_tokens: int = 1000
    """Longer texts are cut to this many words."""
    file: str = ""
    """Your own data: a .parquet, .csv or .csv.gz file, or a folder with a folder of images for each class (below
    ``train`` and ``test``, if you like); below ``root`` if given, in place of ``name``. Or the address of one file:
    ``hf://datasets/...``, ``az://...``, ``abfs://...``."""
    label_columns: str = ""
    """Label columns of ``file``, names with commas or patterns (``label_*``): of 0 and 1, a class each; or one of
    class names or numbers (single-label), or of lists of them. An empty cell is a label that is not known."""
    label_separator: str = ""
    """What stands between the classes in a cell of one text column of labels (``;``: ``cat; dog`` is two);
    ``none``: a cell is one class, whatever stands in it; empty: the same, but cells that look like lists are refused.
    """
    input_columns: str = ""
    """Input columns of ``file``: numbers and texts (categories); or one of texts, of lists of numbers (lists of those:
    series) or of paths of images; empty: all columns of numbers, and of few words, that are nothing else."""
    client_column: str = ""
    """Column of ``file`` that says whose row it is: partition ``subjects``, one client for every value."""
    split_column: str = ""
    """Column of ``file`` with train, validation and test; empty: a stratified fifth is drawn, whatever the seed."""
    ignore_columns: str = ""
    """Columns of ``file`` that are nothing of all this: left out, and not asked about. Names and patterns."""
    sites: str = ""
    """Sites of a Ray cluster, names with commas, whose disks hold the rows of ``file``, each its own: clients that
    train there and whose rows stay there (docs/sites.md). This machine's ``file`` has validation and test rows."""
    input_spec: str = ""
    """Folder of a saved model, or of prepared data, whose vocabulary, or means and deviations, are taken in place of
    those of the training rows; empty: fitted on these."""
    class_names: str = ""
    """Class names of ``file``: a file with one a line in their order, or ``id<TAB>name``, where the table holds ids."""

    @property
    def site_names(self) -> tuple[str, ...]:
        """The sites in the order of their clients, which is that of their names; () where clients are no sites."""
        return tuple(sorted(name.strip() for name in self.sites.split(","))) if self.sites else ()

    @property
    def site_resources(self) -> tuple[str, ...]:
        """The Ray resource of every client's node, of which it has one."""
        return tuple(f"site:{name}" for name in self.site_names)

    def seed_of_split(self, own: int) -> int:
        """Return the seed of a split that is drawn. own: the data set's. ValueError where it is yet to be the run's."""
        if self.split_seed is None:
            raise ValueError("the split's seed is the run's, so it must be put in place first: canonicalize_options")
        return own if self.split_seed == -1 else self.split_seed
