"""A table of the user's own: what its columns become, and what is unknown."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from anchorfl.tasks.contract import InputSpec, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.json_schema import converted
from anchorfl.tasks.files.raw_files import raw_folder, status
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.ingest.raw_table import validate_table
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular.reading import open_file
from anchorfl.tasks.tabular.samples import moments
from anchorfl.tasks.tabular.schema import select_columns
from anchorfl.tasks.tabular.table import read, read_samples, resolve_options, table_task
from tests.tasks.own_tables import KINDS, csv, parquet, table, trees


def test_numbers_are_guessed_standardised_and_gaps_become_the_mean(tmp_path):
    path = parquet(tmp_path, trees())
    task, raw, options = table(path, ignore_columns="site")
    assert (task.name, task.kind, task.class_names, task.payload) == ("table-t", "single", KINDS, "values")
    spec = task.fit(raw, options)
    assert (spec.kind, spec.shape, spec.columns.inputs) == ("sparse", (2,), ("height", "girth"))
    girth = [g for g in trees()["girth"] if g is not None]
    assert spec.mean[1] == pytest.approx(np.mean(girth))
    assert spec.std[1] == pytest.approx(np.std(girth))
    x = np.array(task.encode(raw, spec)["x"].to_pylist())
    assert x[:, [0, 2]].tolist() == [[1.0, 2.0]] * 60
    assert x[0, 3] == 0
    assert x[1, 3] == pytest.approx((1 - np.mean(girth)) / np.std(girth), rel=1e-6)
    assert task.encode(raw.slice(0, 0), spec).num_rows == 0
    old = {"kind": "sparse", "shape": [2], "columns": {"inputs": ["a", "b"]}}
    assert converted(old, InputSpec).columns.labels == ()


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("age, years", ["age, years"]),
        ("sex,age, years, weight,kg,", ["sex", "age, years", "weight,kg,"]),
        ("age,sex", ["age", "sex"]),
        ("age, sex", ["age", "sex"]),
        ("age,age, years", ["age", "age, years"]),
        ("w*,age", ["weight,kg,", "age"]),
        (" sex", [" sex"]),
        ("age, years, sex", ["age, years", " sex"]),
    ],
)
def test_columns_whose_names_have_commas(text, columns):
    names = ["age", "age, years", "sex", "weight,kg,", *([" sex"] if columns[-1] == " sex" else [])]
    assert list(select_columns(text, names, "input_columns", (), Path("t.csv"))) == columns


def test_a_column_that_is_none_of_those_with_commas():
    with pytest.raises(InputError, match=r"input_columns: 'weight' is no column of t\.csv \(did you mean 'weight, kg'"):
        select_columns("age,weight", ["age", "weight, kg"], "input_columns", (), Path("t.csv"))


def test_missing_labels_are_unknown_and_only_in_training(tmp_path):
    _, raw, _ = table(parquet(tmp_path, trees()), ignore_columns="site")
    without = [row for row in raw.to_pylist() if not row["labels"]]
    assert len(without) == 7
    assert all(row["known"] == [] and row["split"] == "train" for row in without)
    assert all(row["known"] is None for row in raw.to_pylist() if row["labels"])
    split = raw["split"].to_pylist()
    assert split.count("test") == round(0.2 * 53)
    assert split == table(parquet(tmp_path, trees()), ignore_columns="site")[1]["split"].to_pylist(), (
        "drawn by a fixed seed"
    )


@pytest.mark.parametrize(
    ("inputs", "kind", "shape", "payload"),
    [
        ("spectrum", "sparse", (3,), "values"),
        ("steps", "series", (2, 2), "values"),
        ("note", "tokens", (50,), "text"),
        ("h*,girth", "sparse", (2,), "values"),
    ],
)
def test_parquet_and_csv_give_the_same(tmp_path, inputs, kind, shape, payload):
    columns = trees()
    rows = [row.values() for row in pa.table(columns).to_pylist()]
    cells = [["" if v is None else f'"{v}"' if isinstance(v, list) else str(v) for v in row] for row in rows]
    lines = [",".join(row) for row in [list(columns), *cells]]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    made = []
    for path in (parquet(tmp_path, columns), tmp_path / "t.csv.gz"):
        task, raw, options = table(path, input_columns=inputs, min_count=1, max_tokens=50)
        spec = task.fit(raw, options)
        assert (spec.kind, spec.shape, task.payload) == (kind, shape, payload)
        encoded = task.encode(raw, spec)
        made.append((spec, encoded["x"].to_pylist(), raw["labels"].to_pylist(), raw["split"].to_pylist()))
    assert made[0] == made[1]


@pytest.mark.parametrize("validation_from", ["server", "clients"])
@pytest.mark.parametrize("client_test", ["none", "0.2"])
def test_rows_of_which_no_label_is_known_are_for_training_alone(tmp_path, client_test, validation_from):
    """With several labels, too: nothing could be scored there, and they would count as wrong in rankings."""
    rng = np.random.default_rng(0)
    known = [i % 4 == 0 for i in range(400)]
    columns = {"x": rng.normal(size=400).tolist(), "y": rng.normal(size=400).tolist()}
    columns |= {name: [int(rng.random() < 0.5) if k else None for k in known] for name in ("is_a", "is_b")}
    columns["is_b"][0] = None  # one label of two is enough
    options = TaskOptions(file=parquet(tmp_path, columns), cache=str(tmp_path / "cache"), label_columns="is_*",
                          clients=2, partition="iid", client_test=client_test, validation=0.1,
                          validation_from=validation_from)  # fmt: skip
    options = resolve_options(options, lambda line: None)
    data = prepare(task_of(options), options, 1, engine="local")
    held = [data.split(name, Objective("multi")) for name in ("validation", "test")]
    held += [data.client_test(m, Objective("multi")) for m in range(2)] if client_test != "none" else []
    assert all(len(rows) and rows.known_NC.any(1).all() for rows in held)
    trained = [data.client(m, Objective("multi")) for m in range(2)]
    assert sum(int((~rows.known_NC.bool()).all(1).sum()) for rows in trained) == 300


def test_label_columns_by_pattern_lose_what_they_share(tmp_path):
    columns = {"x": [1.0] * 40, "label_cat": [0, 1, None, 1] * 10, "label_dog": [1, 0, 0, None] * 10}
    task, raw, _ = table(parquet(tmp_path, columns), label_columns="label_*")
    assert (task.kind, task.class_names) == ("multi", ("cat", "dog"))
    assert raw["labels"].to_pylist()[:4] == [[1], [0], [], [0]]
    assert raw["known"].to_pylist()[:4] == [None, None, [1], [0]]
    task, _, _ = table(parquet(tmp_path, columns), label_columns="label_dog, label_cat")
    assert task.class_names == ("label_dog", "label_cat")


@pytest.mark.parametrize("pattern", [" label_*", "label_* "])
def test_a_blank_around_a_pattern_is_no_part_of_it(tmp_path, pattern):
    columns = {"x": [1.0] * 40, "label_cat": [0, 1] * 20, "label_dog": [1, 0] * 20}
    assert table(parquet(tmp_path, columns), label_columns=pattern)[0].class_names == ("cat", "dog")


def test_a_client_s_name_has_an_end(tmp_path):
    """NumPy would give every row as many characters."""
    columns = {"x": [1.0, 2.0] * 20, "kind": ["a", "b"] * 20, "who": ["n"] * 39 + ["n" * 201]}
    with pytest.raises(InputError, match="row 40: column 'who' holds a name of more than 200 characters; shorten it"):
        table(parquet(tmp_path, columns), client_column="who")


def test_lists_of_classes_and_their_names(tmp_path):
    columns = {"x": [1.0, 2.0] * 20, "tags": [["b", "a"], [], None, ["a"]] * 10}
    task, raw, _ = table(parquet(tmp_path, columns), label_columns="tags")
    assert (task.kind, task.class_names) == ("multi", ("a", "b"))
    assert raw["labels"].to_pylist()[:4] == [[0, 1], [], [], [0]]
    assert raw["known"].to_pylist()[:4] == [None, None, [], None]
    columns["tags"] = [[10, 2], [], None, [2]] * 10
    assert table(parquet(tmp_path, columns), label_columns="tags")[0].class_names == ("2", "10")
    names = tmp_path / "names.txt"
    names.write_text("2\tcat\n10\tdog\n11\towl\n")
    task, raw, _ = table(parquet(tmp_path, columns), label_columns="tags", class_names=str(names))
    assert task.class_names == ("cat", "dog", "owl")
    assert raw["labels"].to_pylist()[0] == [0, 1]


def test_class_names_by_line_number_the_classes(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    path = parquet(tmp_path, {"x": [1.0, 2.0] * 20, "y": [1.0, 0.0] * 19 + [1.0, None]})
    task, raw, options = table(path, label_columns="y", class_names=str(names))
    assert (task.class_names, raw["labels"].to_pylist()[:2]) == (("cat", "dog"), [[1], [0]])
    before = raw_digest(task, options, raw_folder(task, options))
    names.write_text("cow\ndog\n")
    assert raw_digest(task, options, raw_folder(task, options)) != before, "the names are part of the data"


@pytest.mark.parametrize("first", [1, 0])
def test_names_without_numbers_are_refused_for_classes_from_1(tmp_path, first):
    """The third name would be that of class 2, the first of a class without rows, and 3 a bad row."""
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\nowl\n")
    path = parquet(tmp_path, {"x": [1.0, 2.0, 3.0] * 20, "y": [first, first + 1, first + 2] * 20})
    if first == 0:
        assert table(path, label_columns="y", class_names=str(names))[0].class_names == ("cat", "dog", "owl")
        return
    with pytest.raises(InputError, match=r"classes from 1 to 3, and the names of .*write 'number<TAB>name'"):
        table(path, label_columns="y", class_names=str(names))


def test_which_clients_train_may_not_hang_on_the_seed(tmp_path):
    options = TaskOptions(
        file=parquet(tmp_path, trees()), label_columns="kind", client_column="site", split_seed=None
    )  # fmt: skip
    with pytest.raises(InputError, match=r"split_seed = none.*--task\.split_column"):
        resolve_options(options, print)


def test_where_the_file_lies_does_not_matter(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("elm\nash\nbeech\n")
    path = Path(parquet(tmp_path, trees()))
    moved = tmp_path / "moved"
    moved.mkdir()
    folders = []
    for there in (tmp_path, moved):
        for file in (path, names):
            if there != tmp_path:
                shutil.copyfile(file, there / file.name)
        chosen = {"file": str(there / path.name), "class_names": str(there / names.name)}
        options = TaskOptions(
            label_columns="kind", ignore_columns="site", partition="iid", cache=str(tmp_path / "cache"), **chosen
        )
        folders.append(prepare(task_of(options), options, 0, engine="local").folder)
    assert folders[0] == folders[1]


def test_text_classes_in_the_order_of_the_names(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("elm\nash\nbeech\n")
    assert table(parquet(tmp_path, trees()), class_names=str(names), ignore_columns="site")[0].class_names == (
        "elm",
        "ash",
        "beech",
    )


@pytest.mark.parametrize("number", [float(2**53), -float(2**60)])
def test_numbers_of_clients_that_run_into_each_other_are_refused(tmp_path, number):
    """As doubles, ids of 17 digits are those of their neighbors: their rows would be one client's."""
    columns = trees() | {"site": pa.array([number if i % 2 else 3.0 for i in range(60)], pa.float64())}
    with pytest.raises(InputError, match=r"'site' holds -?\d.*e\+\d+: numbers of clients from 2\^53 on run into each"):
        table(parquet(tmp_path, columns), client_column="site")
    whole = trees() | {"site": pa.array([2**53 + i % 2 for i in range(60)], pa.int64())}
    _, raw, _ = table(parquet(tmp_path, whole), client_column="site")
    assert set(raw["subject"].to_pylist()) == {str(2**53), str(2**53 + 1)}


def test_clients_and_splits_come_from_columns(tmp_path):
    columns = trees() | {"part": ["train"] * 40 + ["validation"] * 10 + ["test"] * 10, "kind": list(KINDS) * 20}
    task, raw, _ = table(parquet(tmp_path, columns), client_column="site", split_column="part")
    assert task.subjects == "site"
    assert raw["subject"].to_pylist()[:5] == ["h0", "h1", "h2", "h3", "h0"]
    spaced = columns | {"site": [f" {s}" if i % 5 == 0 else s for i, s in enumerate(columns["site"])]}
    assert table(parquet(tmp_path, spaced), client_column="site", split_column="part")[1]["subject"] == raw["subject"]
    accents = [columns | {"site": [s.replace("h", e) for s in columns["site"]]} for e in ("\u00e9", "e\u0301")]
    both = columns | {"site": [accents[i % 3 // 2]["site"][i] for i in range(60)]}
    composed, mixed = (parquet(tmp_path, made, name) for made, name in ((accents[0], "1.parquet"), (both, "2.parquet")))
    options = {"client_column": "site", "split_column": "part"}
    assert table(mixed, **options)[1]["subject"] == table(composed, **options)[1]["subject"], "accents of either form"
    assert raw["split"].to_pylist() == columns["part"]
    said = []
    path = parquet(tmp_path, columns)
    options = resolve_options(
        TaskOptions(file=path, label_columns="kind", client_column="site", split_column="part"), said.append
    )
    assert (options.partition, options.clients, options.name) == ("subjects", 4, "table-t")
    assert said == [
        "t.parquet: inputs guessed (--task.input_columns names them), as numbers: height, girth",
        "t.parquet: not used (--task.input_columns or --task.ignore_columns says so): id (a number of the row), "
        "spectrum (holds list<item: double>), steps (holds list<item: list<item: double>>), "
        "note (texts: not guessed to be categories)",
        "t.parquet: 4 clients, one for every 'site' that has training rows",
    ]
    assert resolve_options(TaskOptions(), said.append) == TaskOptions()
    with pytest.raises(InputError, match=r"client_column is for a table of your own: name its file with --task\.file"):
        resolve_options(TaskOptions(client_column="site"), said.append)


def test_the_prepared_federation_has_one_client_per_value_and_unlabeled_rows(tmp_path):
    path = parquet(tmp_path, trees(120))
    options = TaskOptions(file=path, label_columns="kind", client_column="site", cache=str(tmp_path / "cache"))
    options = resolve_options(options, lambda _: None)
    prepared = prepare(task_of(options), options, 0, engine="local")
    assert len(prepared.manifest.examples) == 4
    assert prepared.manifest.client_names == ("h0", "h1", "h2", "h3")
    site = table(path, client_column="site")[1]["subject"].to_pylist()
    held = [{site[row] for row in client.rows} for client in prepared.plan().clients]
    assert held == [{"h0"}, {"h1"}, {"h2"}, {"h3"}]
    data = prepared.client(1, Objective("single"))
    assert data.x.shape[1:] == (2, 2)
    assert (data.known_NC.sum(1) == 0).sum() > 0, "rows without a label stay"
    assert prepared.split("test", Objective("single")).known_NC.all()
    assert prepared.manifest.spec.columns.inputs == ("height", "girth")


def held_out(tmp_path, **options):
    """Prepare a table with a number and a text whose test and validation rows have others than its training rows; of
    these, clients hold some out, too. Return the data, and the rows that clients train on.
    """
    part = ["train"] * 60 + ["validation"] * 20 + ["test"] * 20
    columns = {
        "size": [float(i) + {"train": 0, "validation": 1000, "test": 5000}[p] for i, p in enumerate(part)],
        "note": [f"tree{i} of {p}" for i, p in enumerate(part)],
        "kind": [KINDS[i % 3] for i in range(100)],
        "part": part,
    }
    options = TaskOptions(
        file=parquet(tmp_path, columns), cache=str(tmp_path / "cache"), label_columns="kind", split_column="part",
        clients=2, partition="iid", client_test="0.25", **options,
    )  # fmt: skip
    options = resolve_options(options, lambda _: None)
    data = prepare(task_of(options), options, 0, engine="local")
    plan = data.plan()
    rows = np.concatenate([client.rows for client in plan.clients])
    own = np.concatenate(plan.client_test)
    assert len(own) > 0
    assert sorted([*rows, *own]) == list(range(60))
    assert (data.manifest.validation, data.manifest.test) == (20, 20)
    return data, rows


def test_mean_and_deviation_are_those_of_the_rows_that_clients_train_on(tmp_path):
    """Neither test rows nor validation rows count, nor what a client holds out for its own test."""
    data, rows = held_out(tmp_path, input_columns="size")
    spec = data.manifest.spec
    assert spec.mean == pytest.approx([rows.mean()])
    assert spec.std == pytest.approx([rows.std()])
    trained = np.concatenate([data.client(m, Objective("single")).x[:, 0, 1].numpy() for m in range(2)])
    assert (trained.mean(), trained.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1, rel=1e-6))


def test_the_vocabulary_is_that_of_the_rows_that_clients_train_on(tmp_path):
    data, rows = held_out(tmp_path, input_columns="note", min_count=1)
    words = {f"tree{row}" for row in rows} | {"of", "train"}
    assert set(data.manifest.spec.vocabulary) == {"<pad>", "<unk>"} | words
    x = data.split("test", Objective("single")).x
    assert (x[:, 0] == 1).all(), "a word of test rows alone is an unknown one"


def test_csv_dialects(tmp_path):
    semicolons = "\ufeffx;kind;text\n" + '1,5;a;"two\nlines"\n2;b;"NA"\n' * 10
    file = open_file(tmp_path / "t.csv", BadRows(False)) if csv(tmp_path, semicolons) else None
    assert file.types == {"x": pa.string(), "kind": pa.string(), "text": pa.string()}
    assert file.read(["text"])["text"].to_pylist()[:2] == ["two\nlines", "NA"], "only an empty cell is missing"
    # a type is found from all rows: whole numbers, and far below a fraction
    csv(tmp_path, "x,kind\n" + "1,a\n2,b\n" * 50_000 + "2.5,a\n")
    assert str(open_file(tmp_path / "t.csv", BadRows(False)).types["x"]) == "double"


def test_odd_types_become_plain(tmp_path):
    columns = {
        "a.b": pa.array([1, 2] * 10, pa.decimal128(5, 1)),
        "a": pa.array([True, False] * 10),
        "fixed": pa.array([[1.0, 2.0]] * 20, pa.list_(pa.float16(), 2)),
        "kind": pa.array(["u", "v", "v", "u"] * 5).dictionary_encode(),
        "empty": pa.nulls(20),
    }
    path = parquet(tmp_path, columns)
    task, raw, options = table(path)
    assert task.fit(raw, options).columns.inputs == ("a.b", "a", "empty")
    assert raw["values"].to_pylist()[0][:2] == [1.0, 1.0]
    assert table(path, input_columns="fixed")[1]["values"].to_pylist()[0] == [1.0, 2.0]
    assert table(path, label_columns="a", input_columns="a.b")[0].class_names == ("false", "true")


def test_moments_of_constants_and_of_nothing():
    mean_F, std_F = moments(pa.array([[0.1, np.nan, 1.0]] * 3 + [[0.1, np.nan, 3.0]] * 3, pa.list_(pa.float64(), 3)), 3)
    assert mean_F.tolist() == pytest.approx([0.1, 0, 2])
    assert std_F.tolist() == [1, 1, 1]


def test_samples_for_a_trained_model(tmp_path):
    task, raw, options = table(parquet(tmp_path, trees()), ignore_columns="site")
    spec = task.fit(raw, options)
    new = {name: values for name, values in trees().items() if name in ("girth", "height")}
    found = read_samples(tmp_path / "n.csv", spec, "single", KINDS) if pq_to_csv(tmp_path / "n.csv", new) else None
    assert (found.table.num_rows, found.labeled) == (60, False)
    values = np.array(task.encode(found.table, spec)["x"].to_pylist())
    assert np.array_equal(values, np.array(task.encode(raw, spec)["x"].to_pylist())), "columns by name, not by place"
    found = read_samples(tmp_path / "t.parquet", spec, "single", KINDS)
    assert found.labeled
    assert found.table["labels"].to_pylist() == raw["labels"].to_pylist()
    parquet(tmp_path, {"heihgt": [1.0], "girth": [2]})
    with pytest.raises(
        InputError, match=r"lacks 1 of the 2 input columns of the model: height \(did you mean 'heihgt'"
    ):
        read_samples(tmp_path / "t.parquet", spec, "single", KINDS)
    parquet(tmp_path, {"height": [1.0], "girth": ["x"]})
    with pytest.raises(InputError, match=r"column 'girth' holds string, no number"):
        read_samples(tmp_path / "t.parquet", spec, "single", KINDS)


@pytest.mark.parametrize(
    ("classes", "new", "separator"),
    [
        (["01", "1", "x"], ["01", "01"], ""),
        (["True", "False", "Unknown"], ["True", "False"], ""),
        (["007", "8", "nine"], ["007", ""], ""),
        (["2024-01-02", "2024-01-03", "never"], ["2024-01-02", "2024-01-03"], ""),
        (["01;02", "02", "x"], ["01;02", "02"], ";"),
        (["1", "2", "3"], ["1.0", ""], ""),
        (["True", "False", "True"], ["TRUE", "False"], ""),
    ],
)
def test_labels_of_new_rows_are_read_as_those_of_training(tmp_path, classes, new, separator):
    """Whatever the new rows alone look like: 01 was class 1 there."""
    old = csv(tmp_path, "x,kind\n" + "".join(f"{i}.5,{kind}\n" for i, kind in enumerate(classes * 10)))
    task, raw, options = table(old, label_separator=separator)
    spec = task.fit(raw, options)
    csv(tmp_path, "x,kind\n" + "".join(f"{i}.5,{kind}\n" for i, kind in enumerate(new)), "new.csv")
    found = read_samples(tmp_path / "new.csv", spec, task.kind, task.class_names).table["labels"].to_pylist()
    named = [[task.class_names[c] for c in row] for row in found]
    plain = {"1.0": "1", "TRUE": "true"} | ({"True": "true", "False": "false"} if "Unknown" not in classes else {})
    assert named == [[plain.get(k, k) for k in kind.split(separator or None) if k] for kind in new]


def test_an_empty_line_of_one_column_is_an_empty_cell(tmp_path):
    """It was left out, and every later prediction stood beside another row."""
    old = csv(tmp_path, "a,kind\n" + "".join(f"{i}.5,{'uv'[i % 2]}\n" for i in range(20)))
    task, raw, options = table(old)
    spec = task.fit(raw, options)
    lines = ("a", "1.5", "", "-2.5")
    for text in ("\n".join(lines), "\n".join([*lines, "", "", ""]), "\r".join([*lines, "", ""])):
        csv(tmp_path, text, "new.csv")
        found = read_samples(tmp_path / "new.csv", spec, "single", ("u", "v")).table
        assert found["row"].to_pylist() == [0, 1, 2]
        assert np.array_equal(np.array(found["values"].to_pylist())[:, 0], [1.5, np.nan, -2.5], equal_nan=True)
    csv(tmp_path, "\na\n1.5\n-2.5\n", "new.csv")
    assert read_samples(tmp_path / "new.csv", spec, "single", ("u", "v")).table["row"].to_pylist() == [0, 1]


def test_the_drawn_test_split_leaves_a_client_a_row_with_a_label(tmp_path):
    """Ten sites of six rows, half of them with one label each: a fifth of the labels is drawn."""
    label = ["u" if i % 6 == 0 or (i >= 30 and i % 2) else "" for i in range(60)]
    label = [kind and "uv"[i // 3 % 2] for i, kind in enumerate(label)]
    rows = "".join(f"{i}.5,s{i // 6},{kind}\n" for i, kind in enumerate(label))
    path = csv(tmp_path, f"x,site,kind\n{rows}")
    for seed in range(8):
        options = TaskOptions(file=path, label_columns="kind", client_column="site", split_seed=seed,
                              cache=str(tmp_path / "cache"), validation=0.0)  # fmt: skip
        options = resolve_options(options, lambda line: None)
        data = prepare(task_of(options), options, 1, engine="local")
        assert data.manifest.client_names == tuple(f"s{i}" for i in range(10))
    path = csv(tmp_path, f"x,site,kind\n{rows}1.5,t,\n2.5,t,\n", "bare.csv")
    options = replace(options, file=path)
    with pytest.raises(InputError, match="site t would identify nothing, since none of its training rows has a class"):
        prepare(task_of(options), resolve_options(options, lambda line: None), 1, engine="local")


def pq_to_csv(path, columns):
    pa.csv.write_csv(pa.table(columns), path)
    return path.exists()


def test_some_label_columns_are_enough_for_a_trained_model(tmp_path):
    columns = {"x": [1.0, 2.0] * 20, "a": [0, 1] * 20, "b": [1, 0] * 20}
    task, raw, options = table(parquet(tmp_path, columns), label_columns="a,b", input_columns="x")
    spec = task.fit(raw, options)
    parquet(tmp_path, {"x": [1.0, 2.0], "b": [1, 0]})
    found = read_samples(tmp_path / "t.parquet", spec, "multi", ("a", "b"))
    assert found.table["known"].to_pylist() == [[1], [1]]
    assert found.table["labels"].to_pylist() == [[1], []]


def test_the_place_of_the_file(tmp_path, monkeypatch):
    parquet(tmp_path, trees())
    options = TaskOptions(file="t.parquet", label_columns="kind", ignore_columns="site", root=str(tmp_path))
    task = task_of(options)
    assert raw_folder(task, options) == tmp_path
    assert status(task, options).found
    monkeypatch.chdir(tmp_path)
    options = TaskOptions(file="t.parquet", label_columns="kind", ignore_columns="site")
    assert table_task(options).source.files == ("t.parquet",)
    assert validate_table(task.read(raw_folder(task, options), options), task).num_rows == 60
    with pytest.raises(ValueError, match="needs the folder"):
        read(None, options, schema=None)


def test_no_step_of_a_series_is_taken_for_padding(tmp_path):
    """The mean of a feature is 0 when it is standardised, and so is a missing value: a step of both would be none."""
    steps = [[[-1.0], [0.0], [1.0]], [[1.0], [0.0], [-1.0]], [[0.0], [0.0], [0.0]], [[None], [-1.0], [1.0]]] * 15
    path = parquet(tmp_path, {"kind": ["a", "b", "a", "b"] * 15, "steps": steps})
    task, raw, options = table(path, input_columns="steps")
    spec = task.fit(raw, options)
    x = np.array(task.encode(raw, spec)["x"].to_pylist()).reshape(-1, 3, 1)
    assert np.abs(x[0, 1, 0]) == np.float32(1e-6)
    assert (x != 0).any(-1).all()
    assert np.allclose(x[1, :, 0], [-x[0, 0, 0], 0, x[0, 0, 0]], atol=1e-5)


@pytest.mark.parametrize(
    ("names", "same"), [(("-1", "1"), False), (("<=50K", ">50K"), False), (("c", "c#"), False), (("a b", "A_B "), True)]
)
def test_names_that_differ_by_a_sign_are_two(tmp_path, names, same):
    path = parquet(tmp_path, {"x": [float(i) for i in range(60)], "kind": [names[i % 2] for i in range(60)]})
    if same:
        with pytest.raises(InputError, match=r"rename one|one name"):
            table(path, input_columns="x")
        return
    assert set(table(path, input_columns="x")[0].class_names) == set(names)


def test_small_clients_of_a_table_stay_clients(tmp_path):
    """With the default share for validation: clients are counted before that is drawn."""
    who = [f"s{i // 60}" for i in range(300)] + [f"t{i}" for i in range(40)]
    columns = {"x": [float(i) for i in range(340)], "kind": [f"k{i % 2}" for i in range(340)], "who": who}
    options = TaskOptions(
        file=parquet(tmp_path, columns), label_columns="kind", client_column="who", cache=str(tmp_path / "cache")
    )
    options = resolve_options(options, lambda _: None)
    for seed in range(3):
        prepared = prepare(task_of(options), options, seed, engine="local")
        assert len(prepared.manifest.examples) == options.clients
        assert min(prepared.manifest.examples) >= 1


def test_a_column_whose_name_begins_with_a_space_can_be_named(tmp_path):
    path = parquet(tmp_path, {"a": [1.0, 2.0] * 20, " b": [3.0, 4.0] * 20, "c": [5.0] * 40, "y": ["no", "yes"] * 20})
    for words, inputs in (("a, b", ("a", " b")), ("a, c", ("a", "c"))):
        task, raw, options = table(path, label_columns="y", input_columns=words)
        assert task.fit(raw, options).columns.inputs == inputs
