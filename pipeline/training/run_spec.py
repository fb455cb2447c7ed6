"""A run before its first round: all that server and clients are built from, as one small value for every actor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.models.adapters import frozen_of
from anchorfl.models.build import build
from anchorfl.models.classifier import Classifier
from anchorfl.models.label_encoder import LabelEncoderSpec
from anchorfl.models.lower_precision import use_bfloat16
from anchorfl.models.onednn import use_onednn
from anchorfl.models.prompted_texts import PromptedTexts
from anchorfl.pipeline.algorithm.messages import checksum
from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.networks import find_label_encoder, find_network
from anchorfl.pipeline.training.class_vectors import prompted_spec
from anchorfl.pipeline.training.local_training import TrainingSpec
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.ingest.prepared import Prepared


@dataclass(frozen=True)
class RunSpec:
    """The specification of a run."""

    experiment: Experiment
    prepared: str
    """Folder of the prepared data."""
    vectors_CP: Tensor | None
    """First values of the class embeddings, in order of the class names; None where there is no table of them."""
    start: dict[str, Tensor] | None = None
    """The encoder's first values; None where they are drawn."""
    concepts_CMD: Tensor | None = None
    """Class concepts by a text encoder; None where the method does without."""

    def data(self) -> Prepared:
        """Return the prepared data, whose rows are read lazily."""
        return Prepared.of_process(self.prepared)

    def vectors(self) -> dict[str, str]:
        """Return checksums of class-name vectors, concepts and frozen weights: options say how they are made, not what
        came of it.
        """
        vectors = {"names_digest": self.vectors_CP, "concepts_digest": self.concepts_CMD}
        digests = {name: checksum({"vectors": value}) for name, value in vectors.items() if value is not None}
        if self.experiment.model.lora_rank or self.experiment.class_embeddings.lora_rank:
            digests["frozen_digest"] = checksum(frozen_of(self.model()))
        if (texts := self.texts()) is not None:
            digests["texts_digest"] = checksum(texts.state_dict())
        return digests

    def objective(self) -> Objective:
        """Return the single- or multi-label objective."""
        return Objective(self.data().manifest.kind, self.experiment.optimizer.class_balanced)

    def model(self) -> Classifier:
        """Return the network with its initial weights, the same in every process."""
        experiment, manifest = self.experiment, self.data().manifest
        spec, head = manifest.spec, experiment.method.head
        model = build(
            experiment.model, input_kind=spec.kind, shape=spec.shape, vocabulary=len(spec.vocabulary),
            classes=len(manifest.class_names), head=head.kind, parts=head.parts, scale=head.first_scale,
            unit=manifest.kind == "single" and head.unit, vectors_CP=self.vectors_CP, start=self.start,
            concept_width=0 if self.concepts_CMD is None else self.concepts_CMD.shape[2],
            network=find_network(experiment.model.network), label_encoder=self._label_encoder(),
            seed=seed_for(experiment.seed, "model"), lookup_dropout=experiment.optimizer.lookup_dropout,
        )  # fmt: skip
        if experiment.optimizer.onednn:
            use_onednn(model)
        if experiment.optimizer.precision == "bfloat16":
            use_bfloat16(model.encoder)
        return model

    def texts(self) -> PromptedTexts | None:
        """Return the text encoder whose prompts the server trains; None where the method has none. NamesError where it
        cannot do this.
        """
        length = self.experiment.method.head.prompt_length
        if length is None:
            return None
        return PromptedTexts(prompted_spec(self.experiment, self.data().manifest.class_names), length)

    def _label_encoder(self) -> LabelEncoderSpec | None:
        options = self.experiment.class_embeddings
        if not options.lora_rank:
            return None
        folder = find_label_encoder(options.encoder).files[0].parent
        return LabelEncoderSpec(
            str(folder), self.data().manifest.class_names, options.templates, options.pooling, options.normalize,
            options.lora_rank,
        )  # fmt: skip

    @property
    def sums_on_workers(self) -> bool:
        """True where a worker sends one sum for several clients."""
        return self.experiment.method.sums and not self.experiment.federation.secure_aggregation

    def training(self) -> TrainingSpec:
        """Return the part of the run that all its clients share."""
        experiment, federation = self.experiment, self.experiment.federation
        return TrainingSpec(
            experiment.method, self.objective(), experiment.optimizer, federation.epochs, experiment.seed,
            federation.steps,
        )  # fmt: skip


def one_thread() -> None:
    """Use one intra-op thread: the order of float additions, and so the bits, do not depend on load or cores then."""
    torch.set_num_threads(1)
