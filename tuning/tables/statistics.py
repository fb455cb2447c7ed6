"""A table in numbers: mean and sd over seeds beside the published figure, paired tests, verdicts, and what it cost.

Scores are 0 to 1 as in the runs; means, sds and differences from the published figure are in percent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.results.compare import RunSummary, load_run, raw_data_notes
from anchorfl.tuning.tables.options import drop_free_options
from anchorfl.tuning.tables.published import Figure, Metric, Paper, Row, metrics_of
from anchorfl.tuning.tables.runs import TableRun
from anchorfl.tuning.tables.significance import PairedComparison, apply_holm, compare_paired

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
ABOVE, REPRODUCED, WITHIN_NOISE, BELOW = "above", "reproduced", "within noise", "below"
"""Verdicts, from the best to the worst: the mean lies above the published figure by more than one sd; is equal to it
or above by at most one sd; lies below by at most one sd; lies below by more."""
ONE_SEED = "one seed"
"""Stands behind ``ABOVE`` or ``BELOW`` where there is no sd, so that nothing says whether it is noise."""
OTHER_SETTINGS = "other settings"
"""Stands for a verdict where the options are not the preset's: such runs say nothing about the published figure."""
DIGITS = 2
"""Digits of the published figures: ours is rounded to them before it is compared."""


@dataclass(frozen=True)
class TableEntry:
    """A row of a table and one metric."""

    row: Row
    metric: Metric
    scores: Mapping[int, float]
    """Seed -> score (0 to 1), of the seeds that have a finished run."""
    seeds: tuple[int, ...]
    """All seeds that were asked for."""
    published: Figure | None
    """None where the paper has no such figure."""
    against: PairedComparison | None = None
    """The row's reference (``Table.reference``) less this row; None where it is its own or has none in the table."""
    has_preset_options: bool = True
    """True where all options are the preset's."""

    @property
    def mean(self) -> float | None:
        """Mean over the seeds, in percent."""
        return 100 * statistics.fmean(self.scores.values()) if self.scores else None

    @property
    def sd(self) -> float | None:
        """Standard deviation over the seeds (ddof 1), in percent; None below two."""
        return 100 * statistics.stdev(self.scores.values()) if len(self.scores) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the published figure, in percentage points."""
        return self.mean - self.published.mean if self.mean is not None and self.published else None

    @property
    def verdict(self) -> str:
        """One of the four verdicts, or ``OTHER_SETTINGS``; "" where there is nothing to compare."""
        if self.difference is None:
            return ""
        if not self.has_preset_options:
            return OTHER_SETTINGS
        difference = round(self.difference, DIGITS)
        if difference == 0:
            return REPRODUCED
        far = ABOVE if difference > 0 else BELOW
        if self.sd is None:
            return f"{far}, {ONE_SEED}"
        if abs(self.difference) > self.sd:
            return far
        return REPRODUCED if difference > 0 else WITHIN_NOISE


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of runs, as a mean over them; None of no run."""

    runs: int
    down: float | None
    """Megabytes (10^6 bytes) that one client got in a round."""
    up: float | None
    """Megabytes that one client sent in a round."""
    hours: float | None
    """Busy hours: clients trained or models were scored. It is CPU time where each has a core to itself."""


@dataclass(frozen=True)
class Table:
    """A paper's table as far as its runs are there."""

    paper: Paper
    runs: Sequence[TableRun]
    """Finished or not."""
    finished: Mapping[str, RunSummary]
    """Digest -> the finished run."""
    command: str = ""
    """The command that makes it again."""
    notes: Sequence[str] = ()
    """Notes for the page, a line each."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds that were asked for."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows in the order of the paper, without those of data sets that have no run at all."""
        there = {run.row.folder for run in self.runs if run.digest in self.finished}
        rows = {run.row.key: run.row for run in self.runs if run.row.folder in there}
        return tuple(rows.values())

    @property
    def data(self) -> tuple[tuple[str, tuple[Row, ...]], ...]:
        """Pairs of a data set as published and its rows."""
        names = dict.fromkeys(row.data for row in self.rows)
        return tuple((name, tuple(row for row in self.rows if row.data == name)) for name in names)

    @property
    def varied(self) -> str:
        """Option that is varied; "" where none is."""
        return next((run.row.change.option for run in self.runs if run.row.change), "")

    def options_of(self, row: Row) -> list[str]:
        """Return the words of the command line that a row's runs have, and that may change a result."""
        return drop_free_options(next(run.words for run in self.runs if run.row.key == row.key))

    def reference(self, row: Row) -> Row | None:
        """Return the row that a row is tested against; None where that is not in the table.

        It is the paper's own method on the same data; of several rows of it (FedALC with each lambda) the one with the
        best validation score, and none where not all of them have such. Where an option is varied, it is the same
        preset with its own value.
        """
        if row.change is None:
            name = self.paper.proposed_method
            paper_rows = [r for r in self.rows if r.data == row.data and not r.own]
            rows = [r for r in paper_rows if r.label == name or r.label.startswith(f"{name}(")]
            run = [r for r in rows if self.of(r)] or rows[:1]
            scores = {r.key: self._validation(r) for r in run}
            if len(run) > 1 and None in scores.values():
                return None
            return max(run, key=lambda r: scores[r.key] or 0.0, default=None)
        return next((r for r in self.rows if r.base == row.base and r.change and r.change.is_preset_value), None)

    def _validation(self, row: Row) -> float | None:
        """Return the mean validation score of a row's runs; None where there is none."""
        runs = self.of(row).values()
        scores = [r.result["scores"].get("validation", {}).get(r.family.primary.name) for r in runs if r.result]
        return statistics.fmean(known) if (known := [score for score in scores if score is not None]) else None

    def of(self, row: Row) -> dict[int, RunSummary]:
        """Return the finished runs of a row by seed."""
        runs = [run for run in self.runs if run.row == row]
        return {run.seed: self.finished[run.digest] for run in runs if run.digest in self.finished}

    @cached_property
    def entries(self) -> tuple[TableEntry, ...]:
        """Entries of every row with every metric of the paper.

        Holm's correction is over the rows of a data set and metric, for an own row with the own rows, else without;
        where an option is varied, over the values of a row and metric.
        """
        families: dict[str, list[Row]] = {}
        for row in self.rows:
            families.setdefault(row.base if row.change else row.data, []).append(row)
        entries = [
            entry
            for rows in families.values()
            for metric in metrics_of(self.paper, rows[0].data)
            for entry in self._family_entries(rows, metric)
        ]
        order = {row.key: i for i, row in enumerate(self.rows)}
        return tuple(sorted(entries, key=lambda entry: order[entry.row.key]))

    def _family_entries(self, rows: Sequence[Row], metric: Metric) -> list[TableEntry]:
        """Return the entries of rows that are corrected together, for one metric."""
        scores = {row.key: self._scores(row, metric) for row in rows}
        digests = {row.key: tuple(run.digest for run in self.runs if run.row == row) for row in rows}
        # two rows of one set of options (FedAvg, and a study's baseline) are one comparison of the family
        first = first_of_each(rows, key=lambda row: digests[row.key])
        comparisons: dict[str, PairedComparison] = {}
        reference = self.reference(rows[0])
        if reference is not None:
            for same_options, row in first.items():
                if same_options != digests[reference.key]:
                    comparisons[row.key] = compare_paired(scores[reference.key], scores[row.key])
        # what is tested beside them does not change the correction of the paper's rows
        paper_rows = {row.key for row in rows if row.change or not row.own}
        corrected = apply_holm(comparisons)
        corrected |= apply_holm({key: of for key, of in comparisons.items() if key in paper_rows})
        return [
            TableEntry(
                row=row,
                metric=metric,
                scores=scores[row.key],
                seeds=self.seeds,
                published=row.figures.get(metric.published),
                against=corrected.get(first[digests[row.key]].key),
                has_preset_options=all(run.has_preset_options for run in self.runs if run.row == row),
            )
            for row in rows
        ]

    def _scores(self, row: Row, metric: Metric) -> dict[int, float]:
        scores = {seed: figure_of(self.paper, metric, summary) for seed, summary in self.of(row).items()}
        return {seed: score for seed, score in scores.items() if score is not None}

    def cost(self, row: Row) -> Cost:
        """Return the mean cost of a row's runs."""
        runs = list(self.of(row).values())
        if not runs:
            return Cost(0, None, None, None)
        down, up = (statistics.fmean(megabytes) for megabytes in zip(*map(traffic, runs), strict=True))
        return Cost(len(runs), down, up, statistics.fmean(map(busy_hours, runs)))

    @property
    def hours(self) -> float:
        """Busy hours of all runs, each counted once."""
        return sum(busy_hours(summary) for summary in self.finished.values())


def first_of_each(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, T]:
    """Return key -> the first of the rows that has it, in the order of the rows."""
    first: dict[K, T] = {}
    for row in rows:
        first.setdefault(key(row), row)
    return first


def table_of(paper: Paper, table_runs: Sequence[TableRun], *, command: str = "", notes: Sequence[str] = ()) -> Table:
    """Return the table of the runs that are finished. InputError where one of these is damaged."""
    folders: dict[str, Path] = {run.digest: run.folder for run in table_runs if run.folder is not None}
    finished = {digest: load_run(folder) for digest, folder in folders.items()}
    of_data = ((run.row.folder, finished[run.digest]) for run in table_runs if run.digest in finished)
    notes = [*notes, *dropped_client_notes(table_runs, finished), *raw_data_notes(of_data)]
    return Table(paper, table_runs, finished, command, notes)


def figure_of(paper: Paper, metric: Metric, summary: RunSummary) -> float | None:
    """Return the figure of a run that the table has, 0 to 1."""
    return summary.values[f"{metric.value}_{paper.reported}"]


def figures_text(paper: Paper, folder: Path) -> str:
    """Return a finished run's figures in percent, as the table has them: ``macro F1 98.52  accuracy 98.55``."""
    summary = load_run(folder)
    figures = {metric.shown: figure_of(paper, metric, summary) for metric in paper.metrics}
    return "  ".join(f"{name} {100 * value:.2f}" for name, value in figures.items() if value is not None)


def dropped_client_notes(table_runs: Sequence[TableRun], finished: Mapping[str, RunSummary]) -> list[str]:
    """Return a line for every run that went on without some of its clients, such as those whose training diverged."""
    notes = []
    for digest, run in first_of_each(table_runs, key=lambda run: run.digest).items():
        records = finished[digest].records if digest in finished else []
        failed_R = [count for r in records if (count := r.metrics.get("failures/dropped_clients", 0.0))]
        if failed_R:
            notes.append(
                f"{run.name}: clients failed {sum(failed_R):.0f} times, in {len(failed_R)} rounds, which went on"
                " without them (failures/* in its metrics.jsonl)"
            )
    return notes


def traffic(summary: RunSummary) -> tuple[float, float]:
    """Return the megabytes down and up per client and round, over all clients that answered."""
    federation = FederationOptions(
        clients_per_round=int(summary.params["federation.clients_per_round"]),
        client_fraction=float(summary.params.get("federation.client_fraction", 0.0)),  # older records have none
    )
    selected = federation.selected(int(summary.params["task.clients"]))
    rounds = [record.metrics for record in summary.records if record.round]
    answered = sum(r.get("clients/completed", selected - r["failures/dropped_clients"]) for r in rounds)
    down, up = (sum(r[f"communication/{way}_bytes"] for r in rounds) / 1e6 for way in ("download", "upload"))
    return down / answered, up / answered


def busy_hours(summary: RunSummary) -> float:
    """Return the hours in which clients trained, models were scored or the server aggregated (FedBM's: and trained)."""
    keys = ("time/clients", "time/evaluate", "time/aggregate")
    # round 0 aggregates nothing, and older records do not say how long it took
    return sum(record.metrics.get(key, 0.0) for record in summary.records for key in keys) / 3600


MIB = 2**20
VALUE = 8
"""Bytes of a value of a class row."""
FLOAT = 4
"""Bytes of a weight that really travels."""


def counted_traffic(theta: int, classes: int, width: int, rounds: int, *, fixed: bool) -> tuple[float, float]:
    """Return the megabytes to and from one client over a whole run as FedALC counts them (``page.CONVENTION``).

    theta: its weights; width: values of a class row.
    """
    row = VALUE * width / MIB
    model, all_rows = theta / 1e6, classes * row
    if fixed:
        return rounds * model + all_rows, rounds * model
    return rounds * (model + all_rows), rounds * (model + row)


def counted_traffic_of(summary: RunSummary, up: float) -> tuple[float, float]:
    """Return the same of a run with one client per class. up: megabytes (10^6 bytes) that a client sent in a round."""
    p = summary.params
    width = int(p["model.width"]) * int(p.get("hash_tables", 1))
    fixed = not float(p["class_embedding_lr"])
    theta = round(up * 1e6 / FLOAT) - (0 if fixed else width)
    return counted_traffic(theta, int(p["task.clients"]), width, int(p["federation.rounds"]), fixed=fixed)
