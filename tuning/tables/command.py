"""``anchorfl table``: a paper's table, with the runs that it lacks."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from anchorfl.pipeline.config.redaction import shown
from anchorfl.pipeline.run.progress import Log
from anchorfl.pipeline.storage.run_folder import lock_run
from anchorfl.pipeline.storage.run_record import Status
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.tables.options import Vary, changing, of_one_method, vary_of, without_own
from anchorfl.tuning.tables.page import text as page_text
from anchorfl.tuning.tables.page import total, write_page
from anchorfl.tuning.tables.papers import PAPERS, paper_of
from anchorfl.tuning.tables.published import chosen, rows_of
from anchorfl.tuning.tables.record import TableRecord
from anchorfl.tuning.tables.runs import (
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
from anchorfl.tuning.tables.statistics import Table, table_of

USAGE = """usage: anchorfl table PAPER [--data r8-8,es-5] [--rows fedavg,fedalign] [--seeds 4321,4322]
                      [--vary method.q1=95,97,99] [--runs FOLDER] [--out FOLDER] [--parallel N] [--show]
                      [--section.option value ...]
Run what is missing of a paper's table, go on with what was interrupted, and write it beside the published figures.
  --data, --rows  data sets and methods, as the folders and files of the presets are called; default: all
  --seeds         default: the authors'
  --vary          an option and its values: every row with each of them, and a figure of the scores against them
  --runs          where finished runs are looked for, and new ones go; default: runs
  --out           folder of the page; default: FOLDER/table-PAPER, with --vary FOLDER/table-PAPER-OPTION
  --parallel      runs at a time; default: as many as the machine, or the cluster, has CPUs
  --show          run nothing: the page of what is there, and no record in MLflow
  --section.option value: for every run, as in anchorfl run"""
FAILED = 3
"""Exit code where a run failed; the others are kept, and the page is written."""


class Asked(NamedTuple):
    """What the command line asks for."""

    name: str
    data: list[str]
    rows: list[str]
    seeds: list[int]
    runs: Path
    out: Path
    parallel: int
    show: bool
    overrides: list[str]
    command: str
    vary: Vary | None


def asked(arguments: Sequence[str]) -> Asked:
    """The arguments of ``anchorfl table``. InputError on bad ones."""
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"table needs a paper: {', '.join(PAPERS)}")
    name, *rest = arguments
    paper = paper_of(name)
    parser = argparse.ArgumentParser(prog="anchorfl table", add_help=False, exit_on_error=False, allow_abbrev=False)
    for option in ("--data", "--rows", "--seeds", "--out"):
        parser.add_argument(option, default="")
    parser.add_argument("--vary", action="append", default=[])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--parallel", type=int, default=0)
    parser.add_argument("--show", action="store_true")
    try:
        own, overrides = parser.parse_known_args(rest)
    except argparse.ArgumentError as error:
        raise InputError(f"table: {error}") from error
    if own.parallel < 0:
        raise InputError(f"--parallel {own.parallel}: must be at least 0")
    vary = vary_of(own.vary)
    page = f"table-{name}-{vary.word}" if vary else f"table-{name}"
    return Asked(
        name, _words(own.data), _words(own.rows), _seeds(own.seeds) or list(paper.seeds), own.runs,
        Path(own.out) if own.out else own.runs / page, own.parallel, own.show, overrides,
        shlex.join(["anchorfl", "table", *(shown(word) for word in arguments if word != "--show")]), vary,
    )  # fmt: skip


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in _words(text)]
    except ValueError as error:
        raise InputError(f"--seeds {text}: must be whole numbers with commas between them") from error
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text}: one seed twice makes the sd too small")
    return seeds


def table(arguments: list[str]) -> int:
    """A paper's table; 3 where a run failed."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    ask = asked(arguments)
    call = Call(ask)
    if ask.show:
        made, files = call.show()
    else:
        with lock_run(ask.out.resolve()):
            made, files = call.run()
    print(f"\n{page_text(made)}\n\n{total(made)}" if made.rows else "\nno finished run of this table yet")
    for note in made.notes:
        print(note)
    print("page: " + ", ".join(map(str, files)))
    return FAILED if call.failed else 0


@dataclass
class Call:
    """What a call was asked for and what it met. notes: for the page, a line each; failed: digest -> reason; absent:
    data sets whose files are missing.
    """

    asked: Asked
    log: Log = print
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
        table = self.table()
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
        return TableRecord(a.out, a.runs, self.cells[0].experiment.tracking.uri, params, self.log)

    def table(self) -> Table:
        """Return the table of what is there."""
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
        jobs = jobs_of(cells, found, self.asked.runs, self.log)
        absent = without_data(jobs)
        for folder, reason in absent.items():
            data = next(cell.row.data for cell in cells if cell.row.folder == folder)
            self.absent.add(data)
            self.notes.append(f"{data} is left out: {reason}")
            self.log(self.notes[-1])
        jobs = [job for job in jobs if job.cell.row.folder not in absent]
        self._say_what_is_there(cells, jobs)
        if jobs:
            self._run(jobs, cells, record)

    def _say_what_is_there(self, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        there = sum(cell.folder is not None for cell in cells)
        begun = sum(job.folder.exists() for job in jobs)
        self.log(
            f"{len(cells)} runs in this table: {there} found in {self.asked.runs}, {len(jobs)} to run"
            + (f", {begun} of them already begun" if begun else "")
        )

    def _run(self, jobs: Sequence[Job], cells: Sequence[Cell], record: TableRecord) -> None:
        from anchorfl.pipeline.cluster import ray_cluster  # Ray, which the page alone does without
        from anchorfl.tuning.tables.launch import run_jobs

        with ExitStack() as stack:
            if ray_cluster.start(jobs[0].cell.experiment.cluster):
                stack.callback(ray_cluster.stop)
            ready = prepare_all(jobs, self.log)
            self.failed |= ready.failures
            able = [job for job in jobs if job.cell.digest in ready.run_specs]
            if able:
                self.failed |= run_jobs(able, ready.run_specs, self.asked.parallel, self.log, record.notify)
        for line in told(cells, self.failed):
            self.notes.append(line)
            self.log(line)
