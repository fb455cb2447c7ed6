"""One call of ``anchorfl table``: find what is there, run what is missing, write the page, record it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.redaction import shown
from pipeline.run.progress import Say
from pipeline.storage.run_record import Status
from tuning.papers import paper_of
from tuning.table_numbers import Table, table_of
from tuning.table_options import changing, of_one_method
from tuning.table_page import write_page
from tuning.table_record import TableRecord
from tuning.table_runs import (
    Cell,
    Job,
    cells_of,
    check_scored,
    jobs_of,
    look,
    matched,
    of_other_data,
    prepare_all,
    told,
    without_data,
)
from tuning.table_vary import without_own
from tuning.tables import chosen, rows_of

if TYPE_CHECKING:
    from tuning.table_command import Asked


@dataclass
class Call:
    """What a call was asked for and what it met. notes: for the page, a line each; failed: digest -> reason; absent:
    data sets whose files are missing.
    """

    asked: Asked
    say: Say = print
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        a = self.asked
        self.paper = paper_of(a.name)
        self.cells = cells_of(chosen(rows_of(self.paper), a.data, a.rows), a.seeds, a.overrides, a.vary)
        check_scored(self.paper, self.cells)
        presets = {cell.row.preset: cell.experiment for cell in self.cells}
        alone = of_one_method(a.overrides, presets).items()
        self.notes += [
            f"--{option} goes to the rows of {method} alone: others have no such option" for option, method in alone
        ]
        self.notes += without_own({cell.row.key: cell.row for cell in self.cells}.values())

    def show(self) -> tuple[Table, list[Path]]:
        """Write the page of what is there."""
        table = self._table()
        return table, write_page(table, self.asked.out)

    def run(self) -> tuple[Table, list[Path]]:
        """Run what is missing and write the page. KeyboardInterrupt with the command that goes on."""
        status: Status = "FAILED"
        record = self._record()
        try:
            self._complete(record)
            table, files = self.show()
            record.page(table, files)
            status = "FINISHED"
        except KeyboardInterrupt as stop:
            status = "KILLED"
            raise KeyboardInterrupt(self.asked.command) from stop
        finally:
            record.end(status)
        return table, files

    def _record(self) -> TableRecord:
        a = self.asked
        rows = list(dict.fromkeys(cell.row.preset for cell in self.cells))
        params: dict[str, str | int] = {
            "table": a.name, "rows": " ".join(rows), "seeds": ",".join(map(str, a.seeds)),
            "options": shown(" ".join(a.overrides)), "command": a.command,
        }  # fmt: skip
        if a.vary:
            params["vary"] = a.vary.text
        return TableRecord(a.out, a.runs, self.cells[0].experiment.tracking.uri, params, self.say)

    def _table(self) -> Table:
        found = look(self.asked.runs)
        cells = matched(self.cells, found)
        there = {cell.row.data for cell in cells if cell.folder is not None}
        known = there | self.absent
        none = [data for data in dict.fromkeys(cell.row.data for cell in cells) if data not in known]
        met = [*found.notes(cells), *of_other_data(cells)]
        notes = [*self.notes, *met, *([f"No finished run: {', '.join(none)}."] if none else [])]
        a = self.asked
        return table_of(self.paper, cells, options=changing(a.overrides), command=a.command, notes=notes)

    def _complete(self, record: TableRecord) -> None:
        """Make the missing runs, as far as their data are there."""
        found = look(self.asked.runs)
        cells = matched(self.cells, found)
        record.late([cell.folder for cell in cells if cell.folder is not None])
        jobs = jobs_of(cells, found, self.asked.runs, self.say)
        absent = without_data(jobs)
        for folder, reason in absent.items():
            data = next(cell.row.data for cell in cells if cell.row.folder == folder)
            self.absent.add(data)
            self.notes.append(f"{data} is left out: {reason}")
            self.say(self.notes[-1])
        jobs = [job for job in jobs if job.cell.row.folder not in absent]
        self._say_what_is_there(cells, jobs)
        if jobs:
            self._run(jobs, cells, record)

    def _say_what_is_there(self, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        there = sum(cell.folder is not None for cell in cells)
        begun = sum(job.folder.exists() for job in jobs)
        self.say(
            f"{len(cells)} runs in this table: {there} found in {self.asked.runs}, {len(jobs)} to run"
            + (f", {begun} of them already begun" if begun else "")
        )

    def _run(self, jobs: Sequence[Job], cells: Sequence[Cell], record: TableRecord) -> None:
        from pipeline.cluster import ray_cluster  # Ray, which the page alone does without
        from tuning.table_tune import run_jobs

        with ExitStack() as stack:
            if ray_cluster.start(jobs[0].cell.experiment.cluster):
                stack.callback(ray_cluster.stop)
            ready = prepare_all(jobs, self.say)
            self.failed |= ready.failures
            able = [job for job in jobs if job.cell.digest in ready.setups]
            if able:
                self.failed |= run_jobs(able, ready.setups, self.asked.parallel, self.say, record.news)
        for line in told(cells, self.failed):
            self.notes.append(line)
            self.say(line)
