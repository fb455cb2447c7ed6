"""First values of a network beside its drawn ones: vectors of the class names, and weights on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from anchorfl.models.concepts import ConceptRequest, check_available, load_concepts
from anchorfl.models.label_encoder import LabelEncoderSpec
from anchorfl.models.label_names import NameGraph, from_cooccurrence, random_vectors, read_table
from anchorfl.models.language import from_language_model
from anchorfl.models.start import StartError, read_start
from anchorfl.models.text_encoders import OwnEncoder
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.seeds import numpy_rng, seed_for
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.networks import find_label_encoder
from anchorfl.pipeline.config.text_encoders import find_own_encoder
from anchorfl.pipeline.terminal import Log
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.plugins import code_digest, packages_of
from anchorfl.tasks.registry import task_of


def name_vectors(experiment: Experiment, prepared: Prepared, log: Log) -> Tensor | None:
    """Return the first values of the class embeddings [C, P]; None where the method has none, or a language model makes
    them in every step.
    """
    if not experiment.method.head.named or experiment.class_embeddings.lora_rank:
        return None
    options, cache = experiment.class_embeddings, Path(prepared.folder).parent
    names, seed = prepared.manifest.class_names, seed_for(experiment.seed, "class names")
    if options.init == "random" or not experiment.method.head.semantic:
        return random_vectors(names, options.width, seed)
    if options.init == "language_model":
        return from_language_model(
            names, model=own_encoder(experiment) or options.encoder, prompts=options.templates,
            normalize=options.normalize, pooling=options.pooling, cache=cache, log=log,
        ).vectors_CD  # fmt: skip
    table, table_names = cooccurrence_table(experiment, names)
    trained = from_cooccurrence(table, table_names, width=options.width, seed=seed, cache=cache, log=log)
    if random := [n for n, in_table in zip(names, table_names, strict=True) if in_table in trained.without_edge]:
        log(f"class names without any co-occurrence keep a random vector: {', '.join(random)}")
    return trained.vectors_CD


def cooccurrence_table(experiment: Experiment, names: Sequence[str]) -> tuple[NameGraph, list[str]]:
    """Return the co-occurrence table of a run, and its names of the classes. InputError where there is no such file."""
    hint = (
        " (docs/label-names.md says where to get it, or how to make one); --class_embeddings.init random does without"
    )
    table = read_table(_file("class_embeddings.table", experiment.class_embeddings.table, hint))
    task_names = task_of(experiment.task).table_names
    return table, [task_names[name] if name not in table.names and name in task_names else name for name in names]


def encoder_start(experiment: Experiment, log: Log) -> dict[str, Tensor] | None:
    """Return the encoder's first values out of ``model.weights``; None where it names no file."""
    if not experiment.model.weights:
        if experiment.model.norm == "frozen":
            raise InputError(
                "model.norm = 'frozen' needs statistics to keep: set model.weights, or model.norm to 'group'"
            )
        return None
    path = _file("model.weights", experiment.model.weights, " (docs/networks.md says what it holds)")
    try:
        values = read_start(path)
    except StartError as error:
        raise InputError(f"model.weights: {error}") from error
    log(f"the encoder starts from {path}: {len(values)} tensors, checksum {messages.checksum(values)[:12]}")
    return values


def _file(option: str, name: str, hint: str) -> Path:
    for path in (Path(name), Path(os.environ.get("ANCHORFL_DATA", ".")) / name):
        if path.is_file():
            return path
    raise InputError(f"{option} = {name!r}: no such file, nor below $ANCHORFL_DATA{hint}")


def concept_vectors(experiment: Experiment, prepared: Prepared, log: Log) -> Tensor | None:
    """Return vectors of length 1 of M prompts with each class [C, M, D]; None where the method does without.

    They are kept beside the prepared data, for all prompts at once: a share of them is cut out afterwards. Raises
    InputError where the options do not say what to encode, NamesError where it cannot be encoded.
    """
    if not experiment.method.head.concepts:
        return None
    request = concept_request(experiment, prepared.manifest.class_names)
    concepts = load_concepts(request, Path(prepared.folder).parent, log, own_encoder(experiment))
    index_M = draw_prompts(len(request.prompts), experiment.class_embeddings.prompt_fraction, experiment.seed)
    vectors_CMD = concepts.vectors_CMD[:, index_M].contiguous()
    classes, prompts, width = vectors_CMD.shape
    checksum = messages.checksum({"concepts": vectors_CMD})[:12]
    log(f"class concepts: {classes} classes, {prompts} prompts, width {width}, checksum {checksum}")
    log(f"they are by {experiment.class_embeddings.encoder}, {concepts.made_by}")
    return vectors_CMD


def check_encoder(experiment: Experiment) -> None:
    """Raise NamesError where the run will lack its text encoder, before its data are prepared; not where only the raw
    files say which classes there are.
    """
    if experiment.method.head.prompt_length is not None and experiment.class_embeddings.encoder:
        find_label_encoder(experiment.class_embeddings.encoder)
    names = task_of(experiment.task).class_names
    if not experiment.method.head.concepts or own_encoder(experiment):
        return
    if names and not object_store.is_remote(experiment.task.cache):
        check_available(concept_request(experiment, names), cache_root(experiment.task.cache))


def concept_request(experiment: Experiment, class_names: tuple[str, ...]) -> ConceptRequest:
    """Return the request of a run to its text encoder. Raises InputError without a model, or without prompts."""
    if not experiment.class_embeddings.encoder:
        raise InputError(
            f"method {experiment.method.name!r} needs a text encoder: set class_embeddings.encoder to a folder or hub"
            " name (pip install 'anchorfl[plm]') or to open_clip:..., see docs/concepts.md"
        )
    task = task_of(experiment.task)
    wording, prompts = task.wording, experiment.class_embeddings.templates
    if prompts == ("{name}",):  # the default: nobody asked for anything
        if wording is None:
            raise InputError(
                f"task {task.name!r} has no prompts of its own: set class_embeddings.prompts, sentences with {{name}}"
                " and | between them, for example 'a recording of {name} | {name} in a recording'"
            )
        prompts = wording.prompts()
    words = class_names if wording is None else wording.of(class_names)
    options, own = experiment.class_embeddings, own_encoder(experiment)
    model = f"{own.name}, {own.version}" if own else options.encoder
    return ConceptRequest(words, prompts, model, options.pooling)


def prompted_spec(experiment: Experiment, class_names: tuple[str, ...]) -> LabelEncoderSpec:
    """Return what a text encoder with trained prompts is made from: words and templates are those of class concepts.
    InputError where the options do not say, or the encoder is not on this machine.
    """
    options, request = experiment.class_embeddings, concept_request(experiment, class_names)
    folder = find_label_encoder(options.encoder).files[0].parent
    return LabelEncoderSpec(str(folder), request.words, request.prompts, options.pooling, options.normalize, 0)


def own_encoder(experiment: Experiment) -> OwnEncoder | None:
    """Return the text encoder of a plug-in; None where the run has none."""
    found = find_own_encoder(experiment.class_embeddings)
    if found is None:
        return None
    version = " ".join([*packages_of(found), f"sha256 {code_digest(found)}"])
    return OwnEncoder(experiment.class_embeddings.encoder, found, version)


def draw_prompts(prompts: int, share: float, seed: int) -> list[int]:
    """Return the indices of the prompts that a run uses, ascending: the first ``ceil(share * prompts)`` of an order
    drawn from the run's seed, so that with one seed a smaller share is a part of a larger one.
    """
    count = math.ceil(round(share * prompts, 9))  # 0.07 * 100 is a little above 7
    order: list[int] = numpy_rng(seed, "prompts").permutation(prompts).tolist()
    return sorted(order[:count])
