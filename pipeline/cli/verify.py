"""``anchorfl verify``: the first rounds of a run again, held against its record."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfl.pipeline.cli.commands import add_places, typed_places
from anchorfl.pipeline.terminal import say
from anchorfl.tasks.errors import InputError

if TYPE_CHECKING:
    from anchorfl.pipeline.storage.run_record import RoundRecord

MACHINE = "time/", "system/", "failures/"
"""How the names of metrics begin that depend on the machine, and on what went wrong on it."""
SHOWN = 5
"""Metrics that differ and are named, at most."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("run", type=Path, help="run folder, finished or interrupted")
    parser.add_argument("--rounds", type=int, default=2, help="rounds to compute again; default: %(default)s")
    add_places(parser)


def _numbers(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round that a machine does not change, those of every class among them."""
    classes = {f"{name} of {c}": value for name, row in record.per_class.items() for c, value in row.items()}
    return {name: value for name, value in (record.metrics | classes).items() if not name.startswith(MACHINE)}


def verify(options: argparse.Namespace) -> int:
    """Compute the first rounds of a run again; return 0 where every number of its record comes out, else 1."""
    from anchorfl.pipeline.run.lifecycle import run
    from anchorfl.pipeline.storage.run_folder import read_own_experiment
    from anchorfl.pipeline.storage.run_record import read_records

    folder: Path = options.run
    experiment = read_own_experiment(folder, typed_places(options))
    recorded = {record.round: record for record in read_records(folder)[0]}
    if options.rounds < 1 or options.rounds not in recorded:
        there = max(recorded, default=0)
        raise InputError(f"--rounds {options.rounds}: {folder} has the rounds 1 to {there}; name one of these")
    experiment = replace(
        experiment,
        cluster=replace(experiment.cluster, backup="", memories="", checkpoint_every=1),
        tracking=replace(experiment.tracking, uri="none", trackers="", register=""),
        output="",
    )
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / "run"
        run(experiment, again, say, callbacks=[lambda report: report.round >= options.rounds])
        computed = {record.round: record for record in read_records(again)[0]}
    compared, largest, differing = 0, 0.0, dict[str, None]()
    for number in sorted(computed.keys() & recorded.keys()):
        was, now = _numbers(recorded[number]), _numbers(computed[number])
        # the last round that is computed here may be scored where the whole run goes on
        for name in was.keys() | (now.keys() if number < max(computed) else ()):
            compared += 1
            if name not in was or name not in now:
                differing[f"{name} of round {number} (on one side alone)"] = None
            elif was[name] != now[name]:
                differing[f"{name} of round {number}"] = None
                largest = max(largest, abs(was[name] - now[name]) / max(abs(was[name]), 1e-12))
    last = max(computed)
    if not differing:
        say(f"verified: all {compared} numbers of the rounds 0 to {last} are those of the record")
        return 0
    names = sorted(differing)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    say(
        f"not the same: {len(names)} of {compared} numbers of the rounds 0 to {last} differ"
        f"{f', by up to {largest:.1e} of their size' if largest else ''}: {', '.join(names[:SHOWN])}{more}"
    )
    say("last bits differ between kinds of processor, versions of torch, and CPU and GPU: REPRODUCIBILITY.md")
    return 1
