"""A sweep that goes on: its data are still the same, records of other points make room, lost final runs are named."""

from __future__ import annotations

import dataclasses
import json

import pytest

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.provenance import run_info
from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_folder import CONFIG, lock_run, write_config
from anchorfl.pipeline.storage.run_record import read_metadata, read_records
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tuning.commands import summary
from anchorfl.tuning.search.backup import set_aside
from anchorfl.tuning.search.search_space import Range
from anchorfl.tuning.search.study import TrialState
from anchorfl.tuning.search.trial import TrialContext, final_experiment, point_experiment
from anchorfl.tuning.sweep.final_runs import run_final_runs
from anchorfl.tuning.sweep.records import SweepRecords
from anchorfl.tuning.sweep.report import write_report
from tests.runs import quiet
from tests.tuning.sweep.test_edges import finished
from tests.tuning.sweep.test_report import final, sweep, trial

RATE = {"lr": "optimizer.lr"}


@pytest.fixture
def run_spec(experiment):
    return make_run_spec(experiment(), quiet)


def records(run_spec, folder, log=quiet):
    """Return the records of one start of the sweep in ``folder``, not begun."""
    e, about = run_spec.experiment, {"seeds": "1", "preset": "digits/fedavg", "sweep.rounds": 2}
    return SweepRecords(
        folder, e, {"p": {1: run_spec}}, lambda point: point_experiment(e, RATE, point, 1), about, "f1_macro", log
    )


def test_a_sweep_does_not_go_on_with_data_that_are_prepared_otherwise(run_spec, tmp_path):
    first = records(run_spec, tmp_path)
    first.check()  # a new sweep
    first.begin()
    first.end("KILLED")
    records(run_spec, tmp_path).check()  # the same data
    about = read_metadata(tmp_path)
    write_json(tmp_path / "run.json", about | {"tags": about["tags"] | {"data_digest": "another"}})
    with pytest.raises(InputError, match=r"prepared otherwise now \(data_digest differs\)"):
        records(run_spec, tmp_path).check()


def test_a_trial_has_the_tags_of_its_own_preset(run_spec, tmp_path, experiment):
    """Where several presets are searched: not those of the first."""
    made = records(run_spec, tmp_path)
    made.run_specs = {"p": {1: run_spec}, "q": {1: make_run_spec(experiment("fedpu"), quiet)}}
    tags = [made._shared_info(point).tags["method"] for point in (None, {"preset": "p"}, {"preset": "q"})]
    assert tags == ["fedavg", "fedavg", "fedpu"]


def test_final_runs_on_data_that_are_prepared_otherwise_do_not_count(run_spec, tmp_path):
    context = TrialContext({"p": {5: run_spec}}, RATE, str(tmp_path / "final"), 3, "validation/f1_macro", 1)
    folder = tmp_path / "final/trial-0000-seed-5"
    finished(folder, digest(final_experiment(run_spec.experiment, RATE, {"lr": 0.01}, 5)))
    about = {"id": "i", "name": "n", "experiment": "e", "created": 1.0, "status": "FINISHED", "folder": "f"}
    about |= {"params": {}, "tags": run_info(run_spec, folder).tags, "datasets": [], "artifacts": [], "register": ""}
    write_json(folder / "run.json", about)

    class Sent:
        log = add = staticmethod(quiet)

    given = {"trial-0000": {"lr": 0.01}}, (5,), context, [{"CPU": 1}], 1, Sent(), ""
    assert run_final_runs(*given) == []
    write_json(folder / "run.json", about | {"tags": about["tags"] | {"partition_digest": "another"}})
    with pytest.raises(InputError, match=r"trial-0000-seed-5: its data are prepared otherwise now"):
        run_final_runs(*given)


def trained(first, rate, score):
    """Start a sweep in which trial 0 has ``rate`` and reports one round, and end it."""
    trial = TrialState(0, {"lr": rate}, "a")
    first.begin()
    first.on_suggest(trial)
    trial.records[1] = {"metrics": {"validation/f1_macro": score}, "scores": {"1": score}, "score": score}
    first.on_report(trial, 1)
    trial.status = "finished"
    first.on_end(trial)
    first.end("KILLED")


def test_the_record_of_a_trial_that_is_another_point_now(run_spec, tmp_path):
    """Its rounds are not those of the new point; the old record is kept, for MLflow has that run too."""
    said, folder = [], tmp_path / "trials/0000"
    trained(records(run_spec, tmp_path), 0.1, 0.4)
    first = read_metadata(folder)
    (folder / "seed-1").mkdir()
    trained(records(run_spec, tmp_path, said.append), 0.1, 0.4)
    assert read_metadata(folder) == first  # its own point: the closed record stays
    trained(records(run_spec, tmp_path, said.append), 0.2, 0.7)
    again, aside = read_metadata(folder), tmp_path / "trials/0000-other-1"
    assert again["params"]["optimizer.lr"] == 0.2
    ran = {"federation.rounds": 2, "evaluation.test": "never", "evaluation.every": 1}  # as it trains, not as the preset
    assert again["params"] | ran == again["params"]
    assert run_spec.experiment.federation.rounds != 2
    assert (again["tags"]["kind"], read_metadata(tmp_path)["tags"]["kind"]) == ("trial", "sweep")
    assert again["tags"]["trial_status"] == "finished"
    assert again["id"] != first["id"]
    assert [r.metrics["validation/f1_macro"] for r in read_records(folder)[0]] == [0.7]
    assert read_metadata(aside) == first
    assert [r.metrics["validation/f1_macro"] for r in read_records(aside)[0]] == [0.4]
    assert (folder / "seed-1").exists()  # whoever trains there looks at it
    assert said == [f"{folder} held the record of another point: moved to {aside}"]


def test_a_copy_that_is_the_wanted_run_is_fetched(experiment, tmp_path):
    """Another node has begun the new point; only this folder has the old one."""
    folder, copy, e = tmp_path / "seed-1", tmp_path / "copy", experiment()
    wanted = dataclasses.replace(e, seed=9)
    for place, what in ((folder, e), (copy, wanted)):
        place.mkdir()
        write_config(place, what)
        (place / "metrics.jsonl").write_text(f"{what.seed}\n")
    with lock_run(folder):
        set_aside(folder, wanted, str(copy), quiet)
    assert (folder / "metrics.jsonl").read_text() == "9\n"
    assert json.loads((folder / CONFIG).read_text())["digest"] == digest(wanted)
    assert (copy / CONFIG).exists()


def test_a_store_that_is_away_does_not_stop_a_trial(experiment, tmp_path, monkeypatch):
    folder, e, said = tmp_path / "seed-1", experiment(), []
    folder.mkdir()
    write_config(folder, e)

    def away(place):
        raise InputError(f"{place}: no answer")

    monkeypatch.setattr(object_store, "read_bytes", away)
    with lock_run(folder):
        set_aside(folder, dataclasses.replace(e, seed=9), "s3://bucket/seed-1", said.append)
    assert said[1] == "backup: s3://bucket/seed-1/config.json: no answer; the run begins anew"
    assert not (folder / CONFIG).exists()


def test_final_runs_that_all_failed_are_on_the_page(tmp_path):
    own, better = (dataclasses.replace(trial(n, {"lr": 0.1}), curves={1: {6: f1}}) for n, f1 in enumerate((0.1, 0.2)))
    view = sweep(
        seeds=(1,),
        trials=(own, better),
        space={"lr": Range(0.01, 1)},
        fresh_seeds=(3, 4),
        reference_wanted=True,
        final_runs_begun=True,
    )
    for name, runs, metrics in (("a", (), 1), ("b", (final(3), final(4)), 2)):
        shown = dataclasses.replace(view, reference_runs=runs)
        write_report(shown, tmp_path / name)
        text = (tmp_path / name / "report.md").read_text()
        assert "On fresh seeds" in text
        assert text.count("no result") == (2 * metrics if runs else 4)
        assert "test, chosen point: no result of seeds 3, 4" in summary(shown)
        assert ("test, preset's own point: no result of seeds 3, 4" in summary(shown)) == (not runs)
    write_report(dataclasses.replace(view, final_runs_begun=False), tmp_path / "c")  # the search goes on
    assert "On fresh seeds" not in (tmp_path / "c/report.md").read_text()
