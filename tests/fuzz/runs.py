"""A small finished run to be spoiled."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.evaluation import EvaluationOptions
from anchorfl.pipeline.config.experiment import Experiment, FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage import checkpoint
from anchorfl.tasks.options import TaskOptions
from tests.runs import quiet


def small(method: str = "fedavg", kept: int = 1, **more: object) -> Experiment:
    """Make an experiment of 3 clients and 2 rounds. kept: checkpoints; with one, nothing hides that it is refused."""
    values: dict[str, object] = {
        "task": TaskOptions(
            name="toy-single", clients=3, classes_per_client=2, min_count=1, max_tokens=16, validation=0.1
        ),
        "method": METHODS[method](),
        "model": ModelOptions(width=8, heads=2, feedforward=8, dropout=0.1),
        "class_embeddings": ClassEmbeddingOptions(width=8),
        "federation": FederationOptions(rounds=2, clients_per_round=2, epochs=1),
        "optimizer": OptimizerOptions(lr=0.01, batch_size=32, microbatch_tokens=64),
        "cluster": ClusterOptions(executor="serial", keep_checkpoints=kept),
        "evaluation": EvaluationOptions(save_state_every=2),
        "tracking": TrackingOptions(uri="none"),
        "seed": 1,
    }
    return Experiment(**values | more)  # type: ignore[arg-type]


def finished(folder: Path, method: str = "fedavg", **more: object) -> Path:
    """Finish a run; return its folder without what no one reads."""
    run(small(method, **more), folder, quiet)
    shutil.rmtree(folder / "report")
    return folder


def unfinished(folder: Path, kept: int = 1) -> Path:
    """Make a run that was killed after its last round, before its result."""
    finished(folder, kept=kept)
    for name in ("model", "result.json", "per_class.csv"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    about = json.loads((folder / "run.json").read_text()) | {"status": "RUNNING"}
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def seal(index: Path) -> None:
    """Correct the checksum of a checkpoint's changed index, as one would who wants it read."""
    content = json.loads(index.read_text())
    content.pop("sha256", None)
    index.write_text(json.dumps(content | {"sha256": checkpoint.seal(content)}))


MEASURED = re.compile(
    r"(sys|system)/.*|.*seconds|time|created|begun|ended|id|user|git_commit|python|torch|ray|mlflow|folder"
)


def settle(folder: Path) -> None:
    """Make the same, in the records below a folder, what differs from run to run and from machine to machine: a change
    at the n-th byte is the same change everywhere.
    """
    for path in (path for name in ("run.json", "result.json", "metrics.jsonl") for path in folder.rglob(name)):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        path.write_text("".join(json.dumps(_settled(json.loads(line))) + "\n" for line in lines))


def _settled(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _settled(below, key) for key, below in value.items()}
    if not MEASURED.fullmatch(name):
        return value
    return "0" * 32 if isinstance(value, str) else 1.5
