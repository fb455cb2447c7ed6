"""BatchNorm's statistics on their whole way: averaged, checked, saved, resumed, exported; frozen ones stay."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anchorfl.models.build import build
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import mean_of
from anchorfl.pipeline.algorithm.contract import Update
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.results.predict import predict
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.saved_model import load_model, save_model
from anchorfl.pipeline.training.evaluation import logits_of
from anchorfl.pipeline.training.local_training import INFERENCE_VALUES, TrainingSpec, batches, fit, infer
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.tasks.contract import Card, ClientData, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.testing import stopped_before
from tests.runs import quiet

COUNTER = "encoder.norm1.num_batches_tracked"
SAVINGS = (
    "so rows may not be left out or cut apart: set --optimizer.skip_zero_rows False --optimizer.microbatch_tokens 0"
)


SMALL, LARGE = ({"network": name, "width": width} for name, width in (("resnet8", 64), ("resnet18", 512)))


def network(norm="batch", size=8, seed=1, kind=LARGE):
    return build(
        ModelOptions(norm=norm, **kind), input_kind="image", shape=(1, size, size), vocabulary=0,
        classes=3, head="linear", unit=True, vectors_CP=None, seed=seed,
    )  # fmt: skip


def client(rows, size=8, seed=0):
    x = torch.randn(rows, 1, size, size, generator=torch.Generator().manual_seed(seed))
    y = torch.eye(3)[torch.arange(rows) % 3]
    return Card(seed, rows, y.sum(0).long(), torch.ones(3).bool()), ClientData(x, y, torch.ones(rows, 3), y)


def fitted(model, rows, batch_size=4, epochs=1, seed=0):
    one_thread()
    options = OptimizerOptions(name="sgd", lr=0.01, batch_size=batch_size, skip_zero_rows=False, microbatch_tokens=0)
    training = TrainingSpec(FedAvg(), Objective("single"), options, epochs, 0)
    start = {name: value.clone() for name, value in network().state_dict().items()}
    return fit(training, model, *client(rows, seed=seed), FedAvg().begin(Side(start)), {}, 1, {}).update


class Side:
    """The part of a server's context that ``begin`` reads."""

    def __init__(self, weights):
        self.model = network()
        self.model.load_state_dict(weights)


def test_the_server_averages_statistics_by_rows_and_keeps_the_largest_count():
    model = network()
    a, b = fitted(model, 12, seed=1).weights, fitted(model, 6, seed=2).weights
    assert (int(a[COUNTER]), int(b[COUNTER])) == (3, 2)
    got = mean_of([a, b], [12, 6])
    floats = [name for name, _ in model.named_buffers() if got[name].is_floating_point()]
    assert len(floats) == 40
    for name in floats:
        want = np.average([w[name].double().numpy() for w in (a, b)], axis=0, weights=[12, 6])
        assert np.allclose(got[name].numpy(), want, rtol=1e-7, atol=0), name
        assert not torch.equal(got[name], a[name]), name
    counts = [name for name, value in got.items() if not value.is_floating_point()]
    assert len(counts) == 20
    assert all(got[name].dtype == torch.int64 and int(got[name]) == 3 for name in counts)


def test_a_faulty_statistic_is_named():
    good = weights_of(network())
    for name, value, text in (
        (COUNTER, torch.tensor(3.0), f"'weights/{COUNTER}' is torch.float32 (), expected torch.int64 ()"),
        ("encoder.norm1.running_var", torch.full((64,), float("inf")), "holds 64 non-finite values"),
    ):
        update = Update(good | {name: value})
        assert text in (messages.shape_mismatch(update, Update(good)) or messages.not_finite(update))
    del good["encoder.norm1.running_mean"]
    assert "is missing" in messages.shape_mismatch(Update(good), Update(weights_of(network())))


def test_statistics_travel_packed_and_filled_as_they_are():
    sent = Update(fitted(network(), 6).weights)
    got = messages.unpack(messages.pack(sent))
    assert messages.checksum(got) == messages.checksum(sent)
    assert got.weights[COUNTER].dtype == torch.int64
    values = dict(messages.tensors(sent))
    assert messages.checksum(messages.fill(sent, values)) == messages.checksum(sent)
    changed = Update(sent.weights | {COUNTER: sent.weights[COUNTER] + 1})
    assert messages.checksum(changed) != messages.checksum(sent)


def test_a_client_starts_from_the_statistics_that_it_was_sent_whatever_the_work_space_held():
    clean, dirty = network(), network(seed=7)
    with torch.no_grad():
        dirty.train()(torch.full((4, 1, 8, 8), 9.0))
    assert messages.checksum(fitted(clean, 9)) == messages.checksum(fitted(dirty, 9))


@pytest.mark.parametrize(
    ("rows", "size", "sizes"), [(9, 4, [4, 5]), (8, 4, [4, 4]), (10, 4, [4, 4, 2]), (1, 4, [1]), (5, 5, [5])]
)
def test_a_last_row_alone_joins_the_batch_before_it(rows, size, sizes):
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    coupled = batches(order, size, couples_rows=True)
    assert [len(part) for part in coupled] == sizes
    assert torch.equal(torch.cat(coupled), order)
    plain = batches(order, size, couples_rows=False)
    assert all(torch.equal(a, b) for a, b in zip(plain, torch.split(order, size), strict=True))


def test_a_client_whose_last_batch_has_one_row_trains():
    """8 pixels a side end in one place, where one row has no variance and torch refuses it."""
    assert int(fitted(network(), 9).weights[COUNTER]) == 2
    assert int(fitted(network(), 8).weights[COUNTER]) == 2


def test_inference_of_large_images_goes_in_parts_and_changes_nothing():
    model = network("group", size=96, kind=SMALL)
    _, data = client(7, size=96)
    whole = infer(model, data)
    seen = []
    model.encoder.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    labels = {name: getattr(data, name).repeat(50, 1) for name in ("y_NC", "known_NC", "weight_NC")}
    big = dataclasses.replace(data, x=data.x.repeat(50, 1, 1, 1), **labels)
    got = infer(model, big)
    most = INFERENCE_VALUES // 96**2
    assert max(seen) == most < 350
    assert sum(seen) == len(got) == 350
    assert torch.allclose(got, whole.repeat(50, 1), rtol=1e-4, atol=1e-5)


def test_the_saved_model_has_the_runs_statistics_and_predicts(residual, finished_run, tmp_path):
    result = finished_run(residual())
    model = result.folder / "model"
    saved, weights = load_model(model), load_file(model / "weights.safetensors")
    assert messages.checksum(dict(saved.model.state_dict())) == messages.checksum(weights) == result.checksum
    assert weights[COUNTER].dtype == torch.int64
    assert int(weights[COUNTER]) > 2
    assert float(weights["encoder.norm1.running_mean"].abs().max()) > 0
    file = tmp_path / "rows.csv"
    rng = np.random.default_rng(0)
    lines = [",".join(f"p{i}" for i in range(64)), *(",".join(map(str, rng.integers(0, 17, 64))) for _ in range(3))]
    file.write_text("\n".join(lines))
    together = predict(model, file)
    file.write_text("\n".join(lines[:2]))
    alone = predict(model, file)  # statistics of the run, not of these rows
    assert torch.allclose(together.scores_NC[0], alone.scores_NC[0], rtol=1e-4, atol=1e-6)


def test_stopped_after_a_round_and_resumed(residual, finished_run, tmp_path):
    with stopped_before(2):
        run(residual(), tmp_path / "parts", quiet)
    assert resume(tmp_path / "parts", quiet).checksum == finished_run(residual()).checksum


def test_frozen_statistics_of_a_file_end_as_they_began(residual, tmp_path):
    """From a run's model folder; the model that comes of it is read where that file is not."""
    pretrained = network(kind=SMALL).train()
    with torch.no_grad():
        pretrained(client(16)[1].x)
    start, said = tmp_path / "start.safetensors", []
    save_file(weights_of(pretrained), start)
    run(residual(norm="frozen", weights=str(start)), tmp_path / "run", said.append)
    assert any(line.startswith(f"the encoder starts from {start}: 54 tensors, checksum ") for line in said)
    start.unlink()
    got, before = load_model(tmp_path / "run" / "model"), weights_of(pretrained)
    buffers = {name for name, _ in got.model.named_buffers()}
    assert len(buffers) == 27
    for name, value in got.model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(value, before[name]) is (name in buffers), name
    assert json.loads((tmp_path / "run" / "model" / "model.json").read_text())["model"]["weights"] == str(start)


def test_an_exported_model_gives_the_scores_of_the_saved_one(tmp_path, residual):
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'anchorfl[tracking]'")
    from anchorfl.pipeline.mlmodel import _load_pyfunc
    from anchorfl.pipeline.tracking.mlflow_model import pack

    run_spec = make_run_spec(residual(), quiet)
    model = run_spec.model().train()
    with torch.no_grad():
        model(torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(2)))
    save_model(tmp_path / "model", run_spec, weights_of(model), {})
    pack(tmp_path / "model", tmp_path / "packed")
    values = np.random.default_rng(1).integers(0, 17, (2, 64)).astype(float)
    got = _load_pyfunc(str(tmp_path / "packed" / "data" / "model")).predict(values)
    _, data = client(2)
    x = torch.from_numpy(values).float().view(2, 1, 8, 8) / 16
    want = logits_of(model, dataclasses.replace(data, x=x)).softmax(-1)
    assert np.allclose(got.to_numpy(), want.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "options", [[], ["--optimizer.skip_zero_rows", "False"], ["--optimizer.microbatch_tokens", "0"]]
)
def test_savings_with_batch_norm_are_refused_before_anything_starts(options):
    given = ["--model.network", "resnet18", "--model.norm", "batch", *options]
    with pytest.raises(InputError) as caught:
        override(read_preset("digits/fedavg"), given)
    assert str(caught.value) == f"model.norm = 'batch' normalizes over the batch, {SAVINGS}"


@pytest.mark.parametrize(
    ("task", "model", "text"),
    [
        ("toy-single", {"network": "resnet18"},
         "model.network = 'resnet18' is for images, the input is of kind 'tokens': set it to 'auto'"),
        ("digits", {"network": "resnet18", "norm": "frozen"},
         "model.norm = 'frozen' needs statistics to keep: set model.weights, or model.norm to 'group'"),
        ("digits", {"weights": "none.safetensors"},
         "model.weights = 'none.safetensors': no such file, nor below $ANCHORFL_DATA"
         " (docs/networks.md says what it holds)"),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_is_refused_in_one_line(experiment, task, model, text):
    with pytest.raises(InputError) as caught:
        make_run_spec(experiment("fedavg", task, model=model), quiet)
    assert str(caught.value) == text


def test_weights_of_another_network_are_refused_and_those_below_the_data_folder_are_found(
    residual, tmp_path, monkeypatch
):
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path))
    save_file(weights_of(network("group", kind=SMALL).encoder), tmp_path / "w.safetensors")
    same = residual(norm="group", weights="w.safetensors")
    e = dataclasses.replace(same, model=dataclasses.replace(same.model, network="resnet20"))
    with pytest.raises(InputError, match=r"^w.safetensors: tensor 'layer1.1.conv1.weight' is missing; give weights of"):
        make_run_spec(e, quiet)
    got = make_run_spec(same, quiet).model().encoder.state_dict()
    assert torch.equal(got["conv1.weight"], network("group", kind=SMALL).encoder.state_dict()["conv1.weight"])
