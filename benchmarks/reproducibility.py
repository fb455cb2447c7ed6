"""Write the tables of REPRODUCIBILITY.md and docs/results/, tuning/ours.csv, and the suite's diagram of ranks, from the
records of kept runs.

A page holds prose, which people write, and blocks, which this writes:

    <!-- made: VIEW TABLE [option=value ...] -->
    <!-- end -->

VIEW is a key of VIEWS, TABLE one of KEPT; each view's docstring says which options it takes. Published figures come
from tuning/published.csv, ours from benchmarks/results/*.tar.xz.

    python -m benchmarks.reproducibility            # write every block and file anew
    python -m benchmarks.reproducibility --check    # write nothing; exit 1 where one differs
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from anchorfl.pipeline.results.compare import load_run
from anchorfl.pipeline.results.picture import svg
from anchorfl.pipeline.storage.run_folder import RESULT
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.tables.command import parse_args
from anchorfl.tuning.tables.ours import OURS, csv_text, figures_of
from anchorfl.tuning.tables.own_rows import own_rows
from anchorfl.tuning.tables.page import (
    against_best,
    costs_across,
    metrics_of,
    most_frequent_rows,
    ranks,
    scores_across,
    verdicts,
)
from anchorfl.tuning.tables.page import ours as ours_text
from anchorfl.tuning.tables.papers import PAPERS, paper_of
from anchorfl.tuning.tables.plots import rank_diagram
from anchorfl.tuning.tables.published import figure_lines, rows_of, select_rows, value_text
from anchorfl.tuning.tables.ranks import duels_of, ranking_of
from anchorfl.tuning.tables.recommend import ADDS
from anchorfl.tuning.tables.runs import RunIndex, attach_folders, check_has_scores, index_runs, table_runs_of
from anchorfl.tuning.tables.significance import apply_holm, compare_paired
from anchorfl.tuning.tables.statistics import (
    ABOVE,
    BELOW,
    REPRODUCED,
    WITHIN_NOISE,
    Table,
    TableEntry,
    busy_hours,
    dropped_client_notes,
    table_of,
)
from benchmarks import anchor_ablation
from benchmarks.last_rounds import Swing, swing

TOP = Path(__file__).resolve().parents[1]
ARCHIVES = TOP / "benchmarks" / "results"
PLUG_INS = TOP / "benchmarks" / "plug_ins"
sys.path.append(str(PLUG_INS))  # whose rows are of kept tables
ANCHOR = TOP / "docs" / "methods" / "anchor.md"
RANKS = TOP / "docs" / "images" / "suite-ranks.svg"
BLOCK = re.compile(r"(<!-- made: (?P<words>[^\n]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
SIZE = (
    "--model.network resnet8 --model.stem auto --model.width 64 --optimizer.batch_size 32 --evaluation.test last"
    " --class_embeddings.encoder sentence-transformers/all-MiniLM-L6-v2"
)
"""Options of FedBM's table at sizes that a CPU carries."""
SMALL = f"{SIZE} --method.synthetic_per_batch 32"
"""The same, with as many generated images as rows in a mini-batch, where FedBM alone has them."""


LEVEL = 0.05
"""p, after Holm's correction, from which two rows are level."""
VERDICTS = (ABOVE, REPRODUCED, WITHIN_NOISE, BELOW)
MEANING = "[Verdict](#how-to-read-the-tables)"
"""Head of the column of verdicts; in REPRODUCIBILITY.md it leads to what they mean."""


class Kept(NamedTuple):
    """A call of ``anchorfl table`` whose runs are kept."""

    archives: tuple[str, ...]
    """Names in benchmarks/results, without .tar.xz."""
    arguments: str
    """What follows ``anchorfl table``."""
    link: str = ""
    """Page of the data set in docs/results, without .md."""
    settings: str = ""
    """Where they are not the paper's: how they differ, in some words; then there is no verdict."""
    presets: bool = True
    """Whether a row names its preset; not where nearly every option differs from it."""


KEPT = {
    "r8-8": Kept(("r8-8",), "fedalign --data r8-8", "r8-8"),
    "r8-8-uncovered": Kept(("r8-8",), "fedalign --data r8-8 --seeds 4322"),
    "r8-8-redrawn": Kept(("r8-8-redrawn",), "fedalign --data r8-8-redrawn", "r8-8", "class sets drawn again"),
    "r8-8-redrawn-anchor": Kept(
        ("r8-8-redrawn",),
        'fedalign --data r8-8-redrawn --row "Anchor = fedavg --method.name anchor" --rows scaffold,fedpu,fedalign',
    ),
    "r8-8-redrawn-ten": Kept(
        ("r8-8-redrawn", "r8-8-redrawn-more"),
        'fedalign --data r8-8-redrawn --row "Anchor = fedavg --method.name anchor" --rows fedalign'
        " --seeds 4321,4322,4323,4324,4325,4326,4327,4328,4329,4330",
    ),
    "r8-8-redrawn-again": Kept(("r8-8-redrawn-again",), "fedalign --data r8-8-redrawn --rows fedalign --seeds 4321"),
    "r8-8-redrawn-scaffold-rate": Kept(
        ("r8-8-redrawn",),
        "fedalign --data r8-8-redrawn --rows scaffold --seeds 4321,4322 --vary optimizer.lr=0.001,0.005",
    ),
    "r8-8-redrawn-fedpu-rate": Kept(
        ("r8-8-redrawn",), "fedalign --data r8-8-redrawn --rows fedpu --seeds 4321 --vary optimizer.lr=0.001,0.005"
    ),
    "r8-8-redrawn-fedpu-weight": Kept(
        ("r8-8-redrawn",), "fedalign --data r8-8-redrawn --rows fedpu --seeds 4321 --vary method.lambda_=0.3,1"
    ),
    "r8-8-redrawn-q1": Kept(
        ("r8-8-redrawn",), "fedalign --data r8-8-redrawn --rows fedalign --seeds 4321 --vary method.q1=90,99"
    ),
    "es-15": Kept(("es-15",), "fedalign --data es-15", "extrasensory", "16 of the 60 users"),
    "es-25": Kept(
        ("es-25",),
        "fedalign --data es-25 --seeds 4321,4322,4323",
        "extrasensory",
        "16 of the 60 users",
    ),
    "es-25-anchor": Kept(
        ("es-25",),
        'fedalign --data es-25 --row "Anchor = fedavg --method.name anchor" --rows fedavg,scaffold,fedalign'
        " --seeds 4321,4322,4323",
    ),
    "es-25-redrawn": Kept(
        ("es-25-redrawn",),
        "fedalign --data es-25-redrawn --rows fedavg,fedprox-1e-3,fedprox-1e-4,moon,scaffold,fedpu,fedrs-0.5,fedrs-0.9,"
        "fedalign",
        "extrasensory",
        "16 of the 60 users, class sets drawn again",
    ),
    "es-5": Kept(
        ("es",),
        "fedalign --data es-5 --rows fedavg,fedprox-1e-3,fedprox-1e-4,moon,scaffold,fedpu,fedrs-0.5,fedrs-0.9,fedalign"
        " --seeds 4321,4322,4323",
        "extrasensory",
        "16 of the 60 users",
    ),
    "es": Kept(
        ("es",),
        "fedalign --data es-15-redrawn --rows fedavg,scaffold,fedalign --seeds 4321,4322,4323",
        "extrasensory",
        "16 of the 60 users",
    ),
    "es-clients": Kept(
        ("es", "es-25-redrawn"),
        "fedalign --data es-25-redrawn --seeds 4321,4322,4323 --rows fedavg,fedalign --vary"
        " federation.clients_per_round=2,5,10,16",
    ),
    "es-epochs": Kept(
        ("es", "es-25-redrawn"),
        "fedalign --data es-25-redrawn --seeds 4321,4322,4323 --rows fedavg,fedalign --vary federation.epochs=1,5,10",
    ),
    "es-q1": Kept(
        ("es", "es-25-redrawn"),
        "fedalign --data es-25-redrawn --seeds 4321,4322,4323 --rows fedalign --method.q2 95 --vary"
        " method.q1=95,97,99,99.5,99.9",
    ),
    "bibtex": Kept(
        ("bibtex-lambda", "bibtex-others"),
        "fedalc --data bibtex --task.validation 0",
        "bibtex",
        "`--task.validation 0`",
    ),
    "bibtex-decay": Kept(
        ("bibtex-lambda",),
        "fedalc --data bibtex --rows fedalc-200 --seeds 0,1,2,3 --task.validation 0 --method.server_lr_decay 0.98",
    ),
    "pbc": Kept(
        ("pbc",),
        "fedbm --data pbc-0.05,pbc-0.1 --rows central,fedavg,feddyn,fedprox,fedrep,fedrod,fednh,fedproto,fedetf,"
        "scaffold,fedbm,fedbm-no-lkcc,fedbm-no-cgde --seeds 0,1,2 --task.name pbc --task.variant npz28"
        f" --task.image_size 28 --federation.epochs 1 --federation.rounds 40 {SMALL} --method.head_epochs 1",
        "pbc",
        "28 x 28 pixels",
        presets=False,
    ),
    "pbc-anchor": Kept(
        ("pbc",),
        'fedbm --data pbc-0.05 --row "FedBM, 32 images = fedbm --method.synthetic_per_batch 32"'
        ' --row "Anchor = fedavg --method.name anchor"'
        ' --row "Anchor, 32 images = fedavg --method.name anchor --method.synthetic_per_batch 32"'
        " --rows fedavg,scaffold,fedrod,fedetf --seeds 0,1,2"
        " --task.name pbc --task.variant npz28 --task.image_size 28 --federation.epochs 1 --federation.rounds 40"
        f" {SIZE}",
    ),
    "pbc-exchanged": Kept(
        ("pbc", "pbc-language", "pbc-exchanged"),
        "fedbm --data pbc-0.05 --rows fedbm,fedbm-no-lkcc,fedbm-no-language --seeds 0,1,2"
        ' --row "FedBM, names exchanged = fedbm --class_embeddings.encoder exchanged_names:encoder"'
        ' --row "w/o LKCC, names exchanged = fedbm-no-lkcc --class_embeddings.encoder exchanged_names:encoder"'
        " --task.name pbc --task.variant npz28 --task.image_size 28 --federation.epochs 1 --federation.rounds 40"
        f" {SMALL}",
    ),
    "pbc-language": Kept(
        ("pbc", "pbc-language"),
        "fedbm --data pbc-0.05 --rows fedavg,fedbm,fedbm-no-lkcc,fedbm-no-language,fedbm-no-cgde --seeds"
        " 0,1,2,3,4,5,6,7 --task.name pbc --task.variant npz28 --task.image_size 28 --federation.epochs 1"
        f" --federation.rounds 40 {SMALL}",
    ),
    "pbc-5-epochs": Kept(
        ("pbc-epochs",),
        "fedbm --data pbc-0.05 --rows fedavg,fedbm,fedbm-no-lkcc,fedbm-no-language,fedbm-no-cgde --seeds 0,1,2"
        " --task.name pbc --task.variant npz28 --task.image_size 28 --federation.epochs 5 --federation.rounds 40"
        f" {SMALL}",
    ),
    "ham10000": Kept(
        ("fedbm-others",),
        "fedbm --data ham10000-0.05 --rows fedavg,fedbm --task.name ham10000 --task.variant hmnist_8_8_L"
        f" --task.image_size 8 {SMALL} --method.lambda_div 0.0013",
        "ham10000",
        "8 x 8 grey pixels",
        presets=False,
    ),
    "digits": Kept(
        ("fedbm-others",),
        f"fedbm --data ham10000-0.05 --rows fedavg,fedbm --task.name digits --task.image_size 8 {SMALL}"
        " --method.lambda_div 0.0013",
    ),
    "suite": Kept(
        (
            "suite",
            "suite-yeast",
            "suite-r8",
            "suite-digits-more",
            "suite-missing",
            "suite-scene-one-class",
            "suite-pbc",
            "suite-ham10000",
            "suite-es",
        ),
        "suite",
        "suite",
    ),
    "suite-plug-in": Kept(
        ("suite", "suite-digits-more", "suite-missing", "suite-plug-in"),
        "suite --data suite-digits-masks-2,suite-digits-masks-3,suite-digits-masks-5,suite-digits-missing,"
        "suite-digits-one-class,suite-digits-skew-0.1,suite-digits-skew-masks --rows anchor,fedavg,fedpu,fedalign"
        ' --row "FedAlign with FedPU\'s terms = fedalign --method.name fedpu_terms:FedAlignWithTerms"',
    ),
    "suite-r8-plug-in": Kept(
        ("suite-r8", "suite-plug-in"),
        "suite --data suite-r8-masks-3 --rows anchor,fedavg,fedpu,fedalign"
        " --row \"FedAlign with FedPU's terms = fedalign --method.name fedpu_terms:FedAlignWithTerms"
        " --method.data_lr 0.0055 --method.label_lr 0.0275"
        ' --method.q1 96.8358 --method.q2 79.674 --method.alpha 0.47699"',
    ),
    "suite-r8-terms": Kept(
        ("suite-r8", "suite-plug-in"),
        "suite --data suite-r8-masks-3 --rows scaffold,fedpu,fedalign,fedavg"
        ' --row "FedPU as coded = fedpu --method.name fedpu_as_coded:FedPUAsCoded"'
        " --row \"FedAlign, unlabeled rows' term = fedalign --method.name fedpu_one_term:FedAlignWithUnlabeledTerm"
        " --method.data_lr 0.0055 --method.label_lr 0.0275"
        ' --method.q1 96.8358 --method.q2 79.674 --method.alpha 0.47699"'
        " --row \"FedAlign, labeled rows' term = fedalign --method.name fedpu_one_term:FedAlignWithLabeledTerm"
        " --method.data_lr 0.0055 --method.label_lr 0.0275"
        ' --method.q1 96.8358 --method.q2 79.674 --method.alpha 0.47699"',
    ),
    "suite-r8-uncovered": Kept(("suite-r8",), "suite --data suite-r8-uncovered"),
}
"""The tables, in the order of the summary."""

RUNS = {
    "bibtex-steps": (
        "bibtex-steps",
        {
            "fedalc-200": "lambda 200, one step, as in the preset",
            "fedalc-500-steps": "lambda 500, ten steps",
            "fedalc-1-100x-steps": "lambda 1, ten steps at a hundred times the rate",
            "fedalc-10-100x-steps": "lambda 10, the same",
            "fedalc-100-100x-steps": "lambda 100, the same",
            "fedalc-200-100x-steps": "lambda 200, the same",
            "fedalc-500-100x-steps": "lambda 500, the same",
            "fedaws-1-100x-steps": "FedAwS, lambda 1, the same",
            "fedaws-10-100x-steps": "FedAwS, lambda 10, the same",
            "fedaws-100-100x-steps": "FedAwS, lambda 100, the same",
            "fedalc-1-100x-cap-0.1": "lambda 1, one step at a hundred times the rate, of length 0.1 at most",
            "fedalc-10-100x-cap-0.1": "lambda 10, the same",
            "fedalc-200-100x-cap-0.1": "lambda 200, the same",
            "fedaws-10-100x-cap-0.1": "FedAwS, lambda 10, the same",
            "fedalc-10-100x-cap-0.03": "lambda 10, the same, of length 0.03 at most",
            "fedalc-10-adam-1e-4": "lambda 10, Adam at 1e-4",
            "fedalc-1-adam-1e-3": "lambda 1, Adam at 1e-3",
            "fedalc-10-adam-1e-3": "lambda 10, the same",
            "fedaws-10-adam-1e-3": "FedAwS, lambda 10, the same",
            "fedalc-10-adam-100x": "lambda 10, Adam at 1e-2",
        },
    ),
    "bibtex-average": (
        "bibtex-steps",
        {
            "flag-average": "FLAG, the server takes the mean of theta",
            "fedmlh-average": "FedMLH, the same",
            "fedavg-fixed-average": "FedAvg-fixed, the same",
        },
    ),
    "r8-8-terms": (
        "r8-8",
        {
            "r8-8-terms-s4321": "FedAlign with FedPU's terms, seed 4321",
            "r8-8-terms-s4322": "the same, seed 4322",
        },
    ),
    "pbc-tau": (
        "fedbm-others",
        {
            "fedbm-12.5": "`method.tau` 12.5, the preset's",
            "fedbm-7.5": "`method.tau` 7.5",
            "fedbm-17.5": "`method.tau` 17.5",
            "fedbm-random": "`method.classifier` random: random unit rows in place of language",
            "fedbm-dis1": "`method.lambda_dis` 1",
            "nocgde": "w/o CGDE",
            "nocgde-random": "w/o CGDE, `method.classifier` random",
        },
    ),
}
"""Single runs that belong to no table: name -> their archive and, by the run's name in it, what they are."""


class Records:
    """The kept runs, unpacked into a folder, and the tables that they make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = cache(self._index)
        self.table = cache(self._table)

    def runs(self, archive: str) -> Path:
        """Return the folder of an archive's runs; unpack it the first time."""
        out = self.folder / archive
        if not out.exists():
            out.mkdir()
            with tarfile.open(ARCHIVES / f"{archive}.tar.xz") as tar:
                tar.extractall(out, filter="data")
        return out

    def _index(self, archive: str) -> RunIndex:
        return index_runs(self.runs(archive))

    def _table(self, name: str) -> Table:
        kept = KEPT[name]
        a = parse_args(shlex.split(kept.arguments))
        paper = paper_of(a.name)
        every = rows_of(paper)
        rows = (*select_rows(every, a.data, a.rows), *own_rows(a.own, every, a.data))
        cells = table_runs_of(rows, a.seeds, a.overrides, a.vary, paper.reported)
        check_has_scores(paper, cells)
        finished = {digest: runs for archive in kept.archives for digest, runs in self.found(archive).finished.items()}
        table = table_of(paper, attach_folders(cells, RunIndex(finished)))
        if not table.finished:
            raise InputError(f"{name}: no kept run has the options of anchorfl table {kept.arguments}")
        return table


def ours(records: Records) -> str:
    """Return tuning/ours.csv: our figures of the presets, by the tables that have a page."""
    kept = {name: " ".join(f"{a}.tar.xz" for a in k.archives) for name, k in KEPT.items() if k.link}
    return csv_text(figure for name, where in kept.items() for figure in figures_of(records.table(name), where))


def diagram(records: Records, name: str) -> str:
    """Return the critical-difference diagram of a kept table, as the text of an SVG file."""
    ranking = ranking_of(records.table(name))
    if ranking is None:
        raise InputError(f"{name}: no ranks, of fewer than three data sets or rows")
    return svg(rank_diagram(ranking))


def rounds_of(folder: Path) -> list[str]:
    """Return the records of a run's rounds, a line each."""
    return (folder / "metrics.jsonl").read_text().splitlines()


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    head, *rest = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def once(rows: Iterable[Sequence[str]], columns: int) -> list[list[str]]:
    """Return the rows with an empty cell in place of one that repeats the row above, in the first columns."""
    out, before = [], [""] * columns
    for row in rows:
        same = [i for i in range(columns) if list(row[: i + 1]) == before[: i + 1]]
        out.append(["" if i in same else cell for i, cell in enumerate(row)])
        before = list(row[:columns])
    return out


def wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most that width, broken at plain spaces alone."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".lstrip(" ")
    return [*lines, line]


def details(table: Table, name: str) -> str:
    """Return the command of a table, where its records lie, and what its runs cost, folded away."""
    kept = KEPT[name]
    glued = re.sub(r"(--\S+) (?!--)", "\\1\N{NO-BREAK SPACE}", f"anchorfl table {kept.arguments}")
    words = [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped(glued, 108)]
    records = " and ".join(f"`benchmarks/results/{archive}.tar.xz`" for archive in kept.archives)
    wanted = len({run.digest for run in table.runs})
    text = f"{len(table.finished)} of {wanted} runs, {table.hours:.2f} CPU hours. Records: {records}."
    lines = ["<details><summary>Command and records</summary>", "", "```sh", " \\\n    ".join(words), "```", ""]
    lines += wrapped(text, 118)
    lines += [f"- {line}" for line in dropped_client_notes(table.runs, table.finished)]
    return "\n".join([*lines, "", "</details>"])


def beside(records: Records, name: str, link: str = "") -> str:
    """Show published beside ours, with verdicts if the settings are the paper's. link: of the data set, before .md."""
    table, kept = records.table(name), KEPT[name]
    head, *lines = verdicts(table.entries, table.seeds)
    at = {column: head.index(column) for column in ("row", "preset", "metric", "published", "ours", "difference", "n")}
    last = [] if kept.settings else [MEANING]
    rows = []
    for entry, line in zip(table.entries, lines, strict=True):
        row = f"{line[at['row']]} `{line[at['preset']]}`" if kept.presets else line[at["row"]]
        data = f"[{entry.row.data}]({link}{kept.link}.md)" if kept.link else entry.row.data
        cells = [line[at[column]] for column in ("metric", "published", "ours", "difference")]
        seeds = str(len(entry.scores)) if len(entry.scores) == len(entry.seeds) else line[at["n"]]
        rows.append([data, row, *cells, seeds, *([line[-1]] if last else [])])
    names = ["Data set", "Row", "Metric", "Published", "Ours", "Difference", "Seeds", *last]
    return f"{grid([names, *once(rows, 2)])}\n\n{details(table, name)}"


def seeds(records: Records, name: str) -> str:
    """Show the score of every seed."""
    table = records.table(name)
    head, *lines = verdicts(table.entries, table.seeds)
    scores = next(i for i, column in enumerate(head) if column.startswith("seeds"))
    rows: list[list[str]] = []
    for data, of_data in table.data:
        of_rows = [line for e, line in zip(table.entries, lines, strict=True) if e.row.data == data]
        of_rows += most_frequent_rows(table, of_data)
        rows += [[data, line[0], line[2], line[4], line[scores]] for line in of_rows]
    names = ["Data set", "Row", "Metric", "Mean ± sd", head[scores].capitalize()]
    rows = [names, *once(rows, 2)]
    if len(table.data) == 1:
        rows = [row[1:] for row in rows]
    return f"{grid(rows)}\n\n{details(table, name)}"


def compared(records: Records, name: str, own: str = "", rows: str = "", metrics: str = "") -> str:
    """Show paired t-tests: the paper's method, or the row `own`, less each other row, or each of `rows`; Holm's
    correction over the rows of a data set. own: a row's name, or label; metrics: as published, if not all.
    """
    table = records.table(name)
    among = [row for row in table.rows if not rows or row.name in rows.split(",") or own in (row.label, row.name)]
    entries: dict[str, dict[str, dict[str, TableEntry]]] = {}
    for e in table.entries:
        if e.row in among and (not metrics or e.metric.published in metrics.split(",")):
            entries.setdefault(e.row.data, {}).setdefault(e.metric.shown, {})[e.row.key] = e
    labels = list(dict.fromkeys(metric for per_metric in entries.values() for metric in per_metric))
    out = [["Data set", "Row", *(cell for metric in labels for cell in (metric, "p", "Holm"))]]
    for data, per_metric in entries.items():
        first = own or (reference.name if (reference := table.reference(among[0])) else "")
        rows_of_data = {row.key: row for row in among if row.data == data}
        key = next(row.key for row in rows_of_data.values() if first in (row.label, row.name))
        found = {
            metric: apply_holm({k: compare_paired(of[key].scores, e.scores) for k, e in of.items() if k != key})
            for metric, of in per_metric.items()
        }
        for k, row in rows_of_data.items():
            if k != key:
                cells = [cell for metric in labels for cell in difference_of(found[metric][k])]
                out.append([data, row.label, *cells])
    rows_ = [out[0], *once(out[1:], 1)]
    return grid([row[1:] for row in rows_] if len(entries) == 1 else rows_)


def difference_of(one: object) -> tuple[str, str, str]:
    """Return a comparison's difference in points, its p, and p after Holm's correction; - for what it lacks."""
    difference, p, holm = (getattr(one, name) for name in ("difference", "p", "holm"))
    points = "-" if math.isnan(difference) else f"{round(100 * difference, 2) + 0.0:+.2f}"
    return points, *("-" if v is None else f"{v:.2g}" for v in (p, holm))


def vary(records: Records, name: str) -> str:
    """Show scores at every value of the option that is varied; with two rows, the second less the first."""
    table = records.table(name)
    option = re.search(r"--vary ([^=]+)=", KEPT[name].arguments).group(1)  # type: ignore[union-attr]
    labels = list(dict.fromkeys(row.label for row in table.rows))
    metrics = list(dict.fromkeys(e.metric.shown for e in table.entries))
    by = {(value_text(e.row.change.value), e.row.label, e.metric.shown): e for e in table.entries if e.row.change}
    own = {value_text(e.row.change.value) for e in table.entries if e.row.change and e.row.change.is_preset_value}
    head = [f"`{option}`", *(f"{label}, {metric}" for label in labels for metric in metrics)]
    two = len(labels) == 2
    rows = [[*head, *([f"{labels[1]} less {labels[0]}, {metrics[0]}"] if two else [])]]
    for value in dict.fromkeys(value for value, _, _ in by):
        cells = [ours_text(by[value, label, metric]) for label in labels for metric in metrics]
        if two:
            first, second = (by[value, label, metrics[0]].mean for label in labels)
            cells.append("-" if first is None or second is None else f"{round(second - first, 2) + 0.0:+.2f}")
        rows.append([f"{value} (preset)" if value in own else value, *cells])
    return f"{grid(rows)}\n\n{details(table, name)}"


def swings(records: Records, name: str, metric: str, rounds: str, rows: str = "", show: str = "best,mean,fall") -> str:
    """Show how rows swing over their last `rounds` rounds, seed by seed: the best of all rounds, the mean of the last,
    and the largest fall from one of these to the next. show: which of the three.
    """
    table = records.table(name)
    named = {
        "best": "best round",
        "mean": mean_of_last(rounds),
        "fall": f"largest fall from round to round in the last {rounds}",
    }
    out = [["Data set", "Row", *(f"`{metric}`: {named[part]}" for part in show.split(","))]]
    for row in table.rows:
        if rows and row.name not in rows.split(","):
            continue
        of = [swing(rounds_of(run.folder), metric, int(rounds)) for _, run in sorted(table.of(row).items())]
        out.append([row.data, row.label, *(per_seed(of, part) for part in show.split(","))])
    out = [out[0], *once(out[1:], 1)]
    lines = grid([row[1:] for row in out] if len(table.data) == 1 else out)
    return f"{lines}\n\n{of_last_rounds(KEPT[name].archives, metric, rounds)}"


def mean_of_last(rounds: str) -> str:
    """Return the head of a column."""
    return "last round" if rounds == "1" else f"mean of the last {rounds} rounds"


def per_seed(of: Sequence[Swing], part: str) -> str:
    """Return the values of the seeds and, of a mean over rounds, their mean ± sd."""
    values = [getattr(one, part) for one in of]
    text = ", ".join(f"{value:.1f}" for value in values)
    if part != "mean" or len(values) < 2:
        return text
    return f"{text} ({statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f})"


def of_last_rounds(archives: Sequence[str], metric: str, rounds: str) -> str:
    """Return the command that shows the rounds of the archives' runs, folded away."""
    line = "python -m benchmarks.last_rounds benchmarks/results/{}.tar.xz --metric {} --rounds {}"
    lines = [line.format(archive, metric, rounds) for archive in archives]
    return "\n".join(["<details><summary>Command</summary>", "", "```sh", *lines, "```", "", "</details>"])


def runs(records: Records, name: str, metric: str, rounds: str) -> str:
    """Show single runs that belong to no table: the best of all rounds, and the mean of the last `rounds`."""
    archive, named = RUNS[name]
    out = [
        [
            "Run",
            "Settings",
            f"`{metric}`: best round",
            mean_of_last(rounds),
        ]
    ]
    for folder, text in named.items():
        of = swing(rounds_of(records.runs(archive) / folder), metric, int(rounds))
        out.append([f"`{folder}`", text, f"{of.best:.2f}", f"{of.mean:.2f}"])
    return f"{grid(out)}\n\n{of_last_rounds([archive], metric, rounds)}"


def cost(records: Records, name: str) -> str:
    """Show megabytes per client and round, and CPU hours per run."""
    table = records.table(name)
    out = [["Data set", "Row", "MB down", "MB up", "CPU hours per run"]]
    for row in table.rows:
        of = table.cost(row)
        out.append([row.data, row.label, *("-" if v is None else f"{v:.3g}" for v in (of.down, of.up, of.hours))])
    out = [out[0], *once(out[1:], 1)]
    return grid([row[1:] for row in out] if len(table.data) == 1 else out)


def across(records: Records, name: str, what: str = "scores") -> str:
    """Show rows against data sets. what: scores (mean and sd of the first metric, and the rank), costs (megabytes of a
    client in a round, CPU seconds of a run), ranks, or duels (the best row against each other one).
    """
    table = records.table(name)
    if what == "duels":
        return grid(against_best(duels_of(table)))
    if what != "ranks":
        return f"{grid({'scores': scores_across, 'costs': costs_across}[what](table))}\n\n{details(table, name)}"
    ranking = ranking_of(table)
    if ranking is None:
        raise InputError(f"{name}: no ranks, of fewer than three data sets or rows")
    apart = f"critical difference {ranking.critical_difference:.2f} (Nemenyi, 0.05)"
    text = f"p = {ranking.p:.2g} (Friedman, by Iman and Davenport); {apart}."
    return f"{grid(ranks(ranking))}\n\n{text}"


def decides(records: Records, name: str, plain: str, own: str) -> str:
    """Show a paragraph per data set: the first row, the published one that comes first and what it adds, the rows that
    are level with the first, and those that are above or below the plain method. plain, own: labels of the plain method
    and of this project's. Level, above and below are by paired t-tests at ``LEVEL``, with Holm's correction.
    """
    table, lines = records.table(name), []
    for data, rows in table.data:
        metric = metrics_of(table.paper, data)[0]
        entries = [e for e in table.entries if e.row in rows and e.metric == metric and e.mean is not None]
        entries.sort(key=lambda e: -(e.mean or 0.0))
        of = {e.row.label: e for e in entries}
        best, base = entries[0], of[plain]
        published = next(e for e in entries if e.row.label != own)
        apart, from_plain = apart_from(best, entries), apart_from(base, entries)
        level = [e for e in entries[1:] if e not in apart]
        above = [e for e in from_plain if entries.index(e) < entries.index(base)]
        below = [e for e in from_plain if entries.index(e) > entries.index(base)]
        shown = [f"{e.row.label} {e.mean:.2f}" for e in (best, published)[best is published :]]
        text = (
            f"- **{data}**: {', then '.join(shown)} ({ADDS[published.row.name]}). Level with the first: {named(level)}."
            f" Above {plain} ({base.mean:.2f}): {named(above)}; below it: {named(below)}."
        )
        lines += [("" if i == 0 else "  ") + line for i, line in enumerate(wrapped(text, 116))]
    return "\n".join(lines)


def named(entries: Iterable[TableEntry]) -> str:
    """Return the labels of rows."""
    return ", ".join(e.row.label for e in entries) or "none"


def apart_from(one: TableEntry, entries: Sequence[TableEntry]) -> list[TableEntry]:
    """Return the entries that differ from one by a paired t-test, with Holm's correction over all of them."""
    family = {e.row.key: compare_paired(one.scores, e.scores) for e in entries if e is not one}
    tested = apply_holm(family)
    return [e for e in entries if e is not one and (p := tested[e.row.key].holm) is not None and p < LEVEL]


def parts(records: Records, archive: str, of: str) -> str:
    """Show what Anchor's parts are worth, or others would add. of: one of ``anchor_ablation.TABLES``."""
    lines = ["<details><summary>Command and records</summary>", "", "```sh"]
    lines += [f"mkdir kept && tar -xf benchmarks/results/{archive}.tar.xz -C kept"]
    spent = [busy_hours(load_run(f, "validation")) for f in records.runs(archive).iterdir() if (f / RESULT).exists()]
    lines += ["python -m benchmarks.anchor_ablation kept --show", "```", ""]
    lines += [f"{len(spent)} runs in the archive, {sum(spent):.2f} CPU hours.", "", "</details>"]
    return "\n".join([anchor_ablation.table(records.runs(archive), of), "", *lines])


def quoted_lines(records: Records, name: str, method: str) -> str:
    """Show the published figures of a method that is no row of the table."""
    table = records.table(name)
    shown = {metric.published: metric.shown for metric in table.paper.metrics}
    data = {data for data, _ in table.data}
    lines = [
        line
        for line in figure_lines(table.paper)
        if line["method"] == method and table.paper.data_and_method(line)[0] in data
    ]
    return grid([[shown[line["metric"]] for line in lines], [f"{float(line['mean_percent']):.2f}" for line in lines]])


def summary(records: Records) -> str:
    """Show how many published figures were run, and what became of them."""
    out = [["Paper", "Data set", "Settings", "Published figures", *map(str.capitalize, VERDICTS)]]
    for paper in (name for name in PAPERS if paper_of(name).tables):
        total = sum(len(r.figures) for r in rows_of(paper_of(paper)) if r.data not in paper_of(paper).beside)
        for name, kept in KEPT.items():
            if not kept.link or kept.arguments.split()[0] != paper:
                continue
            entries = [e for e in records.table(name).entries if e.published and e.scores]
            counts = [str(sum(e.verdict == word for e in entries)) for word in VERDICTS]
            data = ", ".join(dict.fromkeys(e.row.data for e in entries))
            total -= sum(e.row.data not in paper_of(paper).beside for e in entries)
            line = [f"[{data}](docs/results/{kept.link}.md)", kept.settings or "the paper's", str(len(entries))]
            out.append([paper_of(paper).title, *line, *(["no verdict", "", "", ""] if kept.settings else counts)])
        out.append([paper_of(paper).title, "the others", "not run yet", str(total), "", "", "", ""])
    return grid([out[0], *once(out[1:], 1)])


VIEWS: dict[str, Callable[..., str]] = {
    "beside": beside,
    "seeds": seeds,
    "tests": compared,
    "vary": vary,
    "swings": swings,
    "runs": runs,
    "cost": cost,
    "across": across,
    "decides": decides,
    "parts": parts,
    "quoted": quoted_lines,
    "summary": summary,
}


def pages() -> list[Path]:
    """Return the pages that have blocks, or may have."""
    return [TOP / "REPRODUCIBILITY.md", ANCHOR, *sorted((TOP / "docs" / "results").glob("*.md"))]


def made(text: str, records: Records) -> str:
    """Return a page with its blocks anew. InputError on a block that no view understands."""

    def block(found: re.Match[str]) -> str:
        view, *words = shlex.split(found["words"])
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            content = VIEWS[view](records, *names, **options)
        except (KeyError, TypeError, OSError) as error:
            raise InputError(f"<!-- made: {found['words']} -->: {error!r}") from error
        return f"{found[1]}\n{content}\n\n{found['end']}"

    return BLOCK.sub(block, text)


def main() -> None:
    """Write the blocks, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where one differs")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder))
        texts = {page: page.read_text(encoding="utf-8") for page in pages()}
        try:
            new = {page: made(text, records) for page, text in texts.items()}
            new |= {OURS.resolve(): ours(records), RANKS.resolve(): diagram(records, "suite")}
        except InputError as error:
            parser.exit(2, f"{error}\n")
    texts |= {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in new.keys() - texts.keys()}
    differ = [page for page, text in new.items() if text != texts[page]]
    names = ", ".join(str(page.relative_to(TOP)) for page in differ)
    if check and differ:
        parser.exit(1, f"{names}: not what the kept records say; run python -m benchmarks.reproducibility\n")
    for page in differ:
        page.write_text(new[page], encoding="utf-8")
    print(f"{len(new)} files hold what the kept records say" + (f"; written: {names}" if differ else ""))


if __name__ == "__main__":
    main()
