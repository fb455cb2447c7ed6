"""An option that was typed and does nothing is refused: the run would have another name, and the same bits."""

from __future__ import annotations

import dataclasses

import pytest

import anchorfl
from anchorfl.pipeline.config.idle_options import check_idle, idle_options
from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.methods import METHODS
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.cli import main
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import SPACES, resolve, space_of
from anchorfl.tuning.sweep.plan import SweepPlan, check_searched


@pytest.mark.parametrize("method", METHODS)
def test_a_method_reads_the_learning_rate_or_says_that_it_does_not(experiment, finished_run, method):
    e = experiment(method)
    other = dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, lr=0.03))
    same = finished_run(e).checksum == finished_run(other).checksum
    assert same == ("optimizer.lr" in idle_options(e))


@pytest.mark.parametrize(
    ("preset", "words", "option", "instead"),
    [
        ("digits/fedalign", {"optimizer.lr": 0.02}, "optimizer.lr", "method.data_lr and method.label_lr"),
        ("digits/fedavg", {"task.beta": 0.1}, "task.beta", "dirichlet"),
        ("digits/fedavg", {"task.partition": "iid", "task.classes_per_client": 2}, "task.classes_per_client", "k_cl"),
        ("digits/fedavg", {"federation.trim_fraction": 0.3}, "federation.trim_fraction", "trimmed_mean"),
        ("digits/fedavg", {"federation.steps": 9, "federation.epochs": 3}, "federation.epochs", "federation.steps 0"),
        ("digits/fedavg", {"federation.batch_rows": 77}, "federation.batch_rows", "batched_clients"),
        ("bibtex/fedalc-10", {"federation.retries": 5}, "federation.retries", "federation.batched_clients False"),
        (
            "digits/fedavg",
            {"federation.client_fraction": 0.5, "federation.clients_per_round": 3},
            "federation.clients_per_round",
            "client_fraction 0",
        ),
        ("digits/fedavg", {"class_embeddings.table": "names.csv"}, "class_embeddings.table", "fedalign"),
        ("pbc-0.05/fedbm", {"class_embeddings.normalize": False}, "class_embeddings.normalize", "language_model"),
        ("digits/fedavg", {"model.network": "resnet8", "model.dropout": 0.1}, "model.dropout", "auto"),
    ],
)
def test_an_idle_option_is_refused_with_what_does_it(preset, words, option, instead):
    before = read_preset(preset)
    with pytest.raises(InputError, match=rf"--{option} does nothing here.*{instead}"):
        check_idle(words, [with_options(before, words)])


def test_an_option_that_works_is_taken():
    before = read_preset("digits/fedavg")
    for words in (
        {"optimizer.lr": 0.02},
        {"task.partition": "dirichlet", "task.beta": 0.1},
        {"federation.aggregation": "trimmed_mean", "federation.trim_fraction": 0.3, "federation.quorum": 1.0},
    ):
        check_idle(words, [with_options(before, words)])
    guided = {"model.network": "resnet8", "model.dropout": 0.1}  # the head has it
    check_idle(guided, [with_options(read_preset("suite-scene-masks-2/fedlgt"), guided)])
    of_names = {"init": "language_model", "encoder": "m", "normalize": False}
    of_names = {f"class_embeddings.{name}": value for name, value in of_names.items()}
    check_idle(of_names, [with_options(read_preset("digits/fedalign"), of_names)])


def test_of_several_presets_one_that_reads_it_is_enough():
    before = [read_preset("digits/fedalign"), read_preset("digits/fedavg")]
    check_idle(["optimizer.lr"], [with_options(e, {"optimizer.lr": 0.02}) for e in before])


def test_the_command_refuses_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "digits/fedalign", "--optimizer.lr", "0.02"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--optimizer.lr" in line
    assert "method.data_lr" in line
    assert not list(tmp_path.iterdir())


TRIM = "--federation.trim_fraction=0.3"


@pytest.mark.parametrize(
    "words",
    [
        ["export", "flower", "digits/fedavg", TRIM],
        ["probe", "digits/fedavg", TRIM],
        ["table", "suite", "--data", "suite-digits-one-class", "--rows", "fedavg,moon", TRIM],
        ["table", "suite", "--data", "suite-digits-one-class", "--rows", "fedavg,moon", "--method.tau", "0.3", TRIM],
        ["table", "suite", "--data", "suite-digits-one-class", "--rows", "fedavg", "--vary", f"{TRIM[2:]},0.4"],
        ["table", "suite", "--data", "suite-digits-one-class", "--rows", "fedavg", "--row", f"Mine = fedavg {TRIM}"],
    ],
    ids=["export", "probe", "table", "table with a row's own", "vary", "row"],
)  # fmt: skip
def test_so_do_the_other_commands(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--federation.trim_fraction does nothing here" in line
    assert not list(tmp_path.iterdir())


def test_a_table_takes_an_option_that_one_of_its_rows_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["--data", "suite-digits-masks-2", "--rows", "fedavg,fedalign"]
    assert main(["table", "suite", *rows, "--optimizer.lr", "0.02", "--show"]) == 0


def test_an_option_of_a_table_may_be_of_rows_that_are_left_out(tmp_path, monkeypatch):
    """Every call has them, so that its runs are those of the whole table (docs/tables.md)."""
    monkeypatch.chdir(tmp_path)
    words = ["table", "fedbm", "--data", "pbc-0.05", "--rows", "fedavg", "--class_embeddings.encoder", "mine"]
    assert main([*words, "--show"]) == 0


def test_so_does_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (anchorfl.read_preset, anchorfl.run, anchorfl.sweep):
        with pytest.raises(InputError, match="trim_fraction does nothing here"):
            call("digits/fedavg", {"federation.trim_fraction": 0.3})
    assert not list(tmp_path.iterdir())


def test_a_sweep_does_not_search_it():
    e = read_preset("digits/fedalign")
    with pytest.raises(InputError, match=r"optimizer\.lr"):
        resolve(e, "optimizer.lr")


@pytest.mark.parametrize("names", [["federation.trim_fraction"], ["federation.trim_fraction", "optimizer.lr"]])
def test_nor_an_option_that_does_nothing_beside_the_others(names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space = [f"{name}=0.1,0.2" for name in names]
    assert main(["sweep", "digits/fedavg", "--space", *space, "--output", "s"]) == 2
    assert capsys.readouterr().err == (
        "anchorfl: --space federation.trim_fraction: federation.trim_fraction does nothing here, it belongs to"
        " federation.aggregation trimmed_mean: leave it out\n"
    )
    assert not list(tmp_path.iterdir())


def test_it_searches_one_that_another_searched_option_needs():
    e = with_options(read_preset("digits/fedavg"), {"federation.quorum": 1.0})
    space = space_of(e, ["federation.aggregation=mean,trimmed_mean", "federation.trim_fraction=0.1,0.2"])
    check_searched(SweepPlan("digits/fedavg", e, space, SweepOptions(scheduler="none"), ""))


@pytest.mark.parametrize("preset", [f"digits/{name}" for name in SPACES if f"digits/{name}" in preset_names()])
def test_the_space_of_a_method_searches_what_works(preset):
    e = read_preset(preset)
    check_searched(SweepPlan(preset, e, space_of(e), SweepOptions(scheduler="none"), ""))


def test_no_space_names_an_option_that_its_method_does_not_read():
    assert not [name for name, space in SPACES.items() for option in space.space if option in METHODS[name].unused]
