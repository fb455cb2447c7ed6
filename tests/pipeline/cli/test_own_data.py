"""Your own data, by commands alone: check, run, predict."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

import anchorfl
from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.results import predict
from anchorfl.tasks.errors import InputError

SMALL = ["--cluster.executor", "serial", "--tracking.uri", "none", "--federation.rounds", "2", "--federation.epochs",
         "1", "--model.width", "16", "--class_embeddings.width", "16"]  # fmt: skip
KINDS = ("ash", "beech", "elm")


def trees(rows=160):
    """Make a table from which the class can be learnt by each kind of input."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 3, rows)
    kind = [KINDS[c] for c in code]
    columns = {
        "height": 3.0 * code + rng.normal(size=rows),
        "girth": pa.array(-2.0 * code + rng.normal(size=rows), mask=rng.random(rows) < 0.1),
        "spectrum": [[float(c), 1.0, float(-c)] for c in code],
        "steps": [[[float(c), 1.0], [1.0, float(-c)]] for c in code],
        "note": [f"the {k} tree is w{i % 7}" for i, k in enumerate(kind)],
        "kind": [None if i % 8 == 0 and i < 120 else k for i, k in enumerate(kind)],
        "is_ash": [int(c == 0) for c in code],
        "is_tall": [None if i % 5 == 0 else int(c > 0) for i, c in enumerate(code)],
        "site": [f"site {i % 4}" for i in range(rows)],
        "part": ["train" if i < 120 else "test" for i in range(rows)],
    }
    return pa.table(columns)


def scores(capsys, run, file):
    capsys.readouterr()
    assert main(["predict", run, file, "--out", "scores.csv"]) == 0
    logged = json.loads(Path(run, "result.json").read_text())["scores"]["test"]
    said = capsys.readouterr().err
    return said, f"macro F1 {100 * logged['f1_macro']:.2f}, accuracy {100 * logged['accuracy']:.2f}"


def test_check_run_and_predict_a_csv(here, capsys):
    table = trees()
    pyarrow.csv.write_csv(table.drop_columns(["spectrum", "steps"]), here / "trees.csv")
    assert main(["data", "check", "trees.csv"]) == 0
    assert "next: anchorfl data check trees.csv --label_columns COLUMNS" in capsys.readouterr().out
    options = [
        "--label_columns",
        "kind",
        "--input_columns",
        "height,girth",
        "--client_column",
        "site",
        "--split_column",
        "part",
    ]
    assert main(["data", "check", "trees.csv", *options]) == 0
    shown = capsys.readouterr().out
    as_its_messages_say = [word.replace("--", "--task.") for word in options]
    assert main(["data", "check", "trees.csv", *as_its_messages_say]) == 0
    assert capsys.readouterr().out == shown
    assert "15 rows without any label: they stay, unlabeled" in shown
    command = shown.strip().splitlines()[-1].removeprefix("next: anchorfl ").split()
    assert command[:3] == ["run", "--task.file", "trees.csv"]
    assert main([*command, *SMALL, "--output", "out"]) == 0
    config = json.loads((here / "out" / "config.json").read_text())["task"]
    assert (config["name"], config["partition"], config["clients"]) == ("table-trees", "subjects", 4)
    assert json.loads((here / "out" / "config.json").read_text())["federation"]["clients_per_round"] == 4
    test = table.filter(pc.equal(table["part"], "test")).drop_columns(["spectrum", "steps"])
    pyarrow.csv.write_csv(test, here / "test.csv")
    said, logged = scores(capsys, "out", "test.csv")
    assert logged in said
    with (here / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 40
    assert set(rows[0]) == {"sample", "predicted", *KINDS}
    pq.write_table(test.select(["girth", "height"]), here / "bare.parquet")
    assert scores(capsys, "out", "bare.parquet")[0] == "", "without labels there is nothing to score"
    assert main(["resume", "out"]) == 0


@pytest.mark.parametrize("labels", ["kind", "is_ash,is_oak,is_tall"])
def test_predict_counts_as_the_model_does_where_a_class_was_too_rare(here, capsys, labels):
    """``acer`` is first by the alphabet, ``is_oak`` between the two others."""
    table = trees()
    kind = table["kind"].to_pylist()
    for row in (1, 2, 3, 130, 131):
        kind[row] = "acer"
    table = table.set_column(table.column_names.index("kind"), "kind", pa.array(kind))
    table = table.append_column("is_oak", pa.array([int(k == "acer") for k in kind]))
    table = table.select(["height", "girth", *labels.split(","), "part"])
    pq.write_table(table, "trees.parquet")
    words = ["--task.file", "trees.parquet", "--task.label_columns", labels, "--task.split_column", "part"]
    words += ["--task.partition", "iid", "--task.min_positives", "10"]
    assert main(["run", *words, "--output", "out", *SMALL]) == 0
    tested = table.filter(pc.equal(table["part"], "test"))
    pq.write_table(tested, "test.parquet")
    said, logged = scores(capsys, "out", "test.parquet")
    assert logged in said
    head = Path("scores.csv").read_text().partition("\n")[0].split(",")
    assert not {"acer", "is_oak"} & set(head)
    if labels == "kind":
        rare = tested.filter(pc.equal(tested["kind"], "acer"))
        pq.write_table(rare, "rare.parquet")
        assert main(["predict", "out", "rare.parquet", "--out", "rare.csv"]) == 0
        assert "macro F1" not in capsys.readouterr().err, "no label that the model knows"
    model = Path("out/model/model.json")
    saved = json.loads(model.read_text())
    assert saved["input"]["columns"].pop("dropped")
    model.write_text(json.dumps(saved))  # as an older version left it
    assert main(["predict", "out", "test.parquet", "--out", "again.csv"]) == 2
    assert "which of its table's classes were too rare" in capsys.readouterr().err


def test_a_single_class_that_is_left_is_refused(here, capsys):
    Path("two.csv").write_text("x,kind\n" + "".join(f"{i * i % 11},{'a' if i % 20 else 'b'}\n" for i in range(120)))
    words = ["--task.file", "two.csv", "--task.label_columns", "kind", "--task.min_positives", "10"]
    words += ["--task.partition", "iid"]
    assert main(["run", *words, "--output", "out", *SMALL]) == 2
    assert "min_positives = 10: only class 'a' of table-two has so many rows" in capsys.readouterr().err
    assert not Path("out").exists()


def test_run_and_predict_texts_among_numbers(here, capsys):
    table = trees().select(["height", "kind", "part"])
    rng = np.random.default_rng(1)
    bark = [("smooth", "rough", None)[i] for i in rng.integers(0, 3, len(table))]
    table = table.append_column("bark", [bark])
    pyarrow.csv.write_csv(table, here / "trees.csv")
    own = ["--task.file", "trees.csv", "--task.label_columns", "kind", "--task.split_column", "part"]
    dealt = ["--task.clients", "2", "--task.partition", "iid"]
    assert main(["run", *own, *dealt, "--method.name", "fedavg", *SMALL, "--output", "out"]) == 0
    assert "categories are bark" in "".join(capsys.readouterr())
    saved = json.loads((here / "out" / "model" / "model.json").read_text())["input"]
    assert saved["columns"]["categories"] == {"bark": ["rough", "smooth"]}
    test = table.filter(pc.equal(table["part"], "test"))
    pyarrow.csv.write_csv(test.select(["bark", "kind", "height"]), here / "test.csv")
    said, logged = scores(capsys, "out", "test.csv")
    assert logged in said


@pytest.mark.parametrize("inputs", ["spectrum", "steps", "note"])
def test_run_and_predict_a_parquet(here, capsys, inputs):
    """Multi-label, with labels that are missing, under a shipped preset."""
    table = trees()
    pq.write_table(table, here / "trees.parquet")
    own = ["--task.file", "trees.parquet", "--task.label_columns", "is_*", "--task.input_columns", inputs,
    "--task.split_column", "part",
           "--task.clients", "5", "--task.classes_per_client", "1", "--task.min_count", "1"]  # fmt: skip
    assert main(["run", "digits/fedavg", *own, *SMALL, "--output", "out", "--model.heads", "2"]) == 0
    metadata = json.loads((here / "out" / "model" / "model.json").read_text())
    assert (metadata["task"], metadata["class_names"]) == ("table-trees", ["ash", "tall"])
    pq.write_table(table.filter(pc.equal(table["part"], "test")), here / "test.parquet")
    said, logged = scores(capsys, "out", "test.parquet")
    assert logged in said


def test_run_and_predict_images(here, capsys):
    for i in range(40):
        shade = np.full((8, 8, 3), 200 * (i % 2), np.uint8)
        Image.fromarray(shade).save(here / f"{i}.png")
    columns = {"file": [f"{i}.png" for i in range(40)], "kind": ["dark", "light"] * 20}
    pq.write_table(pa.table(columns), here / "shades.parquet")
    own = ["--task.file", "shades.parquet", "--task.label_columns", "kind", "--task.image_size", "8"]
    few = ["--task.clients", "4", "--task.classes_per_client", "1", "--federation.clients_per_round", "4"]
    assert main(["run", *own, *few, *SMALL, "--output", "out"]) == 0
    assert "macro F1" in scores(capsys, "out", "shades.parquet")[0]
    (here / "3.png").unlink()
    assert main(["predict", "out", "shades.parquet"]) == 2
    assert "row 4: image " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--task.file", "none.csv", "--task.label_columns", "kind"], "none.csv: no such file"),
        (["run", "--task.file", "trees.parquet"], "say which columns hold the labels: --task.label_columns"),
        (["run", "digits/fedavg", "--task.label_columns", "kind"], "label_columns is for a table of your own"),
        (
            [
                *(
                    "run",
                    "--task.file",
                    "trees.parquet",
                    "--task.label_columns",
                    "kind",
                    "--task.client_column",
                    "site",
                ),
                *("--task.split_column", "part", "--federation.clients_per_round", "5"),
            ],
            "federation.clients_per_round = 5 exceeds task.clients = 4: lower it",
        ),
        (["data", "check", "none.csv"], "none.csv: no such file"),
        (["data", "check", "trees.parquet", "--label_columns", "knd"], "'knd' is no column of trees.parquet"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(here, capsys, arguments, message):
    pq.write_table(trees(), here / "trees.parquet")
    extra = SMALL if arguments[0] == "run" else []
    assert main([*arguments, *extra]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not list((here / "runs").glob("*"))


@pytest.mark.parametrize("words", ["--task.partition iid", "--task.partition=k_classes", "--task.clients 7"])
def test_a_partition_beside_a_column_of_clients_is_refused(here, capsys, words):
    pq.write_table(trees(), here / "trees.parquet")
    own = ["--task.label_columns", "kind", "--task.client_column", "site", "--task.split_column", "part"]
    assert main(["run", "--task.file", "trees.parquet", *own, *words.split(), *SMALL]) == 2
    assert f"{words[-3:]} beside --task.client_column site: the column says whose" in capsys.readouterr().err
    name, value = words.replace("=", " ").split()
    options = {name[2:]: int(value) if value.isdigit() else value, "task.label_columns": "kind"}
    with pytest.raises(InputError, match="the column says whose row it is"):
        anchorfl.run(data="trees.parquet", options={**options, "task.client_column": "site"})


@pytest.mark.parametrize("words", ['partition = "dirichlet"\nbeta = 0.1', "clients = 7"])
def test_so_is_one_in_a_file_beside_it(here, words):
    """It was dropped without a word; what the column says may stand there, as an exported experiment has it."""
    pq.write_table(trees(), here / "trees.parquet")
    own = 'file = "trees.parquet"\nlabel_columns = "kind"\nclient_column = "site"\nsplit_column = "part"\n'
    for name, more in (("bad", words), ("good", 'partition = "subjects"\nclients = 4')):
        (here / f"{name}.toml").write_text(f'[task]\n{own}{more}\n[method]\nname = "fedavg"\n')
    with pytest.raises(InputError, match=r"beside --task.client_column site: the column says whose row it is"):
        anchorfl.read_preset("bad.toml")
    assert anchorfl.read_preset("good.toml").task.clients == 4


def test_check_of_a_table_with_bad_rows_says_how_to_go_on(here, capsys):
    columns = {"x": [1.0, np.inf] + [2.0] * 18, "kind": ["a", "b"] * 10}
    pq.write_table(pa.table(columns), here / "t.parquet")
    assert main(["data", "check", "t.parquet", "--label_columns", "kind"]) == 2
    shown = capsys.readouterr().out
    assert "1 bad rows; the first: t.parquet: row 2: column 'x' is not finite" in shown
    assert "--task.label_columns kind --task.on_bad_row skip" in shown.rstrip().splitlines()[-1]
    assert main(["data", "check", "t.parquet", "--label_columns", "kind", "--on_bad_row", "skip"]) == 0


def test_check_offers_no_command_where_skipping_rows_mends_nothing(here, capsys):
    """A client without a label stops a run; leaving out bad rows would not help."""
    lines = ["who,x,kind", *(f"a,{i},{i % 2}" for i in range(30)), *(f"b,{i}," for i in range(30))]
    Path("t.csv").write_text("\n".join(lines) + "\n")
    assert main(["data", "check", "t.csv", "--label_columns", "kind", "--client_column", "who"]) == 2
    said = capsys.readouterr().out
    assert "stops a run, and other problems:\n  - no training row with a class: client 'b'" in said
    assert said.rstrip().endswith("next: mend what stops a run")


@pytest.mark.parametrize(("task", "what"), [("kvasir-v2", "files of images"), ("bibtex", "sparse features")])
def test_models_that_predict_has_no_form_for(here, task, what):
    """One line, where encoding would meet numbers in place of files, or take numbers for pairs."""
    Path("t.csv").write_text("a,b\n1,2\n")
    saved = SimpleNamespace(task=task, task_plugin="", spec=SimpleNamespace(columns=None, kind="image", shape=(2,)))
    with pytest.raises(InputError, match=f"a model of {task} is trained on {what}, which predict has no form for"):
        predict._values(Path("t.csv"), saved)


NEXT = {
    "two classes": {"kind": ["ill", "well"] * 60},
    "a rare third class": {"kind": ["ill", "well"] * 58 + ["odd"] * 4},
    "many classes": {"kind": [f"k{i % 40:02}" for i in range(120)]},
    "-1 and 1": {f"label_{c}": [1 if (i // (c + 1)) % 3 else -1 for i in range(120)] for c in range(4)},
    "a class in the test rows alone": {
        **{f"label_{c}": [int((i // (c + 1)) % 3 == 0) for i in range(120)] for c in range(4)},
        "label_rare": [0] * 110 + [1] * 10, "part": ["train"] * 90 + ["test"] * 30,
    },
}  # fmt: skip


@pytest.mark.parametrize("columns", NEXT.values(), ids=NEXT)
def test_the_next_command_of_check_runs(here, capsys, columns):
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"x": rng.normal(size=120), "y": rng.normal(size=120), **columns}), here / "t.parquet")
    labels = "kind" if "kind" in columns else "label_*"
    split = ["--split_column", "part"] if "part" in columns else []
    code = main(["data", "check", "t.parquet", "--label_columns", labels, *split])
    command = shlex.split(capsys.readouterr().out.strip().splitlines()[-1].removeprefix("next: anchorfl "))
    assert command[0] == "run"
    assert (code == 2) == ("--task.min_positives" in command and "part" in columns)
    assert main([*command, *SMALL, "--output", "out"]) == 0


def test_the_last_line_of_a_run_leads_to_its_records(here, capsys):
    """Of runs/mlflow.db anchorfl ui knows; the records of a run that lies deeper are elsewhere."""
    pq.write_table(trees(), here / "t.parquet")
    own = ["--task.file", "t.parquet", "--task.label_columns", "kind", "--task.input_columns", "height,girth"]
    small = [word if word != "none" else "" for word in SMALL]
    few = ["--federation.clients_per_round", "2"]
    for output, more in (("runs/a", ""), ("deep/er/b", f" --uri sqlite:///{here}/deep/er/mlflow.db")):
        assert main(["run", *own, "--task.client_column", "site", "--task.split_column", "part", *few, *small,
                     "--output", output]) == 0  # fmt: skip
        assert capsys.readouterr().out.rstrip().endswith(f"look at them with: anchorfl ui{more}")
