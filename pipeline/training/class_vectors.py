"""What a network starts from, beside its seed: vectors of the class names, and weights on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from anchorfl.models.concepts import ConceptRequest, check_available, load_concepts
from anchorfl.models.label_names import NameGraph, from_cooccurrence, random_vectors, read_table
from anchorfl.models.language import from_language_model
from anchorfl.models.start import StartError, read_start
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.seeds import numpy_rng, seed_for
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.ingest.prepared import Prepared, cache_root
from anchorfl.tasks.registry import task_of

Log = Callable[[str], None]


def name_vectors(experiment: Experiment, prepared: Prepared, log: Log) -> Tensor | None:
    """The first values of the class embeddings [C, P], None where the method has none."""
    if experiment.method.head.kind != "label":
        return None
    names, seed = prepared.manifest.class_names, seed_for(experiment.seed, "class names")
    if experiment.class_embeddings.init == "random" or not experiment.method.head.semantic:
        return random_vectors(names, experiment.class_embeddings.width, seed)
    cache = Path(prepared.folder).parent
    if experiment.class_embeddings.init == "language_model":
        model, prompts, normalize = (
            experiment.class_embeddings.encoder,
            experiment.class_embeddings.templates,
            experiment.class_embeddings.normalize,
        )
        return from_language_model(
            names, model=model, prompts=prompts, normalize=normalize, pooling=experiment.class_embeddings.pooling,
            cache=cache,
            log=log,
        ).vectors_CD  # fmt: skip
    table, known = cooccurrence_table(experiment, names)
    got = from_cooccurrence(table, known, width=experiment.class_embeddings.width, seed=seed, cache=cache, log=log)
    alone = [name for name, found in zip(names, known, strict=True) if found in got.without_edge]
    if alone:
        log(f"class names without any co-occurrence keep a random vector: {', '.join(alone)}")
    return got.vectors_CD


def cooccurrence_table(experiment: Experiment, names: Sequence[str]) -> tuple[NameGraph, list[str]]:
    """The co-occurrence table of a run, and what it calls the classes. InputError where there is no such file."""
    table, others = read_table(_table(experiment)), task_of(experiment.task).table_names
    return table, [others[name] if name not in table.names and name in others else name for name in names]


def _table(experiment: Experiment) -> Path:
    hint = (
        " (docs/label-names.md says where to get it, or how to make one); --class_embeddings.init random does without"
    )
    return _file("class_embeddings.table", experiment.class_embeddings.table, hint)


def encoder_start(experiment: Experiment, log: Log) -> dict[str, Tensor] | None:
    """The encoder's first values out of ``model.weights``, None where it names no file."""
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
    for place in (Path(name), Path(os.environ.get("ANCHORFL_DATA", ".")) / name):
        if place.is_file():
            return place
    raise InputError(f"{option} = {name!r}: no such file, nor below $ANCHORFL_DATA{hint}")


def concept_vectors(experiment: Experiment, prepared: Prepared, log: Log) -> Tensor | None:
    """Vectors of length 1 of M prompts with each class [C, M, D], None where the method does without.

    They are kept beside the prepared data, for all prompts at once: a share of them is cut out afterwards. Raises
    InputError where the options do not say what to encode, NamesError where it cannot be encoded.
    """
    if not experiment.method.head.concepts:
        return None
    asked = concept_request(experiment, prepared.manifest.class_names)
    found = load_concepts(asked, Path(prepared.folder).parent, log)
    chosen = draw_prompts(len(asked.prompts), experiment.class_embeddings.prompt_fraction, experiment.seed)
    vectors_CMD = found.vectors_CMD[:, chosen].contiguous()
    classes, prompts, width = vectors_CMD.shape
    checksum = messages.checksum({"concepts": vectors_CMD})[:12]
    log(f"class concepts: {classes} classes, {prompts} prompts, width {width}, checksum {checksum}")
    log(f"they are by {experiment.class_embeddings.encoder}, {found.made_by}")
    return vectors_CMD


def check_encoder(experiment: Experiment) -> None:
    """NamesError where the run will lack its text encoder, before its data are prepared. Where only the raw files say
    which classes there are, it is told afterwards.
    """
    names = task_of(experiment.task).class_names
    if experiment.method.head.concepts and names and not object_store.is_remote(experiment.task.cache):
        check_available(concept_request(experiment, names), cache_root(experiment.task.cache))


def concept_request(experiment: Experiment, class_names: tuple[str, ...]) -> ConceptRequest:
    """What a run asks of its text encoder. Raises InputError without a model, or without prompts."""
    if not experiment.class_embeddings.encoder:
        raise InputError(
            f"method {experiment.method.name!r} needs a text encoder: set class_embeddings.encoder to a folder or hub"
            " name (pip install 'anchorfl[plm]') or to open_clip:..., see docs/concepts.md"
        )
    task = task_of(experiment.task)
    own, asked = task.wording, experiment.class_embeddings.templates
    if asked == ("{name}",):  # the default: nobody asked for anything
        if own is None:
            raise InputError(
                f"task {task.name!r} has no prompts of its own: set class_embeddings.prompts, sentences with {{name}}"
                " and | between them, for example 'a recording of {name} | {name} in a recording'"
            )
        asked = own.prompts()
    words = class_names if own is None else own.of(class_names)
    return ConceptRequest(words, asked, experiment.class_embeddings.encoder, experiment.class_embeddings.pooling)


def draw_prompts(prompts: int, share: float, seed: int) -> list[int]:
    """Places of the prompts that a run uses, ascending: the first ``ceil(share * prompts)`` of an order drawn from the
    run's seed, so that with one seed a smaller share is a part of a larger one.
    """
    some = math.ceil(round(share * prompts, 9))  # 0.07 * 100 is a little above 7
    order: list[int] = numpy_rng(seed, "prompts").permutation(prompts).tolist()
    return sorted(order[:some])
