"""The trained model on disk: weights as safetensors, and beside them what it takes to use them without the data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors.torch import save

from anchorfl.models.build import Head, ModelOptions, build
from anchorfl.models.classifier import Classifier
from anchorfl.models.weight_files import WeightsError, tensors
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.contract import InputSpec, Kind, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import converted, parsed, type_error
from anchorfl.tasks.metrics.scores import Metrics

FORMAT = 2
WEIGHTS, ABOUT = "weights.safetensors", "model.json"
LARGEST = 2**31
"""Numbers of a sample's positions in the network, at most."""
NO_MODEL = "trains no global model"
"""Told of a method that is scored at its clients."""


@dataclass(frozen=True)
class SavedModel:
    """A classifier ready for use, with the names of its classes and the description of its input."""

    model: Classifier
    task: str
    class_names: tuple[str, ...]
    kind: Kind
    spec: InputSpec
    metrics: Metrics = "threshold"
    """By which figures the run was scored."""

    @property
    def objective(self) -> Objective:
        """Single- or multi-label."""
        return Objective(self.kind)


def save_model(folder: Path, run_spec: RunSpec, weights: Tensors, about: dict[str, Any]) -> None:
    """Write ``weights.safetensors`` and ``model.json`` into ``folder``; ``about``: facts of the run to keep with it."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest, experiment = run_spec.data().manifest, run_spec.experiment
    content = {
        "format": FORMAT,
        "task": manifest.task,
        "class_names": manifest.class_names,
        "kind": manifest.kind,
        "input": asdict(manifest.spec),
        "model": asdict(experiment.model),
        "head": experiment.method.head.kind,
        "parts": experiment.method.head.parts,
        "class_embedding_width": None if run_spec.vectors_CP is None else run_spec.vectors_CP.shape[1],
        "concept_width": 0 if run_spec.concepts_CMD is None else run_spec.concepts_CMD.shape[2],
        "metrics": experiment.evaluation.metrics,
        "checksum": messages.checksum(weights),
        **about,
    }
    write_atomically(folder / WEIGHTS, save({k: v.contiguous() for k, v in weights.items()}))
    write_atomically(folder / ABOUT, json.dumps(content, indent=1).encode())


class About(TypedDict):
    """What ``model.json`` holds, as far as it takes to use the weights."""

    task: str
    class_names: list[str]
    kind: Kind
    input: dict[str, Any]
    model: dict[str, Any]
    head: Head
    class_embedding_width: int | None
    checksum: str
    parts: NotRequired[int]
    concept_width: NotRequired[int]
    metrics: NotRequired[Metrics]


def load_model(folder: Path) -> SavedModel:
    """Read a saved model, or InputError: missing, damaged, or of another format."""
    hint = "is the run finished? 'anchorfl resume' ends one that was interrupted"
    try:
        about = _about((folder / ABOUT).read_bytes(), folder / ABOUT, hint)
        weights = tensors((folder / WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no trained model ({error.filename} is missing); {hint}") from error
    except WeightsError as error:
        raise InputError(f"{folder / WEIGHTS} is damaged ({error}); {hint}") from error
    if messages.checksum(weights) != about["checksum"]:
        raise InputError(f"{folder / WEIGHTS} does not have the checksum that {ABOUT} states; copy the model again")
    try:
        spec, model = _built(about, weights)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{folder / ABOUT} does not fit {WEIGHTS} ({error}); copy the model again") from error
    names, metrics = tuple(about["class_names"]), about.get("metrics", "threshold")
    return SavedModel(model.eval(), about["task"], names, about["kind"], spec, metrics)


def _about(data: bytes, where: Path, hint: str) -> About:
    about = parsed(data, dict[str, Any], where, hint)
    if about.get("format") != FORMAT:
        raise InputError(f"{where} has format {about.get('format')}, this version reads {FORMAT}")
    fault = type_error(about, About) or type_error(about["input"], InputSpec, "input")
    if fault := fault or type_error(about["model"], ModelOptions, "model"):
        raise InputError(f"{where} is damaged ({fault}); {hint}")
    found: About = about
    return found


def _built(about: About, weights: Tensors) -> tuple[InputSpec, Classifier]:
    """The network with its weights. ValueError or RuntimeError where the two do not fit.

    It is first built without memory for its values (torch's device ``meta``) and held against ``weights``: a
    description of a network of terabytes costs nothing.
    """
    spec: InputSpec = converted(about["input"], InputSpec)
    classes = len(about["class_names"])
    options, width = ModelOptions(**about["model"]), about["class_embedding_width"]
    if min(spec.shape, default=0) < 1 or math.prod(spec.shape) * options.width > LARGEST:
        raise ValueError(f"a sample of shape {spec.shape} cannot be")
    if len(spec.shape) != {"image": 3, "series": 2}.get(spec.kind, 1):
        raise ValueError(f"a sample of kind {spec.kind!r} cannot have the shape {spec.shape}")
    each = spec.shape[0] if spec.kind == "image" else spec.shape[-1]
    if len(spec.mean) != len(spec.std) or len(spec.mean) not in (0, each) or not all(map(math.isfinite, spec.mean)):
        raise ValueError(f"{len(spec.mean)} means and {len(spec.std)} deviations do not fit the shape {spec.shape}")
    if not all(0 < deviation < math.inf for deviation in spec.std) or not 0 <= spec.levels <= 255:
        raise ValueError("a deviation must be above 0, and levels 0 to 255")
    if not 1 <= about.get("parts", 1) <= len(weights) or not 0 <= about.get("concept_width", 0) <= LARGEST:
        raise ValueError("there are not so many parts")
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = build(
                options, input_kind=spec.kind, shape=spec.shape, vocabulary=len(spec.vocabulary), classes=classes,
                head=about["head"], unit=about["kind"] == "single", seed=0, parts=about.get("parts", 1),
                vectors_CP=None if width is None else torch.zeros(classes, width),
                concept_width=about.get("concept_width", 0),
            )  # fmt: skip
        messages.fill(model.state_dict(), weights)  # the same names, shapes and types
    model.load_state_dict(weights)
    return spec, model
