"""The trained model of a run folder as a model of MLflow: linked to its run, with its scores, and once in the registry.

Every step asks first what is there, so an upload that is repeated or was killed makes no second model.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.pipeline.storage.run_record import RoundRecord
from anchorfl.pipeline.storage.saved_model import TEXT, SavedModel, load_model
from anchorfl.pipeline.tracking import own_wheel
from anchorfl.pipeline.tracking.mlflow_entities import DIGEST_LENGTH, RUN_TAG, key

CHECKSUM_TAG, MODEL_TAG, ALIAS_TAG, ALIAS = "anchorfl.checksum", "anchorfl.model", "anchorfl.alias", "champion"
NAME = "model"
NAMED = 1000
"""Columns of numbers up to which a model's signature names them, so that a table may have them in any order."""


def send_model(
    client: Any, run_id: str, folder: Path, metadata: dict[str, Any], records: Sequence[RoundRecord] = ()
) -> str:
    """Log the model in ``folder`` (``saved_model.py``) and, where run.json says so, register it; return its MLflow id.

    client: ``MlflowClient``. metadata: run.json. records: the rounds of the run, for the scores of the selected one.
    """
    from mlflow.entities import LoggedModelOutput

    what = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    run = client.get_run(run_id)
    model = _find(client, run, what["checksum"])
    if model is None:
        tags = {RUN_TAG: metadata["id"], CHECKSUM_TAG: what["checksum"]}
        model = client.create_logged_model(run.info.experiment_id, NAME, run_id, tags, model_type="classifier")
    linked = run.outputs.model_outputs if run.outputs else []
    if model.model_id not in {output.model_id for output in linked}:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=int(what["round"]))])
    if model.status != "READY":
        _upload(client, run_id, model.model_id, folder)
        scores = _scores(model.model_id, run_id, what, metadata, records)
        if scores:
            client.log_batch(run_id, metrics=scores)
        client.finalize_logged_model(model.model_id, "READY")
    if metadata.get("register"):
        _register(client, metadata["register"], run_id, model)
    return str(model.model_id)


def _find(client: Any, run: Any, checksum: str) -> Any:
    wanted = f"source_run_id = '{run.info.run_id}' AND tags.`{CHECKSUM_TAG}` = '{checksum}'"
    models = client.search_logged_models([run.info.experiment_id], wanted, max_results=1)
    return models[0] if models else None


def _upload(client: Any, run_id: str, model_id: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / NAME
        pack(folder, target, run_id=run_id, model_id=model_id)
        client.log_model_artifacts(model_id, str(target))


def _scores(
    model_id: str, run_id: str, what: dict[str, Any], metadata: dict[str, Any], records: Sequence[RoundRecord]
) -> list[Any]:
    """Return the scores of the selected round, tied to the model and to the data set of their split.

    The run has them already: same key, step and time, so they stay one row there.
    """
    from mlflow.entities import Metric

    sets = {split: (name, digest[:DIGEST_LENGTH]) for name, digest, split, _ in metadata["datasets"]}
    rows = []
    for record in records:
        for name, value in record.metrics.items() if record.round == what["round"] else ():
            split = name.partition("/")[0]
            if split in what["scores"] and math.isfinite(value):
                data, digest = sets.get(split, (None, None))
                rows.append(
                    Metric(
                        key(name), value, int(record.time * 1000), record.round, model_id, data, digest, run_id=run_id
                    )
                )  # fmt: skip
    return rows


def _register(client: Any, name: str, run_id: str, model: Any) -> None:
    """Make a version from this model, with the alias; both once, since the alias may have been moved by hand since.

    The source is the model's location: ``models:/<id>`` would be looked up in MLflow's active store, which is another.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{name}' AND run_id = '{run_id}'")
    version = next((v for v in versions if v.tags.get(MODEL_TAG) == model.model_id), None)
    if version is None:
        tags, source = {MODEL_TAG: model.model_id}, model.artifact_location
        version = client.create_model_version(name, source, run_id, tags, model_id=model.model_id)
    if ALIAS_TAG not in version.tags:
        client.set_registered_model_alias(name, ALIAS, version.version)
        client.set_model_version_tag(name, version.version, ALIAS_TAG, ALIAS)


LOADER = "anchorfl.pipeline.mlmodel"
"""Module that loads a logged model, by name only: it reads every kind of input, so it knows the data sets, which
whoever tracks a run must not."""
PACKAGES = ("filelock", "mlflow", "msgspec", "numpy", "pandas", "pillow", "pyarrow", "safetensors", "torch")
"""Packages that it takes to load and use a model, besides AnchorFL and what these require themselves."""
CODE = f"code/{own_wheel.FILE}"
"""Place of AnchorFL in a logged model, from where ``pip install -r requirements.txt`` of MLflow takes it."""


def pack(folder: Path, target: Path, *, run_id: str | None = None, model_id: str | None = None) -> None:
    """Write the model of ``folder`` (``saved_model.py``) to ``target``, which must not exist, as an MLflow model.

    The input example is made up: no row of the data leaves with a model.
    """
    # MLflow 3.17 warns about a type hint of its own when this is imported; it is not for the reader of a progress line.
    warnings.filterwarnings("ignore", ".*Any type hint is inferred as AnyType", UserWarning)
    import mlflow.pyfunc
    from mlflow.models import Model

    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # its INFO lines break a progress display
    saved = load_model(folder)
    example, signature = _example(saved)
    with tempfile.TemporaryDirectory() as scratch:
        mlflow.pyfunc.save_model(
            target,
            loader_module=LOADER,
            data_path=str(folder),
            code_paths=[str(own_wheel.write_wheel(Path(scratch)))],
            mlflow_model=Model(run_id=run_id, model_id=model_id, model_uuid=model_id),
            signature=signature,
            input_example=example,
            # left out, MLflow would load the model in another process to find them
            pip_requirements=[*requirements(), *saved.packages],
            metadata={"task": saved.task, "kind": saved.kind},
        )


def requirements() -> list[str]:
    """Return AnchorFL in the model itself, and the installed versions of ``PACKAGES``; no index is asked."""
    return [CODE, *(f"{name}=={version(name).partition('+')[0]}" for name in PACKAGES)]  # 2.13.0+cpu is on no index


def _example(saved: SavedModel) -> tuple[Any, Any]:
    """Return a made-up sample, and the signature: (DataFrame or array [1, values], ``ModelSignature``)."""
    import pandas as pd  # type: ignore[import-untyped]  # carries no types
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    outputs = Schema([ColSpec("double", name) for name in saved.class_names])
    if cells := _cells(saved):
        names = pd.Index(list(cells), dtype=object)  # MLflow 3.17 compares them with a range, pandas 3 warns about that
        inputs = Schema(
            [ColSpec("string" if isinstance(cell, str) else "double", name) for name, cell in cells.items()]
        )
        return pd.DataFrame([list(cells.values())], columns=names), ModelSignature(inputs, outputs)
    width = int(np.prod(saved.spec.shape))
    # A tensor, as an image may have a hundred thousand values; MLflow drops what names a table of it has
    return np.zeros((1, width)), ModelSignature(Schema([TensorSpec(np.dtype("float64"), (-1, width))]), outputs)


def _cells(saved: SavedModel) -> dict[str, str | float]:
    """Return the made-up cells of a sample that has named columns: texts and numbers."""
    if saved.spec.kind == "tokens":
        return {TEXT: "an example text"}
    columns = saved.spec.columns
    if columns is None or not (columns.categories or len(columns.inputs) == np.prod(saved.spec.shape) <= NAMED):
        return {}
    words = columns.categories
    return {name: "an example" if name in words else 0.0 for name in columns.inputs}
