"""``anchorfl table``: a paper's table, with the runs that it lacks."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anchorfl.pipeline.cli.resumable import resumable
from anchorfl.pipeline.config.overrides import typed_options
from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.run_folder import lock_run
from anchorfl.pipeline.storage.run_record import Status
from anchorfl.pipeline.terminal import Log, logged_apart, say, width
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.tables.options import (
    Vary,
    notes_without_preset_value,
    options_of_one_method,
    parse_vary,
)
from anchorfl.tuning.tables.own_rows import OwnRow, own_rows, parse_own_rows
from anchorfl.tuning.tables.page import table_dicts, total, write_page
from anchorfl.tuning.tables.page import text as page_text
from anchorfl.tuning.tables.papers import PAPERS, paper_of
from anchorfl.tuning.tables.published import rows_of, select_rows
from anchorfl.tuning.tables.record import TableRecord
from anchorfl.tuning.tables.runs import (
    Job,
    TableRun,
    attach_folders,
    check_has_scores,
    check_options_work,
    failure_lines,
    index_runs,
    jobs_of,
    missing_data,
    notes_on_earlier_epochs,
    notes_on_other_data,
    notes_without_states,
    prepare_all,
    table_runs_of,
)
from anchorfl.tuning.tables.statistics import Table, figures_text, table_of

FAILED = 3
"""Exit code where a run failed; the others are kept, and the page is written."""


class TableArgs(NamedTuple):
    """The arguments of ``anchorfl table``, as in its usage (tuning/commands.py); empty ``data`` or ``rows``: all."""

    name: str
    """The paper's."""
    data: list[str]
    rows: list[str]
    seeds: list[int]
    """All different."""
    runs: Path
    out: Path
    parallel: int
    """0: as many as fit."""
    show: bool
    overrides: list[str]
    """Options for every run, as typed."""
    command: str
    """Command line that makes the table, without secrets, ``--show`` and ``--json``."""
    vary: Vary | None
    json: bool = False
    own: Sequence[OwnRow] = ()


def parse_args(arguments: Sequence[str]) -> TableArgs:
    """Return the arguments of ``anchorfl table``. InputError on bad ones."""
    if "task.file" in typed_options(arguments):
        raise InputError(
            "--task.file: the tables are of papers' data sets; several methods on a table of your own, beside each"
            " other: anchorfl run digits/fedavg digits/fedalign --task.file FILE --task.label_columns COLUMNS"
        )
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"table needs a paper: {', '.join(PAPERS)}")
    name, *rest = arguments
    paper = paper_of(name)
    parser = argparse.ArgumentParser(prog="anchorfl table", add_help=False, exit_on_error=False, allow_abbrev=False)
    for option in ("--data", "--rows", "--seeds", "--out"):
        parser.add_argument(option, default="")
    parser.add_argument("--vary", action="append", default=[])
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--parallel", type=int, default=0)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--json", action="store_true")
    try:
        parsed, overrides = parser.parse_known_args(rest)
    except argparse.ArgumentError as error:
        raise InputError(f"table: {error}") from error
    if parsed.parallel < 0:
        raise InputError(f"--parallel {parsed.parallel}: must be at least 0")
    vary = parse_vary(parsed.vary)
    page = f"table-{name}-{vary.word}" if vary else f"table-{name}"
    return TableArgs(
        name, _words(parsed.data), _words(parsed.rows), _seeds(parsed.seeds) or list(paper.seeds), parsed.runs,
        Path(parsed.out) if parsed.out else parsed.runs / page, parsed.parallel, parsed.show, overrides,
        shlex.join(["anchorfl", "table", *(redact(word) for word in arguments if word not in ("--show", "--json"))]),
        vary, parsed.json, parse_own_rows(parsed.row),
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
    """Run what a paper's table lacks and write it; return the exit code, 3 where a run failed."""
    args = parse_args(arguments)
    with logged_apart() if args.json else nullcontext():
        command = TableCommand(args)
        if args.show:
            table, files = command.show()
        else:
            with lock_run(args.out.resolve()), resumable(*shlex.split(args.command)):
                table, files = command.run()
    if args.json:
        content = {
            "rows": table_dicts(table), "notes": list(table.notes), "failed": command.failed,
            "files": list(map(str, files)),
        }  # fmt: skip
        say(json.dumps(content, indent=1))
        return FAILED if command.failed else 0
    say(f"\n{page_text(table, width())}\n\n{total(table)}" if table.rows else "\nno finished run of this table yet")
    for note in table.notes:
        say(note)
    say("page: " + ", ".join(map(str, files)))
    return FAILED if command.failed else 0


@dataclass
class TableCommand:
    """A call of ``anchorfl table``."""

    args: TableArgs
    log: Log = say
    notes: list[str] = field(default_factory=list)
    """Notes for the page, a line each."""
    failed: dict[str, str] = field(default_factory=dict)
    """Digest -> reason, in a line."""
    absent: set[str] = field(default_factory=set)
    """Data sets whose files are missing."""

    def __post_init__(self) -> None:
        args = self.args
        self.paper = paper_of(args.name)
        every = rows_of(self.paper)
        rows = (*select_rows(every, args.data, args.rows), *own_rows(args.own, every, args.data))
        self.table_runs = table_runs_of(rows, args.seeds, args.overrides, args.vary, self.paper.reported)
        check_has_scores(self.paper, self.table_runs)
        given = {*typed_options(args.overrides), *([args.vary.option] if args.vary else [])}
        check_options_work(given, self.table_runs, select_rows(every, args.data, ()))
        presets = {run.row.base: run.experiment for run in self.table_runs}
        for option, method in options_of_one_method(args.overrides, presets).items():
            self.notes.append(f"--{option} goes to the rows of {method} alone: others have no such option")
        self.notes += notes_without_preset_value({run.row.key: run.row for run in self.table_runs}.values())

    def show(self) -> tuple[Table, list[Path]]:
        """Write the page of what is there."""
        table = self.table()
        return table, write_page(table, self.args.out)

    def run(self) -> tuple[Table, list[Path]]:
        """Run what is missing and write the page."""
        status: Status = "FAILED"
        record = self._record()
        try:
            self._complete(record)
            table, files = self.show()
            record.keep_page(table, files)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            record.end(status)
        return table, files

    def _record(self) -> TableRecord:
        args = self.args
        rows = list(dict.fromkeys(run.row.base for run in self.table_runs))
        params: dict[str, str | int] = {
            "table": args.name, "rows": " ".join(rows), "seeds": ",".join(map(str, args.seeds)),
            "options": redact(" ".join(args.overrides)), "command": args.command,
        }  # fmt: skip
        if args.vary:
            params["vary"] = args.vary.text
        return TableRecord(args.out, args.runs, self.table_runs[0].experiment.tracking.uri, params, self.log)

    def table(self) -> Table:
        """Return the table of what is there."""
        args = self.args
        index = index_runs(args.runs)
        table_runs = attach_folders(self.table_runs, index)
        known = {run.row.data for run in table_runs if run.folder is not None} | self.absent
        lacking = [data for data in dict.fromkeys(run.row.data for run in table_runs) if data not in known]
        notes = [
            *self.notes,
            *index.notes(table_runs),
            *notes_on_earlier_epochs(table_runs),
            *notes_on_other_data(table_runs),
            *notes_without_states(table_runs),
        ]
        notes += [f"No finished run: {', '.join(lacking)}."] if lacking else []
        return table_of(self.paper, table_runs, command=args.command, notes=notes)

    def _complete(self, record: TableRecord) -> None:
        """Make the missing runs, as far as their data are there."""
        index = index_runs(self.args.runs)
        index.check(self.table_runs)
        table_runs = attach_folders(self.table_runs, index)
        record.upload_missing([run.folder for run in table_runs if run.folder is not None])
        jobs = jobs_of(table_runs, index, self.args.runs, self.log)
        absent = missing_data(jobs)
        for folder, reason in absent.items():
            data = next(run.row.data for run in table_runs if run.row.folder == folder)
            self.absent.add(data)
            self.notes.append(f"{data} is left out: {reason}")
            self.log(self.notes[-1])
        jobs = [job for job in jobs if job.run.row.folder not in absent]
        self._log_counts(table_runs, jobs)
        if jobs:
            self._run(jobs, table_runs, record)

    def _log_counts(self, table_runs: Sequence[TableRun], jobs: Sequence[Job]) -> None:
        runs = {run.digest: run for run in table_runs}  # rows may be one experiment
        finished = sum(run.folder is not None for run in runs.values())
        begun = sum(job.folder.exists() for job in jobs)
        self.log(
            f"{len(runs)} runs in this table: {finished} found in {self.args.runs}, {len(jobs)} to run"
            + (f", {begun} of them already begun" if begun else "")
        )

    def _run(self, jobs: Sequence[Job], table_runs: Sequence[TableRun], record: TableRecord) -> None:
        from anchorfl.pipeline.cluster import ray_cluster, ray_watch  # Ray, which the page alone does without
        from anchorfl.tuning.tables.launch import check_room, run_jobs

        figures = partial(figures_text, self.paper)
        with ray_watch.if_ray_dies(self.args.command), ray_cluster.session(jobs[0].run.experiment.cluster):
            check_room(jobs)  # what the cluster has no room for is refused before hours of preparation
            preparation = prepare_all(jobs, self.log)
            self.failed |= preparation.failures
            prepared = [job for job in jobs if job.run.digest in preparation.run_specs]
            if prepared:
                self.failed |= run_jobs(
                    prepared, preparation.run_specs, self.args.parallel, self.log, record.notify, figures
                )
        for line in failure_lines(table_runs, self.failed):
            self.notes.append(line)
            self.log(line)
