"""Any method and any preset on a user's own table: what is taken along, what is left behind, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import anchorfl
from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.config.experiment import digest, to_tree
from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.methods.anchor import Anchor
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.run.assemble import TABLE_PRESET, from_values, from_words
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from tests.made_concepts import with_concepts
from tests.tiny_bert import saved_bert

LABELS = {"single": "class", "multi": "is_*"}
ONE_KIND = {name: method.supports.kinds[0] for name, method in METHODS.items() if len(method.supports.kinds) == 1}
"""Methods for one kind of labels alone."""
ONE_CLASS = ("fedalc", "fedalc-fixed", "fedavg-positive", "fedaws", "fedmlh", "flag")
SMALL = {
    "federation.rounds": 1, "federation.epochs": 1, "model.width": 16, "model.feedforward": 8,
    "class_embeddings.width": 16, "cluster.executor": "serial", "tracking.uri": "none",
}  # fmt: skip
WORDS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]


def quiet(_line):
    pass


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sales(here):
    """Write a table of three classes, two labels of 0 and 1, and three shops; return its name."""
    rng = np.random.default_rng(0)
    code = np.arange(150) % 3
    columns = {f"x{i}": rng.normal(size=150) + code for i in range(3)}
    columns["class"] = [("bread", "milk", "tea")[c] for c in code]
    columns |= {"is_big": (code > 0).astype(int), "is_new": rng.integers(0, 2, 150)}
    columns["shop"] = [f"shop {i % 3}" for i in rng.permutation(150)]
    pq.write_table(pa.table(columns), here / "sales.parquet")
    return "sales.parquet"


def options(kind="single", **more):
    """Return the options that name the table and its columns."""
    own = {"task.file": "sales.parquet", "task.label_columns": LABELS[kind], "task.input_columns": "x*"}
    return own | {name.replace("__", "."): value for name, value in more.items()}


def words(given):
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def test_every_preset_lends_its_method_to_a_table_of_fitting_labels(sales):
    """What is of the preset's data set stays behind; a method that is not for the labels is refused in one line."""
    for kind in LABELS:
        plain = {name: from_values("", options(kind, method__name=name), quiet).experiment for name in ONE_CLASS[:1]}
        plain[""] = from_values("", options(kind), quiet).experiment
        for name in preset_names():
            preset, said = read_preset(name), list[str]()
            if ONE_KIND.get(preset.method.name, kind) != kind:
                refused = rf"is for {ONE_KIND[preset.method.name]}-label tasks, and 'table-sales' .* fedavg, "
                with pytest.raises(InputError, match=refused) as bad:
                    from_values(name, options(kind), quiet)
                assert {"single": "fedmlp", "multi": "fednh"}[kind] not in str(bad.value).partition("choose")[2]
                continue
            e = from_values(name, options(kind), said.append).experiment
            assert (e.method, e.federation.rounds, e.federation.epochs) == (
                preset.method, preset.federation.rounds, preset.federation.epochs,
            ), name  # fmt: skip
            assert e.model == replace(preset.model, network="auto", norm="group", init="he", stem="auto"), name
            assert e.optimizer.lr == preset.optimizer.lr
            assert e.task == plain[ONE_CLASS[0] if preset.method.name in ONE_CLASS else ""].task, name
            assert (e.class_embeddings.table, e.class_embeddings.init, e.seed) == ("", "random", 0), name
            assert (e.evaluation.metrics, e.evaluation.model_selection) == ("threshold", "last"), name
            assert said[0].startswith(f"{name} lends method, network and rounds; left out with its data: task.name, ")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_a_table_by_its_name(sales, shades, name, capsys, tmp_path):
    """On both kinds of labels where it is for both; FedBM on images, which its generator makes."""
    if name == "fedbm":
        given = shades | {"method.name": name, "method.generator_steps": 1, "method.generator_every": 1}
        small = {option: value for option, value in SMALL.items() if option != "model.feedforward"}
        e = with_concepts(from_values("", small | given, quiet).experiment)
        assert set(run(e, Path("out"), quiet).scores["test"]) == {"f1_macro", "accuracy"}
        return
    own = []
    if name == "fedtsp":
        names = {"encoder": saved_bert(tmp_path / "bert"), "prompts": "a {name} ."}
        own = ["--method.prompt_length=2", *(f"--class_embeddings.{n}={v}" for n, v in names.items())]
    for kind in LABELS:
        code = main(["run", *words(options(kind, method__name=name)), *own, *WORDS, "--output", kind])
        if kind not in METHODS[name].supports.kinds:
            assert code == 2
            assert capsys.readouterr().err.count("\n") == 1
            continue
        assert code == 0
        config = json.loads(Path(kind, "config.json").read_text())
        assert config["method"]["name"] == name
        assert f"sales-{name}: done" in capsys.readouterr().out


@pytest.fixture
def shades(here):
    """Write images and a table of their paths; return the options of a run on them with BatchNorm."""
    for i in range(40):
        Image.fromarray(np.full((8, 8, 3), 200 * (i % 2), np.uint8)).save(here / f"{i}.png")
    columns = {"file": [f"{i}.png" for i in range(40)], "kind": ["dark", "light"] * 20}
    pq.write_table(pa.table(columns), here / "shades.parquet")
    return {
        "task.file": "shades.parquet", "task.label_columns": "kind", "task.image_size": 8, "task.clients": 2,
        "model.network": "resnet8", "model.norm": "batch", "optimizer.skip_zero_rows": False,
        "optimizer.microbatch_tokens": 0,
    }  # fmt: skip


def one_preset_of_each_method():
    return list({read_preset(name).method.name: name for name in preset_names()}.values())


@pytest.mark.parametrize("name", one_preset_of_each_method())
def test_presets_are_set_up_on_a_table(sales, shades, name):
    """Data, network and server are made, with all options of the preset but those of its size."""
    method = read_preset(name).method.name
    given = {n: v for n, v in SMALL.items() if n not in ("federation.epochs", "model.feedforward")}
    if method != "fedbm":
        e = from_values(name, options(ONE_KIND.get(method, "single")) | given, quiet).experiment
    else:
        shades.pop("model.network")  # the preset's
        e = with_concepts(from_values(name, shades | given, quiet).experiment)
        assert e.model.network == read_preset(name).model.network
    executor = executor_for(make_run_spec(e, quiet))
    executor.close()


def test_data_are_named_by_somebody():
    """No data set is trained on that nobody has asked for."""
    for assemble in (lambda: from_values("", {"seed": 3}, quiet), lambda: from_words("", ["--seed", "3"], "x", quiet)):
        with pytest.raises(InputError, match=r"which data: give a preset, such as digits/.*as task\.file"):
            assemble()


def test_the_default_of_a_table_is_anchor_on_the_digits_network(sales):
    """Whoever names FedAlign gets the row of the digits, whose digest is that of the time when all tables took it."""
    task = {name.partition(".")[2]: value for name, value in options().items()}
    made = TaskOptions(name="table-sales", min_count=2, max_tokens=256, **task)
    e = from_values("", options(), quiet).experiment
    assert e == replace(read_preset(TABLE_PRESET), task=made, method=Anchor())
    assert e == from_values("", options() | {"method.name": "anchor"}, quiet).experiment
    named = from_values("", options() | {"method.name": "fedalign"}, quiet).experiment
    assert named == (row := replace(read_preset("digits/fedalign"), task=made))
    assert digest(named) == digest(row)


def test_a_multi_label_table_takes_fedavg(tmp_path, monkeypatch):
    """With the same network and rounds; whoever names FedAlign gets it."""
    monkeypatch.chdir(tmp_path)
    labels = {"label_a": [0, 1] * 30, "label_b": [1, 1, 0] * 20}
    pq.write_table(pa.table({"x": [float(i) for i in range(60)], "z": [0.5, 2.0] * 30, **labels}), "tags.parquet")
    table = {"task.file": "tags.parquet", "task.label_columns": "label_*"}
    lines = list[str]()
    e = from_values("", table, lines.append).experiment
    assert any("multi-label" in line and "fedavg" in line for line in lines)
    assert e == from_values("", {**table, "method.name": "fedavg"}, quiet).experiment
    named = from_values("", {**table, "method.name": "fedalign"}, quiet).experiment
    assert (e.method.name, named.method.name) == ("fedavg", "fedalign")
    assert (e.model, e.federation, e.optimizer) == (named.model, named.federation, named.optimizer)


def test_methods_by_name_take_their_own_options(sales):
    moon = from_values("", options(method__name="moon", method__tau=0.3), quiet).experiment
    assert moon.method == METHODS["moon"](tau=0.3)
    row = from_values("", options(method__name="fedavg"), quiet).experiment
    assert row.method == read_preset("digits/fedavg").method, "the row that the same federation has of it"
    with pytest.raises(InputError, match=r"no option --method\.q1"):
        from_words("", words(options(method__name="moon", method__q1=90)), "anchorfl run", quiet)
    with pytest.raises(InputError, match=r"no method 'fedpo' .*did you mean 'fedp.*there are: .*fedpu"):
        from_values("", options(method__name="fedpo"), quiet)


def test_another_method_on_a_preset_starts_from_its_defaults():
    """Whatever the data; those of the preset stay where no table takes their place."""
    name, e = from_values("r8-8/fedavg", {"method.name": "moon"}, quiet)
    preset = read_preset("r8-8/fedavg")
    assert e == replace(preset, method=METHODS["moon"]())
    assert name == "r8-moon"
    assert from_values("r8-8/fedavg", {"method.name": "fedavg"}, quiet) == ("r8-8/fedavg", preset)


def test_a_method_from_outside_goes_by_its_name(sales, monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        name = "mine"
        strength: float = 2.0

    monkeypatch.setitem(METHODS, "mine", Mine)
    given = [*words(options(method__name="mine")), "--method.strength=3", *WORDS, "--output", "out"]
    assert main(["run", *given]) == 0
    assert json.loads(Path("out/config.json").read_text())["method"]["strength"] == 3.0


def test_as_many_clients_take_part_as_there_are(sales):
    """Five, unless a table has fewer clients or somebody says; the classes of one client follow the table likewise."""
    assert from_values("", options(), quiet).experiment.federation.clients_per_round == 5
    assert from_values("", options(task__client_column="shop"), quiet).experiment.selected_clients == 3
    assert from_values("es-25/fedpu", options("multi", task__clients=2), quiet).experiment.selected_clients == 2
    assert from_values("", options("multi"), quiet).experiment.task.classes_per_client == 2
    with pytest.raises(InputError, match=r"clients_per_round = 5 exceeds task\.clients = 3"):
        from_values("", options(task__client_column="shop", federation__clients_per_round=5), quiet)


def test_one_client_per_class_is_the_methods_partition(sales):
    e = from_values("", options(method__name="fedalc"), quiet).experiment
    assert (e.task.partition, e.task.clients, e.selected_clients) == ("one_class", 3, 3)
    for given in ({"task.partition": "iid"}, {"task.client_column": "shop"}):
        with pytest.raises(InputError, match=r"method 'fedalc' has one client per class.*choose another") as bad:
            from_values("", options(method__name="fedalc") | given, quiet)
        others = str(bad.value).partition("choose another method: ")[2].split(", ")
        assert set(others) == {n for n, m in METHODS.items() if "single" in m.supports.kinds} - set(ONE_CLASS)


def test_a_client_for_each_class_may_be_asked_for_without_their_number(sales):
    made = from_values("", options(task__partition="one_class", method__name="scaffold"), quiet).experiment
    assert (made.task.partition, made.task.clients) == ("one_class", 3)


@pytest.mark.parametrize("preset", ["", "digits/fedavg", "pbc-0.05/fedprox", "bibtex/fedalc-1"])
def test_command_line_and_python_agree(sales, preset):
    given = options(federation__rounds=2)
    assert from_words(preset, words(given), "anchorfl run", quiet) == from_values(preset, given, quiet)
    assert anchorfl.read_preset(preset, given) == from_values(preset, given, quiet).experiment


def test_options_that_are_given_stay(sales):
    given = {"task.min_count": 7, "task.validation": 0.3, "evaluation.metrics": "ranking", "seed": 5}
    e = from_values("es-25/fedalign", options("multi") | given, quiet).experiment
    assert (e.task.min_count, e.task.validation, e.evaluation.metrics, e.seed) == (7, 0.3, "ranking", 5)
    with pytest.raises(InputError, match=r"model\.network = 'resnet18' is for images"):
        make_run_spec(from_values("", options() | {"model.network": "resnet18"}, quiet).experiment, quiet)


def test_a_preset_of_images_lends_its_network_to_images(shades):
    given = {name: shades[name] for name in ("task.file", "task.label_columns", "task.image_size", "task.clients")}
    e = from_values("pbc-0.05/fedavg", given, quiet).experiment
    assert (e.model, e.optimizer) == (read_preset("pbc-0.05/fedavg").model, read_preset("pbc-0.05/fedavg").optimizer)
    assert e.task.classes_per_client == 2, "there are no more"


def test_a_preset_that_is_a_table_already_lends_nothing(sales):
    """Only what is given changes: another month's file has the same columns."""
    e = from_values("", options(task__client_column="shop", seed=3), quiet).experiment
    Path("mine.toml").write_text(to_toml(e))
    assert from_values("mine.toml", {}, quiet) == ("mine.toml", e)
    Path("sales.parquet").rename("june.parquet")
    name, june = from_values("mine.toml", {"task.file": "june.parquet"}, quiet)
    assert name == "june-anchor"
    assert june == replace(e, task=replace(e.task, file="june.parquet", name="table-june"))


def test_a_file_that_extends_a_preset_and_names_a_table_takes_what_it_lends(sales):
    table = 'file = "sales.parquet"\nlabel_columns = "class"\ninput_columns = "x*"\n'
    Path("mine.toml").write_text(f'extends = "r8-8/fedpu"\n[task]\n{table}client_column = "shop"\n')
    name, e = from_values("mine.toml", {}, quiet)
    assert (name, e.method, e.seed) == ("mine.toml", read_preset("r8-8/fedpu").method, 0)
    assert (e.task.variant, e.task.clients, e.selected_clients) == ("", 3, 3)
    Path("mine.toml").write_text(f'extends = "r8-8/fedpu"\n[task]\n{table}colour = 3\n')
    with pytest.raises(InputError, match=r"mine\.toml: no option 'colour' in \[task\]"):
        from_values("mine.toml", {}, quiet)


def test_runs_are_named_after_their_data(sales, monkeypatch):
    given = options()
    assert from_values("digits/fedavg", given, quiet).name == "sales-fedavg"
    assert (
        from_values("digits/fedavg", {"task.name": "toy-single", "task.clients": 5}, quiet).name == "toy-single-fedavg"
    )
    assert from_values("digits/fedavg", {"federation.rounds": 1}, quiet).name == "digits/fedavg"
    assert main(["run", "digits/fedavg", *words(given), *WORDS]) == 0
    assert [p.name.rpartition("-")[0] for p in Path("runs").iterdir()] == ["sales-fedavg-s0"]
    assert not list(Path("runs").glob("digits-*"))
    Path("sales.parquet").rename("table-a.parquet")
    e = from_values("", given | {"task.file": "table-a.parquet"}, quiet).experiment
    assert e.task.name == "table-a", "one table- is enough"


def test_the_help_needs_no_data(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "--task.file", "none.csv", "--method.name", "moon", "--help"])
    assert not stop.value.code
    shown = capsys.readouterr().out
    assert "--method.tau" in shown
    assert "--method.name NAME" in shown
    assert "--method.q1" not in shown
    assert main(["run", "--help"]) == 0
    assert "--method.name" in capsys.readouterr().out


def test_data_are_prepared_without_a_preset(sales, capsys):
    assert main(["data", "prepare", *words(options(task__client_column="shop"))]) == 0
    assert re.search(r"\nclients +3\n", capsys.readouterr().out)


def test_to_tree_is_not_changed_by_lending(sales):
    before = to_tree(read_preset("r8-8/fedpu"))
    from_values("r8-8/fedpu", options(), quiet)
    assert to_tree(read_preset("r8-8/fedpu")) == before
