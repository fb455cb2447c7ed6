"""What a run's numbers do not show, measured after training from what the run kept: ``anchorfl diagnose``.

It reads the run folder, its data and (for pseudo-labels) the raw labels; it writes ``diagnosis/`` in the run folder and
nothing else of it, so that nothing here can touch training. docs/diagnostics.md has every definition.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anchorfl.pipeline.diagnosis.agreement import agreement
from anchorfl.pipeline.diagnosis.clients import checked, farthest
from anchorfl.pipeline.diagnosis.confusion import confusion
from anchorfl.pipeline.diagnosis.divergence import divergence
from anchorfl.pipeline.diagnosis.embeddings import embeddings
from anchorfl.pipeline.diagnosis.generated import generated
from anchorfl.pipeline.diagnosis.pseudo_labels import pseudo_labels
from anchorfl.pipeline.diagnosis.result import Part
from anchorfl.pipeline.diagnosis.study import Study, open_study
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.run_folder import lock_run, read_config
from anchorfl.pipeline.storage.run_record import RoundRecord, note_artifact, write_records
from anchorfl.pipeline.tracking.mlflow_store import store_uri
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.tasks.errors import InputError

FOLDER = "diagnosis"
PARTS = ("divergence", "pseudo", "agreement", "embeddings", "confusion", "generated")

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnoseOptions:
    """parts: of ``PARTS``. clients: whose local models are trained; None: those that share fewest classes. rows: test
    rows at most; pairs: pairs of clients at most; cap: rows that are sampled of a client at most; clusters: of class
    embeddings, 0: the root of the number of classes.
    """

    parts: tuple[str, ...] = PARTS
    clients: tuple[int, int] | None = None
    rows: int = 1500
    pairs: int = 45
    cap: int = 500
    clusters: int = 0

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise InputError(f"--parts {','.join(self.parts)}: name some of {', '.join(PARTS)}")
        if self.clients is not None and self.clients[0] == self.clients[1]:
            raise InputError(f"--clients {self.clients[0]},{self.clients[1]}: name two different clients")
        for name, least in (("rows", 20), ("pairs", 1), ("cap", 20), ("clusters", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} {getattr(self, name)}: must be at least {least}")


def diagnose(folder: Path, options: DiagnoseOptions, log: Log = print) -> list[str]:
    """Analyse one run folder and write ``diagnosis/`` in it, in place of an older one; what a person is told.

    Raises InputError where the folder holds no run, is in use, or lacks what a part needs; the folder then is as it
    was.
    """
    read_config(folder)
    with lock_run(folder):
        study = open_study(folder, log)
        if len(study.rounds()) == 1:
            log(
                f"{folder}: only round {study.last.round} is there; --evaluation.save_state_every 1 keeps every round"
                " of a new run"
            )
        draft, older = folder / f".{FOLDER}", folder / f".{FOLDER}-older"
        if older.exists() and not (folder / FOLDER).exists():
            older.rename(folder / FOLDER)  # a diagnosis was interrupted between its two renames
        for rest in (draft, older):
            shutil.rmtree(rest, ignore_errors=True)
        draft.mkdir()
        try:
            found = _parts(study, options, draft, log)
            _write(study, found, options, draft)
            if (folder / FOLDER).exists():
                (folder / FOLDER).rename(older)
            draft.rename(folder / FOLDER)
            shutil.rmtree(older, ignore_errors=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # there is none where all went well
        note_artifact(folder, FOLDER)
    lines = [line for part in found.values() for line in part.lines]
    return [*lines, *_sent(study, folder)]


def _parts(study: Study, o: DiagnoseOptions, out: Path, log: Log) -> dict[str, Part]:
    @cache
    def pair() -> tuple[int, int]:
        cards = study.server.cards
        return checked(o.clients, cards) if o.clients else farthest(cards)

    doing: dict[str, Callable[[], Part]] = {
        "divergence": lambda: divergence(study, out, clients=pair(), pairs=o.pairs, cap=o.cap),
        "pseudo": lambda: pseudo_labels(study, out, log),
        "agreement": lambda: agreement(study, out, clients=pair(), rows=o.rows),
        "embeddings": lambda: embeddings(study, out, clusters=o.clusters, log=log),
        "confusion": lambda: confusion(study, out),
        "generated": lambda: generated(study, out),
    }
    found = {}
    for name in (part for part in PARTS if part in o.parts):
        began = time.perf_counter()
        found[name] = doing[name]()
        log(f"{study.folder}: {name} done in {time.perf_counter() - began:.1f} s")
    return found


def _write(study: Study, found: dict[str, Part], options: DiagnoseOptions, out: Path) -> None:
    """``metrics.jsonl``, as the run's own, and ``diagnosis.json``: what was asked for, and of which round."""
    metrics: dict[int, dict[str, float]] = {}
    for part in found.values():
        for round_, values in part.metrics.items():
            metrics.setdefault(round_, {}).update({f"diagnosis/{name}": value for name, value in values.items()})
    now = time.time()
    write_records(out, [RoundRecord(round_, now, metrics[round_]) for round_ in sorted(metrics)])
    about: dict[str, Any] = {
        "rounds": study.rounds(), "last": study.last.round, "options": asdict(options),
        "parts": {name: part.facts | {"said": list(part.lines)} for name, part in found.items()},
    }  # fmt: skip
    write_atomically(out / "diagnosis.json", json.dumps(about, indent=1).encode())


def _sent(study: Study, folder: Path) -> Sequence[str]:
    """Bring the diagnosis to MLflow, where the run has a record; a store that fails loses nothing and is said."""
    uri = store_uri(study.run_spec.experiment.tracking.uri, folder)
    if not uri:
        return ()
    try:
        send(folder, uri)
    except InputError as error:
        return (f"{error}; the diagnosis is in {folder / FOLDER}, send it later with: anchorfl sync {folder}",)
    return ("MLflow has the diagnosis",)
