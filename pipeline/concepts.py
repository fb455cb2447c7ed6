"""The class concepts of a run: a text encoder, the task's prompts and words, and which share of the prompts."""

from __future__ import annotations

import math
from pathlib import Path

from torch import Tensor

from models.concepts import Asked, concepts, look_for
from pipeline import tree
from pipeline.experiment import Experiment
from pipeline.first_values import Say
from pipeline.seeds import numpy_rng
from tasks import places
from tasks.contract import InputError
from tasks.sources import task_of
from tasks.store import Prepared, cache_root


def concept_vectors(e: Experiment, prepared: Prepared, say: Say) -> Tensor | None:
    """Vectors of length 1 of M prompts with each class [C, M, D], None where the method does without.

    They are kept beside the prepared data, for all prompts at once: a share of them is cut out afterwards. Raises
    InputError where the options do not say what to encode, NamesError where it cannot be encoded.
    """
    if not e.method.concepts:
        return None
    asked = asked_of(e, prepared.manifest.class_names)
    found = concepts(asked, Path(prepared.folder).parent, say)
    chosen = share_of(len(asked.prompts), e.model.names_share, e.seed)
    vectors_CMD = found.vectors_CMD[:, chosen].contiguous()
    classes, prompts, width = vectors_CMD.shape
    checksum = tree.checksum({"concepts": vectors_CMD})[:12]
    say(f"class concepts: {classes} classes, {prompts} prompts, width {width}, checksum {checksum}")
    say(f"they are by {e.model.names_model}, {found.made_by}")
    return vectors_CMD


def look_for_encoder(e: Experiment) -> None:
    """NamesError where the run will lack its text encoder, before its data are prepared. Where only the raw files say
    which classes there are, it is told afterwards.
    """
    names = task_of(e.task).class_names
    if e.method.concepts and names and not places.is_remote(e.task.cache):
        look_for(asked_of(e, names), cache_root(e.task.cache))


def asked_of(e: Experiment, class_names: tuple[str, ...]) -> Asked:
    """What a run asks of its text encoder. Raises InputError without a model, or without prompts."""
    if not e.model.names_model:
        raise InputError(
            f"method {e.method.name!r} needs a text encoder: set model.names_model to a folder or hub name"
            " (pip install 'anchorfl[plm]') or to open_clip:..., see docs/concepts.md"
        )
    task = task_of(e.task)
    own, asked = task.wording, e.model.prompts
    if asked == ("{name}",):  # the default: nobody asked for anything
        if own is None:
            raise InputError(
                f"task {task.name!r} has no prompts of its own: set model.names_prompts, sentences with {{name}} and |"
                " between them, for example 'a recording of {name} | {name} in a recording'"
            )
        asked = own.prompts()
    words = class_names if own is None else own.of(class_names)
    return Asked(words, asked, e.model.names_model, e.model.names_pooling)


def share_of(prompts: int, share: float, seed: int) -> list[int]:
    """Places of the prompts that a run uses, ascending: the first ``ceil(share * prompts)`` of an order drawn from the
    run's seed, so that with one seed a smaller share is a part of a larger one.
    """
    some = math.ceil(round(share * prompts, 9))  # 0.07 * 100 is a little above 7
    order: list[int] = numpy_rng(seed, "prompts").permutation(prompts).tolist()
    return sorted(order[:some])
