"""A disk that fills up: one line, nothing half written, and a run that goes on once there is room."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from anchorfl.pipeline.cli.main import EXIT_QUORUM, main
from anchorfl.pipeline.config.schema import to_toml


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of one megabyte; skip where this user may not."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if shutil.which("mount") else None
    if done is None or done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip() if done else 'no mount command'}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Write a file that takes all room but so many bytes."""
    path = place / "ballast"
    with path.open("wb") as stream:
        stream.write(bytes(shutil.disk_usage(place).free - leave))
    return path


@pytest.mark.parametrize("leave", [0, 8192, 40_000, 90_000])
def test_a_run_on_a_full_disk_ends_with_one_line_and_goes_on(
    experiment, finished_run, tmp_path, monkeypatch, capsys, small_disk, leave
):
    """Full before it starts, at the first checkpoint, or some rounds later."""
    e = experiment("fedalign", federation={"rounds": 6, "clients_per_round": 3, "epochs": 1})
    expected = finished_run(e)
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(to_toml(e))
    ballast, folder = fill(small_disk, leave), small_disk / "run"
    capsys.readouterr()
    assert main(["run", "e.toml", "--output", str(folder)]) == EXIT_QUORUM
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("anchorfl: No space left on device")
    assert "make room; what was saved is whole" in error
    ballast.unlink()
    again = ["resume", str(folder)] if (folder / "config.json").exists() else ["run", "e.toml", "--output", str(folder)]
    assert main(again) == 0, capsys.readouterr().err
    assert json.loads((folder / "result.json").read_text())["checksum"] == expected.checksum


def test_other_errors_of_the_system_are_not_taken_for_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def denied(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("anchorfl.pipeline.cli.commands.ui", denied)
    with pytest.raises(OSError, match="Input/output error"):
        main(["ui"])
