"""The trained model on disk: weights as safetensors, and beside them what it takes to use them without the data."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors.torch import save
from torch import Tensor

from anchorfl.models.adapters import frozen_of
from anchorfl.models.build import Head, build
from anchorfl.models.classifier import Classifier
from anchorfl.models.encoders.plug_in import MakeEncoder
from anchorfl.models.heads import AnchorHead
from anchorfl.models.options import ModelOptions
from anchorfl.models.weight_files import WeightsError, tensors
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.config.experiment import plugins_of
from anchorfl.pipeline.config.networks import find_network
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.places import check_own_code, seal_of
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.contract import InputSpec, LabelKind, Objective
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.files.json_schema import converted, parsed, type_error
from anchorfl.tasks.files.regular_files import read_text_bytes, regular
from anchorfl.tasks.metrics.scores import Metrics
from anchorfl.tasks.plugins import code_digest, packages_of
from anchorfl.tasks.registry import find_maker

FORMAT = 2
WEIGHTS, METADATA = "weights.safetensors", "model.json"
FROZEN = "frozen.safetensors"
"""Weights of the encoder that were not trained, of a model with adapters."""
CLASS_VECTORS = "class_vectors.safetensors"
"""Class representations [C, D] by a language model, which is not needed any more."""
HEAD = "head."
"""Prefix of the head's tensors in a model's weights."""
CODE_OF_MODELS = "model.network", "task.name"
"""Options of ``model.json`` that may name a module."""
TEXT = "text"
"""Input column of token models, for samples in memory."""
LARGEST = 2**31
"""Numbers of a sample's positions in the network, at most."""
NO_MODEL = "trains no global model"
"""Said of a method that is scored at its clients."""


@dataclass(frozen=True)
class SavedModel:
    """A classifier ready for use, with the names of its classes and the description of its input."""

    model: Classifier
    task: str
    class_names: tuple[str, ...]
    kind: LabelKind
    spec: InputSpec
    """Kind and shape of a sample, and its scaling."""
    metrics: Metrics = "threshold"
    """Figures by which the run was scored."""
    task_plugin: str = ""
    """``task.name`` of a plug-in's task, by which it is found; empty: ``task`` is."""
    packages: tuple[str, ...] = ()
    """Packages of plug-ins that it takes to use the model: ``fancy-fl==0.2``."""

    @property
    def objective(self) -> Objective:
        """The single- or multi-label objective of the task."""
        return Objective(self.kind)


def save_model(folder: Path, run_spec: RunSpec, weights: Tensors, metadata: dict[str, Any]) -> None:
    """Write ``weights.safetensors`` and ``model.json`` into ``folder``, ``frozen.safetensors`` for a model with
    adapters, and ``class_vectors.safetensors`` where a language model encodes the class names. metadata: facts of the
    run to keep with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest, experiment = run_spec.data().manifest, run_spec.experiment
    width = None if run_spec.vectors_CP is None else run_spec.vectors_CP.shape[1]
    language = experiment.class_embeddings.lora_rank > 0
    if language:
        width = experiment.model.width
    content = {
        "format": FORMAT,
        "task": manifest.task,
        "task_plugin": experiment.task.name if "task" in plugins_of(experiment) else "",
        "class_names": manifest.class_names,
        "kind": manifest.kind,
        "input": asdict(manifest.spec),
        "model": asdict(experiment.model),
        "head": experiment.method.head.kind,
        "parts": experiment.method.head.parts,
        "unit": experiment.method.head.unit,
        "class_embedding_width": width,
        "concept_width": 0 if run_spec.concepts_CMD is None else run_spec.concepts_CMD.shape[2],
        "metrics": experiment.evaluation.metrics,
        "checksum": messages.checksum(weights),
        "seal": seal_of(experiment, CODE_OF_MODELS),
        **metadata,
    }
    plugins = {word: of for word, of in plugins_of(experiment).items() if word in ("network", "task")}
    if plugins:
        content["code"] = {word: code_digest(of) for word, of in plugins.items()}
    if experiment.model.lora_rank:
        frozen = frozen_of(run_spec.model())
        if language:
            frozen = _without_head(frozen)
        content["frozen_checksum"] = messages.checksum(frozen)
        write_atomically(folder / FROZEN, save({k: v.contiguous() for k, v in frozen.items()}))
    if language:
        table = {HEAD + "table": _class_vectors(run_spec.model(), weights)}
        content["class_vectors_checksum"] = messages.checksum(table)
        write_atomically(folder / CLASS_VECTORS, save(table))
    write_atomically(folder / WEIGHTS, save({k: v.contiguous() for k, v in weights.items()}))
    write_atomically(folder / METADATA, json.dumps(content, indent=1).encode())


def _without_head(tensors: Tensors) -> Tensors:
    return {name: value for name, value in tensors.items() if not name.startswith(HEAD)}


@torch.no_grad()
def _class_vectors(model: Classifier, weights: Tensors) -> Tensor:
    """Return what a model's label encoder makes of the class names."""
    assert isinstance(model.head, AnchorHead)
    model.load_state_dict(weights)
    return model.head.classes()


class ModelMetadata(TypedDict):
    """The content of ``model.json``, as far as it takes to use the weights."""

    task: str
    class_names: list[str]
    kind: LabelKind
    input: dict[str, Any]
    model: dict[str, Any]
    head: Head
    class_embedding_width: int | None
    checksum: str
    parts: NotRequired[int]
    unit: NotRequired[bool]
    concept_width: NotRequired[int]
    metrics: NotRequired[Metrics]
    seal: NotRequired[str]
    task_plugin: NotRequired[str]
    code: NotRequired[dict[str, str]]
    """Digest of the source of ``network`` and ``task``, where these are plug-ins."""
    frozen_checksum: NotRequired[str]
    class_vectors_checksum: NotRequired[str]


def load_model(folder: Path, network: str = "", task: str = "") -> SavedModel:
    """Read a saved model. Raise InputError where it is missing, damaged, of another format, or names other code.

    network, task: its ``model.network`` and ``task.name``, where these are modules and this user has not trained it on
    this machine.
    """
    hint = "is the run finished? 'anchorfl resume' ends one that was interrupted"
    try:
        metadata = _read_metadata(read_text_bytes(folder / METADATA), folder / METADATA, hint)
        weights = _weights(folder / WEIGHTS, metadata["checksum"], hint)
        frozen = _weights(folder / FROZEN, stated, hint) if (stated := metadata.get("frozen_checksum")) else {}
        if stated := metadata.get("class_vectors_checksum"):
            weights = _without_head(weights) | _weights(folder / CLASS_VECTORS, stated, hint)
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no trained model ({error.filename} is missing); {hint}") from error
    named = str(metadata["model"].get("network", "auto"))
    task_plugin = metadata.get("task_plugin", "")
    code = {"model": {"network": named}, "task": {"name": task_plugin}}
    typed = {"model.network": network, "task.name": task}
    for option, given, has in (("model.network", network, named), ("task.name", task, task_plugin or metadata["task"])):
        if given not in ("", has):
            raise InputError(f"{option} = {given!r}: {folder / METADATA} names {has!r}; leave it out, or name that")
    check_own_code(code, metadata.get("seal", ""), folder / METADATA, typed)
    make_encoder = find_network(named)
    try:
        spec, model = _built(metadata, weights, frozen, make_encoder)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{folder / METADATA} does not fit {WEIGHTS} ({error}); copy the model again") from error
    names, metrics = tuple(metadata["class_names"]), metadata.get("metrics", "threshold")
    code_of = {"network": make_encoder, "task": task_plugin and find_maker(task_plugin)}
    for word, of in code_of.items():
        if of and metadata.get("code", {}).get(word, code_digest(of)) != code_digest(of):
            warnings.warn(
                f"{folder}: the source or files of its {word} were edited since the model was trained: it may compute"
                " something else",
                stacklevel=2,
            )
    packages = tuple(dict.fromkeys(name for of in code_of.values() if of for name in packages_of(of)))
    return SavedModel(model.eval(), metadata["task"], names, metadata["kind"], spec, metrics, task_plugin, packages)


def _weights(path: Path, stated: str, hint: str) -> Tensors:
    """Return the tensors of a file. InputError where it is damaged or has another checksum; FileNotFoundError."""
    try:
        weights = tensors(regular(path).read_bytes())
    except WeightsError as error:
        raise InputError(f"{path} is damaged ({error}); {hint}") from error
    if messages.checksum(weights) != stated:
        raise InputError(f"{path} does not have the checksum that {METADATA} states; copy the model again")
    return weights


def check_checksum(folder: Path, stated: str, record: Path) -> None:
    """Raise InputError where a saved model has other weights than ``record`` states."""
    try:
        found = messages.checksum(tensors(regular(folder / WEIGHTS).read_bytes()))
    except FileNotFoundError:  # deleted to save room: there is nothing that could differ
        return
    except WeightsError as error:
        raise InputError(f"{folder / WEIGHTS} is damaged ({error}); restore it from a copy") from error
    if found != stated:
        raise InputError(
            f"{record} states the checksum {stated}, and {folder / WEIGHTS} has {found}: one of them was changed;"
            " restore it from a copy"
        )


def _read_metadata(data: bytes, where: Path, hint: str) -> ModelMetadata:
    metadata = parsed(data, dict[str, Any], where, hint)
    if metadata.get("format") != FORMAT:
        raise InputError(f"{where} has format {metadata.get('format')}, this version reads {FORMAT}")
    fault = type_error(metadata, ModelMetadata) or type_error(metadata["input"], InputSpec, "input")
    fault = fault or type_error(metadata["model"], ModelOptions, "model")
    if not fault and any(map(has_controls, metadata["class_names"])):
        fault = "a class name with control characters"
    if fault:
        raise InputError(f"{where} is damaged ({fault}); {hint}")
    found: ModelMetadata = metadata
    return found


def _built(
    metadata: ModelMetadata, weights: Tensors, frozen: Tensors, make_encoder: MakeEncoder | None
) -> tuple[InputSpec, Classifier]:
    """Build the network with its weights. Raise ValueError or RuntimeError where the two do not fit.

    It is first built without memory for its values (torch's device ``meta``) and held against ``weights``: a
    description of a network of terabytes costs nothing. A plug-in's may need values to be made, and is built once.
    """
    spec: InputSpec = converted(metadata["input"], InputSpec)
    classes = len(metadata["class_names"])
    options, width = ModelOptions(**metadata["model"]), metadata["class_embedding_width"]
    if fault := spec.fault():
        raise ValueError(fault)
    if math.prod(spec.shape) * options.width > LARGEST:
        raise ValueError(f"a sample of shape {spec.shape} cannot be")
    if not 1 <= metadata.get("parts", 1) <= len(weights) or not 0 <= metadata.get("concept_width", 0) <= LARGEST:
        raise ValueError("there are not so many parts")
    for device in ("cpu",) if make_encoder else ("meta", "cpu"):
        with torch.device(device):
            model = build(
                options, input_kind=spec.kind, shape=spec.shape, vocabulary=len(spec.vocabulary), classes=classes,
                head=metadata["head"], unit=metadata["kind"] == "single" and metadata.get("unit", True), seed=0,
                parts=metadata.get("parts", 1),
                vectors_CP=None if width is None else torch.zeros(classes, width),
                concept_width=metadata.get("concept_width", 0), network=make_encoder,
            )  # fmt: skip
        messages.fill(model.state_dict(), weights)  # the same names, shapes and types
    model.load_state_dict(weights)
    if options.lora_rank:
        messages.fill(frozen_of(model), frozen)
        for name, value in frozen_of(model).items():
            value.copy_(frozen[name])
    return spec, model
