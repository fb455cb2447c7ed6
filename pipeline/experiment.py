"""One experiment: the tree of options that a preset, the command line and a checkpoint all speak of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from models.build import ModelOptions
from pipeline.contract import Method
from pipeline.federation import FederationOptions
from pipeline.optimizers import OptimizerOptions
from pipeline.sampling import needed
from pipeline.stores import recorded
from pipeline.tracking import TrackingOptions
from tasks import places
from tasks.contract import TaskOptions
from tasks.metrics import F1_MACRO, FAMILIES, SUM, Measure, Metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationOptions:
    """What is scored, and which round's model is the result."""

    metrics: Metrics = "decisions"
    """Which figures: ``decisions``, macro F1 and accuracy of 0/1 decisions (FedAlign's tables); ``ranking``, P@k,
    nDCG@k, PSP@k and mAP of the order of the classes (FedALC's); ``classification``, single-label: ``decisions``,
    macro precision and recall, AUC and their sum (FedBM's; docs/metrics.md)."""
    every: int = 1
    """Score the global model every so many rounds, and after the last."""
    select: Literal["last", "best_validation", "best_validation_f1", "best_validation_sum"] = "last"
    """``last``: the last round's model (FedAlign's tables); ``best_validation``: the first with the best validation
    macro F1, or P@1 of ``ranking``; ``best_validation_f1``, ``best_validation_sum``: by the figure of that name, the
    sum of ``classification`` (FedBM's tables)."""
    test: Literal["always", "last", "never"] = "always"
    """When the test split is scored: ``always``, with validation; ``last``, once, for the selected model (where clients
    are scored and a round is selected: with validation); ``never`` (trials of a sweep: what is not computed cannot be
    chosen by)."""
    keep: int = 0
    """Keep the server's state after every so many rounds, and after the last, in ``rounds/`` of the run folder, for
    ``anchorfl diagnose``; 0: none. It changes no result."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"evaluation.every = {self.every}: must be at least 1")
        if self.keep < 0:
            raise ValueError(f"evaluation.keep = {self.keep}: must be at least 0")
        by = self.chosen_by
        if by is not None and by not in FAMILIES[self.metrics].measures:
            having = [name for name, family in FAMILIES.items() if by in family.measures]
            raise ValueError(
                f"evaluation.select = {self.select!r}: runs with evaluation.metrics = {self.metrics!r} have no"
                f" {by.shown}; set metrics to {' or '.join(map(repr, having))}, or select to 'best_validation'"
            )

    @property
    def chosen_by(self) -> Measure | None:
        """The figure of the validation split by which a round is chosen; None where it is the last."""
        if self.select == "last":
            return None
        named = {"best_validation_f1": F1_MACRO, "best_validation_sum": SUM}
        return named.get(self.select, FAMILIES[self.metrics].primary)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOptions:
    """Where clients run. No option here changes a result, but for GPUs: they round otherwise, and draw other dropout
    masks.
    """

    executor: Literal["ray", "serial"] = "ray"
    """``ray``: client actors and a server actor; ``serial``: all in this process (debugger, tests, reference)."""
    address: str = ""
    """Empty: a Ray of its own on loopback; ``auto``: the running cluster; or an address for ``ray.init``."""
    clients_per_actor: int = 0
    """Clients that share an actor; 0: one each for up to 32 clients, above that as many actors as CPUs. An actor starts
    when it is needed, and one that is idle takes over other clients sooner than that."""
    client_cpus: float = 0.0
    """CPU share of a client actor; 0: the CPUs of the cluster shared out evenly."""
    client_gpus: float = 0.0
    """GPU share of a client actor, for example 0.25; the actor limits itself to that part of the memory."""
    server_gpus: float = 0.0
    """GPU share of the server actor."""
    cached_mb: float = 1000.0
    """Megabytes of clients' rows that a worker keeps from round to round, on a GPU in its memory; those that have not
    been trained for longest are read again."""
    concurrent: int = 0
    """Clients that train at one time; 0: one per CPU of the cluster."""
    gather_cpus: int = 0
    """CPUs to ask a running cluster's autoscaler for, and to wait for, before anything starts; 0: what is there."""
    gather_gpus: int = 0
    """GPUs likewise."""
    gather_minutes: float = 20.0
    """Longest wait for them."""
    checkpoint_every: int = 1
    """Save a checkpoint after every so many rounds, and after the last; a resumed run computes the rounds behind it
    again, with the same bits."""
    checkpoints: int = 2
    """How many of them are kept: where the last one is damaged, a run goes on from the one before."""
    mirror: str = ""
    """Where a copy of the run folder is kept up to date, below which it has the folder's name: ``s3://bucket/runs``,
    ``gs://...`` or the absolute path of a folder; empty: no copy."""

    def __post_init__(self) -> None:
        if self.mirror:
            places.check(self.mirror, "cluster.mirror")
        for name in ("clients_per_actor", "cached_mb", "concurrent", "gather_cpus", "gather_gpus", "gather_minutes"):
            if getattr(self, name) < 0:
                raise ValueError(f"cluster.{name} = {getattr(self, name)}: must be at least 0")
        for name in ("checkpoint_every", "checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"cluster.{name} = {getattr(self, name)}: must be at least 1")
        if (self.gather_cpus or self.gather_gpus) and not self.address:
            raise ValueError("cluster.gather_cpus and gather_gpus need a running cluster: set cluster.address")
        if self.client_cpus < 0 or not 0 <= self.client_gpus <= 1 or not 0 <= self.server_gpus <= 1:
            raise ValueError("cluster: client_cpus must be at least 0, client_gpus and server_gpus in [0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Everything that a run depends on."""

    task: TaskOptions = field(default_factory=TaskOptions)
    """Data, partition, disclosure."""
    method: Method[Any, Any]
    """Hyper-parameters of the method, whose name is ``method.name`` in a preset."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """Network."""
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
        if self.selected_clients > self.task.clients and not unsettled:
            raise ValueError(
                f"federation.clients_per_round = {self.federation.clients_per_round} exceeds"
                f" task.clients = {self.task.clients}: lower it"
            )
        if self.federation.deadline and (self.cluster.executor == "serial" or self.federation.pooled):
            raise ValueError(
                "federation.deadline needs client actors, which can be ended: set cluster.executor to 'ray' and"
                " federation.pooled to false, or leave the deadline out"
            )
        least = needed(self.federation.quorum, self.selected_clients)
        if not unsettled and (lack := self.federation.rule.lack(least)):
            raise ValueError(
                f"federation.merge = {self.federation.merge!r}: {lack}; federation.quorum = {self.federation.quorum:g}"
                f" of {self.selected_clients} selected clients lets a round have {least}: raise quorum or"
                " clients_per_round, or change the merge"
            )
        if self.model.norm == "batch" and (self.optimizer.skip_zero_rows or self.optimizer.micro_tokens):
            raise ValueError(
                "model.norm = 'batch' normalises over the batch, so rows may not be left out or cut apart:"
                " set --optimizer.skip_zero_rows False --optimizer.micro_tokens 0"
            )
        if self.evaluation.chosen_by is not None and self.task.validation == 0:
            raise ValueError(
                f"evaluation.select = {self.evaluation.select!r} needs validation rows: set task.validation above 0"
            )
        if self.tracking.register and self.method.scored == "clients":
            raise ValueError(f"tracking.register: {self.method.name} trains no global model to register: leave it out")

    @property
    def tested(self) -> Literal["always", "last", "never"]:
        """``evaluation.test``; but ``always`` for ``last`` where the scores are those of clients' own models and the
        selected round may be an earlier one, whose models nobody has any more.
        """
        gone = self.method.scored == "clients" and self.evaluation.select != "last"
        return "always" if gone and self.evaluation.test == "last" else self.evaluation.test

    @property
    def selected_clients(self) -> int:
        """How many clients take part in a round."""
        return self.federation.selected(self.task.clients)


def to_tree(experiment: Experiment) -> dict[str, Any]:
    """Plain nested dict, as a preset would have it; ``from_tree`` of pipeline/config.py is its inverse."""
    tree = asdict(experiment)
    tree["method"] = {"name": experiment.method.name, **tree["method"]}
    return tree


def recorded_tree(experiment: Experiment) -> dict[str, Any]:
    """``to_tree`` as it may stand in a file: the address of the MLflow store without a password."""
    tree = to_tree(experiment)
    tree["tracking"]["uri"] = recorded(tree["tracking"]["uri"])
    return tree


EPOCH = 1
"""Part of every digest: raise it when a default changes, or the same options come to give another result."""


def digest(experiment: Experiment) -> str:
    """SHA-256 of everything that can change a result: not where it runs, is recorded or is written, nor what is kept
    of it.

    Only options that differ from their defaults count, so that an option which a later version adds leaves the digests
    of finished runs as they are. How many clients ``one_class`` has is for the data to say, so it does not count: what
    was asked for and what was found are one experiment.
    """
    if experiment.task.partition == "one_class":
        experiment = replace(experiment, task=replace(experiment.task, clients=0))
    tree = _changed(experiment)
    tree.get("evaluation", {}).pop("keep", None)
    for name in ("cluster", "tracking", "output"):
        tree.pop(name, None)
    for name in ("root", "cache"):
        tree.get("task", {}).pop(name, None)
    tree = {name: part for name, part in tree.items() if part != {}}
    tree["method"] = {"name": experiment.method.name, **tree.get("method", {})}
    return hashlib.sha256(json.dumps([EPOCH, tree], sort_keys=True).encode()).hexdigest()


def _changed(node: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values are not the defaults, nested."""
    out: dict[str, Any] = {}
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            out[f.name] = _changed(value)
        elif f.default is MISSING or value != f.default:
            out[f.name] = value
    return out


def flat(experiment: Experiment) -> dict[str, str | int | float | bool]:
    """Flat parameters for MLflow: the method's own names stay short (q1, q2, alpha), others are ``section.name``."""
    tree = recorded_tree(experiment)
    out: dict[str, str | int | float | bool] = {"method": tree["method"].pop("name")}
    out |= {k: "none" if v is None else v for k, v in tree.pop("method").items()}
    for section, values in tree.items():
        if isinstance(values, dict):
            out |= {("task" if (section, k) == ("task", "name") else f"{section}.{k}"): v for k, v in values.items()}
        else:
            out[section] = values
    return out
