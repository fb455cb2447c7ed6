"""``anchorfl runs``: every run, sweep and table of a folder, and its state; ``anchorfl env``: versions and places."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.run.progress import format_duration
from anchorfl.pipeline.storage.run_folder import RUNS, kind_of, read_result, state_of
from anchorfl.pipeline.storage.run_record import read_metadata, with_final_scores
from anchorfl.pipeline.terminal import say, say_error, table, width
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import FAMILIES
from anchorfl.tasks.plugins import KINDS, plugins_offered, version_of

PACKAGES = "torch", "numpy", "pyarrow", "ray", "mlflow"


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``anchorfl runs``."""
    parser.add_argument("words", nargs="*", metavar="WORD", help="only runs with all of these in name, data or method")
    parser.add_argument("--folder", type=Path, default=RUNS, help="where they lie; default: %(default)s")
    parser.add_argument("--state", choices=["finished", "running", "interrupted", "failed"], default=None)
    parser.add_argument("--json", action="store_true", help="a list of objects on standard output")


def runs(options: argparse.Namespace) -> int:
    """List runs, sweeps and tables, the newest last."""
    if options.folder != RUNS and not options.folder.is_dir():
        raise InputError(f"--folder {options.folder}: no such folder; name one that holds runs")
    found = [
        entry
        for entry in _entries(options.folder)
        if all(word in f"{entry['name']} {entry['data']} {entry['method']}" for word in options.words)
        and options.state in (None, entry["state"])
    ]
    if options.json:
        say(json.dumps(found, indent=1))
        return 0
    if not found:
        say(f"no such run below {options.folder}/")
        return 0
    head = ["run", "state", "rounds", "score", "age", "data", "method"]
    rows = [
        [
            entry["name"],
            entry["state"],
            f"{entry['round']}/{entry['rounds']}" if entry["kind"] == "run" else entry["kind"],
            f"{entry['split']} {entry['measure']} {100 * entry['score']:.2f}" if entry["score"] is not None else "",
            format_duration(entry["age_seconds"]),
            entry["data"],
            entry["method"],
        ]
        for entry in found
    ]
    say(table([head, *rows], width(), right=("rounds", "age"), ruled=True))
    return 0


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the runs of a folder by age, oldest first; a folder whose record is damaged is named, and left out."""
    dated = []
    for path in folder.glob("*/run.json"):
        try:
            dated.append((_created(path), path.parent))
        except InputError as error:
            say_error(f"anchorfl: {error}")
    for created, run in sorted(dated):
        try:
            yield _entry(run, created)
        except InputError as error:
            say_error(f"anchorfl: {error}")


def _created(path: Path) -> float:
    """Return when a run began, in seconds since 1970. InputError where its record does not say so."""
    created: float = read_metadata(path.parent).get("created", math.nan)
    if not math.isfinite(created):
        raise InputError(f"{path} does not say when the run began; restore it from a copy")
    return created


def _entry(run: Path, created: float) -> dict[str, Any]:
    metadata, result, records = read_metadata(run), read_result(run), with_final_scores(run)
    kind, status = kind_of(metadata), metadata["status"]
    params = metadata["params"]
    scored_by = params.get("evaluation.metrics")
    family = next((family for name, family in FAMILIES.items() if name == scored_by), FAMILIES["threshold"])
    scored: tuple[str, float | None] = "", None
    for record in records:  # the last round that has it
        for split in ("validation", "test"):
            if (name := f"{split}/{family.primary.name}") in record.metrics:
                scored = split, record.metrics[name]
    for split in ("validation", "test"):  # of the selected round
        if family.primary.name in result.get("scores", {}).get(split, {}):
            scored = split, result["scores"][split][family.primary.name]
    return {
        "name": run.name, "folder": str(run), "kind": kind,
        "state": state_of(run, status, finished=bool(result) if kind == "run" else status == "FINISHED"),
        "round": records[-1].round if records else 0, "rounds": params.get("federation.rounds", 0),
        "split": scored[0], "measure": family.primary.short, "score": scored[1],
        "age_seconds": max(0.0, time.time() - created),
        "data": metadata["experiment"], "method": str(params.get("method", "?")), "seed": params.get("seed", 0),
    }  # fmt: skip


def env(options: argparse.Namespace) -> int:
    """Print versions, folders and plug-ins: what a report of a fault should say."""
    from anchorfl.tasks.files.folders import cache_root  # pyarrow, which the help does without

    facts: dict[str, Any] = {
        "anchorfl": version_of("anchorfl"),
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "data": os.environ.get("ANCHORFL_DATA", "") or "$ANCHORFL_DATA is not set",
        "cache": str(cache_root("")),
        "records": redact(os.environ.get("MLFLOW_TRACKING_URI", "") or str(RUNS / "mlflow.db")),
    }
    facts["plug-ins"] = [line for kind in KINDS for line in plugins_offered(kind)]
    if options.json:
        say(json.dumps(facts, indent=1))
        return 0
    for name, fact in facts.items():
        lines = fact if isinstance(fact, list) else [fact]
        for number, line in enumerate(lines or ["none"]):
            say(f"{name if not number else '':<10}{line}")
    return 0
