"""Class concepts that nobody encoded, for tests of methods that need some."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from anchorfl.models.concepts import save_concepts
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.training.class_vectors import concept_request
from anchorfl.tasks.registry import task_of

WIDTH = 6


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
