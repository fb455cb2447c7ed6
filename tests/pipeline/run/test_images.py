"""Images on their way into training: held as they are stored, changed and scaled batch by batch, by the seed alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.local_training import augmentation, infer, micro_batches
from anchorfl.pipeline.training.row_cache import RowCache
from anchorfl.tasks.contract import ClientData
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.scaling import IMAGENET_MEAN, Scaling
from tests.runs import quiet

AUGMENTED = {"crop": 4, "flip": "both"}


@pytest.fixture
def images(experiment, made_up):
    """Return a maker of experiments of two rounds on made-up blood cells; keywords are of the optimizer."""

    def make(normalize="auto", **optimizer):
        e = experiment("fedavg", federation={"rounds": 2, "epochs": 1}, optimizer=optimizer)
        task = TaskOptions(
            name="pbc",
            variant="npz28",
            root=str(made_up("pbc", 80, 1)),
            clients=3,
            partition="iid",
            normalize=normalize,
        )
        return dataclasses.replace(e, task=task)

    return make


def in_float(data: ClientData) -> ClientData:
    """Return the same rows as they were held before: all of them scaled at once."""
    return dataclasses.replace(data, x=data.scaling(data.x), scaling=Scaling())


def test_a_byte_a_value_on_disk_and_in_memory(images):
    runner = ClientRunner(make_run_spec(images(), quiet))
    stored = runner.prepared.client_columns(0, ["row", "x"])["x"]
    assert stored.type.value_type == pa.uint8()
    _, rows = runner._client(0)
    assert (rows.x.dtype, rows.x.shape[1:]) == (torch.uint8, (3, 28, 28))
    assert rows.x.nbytes == len(rows) * 3 * 28 * 28
    assert rows.rows(torch.arange(2)).x.dtype == torch.float32


def test_training_and_inference_have_the_bits_of_rows_scaled_at_once(images):
    run_spec = make_run_spec(images(), quiet)
    runner, other = ClientRunner(run_spec), ClientRunner(run_spec)
    sent = SerialExecutor(run_spec).server.broadcast(1)
    card, rows = other._client(1)
    other.rows = RowCache(1000)
    other.rows.get(1, lambda: (card, in_float(rows)))
    one, two = runner.fit(1, 1, sent, {}), other.fit(1, 1, sent, {})
    assert messages.checksum(one.update.weights) == messages.checksum(two.update.weights)
    assert one.loss == two.loss
    assert infer(runner.model, rows).equal(infer(runner.model, in_float(rows)))


def test_what_a_mini_batch_becomes(images):
    """Crops and flips come before scaling, rows keep their labels, and every row is drawn for by itself."""
    _, rows = ClientRunner(make_run_spec(images(), quiet))._client(0)
    options = OptimizerOptions(crop=3, flip="horizontal")
    change = augmentation(options, torch.Generator().manual_seed(1))
    index_B, active_N = torch.tensor([4] * 30), torch.ones(len(rows), dtype=torch.bool)
    (batch,) = micro_batches(rows, index_B, active_N, options, make_run_spec(images(), quiet).model(), change)
    x = rows.x[4].numpy()
    padded = np.pad(x, ((0, 0), (3, 3), (3, 3)))
    possible = {}
    for top in range(7):
        for left in range(7):
            cut = padded[:, top : top + 28, left : left + 28]
            for turned in (cut, cut[:, :, ::-1]):
                possible[rows.scaling(torch.from_numpy(turned.copy())).numpy().tobytes()] = (top, left)
    seen = [possible[image.numpy().tobytes()] for image in batch.x]
    assert len(set(seen)) > 10
    assert batch.y_BC.equal(rows.y_NC[index_B])
    assert augmentation(OptimizerOptions(), torch.Generator()) is None


def test_the_seed_decides_what_is_drawn(images, tmp_path):
    plain, same = run(images(), tmp_path / "a", quiet), run(images(crop=0, flip="none"), tmp_path / "b", quiet)
    changed, again = (run(images(**AUGMENTED), tmp_path / name, quiet) for name in ("c", "d"))
    assert plain.checksum == same.checksum
    assert changed.checksum == again.checksum != plain.checksum


def test_constants_of_the_options_reach_the_batches(images):
    """FedBM's are ImageNet's, which color has by itself; the manifest has them, so a saved model has them too."""
    spec = make_run_spec(images(), quiet).data().manifest.spec
    assert spec.mean == IMAGENET_MEAN
    assert make_run_spec(images("imagenet"), quiet).data().manifest.spec == spec
    half = make_run_spec(images("0.5/0.5"), quiet)
    _, rows = ClientRunner(half)._client(0)
    x = rows.rows(torch.arange(3)).x
    assert x.equal((rows.x[:3].float() / 255 - 0.5) / 0.5)
    ctx = SerialExecutor(half).server._context(1)
    assert ctx.spec.scaling().unit(torch.ones(1, 3, 2, 2)).equal(torch.ones(1, 3, 2, 2))


def test_options_that_would_do_nothing_are_refused(experiment, images):
    with pytest.raises(
        InputError, match=r"optimizer.crop and flip are for images, and 'toy-single' has inputs of kind"
    ):
        make_run_spec(experiment(optimizer={"flip": "both"}), quiet)
    with pytest.raises(ValueError, match=r"optimizer.crop = -1: must be at least 0 pixels"):
        OptimizerOptions(crop=-1)
    e = experiment(
        "fedalc", task="toy-multi", federation={"batched_clients": True, "epochs": 1},
        optimizer={"name": "sgd", "batch_size": 0, "crop": 1},
    )  # fmt: skip
    with pytest.raises(InputError, match=r"batched_clients needs optimizer.crop = 0 and optimizer.flip = 'none'"):
        executor_for(make_run_spec(e, quiet))


def test_grey_digits_are_as_they_were(experiment):
    """No levels: floats of [0, 1] as stored, cropped and flipped as they are."""
    e = experiment(task="digits", optimizer=AUGMENTED)
    run_spec = make_run_spec(dataclasses.replace(e, task=TaskOptions(clients=4, partition="iid")), quiet)
    _, rows = ClientRunner(run_spec)._client(0)
    assert rows.x.dtype == torch.float32
    change = augmentation(OptimizerOptions(**AUGMENTED), torch.Generator().manual_seed(0))
    x = rows.rows(torch.arange(5), None, change).x
    assert x.shape == (5, 1, 8, 8)
    assert torch.isin(x, torch.cat([rows.x[:5].flatten(), torch.zeros(1)])).all()
