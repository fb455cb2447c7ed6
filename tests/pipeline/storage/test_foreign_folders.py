"""A run folder that somebody else made: it names no file but its own, and no place that this user has not named."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

import anchorfl
from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.checkpoint import Checkpoints, seal
from anchorfl.pipeline.storage.named_files import named_files
from anchorfl.pipeline.storage.places import CODE, PLACES
from anchorfl.pipeline.storage.restore import fetch_run
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.testing import stopped_before
from anchorfl.tuning.cli import main
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import Choice
from anchorfl.tuning.sweep.plan import SweepPlan, resumed_plan
from tests.runs import quiet

SECRET = "ray-token-of-this-user"


@pytest.fixture
def finished(experiment, finished_run, tmp_path):
    """Return a finished run of its own, without a place in its options."""
    folder = tmp_path / "run"
    shutil.copytree(finished_run(experiment()).folder, folder)
    return folder


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "home" / "auth_token"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def name_artifact(folder, name):
    edit(folder / "run.json", artifacts=[*json.loads((folder / "run.json").read_text())["artifacts"], name])


def sent(folder):
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def in_elsewhere(experiment, **tracking):
    return dataclasses.replace(experiment, tracking=dataclasses.replace(experiment.tracking, **tracking))


def absolute(folder, secret):
    return str(secret)


def outside(folder, secret):
    return os.path.relpath(secret, folder)


def linked(folder, secret):
    (folder / "extra").symlink_to(secret)
    return "extra"


def link_inside(folder, secret):
    (folder / "extra").mkdir()
    (folder / "extra" / "deep").symlink_to(secret)
    return "extra"


def linked_folder(folder, secret):
    (folder / "extra").symlink_to(secret.parent)
    return "extra"


def pipe(folder, secret):
    os.mkfifo(folder / "extra")
    return "extra"


def circle(folder, secret):
    (folder / "extra").symlink_to("extra")
    return "extra"


def nul(folder, secret):
    return "extra\0"


def too_long(folder, secret):
    return "extra" * 1000


@pytest.mark.parametrize("make", [absolute, outside, linked, link_inside, linked_folder, pipe, circle, nul, too_long])
def test_no_file_outside_of_a_folder_is_sent(finished, secret, tmp_path, make, capsys):
    name_artifact(finished, make(finished, secret))
    store = f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"
    for words in (["resume", str(finished)], ["sync", str(finished), "--uri", store]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "run.json" in line
        assert "extra" in line or "auth_token" in line or "control characters" in line
    assert not sent(tmp_path / "store")


def test_a_parent_holds_its_runs(finished, tmp_path):
    """Else a run could be put below any other run of this user's store."""
    (tmp_path / "other").mkdir()
    shutil.copy(finished / "run.json", tmp_path / "other" / "run.json")
    edit(finished / "run.json", parent="../other")
    with pytest.raises(InputError, match="parent run"):
        send(finished, f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_a_part_of_a_checkpoint_is_a_file_of_its_folder(finished, secret):
    index = json.loads((finished / "checkpoint" / "checkpoint.json").read_text())
    (finished / "checkpoint" / "link.safetensors").symlink_to(secret)
    index["files"]["link.safetensors"] = {"sha256": "0" * 64, "parts": ["state"], "written": 1}
    del index["sha256"]
    edit(finished / "checkpoint" / "checkpoint.json", **index, sha256=seal(index))
    for before in (finished / "checkpoint").glob("checkpoint-*.json"):
        before.unlink()
    with pytest.raises(InputError, match="lies outside"):
        Checkpoints(finished).load()


def test_a_copy_writes_nothing_outside_of_its_folder(finished, tmp_path, monkeypatch):
    """Names on object storage may hold ``..`` and begin with a slash, which no file of a folder does."""
    sizes, mine = object_store.sizes, tmp_path / "mine"
    mine.write_text("as it was")
    monkeypatch.setattr(object_store, "sizes", lambda uri: {**sizes(uri), "../evil": 1, str(mine): 1})
    monkeypatch.setattr(
        object_store, "read_bytes", lambda uri: b"theirs" if uri == str(mine) else Path(uri).read_bytes()
    )
    (tmp_path / "here").mkdir()
    with pytest.raises(InputError, match="lies outside"):
        fetch_run(str(finished), tmp_path / "here" / "run")
    assert mine.read_text() == "as it was"
    assert not (tmp_path / "here" / "evil").exists()


@pytest.mark.parametrize("name", ["checkpoint", "report", "metrics.jsonl", ".lock", "final_scores", "server_states"])
def test_nothing_is_written_through_a_link_out_of_the_folder(finished, tmp_path, capsys, name):
    """What the link names holds files of the user, which a save would delete, or a report overwrite."""
    own = tmp_path / "own"
    path = finished / name
    if path.is_dir():
        shutil.rmtree(path)
    if name.endswith(("jsonl", "lock")):
        own.write_text("mine")
        path.unlink(missing_ok=True)
    else:
        own.mkdir()
        (own / "thesis.tex").write_text("mine")
    path.symlink_to(own)
    for command in (["resume", str(finished)], ["compare", str(finished)], ["report", str(finished)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert name in said
        assert "is a link out of its folder" in said or "lies outside of" in said
    assert [own.read_text()] == ["mine"] if own.is_file() else [p.name for p in own.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("name", "command"), [(".per_class.csv.tmp", "resume"), ("report/.comparison.csv.tmp", "compare")]
)
def test_nothing_is_written_through_a_link_in_a_drafts_place(finished, secret, capsys, name, command):
    (finished / "per_class.csv").unlink()
    (finished / name).symlink_to(secret)
    assert main([command, str(finished)]) != 0
    assert secret.read_text() == SECRET
    assert Path(name).name in capsys.readouterr().err


def test_a_backup_does_not_follow_links(experiment, secret, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "extra").symlink_to(secret)
    e = experiment()
    run(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, backup=f"{tmp_path}/copies")), folder, quiet)
    assert (tmp_path / "copies" / "run" / "result.json").exists()
    assert not (tmp_path / "copies" / "run" / "extra").exists()


def test_own_files_stay_named(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "d").symlink_to("b")
    assert len(named_files(tmp_path, "a", "run.json")) == 4
    assert named_files(tmp_path, "gone", "run.json") == []


def test_every_option_that_is_a_text_is_a_place_or_known_to_be_none(experiment):
    """Whoever adds an option that names a file or an address adds it to PLACES."""
    tree = to_tree(experiment())
    texts = {f"{s}.{k}" for s, part in tree.items() if isinstance(part, dict) for k, v in part.items() if v == ""}
    columns = {f"task.{name}_columns" for name in ("label", "input", "ignore")} | {
        "task.client_column",
        "task.split_column",
    }
    words = {"task.variant", "task.label_separator", "tracking.experiment", "tracking.run_name", "tracking.register"}
    # names; and class sets, whose file is read when a run begins: a record holds its JSON, or is refused
    words |= {"task.sites", "task.client_classes"}
    assert texts - columns - words == {option for option in PLACES if option not in ("tracking.uri", *CODE)}


@pytest.mark.parametrize("done", [True, False], ids=["finished", "interrupted"])
def test_a_place_that_the_user_did_not_type_is_asked_for(experiment, tmp_path, monkeypatch, capsys, done):
    """The folder goes to another user, who has another key: places are named, and used once they are typed."""
    (theirs, mine), folder = (f"sqlite:///{tmp_path / who / 'mlflow.db'}" for who in ("a", "b")), tmp_path / "run"
    e = in_elsewhere(experiment(), uri=theirs)
    if done:
        run(e, folder, quiet)
    else:
        with stopped_before(2):
            run(e, folder, quiet)
    shutil.rmtree(tmp_path / "a", ignore_errors=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    for command in ("resume", "diagnose"):
        assert main([command, str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"tracking.uri = '{theirs}'" in line
        assert "config.json" in line
    assert not (tmp_path / "a").exists()
    assert main(["resume", str(folder), "--tracking.uri", mine]) == 0
    assert (tmp_path / "b" / "mlflow.db").exists()
    assert not (tmp_path / "a").exists()
    if not done:  # it is this user's now
        assert main(["resume", str(folder)]) == 0


def test_an_own_folder_goes_on_without_a_word(experiment, tmp_path):
    e = in_elsewhere(experiment(), uri=f"sqlite:///{tmp_path / 'mine.db'}")
    with stopped_before(2):
        run(e, tmp_path / "run", quiet)
    assert resume(tmp_path / "run", quiet).checksum
    key = next((tmp_path.parent.parent).rglob("seal_key"), None)
    if key is not None:
        assert key.stat().st_mode & 0o077 == 0


def test_a_place_that_is_edited_into_an_own_folder_is_asked_for(experiment, tmp_path):
    """Somebody else who can write to a shared folder: its seal is of other places."""
    e = in_elsewhere(experiment(), uri=f"sqlite:///{tmp_path / 'mine.db'}")
    run(e, tmp_path / "run", quiet)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    edit(tmp_path / "run" / "config.json", cluster=config["cluster"] | {"backup": str(tmp_path / "theirs")})
    for seal_ in (config["seal"], "", "é", 7):
        edit(tmp_path / "run" / "config.json", seal=seal_)
        with pytest.raises(InputError, match=r"cluster\.backup = '.*theirs'"):
            resume(tmp_path / "run", quiet)
    assert not (tmp_path / "theirs").exists()


def test_what_the_environment_names_needs_no_typing(experiment, tmp_path, monkeypatch):
    """As in CI and in containers, whose home folder is new each time."""
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run(in_elsewhere(experiment(), uri=store), tmp_path / "run", quiet)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert resume(tmp_path / "run", quiet).checksum


def test_a_copy_that_the_user_names_is_its_backup(experiment, tmp_path, monkeypatch):
    backup = f"file://{tmp_path}/copies"
    e = experiment()
    with stopped_before(2):
        run(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, backup=backup)), tmp_path / "run", quiet)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["resume", f"{backup}/run"]) == 0


def test_a_typed_place_makes_no_other_experiment(finished):
    with pytest.raises(InputError, match="another experiment; start it in another --output, or, for a table that has"):
        resume(finished, quiet, {"task.file": "other.csv"})
    with pytest.raises(InputError, match=r"--seed"):
        resume(finished, quiet, {"seed": "2"})


def test_a_sweep_s_places_are_asked_for_too(experiment, tmp_path, monkeypatch):
    from anchorfl.tuning.search.options import SweepOptions
    from anchorfl.tuning.search.search_space import space_of
    from anchorfl.tuning.sweep.plan import SweepPlan

    e = in_elsewhere(experiment("fedalign"), uri="http://mlflow.example")
    SweepPlan("toy", e, space_of(e, []), SweepOptions(scheduler="none"), "").save(tmp_path)
    assert resumed_plan(tmp_path, {}, {}).experiment == e
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(InputError, match=r"sweep\.json .*tracking\.uri = 'http://mlflow\.example'"):
        resumed_plan(tmp_path, {}, {})
    assert resumed_plan(tmp_path, {}, {"tracking.uri": "none"}).experiment.tracking.uri == "none"


@pytest.mark.parametrize("where", ["space", "ledger"])
def test_a_sweep_of_others_runs_no_code_that_its_space_or_ledger_names(tmp_path, monkeypatch, capsys, where):
    """A report of it did."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("evil.py").write_text("import pathlib; pathlib.Path('ran').touch()\nclass Net: ...\n")
    e, folder = read_preset("digits/fedavg"), tmp_path / "sweep"
    folder.mkdir()
    space = {"model.network": Choice((e.model.network,))}
    plan = SweepPlan("digits/fedavg", e, space, SweepOptions(seeds=1, trials=2, finals=1, rounds=6), "seed = 1")
    plan.save(folder)
    if where == "space":
        values = {"kind": "Choice", "values": [e.model.network, "evil:Net"], "reason": ""}
        edit(folder / "sweep.json", space={"model.network": values})
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.write({"event": "start", "time": 0.0, "versions": {}})
    ledger.write({"event": "suggest", "trial": 0, "point": {"model.network": "evil:Net"}, "time": 1.0})
    record = {"score": 0.5, "scores": {"0": 0.5}, "seconds": 1.0, "training_seconds": 0.5}
    ledger.write({"event": "result", "trial": 0, "round": 1, "time": 2.0, "record": record})
    for command in (["report", str(folder)], ["sweep", "--resume", str(folder)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert ("names model.network = 'evil:Net', whose code would run" in said) == (where == "space")
        assert ("trial 0 has model.network = 'evil:Net', which is no point" in said) == (where == "ledger")
    assert not Path("ran").exists()


def test_a_report_of_others_prepares_no_data_where_their_folder_says(experiment, tmp_path, finished, capsys):
    config = json.loads((finished / "config.json").read_text())
    elsewhere = tmp_path / "elsewhere"
    edit(finished / "config.json", task=config["task"] | {"cache": str(elsewhere)})
    assert main(["report", str(finished)]) == 0
    assert not elsewhere.exists()
    assert "task.cache" in (finished / "report" / "run.html").read_text()
    with pytest.raises(InputError, match=r"was not written by you on this machine, and names task\.cache"):
        anchorfl.Run(finished).partition()
    assert len(anchorfl.Run(finished, places={"task.cache": str(tmp_path / "mine")}).partition())
