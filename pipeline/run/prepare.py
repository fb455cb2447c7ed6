"""Before round 1: the data, what the network starts from, and the refusal of what does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psutil
import torch

from anchorfl.models.build import encoder_bytes
from anchorfl.models.classifier import Classifier
from anchorfl.models.encoders.plug_in import PlugIn, check
from anchorfl.models.options import NETWORKS, EncoderSpec
from anchorfl.pipeline.algorithm.contract import Method
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.progress import format_bytes
from anchorfl.pipeline.terminal import Log, say
from anchorfl.pipeline.training.class_vectors import check_encoder, concept_vectors, encoder_start, name_vectors
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.contract import LabelKind
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import LARGEST
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular.table import resolve_options as resolve_task_options


def make_run_spec(experiment: Experiment, log: Log, prepared: Prepared | None = None) -> RunSpec:
    """Return the specification of a run. Raise InputError where network, data and weights do not fit each other.

    prepared: the data, where the caller has them; None: from the cache, or made now.
    """
    if not experiment.task.clients:
        raise ValueError("task.clients = 0: count the clients first (anchorfl.pipeline.run.prepare.resolve_options)")
    start = encoder_start(experiment, log)
    if prepared is None:
        check_encoder(experiment)
    data = prepared or prepare_data(experiment, log)
    check_options(experiment, data)
    _check_size(experiment, data)
    names, concepts = name_vectors(experiment, data, log), concept_vectors(experiment, data, log)
    run_spec = RunSpec(experiment, data.location, names, start, concepts)
    changed = experiment.model.network != "auto" or bool(experiment.class_embeddings.lora_rank)
    if changed or start is not None or experiment.optimizer.onednn:
        try:
            _check_network(run_spec, run_spec.model())  # here, where an error is one line, and not in every worker
        except ValueError as error:
            raise InputError(str(error)) from error
    run_spec.texts()  # likewise: it may not fit its sentences
    return run_spec


def check_options(experiment: Experiment, data: Prepared) -> None:
    """Raise InputError where options do not go with each other or with the data, before anything is made of them."""
    check_method(experiment.method, experiment.task, data.manifest.kind)
    if experiment.task.partition == "one_class" and len(data.manifest.class_names) < 2:
        raise InputError("task.partition = 'one_class' needs two classes: with one there is one client, and no other")
    _check_heads(experiment, data)
    _check_privacy(experiment)
    _check_secure(experiment, data)
    _check_aggregation(experiment)
    if experiment.federation.steps and (phases := experiment.method.phases):
        raise InputError(
            f"federation.steps = {experiment.federation.steps}: clients of {experiment.method.name!r} train by whole"
            f" epochs ({phases}): leave it out, and set federation.epochs"
        )
    if experiment.evaluation.by_validation and not data.size("validation"):
        raise InputError(
            f"{experiment.evaluation.by_validation} needs validation rows, and task.validation ="
            f" {experiment.task.validation:g} of these data is none: raise it, or leave that option out"
        )
    if experiment.evaluation.metrics == "classification" and data.manifest.kind == "multi":
        raise InputError(
            f"evaluation.metrics = 'classification' is for single-label tasks, and {data.manifest.task!r} is"
            " multi-label: set it to 'threshold' or 'ranking'"
        )
    if experiment.optimizer.augments and data.manifest.spec.kind != "image":
        raise InputError(
            f"optimizer.crop and flip are for images, and {data.manifest.task!r} has inputs of kind"
            f" {data.manifest.spec.kind!r}: set them to 0 and 'none'"
        )


def _check_heads(experiment: Experiment, data: Prepared) -> None:
    """Raise InputError where a layer of attention cannot be cut into its heads."""
    model, attends = experiment.model, data.manifest.spec.kind in ("tokens", "series")
    if model.width % model.heads and ((attends and model.network == "auto") or experiment.method.head.kind == "guided"):
        near = model.width // model.heads * model.heads or model.heads
        raise InputError(
            f"model.width = {model.width} is no multiple of model.heads = {model.heads}: set it to {near}, or"
            " --model.heads to a divisor"
        )


def _check_network(run_spec: RunSpec, model: Classifier) -> None:
    """Raise ValueError where the network of a plug-in does not fit its input or the options of training."""
    experiment, spec = run_spec.experiment, run_spec.data().manifest.spec
    options, optimizer = experiment.model, experiment.optimizer
    where = f"model.network = {options.network!r}"
    others = [part for part in model.encoder.modules() if isinstance(part, PlugIn)]
    if not others:
        return
    if optimizer.onednn or optimizer.precision != "float32":
        raise ValueError(f"{where}: optimizer.onednn and precision are for AnchorFL's own networks: leave them out")
    if model.couples_rows and (optimizer.skip_zero_rows or optimizer.microbatch_tokens):
        raise ValueError(
            f"{where}: has BatchNorm, which normalizes over the batch, so rows may not be left out or cut apart: set"
            " --optimizer.skip_zero_rows False --optimizer.microbatch_tokens 0"
        )
    counters = [name for name, value in model.state_dict().items() if not value.is_floating_point()]
    federation = experiment.federation
    if counters and (federation.dp_noise or federation.secure_aggregation):
        raise ValueError(
            f"{where}: federation.dp_noise and secure_aggregation are not for whole numbers such as BatchNorm's"
            f" counters ({counters[0]}): choose another network"
        )
    odd = [name for name, v in model.state_dict().items() if v.is_floating_point() and v.dtype != torch.float32]
    if odd and federation.secure_aggregation:
        raise ValueError(
            f"{where}: federation.secure_aggregation is for numbers of 32 bits, and {odd[0]} is"
            f" {str(model.state_dict()[odd[0]].dtype).removeprefix('torch.')}: make it float32"
        )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = [name for name, value in model.state_dict().items() if name not in parameters]
    if buffers and federation.dp_noise:
        raise ValueError(
            f"{where}: federation.dp_noise adds noise to all that travels, and {buffers[0]} is no parameter: register"
            " it with persistent=False, so that it does not travel"
        )
    for part in others:
        encoder_spec = EncoderSpec(spec.kind, spec.shape, len(spec.vocabulary), options.width, options.dropout)
        check(part, encoder_spec, where)


WIDE = 1 << 14
"""Wider networks than any here: only these are counted before they are built, which takes torch three seconds."""


def _check_size(experiment: Experiment, data: Prepared) -> None:
    """Raise InputError where the weights alone exceed the memory of this machine, which holds them once at least."""
    model, names = experiment.model, experiment.class_embeddings
    widths = {"model.width": model.width, "model.feedforward": model.feedforward, "class_embeddings.width": names.width}
    widest = max(widths, key=lambda name: widths[name])
    if widths[widest] < WIDE or model.network not in NETWORKS:
        return
    spec, classes = data.manifest.spec, len(data.manifest.class_names)
    head = (classes + model.width) * names.width if experiment.method.head.named else classes * model.width
    most = psutil.virtual_memory().total
    try:
        size = encoder_bytes(model, spec.kind, spec.shape, len(spec.vocabulary)) + 4 * head
    except RuntimeError:  # beyond 2^63 bytes
        size = LARGEST
    if size > most:
        raise InputError(
            f"{widest} = {widths[widest]}: the weights would take {format_bytes(size)}, and this machine has"
            f" {format_bytes(most)} of memory; lower it"
        )


def check_method(method: Method[Any, Any], task: TaskOptions, kind: LabelKind) -> None:
    """Raise InputError, which names the methods that would do, where a method is not for these labels or clients."""
    kinds, one_class = method.supports.kinds, method.supports.one_class
    if kind not in kinds:
        what = f"is for {'- and '.join(kinds)}-label tasks, and {task.name!r} is {kind}-label: choose another method"
        one_class = bool(task.client_column)
    elif one_class and task.partition != "one_class":
        what = (
            "has one client per class, which knows that class alone: set task.partition = 'one_class' and task.clients"
            f" to 0{', and leave out task.client_column' if task.client_column else ''}; or choose another method"
        )
    else:
        return
    others = [n for n, m in METHODS.items() if kind in m.supports.kinds and not (one_class and m.supports.one_class)]
    raise InputError(f"method {method.name!r} {what}: {', '.join(others)}")


def _check_aggregation(experiment: Experiment) -> None:
    """Raise InputError where the method's aggregation is none that the robust options can change."""
    method = experiment.method
    for name, option in experiment.federation.aggregator.uses:
        if name not in method.robust:
            allowed = f" (it allows {', '.join(method.robust)})" if method.robust else ""
            hint = "clip_norm to 0" if name == "clip_norm" else "aggregation to 'mean'"
            other = "other options of [method]" if name in method.supports.robust else "another method"
            raise InputError(
                f"{option}: method {method.name!r} does not allow it{allowed}; set federation.{hint}, or choose {other}"
                " (docs/robust-aggregation.md says why)"
            )


def _check_privacy(experiment: Experiment) -> None:
    """Raise InputError where noise on the mean of the clients' weights would not cover what is made of them."""
    federation, method = experiment.federation, experiment.method
    if not federation.dp_noise:
        return
    option = f"federation.dp_noise = {federation.dp_noise:g}"
    if not method.sends_weights_alone:
        can = ", ".join(name for name, kind in METHODS.items() if kind().sends_weights_alone)
        raise InputError(
            f"{option} is for methods whose clients send weights alone, and get nothing else that others' data decide"
            f" ({can}; docs/client-privacy.md says how anchor does), and not for {method.name!r}"
        )
    if method.weighting != "uniform":  # type: ignore[attr-defined]  # such a method averages
        raise InputError(f"{option}: one with many rows counts more than others; set method.weighting to 'uniform'")
    if experiment.model.norm != "group":
        raise InputError(f"{option} does not cover the statistics of BatchNorm: set model.norm to 'group'")


def _check_secure(experiment: Experiment, data: Prepared) -> None:
    """Raise InputError where the server would need more of a client than its part of a sum."""
    federation, method = experiment.federation, experiment.method
    if not federation.secure_aggregation:
        return
    option = "federation.secure_aggregation"
    if not method.sums or method.sends_own:
        what = "every update" if not method.sums else "every client's class row (method.class_embedding_lr)"
        raise InputError(f"{option}: the server of {method.name!r} needs {what}: choose another method")
    if experiment.model.norm != "group":
        raise InputError(f"{option}: the counters of BatchNorm have no sum: set model.norm to 'group'")
    if experiment.selected_clients < 2:
        raise InputError(f"{option}: the sum of one client is that client's: raise federation.clients_per_round")
    rows_I = torch.tensor(data.manifest.examples)
    weight_I = method.client_weights(rows_I)
    for rows, weight in zip(rows_I.tolist(), weight_I.tolist(), strict=True):
        if weight != round(weight):
            raise InputError(
                f"{option}: by method.client_weights a client of {rows} rows counts {weight:.6g}, and sums under masks"
                " are of whole numbers: round it, or leave that option out"
            )


def prepare_data(experiment: Experiment, log: Log) -> Prepared:
    """Return the data of an experiment, from the cache or made now."""
    engine = "ray" if experiment.cluster.uses_ray else "local"
    task = task_of(experiment.task)
    return prepare(task, experiment.task, experiment.seed, engine=engine, log=log)  # type: ignore[arg-type]


def resolve_options(experiment: Experiment, log: Log = say, *, count: bool = True) -> Experiment:
    """Return the experiment with what its data say about clients. InputError where the two do not fit.

    count: prepare the data where that takes it, for the clients of ``one_class``; else their number stays 0.
    """
    experiment = with_sections(experiment, task=resolve_task_options(experiment.task, log))
    return count_clients(experiment, log) if count else experiment


def count_clients(experiment: Experiment, log: Log) -> Experiment:
    """Return the experiment with the number of clients of ``one_class``, for which its data are prepared."""
    task = experiment.task
    if task.clients or task.partition != "one_class":
        return experiment
    data = prepare(task_of(task), task, experiment.seed, engine="local", log=log)
    return with_sections(experiment, task=replace(task, clients=len(data.manifest.examples)))


def with_sections(experiment: Experiment, **sections: Any) -> Experiment:
    """Return the experiment with other sections, such as ``task=...``. InputError where they do not fit the rest."""
    try:
        return replace(experiment, **sections)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
