"""The record of a run, which is the truth about it: run.json (what it is) and metrics.jsonl (one line per round).

Everything else that shows a run (MLflow, tables, curves) is made from these two files, so it can be made again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from anchorfl.pipeline.storage.atomic_files import read_json, write_atomically, write_json
from anchorfl.pipeline.storage.named_files import named_files
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.files.json_schema import parsed, type_error
from anchorfl.tasks.files.regular_files import regular

Status = Literal["FINISHED", "FAILED", "KILLED"]
Value = str | int | float | bool
FINAL_SCORES = "final_scores"
"""Folder of a run: the test scores of the selected round, where they were taken at the end."""
COMMUNICATION = ("communication/download_bytes", "communication/upload_bytes")
"""Metrics of a round: what all its clients got and sent."""
SHOWN = ("name", "experiment", "params", "datasets", "artifacts")
"""Fields of run.json that others show as they are."""
LARGEST = 1e100
"""No finite metric is larger: losses and norms are those of float32 numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """A run before its first round: its name, configuration and place among other runs."""

    name: str
    experiment: str
    params: dict[str, Value]
    """The resolved configuration, flat."""
    tags: dict[str, str] = field(default_factory=dict)
    datasets: Sequence[tuple[str, str, str, str]] = ()
    """(name, digest, split, source) of every split."""
    folder: Path
    """The run folder."""
    parent: Path | None = None
    """Folder of the run that this is a part of (a sweep); in run.json relative to ``folder``: both move together."""
    log_model: bool = True
    """MLflow gets the trained model as a model, not only as files."""
    register: str = ""
    """Name in MLflow's model registry; empty: not registered."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The metrics of one round."""

    round: int
    """0: before training."""
    time: float
    """Unix seconds at its end."""
    metrics: dict[str, float]
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metric -> class name -> score."""


class RunMetadata(TypedDict):
    """The content of ``run.json``, as far as it is read again."""

    id: str
    name: str
    experiment: str
    created: float
    status: Status | Literal["RUNNING"]
    folder: str
    params: dict[str, Value | list[Any]]
    tags: dict[str, Any]
    datasets: list[tuple[str, str, str, str]]
    artifacts: list[str]
    parent: NotRequired[str | None]
    begun: NotRequired[float]
    ended: NotRequired[float]
    user: NotRequired[str]
    log_model: NotRequired[bool]
    register: NotRequired[str]


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return ``run.json`` of a run folder (the fields of ``RunMetadata``); {} where there is none.

    Raises InputError where it is damaged.
    """
    metadata = read_json(folder / "run.json")
    if metadata and (fault := type_error(metadata, RunMetadata)):
        raise InputError(f"{folder / 'run.json'} is damaged ({fault}); restore it from a copy")
    if metadata and any(map(has_controls, _texts({name: metadata[name] for name in SHOWN}))):
        raise InputError(f"{folder / 'run.json'} holds names with control characters; restore it from a copy")
    return metadata


DATA_DIGESTS = "data_digest", "partition_digest"
"""Tags that say which data a run has."""


def check_same_data(folder: Path, now: Mapping[str, str], remedy: str) -> None:
    """Raise InputError where the data are others than those that a run began with: this version may prepare the same
    options otherwise (CHANGELOG.md, *Numbers*), and raw files may have changed.

    now: ``Manifest.digests``, or tags that hold them; remedy: what the user can do.
    """
    tags = read_metadata(folder).get("tags", {})
    for name in DATA_DIGESTS:
        if tags.get(name, now[name]) != now[name]:
            raise InputError(f"{folder}: its data are prepared otherwise now ({name} differs): {remedy}")


def check_artifacts(folder: Path) -> None:
    """Raise InputError where ``run.json`` names a file as an artifact that is not one of the run folder's."""
    for name in read_metadata(folder).get("artifacts", []):
        named_files(folder, name, folder / "run.json")


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value out of JSON, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _portable(value: float) -> float | str:
    """Return NaN and infinity, which JSON does not have, as text, which ``float`` reads back; any other as it is."""
    return value if math.isfinite(value) else str(float(value))


def line_of(record: RoundRecord) -> str:
    """Return a round as a line of metrics.jsonl."""
    content = asdict(record)
    content["metrics"] = {key: _portable(value) for key, value in record.metrics.items()}
    content["per_class"] = {k: {c: _portable(v) for c, v in row.items()} for k, row in record.per_class.items()}
    return json.dumps(content, allow_nan=False) + "\n"


class Line(TypedDict):
    """A line of metrics.jsonl."""

    round: int
    time: float
    metrics: dict[str, float | str]
    per_class: NotRequired[dict[str, dict[str, float | str]]]


def _figure(value: float | str) -> float:
    """Return a metric of a line. ValueError for one that no run can have measured: sums of it would overflow."""
    figure = float(value)
    if math.isfinite(figure) and abs(figure) > LARGEST:
        raise ValueError(f"{figure} as a metric")
    return figure


def _record(line: bytes) -> RoundRecord:
    content: Line = parsed(line, Line, "the line", "")
    metrics = {key: _figure(value) for key, value in content["metrics"].items()}
    classes = {k: {c: _figure(v) for c, v in row.items()} for k, row in content.get("per_class", {}).items()}
    if any(row.keys() != next(iter(classes.values())).keys() for row in classes.values()):
        raise ValueError("scores of other classes in one round")
    if any(map(has_controls, [*metrics, *classes, *next(iter(classes.values()), ())])):
        raise ValueError("a name with control characters")
    return RoundRecord(content["round"], content["time"], metrics, classes)


def read_records(folder: Path, offset: int = 0) -> tuple[list[RoundRecord], int]:
    """Return the rounds in metrics.jsonl from byte ``offset`` on, and the offset behind them.

    A half-written last line is left out. Raises InputError that names a damaged line before the last.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return [], offset
    with regular(path).open("rb") as file:
        file.seek(offset)
        lines = file.read().splitlines(keepends=True)
    records: list[RoundRecord] = []
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                break
            records.append(_record(line))
        except ValueError as error:
            if number == len(lines):  # a power cut may leave a last line of the right length and the wrong content
                break
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{path}: line {number} after byte {offset} is damaged ({reason}); delete that line"
            ) from error
        offset += len(line)
    return records, offset


def write_records(folder: Path, records: Sequence[RoundRecord]) -> None:
    """Write metrics.jsonl of a folder, in place of an older one."""
    write_atomically(folder / "metrics.jsonl", "".join(map(line_of, records)).encode())


def note_artifact(folder: Path, name: str) -> None:
    """Note a file or folder of a run that nobody writes just now in its run.json, as ``JsonLines.artifact``."""
    metadata = read_metadata(folder)
    if metadata and name not in metadata["artifacts"]:
        write_json(folder / "run.json", metadata | {"artifacts": [*metadata["artifacts"], name]})


def note_finished(folder: Path) -> None:
    """Close the record of a run that has its result, where a kill kept ``JsonLines.end`` from it."""
    metadata = read_metadata(folder)
    if metadata and metadata["status"] != "FINISHED":
        write_json(folder / "run.json", metadata | {"status": "FINISHED", "ended": time.time()})


def note_failed(folder: Path) -> None:
    """Close the record of a run that cannot go on now, where ``JsonLines.end`` will not be reached."""
    metadata = read_metadata(folder)
    if metadata and metadata["status"] == "RUNNING":
        write_json(folder / "run.json", metadata | {"status": "FAILED", "ended": time.time()})


def note_register(folder: Path, name: str) -> None:
    """Note a name in MLflow's registry for the model of a run that was named after the run."""
    metadata = read_metadata(folder)
    if metadata and metadata.get("register", "") != name:
        write_json(folder / "run.json", metadata | {"register": name})


def write_final_scores(folder: Path, record: RoundRecord) -> None:
    """Keep what was measured of a round after the last one: the test scores of the selected model."""
    (folder / FINAL_SCORES).mkdir(exist_ok=True)
    write_records(folder / FINAL_SCORES, [record])


def with_final_scores(folder: Path) -> list[RoundRecord]:
    """Return the rounds of a run, each with what was measured of it after the last one."""
    final = {record.round: record for record in read_records(folder / FINAL_SCORES)[0]}
    return [_joined(record, final.get(record.round), folder) for record in read_records(folder)[0]]


def _joined(record: RoundRecord, final: RoundRecord | None, folder: Path) -> RoundRecord:
    if final is None:
        return record
    classes = [next(iter(r.per_class.values()), {}).keys() for r in (record, final)]
    if all(classes) and classes[0] != classes[1]:
        raise InputError(
            f"{folder / FINAL_SCORES / 'metrics.jsonl'} has scores of other classes than the run: delete"
            f" {FINAL_SCORES}/"
        )
    return replace(record, metrics=record.metrics | final.metrics, per_class=record.per_class | final.per_class)
