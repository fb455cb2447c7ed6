"""A trained model in MLflow's pyfunc format, without any pickle: this module is the loader that the format names.

``mlflow.pyfunc.load_model("models:/<id>").predict(frame)`` gives the probabilities of ``anchorfl predict``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from anchorfl.pipeline.results.in_memory import Model, open_model
from anchorfl.pipeline.storage.saved_model import FORMAT, METADATA, WEIGHTS


class Classes:
    """A saved model as pyfunc calls it."""

    def __init__(self, saved: Model) -> None:
        self.saved = saved

    def predict(self, model_input: Any) -> Any:
        """Return a pandas DataFrame of probabilities, as ``Model.predict``."""
        return self.saved.predict(model_input)


def _load_pyfunc(path: str) -> Classes:
    """Load the folder that ``pack`` gave MLflow as data; also one that version 0.1 logged (``pipeline.mlmodel``)."""
    metadata = json.loads((Path(path) / METADATA).read_bytes())
    if metadata.get("format") != 1:
        # who loads a model of MLflow runs what it names: SECURITY.md
        network, task = metadata.get("model", {}).get("network", ""), metadata.get("task_plugin", "")
        return Classes(open_model(Path(path), str(network), str(task)))
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(Path(path) / WEIGHTS, scratch)
        (Path(scratch) / METADATA).write_text(json.dumps(_as_format_2(metadata)), encoding="utf-8")
        return Classes(open_model(Path(scratch)))


def _as_format_2(metadata: dict[str, Any]) -> dict[str, Any]:
    """Rename what format 2 calls otherwise; the values are the same."""
    new = {key: value for key, value in metadata.items() if key != "names_width"}
    new |= {"format": FORMAT, "class_embedding_width": metadata["names_width"]}
    new["model"] = {key: value for key, value in metadata["model"].items() if not key.startswith("names")}
    if metadata.get("metrics") == "decisions":
        new["metrics"] = "threshold"
    return new
