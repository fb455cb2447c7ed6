"""``anchorfl table``: a paper's table, with the runs that it lacks. Slow libraries are imported where it needs them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.config.redaction import shown
from tasks.errors import InputError

if TYPE_CHECKING:
    from tuning.table_vary import Vary

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
    from tuning.papers import PAPERS, paper_of
    from tuning.table_vary import vary_of

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
    from pipeline.storage.run_folder import held
    from tuning.table_call import Call
    from tuning.table_page import text, total

    call = Call(ask)
    if ask.show:
        made, files = call.show()
    else:
        with held(ask.out.resolve()):
            made, files = call.run()
    print(f"\n{text(made)}\n\n{total(made)}" if made.rows else "\nno finished run of this table yet")
    for note in made.notes:
        print(note)
    print("page: " + ", ".join(map(str, files)))
    return FAILED if call.failed else 0
