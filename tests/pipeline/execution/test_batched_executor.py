"""Clients with one class each, computed at once: equal to explicit clients, and refused where that would not hold."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import CosineHead
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.class_embeddings import CLASS_ROWS
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.evaluation import EvaluationOptions
from anchorfl.pipeline.execution.batched_executor import BatchedExecutor
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec, resolve_options
from anchorfl.pipeline.training.client import device_for
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from tests.pipeline.one_class import SGD, C, D, F, at_once, explicit, gap, network, rows
from tests.runs import nobody, quiet

METHOD_OPTIONS = {
    "fedalc": [
        {"regularizer": "neg_d2", "lambda_": 300.0, "neighbours": 2},
        {"regularizer": "neg_d2", "lambda_": 300.0, "neighbours": 2, "class_embedding_lr_decay": 0.7},
        {"regularizer": "hinge_adaptive", "lambda_": 3000.0, "neighbours": 2, "weights": "gamma"},
        {"regularizer": "hinge_const", "lambda_": 3000.0, "weights": "sigma", "dp_noise": 0.5, "dp_clip": 0.1},
    ],
    "fedaws": [{"lambda_": 300.0, "neighbours": 2}, {"lambda_": 0.0, "class_embedding_lr": 0.0}],
    "fedavg-positive": [{}, {"class_embedding_lr": 0.0}, {"class_embedding_lr_decay": 0.5}],
    "fedalc-fixed": [{"steps": 20}],
    "flag": [{}, {"class_embedding_lr": 0.3, "label_weights": "uniform"}],
    "fedmlh": [{"hash_tables": 2, "buckets": 3}],
}
CASES = [(name, options) for name, several in METHOD_OPTIONS.items() for options in several]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_equal_to_explicit_clients(name, options, weighting, piece):
    if (name, weighting) == ("flag", "samples"):
        with pytest.raises(ValueError, match=r"method\.weighting has no effect on FLAG"):
            METHODS[name](weighting=weighting, **options)
        return
    method, data = METHODS[name](weighting=weighting, **options), rows()
    got, want = at_once(method, data, piece=piece), explicit(method, data)
    assert gap(got, want) < 1e-10
    assert gap(want[1:], want[:-1]) > 1e-4, "something moves"
    for state, _ in got:
        length_CR = state.weights[CLASS_ROWS].view(len(state.weights[CLASS_ROWS]), method.head.parts, -1).norm(dim=-1)
        assert torch.allclose(length_CR, torch.ones_like(length_CR), atol=1e-12)


@pytest.mark.parametrize("server", ["average", "adam"])
@pytest.mark.parametrize("chosen", [[0, 1, 2, 3], [1, 3], [2]])
def test_equal_with_some_clients_weight_decay_and_a_server_optimiser(server, chosen):
    method, data = METHODS["fedalc"](server=server, server_lr=0.01, weighting="samples"), rows(seed=4)
    options = replace(SGD, weight_decay=0.05)
    got = at_once(method, data, options=options, chosen=chosen)
    assert gap(got, explicit(method, data, options=options, chosen=chosen)) < 1e-10
    first = network().get_parameter(CLASS_ROWS).detach()
    same_C = [bool((got[0][0].weights[CLASS_ROWS][c] == first[c]).all()) for c in range(4)]
    if server == "average" and chosen == [2]:
        assert not same_C[2]


class WithUnused(nn.Module):
    """An encoder with a layer that nothing goes through."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(F, D), nn.Linear(D, 2)

    def forward(self, x_BF):
        return self.used(x_BF)


def test_weight_decay_is_of_all_parameters_like_that_of_clients():
    torch.default_generator.manual_seed(0)
    model = Classifier(WithUnused(), CosineHead(C, D, 1), MaskSource()).double()
    method, options = METHODS["fedavg-positive"](), replace(SGD, weight_decay=0.05)
    got = at_once(method, rows(), options=options, model=copy.deepcopy(model))
    assert gap(got, explicit(method, rows(), options=options, model=copy.deepcopy(model))) < 1e-10
    name = "encoder.unused.weight"
    assert (got[-1][0].weights[name].abs() < model.get_parameter(name).abs()).all()


def test_a_rate_per_row_is_what_makes_it_equal():
    """Without the division by p_i the rows would learn C times slower."""
    method, data = METHODS["fedavg-positive"](), rows()
    want = explicit(method, data, 1)
    slow = at_once(METHODS["fedavg-positive"](class_embedding_lr=0.1 / 4), data, 1)
    assert gap(slow, want) > 1e-3


@pytest.mark.parametrize("why", ["adam", "two epochs", "mini-batches", "batch norm"])
def test_what_breaks_the_equality(why):
    method, data, model = METHODS["fedavg-positive"](), rows(), None
    options, epochs = SGD, 1
    if why == "adam":
        options = OptimizerOptions(lr=0.1, batch_size=0)
    elif why == "two epochs":
        epochs = 2
    elif why == "mini-batches":
        options = replace(SGD, batch_size=3)
    else:
        model = network()
        model.encoder[1] = nn.BatchNorm1d(6).double()
        options = replace(SGD, skip_zero_rows=False, microbatch_tokens=0)
    got = explicit(method, data, 1, options=options, epochs=epochs, model=model)
    assert gap(at_once(method, data, 1, model=model), got) > 1e-3


# ---------------------------------------------------------------------------------------------------- whole federations


@pytest.fixture
def one_class(experiment):
    """Return a maker of experiments of 5 one-class clients of the toy task; keywords of the method, and sections."""

    def make(name="fedalc", options=None, toy="toy-multi", **sections):
        e = experiment(name, toy, options=options)
        clients = len(find_task(toy).class_names)
        task = replace(e.task, clients=clients, partition="one_class", validation=0.2)
        federation = replace(
            e.federation, rounds=2, clients_per_round=clients, epochs=1, batched_clients=True, batch_rows=16
        )
        parts = {
            "task": task, "federation": federation, "model": replace(e.model, dropout=0.0), "optimizer": SGD,
        }  # fmt: skip
        changed = {name: replace(parts[name], **values) for name, values in sections.items()}
        return replace(e, **(parts | changed))

    return make


@pytest.mark.parametrize(("name", "toy"), [(n, "toy-multi") for n in METHOD_OPTIONS] + [("fedalc", "toy-single")])
def test_a_run_is_that_of_explicit_clients(one_class, name, toy):
    """Both images and tokens."""
    e = one_class(name, {"weighting": "samples"} if name != "flag" else None, toy)
    run_spec = make_run_spec(e, quiet)
    pooled, explicit_ = executor_for(run_spec), executor_for(replace(run_spec, experiment=explicit_clients(e)))
    assert isinstance(pooled, BatchedExecutor)
    assert isinstance(explicit_, SerialExecutor)
    for round_, chosen in ((1, [*range(e.task.clients)]), (2, [0, 2, 3]), (3, [1, 2])):
        one, other = (x.round(round_, chosen, nobody) for x in (pooled, explicit_))
        assert (one.answered, one.bytes_down, one.bytes_up) == (other.answered, other.bytes_down, other.bytes_up)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        state, state0 = pooled.snapshot(), explicit_.snapshot()
        assert state.keys() == state0.keys()
        for path, value in state0.items():
            assert torch.allclose(state[path].double(), value.double(), atol=2e-5), path
    scores = [x.scores(["validation", "test"]) for x in (pooled, explicit_)]
    assert scores[0].keys() == scores[1].keys() == {"validation", "test"}
    pooled.restore(state0, {})
    assert messages.checksum(pooled.snapshot()) == messages.checksum(state0)


def explicit_clients(e):
    return replace(e, federation=replace(e.federation, batched_clients=False))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"optimizer": {"name": "adam", "momentum": 0.0}}, "needs optimizer.name = 'sgd'"),
        ({"optimizer": {"momentum": 0.9}}, "needs optimizer.momentum = 0"),
        ({"optimizer": {"batch_size": 2}}, "needs optimizer.batch_size = 0"),
        ({"federation": {"epochs": 2}}, "needs federation.epochs = 1"),
    ],
)
def test_refused_where_a_round_is_not_one_pass(one_class, sections, words):
    with pytest.raises(InputError, match=words):
        executor_for(make_run_spec(one_class(**sections), quiet))


@pytest.mark.parametrize("pooled", [True, False])
def test_a_share_of_a_gpu_that_is_not_there_is_refused(one_class, monkeypatch, pooled):
    """Training on the CPU instead would be found out hours later."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    e = one_class(federation={"batched_clients": pooled})
    e = replace(e, cluster=replace(e.cluster, client_gpus=0.5))
    with pytest.raises(InputError, match=r"cluster: 0\.5 of a GPU is asked for, but this torch .* sees none"):
        executor_for(make_run_spec(e, quiet))


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    """But for Ray's actors, whose GPUs may be logical ones."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_for(0.0, must=True) == device_for(0.25) == torch.device("cpu")
    with pytest.raises(InputError, match=r"0\.25 of a GPU is asked for, but this torch .* sees none"):
        device_for(0.25, must=True)


def test_a_client_keeps_nothing_of_rows_that_it_never_had(one_class):
    """No moments of the whole head, in its memory or in a checkpoint."""
    e = one_class(
        federation={"batched_clients": False}, optimizer={"name": "adam", "momentum": 0.0, "weight_decay": 1e-3}
    )
    executor = executor_for(make_run_spec(e, quiet))
    executor.round(1, [0, 1], nobody)
    memory = executor.memories[0]
    head = next(value for name, value in executor.snapshot().items() if name.endswith(CLASS_ROWS))
    assert memory
    assert all(bool(value.isfinite().all()) for value in memory.values())
    assert not any(value.shape == head.shape for value in memory.values())


def test_refused_for_methods_and_partitions_without_it(one_class):
    e = one_class()
    with pytest.raises(InputError, match="a round of fedavg is not one pass over all rows"):
        executor_for(make_run_spec(replace(e, method=METHODS["fedavg"]()), quiet))
    task = replace(e.task, partition="iid")
    for pooled in (True, False):
        federation = replace(e.federation, batched_clients=pooled)
        with pytest.raises(InputError, match=r"set task\.partition = 'one_class'"):
            executor_for(make_run_spec(replace(e, task=task, federation=federation), quiet))


@pytest.mark.parametrize("name", ["fedalc", "fedalc-fixed", "fedmlh"])
def test_a_class_without_training_rows_has_no_client(one_class, tmp_path, name):
    """Clients are counted by the data; the class keeps a row, which clients never see and the server may move."""
    rng = np.random.default_rng(0)
    y_NC = rng.random((60, 4)) < 0.4
    y_NC[:, 0] |= ~y_NC.any(1)
    y_NC[:45, 2] = False
    y_NC[45:50, 2] = True
    columns = {f"is_{c}": y_NC[:, i].astype(int) for i, c in enumerate("abcd")}
    columns |= {f"x{i}": rng.normal(size=60) + y_NC[:, i] for i in range(4)}
    columns["part"] = ["train"] * 45 + ["test"] * 15
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    e = one_class(name, {"hash_tables": 1} if name == "fedmlh" else None)
    task = TaskOptions(
        file=str(tmp_path / "t.parquet"), label_columns="is_*", split_column="part", partition="one_class", clients=0,
        validation=0.0,
    )  # fmt: skip
    federation = replace(e.federation, clients_per_round=0)
    e = resolve_options(
        replace(e, task=task, federation=federation, evaluation=EvaluationOptions(metrics="ranking")), quiet
    )
    assert (e.task.clients, e.selected_clients) == (3, 3)
    results = [run(x, tmp_path / str(i), quiet) for i, x in enumerate((e, explicit_clients(e)))]
    ends = [load_file(result.folder / "model" / "weights.safetensors") for result in results]
    for path, value in ends[1].items():
        assert torch.allclose(ends[0][path], value, atol=2e-5), path
    assert not torch.isnan(ends[0][CLASS_ROWS]).any()
    with pytest.raises(InputError, match=r"clients = 4, but 3 of the 4 classes .* set clients = 3, or 0"):
        make_run_spec(replace(e, task=replace(task, clients=4)), quiet)
