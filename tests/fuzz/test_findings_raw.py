"""Every input that once did something else than being read or refused in one line, kept as it was found, and its
nearest kin: raw data, images, tables.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from anchorfl.tasks.corpus.corpus_files import Reading, blocks, shards_of
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.decompression import FREE, RATIO
from anchorfl.tasks.files.raw_files import open_text
from anchorfl.tasks.images.arrays import load_arrays
from anchorfl.tasks.images.coco import images_of
from anchorfl.tasks.images.json_file import parsed
from anchorfl.tasks.images.pixels import faults
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.signals.recordings import read_bytes, recording
from anchorfl.tasks.sparse.arff import read_arff
from anchorfl.tasks.sparse.xc_format import read_rows
from anchorfl.tasks.tabular.inspect import inspect_table
from anchorfl.tasks.text.csv_records import read_blocks
from tests.fuzz.found import file, refused
from tests.fuzz.mutations import DEEP
from tests.fuzz.promise import keep

BAD = BadRows(skip=False)
ZEROS = gzip.compress(bytes(8 << 20), 9, mtime=0) * 14
"""Members of a gzip file: 110 KB that unpack to 117 MB."""


# ------------------------------------------------------------------------------------------------------- raw formats


def test_brackets_within_brackets(tmp_path):
    """RecursionError."""
    for data in (b"[" * DEEP, b'{"a":' * DEEP):
        refused(lambda data=data: parsed(file(tmp_path, "a.json", data), dict), "a.json", "brackets")


def test_a_number_of_thousands_of_digits(tmp_path):
    refused(lambda: parsed(file(tmp_path, "a.json", "[" + "9" * 5000 + "]"), dict), "a.json")


@pytest.mark.parametrize("id_", [10**18, 2**63, 10**30])
def test_an_id_beyond_all_others(tmp_path, id_):
    """COCO: an array as long as the largest id, or OverflowError."""
    from anchorfl.tasks.images.coco import CLASSES

    ids = [*range(1, len(CLASSES)), id_]
    content = {
        "categories": [{"id": i, "name": name} for i, name in zip(ids, CLASSES, strict=True)],
        "images": [{"id": id_, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": id_}],
    }
    keep("findings", lambda: images_of(file(tmp_path, "a.json", json.dumps(content)), BAD))


def test_a_header_that_promises_more_labels_than_can_be(tmp_path):
    """XC: a name for each of them."""
    refused(lambda: read_rows(file(tmp_path, "a.txt", f"1 5 {10**17}\n0 1:1\n"), BAD), "a.txt:1")


def test_a_line_without_end(tmp_path):
    """XC and plain text: all of it in memory, and again for every block of it."""
    long = gzip.compress(b"1 5 5\n" + b" " * (200 << 20), 1, mtime=0) + bytes(1)
    refused(lambda: read_rows(file(tmp_path, "a.txt.gz", long), BAD), "a.txt.gz")
    refused(lambda: list(open_text(file(tmp_path, "b.txt.gz", long))), "b.txt.gz")


@pytest.mark.parametrize(
    "read",
    [
        read_bytes,
        lambda path: parsed(path, dict),
        lambda path: read_rows(path, BAD),
        lambda path: list(open_text(path)),
        lambda path: list(read_blocks(path, ("a",), BAD)),
    ],
)
def test_what_unpacks_without_end(tmp_path, read):
    refused(lambda: read(file(tmp_path, "a.csv.gz", ZEROS)), "a.csv.gz")


def test_a_carriage_return_within_a_line(tmp_path):
    """csv.Error."""
    refused(lambda: list(read_blocks(file(tmp_path, "a.csv", "a,b\rc,d\n1,2\n"), ("a",), BAD)), "a.csv")
    text = "@relation a\n@attribute x numeric\n@attribute y {0,1}\n@data\n1\r2,1\n"
    refused(lambda: read_arff(file(tmp_path, "a.arff", text), BAD), "a.arff:5")


@pytest.mark.parametrize("data", [b"\x80", b"1 2\n\xff 3 4\n"])
def test_a_broken_row_that_is_no_text(tmp_path, data):
    """Arrow's callback could not be told, and printed an error of its own."""
    refused(lambda: recording(tmp_path / "a.dat", data, ("t", "x"), " ", False), "a.dat:")


def npz(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return out.getvalue()


def npy(array, shape=None):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    )
    return out.getvalue() + array.tobytes()


def test_arrays_that_claim_terabytes(tmp_path):
    images = np.zeros((2, 4, 4, 3), np.uint8)
    claims = npy(images, (10**9, 100, 100, 3))
    for data in (npz(images=claims), claims, npz(images=npy(images, (2**62, 2**62, 1, 1)))):
        refused(lambda data=data: load_arrays(file(tmp_path, "a.npz", data), {"images": 4}), "a.npz")
    packed = npz(images=npy(np.zeros(300 << 20, np.uint8), (300 << 20, 1, 1, 1)))
    refused(lambda: load_arrays(file(tmp_path, "b.npz", packed), {"images": 4}), "b.npz", "times its size")


def test_arrays_of_other_types(tmp_path):
    """Labels that are fractions or texts: TypeError where they count as places."""
    for labels in (np.array([0.5, 1]), np.array(["a", "b"]), np.array([1j, 2])):
        data = npz(images=npy(np.zeros((2, 4, 4, 3), np.uint8)), labels=npy(labels))
        refused(lambda data=data: load_arrays(file(tmp_path, "a.npz", data), {"images": 4, "labels": 1}), "labels")


# ------------------------------------------------------------------------------------------------------------ images


def png(width, height):
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("whole", [True, False])
def test_images_that_claim_gigabytes(tmp_path, whole):
    """Pillow only warns of the smaller one."""
    for side in (10_000, 60_000):
        (said,) = faults([file(tmp_path, "a.png", png(side, side))], whole)
        assert "decompression bomb" in said


@pytest.mark.parametrize(
    "data",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n",
        b"GIMP brush",
        b"qoif" + bytes(20),
        b"8BPS\x00\x01" + bytes(30),
    ],
)
def test_images_of_formats_that_are_not_read(tmp_path, data):
    """For EPS, whatever its name, Pillow would start Ghostscript."""
    assert faults([file(tmp_path, "a.jpg", data)], True) == ["it is no image of a known format"]


def test_damaged_images_of_every_format(tmp_path):
    """Each cut at every 7th byte; whatever Pillow raises is said of the file."""
    for kind in ("png", "gif", "bmp", "tiff", "webp", "ppm", "jpg"):
        path = tmp_path / f"a.{kind}"
        Image.new("RGB", (9, 7), 5).save(path)
        data = path.read_bytes()
        for size in range(0, len(data), 7):
            path.write_bytes(data[:size])
            keep("findings", lambda path=path: faults([path], True))


# -------------------------------------------------------------------------------------------------------- own tables


def test_a_table_that_unpacks_without_end(tmp_path):
    """One text of 100 characters, millions of times: 10 KB on disk."""
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(8 << 20, np.int32)), pa.array(["x" * 100]))
    pq.write_table(pa.table({"kind": text, "x": pa.array(np.zeros(8 << 20, np.int8))}), tmp_path / "t.parquet")
    refused(lambda: inspect_table(TaskOptions(file=str(tmp_path / "t.parquet"), label_columns="kind")), "t.parquet")


def test_label_columns_that_pack_well_are_read(tmp_path):
    """Numbers of 64 bits, all but one of them 0: 1000 times smaller on disk, and data all the same."""
    rows = 1 << 20
    columns = {f"label_{c}": pa.array(np.arange(rows) == c).cast(pa.int64()) for c in range(12)}
    pq.write_table(pa.table({"x": pa.array(np.arange(rows) >> 17), **columns}), tmp_path / "t.parquet")
    assert 12 * 8 * rows > FREE + RATIO * (tmp_path / "t.parquet").stat().st_size, "more than other data may unpack to"
    found = inspect_table(TaskOptions(file=str(tmp_path / "t.parquet"), label_columns="label_*"))
    assert "12 columns of 0 and 1" in found.text()


def test_a_csv_table_that_unpacks_without_end(tmp_path):
    path = file(
        tmp_path, "t.csv.gz", gzip.compress(b"kind,x\n", mtime=0) + gzip.compress(b"a,1\n" * (2 << 20), 9, mtime=0) * 14
    )
    refused(lambda: inspect_table(TaskOptions(file=str(path), label_columns="kind")), "t.csv.gz", "times its size")


def test_a_row_that_is_no_text(tmp_path):
    path = file(tmp_path, "t.csv", b"kind,x\na,1\nb\xff\n")
    refused(lambda: inspect_table(TaskOptions(file=str(path), label_columns="kind")), "t.csv:3")


@pytest.mark.parametrize("old", [b"text", b"PAR1\x15"])
def test_a_damaged_parquet_corpus(tmp_path, old):
    """OSError of a page, UnicodeDecodeError of a column's name."""
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"text": ["an ash", "an elm"]}), path)
    path.write_bytes(path.read_bytes().replace(old, b"\xe9" * len(old)))

    def read():
        how = Reading()
        return [text for shard in shards_of(path, how) for text in blocks(shard, how)]

    refused(read, "c.parquet")
