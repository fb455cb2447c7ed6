"""Text columns among several inputs: which become categories, what is fitted, and what new rows become."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from anchorfl.tasks.contract import InputSpec, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.json_schema import converted
from anchorfl.tasks.ingest import ingest
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.input_spec import check_fits
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular import samples
from anchorfl.tasks.tabular.inspect import inspect_table
from anchorfl.tasks.tabular.reading import Faults
from anchorfl.tasks.tabular.samples import encode_vectors
from anchorfl.tasks.tabular.schema import Schema
from anchorfl.tasks.tabular.table import read, read_samples, resolve_options
from tests.tasks.own_tables import csv, parquet, table


def flowers(rows=60):
    """Columns with two texts between numbers; ``blue`` is in the test rows only."""
    return {
        "length": [float(i % 7) for i in range(rows)],
        "colour": [("red", "green", None, " red ", "")[i % 5] if i < 40 else "blue" for i in range(rows)],
        "width": [float(i % 4) for i in range(rows)],
        "soil": pa.array([("sand", "clay")[i % 3 // 2] for i in range(rows)]).dictionary_encode(),
        "kind": [("a", "b")[i // 2 % 2] for i in range(rows)],
        "part": ["train" if i < 40 else "test" for i in range(rows)],
    }


def fitted(raw, task, options):
    return task.fit(raw.filter(pc.equal(raw["split"], "train")), options)


def values_of(encoded):
    x = np.array(encoded["x"].to_pylist())
    assert (x[:, ::2] == np.arange(1, x.shape[1] // 2 + 1)).all()
    return x[:, 1::2]


def test_words_with_accents_of_either_form_are_one(tmp_path):
    accents = {"green": "gr\u00fcn", " red ": "gru\u0308n"}
    columns = flowers() | {"colour": [accents.get(text, text) for text in flowers()["colour"]]}
    task, raw, options = table(parquet(tmp_path, columns), split_column="part")
    spec = fitted(raw, task, options)
    assert spec.columns.categories["colour"] == ("gr\u00fcn", "red")
    at = spec.columns.inputs.index("colour")
    assert values_of(task.encode(raw, spec))[:5, at].tolist() == [0, 1, 0, 1, 0]
    older = replace(spec.columns, categories=spec.columns.categories | {"colour": ("gru\u0308n", "red")})
    assert task.encode(raw, replace(spec, columns=older)) == task.encode(raw, spec)


@pytest.mark.parametrize("inputs", ["", "length,colour,width,soil"])
def test_categories_are_those_of_training_and_stay_0_and_1_in_the_order_of_the_columns(tmp_path, inputs):
    task, raw, options = table(parquet(tmp_path, flowers()), split_column="part", input_columns=inputs)
    spec = fitted(raw, task, options)
    assert spec.columns.inputs == ("length", "colour", "width", "soil")
    assert spec.columns.categories == {"colour": ("green", "red"), "soil": ("clay", "sand")}
    assert spec.shape == (6,)
    assert (spec.mean[1:3], spec.std[1:3]) == ((0, 0), (1, 1))
    assert (spec.mean[4:], spec.std[4:]) == ((0, 0), (1, 1))
    x = values_of(task.encode(raw, spec))
    assert x[:5, 1:3].tolist() == [[0, 1], [1, 0], [0, 0], [0, 1], [0, 0]], "spaces around a word do not count"
    assert not x[40:, 1:3].any(), "of the test rows alone"
    assert x[:3, 4:].tolist() == [[0, 1], [0, 1], [1, 0]]
    assert x[:40, [0, 3]].mean(0) == pytest.approx([0, 0], abs=1e-6)
    assert x[:40, [0, 3]].std(0) == pytest.approx([1, 1], rel=1e-6)


def test_the_numbers_beside_categories_are_what_they_are_without(tmp_path):
    columns = flowers()
    made = []
    for inputs in ("length,width", "length,colour,width"):
        task, raw, options = table(parquet(tmp_path, columns), split_column="part", input_columns=inputs)
        spec = fitted(raw, task, options)
        made.append(values_of(task.encode(raw, spec)))
    assert np.array_equal(made[0], made[1][:, [0, 3]])


def test_the_order_is_that_of_the_option(tmp_path):
    task, raw, options = table(parquet(tmp_path, flowers()), split_column="part", input_columns="soil,w*,colour")
    spec = fitted(raw, task, options)
    assert (spec.columns.inputs, spec.shape) == (("soil", "width", "colour"), (5,))
    assert values_of(task.encode(raw, spec))[0, [0, 1, 3, 4]].tolist() == [0, 1, 0, 1]


def test_of_many_words_the_most_frequent_have_a_feature(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "CATEGORIES", 2)
    columns = {"x": [1.0] * 60, "word": (["w3", "w1", "w2", "w1"] * 12 + ["w0"] * 12), "kind": ["a", "b"] * 30}
    columns["part"] = ["train"] * 48 + ["test"] * 12
    task, raw, options = table(parquet(tmp_path, columns), split_column="part")
    spec = fitted(raw, task, options)
    assert spec.columns.categories == {"word": ("w1", "w2")}, "of equally frequent words the first"
    assert values_of(task.encode(raw, spec))[:4, 1:].tolist() == [[0, 0], [1, 0], [0, 1], [1, 0]]


def test_new_rows_are_encoded_as_those_of_the_run(tmp_path):
    path = parquet(tmp_path, flowers())
    task, raw, options = table(path, split_column="part")
    spec = converted({"kind": "sparse", **_json(fitted(raw, task, options))}, InputSpec)
    found = read_samples(Path(path), spec, "single", task.class_names)
    assert encode_vectors(found.table, spec)["x"].equals(task.encode(raw, spec)["x"])
    cells = "soil,colour,width,length\nsand,violet,1,2\n,red,1,2\nclay,,1,2\n"
    found = read_samples(Path(csv(tmp_path, cells)), spec, "single", task.class_names)
    x = values_of(encode_vectors(found.table, spec))
    assert x[:, [1, 2, 4, 5]].tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert np.isfinite(x).all()
    found = read_samples(Path(csv(tmp_path, "soil,colour,width,length\n,,1,2\n")), spec, "single", task.class_names)
    assert not values_of(encode_vectors(found.table, spec))[:, [1, 2, 4, 5]].any(), "a column without any word"
    for nothing in (pa.nulls(1), [float("nan")]):
        parquet(tmp_path, {"length": [1.0], "width": [1], "soil": ["sand"], "colour": nothing})
        found = read_samples(Path(path), spec, "single", task.class_names)
        assert values_of(encode_vectors(found.table, spec))[0, [1, 2, 4, 5]].tolist() == [0, 0, 0, 1]
    head = "soil,colour,width,length\n"
    found = read_samples(Path(csv(tmp_path, f"{head}sand,7,1,2\n")), spec, "single", task.class_names)
    unknown = values_of(encode_vectors(found.table, spec))[0, [1, 2, 4, 5]].tolist()
    assert unknown == [0, 0, 0, 1], "a word that the model does not know, as beside a text"
    with pytest.raises(InputError, match=r"column 'width' holds"):
        read_samples(Path(csv(tmp_path, f"{head}s,red,x,2\n")), spec, "single", task.class_names)


def _json(spec):
    columns = {"inputs": list(spec.columns.inputs), "labels": list(spec.columns.labels)}
    columns |= {"values": list(spec.columns.values)}
    columns |= {"categories": {name: list(words) for name, words in spec.columns.categories.items()}}
    return {"shape": list(spec.shape), "mean": list(spec.mean), "std": list(spec.std), "columns": columns}


def given(tmp_path, words, spec, name="b"):
    """Prepare a table of one category column with the form of another one's inputs."""
    file = tmp_path / f"{name}.csv"
    file.write_text("n,k,kind\n" + "".join(f"{i},{w},{'xy'[i % 2]}\n" for i, w in enumerate(words)))
    options = TaskOptions(file=str(file), cache=str(tmp_path / "cache"), label_columns="kind", input_columns="n,k",
                          clients=2, partition="iid", input_spec=spec, min_positives=1)  # fmt: skip
    options = resolve_options(options, lambda line: None)
    return prepare(task_of(options), options, 1, engine="local")


def test_a_given_form_may_have_words_that_these_rows_lack_and_no_other_kind_of_cell(tmp_path):
    form = given(tmp_path, ["p", "q", "r"] * 20, "", "a").folder
    there = given(tmp_path, ["p", "q", "s"] * 20, form)
    assert there.manifest.spec.columns.categories == {"k": ("p", "q", "r")}
    x = there.client(0, Objective("single")).x.numpy()[..., 1]
    assert x.shape[1] == 4
    assert not x[:, 3].any(), "nobody has r"
    assert 0 < x[:, 1].sum() < len(x)
    with pytest.raises(InputError, match=r"column 'k' holds texts, and that of these data numbers; write both alike"):
        given(tmp_path, [0, 1, 2] * 20, form, "c")
    numbers = given(tmp_path, [0, 1, 2] * 20, "", "d").folder
    with pytest.raises(InputError, match=r"column 'k' holds numbers, and that of these data texts"):
        given(tmp_path, ["p", "q", "r"] * 20, numbers, "e")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"shape": []}, "a sample of shape () cannot be"),
        ({"std": [0.0] * 4}, "a deviation must be above 0"),
        ({"mean": [], "std": []}, "it scales its inputs otherwise than these data need it"),
    ],
)
def test_a_given_form_that_cannot_be_is_refused(tmp_path, change, line):
    folder = Path(given(tmp_path, ["p", "q", "r"] * 20, "", "a").folder)
    content = json.loads((folder / "manifest.json").read_text())
    form = tmp_path / "form"
    form.mkdir()
    (form / "manifest.json").write_text(json.dumps(content | {"spec": content["spec"] | change}))
    with pytest.raises(InputError, match=re.escape(line)):
        given(tmp_path, ["p", "q", "r"] * 20, str(form))


def test_a_given_form_of_images_may_scale_them_otherwise():
    """They are stored as levels; tables and recordings are stored as they are scaled."""
    own = InputSpec("image", (3, 8, 8), levels=255, mean=(0.5,) * 3, std=(0.2,) * 3)
    plain = replace(own, mean=(), std=())
    assert check_fits(plain, own) is plain
    assert check_fits(own, plain) is own
    with pytest.raises(InputError, match="it scales its inputs otherwise"):
        check_fits(replace(own, levels=0), own)


def test_a_file_whose_words_all_look_like_numbers_is_read_by_the_columns_of_another(tmp_path):
    """As one site's is by those of the server's: 1 and 2 are words there; 1.5 is none that a reader could know."""
    schema = Schema(
        ("kind",), "value", ("x", "y"), ("x", "y"), ("n", "k"), "numbers", categories={"k": ("1", "2", "3a")}
    )
    table = pa.table({"n": [0.0, 1.0, 2.0], "k": pa.array([1, 2, None])})
    values = samples.payload(table, schema, Faults(tmp_path / "b.csv", np.arange(3)))
    place_N = np.array(values.to_pylist())[:, 1]
    assert place_N[:2].tolist() == [0.0, 1.0]
    assert np.isnan(place_N[2])
    faults = Faults(tmp_path / "b.csv", np.arange(3))
    samples.payload(table.set_column(1, "k", pa.array([1.5, None, 2.0])), schema, faults)
    with pytest.raises(InputError, match=r"row 1: column 'k' holds double, and is one of texts"):
        faults.settle(BadRows(skip=False))


@pytest.mark.parametrize(
    ("words", "labels", "alone"),
    [
        (["01", "02", "x"], ["a", "b"], "n,k,kind\n1,01,a\n2,02,b\n"),
        (["NA", "p"], ["a", "b"], "n,k,kind\n1,NA,a\n2,NA,b\n"),
        (["p", "q"], ["01", "1", "x"], "n,k,kind\n1,p,01\n2,p,01\n"),
    ],
)
def test_a_sites_own_rows_are_read_as_those_of_the_whole_table(tmp_path, words, labels, alone):
    """Which some of them do not look like: 01 is a number by itself, and NA no value."""
    schema = Schema(
        ("kind",), "value", tuple(labels), tuple(labels), ("n", "k"), "numbers", categories={"k": tuple(words)}
    )
    options = TaskOptions(file="site.csv", sites="a,b")

    def rows_of(text):
        (tmp_path / "site.csv").write_text(text)
        got = read(tmp_path, options, schema=schema)
        return got["labels"].to_pylist()[:2], got["values"].to_pylist()[:2]

    assert rows_of(alone) == rows_of(f"{alone}3,{words[-1]},{labels[-1]}\n")


def test_a_sample_is_read_alike_whatever_stands_beside_it(tmp_path):
    """NA alone was no value, and beside another word a word."""
    rows = [f"{i % 7}.5,{('NA', 'NA', 'Gd', 'Ex')[i % 4]},{'ab'[i % 2]}" for i in range(60)]
    task, raw, options = table(csv(tmp_path, "\n".join(["size,pool,kind", *rows]) + "\n"))
    spec = fitted(raw, task, options)

    def first(*cells):
        path = csv(tmp_path, "\n".join(["size,pool", *(f"0.5,{cell}" for cell in cells)]) + "\n", "new.csv")
        encoded = encode_vectors(read_samples(Path(path), spec, task.kind, task.class_names).table, spec)
        return encoded["x"].to_pylist()[0]

    assert first("NA") == first("NA", "Gd") == first("NA", "other")
    assert first("NA") != first("Gd")


def test_only_few_words_are_guessed_and_it_is_said(tmp_path):
    columns = flowers() | {"note": [f"w{i // 2}" for i in range(60)], "one": ["same"] * 60}
    path, said = parquet(tmp_path, columns), []
    resolve_options(TaskOptions(file=path, label_columns="kind", split_column="part"), said.append)
    assert any("colour, soil" in line and "categories" in line for line in said)
    assert any("not used" in line and "note (" in line and "one (" in line for line in said)
    text = inspect_table(TaskOptions(file=path, label_columns="kind", split_column="part")).text()
    assert "2 columns; categories, one-hot: colour (3 words), soil (2 words)" in text
    assert "not used note (" in text
    named = inspect_table(
        TaskOptions(file=path, label_columns="kind", split_column="part", input_columns="length,note")
    )
    assert "note (30 words)" in named.text()


def test_categories_alone_are_enough(tmp_path):
    columns = {name: column for name, column in flowers().items() if name not in ("length", "width")}
    task, raw, options = table(parquet(tmp_path, columns), split_column="part")
    assert fitted(raw, task, options).shape == (4,)
    del columns["soil"]
    assert table(parquet(tmp_path, columns | {"colour": ["x", "y"] * 30}), split_column="part")[0].payload == "text"


@pytest.mark.parametrize(
    ("word", "column"),
    [
        ("are the same", [f"w{i}" for i in range(60)]),
        ("paths of images", [f"{i % 3}.png" for i in range(60)]),
    ],
)
def test_texts_that_are_no_categories_are_refused(tmp_path, word, column):
    path = parquet(tmp_path, flowers() | {"text": column})
    with pytest.raises(InputError, match=rf"column 'text' holds .*{word}"):
        table(path, split_column="part", input_columns="length,text")


def test_nothing_in_training_is_refused(tmp_path):
    columns = {"u": [None] * 40 + ["v", "w"] * 10, "v": [None] * 40 + ["v", "w"] * 10}
    columns |= {"kind": ["a", "b"] * 30, "part": ["train"] * 40 + ["test"] * 20}
    task, raw, options = table(parquet(tmp_path, columns), split_column="part", input_columns="u,v")
    with pytest.raises(InputError, match="any training row: u, v"):
        fitted(raw, task, options)


def test_the_class_under_another_name_is_asked_about(tmp_path):
    columns = flowers() | {"name": [("ash", "elm")[i // 2 % 2] for i in range(60)]}
    path = parquet(tmp_path, columns)
    with pytest.raises(InputError, match=r"'name' .*ignore_columns name.*input_columns length,colour,width,soil,name"):
        table(path, split_column="part")
    task, _, _ = table(path, split_column="part", input_columns="length,name")
    assert task.payload == "values"


def test_whose_row_it_is_can_be_an_input(tmp_path):
    columns = flowers() | {"site": [f"h{i % 4}" for i in range(60)]}
    path = parquet(tmp_path, columns)
    with pytest.raises(InputError, match=r"client_column site.*input_columns length,colour,width,soil,site"):
        table(path, split_column="part")


@pytest.mark.ray
def test_ray_gives_the_same_bytes(ray_running, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "BLOCK_ROWS", 7)
    path = parquet(tmp_path, flowers())
    folders = []
    for engine in ("local", "ray"):
        options = TaskOptions(file=path, label_columns="kind", split_column="part", partition="iid", clients=2,
                              classes_per_client=1, cache=str(tmp_path / engine))  # fmt: skip
        folders.append(prepare(task_of(options), options, 0, engine=engine))
    local, remote = folders
    assert local.manifest == remote.manifest
    assert local.manifest.spec.columns.categories == {"colour": ("green", "red"), "soil": ("clay", "sand")}
    files = sorted(path.name for path in Path(local.folder).glob("*.parquet"))
    for name in files:
        assert pq.read_table(Path(local.folder) / name).equals(pq.read_table(Path(remote.folder) / name))
