"""A trained model in MLflow's pyfunc format, without any pickle: this module is the loader that the format names.

``mlflow.pyfunc.load_model("models:/<id>").predict(frame)`` gives the probabilities of ``anchorfl predict``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from anchorfl.pipeline.results.predict import encoded
from anchorfl.pipeline.storage.saved_model import FORMAT, METADATA, WEIGHTS, SavedModel, load_model
from anchorfl.pipeline.tracking.mlflow_model import TEXT
from anchorfl.pipeline.training.evaluation import logits_of
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.tasks.contract import Columns
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.tabular.samples import places


class Classes:
    """A saved model as pyfunc calls it."""

    def __init__(self, saved: SavedModel) -> None:
        self.saved = saved

    def predict(self, model_input: Any) -> Any:
        """Return a pandas DataFrame of probabilities, one row per sample and one column per class name.

        Token models take a DataFrame with a column ``text``, or a list of texts; models of a table with
        text columns a DataFrame with its columns; others a DataFrame, an array or a list of lists [N, values of one
        sample], in the order of the columns. InputError names the sample.
        """
        import pandas as pd  # type: ignore[import-untyped]  # carries no types

        payload = _texts(model_input) if self.saved.spec.kind == "tokens" else _values(model_input, self.saved)
        threads = torch.get_num_threads()
        one_thread()  # the same bits as ``anchorfl predict``
        try:
            scores_NC = self.saved.objective.scores(logits_of(self.saved.model, encoded(self.saved, payload)))
        finally:
            torch.set_num_threads(threads)
        return pd.DataFrame(scores_NC.double().numpy(), columns=list(self.saved.class_names))


def _load_pyfunc(path: str) -> Classes:
    """Load the folder that ``pack`` gave MLflow as data; also one that version 0.1 logged (``pipeline.mlmodel``)."""
    metadata = json.loads((Path(path) / METADATA).read_bytes())
    if metadata.get("format") != 1:
        # who loads a model of MLflow runs what it names: SECURITY.md
        return Classes(load_model(Path(path), str(metadata.get("model", {}).get("network", ""))))
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(Path(path) / WEIGHTS, scratch)
        (Path(scratch) / METADATA).write_text(json.dumps(_as_format_2(metadata)), encoding="utf-8")
        return Classes(load_model(Path(scratch)))


def _as_format_2(metadata: dict[str, Any]) -> dict[str, Any]:
    """Rename what format 2 calls otherwise; the values are the same."""
    new = {key: value for key, value in metadata.items() if key != "names_width"}
    new |= {"format": FORMAT, "class_embedding_width": metadata["names_width"]}
    new["model"] = {key: value for key, value in metadata["model"].items() if not key.startswith("names")}
    if metadata.get("metrics") == "decisions":
        new["metrics"] = "threshold"
    return new


def _texts(samples: Any) -> list[str]:
    if hasattr(samples, "columns"):
        if TEXT not in samples.columns:
            raise InputError(f"the input has the columns {', '.join(map(str, samples.columns))}; name one {TEXT!r}")
        samples = samples[TEXT]
    texts = list(samples)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"sample {number}: {text!r} is no text; give a text that is not empty")
    return texts


def _values(samples: Any, saved: SavedModel) -> list[list[float]]:
    if saved.spec.columns is not None and saved.spec.columns.categories:
        return _of_columns(samples, saved.spec.columns)
    width = int(np.prod(saved.spec.shape))
    values_NV = _numbers(samples, "the input", "; give numbers only, without labels")
    if values_NV.ndim != 2 or values_NV.shape[1] != width:
        raise InputError(f"the input has the shape {values_NV.shape}; this model takes {width} values per sample")
    _check_finite(values_NV)
    rows: list[list[float]] = values_NV.tolist()
    return rows


def _of_columns(samples: Any, columns: Columns) -> list[list[float]]:
    """Return the numbers of a DataFrame, and the places of its words (tasks/tabular/samples.py)."""
    given = getattr(samples, "columns", ())
    lacking = [name for name in columns.inputs if name not in given]
    if lacking:
        raise InputError(f"the input lacks column {lacking[0]!r}; give a DataFrame with the model's {columns.inputs}")
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
