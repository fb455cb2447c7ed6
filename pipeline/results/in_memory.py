"""Predictions for samples in memory: a pandas DataFrame, an array or lists, as notebooks and MLflow have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from anchorfl.pipeline.results.predict import check_takes_numbers, encoded, model_of
from anchorfl.pipeline.storage.saved_model import TEXT, SavedModel, load_model
from anchorfl.pipeline.training.evaluation import logits_of
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.tasks.contract import ClientData, Columns
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.tabular.samples import places


class Model(SavedModel):
    """A trained model, ready for samples in memory."""

    def predict(self, samples: Any) -> Any:
        """Return a pandas DataFrame of probabilities, one row per sample and one column per class name.

        samples: of models of a table a DataFrame with its columns, whatever else is in it; of other models of texts a
        DataFrame with a column ``text``; of all models of texts, a list of them; of others, and of tables of numbers, a
        array or a list of lists [N, values of one sample], in the order of the columns, or a DataFrame without their
        names; an image's are row by row, and of a pixel all channels together. Errors: InputError names the sample.
        """
        import pandas as pd  # type: ignore[import-untyped]  # carries no types

        if isinstance(samples, pa.Table):
            samples = samples.to_pandas()
        _check_once(samples, self)
        payload = _texts(samples, self) if self.spec.kind == "tokens" else _values(samples, self)
        if len(payload):
            scores_NC = self.objective.scores(self.logits(encoded(self, payload)))
        else:
            scores_NC = torch.zeros(0, len(self.class_names))
        index = samples.index if hasattr(samples, "index") and hasattr(samples, "columns") else None
        return pd.DataFrame(scores_NC.double().numpy(), columns=list(self.class_names), index=index)

    def logits(self, rows: ClientData) -> Tensor:
        """Return the logits [N, C] of encoded rows, with the bits of ``anchorfl predict``."""
        threads = torch.get_num_threads()
        one_thread()
        try:
            return logits_of(self.model, rows)
        finally:
            torch.set_num_threads(threads)


def open_model(folder: Path, network: str = "", task: str = "") -> Model:
    """Return the model of a run folder, or of the folder of a model. network, task: as ``load_model``.

    Errors: InputError where it is missing or damaged, or names code of others.
    """
    saved = load_model(model_of(folder), network, task)
    return Model(**{name: getattr(saved, name) for name in SavedModel.__dataclass_fields__})


def _check_once(samples: Any, saved: SavedModel) -> None:
    """Raise InputError where a DataFrame has two columns of the name of an input."""
    asked = [TEXT] if saved.spec.columns is None else [*saved.spec.columns.inputs, TEXT]
    names = list(getattr(samples, "columns", ()))
    if twice := next((name for name in asked if names.count(name) > 1), ""):
        raise InputError(f"the input has two columns {twice!r}; rename one")


def _texts(samples: Any, saved: SavedModel) -> list[str]:
    if hasattr(samples, "columns"):
        names = [TEXT] if saved.spec.columns is None else [*saved.spec.columns.inputs, TEXT]
        name = next((name for name in names if name in samples.columns), "")
        if not name:
            raise InputError(f"the input has the columns {', '.join(map(str, samples.columns))}; name one {names[0]!r}")
        samples = samples[name]
    if isinstance(samples, (str, Mapping)) or not isinstance(samples, Iterable):
        raise InputError(f"the input is {samples!r}; give a list of texts")
    texts = list(samples)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"sample {number}: {text!r} is no text; give a text that is not empty")
    return texts


def _values(samples: Any, saved: SavedModel) -> list[list[float]]:
    if saved.spec.columns is not None and saved.spec.columns.categories:
        return _of_columns(samples, saved.spec.columns)
    check_takes_numbers(saved)
    given = set(getattr(samples, "columns", ()))
    if saved.spec.columns is not None and _names_columns(given, saved.spec.columns):
        _check_names(saved.spec.columns, given)
        samples = samples[list(saved.spec.columns.inputs)]  # by name, and whatever else is in the table
        if len(saved.spec.columns.inputs) == 1:  # which may hold lists, or lists of lists
            samples = [_flat(value) for value in _in_steps(samples[saved.spec.columns.inputs[0]], saved)]
    width = int(np.prod(saved.spec.shape))
    values_NV = _numbers(samples, "the input", "; give numbers only, without labels")
    if values_NV.ndim != 2 or values_NV.shape[1] != width:
        raise InputError(f"the input has the shape {values_NV.shape}; this model takes {width} values per sample")
    _check_finite(values_NV)
    rows: list[list[float]] = values_NV.tolist()
    return rows


def _in_steps(cells: Iterable[Any], saved: SavedModel) -> Iterable[Any]:
    """Yield the cells. Raises InputError where one of a series is no list of the model's steps, nor of all values."""
    steps, features = saved.spec.shape if saved.spec.kind == "series" else (0, 0)
    for number, cell in enumerate(cells, 1):
        parts = list(cell) if isinstance(cell, (list, tuple, np.ndarray)) else []
        lengths = {len(part) if isinstance(part, (list, tuple, np.ndarray)) else 0 for part in parts}
        if steps and not (lengths == {features} or (lengths == {0} and len(parts) == steps * features)):
            raise InputError(f"sample {number}: give a list of {steps} steps, each a list of {features} values")
        yield cell


def _flat(value: Any) -> list[Any]:
    """Return the numbers of a cell: of a list, or of lists in a list."""
    return [x for part in value for x in _flat(part)] if isinstance(value, (list, tuple, np.ndarray)) else [value]


def _names_columns(given: Collection[Any], columns: Columns) -> bool:
    """Return whether a DataFrame's columns have names, which then have to be the model's. A column of vectors may come
    as its values, which have others.
    """
    named = len(columns.inputs) > 1 and any(isinstance(name, str) for name in given)
    return named or bool(set(given) & set(columns.inputs))


def _check_names(columns: Columns, given: Collection[Any]) -> None:
    """Raise InputError where a DataFrame lacks an input of the model."""
    if lacking := [name for name in columns.inputs if name not in given]:
        raise InputError(f"the input lacks column {lacking[0]!r}; give a DataFrame with the model's {columns.inputs}")


def _of_columns(samples: Any, columns: Columns) -> list[list[float]]:
    """Return the numbers of a DataFrame, and the places of its words (tasks/tabular/samples.py)."""
    _check_names(columns, set(getattr(samples, "columns", ())))
    values_ND = np.empty((len(samples), len(columns.inputs)))
    for at, name in enumerate(columns.inputs):
        if name not in columns.categories:
            values_ND[:, at] = _numbers(samples[name], f"column {name!r}", "; give numbers")
            continue
        try:
            texts = pa.array(samples[name], pa.string(), from_pandas=True)
        except (pa.ArrowException, TypeError) as error:
            raise InputError(f"column {name!r} holds what is no text ({error}); give texts") from error
        values_ND[:, at] = places(texts, columns.categories[name])
    _check_finite(values_ND[:, [name not in columns.categories for name in columns.inputs]])
    rows: list[list[float]] = values_ND.tolist()
    return rows


def _numbers(values: Any, what: str, hint: str) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} holds what is no number ({error}){hint}") from error


def _check_finite(values_NV: npt.NDArray[np.float64]) -> None:
    bad_N = np.flatnonzero(~np.isfinite(values_NV).all(1))
    if len(bad_N):
        raise InputError(f"sample {bad_N[0] + 1} holds a value that is not finite; fill it or leave the sample out")
