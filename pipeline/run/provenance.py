"""The origin of a run: versions, commit, digests. A run goes on only with the data and records that it began with."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.experiment import digest, flat, plugins_of
from anchorfl.pipeline.storage.run_record import RunInfo, check_same_data, read_metadata, read_records
from anchorfl.pipeline.training.evaluation import RankedSplits
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import P_AT
from anchorfl.tasks.plugins import code_digest, dotted_name, packages_of, version_of

MOST_FREQUENT = "most_frequent"
"""Tag of a run: scores of the test split by name, as JSON, where every row gets the most frequent classes."""


def check_records(folder: Path, done: int) -> None:
    """Raise InputError where the records lack one of the rounds 0 to ``done``, which are not computed again."""
    recorded = {record.round for record in read_records(folder)[0]}
    first = next((round_ for round_ in range(done + 1) if round_ not in recorded), None)
    if first is not None:
        raise InputError(
            f"{folder / 'metrics.jsonl'} lacks round {first}, which is done by the checkpoint; restore it from a copy,"
            " or start the run anew in another --output"
        )


def check_same_inputs(now: Mapping[str, str], folder: Path) -> None:
    """Raise InputError where a run would go on with other data, or other frozen weights, than it began with.

    now: tags of ``run_info``.
    """
    anew = "or start anew in another --output"
    check_same_data(folder, now, f"go on with the version and the raw files that it began with, {anew}")
    tags = read_metadata(folder).get("tags", {})
    if "frozen_digest" in tags and tags["frozen_digest"] != now.get("frozen_digest"):
        raise InputError(
            f"{folder}: its frozen weights are others now: put back the file of model.weights, or the folder of the"
            f" network or of class_embeddings.encoder, that it began with, {anew}"
        )


def run_info(run_spec: RunSpec, folder: Path) -> RunInfo:
    """Return the facts of a run for its record."""
    experiment, manifest = run_spec.experiment, run_spec.data().manifest
    notice = experiment.method.notice(experiment.federation.rounds)
    tags = {
        "method": experiment.method.name,
        **manifest.digests,
        "config_digest": digest(experiment),
        **run_spec.vectors(),
        **_most_frequent(run_spec),
        "git_commit": _commit(),
        **({"notice": notice} if notice else {}),
        **{f"{word}_plugin": _origin(of) for word, of in plugins_of(experiment).items()},
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("anchorfl", "torch", "ray", "mlflow")},
    }
    sources = manifest.data_digest[:32], manifest.raw_digest
    sets = [(f"{manifest.task}/{s}", sources[0], s, sources[1]) for s in ("train", "validation", "test")]
    return RunInfo(
        name=folder.name, experiment=manifest.task, params=flat(experiment), tags=tags, datasets=sets, folder=folder
    )


def _origin(of: Any) -> str:
    """Return where the code of a plug-in is from: its class or function, package and version, digest of its source."""
    packages = " and ".join(packages_of(of))
    return f"{dotted_name(of)}{f' of {packages}' if packages else ''}, sha256 {code_digest(of)}"


def _most_frequent(run_spec: RunSpec) -> dict[str, str]:
    """Return what one list for every row scores, that of the most frequent classes, where a run ranks and tests."""
    experiment, data = run_spec.experiment, run_spec.data()
    if experiment.evaluation.metrics != "ranking" or experiment.tested == "never" or not data.size("test"):
        return {}
    scores = RankedSplits(data, run_spec.objective()).of_most_frequent("test").values
    return {MOST_FREQUENT: json.dumps({m.name: round(scores[m.name], 6) for m in P_AT})}


def _commit() -> str:
    """Return the commit of the running code, marked where files differ from it; 'unknown' outside a git checkout."""
    own = Path(__file__).resolve()
    try:
        _git("ls-files", "--error-unmatch", own.name)  # an environment may lie in a checkout of something else
        return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    """Return what git says in the folder of this file."""
    folder = Path(__file__).resolve().parent
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10).stdout
