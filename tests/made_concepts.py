"""Class concepts that nobody encoded, and a text encoder made here, for tests of methods that need some."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from anchorfl.models.concepts import save_concepts
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.training.class_vectors import concept_request
from anchorfl.tasks.registry import task_of
from tests.tiny_bert import saved_bert

WIDTH = 6


def with_encoder(e: Experiment) -> Experiment:
    """Give an experiment what its method asks of a text encoder, where it has none."""
    if e.class_embeddings.encoder:
        return e
    if e.method.head.prompt_length is not None:
        return with_texts(e)
    return with_concepts(e) if e.method.head.concepts else e


def with_texts(e: Experiment) -> Experiment:
    """Give an experiment the tiny BERT, which knows the class names of its task."""
    names = task_of(e.task).class_names
    folder = Path(os.environ["ANCHORFL_CACHE"]) / f"bert-{e.task.name}"
    if not folder.exists():
        saved_bert(folder, words=sorted({name.lower() for name in names}))
    embeddings = dataclasses.replace(e.class_embeddings, encoder=str(folder), prompts="a {name} | of {name} .")
    return dataclasses.replace(e, class_embeddings=embeddings)


def with_label_encoder(e: Experiment) -> Experiment:
    """Give an experiment of FedAlign the tiny BERT as its label encoder, of which adapters are trained."""
    e = with_texts(e)
    return dataclasses.replace(
        e, class_embeddings=dataclasses.replace(e.class_embeddings, init="language_model", lora_rank=2)
    )


def with_concepts(e: Experiment) -> Experiment:
    """Give an experiment prompts of its own and a text encoder whose random vectors lie in the cache."""
    prompts = "a {name} | one {name} | the {name} | {name}"
    embeddings = dataclasses.replace(e.class_embeddings, encoder="made-up/encoder", prompts=prompts)
    e = dataclasses.replace(e, class_embeddings=embeddings)
    asked = concept_request(e, task_of(e.task).class_names)
    vector_CMD = np.random.default_rng(5).standard_normal((len(asked.words), 4, WIDTH))
    vector_CMD /= np.linalg.norm(vector_CMD, axis=2, keepdims=True)
    cache = Path(os.environ["ANCHORFL_CACHE"])
    cache.mkdir(parents=True, exist_ok=True)
    save_concepts(asked, asked.file(cache), vector_CMD.astype(np.float32), "made up", lambda line: None)
    return e
