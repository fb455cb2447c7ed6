"""PBC and HAM10000: every variant on made-up files, their errors, their numbers and splits on the real ones."""

from __future__ import annotations

import gzip
import re
import shutil
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.files.raw_files import file_names
from anchorfl.tasks.images import ham10000, pbc
from anchorfl.tasks.images.folders import same_content
from anchorfl.tasks.images.ham10000_rows import CODES, DIAGNOSES, KAGGLE
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from tests.tasks.raw_tables import classes, columns, options, put_arrays

META = "HAM10000_metadata.csv.gz"


@pytest.fixture
def pbc_folder(made_up):
    return made_up("pbc", 80, 0)


@pytest.fixture
def cells(pbc_folder, tmp_path):
    return shutil.copytree(pbc_folder, tmp_path / "pbc")


# ---------------------------------------------------------------------------------------------------------------- PBC


def test_variants_of_pbc_need_their_own_files():
    assert file_names(pbc.pbc(), options("npz28")) == ("pbc_28.npz",)
    assert file_names(pbc.pbc(), options("npz64")) == ("pbc_64_subset400.npz",)
    assert file_names(pbc.pbc(), options(""))[3] == "PBC_dataset_normal_DIB/ig/*.jpg"
    assert len(file_names(pbc.pbc(), options("jpg"))) == 8
    with pytest.raises(InputError, match=r"'npz' is no variant of pbc.*it has jpg, npz28, npz64"):
        file_names(pbc.pbc(), options("npz"))
    wanted = "HAM10000_metadata.csv"
    assert file_names(ham10000.ham10000(), options("")) == (wanted, "**/ISIC_*.jpg")
    assert file_names(ham10000.ham10000(), options("hmnist_8_8_L")) == (wanted, "hmnist_8_8_L.csv")


def test_pbc_photographs_and_arrays_agree(pbc_folder):
    files = pbc.read(pbc_folder, options(""))
    arrays = pbc.read(pbc_folder, options("npz28"))
    assert files.num_rows == 82
    assert columns(files, "row", "split", "labels") == columns(arrays, "row", "split", "labels")
    for path, class_ in zip(files["image"].to_pylist(), classes(files), strict=True):
        assert pbc.FOLDERS[path.split("/")[-2]] == pbc.CLASSES[class_]
    x = np.array(pbc.pbc().encode(arrays, pbc.fit(arrays, options("npz28")))["x"].to_pylist(), dtype=float)
    spec = pbc.fit(files, options("jpg", image_size=28))
    other = np.array(pbc.pbc().encode(files, spec)["x"].to_pylist(), dtype=float)
    assert np.median(np.abs(x - other)) < 8  # the arrays are cut a little and reduced with another filter
    assert pbc.fit(files, options("jpg")).shape == (3, 128, 128)
    assert pbc.fit(arrays, options("npz64")).shape == (3, 64, 64)


@pytest.mark.parametrize("seed", range(3))
def test_equal_pictures_are_on_one_side(made_up, seed):
    table = pbc.read(made_up("pbc", 80, seed), options("npz28"))
    pixels = np.array(table["image"].to_pylist(), dtype=np.uint8)
    sides = defaultdict(list)
    for unit, side, class_ in zip(same_content(pixels), table["split"].to_pylist(), classes(table), strict=True):
        sides[unit].append((side, class_))
    twice = [found for found in sides.values() if len(found) > 1]
    assert len(twice) == 2
    assert all(len({side for side, _ in found}) == 1 for found in twice)
    assert sorted(len({class_ for _, class_ in found}) for found in twice) == [1, 2]  # one pair has two classes


@pytest.mark.parametrize("variant", ["jpg", "npz28", "npz64"])
def test_pbc_is_prepared(pbc_folder, tmp_path, variant):
    chosen = TaskOptions(
        name="pbc", root=str(pbc_folder), cache=str(tmp_path), variant=variant, clients=2, partition="iid", image_size=8
    )
    prepared = prepare(pbc.pbc(), chosen, 0, engine="local")
    data = prepared.split("test", Objective("single"))
    assert data.x.shape == (prepared.manifest.test, 3, 8, 8)
    total = sum(prepared.manifest.examples) + prepared.manifest.test + prepared.manifest.validation
    assert total == (40 if variant == "npz64" else 82)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": None}, "no array 'labels'; it needs images, labels, filenames, class_names"),
        ({"images": np.zeros((82, 28, 28), np.uint8)}, "images has shape (82, 28, 28), but needs 4 dimensions"),
        ({"images": np.zeros((82, 28, 27, 3), np.uint8)}, "images has shape (82, 28, 27, 3) of uint8, not (rows, side"),
        ({"images": np.zeros((82, 28, 28, 3))}, "images has shape (82, 28, 28, 3) of float64, not (rows, side"),
        ({"images": np.zeros((81, 28, 28, 3), np.uint8)}, "the arrays have different numbers of rows {'images': 81"),
        (
            {"class_names": np.array(["basofil", "eosinophil"])},
            "unknown class 'basofil' in class_names (did you mean 'basophil'?); the classes are basophil, eosinophil",
        ),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_bad_arrays_are_named(cells, arrays, message, on_bad_row):
    path = cells / "pbc_28.npz"
    put_arrays(path, **arrays)
    with pytest.raises(InputError, match=re.escape(f"{path}: {message}")):
        pbc.read(cells, options("npz28", on_bad_row=on_bad_row))


def test_bad_rows_of_arrays_are_named_or_left_out(cells):
    path = cells / "pbc_28.npz"
    whole = pbc.read(cells, options("npz28"))
    with np.load(path) as content:
        names, labels = content["filenames"], content["labels"]
    names[7] = names[5]
    labels[20], labels[81] = 200, 0
    put_arrays(path, filenames=names, labels=labels)
    messages = [
        f"{path}: row 7: {str(names[5])!r} stands in row 5 already; get the file again",
        f"{path}: row 20: label 200 is no place in class_names (0..7); get the file again",
        f"{path}: row 81: label 0 is basophil, but the file name is {str(names[81])!r}; get the file again",
    ]
    with pytest.raises(InputError, match=re.escape(messages[0])):
        pbc.read(cells, options("npz28"))
    table = pbc.read(cells, options("npz28", on_bad_row="skip"))
    assert skipped(table) == (3, messages)
    kept = [row not in (7, 20, 81) for row in range(82)]
    assert table["row"].to_pylist() == [row for row in range(82) if kept[row]]
    assert table["image"].equals(whole.filter(pa.array(kept))["image"])


def test_pbc_folders_are_checked(cells):
    archive = cells / "PBC_dataset_normal_DIB"
    (archive / "ig").rename(archive / "monocytes")
    with pytest.raises(
        InputError, match=r"monocytes: unknown class folder 'monocytes' \(did you mean 'monocyte'\?\); the folders"
    ):
        pbc.read(cells, options(""))


# ----------------------------------------------------------------------------------------------------------- HAM10000


def test_variants_of_ham_agree(ham_folder):
    tables = {name: ham10000.read(ham_folder, options(name)) for name in ("jpg", "hmnist_8_8_L", "thumbs64")}
    shared = ("row", "split", "labels", "subject")
    assert columns(tables["jpg"], *shared) == columns(tables["hmnist_8_8_L"], *shared)
    assert set(columns(tables["thumbs64"], "row", "split", "subject")) < set(
        columns(tables["jpg"], "row", "split", "subject")
    )
    lines = gzip.decompress((ham_folder / META).read_bytes()).decode().splitlines()[1:]
    for line, (row, labels, lesion, path) in zip(
        lines, columns(tables["jpg"], "row", "labels", "subject", "image"), strict=True
    ):
        assert line.split(",")[:3] == [lesion, path.split("/")[-1][:-4], CODES[labels[0]]]
        assert lines[row] == line
    grey = dict(columns(tables["hmnist_8_8_L"], "row", "image"))
    spec = ham10000.fit(tables["thumbs64"], options("thumbs64", image_size=8))
    x = ham10000.ham10000().encode(tables["thumbs64"], spec)
    for row, values in columns(x, "row", "x"):
        assert np.corrcoef(np.reshape(values, (3, 64)).mean(0), grey[row])[0, 1] > 0.9
    assert spec.shape == (3, 8, 8)
    assert ham10000.fit(tables["jpg"], options("hmnist_8_8_L")).shape == (1, 8, 8)
    assert ham10000.fit(tables["jpg"], options("thumbs64")).shape == (3, 64, 64)
    thumb = dict(columns(tables["thumbs64"], "row", "image"))
    path_of = dict(columns(tables["jpg"], "row", "image"))
    row = min(thumb)
    middle = Image.open(path_of[row]).crop((7, 0, 52, 45)).resize((64, 64), Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(middle, dtype=float).ravel() - thumb[row]).mean() < 8


def test_no_lesion_is_on_two_sides(ham_folder):
    table = ham10000.read(ham_folder, options("hmnist_8_8_L"))
    sides = defaultdict(set)
    for lesion, side in columns(table, "subject", "split"):
        sides[lesion].add(side)
    assert table.num_rows > len(sides)
    assert all(len(found) == 1 for found in sides.values())
    for class_ in range(7):
        assert set(np.array(table["split"])[classes(table) == class_]) == {"train", "validation", "test"}


@pytest.mark.parametrize("variant", ["jpg", "hmnist_8_8_L", "thumbs64"])
def test_ham_is_prepared(ham_folder, tmp_path, variant):
    chosen = TaskOptions(
        name="ham10000", root=str(ham_folder), cache=str(tmp_path), variant=variant, clients=3, beta=1.0,
        partition="dirichlet", image_size=8,
    )  # fmt: skip
    prepared = prepare(ham10000.ham10000(), chosen, 0, engine="local")
    data = prepared.split("test", Objective("single"))
    assert data.x.shape == (prepared.manifest.test, 1 if variant == "hmnist_8_8_L" else 3, 8, 8)
    assert prepared.manifest.class_names == tuple(DIAGNOSES.values())


# ---------------------------------------------------------------------------------------------------------- real data


@pytest.mark.data
@pytest.mark.parametrize("variant", ["npz28", "npz64"])
def test_the_real_cells(data_folder, variant):
    folder = data_folder / "pbc_bloodcells"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    table = pbc.read(folder, options(variant))
    counts = np.bincount(classes(table))
    if variant == "npz64":
        assert counts.tolist() == [50] * 8
        assert Counter(table["split"].to_pylist()) == {"train": 280, "validation": 40, "test": 80}
        return
    text = " ".join(str(pbc.__doc__).split())
    for name, count in zip(pbc.CLASSES, counts.tolist(), strict=True):
        assert f"{name} {count}" in text
    assert table.num_rows == 17092
    assert Counter(table["split"].to_pylist()) == {"train": 11962, "validation": 1710, "test": 3420}
    pixels = table["image"].combine_chunks().flatten().to_numpy().reshape(17092, -1)
    unit_N, side_N = same_content(pixels), np.array(table["split"])
    units, count_U = np.unique(unit_N, return_counts=True)
    twice = [np.flatnonzero(unit_N == unit) for unit in units[count_U > 1]]
    assert len(twice) == 17
    assert all(len(set(side_N[rows])) == 1 for rows in twice)
    assert [set(classes(table)[rows]) for rows in twice if len(set(classes(table)[rows])) > 1] == [{1, 6}]


@pytest.mark.data
@pytest.mark.parametrize("variant", ["hmnist_8_8_L", "thumbs64"])
def test_the_real_lesions(data_folder, variant):
    folder = data_folder / "ham10000"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    table = ham10000.read(folder, options(variant))  # checks every label against the metadata
    counts = np.bincount(classes(table)).tolist()
    sides = defaultdict(set)
    for lesion, side in columns(table, "subject", "split"):
        sides[lesion].add(side)
    assert all(len(found) == 1 for found in sides.values())
    assert set(table["split"].to_pylist()) == {"train", "validation", "test"}
    if variant == "thumbs64":
        assert dict(zip(CODES, counts, strict=True)) == {
            "akiec": 30, "bcc": 29, "bkl": 30, "df": 23, "mel": 30, "nv": 29, "vasc": 30,
        }  # fmt: skip
        return
    text = " ".join(str(ham10000.__doc__).split())
    assert (f"{table.num_rows:,} dermatoscopic" in text, f"{len(sides):,} skin lesions" in text) == (True, True)
    for code, count in zip(CODES, counts, strict=True):
        assert f"{code} {count}" in text
    assert Counter(table["split"].to_pylist()) == {"train": 7013, "validation": 1002, "test": 2000}
    for class_ in range(7):
        own = np.array(table["split"])[classes(table) == class_]
        assert (own == "test").mean() == pytest.approx(0.2, abs=0.015)
        assert (own == "validation").mean() == pytest.approx(0.1, abs=0.015)


def test_kaggles_numbers_are_not_ours():
    """Its table has melanoma last; ours are in the order of the codes."""
    assert KAGGLE == ("akiec", "bcc", "bkl", "df", "nv", "vasc", "mel")
    assert CODES == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert ham10000.CLASSES[CODES.index("mel")] == "melanoma"
