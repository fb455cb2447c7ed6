"""Which rows and columns the papers' tables have: data sets and methods as published, the preset of each, and the
published figures from ``published.csv``.

A paper is a value in ``PAPERS``; its rows follow from it and from the file, so that no figure is typed twice.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks import metrics
from tasks.contract import InputError
from tasks.sources import nearest

PUBLISHED = Path(__file__).resolve().parent / "published.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A published metric and what it is called here. value: how names of ``RunSummary.values`` begin; record: key in
    the records of rounds; shown: in tables.
    """

    published: str
    value: str
    record: str
    shown: str

    @classmethod
    def of(cls, published: str, measure: metrics.Measure) -> Metric:
        """The same as a measure of the test split."""
        return cls(published=published, value=measure.value, record=f"test/{measure.name}", shown=measure.shown)


MACRO_F1 = Metric.of("macro_f1", metrics.F1_MACRO)
MACRO_ACCURACY = Metric.of("macro_accuracy", metrics.ACCURACY)
P_AT_1, P_AT_3, P_AT_5 = (Metric.of(f"p@{k}", m) for k, m in zip(metrics.CUTS, metrics.P_AT, strict=True))
MAP = Metric.of("map", metrics.MAP)


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure in percent, and its sd where the paper has one."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The tables of a paper that are run again. published: its name in ``published.csv``; own: its own method, which
    the others are tested against; data, methods: as published -> folder and file of the preset, in the order of the
    page; reported: which figure of a run is compared, the ``last`` round's, that of the round with the ``best``
    validation score, or the mean of the ``last5``; seeds: the authors'; file: the published figures.
    """

    title: str
    published: str
    tables: tuple[str, ...]
    own: str
    data: Mapping[str, str]
    methods: Mapping[str, str]
    metrics: tuple[Metric, ...]
    seeds: tuple[int, ...]
    reported: Literal["last", "best", "last5"] = "last"
    file: Path = PUBLISHED

    @property
    def primary(self) -> str:
        """The figure by which a run with these metrics chooses a round, as it is shown."""
        return metrics.family_of(self.metrics[0].record.rpartition("/")[2]).primary.shown


@dataclass(frozen=True, slots=True)
class Change:
    """An option of which a row has another value than its preset, or the same (``--vary``). option: its dotted name;
    value: that of the row; preset: that of the preset; both as an experiment has them.
    """

    option: str
    value: Any
    preset: Any

    @property
    def own(self) -> bool:
        """Whether the value is the preset's own."""
        return bool(self.value == self.preset)

    @property
    def word(self) -> str:
        """The option without its section."""
        return self.option.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method on a data set. data, label: as published; folder, name: what ``--data`` and ``--rows`` call them;
    tables: those that have the row; figures: by ``Metric.published``, none where the change is not the preset's own
    value; change: where an option is varied.
    """

    data: str
    label: str
    folder: str
    name: str
    tables: tuple[str, ...]
    figures: Mapping[str, Figure]
    change: Change | None = None

    @property
    def preset(self) -> str:
        """Name of the preset."""
        return f"{self.folder}/{self.name}"

    @property
    def key(self) -> str:
        """The preset with the change, as ``anchorfl run`` takes them: what tells rows apart."""
        return f"{self.preset} --{self.change.option} {plain(self.change.value)}" if self.change else self.preset

    @property
    def shown(self) -> str:
        """The label with the change, in tables and figures."""
        return f"{self.label}, {self.change.word} = {plain(self.change.value)}" if self.change else self.label


PAPERS: dict[str, Paper] = {
    "fedalign": Paper(
        title="FedAlign (KDD 2023)",
        published="FedAlign",
        tables=("2", "3"),
        own="FedAlign",
        data={
            "ES-5": "es-5",
            "ES-15": "es-15",
            "ES-25": "es-25",
            "MIMIC-III-10": "mimic3-10",
            "PAMAP2-9": "pamap2-9",
            "R8-8": "r8-8",
        },
        methods={
            "FedAvg": "fedavg",
            "FedProx(mu=0.001)": "fedprox-1e-3",
            "FedProx(mu=0.0001)": "fedprox-1e-4",
            "MOON": "moon",
            "SCAFFOLD": "scaffold",
            "FedPU": "fedpu",
            "FedRS(alpha=0.5)": "fedrs-0.5",
            "FedRS(alpha=0.9)": "fedrs-0.9",
            "FedAlign": "fedalign",
            "FedAlign w/o AL": "fedalign-no-al",
            "FedAlign w/o SE": "fedalign-no-se",
            "FedAlign w/o AT": "fedalign-no-at",
        },
        metrics=(MACRO_F1, MACRO_ACCURACY),
        seeds=(4321, 4322, 4323, 4324, 4325),
    ),
}
"""By the name that ``anchorfl table`` takes."""


def plain(value: object) -> str:
    """A value of an option as text: 95.0 as 95."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def paper_of(name: str) -> Paper:
    """The paper of that name. InputError with those that there are."""
    if name not in PAPERS:
        raise InputError(f"no table {name!r}{nearest(name, PAPERS)}; there are: {', '.join(PAPERS)}")
    return PAPERS[name]


def rows_of(paper: Paper) -> tuple[Row, ...]:
    """Every row of the paper's tables, by data set. One that stands in several tables is one row.

    ValueError where its file has a data set, method or metric that the definition lacks, or two figures for one row and
    metric.
    """
    file = paper.file
    tables: dict[tuple[str, str], list[str]] = {}
    figures: dict[tuple[str, str], dict[str, Figure]] = {}
    known = {metric.published for metric in paper.metrics}
    with file.open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            if line["paper"] != paper.published or line["table"] not in paper.tables:
                continue
            data, label, metric = line["dataset"] + _setting(line["setting"]), line["method"], line["metric"]
            if data not in paper.data or label not in paper.methods or metric not in known:
                raise ValueError(f"{file.name}: {data}, {label}, {metric} is not in the definition of {paper.title}")
            figure = Figure(float(line["mean_percent"]), float(line["std_percent"]) if line["std_percent"] else None)
            if figures.setdefault((data, label), {}).setdefault(metric, figure) != figure:
                raise ValueError(f"{file.name}: two figures for {data}, {label}, {metric}")
            tables.setdefault((data, label), []).append(line["table"])
    return tuple(
        Row(
            data=data,
            label=label,
            folder=paper.data[data],
            name=paper.methods[label],
            tables=tuple(dict.fromkeys(tables[data, label])),
            figures=figures[data, label],
        )
        for data in paper.data
        for label in paper.methods
        if (data, label) in figures
    )


def _setting(setting: str) -> str:
    return f", {setting}" if setting else ""


def chosen(rows: Sequence[Row], data: Sequence[str], names: Sequence[str]) -> tuple[Row, ...]:
    """The rows of these data sets and methods, as ``--data`` and ``--rows`` call them; empty: all. InputError on an
    unknown one, or where nothing is left.
    """
    for option, asked, known in (
        ("--data", data, list(dict.fromkeys(row.folder for row in rows))),
        ("--rows", names, list(dict.fromkeys(row.name for row in rows))),
    ):
        for word in asked:
            if word not in known:
                raise InputError(f"{option} {word}: not in this table{nearest(word, known)}; it has {', '.join(known)}")
    kept = tuple(r for r in rows if (not data or r.folder in data) and (not names or r.name in names))
    if not kept:
        raise InputError(f"--data {','.join(data)} --rows {','.join(names)}: the paper has no such row")
    return kept
