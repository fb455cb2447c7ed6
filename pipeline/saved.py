"""The trained model on disk: weights as safetensors, and beside them what it takes to use them without the data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from models.build import ModelOptions, build
from models.classifier import Classifier
from pipeline import tree
from pipeline.checkpoint import write_atomically
from pipeline.contract import Tensors
from pipeline.setup import Setup
from tasks.contract import InputError, InputSpec, Kind, Objective
from tasks.metrics import Metrics

FORMAT = 1
WEIGHTS, ABOUT = "weights.safetensors", "model.json"
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
    metrics: Metrics = "decisions"
    """By which figures the run was scored."""

    @property
    def objective(self) -> Objective:
        """Single- or multi-label."""
        return Objective(self.kind)


def save_model(folder: Path, setup: Setup, weights: Tensors, about: dict[str, Any]) -> None:
    """Write ``weights.safetensors`` and ``model.json`` into ``folder``; ``about``: facts of the run to keep with it."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest, e = setup.data().manifest, setup.experiment
    content = {
        "format": FORMAT,
        "task": manifest.task,
        "class_names": manifest.class_names,
        "kind": manifest.kind,
        "input": asdict(manifest.spec),
        "model": asdict(e.model),
        "head": e.method.head,
        "parts": e.method.parts,
        "names_width": None if setup.vectors_CP is None else setup.vectors_CP.shape[1],
        "concept_width": 0 if setup.concepts_CMD is None else setup.concepts_CMD.shape[2],
        "metrics": e.evaluation.metrics,
        "checksum": tree.checksum(weights),
        **about,
    }
    write_atomically(folder / WEIGHTS, save({k: v.contiguous() for k, v in weights.items()}))
    write_atomically(folder / ABOUT, json.dumps(content, indent=1).encode())


def load_model(folder: Path) -> SavedModel:
    """Read a saved model, or InputError: missing, damaged, or of another format."""
    mend = "is the run finished? 'anchorfl resume' ends one that was interrupted"
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        weights: dict[str, Tensor] = load((folder / WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no trained model ({error.filename} is missing); {mend}") from error
    except (ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: the model is damaged ({error}); {mend}") from error
    if about.get("format") != FORMAT:
        raise InputError(f"{folder / ABOUT} has format {about.get('format')}, this version reads {FORMAT}")
    if tree.checksum(weights) != about["checksum"]:
        raise InputError(f"{folder / WEIGHTS} does not have the checksum that {ABOUT} states; copy the model again")
    spec = InputSpec.of(about["input"])
    width = about["names_width"]
    model = build(
        ModelOptions(**about["model"]),
        input_kind=spec.kind,
        shape=spec.shape,
        vocabulary=len(spec.vocabulary),
        classes=len(about["class_names"]),
        head=about["head"],
        unit=about["kind"] == "single",
        vectors_CP=None if width is None else torch.zeros(len(about["class_names"]), width),
        seed=0,
        parts=about.get("parts", 1),
        concept_width=about.get("concept_width", 0),
    )
    model.load_state_dict(weights)
    names, metrics = tuple(about["class_names"]), about.get("metrics", "decisions")
    return SavedModel(model.eval(), about["task"], names, about["kind"], spec, metrics)
