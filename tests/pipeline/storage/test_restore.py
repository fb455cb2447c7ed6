"""A copy that goes on: its owner, the further of the two, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.restore import (
    backup_status,
    backup_uri,
    check_backup_owner,
    fetch_run,
    restore_if_ahead,
    restore_if_remote,
)  # fmt: skip
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.testing import stopped_before
from tests.pipeline.backups import backed_up, contents, files
from tests.runs import quiet


def test_no_run_overwrites_anothers_copy(experiment, tmp_path, monkeypatch, backup):
    e, copy = backed_up(experiment("fedavg"), backup), object_store.join(backup, "run")
    run(e, tmp_path / "a" / "run", quiet)
    before = contents(copy)
    with pytest.raises(InputError, match=r"the backup holds .*/run already: go on with 'anchorfl resume .*/run', or"):
        run(e, tmp_path / "b" / "run", quiet)
    assert not (tmp_path / "b" / "run").exists()
    run(experiment("fedavg"), tmp_path / "c" / "run", quiet)  # without a backup; then told to go on with one
    (tmp_path / "c" / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=r"is the copy of another run than"):
        run(e, tmp_path / "c" / "run", quiet)
    monkeypatch.chdir(tmp_path / "c")
    Path("run").rename("moved")
    Path("runs").mkdir()
    Path("moved").rename("runs/run")
    with pytest.raises(InputError, match=r"runs/run is another run than .*/run: move it away"):
        restore_if_remote(copy, quiet)
    assert contents(copy) == before


def test_who_is_further_wins(experiment, tmp_path, monkeypatch):
    backup = f"file://{tmp_path}/backup"
    e, copy = backed_up(experiment("fedavg", federation={"rounds": 4}), backup), f"{backup}/run"
    monkeypatch.chdir(tmp_path)
    with stopped_before(2):
        run(e, Path("runs/run"), quiet)
    old = files(Path("runs/run"))
    (tmp_path / "second").mkdir()
    with stopped_before(4), monkeypatch.context() as patch:  # goes on elsewhere
        patch.chdir(tmp_path / "second")
        resume(restore_if_remote(copy, quiet), quiet)
    with pytest.raises(
        InputError, match=r"is further \(at 3\) than runs/run \(at 1\): move runs/run away, and go on with"
    ):
        resume(Path("runs/run"), quiet)
    assert files(Path("runs/run")) == old
    assert restore_if_remote(copy, quiet) == Path("runs/run")  # behind, so it is brought up to date
    assert json.loads(Path("runs/run/checkpoint/checkpoint.json").read_text())["round"] == 3
    assert restore_if_remote(copy, pytest.fail) == Path("runs/run")  # equal: nothing to bring
    index = object_store.join(copy, "checkpoint", "checkpoint.json")
    content = json.loads(object_store.read_bytes(index))
    object_store.write_bytes(index, json.dumps(content | {"round": 1}).encode())
    with pytest.raises(InputError, match=r"runs/run is further \(at 3\) than .* \(at 1\): go on with 'anchorfl resume"):
        restore_if_remote(copy, quiet)


@pytest.mark.parametrize(
    ("backup", "message"),
    [
        ("s3://nobody-has-it/runs", "there is no such bucket"),
        ("s3://key:sesame@bucket/runs", "cluster.backup holds a key"),
        ("runs/copy", "give s3://bucket/folder"),
    ],
)
def test_a_bad_backup_is_refused_before_the_run(experiment, tmp_path, monkeypatch, s3, capsys, backup, message):
    monkeypatch.chdir(tmp_path)
    Path("toy.toml").write_text(to_toml(experiment("fedavg")))
    assert main(["run", "toy.toml", "--cluster.backup", backup]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "sesame" not in error
    assert not list(Path("runs").glob("*")) if Path("runs").exists() else True


def test_resume_of_no_copy(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["resume", f"{s3}/runs/nothing"]) == 2
    assert "holds no copy to go on with (config.json is missing)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backup", [".", "runs", "runs/a/copy"])
def test_a_copy_cannot_lie_in_the_folder_itself(tmp_path, backup):
    """It would write over the records that the run appends to."""
    uri = backup_uri(str(tmp_path / backup), tmp_path / "runs/a") if backup != "." else str(tmp_path / "runs/a")
    with pytest.raises(InputError, match=r"would lie in .*runs/a itself: give another folder"):
        check_backup_owner(uri, tmp_path / "runs/a", quiet)
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_last_index_is_torn_names_its_copy(experiment, tmp_path):
    """Which is whole, and further; without one it goes on from the checkpoint before."""
    e = backed_up(experiment("fedavg"), str(tmp_path / "copies"))
    expected = run(e, tmp_path / "run", quiet).checksum
    (tmp_path / "run/checkpoint/checkpoint.json").write_bytes(b"\0" * 100)
    (tmp_path / "run/result.json").unlink()
    assert str(backup_status(str(tmp_path / "run"))) == "not begun"
    with pytest.raises(InputError, match=r"copies/run is further \(finished\) than .*move .*/run away, and go on with"):
        resume(tmp_path / "run", quiet)
    assert run(experiment("fedavg"), tmp_path / "run", quiet).checksum == expected


def test_a_damaged_copy_is_named(experiment, tmp_path):
    backup = f"file://{tmp_path}/backup"
    run(backed_up(experiment("fedavg"), backup), tmp_path / "run", quiet)
    (tmp_path / "backup/run/checkpoint/state-000003.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match=r"run/checkpoint: state-000003.safetensors is missing or damaged"):
        fetch_run(f"{backup}/run", tmp_path / "fetched")
    assert not (tmp_path / "fetched" / "config.json").exists()
    lines = []
    restore_if_ahead(f"{backup}/run", tmp_path / "fetched", lines.append)
    assert "state-000003.safetensors is missing or damaged" in lines[0]
    assert lines[0].endswith(f"going on with what {tmp_path / 'fetched'} holds")


def test_resume_from_a_bucket_that_is_not_there(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["resume", "s3://no-such-bucket/runs/nothing"]) == 2
    assert "there is no such bucket" in capsys.readouterr().err
