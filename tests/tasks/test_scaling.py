"""Images stay whole numbers until a batch is made, and every batch has the values of a table scaled at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from anchorfl.tasks.arrays.sparse_rows import SparseRows
from anchorfl.tasks.arrays.tensors import client_data
from anchorfl.tasks.contract import InputSpec, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.images.pixels import encode_pixels, image_spec, pixel_column
from anchorfl.tasks.ingest.encoding import set_normalization
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.scaling import IMAGENET_MEAN, IMAGENET_STD, Scaling

COLOUR, GREY = image_spec(TaskOptions(), 16), image_spec(TaskOptions(), 16, 1)
SINGLE = Objective("single")


def scaled_at_once(pixels, spec):
    """Scale the tensors of a whole table at once: the reference, in NumPy."""
    x = np.array(pixels, dtype=np.float32)
    x /= np.float32(spec.levels)
    if spec.mean:
        x -= np.array(spec.mean, dtype=np.float32).reshape(-1, 1, 1)
        x /= np.array(spec.std, dtype=np.float32).reshape(-1, 1, 1)
    return x


def stored(spec):
    """Make a table of three images with every value 0..255 in every channel, and its pixels [N, C, H, W]."""
    channels, side, _ = spec.shape
    image = np.arange(256, dtype=np.uint8).reshape(side, side, 1).repeat(channels, 2)
    pixels = np.stack([image, image[::-1], image.transpose(1, 0, 2)])
    table = pa.table({"pixels": pixel_column(pixels), "labels": pa.array([[0], [1], [0]], pa.list_(pa.int32()))})
    table = table.append_column("known", pa.nulls(3, pa.list_(pa.int32())))
    return encode_pixels(table, spec), pixels.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("spec", [COLOUR, GREY, replace(COLOUR, mean=(0.1, 0.2, 0.3), std=(0.7, 0.9, 0.3))])
def test_a_batch_has_the_bits_of_a_table_scaled_at_once(spec):
    table, pixels = stored(spec)
    data = client_data(table, spec, 2, SINGLE, range(2))
    assert (data.x.dtype, data.x.nbytes) == (torch.uint8, 3 * int(np.prod(spec.shape)))  # a byte a value, not four
    index_B = torch.tensor([2, 0])
    assert torch.equal(data.stored(index_B), torch.from_numpy(pixels[[2, 0]].copy()))
    want = scaled_at_once(pixels, spec)
    got = data.rows(index_B).x.numpy()
    assert got.dtype == np.float32
    assert got.tobytes() == want[[2, 0]].tobytes()
    part = SparseRows.of(table, spec, 2).part(1, 3).data
    assert part.rows(torch.arange(2)).x.numpy().tobytes() == want[1:].tobytes()


def test_a_change_comes_before_scaling():
    """Zeros that a crop brings in are black, whatever the mean."""
    table, _ = stored(COLOUR)
    got = client_data(table, COLOUR, 2, SINGLE, range(2)).rows(torch.arange(3), 7, torch.zeros_like)
    black = [-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    assert got.x[:, :, 5, 5].tolist() == [pytest.approx(black)] * 3
    assert got.denominator == 7


def test_what_is_stored_as_a_network_takes_it_stays():
    task = find_task("digits")
    prepared = prepare(task, TaskOptions(clients=2, partition="iid"), 1, engine="local")
    data = prepared.client(0, SINGLE)
    assert data.x.dtype == torch.float32
    assert data.rows(torch.arange(4)).x.equal(data.x[:4])
    x = torch.rand(2, 1, 8, 8)
    assert prepared.manifest.spec.scaling().unit(x) is x


def test_images_in_the_unit_range_are_normalised_like_stored_ones():
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    scaling = COLOUR.scaling()
    unit = (x.float() / 255).requires_grad_()
    assert scaling.unit(unit).equal(scaling(x))
    (gradient,) = torch.autograd.grad(scaling.unit(unit).sum(), unit)
    assert gradient[0, :, 0, 0].tolist() == pytest.approx([1 / s for s in IMAGENET_STD])
    assert GREY.scaling().unit(unit) is unit
    assert Scaling()(x) is x


def test_constants_of_the_options():
    def made(spec, text):
        got = set_normalization(spec, TaskOptions(normalize=text))
        return got.mean, got.std

    assert set_normalization(COLOUR, TaskOptions()) is COLOUR
    assert made(COLOUR, "imagenet") == (IMAGENET_MEAN, IMAGENET_STD)
    assert made(COLOUR, "none") == ((), ())
    assert made(COLOUR, "0.5/0.25") == ((0.5,) * 3, (0.25,) * 3)
    assert made(COLOUR, "0.1,0.2,0.3/1") == ((0.1, 0.2, 0.3), (1.0,) * 3)
    assert made(GREY, "0.5/0.5") == ((0.5,), (0.5,))


@pytest.mark.parametrize("text", ["imagnet", "0.5", "0.5/0", "0.5/-1", "nan/1", "0.1,0.2/1", "0.5/1/1", ""])
def test_other_constants_are_refused(text):
    with pytest.raises(InputError, match=r"task.normalize = .*give auto, imagenet, none, or mean/deviation"):
        set_normalization(COLOUR, TaskOptions(normalize=text))


def test_constants_that_do_not_fit_the_images():
    with pytest.raises(InputError, match=r"'imagenet' is for color images, and these have 1 channel; give numbers"):
        set_normalization(GREY, TaskOptions(normalize="imagenet"))
    with pytest.raises(InputError, match=r"stored as pixels, which those of this task are not: set it to 'auto'"):
        prepare(find_task("digits"), TaskOptions(clients=2, partition="iid", normalize="none"), 1, engine="local")
    with pytest.raises(InputError, match="is for images that are stored as pixels"):
        set_normalization(InputSpec("tokens", (4,)), TaskOptions(normalize="imagenet"))
