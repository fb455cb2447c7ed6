"""Images as a model takes them: files or stored pixels become whole numbers 0..255 of one size, channel by channel.

Resizing is Pillow's bilinear filter (which averages over what it shrinks) to exactly the asked size, whatever the
shape of the image was; that is FedBM's transform. EXIF orientation is ignored, an alpha channel is dropped, grey
becomes RGB by repeating it, 16-bit grey is scaled to 8 bits.

Shape suffixes: N rows, H height, W width, C channels (1 or 3), D = C x H x W values of an image.
"""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from anchorfl.tasks.arrays.arrow import Column, Table, chunked_lists, list_parts
from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.regular_files import regular
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.scaling import IMAGENET_MEAN, IMAGENET_STD

LEVELS = 255
DECODERS = 8
"""Images looked at at once, at most."""
CHUNK_BYTES = 1 << 30
"""Bytes of a chunk of a column."""
Pixels = npt.NDArray[np.uint8]
_FAULTS = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, IndexError, KeyError, TypeError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)
"""Errors of Pillow on damaged files."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Formats that are read, by content and whatever the name. Pillow knows more; for EPS it would start Ghostscript."""
# an image of more than Pillow's 89 million pixels is refused and not only warned of: decoded it takes 360 MB
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
# what else it warns of (a damaged EXIF block) it does without
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def image_spec(options: TaskOptions, default_size: int, channels: int = 3) -> InputSpec:
    """Return the spec of images of ``options.image_size`` (0: ``default_size``) pixels in height and width.

    RGB is scaled with ImageNet's mean and deviation, as the papers do, grey only to [0, 1]. Raises InputError on a size
    below 0.
    """
    size = options.image_size or default_size
    if size < 1:
        raise InputError(
            f"[task] image_size = {size} must be at least 1, or 0 for the data set's own size of {default_size}"
        )
    shape = (channels, size, size)
    if channels == 1:
        return InputSpec("image", shape, levels=LEVELS)
    return InputSpec("image", shape, mean=IMAGENET_MEAN, std=IMAGENET_STD, levels=LEVELS)


def path_column(paths: Sequence[Path | str]) -> Column:
    """Return a string column of the absolute paths, for workers. Raises InputError on a name that is no UTF-8."""
    names = [os.path.abspath(path) for path in paths]
    for name in names:
        readable = name.encode("utf-8", "backslashreplace").decode()
        if readable != name:
            raise InputError(f"{readable}: the file name is no UTF-8; rename the file")
    return pa.array(names, pa.string())


def pixel_column(images: Pixels) -> Column:
    """Return a fixed-size list<uint8> column of square images [N, H, W, C] or grey [N, H, W], flattened so."""
    if images.ndim not in (3, 4) or images.shape[1] != images.shape[2] or images.shape[3:] not in ((), (1,), (3,)):
        raise ValueError(f"images must be square, grey or RGB, not of shape {images.shape}")
    return chunked_lists(images.reshape(len(images), int(np.prod(images.shape[1:]))), CHUNK_BYTES)


def faults(paths: Sequence[Path | str], whole: bool) -> list[str]:
    """Return the fault of every image file, empty where there is none.

    whole: as far as decoding tells, not only its first bytes (about 0.1 ms); ``read`` looks so far where bad rows are
    to be left out, else ``encode`` finds it.
    """
    with ThreadPoolExecutor(min(DECODERS, os.cpu_count() or 1)) as pool:
        return list(pool.map(partial(_fault, whole=whole), paths))


def encode_paths(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` (fixed-size list<uint8> in the order C, H, W) in place of ``path``.

    Raises InputError with the path of a file that does not decode.
    """
    channels, height, width = spec.shape
    x_NCHW = np.empty((table.num_rows, *spec.shape), dtype=np.uint8)
    for row, path in enumerate(table["path"].to_pylist()):
        x_NCHW[row] = _resize(_decode(path), channels, height, width)
    return _with_x(table, "path", x_NCHW)


def encode_pixels(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` as ``encode_paths`` gives it in place of ``pixels``: the values 0..255 of square
    images, as ``pixel_column`` has them. Raises InputError on other values or numbers of values.
    """
    channels, height, width = spec.shape
    x_NHWC = _pixel_arrays(table["pixels"])
    if x_NHWC.shape[1:3] == (height, width) and x_NHWC.shape[3] in (1, channels):
        x_NCHW = np.broadcast_to(x_NHWC.transpose(0, 3, 1, 2), (len(x_NHWC), *spec.shape))
    else:
        x_NCHW = np.empty((len(x_NHWC), *spec.shape), dtype=np.uint8)
        for row, pixels in enumerate(x_NHWC):
            image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
            x_NCHW[row] = _resize(image, channels, height, width)
    return _with_x(table, "pixels", x_NCHW)


def encode_images(table: Table, spec: InputSpec) -> Table:
    """Encode the payload ``image``, by its type a path or stored pixels: some data sets come as files and as arrays."""
    if pa.types.is_string(table["image"].type):
        return encode_paths(table.rename_columns({"image": "path"}), spec)
    return encode_pixels(table.rename_columns({"image": "pixels"}), spec)


def _fault(path: Path | str, whole: bool) -> str:
    try:
        if whole:
            _load(path)
        else:
            Image.open(regular(Path(path)), formats=FORMATS).close()
    except _FAULTS as error:
        return _reason(error)
    return ""


def _load(path: Path | str) -> Image.Image:
    """Return the image in a file, 8 bits per value. Raises one of ``_FAULTS``."""
    with Image.open(regular(Path(path)), formats=FORMATS) as image:
        if image.mode == "F":
            raise ValueError("its pixels are fractions; store them with 8 or 16 bits")
        if image.mode.startswith("I"):
            return _eight_bits(image)
        if image.mode in ("P", "PA"):  # straight to RGB, Pillow warns about a palette with transparency
            return image.convert("RGBA")
        image.load()
        return image


def _decode(path: str) -> Image.Image:
    """Return the image in a file. Raises InputError with its path."""
    try:
        return _load(path)
    except _FAULTS as error:
        raise InputError(
            f"{path}: the image cannot be read: {_reason(error)}; get the file again, or delete it"
        ) from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits; Pillow's own conversion would cut everything above 255."""
    values = np.asarray(image).astype(np.int64)
    if values.size and not 0 <= values.min() <= values.max() <= 0xFFFF:
        raise ValueError(f"its pixels are {values.min()}..{values.max()}; store them with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _resize(image: Image.Image, channels: int, height: int, width: int) -> Pixels:
    """Return the image in another size, [C, H, W]."""
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def _pixel_arrays(column: Column) -> Pixels:
    """Return stored pixels as [N, H, W, C]."""
    values, length_N = list_parts(column)
    if not len(length_N):
        return np.empty((0, 1, 1, 1), dtype=np.uint8)
    length = int(length_N[0])
    # no number is both a square and three times a square, so the length alone tells grey from RGB
    fitting = [c for c in (1, 3) if length and round((length / c) ** 0.5) ** 2 * c == length]
    if not fitting or (length_N != length).any():
        other = length_N[length_N != length][:1].tolist() or [length]
        raise InputError(
            f"an image has {other[0]} values; give side x side (grey) or side x side x 3 (RGB), the same for all"
        )
    if values.dtype != np.uint8:
        wrong = np.flatnonzero(~((values >= 0) & (values <= LEVELS) & (values == np.floor(values))))
        if len(wrong):
            raise InputError(
                f"image {wrong[0] // length + 1}: value {values[wrong[0]]} is no whole number 0..{LEVELS}; correct it"
            )
    side = round((length / fitting[0]) ** 0.5)
    return values.astype(np.uint8, copy=False).reshape(-1, side, side, fitting[0])


def _with_x(table: Table, payload: str, x_NCHW: Pixels) -> Table:
    flat = x_NCHW.reshape(len(x_NCHW), int(np.prod(x_NCHW.shape[1:])))
    return table.drop_columns([payload]).append_column("x", chunked_lists(flat, CHUNK_BYTES))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return f"{error}".strip() or type(error).__name__
