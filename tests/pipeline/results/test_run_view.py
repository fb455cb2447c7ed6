"""A run folder in Python: numbers are those of the records, refusals are one line, and notebooks get a table."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import anchorfl
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.results.run_view import Run
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_metadata, read_records
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import quiet


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("view") / "run"
    run(small_experiment("fedalign"), folder, quiet)
    return anchorfl.Run(folder)


def test_its_numbers_are_those_of_the_files(finished):
    result = json.loads((finished.folder / "result.json").read_text())
    assert (finished.checksum, finished.scores, finished.finished) == (result["checksum"], result["scores"], True)
    table, records = finished.to_pandas(), read_records(finished.folder)[0]
    assert table.index.tolist() == [0, 1, 2, 3]
    assert all(table.loc[r.round, name] == value for r in records for name, value in r.metrics.items())
    assert finished.curve().tolist() == [r.metrics["test/f1_macro"] for r in records]
    assert finished.curve("train/loss").index.tolist() == [1, 2, 3]
    classes = finished.per_class()
    assert classes["test/f1"].to_dict() == records[-1].per_class["test/f1"]
    assert classes["clients"].is_monotonic_increasing
    partition = finished.partition()
    cards = finished.data.cards()
    assert classes["clients"].sum() == partition["identified"].sum() == sum(map(len, cards.identified))
    assert partition.groupby("client")["rows"].sum().tolist() == list(cards.rows)


def test_confusion_adds_up_to_the_accuracy(finished):
    table = finished.confusion()
    assert list(table.columns) == list(table.index) == list(finished.model.class_names)
    assert np.isclose(np.trace(table) / table.to_numpy().sum(), finished.scores["test"]["accuracy"])


def test_other_data_than_those_of_the_run_are_refused(finished, tmp_path):
    """As where the raw files have changed since: what is drawn from them could be rows that the model saw."""
    copy = tmp_path / "copy"
    shutil.copytree(finished.folder, copy)
    about = json.loads((copy / "run.json").read_text())
    about["tags"]["data_digest"] = "0" * 64
    (copy / "run.json").write_text(json.dumps(about))
    for drawn in ("confusion", "partition"):
        with pytest.raises(
            anchorfl.InputError, match=r"prepared otherwise now \(data_digest differs\): use the version"
        ):
            getattr(anchorfl.Run(copy), drawn)()


def test_its_data_are_looked_for_where_the_caller_says(finished, tmp_path):
    places = {"task.root": str(tmp_path / "raw"), "task.cache": str(tmp_path / "cache")}
    run = anchorfl.Run(finished.folder, places=places)
    assert (run.experiment.task.root, run.experiment.task.cache) == tuple(places.values())
    run.partition()
    assert len(list((tmp_path / "cache").iterdir())) == 1
    with pytest.raises(anchorfl.InputError, match=r"--seed: a run goes on with its own options; only places can be"):
        anchorfl.Run(finished.folder, places={"seed": "3"})


def test_it_predicts(finished):
    scores = finished.predict(["apple juice tree", "song violin chord"])
    assert scores.sum(axis=1).tolist() == pytest.approx([1, 1])
    alone = anchorfl.load_model(finished.folder).predict(["apple juice tree"])
    assert alone.iloc[0].tolist() == pytest.approx(scores.iloc[0].tolist(), rel=1e-5)


def test_it_shows_itself(finished):
    assert repr(finished).startswith(
        f"Run({str(finished.folder)!r}): toy-single-fedalign, seed 1, 3 of 3 rounds, valid"
    )
    assert "<td>toy-single-fedalign, seed 1</td>" in finished._repr_html_()


def test_what_is_not_there_is_one_line(finished, tmp_path):
    with pytest.raises(anchorfl.InputError, match="holds no run"):
        anchorfl.Run(tmp_path)
    with pytest.raises(anchorfl.InputError, match="no round has 'test/f2'; there are: "):
        finished.curve("test/f2")
    with stopped_before(2):
        run(small_experiment(), tmp_path / "begun", quiet)
    begun = anchorfl.Run(tmp_path / "begun")
    assert not begun.finished
    assert repr(begun).endswith("1 of 3 rounds, not finished")
    for what in (lambda: begun.scores, lambda: begun.checksum):
        with pytest.raises(anchorfl.InputError, match=r"not finished; go on with anchorfl\.resume"):
            what()
    with pytest.raises(anchorfl.InputError, match="holds no trained model"):
        begun.confusion()


def test_multi_label_and_ranking_runs(tmp_path, monkeypatch):
    run(small_experiment("fedavg", "toy-multi"), tmp_path / "multi", quiet)
    with pytest.raises(anchorfl.InputError, match="do not exclude each other"):
        anchorfl.Run(tmp_path / "multi").confusion()
    e = small_experiment("fedavg-positive", "toy-multi", evaluation={"metrics": "ranking"})
    run(e, tmp_path / "ranked", quiet)
    ranked = anchorfl.Run(tmp_path / "ranked")
    assert ranked.curve().name.endswith("/p_at_1")
    monkeypatch.setattr(anchorfl.Run, "_records", lambda self: [])
    with pytest.raises(anchorfl.InputError, match="no scores by class"):
        ranked.per_class()


def test_runs_are_compared(finished):
    alone = str(anchorfl.compare(finished))
    assert alone == str(anchorfl.compare(str(finished.folder))) == str(anchorfl.compare([finished]))
    text = str(anchorfl.compare([finished, str(finished.folder)]))
    assert text.count("fedalign") == 1  # one run, named twice


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"trials": 0}, "--trials 0: must be at least 1"),
        ({"trials": "3"}, "sweep.trials = '3': must be int, not str"),
        ({"trails": 3}, "no option 'trails' in [sweep] (did you mean 'trials'?)"),
        ({"searcher": "grdi"}, "sweep.searcher = 'grdi' (did you mean 'grid'?): one of optuna, random, grid"),
        ({"rule": "first"}, "sweep.rule = 'first': one of last, mean5, best"),
        ({"hours": float("nan")}, "sweep.hours = nan: must be a finite number"),
        ({"cpus": float("inf")}, "sweep.cpus = inf: must be a finite number"),
        ({"space": ["federation.trim_fraction=0.1,0.2"]}, "federation.trim_fraction does nothing here, it belongs to"),
    ],
)
def test_bad_options_of_a_sweep_are_one_line(options, line):
    with pytest.raises(anchorfl.InputError, match=re.escape(line)):
        anchorfl.sweep("digits/fedavg", **options)


def test_a_folder_of_another_run_stays_as_it_is(tmp_path):
    anchorfl.run(small_experiment(), folder=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    (tmp_path / "mine" / "model").mkdir(parents=True)
    with pytest.raises(anchorfl.InputError, match=r"mine holds no run, but model, which a run would write over"):
        anchorfl.run(small_experiment(), folder=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir() if path.name != ".lock"] == ["model"]
    with pytest.raises(anchorfl.InputError, match=r"run holds another run .*: give another folder"):
        anchorfl.run(small_experiment(seed=7), folder=tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["fedration.rounds", "seed.x"])
def test_a_misspelt_table_of_options_is_one_line(name):
    with pytest.raises(anchorfl.InputError, match=f"no option '{name}'"):
        anchorfl.run("digits/fedavg", {name: 3})


def never(report):
    return False


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"preset": 3}, "3: give the name of a preset, a TOML file or an anchorfl.Experiment"),
        ({"preset": Path("gone.toml")}, "gone.toml"),
        ({"preset": "digits/fedavg", "options": ["seed"]}, "options: give a dict by dotted names"),
        ({"preset": "digits/fedavg", "options": {3: 1}}, "options: give a dict by dotted names"),
        ({"preset": small_experiment(), "callbacks": never}, "give a list of functions"),
        ({"preset": small_experiment(), "callbacks": [3]}, "callbacks = [3]: give a list of functions"),
        ({"preset": small_experiment(), "folder": __file__}, "test_run_view.py"),
        (
            {
                "preset": "digits/fedalign",
                "options": {"class_embeddings.init": "cooccurrence", "class_embeddings.table": __file__},
            },
            "test_run_view.py",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_taken_is_an_input_error_before_anything_is_written(tmp_path, monkeypatch, arguments, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(anchorfl.InputError, match=re.escape(line)):
        anchorfl.run(**{"folder": tmp_path / "run"} | arguments)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("samples", ["one text", None, 3], ids=str)
def test_one_text_is_no_list_of_texts(tmp_path, samples):
    """It was taken for a list of letters."""
    short = small_experiment(task={"name": "toy-single"}, federation={"rounds": 1})
    model = anchorfl.run(short, folder=tmp_path / "run").model
    assert len(model.predict(["one text"])) == 1
    with pytest.raises(anchorfl.InputError, match=f"the input is {samples!r}; give a list of texts"):
        model.predict(samples)


def test_an_own_run_shows_its_data_wherever_places_are_typed(tmp_path, monkeypatch):
    """Also where no seal can be made, as for a user without a home folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    own = small_experiment(task={"cache": str(tmp_path / "cache")})
    assert len(anchorfl.run(own, folder=tmp_path / "run").partition())
    places = {"tracking.uri": "none", "task.root": str(tmp_path)}
    assert len(anchorfl.Run(tmp_path / "run", places=places).partition())
    (tmp_path / "state" / "anchorfl" / "seal_key").unlink()
    (tmp_path / "state" / "anchorfl").rmdir()
    (tmp_path / "state" / "anchorfl").write_text("no folder")
    assert len(anchorfl.run(own, folder=tmp_path / "other").partition())
    assert len(anchorfl.resume(tmp_path / "other", places={"task.cache": str(tmp_path / "cache")}).partition())


def test_a_preset_may_be_named_by_a_path(tmp_path):
    (tmp_path / "mine.toml").write_text(to_toml(small_experiment()))
    assert anchorfl.read_preset(tmp_path / "mine.toml") == small_experiment()


def test_an_experiment_is_taken_alone(tmp_path):
    with pytest.raises(InputError, match="give an experiment alone"):
        anchorfl.sweep(small_experiment(), {"federation.rounds": 2})
    with pytest.raises(InputError, match=r"space = 'q1=90,95': give a list"):
        anchorfl.sweep("digits/fedalign", space="q1=90,95")
    with pytest.raises(InputError, match="give an experiment alone"):
        anchorfl.run(small_experiment(), {"seed": 3}, folder=tmp_path)
    assert anchorfl.run(small_experiment(), folder=tmp_path / "run").finished


def test_a_split_that_follows_the_seed_of_the_run(tmp_path):
    short = {"task.split_seed": "none", "federation.rounds": 1, "federation.epochs": 1, "cluster.executor": "serial"}
    done = anchorfl.run("digits/fedavg", short | {"tracking.uri": "none"}, folder=tmp_path / "run")
    assert done.finished
    assert read_metadata(tmp_path / "run")["params"]["task.split_seed"] == "none"


def test_test_rows_without_a_label_are_in_no_confusion(experiment, finished_run, monkeypatch):
    view = Run(finished_run(experiment("fedavg", "toy-single")).folder)
    rows = view.data.split("test", view.model.objective)
    known = torch.arange(len(rows)) % 2 == 1
    monkeypatch.setattr(Prepared, "split", lambda *a: replace(rows, known_NC=rows.known_NC * known[:, None]))
    predicted = view.model.logits(rows).argmax(-1)[known].numpy()
    wanted = np.bincount(predicted, minlength=len(view.model.class_names))
    assert view.confusion_counts().sum(0).tolist() == wanted.tolist()
