"""Sweeps on Ray: trials with actors of their own, one that fails, and a sweep that is killed and resumed."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from pathlib import Path

import pytest

import anchorfl
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tuning.cli import main
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.sweep.plan import load_plan
from anchorfl.tuning.sweep.sweep import LEDGER, read_sweep
from tests.ray.sweeps import SHORT, SPACE, mlflow_runs, scores, sweep_process, trials, wait_for_ends, write_preset

pytestmark = pytest.mark.ray
SERIAL = ["--trials", "3", "--finals", "1", "--concurrent", "1", "--cluster.executor", "serial"]


@pytest.fixture(scope="module")
def one_ray():
    """Start one Ray for the sweeps of this file that run in this process."""
    from anchorfl.pipeline.cluster import ray_cluster
    from anchorfl.pipeline.config.cluster import ClusterOptions

    with ray_cluster.session(ClusterOptions()):
        yield


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory, one_ray):
    """Return the folder of a sweep of three serial trials that was left alone."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["sweep", write_preset(experiment), *SPACE, *SHORT, *SERIAL, "--output", "whole/s"]) == 0
    return folder / "whole"


@pytest.mark.slow
def test_two_objectives_are_what_the_runs_moved(preset, one_ray, capsys):
    """A front of network widths; resumed, it suggests what it suggested and trains nothing again."""
    preset(tracking={"uri": "none"}, cluster={"executor": "serial"})
    words = ["--space", "model.width=8,16,32", "--searcher", "grid", *SHORT[2:], "--finals", "0"]
    assert main(["sweep", "toy.toml", *words, "--against", "megabytes", "--output", "s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    for trial in trials("s"):
        moved = []
        for seed in trial.records[2]["scores"]:
            rows = read_records(Path(f"s/trials/{trial.number:04d}/seed-{seed}"))[0]
            moved.append(
                sum(value for r in rows for name, value in r.metrics.items() if name.endswith("load_bytes")) / 1e6
            )
        assert trial.records[2]["expense"] == pytest.approx(sum(moved) / len(moved))
        assert trial.records[2]["expense"] == shown["trials"][trial.number]["expense"] > 0
    by_width = sorted(shown["trials"], key=lambda trial: trial["point"]["model.width"])
    assert sorted(by_width, key=lambda trial: trial["expense"]) == by_width
    assert shown["front"][0] == by_width[0]["number"]
    assert shown["chosen"] == shown["front"][-1]
    assert {p.stem for p in Path("s/report/front").iterdir()} == {f"trial-{n}" for n in shown["front"]}
    assert main(["sweep", "--resume", "s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["front"] == shown["front"]
    assert main(["sweep", "toy.toml", *SPACE, "--against", "seconds"]) == 2
    assert "--against seconds compares whole trials: give --scheduler none" in capsys.readouterr().err


@pytest.mark.apart
def test_trials_are_runs(preset, whole):
    """Serial, on actors or in forked workers, for four clients: the same scores; and each seed of a trial is bit for
    bit the run that its options make. Trials never score the test split; the final runs do, once.
    """
    e = read_preset(preset())
    assert main(["sweep", "toy.toml", *SPACE, *SHORT, "--trials", "2", "--finals", "1", "--output", "a"]) == 0
    assert scores("a") == scores(whole / "s")[:2]
    forked = ["--cluster.executor", "forked", "--cpus", "2", "--trials", "1", "--finals", "0", "--output", "b"]
    assert main(["sweep", "toy.toml", *SPACE, *SHORT, *forked]) == 0
    assert scores("b") == scores("a")[:1]
    assert [e.status for e in trials("a")] == ["finished"] * 2
    trial = trials("a")[1]
    e = dataclasses.replace(
        e,
        method=dataclasses.replace(e.method, **trial.point),
        federation=dataclasses.replace(e.federation, rounds=2),
        tracking=dataclasses.replace(e.tracking, uri="none"),
        cluster=dataclasses.replace(e.cluster, executor="serial"),
        seed=e.seed + 1,
    )
    run(e, Path("alone"), str.strip)
    alone, inside = read_records(Path("alone"))[0], read_records(Path("a/trials/0001") / f"seed-{e.seed}")[0]
    for one, other in zip(alone, inside, strict=True):
        assert one.metrics["validation/f1_macro"] == other.metrics["validation/f1_macro"]
        assert not any(key.startswith("test/") for key in other.metrics)
    state = "checkpoint/state-000002.safetensors"
    assert (Path("alone") / state).read_bytes() == (Path("a/trials/0001") / f"seed-{e.seed}" / state).read_bytes()
    (final,) = Path("a/final").iterdir()
    tested = [r.round for r in read_records(final)[0] if "test/f1_macro" in r.metrics]
    assert tested == [e.federation.rounds + 1]  # the preset's three rounds, not the trials' two
    assert set(json.loads((final / "result.json").read_text())["scores"]) == {"validation", "test"}


@pytest.mark.slow
def test_a_sweep_over_presets(preset, one_ray, capsys):
    """Every preset once, its trial and its final run bit for bit its own run; killed at no point, resumed as it was."""
    preset(tracking={"uri": "none"}, cluster={"executor": "serial"})
    Path("other.toml").write_text('extends = "toy.toml"\n[method]\nname = "fedavg"\n')
    words = [*SHORT[2:], "--finals", "1", "--output", "s", "--json"]
    assert main(["sweep", "toy.toml", "other.toml", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [e.point for e in trials("s")] == [{"preset": "toy.toml"}, {"preset": "other.toml"}]
    best = max(trials("s"), key=lambda e: (e.records[2]["score"], -e.number))
    for trial in trials("s"):
        alone = read_preset(trial.point["preset"])
        alone = dataclasses.replace(alone, federation=dataclasses.replace(alone.federation, rounds=2))
        run(alone, Path(f"alone-{trial.number}"), str.strip)
        state = "checkpoint/state-000002.safetensors"
        inside = Path(f"s/trials/{trial.number:04d}/seed-{alone.seed}") / state
        assert (Path(f"alone-{trial.number}") / state).read_bytes() == inside.read_bytes()
    assert shown["chosen"] == best.number
    (final,) = Path("s/final").iterdir()
    assert (
        json.loads((final / "config.json").read_text())["method"]["name"]
        == read_preset(best.point["preset"]).method.name
    )
    chosen = read_preset("s/report/best.toml")
    assert chosen.method == read_preset(best.point["preset"]).method
    before = Path("s/ledger.jsonl").read_text()
    assert main(["sweep", "--resume", "s"]) == 0
    assert Path("s/ledger.jsonl").read_text().startswith(before)
    assert len(trials("s")) == 2


@pytest.mark.slow
def test_the_number_of_slots_changes_no_score(preset, one_ray):
    preset()
    for slots in ("1", "2"):
        words = ["--trials", "2", "--finals", "1", "--slots", slots, "--output", slots]
        assert main(["sweep", "toy.toml", *SPACE, *SHORT, *words]) == 0
    assert scores("1") == scores("2")


@pytest.mark.slow
def test_a_failing_trial_is_one_trial(preset, one_ray, capsys):
    """A learning rate that gives no finite update fails its trial, with its reason; the sweep goes on."""
    file = preset(tracking={"uri": "none"})
    space = ["--space", "data_lr=0.01,1e30", "--searcher", "grid"]
    assert main(["sweep", file, *SHORT, *space, "--trials", "9", "--finals", "0", "--output", "s"]) == 0
    by_value = {e.point["data_lr"]: e for e in trials("s")[1:]}
    assert by_value[0.01].status == "finished"
    assert by_value[1e30].status == "failed"
    assert "not finite" in by_value[1e30].error or "quorum" in by_value[1e30].error
    assert "Traceback" in next(Path("s/trials").glob(f"{by_value[1e30].trial_id}/error.txt")).read_text()
    shown = capsys.readouterr().out
    assert f"trial {by_value[1e30].number:>3} failed: " in shown
    assert "Failures" in Path("s/report/report.html").read_text()


@pytest.mark.slow
def test_a_budget_ends_the_search_and_can_be_raised(preset, one_ray, capsys):
    file = preset(tracking={"uri": "none"})
    spent = ["--cost", "0.0001", "--cpu-price", "3600"]  # the first reported second is over it
    assert main(["sweep", file, *SHORT, *SPACE, *spent, "--trials", "4", "--finals", "0", "--output", "s"]) == 0
    assert "the budget is spent" in capsys.readouterr().out
    assert len([e for e in trials("s") if e.status == "finished"]) < 4
    assert Path("s/report/report.html").exists()
    assert main(["sweep", "--resume", "s", "--cost", "0"]) == 0
    assert [e.status for e in trials("s")] == ["finished"] * 4
    assert main(["sweep", "--resume", "s"]) == 0  # nothing left to do


@pytest.mark.apart
def test_killed_and_resumed(preset, whole, tmp_path):
    """SIGKILL after two of the three trials: the same trials, scores and choice as a sweep that was left alone; no
    trial that had ended is touched; MLflow has every run and every round once.
    """
    process = sweep_process(tmp_path, preset(), *SPACE, *SHORT, *SERIAL, "--output", "cut/s", held_after=2)
    ledger = tmp_path / "cut/s" / LEDGER
    wait_for_ends(process, tmp_path, str(ledger), 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(Ledger(ledger).events)
    ended = [e.trial_id for e in trials("cut/s") if e.status != "running"]
    assert len(ended) == 2
    files = [p for t in ended for p in (tmp_path / "cut/s/trials" / t).glob("seed-*/**/*") if p.is_file()]
    stamps = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files}
    again = sweep_process(tmp_path, "--resume", "cut/s")
    assert again.wait(timeout=300) == 0, (tmp_path / "said.txt").read_text()
    assert scores("cut/s") == scores(whole / "s")
    views = [read_sweep(load_plan(Path(p), {}), Path(p)) for p in ("cut/s", whole / "s")]
    assert views[0].best.number == views[1].best.number
    assert [f.scores for f in views[0].final_runs] == [f.scores for f in views[1].final_runs]
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files} == stamps
    later = [e for e in Ledger(ledger).events[before:] if f"{e.get('trial', 99):04d}" in ended]
    assert not later
    assert mlflow_runs("cut") == mlflow_runs(whole)


@pytest.mark.apart
def test_the_sweep_of_the_page_about_python(one_ray, tmp_path, monkeypatch):
    """``anchorfl.sweep`` as docs/python.md has it, on fewer rounds."""
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "anchorfl.sweep(" in block)
    read = anchorfl.read_preset
    small = {"federation.rounds": 2, "federation.epochs": 1, "cluster.executor": "serial", "tracking.uri": "none"}
    monkeypatch.setattr(anchorfl, "read_preset", lambda name, given, **how: read(name, given | small, **how))
    monkeypatch.chdir(tmp_path)
    names = {"anchorfl": anchorfl}
    exec(code, names)
    assert names["sweep"].best.point.keys() == {"optimizer.lr"}
    assert len(names["sweep"].trials) == 3
    assert len(names["sweep"].final_runs) == 1
    assert Path("runs/sweep/report/report.html").exists()
