"""A run folder as MLflow's entities: params, tags, data sets and metrics, within MLflow's limits."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.run_record import RoundRecord
from anchorfl.tasks.metrics.scores import FAMILIES

ROUND_COMPLETE = "sync/round_complete"
"""Logged last in every round, so its last step in MLflow is the last round that arrived whole."""
NONFINITE = "failures/nonfinite_metrics"
"""Number of a round's metrics that are not finite, where there are any: MLflow stores infinity as 1.8e308."""
SCORE = "_score"
"""The primary score of a round, of the test split if it was scored, else of validation: MLflow's lists and its compare
page open on the first name in the alphabet, and that should be a score."""
METRICS_PER_BATCH, PARAMS_PER_BATCH, VALUE_LENGTH, DIGEST_LENGTH, KEY_LENGTH = 1000, 100, 6000, 36, 250
"""MLflow's own limits (mlflow/utils/validation.py, 3.17.2)."""
RUN_TAG, PARENT_TAG = "anchorfl.run", "mlflow.parentRunId"
TRIAL_STATUS = "trial_status"
"""Tag of a trial that has ended: MLflow has no status of its own for one that was stopped."""


def key(name: str) -> str:
    """Return a name as MLflow accepts it. One that is no path, or has other characters, ends in a digest, as two might
    become the same; a long one has head and end, and the digest between them.
    """
    plain = re.sub(r"[^\w./: -]", "_", name)
    if plain != posixpath.normpath(plain) or plain.startswith((".", "/")):
        plain = re.sub(r"^[./]+|(?<=/)[./]+|[./]+$", "_", plain)
    if plain != name:
        plain = f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    if len(plain) <= KEY_LENGTH:
        return plain
    middle, end = f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}_", plain[-60:]
    return plain[: KEY_LENGTH - len(middle) - len(end)] + middle + end


def metrics(record: RoundRecord) -> list[Any]:
    """Return the MLflow metrics of a round: the finite ones, and last the marker that the round is complete.

    The step is the round. Keys that begin with ``system/`` stand under MLflow's "System metrics".
    """
    from mlflow.entities import Metric

    finite = {name: value for name, value in sorted(record.metrics.items()) if math.isfinite(value)}
    if lost := len(record.metrics) - len(finite):
        finite[NONFINITE] = finite.get(NONFINITE, 0.0) + lost
    scores = (f"{split}/{family.primary.name}" for split in ("test", "validation") for family in FAMILIES.values())
    if name := next((name for name in scores if name in finite), ""):
        finite[SCORE] = finite[name]
    when = int(record.time * 1000)
    return [Metric(key(name), value, when, record.round) for name, value in (finite | {ROUND_COMPLETE: 1.0}).items()]


def at_step(metric: Any, step: int) -> Any:
    """Return a metric with another step: MLflow's lists show the value of the last one."""
    from mlflow.entities import Metric

    return Metric(metric.key, metric.value, metric.timestamp, step)


def params(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the resolved configuration of run.json as params."""
    return {key(name): redact(str(value))[:VALUE_LENGTH] for name, value in metadata["params"].items()}


def tags(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the tags of run.json, and those that fill the columns *source* and *version* of MLflow's pages."""
    commit, _, dirty = str(metadata["tags"].get("git_commit", "")).partition("-")
    source = {"mlflow.source.name": "anchorfl", "mlflow.source.type": "LOCAL"}
    if metadata["params"].get("cluster.address"):  # a run on a cluster that others started and share
        source["mlflow.source.type"] = "JOB"
    if re.fullmatch(r"[0-9a-f]{7,64}", commit):
        source |= {"mlflow.source.git.commit": commit, "mlflow.source.git.dirty": "true" if dirty else "false"}
    return {key(name): str(value)[:VALUE_LENGTH] for name, value in (source | metadata["tags"]).items()}


def first_tags(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the tags that are set once and then belong to the reader of the page, who may have changed them."""
    values = metadata["params"]
    words = [f"{values['method']} on {values['task']}"] if {"method", "task"} <= set(values) else []
    words += [f"seed {values['seed']}"] if "seed" in values else []
    note = f"{', '.join(words)}. " if words else ""
    once = {"mlflow.note.content": f"{note}Run folder `{Path(metadata['folder']).name}`."}
    if metadata.get("user"):
        once["mlflow.user"] = metadata["user"]
    return once


def datasets(metadata: dict[str, Any]) -> list[Any]:
    """Return one data set per split; the split is its context."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    return [
        DatasetInput(
            Dataset(name, digest[:DIGEST_LENGTH], "local", json.dumps({"uri": source})),
            [InputTag("mlflow.data.context", split)],
        )
        for name, digest, split, source in metadata["datasets"]
    ]
