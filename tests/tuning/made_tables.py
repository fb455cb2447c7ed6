"""A made-up paper on digits, and made-up finished runs of a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anchorfl.pipeline.config.experiment import flat
from anchorfl.pipeline.storage.atomic_files import write_atomically, write_json
from anchorfl.pipeline.storage.run_folder import write_config
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.tuning.tables.published import MACRO_ACCURACY, MACRO_F1, Paper
from anchorfl.tuning.tables.runs import TableRun

HEAD = "paper,table,dataset,setting,method,metric,mean_percent,std_percent\n"
DIGITS = (
    HEAD + "Toy,1,Digits,,FedAvg,macro_f1,20.00,\nToy,1,Digits,,FedAvg,macro_accuracy,90.00,\n"
    "Toy,1,Digits,,FedAlign,macro_f1,30.00,1.50\nToy,2,Digits,,FedAlign,macro_f1,30.00,1.50\n"
)


def toy(folder: Path, figures: str = DIGITS, **fields: object) -> Paper:
    """Make a paper of one data set, digits, with two methods; its figures in ``folder``."""
    file = folder / "published.csv"
    file.write_text(figures)
    paper = Paper(
        title="Toy (2023)",
        published="Toy",
        tables=("1", "2"),
        proposed_method="FedAlign",
        data={"Digits": "digits"},
        methods={"FedAvg": "fedavg", "FedAlign": "fedalign"},
        metrics=(MACRO_F1, MACRO_ACCURACY),
        seeds=(1, 2),
        file=file,
    )
    return replace(paper, **fields)  # type: ignore[arg-type]


def made_run(
    run: TableRun,
    runs: Path,
    scores: Mapping[str, Sequence[float]],
    *,
    failed: int = 0,
    tags: Mapping[str, str] | None = None,
    **result,
) -> TableRun:
    """Write a finished run of a cell: for every metric a score per round from round 0; each client gets 2 MB and sends
    1 MB a round, and a round is 90 s of training and 10 s of scoring. failed: clients left out of every round.
    """
    folder = runs / f"{re.sub(r'[ /-]+', '-', run.row.key)}-s{run.seed}"
    e = run.experiment
    record = JsonLines(folder)
    record.begin(
        RunInfo(name=folder.name, experiment=e.task.name, params=flat(e), folder=folder, tags=dict(tags or {}))
    )
    answered = e.selected_clients - failed
    for number, values in enumerate(zip(*scores.values(), strict=True)):
        wire = (
            {"communication/download_bytes": 2e6 * answered, "communication/upload_bytes": 1e6 * answered}
            if number
            else {}
        )
        costs = {"time/clients": 90.0 if number else 0.0, "time/evaluate": 10.0 if number else 0.0}
        metrics = {**dict(zip(scores, values, strict=True)), **wire, **costs, "failures/dropped_clients": float(failed)}
        record.round(RoundRecord(number, 1000.0 + number, metrics))
    record.end("FINISHED")
    write_config(folder, e)
    last: dict[str, dict[str, float]] = {"test": {}}
    for name, values in scores.items():
        split, _, measure = name.partition("/")
        last.setdefault(split, {})[measure] = values[-1]
    content = {"checksum": "c", "digest": run.digest, "scores": last, "seconds": 1.0}
    write_json(folder / "result.json", content | result)
    write_atomically(folder / "model.json", b"{}")
    return replace(run, folder=folder)


def rising(top: float, rounds: int = 50, wave: float = 0.02) -> list[float]:
    """Make a learning curve."""
    return [top * (1 - math.exp(-r / 8)) + wave * math.sin(r) * (r < rounds) for r in range(rounds + 1)]


Make = Callable[..., TableRun]
