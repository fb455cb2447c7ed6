"""A run before its first round: what server and clients are built from, in one small value that travels to every
actor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.models.build import build
from anchorfl.models.classifier import Classifier
from anchorfl.models.lower_precision import use_bfloat16
from anchorfl.models.onednn import use_onednn
from anchorfl.pipeline.algorithm.messages import checksum
from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.training.local_training import TrainingSpec
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.ingest.prepared import Prepared


@dataclass(frozen=True)
class RunSpec:
    """``prepared``: folder of the prepared data; ``vectors_CP``: first values of the class embeddings, in order of
    the class names; ``start``: the encoder's first values, None where they are drawn; ``concepts_CMD``: what a language
    model makes of the class names, None where the method does without.
    """

    experiment: Experiment
    prepared: str
    vectors_CP: Tensor | None
    start: dict[str, Tensor] | None = None
    concepts_CMD: Tensor | None = None

    def data(self) -> Prepared:
        """The prepared data, read lazily."""
        return Prepared.load(self.prepared)

    def vectors(self) -> dict[str, str]:
        """Checksums of what is known of the class names beforehand: options say how it is made, not what came of it."""
        known = {"names_digest": self.vectors_CP, "concepts_digest": self.concepts_CMD}
        return {name: checksum({"vectors": value}) for name, value in known.items() if value is not None}

    def objective(self) -> Objective:
        """Single- or multi-label."""
        return Objective(self.data().manifest.kind, self.experiment.optimizer.class_balanced)

    def model(self) -> Classifier:
        """The network with its initial weights, the same in every process."""
        experiment, m = self.experiment, self.data().manifest
        model = build(
            experiment.model,
            input_kind=m.spec.kind,
            shape=m.spec.shape,
            vocabulary=len(m.spec.vocabulary),
            classes=len(m.class_names),
            head=experiment.method.head.kind,
            unit=m.kind == "single",
            vectors_CP=self.vectors_CP,
            seed=seed_for(experiment.seed, "model"),
            lookup_dropout=experiment.optimizer.lookup_dropout,
            parts=experiment.method.head.parts,
            start=self.start,
            concept_width=0 if self.concepts_CMD is None else self.concepts_CMD.shape[2],
            scale=experiment.method.head.first_scale,
        )
        if experiment.optimizer.onednn:
            use_onednn(model)
        if experiment.optimizer.precision == "bfloat16":
            use_bfloat16(model.encoder)
        return model

    def training(self) -> TrainingSpec:
        """What every client of the run shares."""
        experiment = self.experiment
        return TrainingSpec(
            experiment.method, self.objective(), experiment.optimizer, experiment.federation.epochs, experiment.seed
        )


def one_thread() -> None:
    """One intra-op thread: the order of float additions, and so the bits, then do not depend on the machine's load
    or cores.
    """
    torch.set_num_threads(1)
