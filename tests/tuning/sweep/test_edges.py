"""Sweeps at their edges: folders of other points, missing final runs, passwords, spaces that the options refuse."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from types import SimpleNamespace

import pytest

import anchorfl.tuning.search.trial as trials
import anchorfl.tuning.sweep.sweep as sweeps
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.presets import read_preset, shipped_toml
from anchorfl.pipeline.config.schema import from_tree
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_folder import CONFIG, LOCK, lock_run, write_config
from anchorfl.pipeline.storage.run_record import RoundRecord, read_metadata
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.backup import set_aside
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import Choice, Range, space_of
from anchorfl.tuning.sweep import report
from anchorfl.tuning.sweep.best_preset import best_preset
from anchorfl.tuning.sweep.final_runs import has_result, read_final_runs, run_final_runs
from anchorfl.tuning.sweep.plan import SweepPlan, preset_text
from anchorfl.tuning.sweep.report import write_report
from anchorfl.tuning.tables.statistics import traffic
from tests.runs import quiet
from tests.tuning.sweep.test_report import final, sweep, trial


def test_a_folder_of_another_point_is_moved_aside(experiment, tmp_path, monkeypatch):
    """After the end of a ledger was lost, trial 0 may be another point: it does not go on from the old one's rounds."""
    run_spec = make_run_spec(experiment(federation={"rounds": 2}), quiet)

    def scores(number, rate, after=0):
        reported = []
        monkeypatch.setattr(trials.tune, "report", lambda metrics: reported.append(metrics["score"]))
        context = trials.TrialContext(
            {"p": {1: run_spec}}, {"lr": "optimizer.lr"}, str(tmp_path / "trials"), 2, "validation/f1_macro", 1
        )
        trials._train_trial({"number": number, "point": {"lr": rate}, "after": after, "seconds": 0.0}, context)
        return reported

    first, fresh = scores(0, 0.001), scores(1, 0.05)
    assert scores(0, 0.001) == first  # its own point: nothing moves
    assert not (tmp_path / "trials/0000/seed-1-other-1").exists()
    assert scores(0, 0.05) == fresh
    old = tmp_path / "trials/0000/seed-1-other-1"
    assert json.loads((old / CONFIG).read_text())["optimizer"]["lr"] == 0.001
    assert (old / "metrics.jsonl").exists()
    assert json.loads((tmp_path / "trials/0000/seed-1" / CONFIG).read_text())["optimizer"]["lr"] == 0.05


def test_the_copy_of_another_point_goes_too(experiment, tmp_path):
    folder, copy, e = tmp_path / "seed-1", tmp_path / "copy", experiment()
    for place in (folder, copy):
        place.mkdir()
        write_config(place, e)
        (place / "result.json").write_text("{}")
    said = []
    with lock_run(folder):
        set_aside(folder, e, str(copy), said.append)
        assert (folder / CONFIG).exists()
        set_aside(folder, dataclasses.replace(e, seed=9), str(copy), said.append)
        assert [p.name for p in folder.iterdir()] == [LOCK]
    assert not any(copy.iterdir())
    assert said == [f"{folder} held a run of other options: moved to {tmp_path / 'seed-1-other-1'}"]


def finished(folder, digest_, f1=0.5):
    folder.mkdir(parents=True, exist_ok=True)
    scores = {"test": {"f1_macro": f1}}
    write_json(folder / "result.json", {"digest": digest_, "rounds": 3, "scores": scores, "seconds": 1.0})


def test_a_final_run_of_another_point_has_no_result(tmp_path):
    finished(tmp_path / "trial-0001-seed-2", "this")
    finished(tmp_path / "trial-0001-seed-3", "another")
    assert has_result(tmp_path / "trial-0001-seed-2", "this")
    assert not has_result(tmp_path / "trial-0001-seed-3", "this")
    assert [f.seed for f in read_final_runs(tmp_path, "trial-0001", {2: "this", 3: "this", 4: "this"})] == [2]


def test_a_name_for_the_registry_that_comes_late(experiment, tmp_path):
    """The final runs are there: the first one's record learns the name, and its delivery sends it."""
    e = experiment()
    run_spec, added = make_run_spec(e, quiet), []
    context = trials.TrialContext(
        {"p": {5: run_spec}}, {"lr": "optimizer.lr"}, str(tmp_path / "final"), 3, "validation/f1_macro", 1
    )
    folder = tmp_path / "final/trial-0000-seed-5"
    finished(folder, digest(trials.final_experiment(e, context.names, {"lr": 0.01}, 5)))
    about = {"id": "i", "name": "n", "experiment": "e", "created": 1.0, "status": "FINISHED", "folder": "f"}
    write_json(folder / "run.json", about | {"params": {}, "tags": {}, "datasets": [], "artifacts": [], "register": ""})

    class Records:
        log = staticmethod(quiet)

        def add(self, place):
            added.append(read_metadata(place)["register"])

    assert run_final_runs({"trial-0000": {"lr": 0.01}}, (5,), context, [{"CPU": 1}], 1, Records(), "champion") == []
    assert added == ["champion"]


def test_missing_final_runs_are_on_the_page(tmp_path):
    view = sweep(
        final_runs=(final(3), final(5)),
        reference_runs=(final(3), final(4), final(5)),
        fresh_seeds=(3, 4, 5),
        reference_wanted=True,
    )
    view = dataclasses.replace(view, final_runs_begun=True)
    assert not view.complete
    write_report(view, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "chosen, mean ± sd, 2 of 3" in text
    assert "preset's own, mean ± sd |" in text
    assert text.count("no result") == 2  # of two metrics
    assert dataclasses.replace(view, final_runs=(*view.final_runs, final(4))).complete
    assert not dataclasses.replace(view, trials=()).complete
    own = dataclasses.replace(view, final_runs=(final(3), final(4), final(5)), reference_runs=())
    assert own.best.number == 0
    assert own.complete  # the preset's own point was chosen: its final runs are the chosen one's
    assert "no result" not in str(report._final_runs(own))


def test_a_report_leaves_a_half_written_line_alone(tmp_path):
    """The driver may be writing it; what a kill left is cut off by the next start's first event."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path).write({"event": "start", "time": 1.0, "versions": {}})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "sta')
    assert len(Ledger(path).events) == 1
    assert path.read_bytes() == whole + b'{"event": "sta'
    driver = Ledger(path)
    driver.write({"event": "start", "time": 2.0, "versions": {}})
    driver.write({"event": "start", "time": 3.0, "versions": {}})
    assert [e["time"] for e in Ledger(path).events] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("federation.epochs=1:5", "--space federation.epochs: federation.epochs = 1.0: must be int, not float"),
        ("optimizer.name=adam,sgdd", "optimizer.name = 'sgdd' (did you mean 'sgd'?)"),
        ("optimizer.name=1:2", "optimizer.name = 1.0"),
        ("positive_f1_gate=0.5:0.9", "the preset's own value, none, lies on no range: give values with commas"),
    ],
)
def test_spaces_that_the_options_refuse(experiment, given, message):
    with pytest.raises(InputError) as error:
        space_of(experiment("fedalign"), [given])
    assert message in str(error.value)


def test_no_value_is_a_value(experiment, tmp_path):
    """``none`` in a list is the preset's own none: one point, readable in the ledger, in the report and as a preset."""
    e = experiment("fedalign")
    space = space_of(e, ["positive_f1_gate=none,0.6"])
    assert space["positive_f1_gate"] == Choice(("none", 0.6))
    plan = SweepPlan("digits/fedalign", e, space, SweepOptions(scheduler="none"), "")
    assert plan.preset_point == {"positive_f1_gate": "none"}
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write({"event": "suggest", "trial": 0, "point": plan.preset_point, "time": 1.0})
    assert Ledger(ledger.path).events[0]["point"] == plan.preset_point
    assert trials.point_experiment(e, plan.names, plan.preset_point, 1).method.positive_f1_gate is None
    both = tuple(dataclasses.replace(trial(n, {}), point={"positive_f1_gate": v}) for n, v in enumerate(("none", 0.6)))
    text = preset_text("digits/fedalign", e, overridden=True)
    write_report(sweep(trials=both, space=space), tmp_path, lambda point: text)
    assert from_tree(tomllib.loads((tmp_path / "best.toml").read_text())) == e


def test_no_password_in_a_sweeps_texts(tmp_path):
    """A preset of one's own may hold one; the text that is kept of it holds none."""
    own = tmp_path / "own.toml"
    address = "postgresql://alice:hunter2@db.example.org/mlflow"
    own.write_text(shipped_toml("digits/fedavg") + f'\n[tracking]\nuri = "{address}"\n')
    text = preset_text(str(own), read_preset(str(own)), overridden=False)
    assert "hunter2" not in text
    assert tomllib.loads(text)["tracking"]["uri"] == "postgresql://alice@db.example.org/mlflow"


@pytest.mark.parametrize("header", ["[method]  # FedAlign", "[ method ]", '["method"]'])
def test_tables_in_other_ways_of_writing(tmp_path, header):
    text = shipped_toml("digits/fedalign").replace("[method]", header)
    view = sweep(trials=(dataclasses.replace(trial(0, {}), point={"q1": 97.25}),), space={"q1": Range(90, 99.9)})
    (tmp_path / "best.toml").write_text(best_preset(view, view.best, text))
    old = read_preset("digits/fedalign")
    assert read_preset(str(tmp_path / "best.toml")) == dataclasses.replace(
        old, method=dataclasses.replace(old.method, q1=97.25)
    )


def test_traffic_counts_stand_ins():
    """One of five selected clients failed and another took its place: five messages of 1 MB, 1 MB a client."""

    metrics = {
        "failures/dropped_clients": 1.0,
        "clients/completed": 5.0,
        "communication/download_bytes": 5e6,
        "communication/upload_bytes": 5e6,
    }
    params = {"federation.clients_per_round": 5, "task.clients": 8}
    run = SimpleNamespace(params=params, records=[RoundRecord(1, 1.0, metrics)])
    assert traffic(run) == (1.0, 1.0)
    metrics.pop("clients/completed")
    assert traffic(run) == (1.25, 1.25)  # a record of an earlier version
    params["federation.client_fraction"] = 0.75  # of eight, in place of the number
    metrics["failures/dropped_clients"] = 0.0
    assert traffic(run) == (5 / 6, 5 / 6)


@pytest.mark.parametrize("seen", [True, False])
def test_final_runs_that_would_be_lost_are_refused(monkeypatch, tmp_path, seen):
    """The driver's node has no CPUs, and others do not see its disk."""
    monkeypatch.setattr(sweeps, "driver_has_no_cpus", lambda: True)
    monkeypatch.setattr(sweeps, "in_fresh_worker", lambda function, path: seen and function(path))
    e = read_preset("digits/fedavg")
    plan = SweepPlan("digits/fedavg", e, {}, SweepOptions(), "")
    backed_up = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, backup=str(tmp_path / "copy")))
    sweeps._check_folder(dataclasses.replace(plan, options=SweepOptions(finals=0)), tmp_path)
    sweeps._check_folder(dataclasses.replace(plan, experiment=backed_up), tmp_path)
    if seen:
        sweeps._check_folder(plan, tmp_path)
        return
    with pytest.raises(InputError, match=r"\Afinal runs train on other nodes, which do not see .*--cluster\.backup"):
        sweeps._check_folder(plan, tmp_path)


@pytest.mark.parametrize(
    ("method", "sections", "space", "point", "line"),
    [
        ("fedavg", {"federation": {"dp_noise": 1.0, "clip_norm": 1.0}}, "weighting=uniform,samples",
         {"weighting": "samples"}, "set method.weighting to 'uniform'"),
        ("scaffold", {}, "federation.clip_norm=0.0,1.0", {"federation.clip_norm": 1.0}, "'scaffold' does not allow it"),
        ("fedrep", {}, "federation.steps=0,5", {"federation.steps": 5}, "train by whole epochs"),
        ("fedbm", {}, "lkcc=true,false", {"lkcc": False}, "needs other vectors of the class names than its preset"),
    ],
    ids=["privacy", "aggregation", "steps", "concepts"],
)  # fmt: skip
def test_a_point_that_a_run_would_refuse_is_refused(experiment, tmp_path, method, sections, space, point, line):
    options = (
        {"weighting": "uniform"}
        if sections
        else {"concept_conditions": False, "cgde": False}
        if method == "fedbm"
        else {}
    )
    e = experiment(method, options=options, **sections)
    plan = SweepPlan(method, e, space_of(e, [space]), SweepOptions(trials=2, scheduler="none"), "")
    run_specs = {method: {e.seed: make_run_spec(e, quiet)}}
    started = sweeps._SweepRun(plan, tmp_path, run_specs, 1, SimpleNamespace(), quiet)
    assert started._allowed(plan.preset_point)
    assert not started._allowed(plan.preset_point | point)
    assert line in started.refused[-1]


def test_first_weights_cannot_be_varied(experiment):
    with pytest.raises(InputError, match=r"model\.weights"):
        space_of(experiment(), ["model.weights=a.safetensors,b.safetensors"])
