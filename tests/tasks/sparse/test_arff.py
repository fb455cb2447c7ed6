"""ARFF files and Mulan's sets: dense and sparse rows, quoted names, the XML order of the labels, every fault."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow.compute as pc
import pytest

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.sparse import arff, mulan
from anchorfl.tasks.sparse.arff import read_arff
from anchorfl.tasks.sparse.arff_header import Attribute, read_labels
from anchorfl.tasks.synthetic.mulan import SHAPES, write

HEAD = r"""% a comment
@RELATION 'made up'

@attribute width numeric
@attribute 'Hammond\'s Flycatcher' {0,1}
@attribute "two words"	{0, 1}
@attribute place {2,5,13}
@attribute color {'dark red',blue}
@attribute height REAL

@data
"""
DENSE = "1.5,0,1,13,blue,-2e-1\n% another comment\n\n0, 1 ,0, 2,'dark red', 0\n"
SPARSE_HEAD = "@relation x\n@attribute a {0,1}\n@attribute b numeric\n@attribute c {0,1}\n@data\n"
TASKS = {task().name: task for task in (getattr(mulan, name) for name in SHAPES)}


@pytest.fixture
def made(tmp_path):
    def make(text, name="x-train.arff"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def matrix(found):
    """Return the rows as a matrix."""
    value_NA = np.zeros((len(found.index_N), len(found.attributes)))
    value_NA[np.repeat(np.arange(len(found.index_N)), found.length_N), found.column_P] = found.value_P
    return value_NA


def read(path, skip=False):
    return read_arff(path, BadRows(skip))


def test_dense_rows_and_every_form_of_an_attribute(made):
    found = read(made(HEAD + DENSE))
    assert found.attributes == (
        Attribute("width"),
        Attribute("Hammond's Flycatcher", ("0", "1")),
        Attribute("two words", ("0", "1")),
        Attribute("place", ("2", "5", "13")),
        Attribute("color", ("dark red", "blue")),
        Attribute("height"),
    )
    assert matrix(found) == pytest.approx(np.array([[1.5, 0, 1, 13, 1, -0.2], [0, 1, 0, 2, 0, 0]]))
    assert (found.rows, found.index_N.tolist()) == (2, [0, 1])


def test_sparse_rows(made):
    found = read(made(SPARSE_HEAD + "{0 1,2 1}\n{}\n{ 1 2.5, 2 1 }\n{1\t-3,0 1,2 0}\n"))
    assert matrix(found).tolist() == [[1, 0, 1], [0, 0, 0], [0, 2.5, 1], [1, -3, 0]]
    assert found.length_N.tolist() == [2, 0, 2, 2]


@pytest.mark.parametrize("batch", [1, 60])
def test_batches_change_nothing(made, monkeypatch, batch):
    path = made(HEAD + DENSE * 5)
    whole = matrix(read(path))
    monkeypatch.setattr(arff, "BATCH", batch)
    assert (matrix(read(path)) == whole).all()
    assert len(whole) == 10


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        (HEAD, "1,0,1,13,blue", "5 fields for 6 attributes; write one value for each"),
        (HEAD, "1,0,1,13,blue,2,3", "7 fields for 6 attributes"),
        (HEAD, "?,0,1,13,blue,2", "field 1 (attribute 'width') is missing ('?'); fill it in or leave the row out"),
        (HEAD, "1,0,1,13,blue,two", "field 6 (attribute 'height') is 'two', which is no number"),
        (HEAD, "1,0,1,13,blue,NaN", "field 6 (attribute 'height') is NaN, which is not finite"),
        (HEAD, "1,2,1,13,blue,2",
         "field 2 (attribute \"Hammond's Flycatcher\") is '2', which is none of its values 0, 1"),
        (HEAD, "1,0,1,14,blue,2",
         "field 4 (attribute 'place') is '14', which is none of its values 2, 5, 13; correct it"),
        (HEAD, "1,0,1,13,bleu,2",
         "field 5 (attribute 'color') is 'bleu', which is none of its values dark red, blue (did you mean 'blue'"),
        (HEAD, "{0 1}", "attribute 'place' is nominal; in sparse rows it must have the values {0,1}, in order"),
        (SPARSE_HEAD, "{0 1,3 1}", "field 2 ('3 1'): columns must be 0..2; correct the row"),
        (SPARSE_HEAD, "{1 2,0 1,1 3}", "field 3 ('1 3'): column 1 stands twice; leave one out"),
        (SPARSE_HEAD, "{0 1,2}", "field 2 ('2') is no column and value; write {column value,...}"),
        (SPARSE_HEAD, "{0 1,-1 1}", "field 2 ('-1 1') is no column and value"),
        (SPARSE_HEAD, "{0 2}", "field 1 (attribute 'a') is '2', which is none of its values 0, 1"),
        (SPARSE_HEAD, "{1 inf}", "field 1 (attribute 'b') is inf, which is not finite"),
        (SPARSE_HEAD, "{0 1", "the row is not closed; write {column value,column value,...}"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_or_left_out(made, head, row, message):
    good = "1.5,0,1,13,blue,-2" if head is HEAD else "{0 1}"
    path = made(head + "\n".join([*[good] * 9, row, *[good] * 4]) + "\n")
    line = head.count("\n") + 10
    with pytest.raises(InputError, match=re.escape(f"{path}:{line}: {message}")):
        read(path)
    bad = BadRows(True)
    found = read_arff(path, bad)
    assert (len(found.index_N), found.rows, bad.count) == (13, 14, 1)
    assert found.index_N.tolist() == [*range(9), *range(10, 14)]
    assert (matrix(found) == matrix(found)[0]).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": there is no @attribute, or no @data below them"),
        ("@relation x\n@data\n1\n", ": there is no @attribute, or no @data below them"),
        ("@attribute a numeric\n", ": there is no @attribute, or no @data below them"),
        ("@attribute a numeric\n@data\n% nothing\n", ": there is no row below @data; get the file again"),
        ("@attribute a\n", ":1: write '@attribute name numeric' or '@attribute name {a,b}', then @data"),
        ("@attribute 'it's so' numeric\n", ":1: write '@attribute name numeric'"),
        ("1,2,3\n", ":1: write '@attribute name numeric'"),
        ("@attribute a numeric\n@attribute b string\n", ":2: attribute 'b' is string; it must be numeric or nominal"),
        ("@attribute a { }\n", ":1: attribute 'a' is empty; it must be numeric or nominal with values"),
    ],
)
def test_a_bad_head_is_refused(made, text, message):
    path = made(text)
    with pytest.raises(InputError, match=re.escape(f"{path}{message}")):
        read(path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["b", "sky"], ":3: label 'sky' is no attribute of the data (did you mean 'skye'?); correct the name"),
        (["b", "b"], ":3: label 'b' stands twice, here or among the attributes"),
        (["twin"], ":2: label 'twin' stands twice, here or among the attributes"),
        (["width"], ":2: the attribute of label 'width' must have the values {0,1}; correct the data"),
        ([], ": it names no label; write <labels>"),
        (["a & b"], ": this is no XML (not well-formed (invalid token): line 2, column"),
    ],
)
def test_a_bad_list_of_labels_is_refused(made, labels, message):
    lines = "".join(f'<label name="{name}"></label>\n' for name in labels)
    path = made(f'<labels xmlns="http://mulan.sourceforge.net/labels">\n{lines}</labels>', "x.xml")
    binary = ("0", "1")
    attributes = [Attribute("width"), *(Attribute(name, binary) for name in ("b", "skye", "twin", "twin"))]
    with pytest.raises(InputError, match=re.escape(f"{path}{message}")):
        read_labels(path, attributes)


def plain(path):
    """Parse the rows of a synthetic file into a matrix, the plain way; return the names of the attributes, too."""
    head, _, rows = path.read_text().partition("@data\n")
    names = [line.split(" ", 1)[1].rsplit(" ", 1)[0] for line in head.splitlines() if line.startswith("@attribute")]
    value_NA = np.zeros((rows.count("\n"), len(names)))
    for n, row in enumerate(rows.splitlines()):
        if row.startswith("{"):
            for field in row[1:-1].split(","):
                column, value = field.split()
                value_NA[n, int(column)] = float(value)
        else:
            value_NA[n] = [float(value) for value in row.split(",")]
    return value_NA, [name.strip("'").replace("\\'", "'") for name in names]


@pytest.mark.parametrize("name", list(SHAPES))
def test_what_a_twin_wrote_comes_back(tmp_path, name):
    write(tmp_path, 90, 5, name)
    task = TASKS[name]()
    options = TaskOptions(name=name)
    table = task.read(tmp_path, options)
    parts = ["CAL500.arff"] if name == "cal500" else [f"{SHAPES[name].stem}-{part}.arff" for part in ("train", "test")]
    value_NA = np.concatenate([plain(tmp_path / part)[0] for part in parts])
    names = plain(tmp_path / parts[0])[1]
    classes = json.loads(table.schema.metadata[b"anchorfl.class_names"])
    assert classes == names[SHAPES[name].features :][::-1]  # the XML file has them the other way round
    assert "Maker's 1" in classes
    labels = [sorted(classes.index(names[a]) for a in np.flatnonzero(row) if names[a] in classes) for row in value_NA]
    assert table["labels"].to_pylist() == labels
    assert table["row"].to_pylist() == list(range(90))
    split = table["split"].to_pylist()
    assert (split.count("train"), split.count("test")) == (60, 30)
    assert (split == ["train"] * 60 + ["test"] * 30) == (name != "cal500")
    x_NF = value_NA[:, : SHAPES[name].features]
    spec = task.fit(table.filter(pc.equal(table["split"], "train")), options)
    encoded = task.encode(table, spec)["x"].to_pylist()
    if spec.mean:
        train = x_NF[np.array(split) == "train"]
        std = np.where(train.std(0) > 1e-12, train.std(0), 1)
        x_NF = (x_NF - train.mean(0)) / std
        assert np.array(encoded)[:, 1::2] == pytest.approx(x_NF, abs=1e-5)
        assert len(spec.std) == SHAPES[name].features
    else:
        assert encoded == [[v for f in np.flatnonzero(row) for v in (f + 1, 1)] for row in x_NF]


def test_bad_rows_keep_the_ids_of_the_others(tmp_path):
    write(tmp_path, 30, 1, "medical")
    whole = mulan.medical().read(tmp_path, TaskOptions())
    path = tmp_path / "medical-train.arff"
    lines = path.read_text().splitlines()
    lines[-3] = "{0 1,9999 1}"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=re.escape(f"{path}:{len(lines) - 2}: field 2 ('9999 1'): columns must be")):
        mulan.medical().read(tmp_path, TaskOptions())
    table = mulan.medical().read(tmp_path, TaskOptions(on_bad_row="skip"))
    assert skipped(table)[0] == 1
    assert table.to_pylist() == [row for row in whole.to_pylist() if row["row"] != 17]


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    write(tmp_path, 60, 1, "scene")
    test = tmp_path / "scene-test.arff"
    text = test.read_text()
    test.write_text(text.replace("@attribute Att3 ", "@attribute Att33 "))
    with pytest.raises(
        InputError, match=r"scene-test\.arff: attribute 3 is 'Att33', but 'Att3' in .*scene-train\.arff"
    ):
        mulan.scene().read(tmp_path, TaskOptions())
    test.write_text(text)
    (tmp_path / "other-test.arff").write_text(text)
    with pytest.raises(InputError, match=r"several files match \*test\*\.arff: other-test\.arff, scene-test\.arff"):
        mulan.scene().read(tmp_path, TaskOptions())


def test_a_twin_becomes_a_federation(tmp_path, monkeypatch):
    write(tmp_path, 240, 2, "emotions")
    monkeypatch.setattr("anchorfl.tasks.registry.TASKS", {"emotions": mulan.emotions})
    options = TaskOptions(name="emotions", root=str(tmp_path), cache=str(tmp_path / "cache"), clients=3, validation=0)
    prepared = prepare(mulan.emotions(), options, 0, engine="local")
    assert prepared.manifest.test == 80
    assert prepared.manifest.class_names == ("Label5", "Maker's 4", "Label3", "Label2", "Maker's 1", "Label0")
    assert len(prepared.manifest.spec.mean) == SHAPES["emotions"].features
    x = prepared.split("test", Objective("multi")).x
    assert tuple(x.shape) == (80, SHAPES["emotions"].features, 2)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "train", "test", "features", "first", "last"),
    [("scene", 1211, 1196, 294, "Beach", "Urban"), ("yeast", 1500, 917, 103, "Class1", "Class14")],
)
def test_the_real_sets_have_the_counts_of_the_docstring(data_folder, name, train, test, features, first, last):
    task = TASKS[name]()
    table = task.read(data_folder / task.folder, TaskOptions(name=name))
    split = table["split"].to_pylist()
    assert (split.count("train"), split.count("test")) == (train, test)
    names = json.loads(table.schema.metadata[b"anchorfl.class_names"])
    assert (names[0], names[-1]) == (first, last)
    spec = task.fit(table.filter(pc.equal(table["split"], "train")), TaskOptions())
    assert spec.shape == (features,)
    text = " ".join(str(mulan.__doc__).split())
    assert f"{name} {train}/{test}, {features}, {len(names)};" in text
    x = np.array(task.encode(table.filter(pc.equal(table["split"], "train")), spec)["x"].to_pylist())[:, 1::2]
    assert x.mean(0) == pytest.approx(np.zeros(features), abs=1e-5)
    assert x.std(0) == pytest.approx(np.ones(features), abs=1e-4)
