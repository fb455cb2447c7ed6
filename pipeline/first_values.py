"""What a network starts from, beside its seed: vectors of the class names, and weights on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from models.label_names import Cooccurrence, from_cooccurrence, random_vectors, read_table
from models.language import from_language_model
from models.start import StartError, read_start
from pipeline import tree
from pipeline.experiment import Experiment
from pipeline.seeds import seed_for
from tasks.contract import InputError
from tasks.sources import task_of
from tasks.store import Prepared

Say = Callable[[str], None]


def name_vectors(e: Experiment, prepared: Prepared, say: Say) -> Tensor | None:
    """The first values of the class embeddings [C, P], None where the method has none."""
    if e.method.head != "label":
        return None
    names, seed = prepared.manifest.class_names, seed_for(e.seed, "class names")
    if e.model.names == "random" or not e.method.semantic:
        return random_vectors(names, e.model.names_width, seed)
    cache = Path(prepared.folder).parent
    if e.model.names == "language_model":
        model, prompts, normalise = e.model.names_model, e.model.prompts, e.model.names_normalise
        return from_language_model(
            names, model=model, prompts=prompts, normalise=normalise, pooling=e.model.names_pooling, cache=cache,
            log=say,
        ).vectors_CD  # fmt: skip
    table, known = names_table(e, names)
    got = from_cooccurrence(table, known, width=e.model.names_width, seed=seed, cache=cache, log=say)
    alone = [name for name, found in zip(names, known, strict=True) if found in got.without_edge]
    if alone:
        say(f"class names without any co-occurrence keep a random vector: {', '.join(alone)}")
    return got.vectors_CD


def names_table(e: Experiment, names: Sequence[str]) -> tuple[Cooccurrence, list[str]]:
    """The co-occurrence table of a run, and what it calls the classes. InputError where there is no such file."""
    table, others = read_table(_table(e)), task_of(e.task).table_names
    return table, [others[name] if name not in table.names and name in others else name for name in names]


def _table(e: Experiment) -> Path:
    mend = " (docs/label-names.md says where to get it, or how to make one); --model.names random does without"
    return _file("names_table", e.model.names_table, mend)


def encoder_start(e: Experiment, say: Say) -> dict[str, Tensor] | None:
    """The encoder's first values out of ``model.weights``, None where it names no file."""
    if not e.model.weights:
        if e.model.norm == "frozen":
            raise InputError(
                "model.norm = 'frozen' needs statistics to keep: set model.weights, or model.norm to 'group'"
            )
        return None
    path = _file("weights", e.model.weights, " (docs/networks.md says what it holds)")
    try:
        values = read_start(path)
    except StartError as error:
        raise InputError(f"model.weights: {error}") from error
    say(f"the encoder starts from {path}: {len(values)} tensors, checksum {tree.checksum(values)[:12]}")
    return values


def _file(option: str, name: str, mend: str) -> Path:
    for place in (Path(name), Path(os.environ.get("ANCHORFL_DATA", ".")) / name):
        if place.is_file():
            return place
    raise InputError(f"model.{option} = {name!r}: no such file, nor below $ANCHORFL_DATA{mend}")
