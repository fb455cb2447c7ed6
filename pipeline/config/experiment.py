"""An experiment: the tree of options that a preset, the command line and a checkpoint all speak of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.evaluation import EvaluationOptions
from anchorfl.pipeline.config.federation import FederationOptions, quorum_size
from anchorfl.pipeline.config.networks import find_label_encoder, find_network
from anchorfl.pipeline.config.redaction import redact_uri
from anchorfl.pipeline.config.text_encoders import find_own_encoder
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.methods import is_shipped, method_name
from anchorfl.tasks.options import TaskOptions, table_stem
from anchorfl.tasks.plugins import TASK, code_digest, names_code, plugin_names

if TYPE_CHECKING:  # torch, which reading options does without
    from anchorfl.pipeline.algorithm.contract import Method


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Everything that a run depends on."""

    task: TaskOptions = field(default_factory=TaskOptions)
    """Data, partition, disclosure."""
    method: Method[Any, Any]
    """Hyper-parameters of the method, whose name is ``method.name`` in a preset."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """Network."""
    class_embeddings: ClassEmbeddingOptions = field(default_factory=ClassEmbeddingOptions)
    """First values of the class embeddings."""
    federation: FederationOptions = field(default_factory=FederationOptions)
    """Rounds and selection."""
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    """Local training."""
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    """Scores."""
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    """Ray."""
    tracking: TrackingOptions = field(default_factory=TrackingOptions)
    """MLflow."""
    seed: int = 0
    """Seed of the run: partition, selection, initial weights, local training."""
    output: str = ""
    """Folder of the run; empty: a new one below ``runs/``."""

    def __post_init__(self) -> None:
        unsettled = self.task.clients == 0 and self.task.partition == "one_class"  # the data will say
        if self.task.clients < 1 and not unsettled:
            raise ValueError(f"task.clients = {self.task.clients}: must be at least 1")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ValueError(f"seed = {self.seed}: records hold 64 bits; take one within them")
        if self.selected_clients > self.task.clients and not unsettled:
            raise ValueError(
                f"federation.clients_per_round = {self.federation.clients_per_round} exceeds"
                f" task.clients = {self.task.clients}: lower it"
            )
        if self.task.sites:
            for bad, hint in (
                (not (self.cluster.uses_ray and self.cluster.address), "nodes of a cluster: set cluster.address"),
                (
                    self.federation.batched_clients,
                    "their rows are in no one place: set federation.batched_clients to False",
                ),
                (
                    self.method.evaluate_on == "clients",
                    f"the rows to score clients' models of {self.method.name!r} on are the server's: choose another"
                    " method",
                ),
            ):
                if bad:
                    raise ValueError(f"task.sites = {self.task.sites!r}: {hint}")
        if self.federation.deadline and (self.cluster.executor == "serial" or self.federation.batched_clients):
            raise ValueError(
                "federation.deadline needs processes that can be ended: set cluster.executor to 'ray' or 'forked', and"
                " federation.batched_clients to false, or leave the deadline out"
            )
        if self.federation.stack != 1 and self.cluster.executor != "serial":
            raise ValueError(
                f"federation.stack = {self.federation.stack} trains clients in one process: set cluster.executor to"
                " 'serial', or federation.stack to 1"
            )
        least = quorum_size(self.federation.quorum, self.selected_clients)
        if not unsettled and (lack := self.federation.aggregator.lack(least)):
            raise ValueError(
                f"federation.aggregation = {self.federation.aggregation!r}: {lack}; federation.quorum ="
                f" {self.federation.quorum:g} of {self.selected_clients} selected clients lets a round have {least}:"
                " raise quorum or clients_per_round, or change the aggregation"
            )
        if self.model.norm == "batch" and (self.optimizer.skip_zero_rows or self.optimizer.microbatch_tokens):
            raise ValueError(
                "model.norm = 'batch' normalizes over the batch, so rows may not be left out or cut apart:"
                " set --optimizer.skip_zero_rows False --optimizer.microbatch_tokens 0"
            )
        if rank := self.class_embeddings.lora_rank:
            head = self.method.head
            if head.kind != "label":
                raise ValueError(
                    f"class_embeddings.lora_rank = {rank} is for a method with a label encoder (fedalign), and"
                    f" {self.method.name!r} has none: set it to 0"
                )
            if not head.semantic:
                raise ValueError(
                    f"class_embeddings.lora_rank = {rank} encodes the class names, of which method.semantic = False"
                    " makes no use: set one of the two otherwise"
                )
        if self.evaluation.by_validation and self.task.validation == 0:
            raise ValueError(f"{self.evaluation.by_validation} needs validation rows: set task.validation above 0")
        if self.task.client_test != "none" and self.method.evaluate_on == "clients" and self.evaluation.chosen_by:
            raise ValueError(
                f"task.client_test scores the clients' own models of {self.method.name} after the last round, and"
                f" evaluation.model_selection = {self.evaluation.model_selection!r} may select an earlier one, whose"
                " models are gone: set it to 'last'"
            )
        if self.tracking.register and self.method.evaluate_on == "clients":
            raise ValueError(f"tracking.register: {self.method.name} trains no global model to register: leave it out")

    @property
    def tested(self) -> Literal["always", "last", "never"]:
        """``evaluation.test``; but ``always`` for ``last`` where the scores are those of clients' own models and the
        selected round may be an earlier one, whose models nobody has any more.
        """
        models_lost = self.method.evaluate_on == "clients" and self.evaluation.model_selection != "last"
        return "always" if models_lost and self.evaluation.test == "last" else self.evaluation.test

    @property
    def selected_clients(self) -> int:
        """Number of clients that take part in a round."""
        return self.federation.selected(self.task.clients)


@cache
def option_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's options. Evaluated once: there are hundreds of presets, and annotations are
    text. An experiment's method is a mapping here: its class would bring torch.
    """
    return get_type_hints(kind, localns={"Method": dict})


def data_and_method(experiment: Experiment) -> str:
    """Return a name for runs: that of the data set, or of the file of a user's table, and that of the method."""
    data = table_stem(experiment.task.file) or experiment.task.name.rpartition(":")[2]
    return f"{data}-{experiment.method.name}"


def to_tree(experiment: Experiment) -> dict[str, Any]:
    """Return a plain nested dict, as a preset has it; ``from_tree`` (pipeline/config/schema.py) is its inverse."""
    tree, method = asdict(experiment), type(experiment.method)
    options = {f.name: tree["method"][f.name] for f in fields(method) if f.init}  # type: ignore[arg-type]  # it is one
    tree["method"] = {"name": method_name(method), **options}
    return tree


def redacted_tree(experiment: Experiment) -> dict[str, Any]:
    """Return ``to_tree`` as it may stand in a file: the address of the MLflow store without a password."""
    tree = to_tree(experiment)
    tree["tracking"]["uri"] = redact_uri(tree["tracking"]["uri"])
    return tree


def uses_encoder(experiment: Experiment) -> bool:
    """Return whether a run asks a text encoder: for class concepts, with trained prompts, or for class embeddings."""
    head, init = experiment.method.head, experiment.class_embeddings.init
    return (
        head.concepts or head.prompt_length is not None or (head.named and head.semantic and init == "language_model")
    )


def plugins_of(experiment: Experiment) -> dict[str, Any]:
    """Return the plug-ins of an experiment, its class, function or files by ``method``, ``network``,
    ``label_encoder``, ``text_encoder``, ``task``.
    """
    out = dict[str, Any]()
    if not is_shipped(type(experiment.method)):
        out["method"] = type(experiment.method)
    if network := find_network(experiment.model.network):
        out["network"] = network
    names = experiment.class_embeddings
    if names.lora_rank or (experiment.method.head.prompt_length is not None and names.encoder):
        out["label_encoder"] = find_label_encoder(names.encoder)
    elif uses_encoder(experiment) and (encoder := find_own_encoder(experiment.class_embeddings)):
        out["text_encoder"] = encoder
    name = "" if experiment.task.file else experiment.task.name
    if names_code(name) or name in plugin_names(TASK):
        from anchorfl.tasks.registry import find_maker  # torch

        out["task"] = find_maker(name)
    return out


EPOCH = 3
"""Part of every digest: raise it when a default changes, or the same options come to give another result."""
SAME_TO_ROUNDING = (2,)
"""Earlier epochs that differ from this one in last bits alone: a table takes in their finished runs, and says so."""
NOISE = 3
"""Part of the digests of runs with noise for privacy: raised when it comes to be drawn otherwise."""


def digest(experiment: Experiment, epoch: int = EPOCH) -> str:
    """Return the SHA-256 of all that can change a result: not where it runs, is recorded or written, or what is kept.

    Only options that differ from their defaults count, so that an option which a later version adds leaves the digests
    of finished runs as they are. Of a plug-in its source counts, too. How many clients ``one_class`` has is for the
    data to say, so it does not count: what was asked for and what was found are one experiment.
    """
    if experiment.task.partition == "one_class":
        experiment = replace(experiment, task=replace(experiment.task, clients=0))
    tree = _changed(experiment)
    tree.get("evaluation", {}).pop("save_state_every", None)
    for name in ("cluster", "tracking", "output"):
        tree.pop(name, None)
    for name in ("root", "cache"):
        tree.get("task", {}).pop(name, None)
    tree = {name: part for name, part in tree.items() if part != {}}
    tree["method"] = {"name": method_name(type(experiment.method)), **tree.get("method", {})}
    if (revision := _revision(experiment)) != 1:
        tree["method"]["revision"] = revision
    if experiment.federation.dp_noise or getattr(experiment.method, "dp_noise", 0.0):
        tree["noise"] = NOISE
    if plugins := plugins_of(experiment):
        tree["plugins"] = {word: code_digest(of) for word, of in plugins.items()}
    return hashlib.sha256(json.dumps([epoch, tree], sort_keys=True).encode()).hexdigest()


def _revision(experiment: Experiment) -> int:
    """Return the revision of an experiment's method: what a change left as it was needs no new runs."""
    method, name = experiment.method, experiment.task.name
    if not method.single_label_revision or experiment.task.file:
        return method.revision
    from anchorfl.tasks.registry import TASKS  # torch

    return method.single_label_revision if name in TASKS and TASKS[name]().kind == "single" else method.revision


def _changed(node: Any) -> dict[str, Any]:
    """Return the fields of a dataclass whose values are not the defaults, nested."""
    out: dict[str, Any] = {}
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            out[f.name] = _changed(value)
        elif f.default is MISSING or value != f.default:
            out[f.name] = value
    return out


def flat(experiment: Experiment) -> dict[str, str | int | float | bool]:
    """Return flat parameters for MLflow: the method's own have short names (q1, q2), others are ``section.name``."""
    tree = redacted_tree(experiment)
    out: dict[str, str | int | float | bool] = {"method": tree["method"].pop("name")}
    out |= tree.pop("method")
    out["task"] = tree["task"].pop("name")
    for section, values in tree.items():
        out |= {f"{section}.{k}": v for k, v in values.items()} if isinstance(values, dict) else {section: values}
    return {k: "none" if v is None else v for k, v in out.items()}
