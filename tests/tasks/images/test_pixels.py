"""Images: what becomes of every kind of file and of stored pixels."""

from __future__ import annotations

import io
import re
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from anchorfl.tasks.arrays.tensors import inputs
from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.images.arrays import load_arrays
from anchorfl.tasks.images.pixels import (
    _eight_bits,
    encode_images,
    encode_paths,
    encode_pixels,
    faults,
    image_spec,
    path_column,
    pixel_column,
)
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.scaling import IMAGENET_MEAN

RGB = InputSpec("image", (3, 4, 6), levels=255)
GREY = InputSpec("image", (1, 4, 6), levels=255)
COLOUR = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3


def encoded(path, spec):
    """x of one file as [C, H, W]."""
    column = encode_paths(pa.table({"row": [0], "path": path_column([path])}), spec)["x"]
    assert column.type == pa.list_(pa.uint8(), int(np.prod(spec.shape)))
    return np.array(column[0].as_py(), dtype=np.uint8).reshape(spec.shape)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def test_colours_keep_their_place(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(COLOUR))
    assert (encoded(path, RGB) == COLOUR.transpose(2, 0, 1)).all()
    luma = COLOUR @ np.array([0.299, 0.587, 0.114])
    assert np.abs(encoded(path, GREY)[0] - luma).max() <= 1


def test_grey_becomes_rgb_by_repeating(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(COLOUR[..., 0]))
    assert (encoded(path, RGB) == COLOUR[..., 0]).all()
    assert (encoded(path, GREY)[0] == COLOUR[..., 0]).all()


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_cut(tmp_path, suffix):
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(COLOUR[..., 0].astype(np.uint16) * 257))
    assert (encoded(path, RGB) == COLOUR[..., 0]).all()


def test_palettes_transparency_and_cmyk(tmp_path):
    colors = Image.fromarray(COLOUR)
    palette = colors.quantize(24)
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert (encoded(saved(tmp_path / "p.png", palette), RGB) == expected).all()
    transparent = saved(tmp_path / "t.png", palette, transparency=bytes(range(24)))
    assert (encoded(transparent, RGB) == expected).all()
    alpha = Image.fromarray(np.dstack([COLOUR, np.full((4, 6), 9, dtype=np.uint8)]))
    assert (encoded(saved(tmp_path / "a.png", alpha), RGB) == COLOUR.transpose(2, 0, 1)).all()
    bits = Image.fromarray((COLOUR[..., 0] > 99).astype(np.uint8) * 255).convert("1")
    assert set(np.unique(encoded(saved(tmp_path / "b.png", bits), RGB))) == {0, 255}
    cmyk = encoded(saved(tmp_path / "c.tif", colors.convert("CMYK")), RGB).astype(int)
    assert np.abs(cmyk - COLOUR.transpose(2, 0, 1)).max() <= 2


def test_resizing_is_pillows_and_ignores_orientation_and_ratio(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    path = saved(tmp_path / "a.png", image, exif=exif)
    expected = np.asarray(image.resize((6, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert (encoded(path, RGB) == expected).all()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"text", "it is no image of a known format"),
        (b"", "it is no image of a known format"),
        (None, "there is no such file"),
        ("cut", "image file is truncated"),
        ("fractions", "its pixels are fractions; store them with 8 or 16 bits"),
        ("wide", r"its pixels are 0\.\.70000; store them with 8 or 16 bits"),
    ],
)
def test_an_image_that_does_not_decode_is_named(tmp_path, content, reason):
    path = tmp_path / "bad.tif"
    if content == "cut":
        saved(tmp_path / "whole.jpg", Image.fromarray(np.tile(COLOUR, (20, 20, 1))))
        path.write_bytes((tmp_path / "whole.jpg").read_bytes()[:-200])
    elif content == "fractions":
        saved(path, Image.fromarray(COLOUR[..., 0].astype(np.float32)))
    elif content == "wide":
        saved(path, Image.fromarray(np.array([[0, 70000]], dtype=np.int32)))
    elif content is not None:
        path.write_bytes(content)
    message = f"{re.escape(str(path))}: the image cannot be read: .*{reason}.*; get the file again, or delete it"
    with pytest.raises(InputError, match=message):
        encoded(path, RGB)
    assert bool(faults([path], whole=False)[0]) == (content in (b"text", b"", None))
    assert re.search(reason, faults([path], whole=True)[0])


def test_stored_pixels_and_files_give_the_same(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (5, 9, 9, 3), dtype=np.uint8)
    paths = path_column([saved(tmp_path / f"{i}.png", Image.fromarray(p)) for i, p in enumerate(pixels)])
    for spec in (RGB, GREY, InputSpec("image", (3, 9, 9), levels=255)):
        expected = encode_paths(pa.table({"row": range(5), "path": paths}), spec)
        assert encode_pixels(pa.table({"row": range(5), "pixels": pixel_column(pixels)}), spec).equals(expected)
        for either in (paths, pixel_column(pixels), pa.array(pixels.reshape(5, -1).astype(float).tolist())):
            table = pa.table({"row": range(5), "image": either})
            assert encode_images(table, spec).equals(expected)
            assert encode_images(table.slice(5), spec).schema == expected.schema
    grey = pa.table({"pixels": pixel_column(pixels[..., 0])})
    for channels in (1, 3):
        spec = InputSpec("image", (channels, 9, 9), levels=255)
        x = np.array(encode_pixels(grey, spec)["x"].to_pylist()).reshape(5, *spec.shape)
        assert (x == pixels[:, None, :, :, 0]).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1] * 5], "an image has 5 values; give side x side"),
        ([[1] * 4, [1] * 12], "an image has 12 values; give side x side"),
        ([[1.0] * 4, [1, 2, 0.5, 4]], r"image 2: value 0\.5 is no whole number 0\.\.255"),
        ([[256] * 4], r"image 1: value 256 is no whole number"),
        ([[float("nan")] * 4], r"image 1: value nan is no whole number"),
    ],
)
def test_stored_pixels_are_checked(rows, message):
    with pytest.raises(InputError, match=message):
        encode_pixels(pa.table({"pixels": pa.array(rows)}), RGB)


def test_the_spec_scales_as_imagenet():
    spec = image_spec(TaskOptions(image_size=2), 128)
    assert (spec.shape, spec.mean, spec.levels) == ((3, 2, 2), IMAGENET_MEAN, 255)
    assert image_spec(TaskOptions(), 128, 1) == InputSpec("image", (1, 128, 128), levels=255)
    x, length = inputs(encode_pixels(pa.table({"pixels": [[255] * 12]}), spec)["x"], spec)
    assert length is None
    assert spec.scaling()(x)[0, :, 0, 0].tolist() == pytest.approx(
        [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    )
    with pytest.raises(InputError, match="image_size = -1 must be at least 1, or 0 for the data set's own size of 128"):
        image_spec(TaskOptions(image_size=-1), 128)


def test_paths_are_absolute_and_readable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert path_column(["a.jpg"]).to_pylist() == [str(tmp_path / "a.jpg")]
    with pytest.raises(InputError, match=r"b\\udcff\.jpg: the file name is no UTF-8; rename the file"):
        path_column(["a.jpg", b"b\xff.jpg".decode("utf-8", "surrogateescape")])


def test_arrays_are_checked(tmp_path):
    path = tmp_path / "a.npz"
    needs = {"images": 2, "labels": 1, "class_names": 1}
    good = {"images": np.zeros((2, 3)), "labels": np.zeros(2), "class_names": np.array(["x"])}
    for content, message in [
        (b"no zip file", r"a\.npz: this \.npz file cannot be read: .*; get it again"),
        ({**good, "images": np.array([[None]])}, r"cannot be read: .*allow_pickle=False"),
        ({"image": good["images"]}, r"no array 'images' \(did you mean 'image'\?\); it needs images, labels"),
        ({**good, "images": np.zeros(2)}, r"images has shape \(2,\), but needs 2 dimensions"),
        ({**good, "labels": np.zeros(3)}, r"different numbers of rows \{'images': 2, 'labels': 3\}"),
    ]:
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.savez(path, **content)
        with pytest.raises(InputError, match=message):
            load_arrays(path, needs)
    np.savez(path, **good)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="cannot be read"):
        load_arrays(path, needs)


def test_arrays_that_are_packed_by_lzma_and_damaged(tmp_path):
    path = tmp_path / "a.npz"
    array = io.BytesIO()
    np.save(array, np.arange(10_000))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("labels.npy", array.getvalue())
    whole = path.read_bytes()
    assert load_arrays(path, {"labels": 1})["labels"].sum() == 49_995_000
    for place in range(60, 400, 20):
        path.write_bytes(whole[:place] + bytes(16) + whole[place + 16 :])
        with pytest.raises(InputError, match=r"a\.npz"):
            load_arrays(path, {"labels": 1})


def test_arrays_that_need_more_memory_than_there_is(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, labels=np.zeros(2))

    def full(*_, **__):
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr(np, "load", full)
    with pytest.raises(InputError, match=r"a\.npz: its arrays need more memory than there is \(Unable .*TiB\); use a"):
        load_arrays(path, {"labels": 1})


def test_digits_have_one_size():
    task = find_task("digits")
    assert task.fit(None, TaskOptions(name="digits", image_size=8)).shape == (1, 8, 8)
    with pytest.raises(InputError, match="image_size = 16: digits are images of 8x8; leave it at 0"):
        task.fit(None, TaskOptions(name="digits", image_size=16))


def test_sixteen_bits_become_the_nearest_eight():
    image = Image.fromarray(np.array([[128, 129, 65535]], np.uint16))
    assert np.asarray(_eight_bits(image)).tolist() == [[0, 1, 255]]
