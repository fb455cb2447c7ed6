"""A trained model in MLflow's pyfunc format, without any pickle: the files of ``saved.py``, what goes in and comes out,
and the name of the module that loads them.
"""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.saved import SavedModel, load_model

LOADER = "pipeline.mlmodel"
"""By name only: it reads every kind of input, so it knows the data sets, which whoever tracks a run must not."""
TEXT = "text"
"""Input column of token models."""
PACKAGES = ("anchorfl", "mlflow", "numpy", "pandas", "pyarrow", "safetensors", "scikit-learn", "torch")
"""What it takes to load and use a model, besides what these require themselves."""


def pack(folder: Path, target: Path, *, run_id: str | None = None, model_id: str | None = None) -> None:
    """Write the model of ``folder`` (``saved.py``) to ``target``, which must not exist, as an MLflow model.

    The input example is made up: no row of the data leaves with a model.
    """
    # MLflow 3.17 warns about a type hint of its own when this is imported; it is not for the reader of a progress line.
    warnings.filterwarnings("ignore", ".*Any type hint is inferred as AnyType", UserWarning)
    import mlflow.pyfunc
    from mlflow.models import Model

    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # its INFO lines break a progress display
    saved = load_model(folder)
    example, signature = _example(saved)
    mlflow.pyfunc.save_model(
        target,
        loader_module=LOADER,
        data_path=str(folder),
        mlflow_model=Model(run_id=run_id, model_id=model_id, model_uuid=model_id),
        signature=signature,
        input_example=example,
        pip_requirements=requirements(),  # left out, MLflow would load the model in another process to find them
        metadata={"task": saved.task, "kind": saved.kind},
    )


def requirements() -> list[str]:
    """The installed versions of ``PACKAGES``; no index is asked. One that is not installed as a package is left out."""
    lines = []
    for name in PACKAGES:
        try:
            lines.append(f"{name}=={version(name).partition('+')[0]}")  # 2.13.0+cpu is on no index
        except PackageNotFoundError:  # AnchorFL itself, where it runs from a checkout
            continue
    return lines


def _example(saved: SavedModel) -> tuple[Any, Any]:
    """A made-up sample, and the signature: (DataFrame or array [1, values], ``ModelSignature``)."""
    import pandas as pd  # type: ignore[import-untyped]  # carries no types
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    outputs = Schema([ColSpec("double", name) for name in saved.class_names])
    if saved.spec.kind == "tokens":
        names = pd.Index([TEXT], dtype=object)  # MLflow 3.17 compares them with a range, which pandas 3 warns about
        frame = pd.DataFrame([["an example text"]], columns=names)
        return frame, ModelSignature(Schema([ColSpec("string", TEXT)]), outputs)
    width = int(np.prod(saved.spec.shape))
    # A tensor, as an image may have a hundred thousand values, and a CSV may name its columns as it likes.
    return np.zeros((1, width)), ModelSignature(Schema([TensorSpec(np.dtype("float64"), (-1, width))]), outputs)
