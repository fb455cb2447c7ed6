"""The extreme-classification tasks: files of each set, splits, names; bibtex against the ARFF files it was made of."""

from __future__ import annotations

import gzip
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.sparse import extreme
from anchorfl.tasks.sparse.arff import read_arff
from anchorfl.tasks.sparse.arff_header import read_labels
from anchorfl.tasks.sparse.pairs import PAYLOAD
from anchorfl.tasks.synthetic.xc import SIZES, write

TASKS = {name: getattr(extreme, name.replace("-", "_")) for name in SIZES}


@pytest.fixture
def bibtex(made_up, tmp_path):
    return shutil.copytree(made_up("bibtex", 120, 7), tmp_path, dirs_exist_ok=True)


def read(folder, task=extreme.bibtex, **options):
    return task().read(folder, TaskOptions(name=task().name, **options))


def names(table):
    return json.loads(table.schema.metadata[b"anchorfl.class_names"])


def test_bibtex_is_one_file_and_a_split(bibtex):
    table = read(bibtex)
    assert table["row"].to_pylist() == list(range(120))
    test = {int(line) - 1 for line in (bibtex / "bibtex_tstSplit.txt").read_text().split()}
    assert set(table.filter(pc.equal(table["split"], "test"))["row"].to_pylist()) == test
    assert names(table) == (bibtex / "label_names.txt").read_text().split()
    assert set(pc.list_flatten(table[PAYLOAD]).to_numpy()[1::2]) == {1.0}
    mulan = read(bibtex, variant="mulan")
    assert mulan["split"].to_pylist() == ["train"] * 80 + ["test"] * 40
    assert mulan.drop_columns(["split"]).equals(table.drop_columns(["split"]))
    with pytest.raises(InputError, match=r"'mullan' is no variant of bibtex \(did you mean 'mulan'\?\)"):
        read(bibtex, variant="mullan")


def test_a_file_that_need_not_be_there_is_part_of_the_data(bibtex, tmp_path):
    options = TaskOptions(name="bibtex", cache=str(tmp_path / "cache"))
    digests = [raw_digest(extreme.bibtex(), options, bibtex)]
    path = bibtex / "label_names.txt"
    for change in (lambda: path.write_text(path.read_text().upper()), path.unlink):
        change()
        digests.append(raw_digest(extreme.bibtex(), options, bibtex))
    assert len(set(digests)) == 3
    assert names(read(bibtex))[:2] == ["label 0", "label 1"]


@pytest.mark.parametrize("name", list(SIZES))
@pytest.mark.parametrize("zipped", [False, True])
def test_the_others_are_two_files(tmp_path, name, zipped):
    write(tmp_path, 300, 7, name)
    stem, size = SIZES[name]
    lines = [
        line for part in ("train", "test") for line in (tmp_path / f"{stem}{part}.txt").read_text().splitlines()[1:]
    ]
    if zipped:
        for part in ("train", "test"):
            path = tmp_path / f"{stem}{part}.txt"
            path.with_suffix(".txt.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    task = TASKS[name]()
    assert raw_folder(task, TaskOptions(name=name, root=str(tmp_path))) == tmp_path
    table = read(tmp_path, TASKS[name])
    assert table["split"].to_pylist() == ["train"] * 200 + ["test"] * 100
    assert table["row"].to_pylist() == list(range(300))
    labels = [[int(label) for label in line.partition(" ")[0].split(",") if label] for line in lines]
    assert table["labels"].to_pylist() == labels
    assert [] in labels
    count = [line.count(":") for line in lines]
    assert pc.list_value_length(table[PAYLOAD]).to_pylist() == [2 * n for n in count]
    spec = task.fit(table, TaskOptions())
    assert (spec.kind, spec.shape) == ("sparse", (size.features,))
    expected = ["A baba for the kitchen", 15] if name == "amazontitles-670k" else ["label 0", 15]
    assert [names(table)[0], len(names(table))] == expected


def test_a_bad_row_keeps_the_ids_of_the_others(tmp_path):
    write(tmp_path, 300, 7, "eurlex-4k")
    whole = read(tmp_path, extreme.eurlex_4k)
    path = tmp_path / "eurlex_train.txt"
    lines = path.read_text().splitlines()
    lines[6] += " 5000:1"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(
        InputError, match=re.escape(f"{path}:7: field ") + r".*\('5000:1'\): features must be 0\.\.4999"
    ):
        read(tmp_path, extreme.eurlex_4k)
    table = read(tmp_path, extreme.eurlex_4k, on_bad_row="skip")
    assert skipped(table)[0] == 1
    assert table.to_pylist() == [row for row in whole.to_pylist() if row["row"] != 5]


def test_a_bad_row_of_one_file_keeps_its_split(bibtex):
    path = bibtex / "Bibtex_data.txt"
    whole, lines = read(bibtex), path.read_text().splitlines()
    lines[10] = "999 1:1"
    path.write_text("\n".join(lines) + "\n")
    table = read(bibtex, on_bad_row="skip")
    assert table.to_pylist() == [row for row in whole.to_pylist() if row["row"] != 9]


def test_two_files_must_be_of_one_set(tmp_path):
    write(tmp_path, 300, 7, "eurlex-4k")
    path = tmp_path / "eurlex_test.txt"
    text = path.read_text()
    path.write_text(text.replace("100 5000 15", "100 5001 15", 1))
    with pytest.raises(
        InputError, match=r"eurlex_test\.txt:1: 5001 features and 15 labels, but .*eurlex_train\.txt has"
    ):
        read(tmp_path, extreme.eurlex_4k)
    path.write_text(text)
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(InputError, match=r"several files match \*train\.txt: eurlex_train\.txt, train\.txt; leave one"):
        read(tmp_path, extreme.eurlex_4k)


def test_bad_names_are_refused(bibtex):
    path = bibtex / "label_names.txt"
    path.write_text("a\nb\n")
    with pytest.raises(InputError, match=r"label_names\.txt: 2 names for 6 labels; write one a line"):
        read(bibtex)
    path.write_text("a\n\nc\nd\ne\nf\n")
    with pytest.raises(InputError, match=r"label_names\.txt:2: the line is empty; write the name of label 1"):
        read(bibtex)
    path.unlink()
    assert names(read(bibtex)) == [f"label {number}" for number in range(6)]


def test_a_twin_becomes_a_federation(bibtex, tmp_path):
    options = TaskOptions(name="bibtex", root=str(bibtex), cache=str(tmp_path / "cache"), clients=3, validation=0)
    prepared = prepare(extreme.bibtex(), options, 0, engine="local")
    assert (prepared.manifest.test, len(prepared.manifest.class_names)) == (40, 6)
    test = prepared.split("test", Objective("multi"))
    table = read(bibtex)
    rows = [row for row in table.to_pylist() if row["split"] == "test"]
    assert test.x.shape[0] == 40
    assert test.x.shape[2] == 2
    first = np.array(rows[0][PAYLOAD]).reshape(-1, 2)
    assert test.x[0, : len(first)].numpy() == pytest.approx(first)
    assert (test.x[0, len(first) :] == 0).all()


def test_one_client_for_each_label(bibtex, tmp_path):
    """FedALC's clients: all rows of a label, on the label's client."""
    options = TaskOptions(
        name="bibtex", root=str(bibtex), cache=str(tmp_path / "cache"), partition="one_class", validation=0, clients=6
    )
    prepared = prepare(extreme.bibtex(), options, 0, engine="local")
    table = read(bibtex)
    train = Labels.of_lists(table.filter(pc.equal(table["split"], "train"))["labels"], 6)
    assert list(prepared.manifest.examples) == train.counts().tolist()
    assert list(prepared.manifest.classes) == [(c,) for c in range(6)]


@pytest.mark.data
def test_the_real_bibtex_has_the_published_counts(data_folder):
    table = read(data_folder / "bibtex")
    assert table.num_rows == 7395
    counts = {line["values"]: line["counts"] for line in pc.value_counts(table["split"]).to_pylist()}
    assert counts == {"train": 4880, "test": 2515}
    assert "bibtex 4880/2515, 1836, 159;" in " ".join(str(extreme.__doc__).split())
    assert pc.mean(pc.list_value_length(table["labels"])).as_py() == pytest.approx(2.402, abs=5e-4)
    assert pc.mean(pc.list_value_length(table[PAYLOAD])).as_py() / 2 == pytest.approx(68.66, abs=5e-3)
    labels = Labels.of_lists(table["labels"], 159).counts()
    assert (labels.min(), labels.max()) == (51, 1042)
    assert (len(names(table)), names(table)[0]) == (159, "TAG_2005")
    # 15 rows are duplicates of others
    assert len(set(zip(*(map(tuple, table[c].to_pylist()) for c in ("labels", PAYLOAD)), strict=True))) == 7380


@pytest.mark.data
def test_the_real_bibtex_equals_its_arff_files_row_by_row(data_folder):
    folder = data_folder / "bibtex"
    table = read(folder, variant="mulan")
    parts = [read_arff(folder / f"bibtex-{part}.arff.gz", BadRows(False)) for part in ("train", "test")]
    attributes = parts[0].attributes
    columns = read_labels(folder / "bibtex.xml", attributes)
    assert columns == list(range(1836, 1995))
    assert names(table) == [attributes[column].name for column in columns]
    lengths = np.concatenate([part.length_N for part in parts])
    column_P = np.concatenate([part.column_P for part in parts])
    assert {float(value) for part in parts for value in np.unique(part.value_P)} == {1.0}
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(column_P)).to_pylist()
    assert table["split"].to_pylist() == ["train"] * 4880 + ["test"] * 2515
    assert table["labels"].to_pylist() == [[column - 1836 for column in row if column >= 1836] for row in rows]
    pairs = [[v for column in row if column < 1836 for v in (column + 1.0, 1.0)] for row in rows]
    assert table[PAYLOAD].to_pylist() == pairs
