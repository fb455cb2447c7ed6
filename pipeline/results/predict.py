"""Predictions of a trained model on new samples: a file in, one row of scores per sample out."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import torch

from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.run_folder import CONFIG, read_experiment
from anchorfl.pipeline.storage.saved_model import METADATA, NO_MODEL, SavedModel, load_model
from anchorfl.pipeline.training.evaluation import logits_of, ranking_scores, score_logits
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.tasks.arrays.tensors import client_data
from anchorfl.tasks.contract import ClientData, Encode, Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.raw_files import open_text
from anchorfl.tasks.metrics.ranking import top_classes
from anchorfl.tasks.metrics.scores import CUTS, Scores
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.tabular.samples import encoder as table_encoder
from anchorfl.tasks.tabular.table import read_samples


@dataclass(frozen=True)
class Prediction:
    """Predictions for the N samples of a file."""

    class_names: tuple[str, ...]
    scores_NC: torch.Tensor
    """Confidence per class, 0 to 1."""
    predicted: list[list[int]]
    """Classes of every sample, in the order of the classes; the five best, in order, of a model scored by rankings."""
    truth: Scores | None
    """Scores against the file's labels; None where it has none."""
    labeled: int
    """Samples that have a label."""


def model_of(run: Path) -> Path:
    """Return the folder of a run's model, which may be ``run`` itself. Raise InputError where a run has none."""
    if (run / METADATA).exists():
        return run
    if not (run / "model" / METADATA).exists() and (run / CONFIG).exists():
        method = read_experiment(run).method
        if method.evaluate_on == "clients":
            raise InputError(f"{run}: {method.name} {NO_MODEL}: there is none to predict with")
    return run / "model"


def predict(model_folder: Path, file: Path, network: str = "", task: str = "") -> Prediction:
    """Predict the classes of every sample in ``file``. network, task: as ``load_model``. Raise InputError that names
    file and line.

    A label of a task with several classes a sample is all of them, with bars between: ``rain|wind``.

    - Token models: one text per line, or ``label<TAB>text`` on every line; plain or gzip.
    - Image models: CSV with a header, plain or gzip. A column ``label`` is optional, the other columns are the values
      of one sample in order.
    - Models of a user's table: Parquet or CSV with the same input columns, the label columns optional.
    """
    one_thread()
    saved = load_model(model_folder, network, task)
    if saved.spec.columns is not None:
        rows, labeled = _table(file, saved)
    else:
        payload, labels = _texts(file, saved) if saved.spec.kind == "tokens" else _values(file, saved)
        rows, labeled = encoded(saved, payload, labels), labels is not None
    logits_NC = logits_of(saved.model, rows)
    if saved.metrics == "ranking":
        predicted = top_classes(ranking_scores(saved.objective, logits_NC).numpy(), max(CUTS)).tolist()
    else:
        predicted = [row.nonzero().flatten().tolist() for row in saved.objective.predict(logits_NC)]
    truth = score_logits(saved.metrics, saved.objective, logits_NC, rows) if labeled else None
    count = int(rows.known_NC.any(1).sum()) if labeled else 0
    return Prediction(saved.class_names, saved.objective.scores(logits_NC), predicted, truth, count)


def encoded(saved: SavedModel, payload: Sequence[Any], labels: Sequence[Sequence[int]] | None = None) -> ClientData:
    """Return samples as the model takes them.

    payload: N texts, or N lists with the values of one sample. labels: class indices of every sample.
    """
    name, _ = _encoder(saved)
    known = [[] if labels is None else sorted(labels[i]) for i in range(len(payload))]
    table = pa.table(
        {
            "row": pa.array(range(len(payload)), pa.int64()),
            "labels": pa.array(known, pa.list_(pa.int32())),
            name: pa.array(payload),
        }
    )
    return _tensors(saved, table.append_column("known", pa.nulls(len(payload), pa.list_(pa.int32()))))


def task_of_model(saved: SavedModel) -> Task:
    """Return the task that a model was trained on, whose code turns samples into inputs."""
    return find_task(saved.task_plugin or saved.task)


def _encoder(saved: SavedModel) -> tuple[str, Encode]:
    """Return the payload column, and what encodes it."""
    if saved.spec.columns is not None:
        return table_encoder(saved.spec.kind)
    task = task_of_model(saved)
    return task.payload, task.encode


def _tensors(saved: SavedModel, table: Any) -> ClientData:
    """Return a table with the columns row, labels, known and the payload as the model takes it."""
    classes = len(saved.class_names)
    return client_data(_encoder(saved)[1](table, saved.spec), saved.spec, classes, saved.objective, range(classes))


def _table(file: Path, saved: SavedModel) -> tuple[ClientData, bool]:
    """Return the rows of a table like the one that the model was trained on, and whether they have labels."""
    samples = read_samples(file, saved.spec, saved.kind, saved.class_names)
    return _tensors(saved, samples.table), samples.labeled


def write(prediction: Prediction, out: TextIO) -> None:
    """Write CSV: sample number from 1, predicted class names joined by '|', one score per class name."""
    writer = csv.writer(out)
    writer.writerow(["sample", "predicted", *prediction.class_names])
    for number, (scores, classes) in enumerate(zip(prediction.scores_NC, prediction.predicted, strict=True), 1):
        names = "|".join(prediction.class_names[c] for c in classes)
        writer.writerow([number, names, *(f"{s:.6f}" for s in scores.tolist())])


def write_to(prediction: Prediction, path: str) -> None:
    """Write to a file, or to standard output for '', as ``write`` does."""
    if not path:
        write(prediction, sys.stdout)
        return
    text = io.StringIO()
    write(prediction, text)
    if Path(path).is_file() or not Path(path).exists():
        write_atomically(Path(path).resolve(), text.getvalue().encode())
    else:  # a pipe, /dev/stdout: nothing to replace
        Path(path).write_text(text.getvalue(), encoding="utf-8", newline="")


def _texts(file: Path, saved: SavedModel) -> tuple[list[str], list[list[int]] | None]:
    lines = [(number, line.rstrip("\r\n")) for number, line in open_text(_existing(file))]
    if not lines:
        raise InputError(f"{file} is empty: give one text per line")
    labeled = ["\t" in line for _, line in lines]
    if any(labeled) and not all(labeled):
        number = lines[labeled.index(not labeled[0])][0]
        raise InputError(
            f"{file}:{number}: a tab on some lines only; give 'label<TAB>text' on every line, or text alone"
        )
    texts, labels = [], []
    for number, line in lines:
        label, _, text = line.partition("\t") if labeled[0] else ("", "", line)
        if not text.strip():
            raise InputError(f"{file}:{number}: the text is empty; remove the line or fill it")
        texts.append(text)
        if labeled[0]:
            labels.append(_classes(label, saved, f"{file}:{number}"))
    return texts, labels if labeled[0] else None


def _values(file: Path, saved: SavedModel) -> tuple[Any, list[list[int]] | None]:
    check_takes_numbers(saved)
    rows = [(number, _fields(line, f"{file}:{number}")) for number, line in open_text(_existing(file)) if line.strip()]
    if len(rows) < 2:
        raise InputError(f"{file}: give a header line and at least one sample")
    header, width = rows[0][1], int(np.prod(saved.spec.shape))
    at = header.index("label") if "label" in header else -1
    columns = [i for i in range(len(header)) if i != at]
    if len(columns) != width:
        raise InputError(f"{file}:1: {len(columns)} value columns; this model takes {width} ({saved.spec.shape})")
    values, labels = [], []
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(f"{file}:{number}: {len(row)} fields, the header has {len(header)}")
        values.append(_numbers([row[i] for i in columns], [header[i] for i in columns], f"{file}:{number}"))
        if at >= 0:
            labels.append(_classes(row[at], saved, f"{file}:{number}"))
    return values, labels if at >= 0 else None


def check_takes_numbers(saved: SavedModel) -> None:
    """Raise InputError where a model's samples are no lists of numbers."""
    payload = "" if saved.spec.columns is not None else task_of_model(saved).payload
    if payload in ("path", "features"):
        what = "files of images" if payload == "path" else "sparse features"
        raise InputError(
            f"a model of {saved.task} is trained on {what}, which predict has no form for: name such a table with"
            " --task.file for training, or call anchorfl.pipeline.results.predict.encoded"
        )


def _fields(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise InputError(f"{where}: no line of CSV ({error}); write numbers with commas between them") from error


def _numbers(fields: Sequence[str], names: Sequence[str], where: str) -> list[float]:
    out = []
    for name, text in zip(names, fields, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise InputError(f"{where}: column {name!r} holds {text!r}, which is no finite number")
        out.append(value)
    return out


def _classes(text: str, saved: SavedModel, where: str) -> list[int]:
    """Return the classes of a label; of a task with several, those between bars, as ``write`` joins them."""
    names, out = saved.class_names, set[int]()
    for label in text.split("|") if saved.kind == "multi" and text not in names else [text]:
        if label not in names:
            known = ", ".join(names)
            raise InputError(f"{where}: unknown class {label!r}{nearest(label, names)}; the model knows {known}")
        out.add(names.index(label))
    return sorted(out)


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    return file
