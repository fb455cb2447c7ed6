"""HAM10000: every fault of its files, named with its place or left out."""

from __future__ import annotations

import gzip
import re
import shutil
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.images import ham10000
from anchorfl.tasks.images.ham10000_rows import CODES
from tests.tasks.raw_tables import columns, left_out, options, put_arrays

META, TABLE, THUMBS = "HAM10000_metadata.csv.gz", "hmnist_8_8_L.csv.gz", "ham10000_thumbs_64.npz"


@pytest.fixture
def lesions(ham_folder, tmp_path):
    return shutil.copytree(ham_folder, tmp_path / "ham")


def read(folder, variant="hmnist_8_8_L", **more):
    return ham10000.read(folder, options(variant, **more))


def edit(path, change):
    """Change the list of lines of a gzipped text."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join(change(lines) or lines).encode()))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("HAM_1,ISIC_0,bkk,histo,1,male,back", "unknown dx 'bkk' (did you mean 'bkl'?), known are akiec, bcc"),
        ("HAM_1,ISIC_0,bkl", "3 fields, the header has 7"),
        ("", "1 fields, the header has 7"),
        (",ISIC_0,bkl,histo,1,male,back", "lesion_id or image_id is empty"),
        ("HAM_1,{first},bkl,histo,1,male,back", "image_id {first} stands in line 2 already"),
    ],
)
def test_bad_metadata_are_named_or_left_out(lesions, line, message):
    whole = read(lesions)
    rows = []
    edit(lesions / META, lambda lines: rows.extend(lines))
    first = rows[1].split(",")[1]
    edit(lesions / META, lambda lines: [*lines[:4], line.format(first=first), *lines[5:]])
    expected = f"{lesions / META}:5: {message.format(first=first)}; correct the line"
    expected = expected.replace("akiec, bcc;", "akiec, bcc, bkl, df, mel, nv, vasc;")
    table = left_out(partial(read, lesions), expected)
    assert table["row"].to_pylist() == [row for row in range(whole.num_rows) if row != 3]
    assert table["image"].to_pylist() == [p for row, p in enumerate(whole["image"].to_pylist()) if row != 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: [*f[:9], "256", *f[10:]], "pixel0009 is '256', not a whole number 0..255"),
        (lambda f: [*f[:9], "1.5", *f[10:]], "pixel0009 is '1.5', not a whole number 0..255"),
        (lambda f: [*f[:-1], "-1"], "label is '-1', not a whole number 0..255"),
        (lambda f: f[:-1], "64 fields, not 64 pixels and a label"),
        (lambda f: [*f[:-1], "9"], "label 9 is no diagnosis, but the same line of the metadata says akiec"),
        (lambda f: [*f[:-1], "6"], "label 6 is mel, but the same line of the metadata says akiec"),
    ],
)
def test_bad_lines_of_pixels_are_named_or_left_out(lesions, change, message):
    whole = read(lesions)
    edit(lesions / TABLE, lambda lines: [*lines[:4], ",".join(change(lines[4].split(","))), *lines[5:]])
    expected = f"{lesions / TABLE}:5: {message}; correct the line"
    table = left_out(partial(read, lesions), expected)
    assert table.equals(whole.filter(pa.array([row != 3 for row in range(whole.num_rows)])))


def test_files_of_other_lengths_and_headers_are_named(lesions):
    total = read(lesions).num_rows
    edit(lesions / TABLE, lambda lines: lines[:-2])
    expected = f"{lesions / META}:{total}: {lesions / TABLE} has no such line (the first of 2 like it); get both files"
    with pytest.raises(InputError, match=re.escape(expected)):
        read(lesions)
    edit(lesions / META, lambda lines: lines[:-5])
    expected = f"{lesions / TABLE}:{total - 3}: {lesions / META} has no such line (the first of 3 like it); get both"
    with pytest.raises(InputError, match=re.escape(expected)):
        read(lesions)
    table = read(lesions, on_bad_row="skip")
    assert (table.num_rows, skipped(table)[0]) == (total - 5, 3)
    edit(lesions / TABLE, lambda lines: lines[1:])
    with pytest.raises(InputError, match=r"hmnist_8_8_L\.csv\.gz:1: the header is not pixel0000\.\.pixel0063,label"):
        read(lesions)
    edit(lesions / META, lambda lines: [lines[0].replace("dx,", "diagnosis,"), *lines[1:]])
    with pytest.raises(InputError, match=r"metadata\.csv\.gz:1: no column dx in the header; get the file again"):
        read(lesions)
    edit(lesions / META, lambda lines: ["lesion_id,image_id,dx"])
    with pytest.raises(InputError, match=r"metadata\.csv\.gz: the file has no rows; get it again"):
        read(lesions)


def test_images_and_metadata_must_match(lesions):
    whole = read(lesions, "")
    photos = sorted(lesions.rglob("*.jpg"))
    row_of = {path.split("/")[-1]: row for row, path in columns(whole, "row", "image")}
    damaged, *gone, twice = photos[0], photos[1], photos[2], photos[3]
    damaged.write_bytes(b"no jpeg")
    for path in gone:
        path.unlink()
    strangers = [lesions / "HAM10000_images_part_1" / f"ISIC_999999{i}.jpg" for i in range(3)]
    for path in strangers:
        shutil.copyfile(twice, path)
    copy = lesions / "copies" / twice.name
    copy.parent.mkdir()
    shutil.copyfile(twice, copy)
    lost = sorted(row_of[path.name] for path in gone)
    of_row = {row: name[:-4] for name, row in row_of.items()}
    stranger = "image ISIC_999999{} has no row in " + str(lesions / META)
    files = whole.num_rows + 1
    missing = [f"{lesions / META}:{r + 2}: image {of_row[r]} is not among the {files} image files" for r in lost]
    messages = [
        f"{copy}: image {twice.stem} is at {twice} already; delete one of the two",
        f"{strangers[0]}: {stranger.format(0)} (the first of 3 like it); add its row or delete the image",
        *(f"{strangers[i]}: {stranger.format(i)}; add its row or delete the image" for i in (1, 2)),
        f"{missing[0]} (the first of 2 like it); get the image",
        f"{missing[1]}; get the image",
        f"{damaged}: the image cannot be read: it is no image of a known format; get the file again, or delete it",
    ]
    table = read(lesions, "", on_bad_row="skip")
    assert sorted(skipped(table)[1]) == sorted(messages)
    left_out = {*lost, row_of[damaged.name]}
    assert columns(table, "row", "split", "subject") == [
        values for values in columns(whole, "row", "split", "subject") if values[0] not in left_out
    ]
    for message, hint in ((messages[0], [copy]), (messages[1], strangers)):
        with pytest.raises(InputError, match=re.escape(message)):
            read(lesions, "")
        for path in hint:
            path.unlink()
    with pytest.raises(InputError, match=f"{of_row[lost[0]]} is not among the {whole.num_rows - 2} image files"):
        read(lesions, "")
    for path in gone:
        shutil.copyfile(twice, path)
    with pytest.raises(InputError, match=re.escape(messages[-1])):
        read(lesions, "")


def test_bad_thumbnails_are_named_or_left_out(lesions):
    path = lesions / THUMBS
    whole = read(lesions, "thumbs64")
    with np.load(path) as content:
        ids, labels = content["image_ids"], content["labels"]
    ids[3], ids[5], labels[8] = "ISIC_9999999", ids[4], (labels[8] + 1) % 7
    put_arrays(path, image_ids=ids, labels=labels)
    says = [CODES[labels[8]], CODES[(labels[8] + 6) % 7]]
    table = read(lesions, "thumbs64", on_bad_row="skip")
    count, listed = skipped(table)
    assert (count, table.num_rows) == (3, whole.num_rows - 3)
    for message, expected in zip(
        listed,
        [
            f"{path}: row 3: image ISIC_9999999 has no row in {lesions / META}; get the file again",
            f"{path}: row 5: image {ids[4]} stands in row 4 already; get the file again",
            f"{path}: row 8: image {ids[8]} is {says[0]}, but {says[1]} in {lesions / META}:",
        ],
        strict=True,
    ):
        assert message.startswith(expected)
    with pytest.raises(InputError, match=re.escape(listed[0])):
        read(lesions, "thumbs64")
    put_arrays(path, images=np.zeros((len(ids), 64, 32, 3), np.uint8))
    with pytest.raises(InputError, match=r"images has shape \(\d+, 64, 32, 3\) of uint8, not \(rows, side, side, 3\)"):
        read(lesions, "thumbs64", on_bad_row="skip")


def test_nothing_left_is_an_error(lesions):
    for path in lesions.rglob("*.jpg"):
        path.write_bytes(b"no jpeg")
    with pytest.raises(InputError, match=r"no image of \*\*/ISIC_\*\.jpg has a good row in HAM10000_metadata\.csv"):
        read(lesions, "", on_bad_row="skip")
    for path in lesions.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(InputError, match=r"no file \*\*/ISIC_\*\.jpg there"):
        read(lesions, "")
