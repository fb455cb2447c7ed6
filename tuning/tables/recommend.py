"""``anchorfl recommend``: which methods to try first on a table of the user's own, by the settings of the suite.

What clients know is described by the cards that they send in any run (``Shape``): counts of classes, and no row; where
rows have several labels, by how many of these are known, too. The settings of the suite that are nearest to it, of the
same kind of labels, say which methods rank first there.
``tuning/suite_shapes.csv`` has the settings' shapes (``python -m benchmarks.suite_shapes``), ``ours.csv`` the scores.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from anchorfl.pipeline import terminal
from anchorfl.pipeline.config.overrides import keep_options, typed_options
from anchorfl.pipeline.config.presets import read_preset, shipped
from anchorfl.pipeline.terminal import logged_apart, say
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.tables.ours import OurFigure, read_ours

if TYPE_CHECKING:
    from anchorfl.pipeline.config.experiment import Experiment
    from anchorfl.tasks.ingest.prepared import Prepared

SHAPES = Path(__file__).resolve().parents[1] / "suite_shapes.csv"
SUITE = "suite"
METRIC = "macro_f1"
"""Name in ``published.csv`` of the score by which methods are ranked."""
NEAREST = 3
"""Settings that are asked, at most."""
APART = 0.5
"""Further away than the nearest one by so much, a setting is not asked."""
FAR = 0.75
"""Distance of the nearest setting from which on the list is a first guess."""
PHOTOGRAPHS, TEXTS = "image", "text"
"""Raw columns of tasks whose rows are pictures, or texts (``Task.payload``)."""
ONE_CLASS = "one_class"
"""The partition of methods that have a client for each class."""
SHOWN = 4
"""Methods that are listed, and proposed for training."""
ADDS: Mapping[str, str] = {
    "anchor": "what a row without a label says, balanced counts, control variates",
    "fedalign": "anchors made of class names; pseudo-labels for classes that a client does not know",
    "fedpu": 'unlabeled rows count as "none of my classes"',
    "fedrs": "smaller logits for classes that a client lacks",
    "fedprox": "a pull to the weights that were sent",
    "moon": "a contrast with the client's last model",
    "scaffold": "control variates against drift",
    "feddyn": "a loss that the client's earlier rounds bend",
    "fedavg": "nothing: the plain mean",
    "fedrod": "a balanced head that is shared, and one of its own",
    "fednh": "prototypes on a sphere as the classifier",
    "fedetf": "a fixed simplex as the classifier",
    "fedgela": "a fixed simplex that each client scales by its class shares",
    "fedlgt": "classes are tokens of their names, which attend to a row and to each other",
    "fedmlp": "class prototypes tag rows; the model that was sent teaches the rest",
    "fedalc": "class rows are pushed apart by how seldom they go together",
    "fedalc-fixed": "fixed class rows, spread out by how seldom they go together",
    "fedaws": "class rows are pushed apart",
    "fedavg-positive": "FedAvg on positive labels",
    "fedmlh": "networks that learn hashed classes",
    "flag": "weights by shares of labels",
}
"""Row of the suite -> what it adds to FedAvg, as docs/methods/README.md has it."""
USAGE = """usage: anchorfl recommend FILE --task.label_columns COLUMNS [--section.option value ...] [--try N] [--json]
Methods to try first on a table of your own: those that rank first on the settings of the suite that are most like it.
Clients are compared by their counts of classes; nothing is trained without --try.
  FILE     CSV or Parquet, as --task.file of anchorfl run
  --try N  train the first N on the table, each stopped where it falls behind (anchorfl sweep), and choose by the
           validation score of the last rounds; the test split stays unseen
  --json   the same as an object on standard output; progress goes to standard error
all options: anchorfl run --task.file FILE --help"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the clients of a federation know, by their cards."""

    labels: str
    """``single`` or ``multi``."""
    clients: int
    classes: int
    known: float
    """Share of the classes that a client identifies, mean over clients."""
    labeled: float
    """Share of the clients' rows that have a known class; multi-label: of their labels that are known."""
    missing: float
    """Share of the labels of identified classes that are missing, as if a client had as many rows of each class: what
    rows without a label are, where classes that the client does not identify do not explain them."""
    skew: float
    """1 - exp(entropy) / number of the identified classes of a client, mean: 0 where it has as many rows of each."""
    one_class: float
    """Share of the clients that have rows of one class alone, which is all that they identify."""
    rows: float
    """Rows of a client, mean."""
    uncovered: int
    """Classes that nobody identifies."""

    def distance(self, other: Shape) -> float:
        """Return how different two federations are: 1 is all or none of the classes, half of the skew that there can
        be, or four decades of rows.
        """
        return (
            abs(self.known - other.known)
            + abs(self.labeled - other.labeled)
            + abs(self.missing - other.missing)
            + abs(self.skew - other.skew) * 2
            + abs(self.one_class - other.one_class)
            + abs(math.log10(self.rows / other.rows)) / 4
            + abs(math.log10(self.classes / other.classes)) / 4
            + (bool(self.uncovered) != bool(other.uncovered)) / 2
        )

    @property
    def text(self) -> str:
        """The shape in a line."""
        nobody = f", {self.uncovered} of them identified by nobody" if self.uncovered else ""
        labeled = (
            f"{self.labeled:.0%} of the {'rows have a known class' if self.labels == 'single' else 'labels are known'}"
        )
        return (
            f"{self.labels}-label, {self.clients} clients, {self.classes} classes{nobody}; a client identifies"
            f" {self.known:.0%} of them, has {self.rows:.0f} rows, {labeled}, skew of its counts {self.skew:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the suite that has scores."""

    name: str
    """As the suite's page has it."""
    federation: str
    """As its presets are named."""
    shape: Shape
    scores: Mapping[str, OurFigure]
    """Row -> its score."""

    def lends_to(self, payload: str) -> bool:
        """Return whether its presets suit rows of such a raw column. Those of photographs are for photographs: fewer
        local steps, at rates that were found for a convolutional network. Those of texts are for their own: they cut
        a text after 100 words.
        """
        from anchorfl.tasks.registry import task_of

        own = task_of(read_preset(f"{self.federation}/fedavg").task).payload
        return own != TEXTS and (own != PHOTOGRAPHS or payload == PHOTOGRAPHS)

    def rank(self, rows: Sequence[str]) -> dict[str, float]:
        """Return row -> rank among some in this setting: 1 is the best, equals, to the two digits of ``ours.csv``,
        share the mean of theirs.
        """
        from scipy.stats import rankdata

        return dict(zip(rows, map(float, rankdata([-float(self.scores[row].mean) for row in rows])), strict=True))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method, by how it ranks in some settings."""

    row: str
    shown: str
    """As the suite's page calls it."""
    mean_rank: float
    scores: tuple[str, ...]
    """Score in each setting, mean and sd."""
    preset: str
    """Preset of a near setting, with the values that were found there."""

    @property
    def reason(self) -> str:
        """What it adds to FedAvg."""
        return ADDS[self.row]


def shape_of(data: Prepared) -> Shape:
    """Return the shape of a prepared federation."""
    manifest = data.manifest
    classes, examples = len(manifest.class_names), manifest.examples
    if manifest.kind == "multi":
        labels = sum(_known_labels(data, client) for client in range(len(examples))) / classes
    else:
        labels = sum(rows for counts in manifest.counts for _, rows in counts)
    known_I = [len(of) / classes for of in manifest.classes]
    expected = sum(known * rows for known, rows in zip(known_I, examples, strict=True))
    return Shape(
        labels=manifest.kind,
        clients=len(examples),
        classes=classes,
        known=_mean(known_I),
        labeled=labels / max(1, sum(examples)),
        missing=max(0.0, 1 - labels / expected) if expected else 0.0,
        skew=_mean(
            _skew([rows for _, rows in counts], len(of))
            for counts, of in zip(manifest.counts, manifest.classes, strict=True)
        ),
        one_class=_mean(
            len(of) == 1 and sum(rows for _, rows in counts) == total > 0
            for counts, of, total in zip(manifest.counts, manifest.classes, examples, strict=True)
        ),
        rows=max(1.0, _mean(examples)),
        uncovered=int(manifest.uncovered_C().sum()),
    )


def _known_labels(data: Prepared, client: int) -> int:
    """Return how many labels of a client's rows are known; multi-label, where no card says it."""
    known = data.rows(client, ["known"])["known"]  # null: all classes that it identifies
    return pc.sum(pc.list_value_length(known).fill_null(len(data.manifest.classes[client]))).as_py() or 0


def shape_of_experiment(experiment: Experiment) -> Shape:
    """Return the shape of an experiment's federation, which is prepared in this process where it was not before."""
    from anchorfl.pipeline.config.cluster import ClusterOptions
    from anchorfl.pipeline.run.prepare import prepare_data

    here = replace(
        experiment, cluster=ClusterOptions(executor="serial" if experiment.federation.stack != 1 else "forked")
    )
    return shape_of(prepare_data(here, say))


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every)


def _skew(counts: Sequence[int], identified: int) -> float:
    total = sum(counts)
    if not total or not identified:
        return 0.0
    entropy = -sum(n / total * math.log(n / total) for n in counts if n)
    return max(0.0, 1 - math.exp(entropy) / identified)


def read_settings(file: Path = SHAPES) -> list[Setting]:
    """Return the settings of the suite that have both shape and scores."""
    scores: dict[str, dict[str, OurFigure]] = {}
    for figure in read_ours():
        federation, _, row = figure.preset.partition("/")
        if figure.metric == METRIC:
            scores.setdefault(federation, {})[row] = figure
    name = {federation: name for name, federation in shipped().papers[SUITE].data.items()}
    shapes = shapes_of(file.read_text(encoding="utf-8"))
    return [Setting(name[f], f, shape, scores[f]) for f, shape in shapes.items() if f in scores]


def shapes_of(text: str) -> dict[str, Shape]:
    """Return federation -> shape of a CSV text."""
    kind: Mapping[str, type] = {"labels": str, "clients": int, "classes": int, "uncovered": int}
    return {
        line.pop("federation"): Shape(**{key: kind.get(key, float)(value) for key, value in line.items()})
        for line in csv.DictReader(io.StringIO(text))
    }


def shapes_text(shapes: Mapping[str, Shape]) -> str:
    """Return the text of which ``shapes_of`` makes the same, to four digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["federation", *(f.name for f in fields(Shape))])
    for federation, shape in shapes.items():
        values = asdict(shape).values()
        writer.writerow([federation, *(f"{v:.4g}" if isinstance(v, float) else v for v in values)])
    return text.getvalue()


def by_distance(shape: Shape, settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings of a shape's kind of labels, the nearest first."""
    alike = [setting for setting in settings if setting.shape.labels == shape.labels]
    return sorted(alike, key=lambda setting: setting.shape.distance(shape))


def nearest_settings(shape: Shape, settings: Sequence[Setting]) -> list[Setting]:
    """Return the first settings of ``by_distance``, as far as they are not far behind the first of all."""
    furthest = settings[0].shape.distance(shape) + APART
    return [setting for setting in settings[:NEAREST] if setting.shape.distance(shape) < furthest]


def candidates(near: Sequence[Setting], partition: str, lender: Setting) -> list[Candidate]:
    """Return the methods that all of some settings have, the best mean rank first; those that have a client for each
    class only for that partition.

    lender: the setting whose presets are proposed.
    """
    from anchorfl.pipeline.methods import METHODS

    def fits(row: str) -> bool:
        return partition == ONE_CLASS or not METHODS[row].supports.one_class

    paper = shipped().papers[SUITE]
    rows = [row for row in ADDS if all(row in setting.scores for setting in (*near, lender)) and fits(row)]
    rank = [setting.rank(rows) for setting in near]
    found = [
        Candidate(
            row,
            paper.rows[row].published,
            _mean(of[row] for of in rank),
            tuple(_score(setting.scores[row]) for setting in near),
            f"{lender.federation}/{row}",
        )
        for row in rows
    ]
    return sorted(found, key=lambda candidate: (candidate.mean_rank, candidate.shown))


def _score(figure: OurFigure) -> str:
    return f"{figure.mean} ± {figure.sd}" if figure.sd else figure.mean


def recommend(arguments: list[str], sweep: Callable[[list[str]], int]) -> int:
    """Print the list and the command, or train the first ones. InputError where the table is wrong.

    sweep: the command of that name, which this package does not know.
    """
    if not arguments or arguments[0] in ("--help", "-h"):
        say(USAGE)
        return 0
    options, words = _split(arguments)
    with logged_apart():  # what preparation says
        of_race = {f.name for f in fields(SweepOptions)} if options.tried else set()
        shape, near, found = _asked(keep_options(words, lambda name: name not in of_race))
    if not options.tried and "output" in typed_options(words):
        raise InputError(
            "--output is the folder of one run, and several are recommended: leave it out, or give --try N"
        )
    best = found[: options.tried or SHOWN]
    presets = [candidate.preset for candidate in best]
    if options.tried:
        with logged_apart() if options.json else nullcontext():
            say(_text(shape, near, best) + "\n")
        race = ["--seeds", "1", "--finals", "0", "--rule", "mean5"]  # first, so that what was given is the last word
        return sweep([*presets, *race, *words, *(["--json"] if options.json else [])])
    command = ["anchorfl", "run", *presets, "--evaluation.test", "never", *words]
    if options.json:
        say(json.dumps(_as_object(shape, near, best, command), indent=1))
        return 0
    say(_text(shape, near, best))
    say("\nTrain them, choose by the validation scores, and then score the chosen one on the test split:\n")
    say(shlex.join(command))
    return 0


def _split(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the command's own options, and those of the table."""
    parser = argparse.ArgumentParser(prog="anchorfl recommend", add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--try", type=int, default=0, dest="tried")
    try:
        options, words = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(f"recommend: {error}") from error
    if options.tried < 0 or options.tried == 1:
        raise InputError(f"--try {options.tried}: how many methods to train against each other, at least 2")
    return options, words if words[:1] and words[0].startswith("-") else ["--task.file", *words]


def _asked(words: list[str]) -> tuple[Shape, list[Setting], list[Candidate]]:
    """Return the shape of the table that options name, the settings nearest to it, and the methods that these name."""
    from anchorfl.pipeline.run.assemble import from_words, names_table
    from anchorfl.tasks.registry import task_of

    if not names_table(words):
        raise InputError("recommend needs a table of your own: anchorfl recommend FILE --task.label_columns COLUMNS")
    if any(name.startswith("method.") for name in typed_options(words)):
        raise InputError("recommend compares methods: leave out options of [method]; anchorfl run takes them")
    _, experiment = from_words("", [*words, "--method.name", "fedavg"], "anchorfl run", say)
    shape, payload = shape_of_experiment(experiment), task_of(experiment.task).payload
    every = by_distance(shape, read_settings())
    near = nearest_settings(shape, every)
    lender = next(setting for setting in every if setting.lends_to(payload))
    return shape, near, candidates(near, experiment.task.partition, lender)


def _text(shape: Shape, near: Sequence[Setting], best: Sequence[Candidate]) -> str:
    parts = [shape.text, f"The settings of the suite that are most like it:\n\n{_aligned_settings(shape, near)}"]
    if near[0].shape.distance(shape) > FAR:
        parts.append("None of them is near: take the list for a first guess.")
    listed = _aligned_methods(near, best)
    return "\n\n".join([*parts, f"Macro F1 there, the best mean rank first (docs/results/suite.md):\n\n{listed}"])


def _as_object(
    shape: Shape, near: Sequence[Setting], best: Sequence[Candidate], command: Sequence[str]
) -> dict[str, Any]:
    return {
        "table": asdict(shape),
        "settings": [
            {"name": s.name, "federation": s.federation, "distance": s.shape.distance(shape), **asdict(s.shape)}
            for s in near
        ],
        "methods": [{**asdict(candidate), "reason": candidate.reason} for candidate in best],
        "command": list(command),
    }


def _aligned_settings(shape: Shape, near: Sequence[Setting]) -> str:
    head = ["", "clients", "classes", "known", "labeled", "skew", "rows", "by nobody", "distance"]
    rows = [head]
    for name, of in [("your table", shape), *((setting.name, setting.shape) for setting in near)]:
        far = f"{of.distance(shape):.2f}" if of is not shape else ""
        shares = (f"{of.known:.0%}", f"{of.labeled:.0%}", f"{of.skew:.2f}")
        rows.append([name, f"{of.clients}", f"{of.classes}", *shares, f"{of.rows:.0f}", f"{of.uncovered}", far])
    return terminal.table(rows, right=head[1:])


def _aligned_methods(near: Sequence[Setting], best: Sequence[Candidate]) -> str:
    head = ["method", "mean rank", *(setting.name for setting in near), "adds to FedAvg"]
    rows = [[c.shown, f"{c.mean_rank:.2f}", *c.scores, c.reason] for c in best]
    return terminal.table([head, *rows], terminal.width(), right=head[1:2])
