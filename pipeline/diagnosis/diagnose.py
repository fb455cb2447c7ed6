"""``anchorfl diagnose``: measure after training, from what the run kept, what its numbers do not show.

It reads the run folder, its data and (for pseudo-labels) the raw labels; it writes ``diagnosis/`` in the run folder and
nothing else of it, so that nothing here can touch training. docs/diagnostics.md has every definition.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from anchorfl.pipeline.diagnosis.agreement import agreement
from anchorfl.pipeline.diagnosis.analysis import Analysis, open_analysis
from anchorfl.pipeline.diagnosis.clients import check_clients, farthest
from anchorfl.pipeline.diagnosis.confusion import confusion
from anchorfl.pipeline.diagnosis.divergence import divergence
from anchorfl.pipeline.diagnosis.embeddings import chosen_classes, embeddings
from anchorfl.pipeline.diagnosis.generated import generated
from anchorfl.pipeline.diagnosis.pseudo_labels import pseudo_labels
from anchorfl.pipeline.diagnosis.result import PartResult
from anchorfl.pipeline.diagnosis.theory import theory
from anchorfl.pipeline.storage.atomic_files import read_json, write_atomically
from anchorfl.pipeline.storage.named_files import named_file
from anchorfl.pipeline.storage.run_folder import lock_run, read_config
from anchorfl.pipeline.storage.run_record import RoundRecord, note_artifact, read_records, write_records
from anchorfl.pipeline.terminal import Log, say
from anchorfl.pipeline.tracking.mlflow_store import store_uri, sync_command
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.tasks.errors import InputError

FOLDER = "diagnosis"
PARTS = ("divergence", "theory", "pseudo", "agreement", "embeddings", "confusion", "generated")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnoseOptions:
    """Options of ``anchorfl diagnose``."""

    parts: tuple[str, ...] = PARTS
    """Some of ``PARTS``."""
    clients: tuple[int, int] | None = None
    """Clients whose local models are trained; None: those that share fewest classes."""
    rows: int = 1500
    """Test rows for the picture of the models at most, from 20."""
    pairs: int = 45
    """Pairs of clients that are compared at most, from 1."""
    cap: int = 500
    """Rows that are sampled of a client at most, from 20."""
    clusters: int = 0
    """Clusters of class embeddings; 0: the root of the number of classes."""
    classes: tuple[str, ...] = ()
    """Classes whose embeddings are shown, by name or number; none: all."""

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise InputError(f"--parts {','.join(self.parts)}: name some of {', '.join(PARTS)}")
        if self.clients is not None and self.clients[0] == self.clients[1]:
            raise InputError(f"--clients {self.clients[0]},{self.clients[1]}: name two different clients")
        for name, least in (("rows", 20), ("pairs", 1), ("cap", 20), ("clusters", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} {getattr(self, name)}: must be at least {least}")


def diagnose(
    folder: Path, options: DiagnoseOptions, log: Log = say, places: Mapping[str, str] | None = None
) -> list[str]:
    """Analyze one run folder and write ``diagnosis/`` in it; return the lines to print. Of an older one of the same
    round the parts stay that are not measured now.

    places: as the user types them now, option -> value. Raises InputError where the folder holds no run, is in use,
    names places that this user has not named, or lacks what a part needs; the folder stays as it was.
    """
    read_config(folder)
    with lock_run(folder):
        analysis = open_analysis(folder, log, places)
        if len(analysis.rounds()) == 1:
            log(
                f"{folder}: only round {analysis.last.round} is there, so nothing is drawn against rounds;"
                " --evaluation.save_state_every 1 keeps every round of a new run"
            )
        draft, older = folder / f".{FOLDER}", folder / f".{FOLDER}-older"
        if older.exists() and not (folder / FOLDER).exists():
            older.rename(folder / FOLDER)  # a diagnosis was interrupted between its two renames
        for rest in (draft, older):
            shutil.rmtree(rest, ignore_errors=True)
        draft.mkdir()
        try:
            kept = _kept(analysis, folder / FOLDER, options, draft, log)
            results = _measure(analysis, options, draft, log)
            _write(analysis, kept | results, options, draft)
            if (folder / FOLDER).exists():
                (folder / FOLDER).rename(older)
            draft.rename(folder / FOLDER)
            shutil.rmtree(older, ignore_errors=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # there is none where all went well
        note_artifact(folder, FOLDER)
    lines = [line for part in results.values() for line in part.lines]
    return [*lines, *_send(analysis, folder)]


def _measure(analysis: Analysis, options: DiagnoseOptions, out: Path, log: Log) -> dict[str, PartResult]:
    """Measure the parts that are asked for, and write their files to ``out``."""

    @cache
    def pair() -> tuple[int, int]:
        cards = analysis.server.cards
        return check_clients(options.clients, cards) if options.clients else farthest(cards)

    measures: dict[str, Callable[[], PartResult]] = {
        "divergence": lambda: divergence(analysis, out, clients=pair(), pairs=options.pairs, cap=options.cap),
        "theory": lambda: theory(analysis, out, cap=options.cap, log=log),
        "pseudo": lambda: pseudo_labels(analysis, out, log),
        "agreement": lambda: agreement(analysis, out, clients=pair(), rows=options.rows),
        "embeddings": lambda: embeddings(analysis, out, clusters=options.clusters, classes=options.classes, log=log),
        "confusion": lambda: confusion(analysis, out),
        "generated": lambda: generated(analysis, out),
    }
    if "embeddings" in options.parts:
        chosen_classes(options.classes, analysis.class_names)  # a slip is to cost no minutes of other parts
    results = {}
    for name in (part for part in PARTS if part in options.parts):
        began, before = time.perf_counter(), set(out.iterdir())
        found = measures[name]()
        files = sorted(path.name for path in set(out.iterdir()) - before)
        numbers = sorted({number for values in found.metrics.values() for number in values})
        asked = {name: value for name, value in asdict(options).items() if name != "parts"}
        results[name] = replace(found, facts=found.facts | {"files": files, "metrics": numbers, "options": asked})
        log(f"{analysis.folder}: {name} done in {time.perf_counter() - began:.1f} s")
    return results


def _kept(analysis: Analysis, before: Path, options: DiagnoseOptions, out: Path, log: Log) -> dict[str, PartResult]:
    """Copy the files of the parts that an earlier diagnosis of the same round has, and this one does not measure."""
    try:
        content = read_json(before / "diagnosis.json")
    except InputError as error:
        log(f"{error}; this diagnosis takes its place")
        return {}
    kept = dict[str, PartResult]()
    parts = content.get("parts") if content.get("last") == analysis.last.round else None
    for name, facts in parts.items() if isinstance(parts, dict) else ():
        lists = [facts.get(each) for each in ("files", "metrics", "said")] if isinstance(facts, dict) else [None]
        whole = all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists)
        if name in options.parts or name not in PARTS or not whole:
            continue  # measured anew; or by a version that did not say which files are whose
        for file in facts["files"]:
            if (path := named_file(before, file, before / "diagnosis.json")).is_dir():
                shutil.copytree(path, out / file)
            elif path.exists():
                shutil.copy2(path, out)
        metrics = {
            record.round: {n: v for n in facts["metrics"] if (v := record.metrics.get(f"diagnosis/{n}")) is not None}
            for record in read_records(before)[0]
        }
        rest = {fact: value for fact, value in facts.items() if fact != "said"}
        kept[name] = PartResult(metrics, tuple(facts["said"]), rest)
    return kept


def _write(analysis: Analysis, results: dict[str, PartResult], options: DiagnoseOptions, out: Path) -> None:
    """Write ``metrics.jsonl``, as the run's own, and ``diagnosis.json``: what was asked for, and of which round."""
    metrics: dict[int, dict[str, float]] = {}
    for part in results.values():
        for round_, values in part.metrics.items():
            metrics.setdefault(round_, {}).update({f"diagnosis/{name}": value for name, value in values.items()})
    now = time.time()
    write_records(out, [RoundRecord(round_, now, metrics[round_]) for round_ in sorted(metrics)])
    content: dict[str, Any] = {
        "rounds": analysis.rounds(), "last": analysis.last.round, "options": asdict(options),
        "parts": {name: part.facts | {"said": list(part.lines)} for name, part in results.items()},
    }  # fmt: skip
    write_atomically(out / "diagnosis.json", json.dumps(content, indent=1).encode())


def _send(analysis: Analysis, folder: Path) -> Sequence[str]:
    """Send the diagnosis to MLflow, where the run has a record; return what a person is told.

    A store that fails loses nothing and is said.
    """
    uri = store_uri(analysis.run_spec.experiment.tracking.uri, folder)
    if not uri:
        return ()
    try:
        send(folder, uri)
    except InputError as error:
        return (f"{error}; the diagnosis is in {folder / FOLDER}, send it later with: {sync_command(folder, uri)}",)
    return ("MLflow has the diagnosis",)
