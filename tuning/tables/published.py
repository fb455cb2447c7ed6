"""Rows and columns of the papers' tables: data sets and methods as published, their presets, and the published figures.

A paper is a value in ``anchorfl.tuning.tables.papers``, made of its file of presets; its rows follow from it and from
``published.csv``, so that no figure is typed twice.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.metrics import scores

PUBLISHED = Path(__file__).resolve().parents[1] / "published.csv"
TRAFFIC = PUBLISHED.with_name("published_traffic.csv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The names of a published metric."""

    published: str
    """Name in ``published.csv``."""
    value: str
    """First part of the names in ``RunSummary.values``."""
    record: str
    """Key in the records of rounds."""
    shown: str
    """Name in tables."""

    @classmethod
    def of(cls, published: str, measure: scores.Measure) -> Metric:
        """Return the metric that is a measure of the test split."""
        return cls(published=published, value=measure.value, record=f"test/{measure.name}", shown=measure.shown)


MACRO_F1 = Metric.of("macro_f1", scores.F1_MACRO)
ACCURACY = Metric.of("accuracy", scores.ACCURACY)
MACRO_ACCURACY = Metric.of("macro_accuracy", scores.ACCURACY)
P_AT_1, P_AT_3, P_AT_5 = (Metric.of(f"p@{k}", m) for k, m in zip(scores.CUTS, scores.P_AT, strict=True))
MAP = Metric.of("map", scores.MAP)


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure in percent, and its sd where the paper has one."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The tables of a paper that are run again."""

    title: str
    """Name and year."""
    published: str
    """Name in ``published.csv``."""
    tables: tuple[str, ...]
    """Tables that are run again; none: the table is no paper's (``anchorfl benchmark``)."""
    proposed_method: str
    """The paper's own method, which the others are tested against."""
    data: Mapping[str, str]
    """Data set as published -> federation, in the order of the page."""
    methods: Mapping[str, str]
    """Method as published -> row of the presets, in the order of the page."""
    metrics: tuple[Metric, ...]
    """Published metrics, the first one first."""
    seeds: tuple[int, ...]
    """The authors' seeds."""
    reported: Literal["last", "best", "best_sum", "last5"] = "last"
    """Figure of a run that is compared: the last round's, that of the round with the best validation score or with the
    best of a named one (``best_sum``), or the mean of the last five."""
    method_settings: tuple[str, ...] = ()
    """Settings that belong to the method (``lambda=10``)."""
    shared_settings: tuple[str, ...] = ()
    """Settings that all rows of a data set share (``K=5``); any other belongs to the data set."""
    quoted: tuple[str, ...] = ()
    """Methods whose figures are not run again."""
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Data set -> methods that have a preset for it; those that are not published are run beside the others."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Data set that is not in the paper -> the published one whose figures stand beside it."""
    preprint: str = ""
    """Name in ``published.csv`` of an earlier text, whose figures are quoted where they differ."""
    traffic_table: str = ""
    """FedALC: the table that counts communication; shown by its rule, and as published (``published_traffic.csv``)."""
    file: Path = PUBLISHED
    """The published figures."""

    def data_and_method(self, line: Mapping[str, str]) -> tuple[str, str]:
        """Return data set and method of a line of the file, as the definition has them."""
        words = [word for word in line["setting"].split() if word.partition("=")[0] not in self.shared_settings]
        of_method = [word for word in words if word.partition("=")[0] in self.method_settings]
        rest = [word for word in words if word not in of_method]
        label = line["method"] + (f"({', '.join(of_method)})" if of_method else "")
        return ", ".join([line["dataset"], *rest]), label

    @property
    def primary(self) -> str:
        """Figure by which a run with these metrics chooses a round, as it is shown."""
        return scores.family_of(self.metrics[0].record.rpartition("/")[2]).primary.shown


@dataclass(frozen=True, slots=True)
class Change:
    """An option that is varied (``--vary``), with values as an experiment has them."""

    option: str
    """Dotted name."""
    value: Any
    """The row's value."""
    preset: Any
    """The preset's value."""

    @property
    def is_preset_value(self) -> bool:
        """True where both values are equal."""
        return bool(self.value == self.preset)

    @property
    def word(self) -> str:
        """Option without its section."""
        return self.option.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method on a data set."""

    data: str
    """Data set as published."""
    label: str
    """Method as published."""
    folder: str
    """Data set as ``--data`` calls it."""
    name: str
    """Method as ``--rows`` calls it."""
    tables: tuple[str, ...]
    """Tables that have the row."""
    figures: Mapping[str, Figure]
    """By ``Metric.published``; none where the change is not the preset's own value."""
    change: Change | None = None
    """None where no option is varied."""
    own: tuple[str, ...] = ()
    """Options that make a row of the user's own of the preset (``--row``); empty: the row is the paper's."""

    @property
    def preset(self) -> str:
        """Name of the preset."""
        return f"{self.folder}/{self.name}"

    @property
    def base(self) -> str:
        """Preset and own options: rows of one base differ by what is varied alone."""
        return f"{self.preset} {shlex.join(self.own)}" if self.own else self.preset

    @property
    def key(self) -> str:
        """Base and change, as ``anchorfl run`` takes them; no two rows have the same."""
        return f"{self.base} --{self.change.option} {value_text(self.change.value)}" if self.change else self.base

    @property
    def shown(self) -> str:
        """Label and change, in tables and figures."""
        label = f"{self.label} (own)" if self.own else self.label
        return f"{label}, {self.change.word} = {value_text(self.change.value)}" if self.change else label


def value_text(value: object) -> str:
    """Return a value of an option as text: 95.0 as 95."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def figure_lines(paper: Paper) -> list[dict[str, str]]:
    """Return the lines of its file that belong to its tables, those for a data set that stands beside another, too."""
    with paper.file.open(encoding="utf-8", newline="") as stream:
        lines = csv.DictReader(stream)
        own = [line for line in lines if line["paper"] == paper.published and line["table"] in paper.tables]
    also = [line | {"dataset": label} for label, of in paper.beside.items() for line in own if line["dataset"] == of]
    return own + also


def metrics_of(paper: Paper, data: str) -> list[Metric]:
    """Return the metrics that it has for a data set, in its order; all, where it has no tables."""
    if not paper.tables:
        return list(paper.metrics)
    published = {line["metric"] for line in figure_lines(paper) if paper.data_and_method(line)[0] == data}
    return [metric for metric in paper.metrics if metric.published in published]


def quoted_lines(paper: Paper, data: str) -> list[str]:
    """Return the figures of methods that are not run again, and those that the preprint has otherwise, on a data set: a
    line for each method.
    """
    not_run, preprint = "published and not run here", "in the preprint"
    lines = [(not_run, line) for line in figure_lines(paper) if paper.data_and_method(line)[1] in paper.quoted]
    if paper.preprint:
        earlier = figure_lines(replace(paper, published=paper.preprint))
        lines += [(f"{preprint}, Table {line['table']}", line) for line in earlier]
    shown = {metric.published: metric.shown for metric in paper.metrics}
    out: dict[tuple[str, str], list[str]] = {}
    for what, line in lines:
        data_set, label = paper.data_and_method(line)
        if data_set == data:
            out.setdefault((label, what), []).append(f"{shown[line['metric']]} {float(line['mean_percent']):.2f}")
    return [f"{label}, {what}: {', '.join(figures)}." for (label, what), figures in out.items()]


def published_traffic(paper: Paper, data: str, label: str) -> tuple[float, float] | None:
    """Return the published megabytes down and up of a row over a whole run; None where there are none."""
    with TRAFFIC.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    key = (paper.published, paper.traffic_table, data, label)
    return next(
        (
            (float(line["download_megabytes"]), float(line["upload_megabytes"]))
            for line in lines
            if (line["paper"], line["table"], line["dataset"], line["method"]) == key
        ),
        None,
    )


def rows_of(paper: Paper) -> tuple[Row, ...]:
    """Return every row of the paper's tables, by data set. One that stands in several tables is one row.

    ValueError where its file has a data set, method or metric that the definition lacks, a row without a preset, or two
    figures for one row and metric.
    """
    file = paper.file
    tables: dict[tuple[str, str], list[str]] = {}
    figures: dict[tuple[str, str], dict[str, Figure]] = {}
    known = {metric.published for metric in paper.metrics}
    for line in figure_lines(paper):
        (data, label), metric = paper.data_and_method(line), line["metric"]
        if label in paper.quoted:
            continue
        if data not in paper.data or label not in paper.methods or metric not in known:
            raise ValueError(f"{file.name}: {data}, {label}, {metric} is not in the definition of {paper.title}")
        figure = Figure(float(line["mean_percent"]), float(line["std_percent"]) if line["std_percent"] else None)
        if figures.setdefault((data, label), {}).setdefault(metric, figure) != figure:
            raise ValueError(f"{file.name}: two figures for {data}, {label}, {metric}")
        tables.setdefault((data, label), []).append(line["table"])
    for data, labels in paper.presets.items():
        if lacking := [label for data_set, label in figures if data_set == data and label not in labels]:
            raise ValueError(f"{file.name}: {data}, {lacking[0]} is published and has no preset")
        for label in labels:
            figures.setdefault((data, label), {})
    return tuple(
        Row(
            data=data,
            label=label,
            folder=paper.data[data],
            name=paper.methods[label],
            tables=tuple(dict.fromkeys(tables.get((data, label), ()))),
            figures=figures[data, label],
        )
        for data in paper.data
        for label in paper.methods
        if (data, label) in figures
    )


def select_rows(rows: Sequence[Row], data: Sequence[str], names: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of these data sets and methods, as ``--data`` and ``--rows`` call them; empty: all.

    InputError on an unknown one, or where nothing is left.
    """
    for option, words, known in (
        ("--data", data, list(dict.fromkeys(row.folder for row in rows))),
        ("--rows", names, list(dict.fromkeys(row.name for row in rows))),
    ):
        for word in words:
            if word not in known:
                raise InputError(f"{option} {word}: not in this table{nearest(word, known)}; it has {', '.join(known)}")
    selected = tuple(r for r in rows if (not data or r.folder in data) and (not names or r.name in names))
    if not selected:
        raise InputError(f"--data {','.join(data)} --rows {','.join(names)}: the paper has no such row")
    return selected
