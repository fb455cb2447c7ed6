"""What comes after the last round of a run: the selected model, the result and the pictures."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint import write_atomically
from pipeline.contract import Tensors
from pipeline.experiment import digest
from pipeline.folder import CONFIG, RESULT
from pipeline.journal import LATE, read_records, with_late, write_late
from pipeline.rounds import Loop, final_checksum, record_of, weights_in
from pipeline.saved import NO_MODEL, save_model
from pipeline.setup import Setup
from tasks.contract import InputError


@dataclass(frozen=True)
class Result:
    """Where a run is and what it gave; ``checksum``: SHA-256 of the final weights."""

    folder: Path
    checksum: str
    scores: dict[str, dict[str, float]]


def conclude(setup: Setup, folder: Path, state: Tensors, loop: Loop) -> Result:
    """Save the selected model, the result and the pictures, and hand them to the tracker."""
    e, standing, tracker = setup.experiment, loop.standing, loop.tracker
    checksum = final_checksum(state)
    scores = standing.scores
    if standing.best_round:
        scores = _scores_of(folder, standing.best_round, scores)
        if e.tested == "last":
            late = loop.tested(state)
            scores |= {s: dict(v.values) for s, v in late.items()}
            write_late(folder, record_of(standing.best_round, late, loop.class_names))
            tracker.artifact(folder / LATE)
    chosen = standing.best_round or standing.round
    about = {"round": chosen, "scores": scores, "run": folder.name}
    if e.method.scored == "server":
        save_model(folder / "model", setup, weights_in(state), about)
    else:
        loop.progress.say(f"{e.method.name} {NO_MODEL}: none is saved")
    content = {
        "checksum": checksum, "scores": scores, "round": chosen, "rounds": standing.round, "seconds": standing.seconds,
        "failed": standing.failures, "retried": standing.retries, "faults": standing.faults, "digest": digest(e),
    }  # fmt: skip
    if summary := standing.summary(loop.recovered):
        loop.progress.say(summary)
    write_per_class(folder)
    _draw(setup, folder)
    write_atomically(folder / "plan.json", Path(setup.data().file("plan.json")).read_bytes())
    for name in (CONFIG, "plan.json", "per_class.csv", "report", *(["model"] if e.method.scored == "server" else [])):
        tracker.artifact(folder / name)
    # Last, since its presence says that the run is finished and everything else is there.
    write_atomically(folder / RESULT, json.dumps(content, indent=1).encode())
    return Result(folder, checksum, scores)


def _draw(setup: Setup, folder: Path) -> None:
    """The curves and the partition of a run, below its folder."""
    from pipeline.compare import compare  # here, since matplotlib takes a second to import, and a run starts without
    from pipeline.pictures import draw_partition, fits

    compare([folder], folder / "report")
    data = setup.data()
    if fits(data.manifest):
        draw_partition(data.manifest, data.held(), folder / "report" / "partition.png")


def _scores_of(folder: Path, round_: int, names: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The scores of a round in the records, split by split as ``names`` has them. InputError where they are gone."""
    found = {r.round: r.metrics for r in read_records(folder)[0]}
    try:
        return {split: {name: found[round_][f"{split}/{name}"] for name in values} for split, values in names.items()}
    except KeyError as error:
        lacking = f"{folder / 'metrics.jsonl'} lacks {error} of round {round_}"
        raise InputError(f"{lacking}; restore it from a copy") from error


def write_per_class(folder: Path) -> None:
    """``per_class.csv``: one line per round and class, one column per score."""
    records = [r for r in with_late(folder) if r.per_class]
    columns = sorted({key for r in records for key in r.per_class})
    with (folder / "per_class.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["round", "class", *columns])
        for r in records:
            for name in next(iter(r.per_class.values())):
                writer.writerow(
                    [r.round, name, *(f"{r.per_class[c][name]:.6f}" if c in r.per_class else "" for c in columns)]
                )
