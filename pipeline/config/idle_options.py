"""Options that were typed and do nothing beside the others: a run would have another digest, and the same bits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anchorfl.models.options import NETWORKS, library_of
from anchorfl.pipeline.config.experiment import Experiment, uses_encoder
from anchorfl.tasks.errors import InputError

ENCODER = ("encoder", "pooling", "prompts")
"""Options of [class_embeddings] that say what a text encoder makes of names."""


def idle_options(experiment: Experiment) -> dict[str, str]:
    """Return the options of an experiment that do nothing -> what they belong to, or what does it in their place.

    What only the data decide, such as an option for images or for texts, is not among them.
    """
    task, federation, init = experiment.task, experiment.federation, experiment.class_embeddings.init
    head = experiment.method.head
    named = head.named and head.semantic
    idle: dict[str, str] = {}

    def belong(to: str, here: bool, section: str, *names: str) -> None:
        if not here:
            idle.update({f"{section}.{name}": to for name in names})

    belong("task.partition dirichlet", task.partition == "dirichlet", "task", "beta")
    drawn = "k_classes" in (task.partition, task.identified)
    chosen = drawn or task.identified != "partition" or bool(task.client_classes)
    belong("task.partition k_classes or task.identified k_classes", drawn, "task", "classes_per_client")
    belong("task.partition k_classes, task.identified or task.client_classes", chosen, "task", "cover")
    belong("task.partition categories", task.partition == "categories", "task", "keep_subjects")
    krum, trims = federation.aggregation == "krum", federation.aggregation == "trimmed_mean"
    belong("federation.aggregation trimmed_mean", trims, "federation", "trim_fraction")
    belong("federation.aggregation krum", krum, "federation", "krum_num_malicious", "krum_num_selected")
    belong("federation.dp_noise", bool(federation.dp_noise), "federation", "dp_delta")
    belong("federation.batched_clients", federation.batched_clients, "federation", "batch_rows")
    alone = not federation.batched_clients  # which are computed at once, or fail at once
    belong("federation.batched_clients False", alone, "federation", "retries", "quorum", "backup_fraction")
    belong("federation.batched_clients False", alone, "optimizer", "microbatch_tokens")
    belong("federation.client_fraction 0", not federation.client_fraction, "federation", "clients_per_round")
    belong("federation.steps 0", not federation.steps, "federation", "epochs")
    network = experiment.model.network
    attends = network == "auto" or head.kind == "guided"
    belong("model.network auto", attends, "model", "heads", "feedforward")
    own_dropout = network in NETWORKS[1:] or bool(library_of(network))
    belong("model.network auto", not own_dropout or head.kind == "guided", "model", "dropout")
    belong("class_embeddings.init cooccurrence", named and init == "cooccurrence", "class_embeddings", "table")
    belong("class_embeddings.lora_rank 0", not experiment.class_embeddings.lora_rank, "method", "aggregate_pseudo")
    belong("class_embeddings.init language_model", uses_encoder(experiment), "class_embeddings", *ENCODER)
    concepts = head.concepts and not (named and init == "language_model")  # they have length 1 in any case
    normalizes = uses_encoder(experiment) and not concepts
    belong("class_embeddings.init language_model", normalizes, "class_embeddings", "normalize")
    belong("a method with class concepts (fedbm)", head.concepts, "class_embeddings", "prompt_fraction")
    belong("a method with class embeddings from names (fedalign)", named, "class_embeddings", "init", "table")
    return idle | dict(experiment.method.unused)


def check_idle(typed: Collection[str], experiments: Sequence[Experiment]) -> None:
    """Raise InputError where an option that was typed for several experiments changes nothing in any but the digest."""
    idle = [idle_options(experiment) for experiment in experiments]
    for option, to in idle[0].items():
        if option in typed and all(option in others for others in idle):
            raise InputError(f"--{option} does nothing here, it belongs to {to}: leave it out, or set that")
