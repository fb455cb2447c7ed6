"""A run that was killed and resumed ends with the bits, and the rows, of one that was not."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import resumed, run
from anchorfl.pipeline.run.round_loop import Loop
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError

ROOT = Path(__file__).resolve().parents[3]


def quiet(line: str) -> None:
    """Nobody listens."""


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line["metrics"].items() if not k.startswith(("time/", "system/"))} | {"round": line["round"]}
        for line in lines
    ]


@pytest.mark.parametrize(
    ("method", "select"),
    [*((m, "last") for m in METHODS), ("fedavg", "best_validation"), ("fedalign", "best_validation")],
)
def test_stopped_and_resumed(experiment, tmp_path, monkeypatch, method, select):
    """Interrupted between any two rounds; Adam's moments, what else clients remember, the selected model and the
    records all come back.
    """
    e = experiment(method, evaluation={"model_selection": select}, federation={"rounds": 4})
    whole = run(e, tmp_path / "whole", quiet)
    folder = tmp_path / "parts"
    import anchorfl.pipeline.run.round_loop

    plain = anchorfl.pipeline.run.round_loop.Loop._round
    for stop_at in (2, 3):

        def interrupted(self, round_, stop_at=stop_at):
            if round_ == stop_at:
                raise KeyboardInterrupt
            plain(self, round_)

        monkeypatch.setattr(anchorfl.pipeline.run.round_loop.Loop, "_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(e, folder, quiet) if stop_at == 2 else resumed(folder, quiet)
    monkeypatch.setattr(anchorfl.pipeline.run.round_loop.Loop, "_round", plain)
    parts = resumed(folder, quiet)
    assert parts.checksum == whole.checksum
    assert parts.scores == whole.scores
    assert rows(folder) == rows(tmp_path / "whole")
    assert resumed(folder, quiet).checksum == whole.checksum  # finished: told so, not trained again


def test_killed_with_sigkill_and_resumed(experiment, tmp_path):
    """The real thing: a process of its own, SIGKILL in the middle of training."""
    e = experiment("fedalign", federation={"rounds": 16})
    e = dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, batch_size=8))
    whole = run(e, tmp_path / "whole", quiet)
    folder = tmp_path / "killed"
    preset = tmp_path / "toy.toml"
    preset.write_text(to_toml(e))
    code = f"from anchorfl.pipeline.cli.main import main; main(['run', {str(preset)!r}, '--output', {str(folder)!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
    )
    index = folder / "checkpoint" / "checkpoint.json"
    deadline = time.monotonic() + 120
    while not (index.exists() and json.loads(index.read_text())["round"] >= 3):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()
    got = resumed(folder, quiet)
    assert got.checksum == whole.checksum
    assert rows(folder) == rows(tmp_path / "whole")


def test_a_checkpoint_of_another_method_is_refused(experiment, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run(experiment("fedavg"), folder, quiet)
    (folder / "result.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    from anchorfl.pipeline.config.experiment import to_tree

    (folder / "config.json").write_text(json.dumps(config | {"method": to_tree(experiment("fedalign"))["method"]}))
    with pytest.raises(ValueError, match="tensors do not fit the state"):
        resumed(folder, quiet)


def test_resume_of_nothing(tmp_path):
    with pytest.raises(InputError, match=r"holds no run \(config.json is missing\)"):
        resumed(tmp_path, quiet)


def test_two_processes_never_share_a_folder(experiment, tmp_path):
    from anchorfl.pipeline.storage.run_folder import lock_run

    with (
        lock_run(tmp_path / "run"),
        pytest.raises(InputError, match=rf"is in use by process {os.getpid()}: wait for it"),
    ):
        run(experiment("fedavg"), tmp_path / "run", quiet)


def test_a_run_does_not_go_on_over_a_gap_in_its_records(experiment, tmp_path, monkeypatch):
    """The checkpoint says that rounds 0 to 2 are done, and the record of one is gone: nothing is changed."""
    e, plain = experiment(), Loop._round

    def stopping(self, number):
        if number == 3:
            raise KeyboardInterrupt
        plain(self, number)

    monkeypatch.setattr(Loop, "_round", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(e, tmp_path / "run", quiet)
    monkeypatch.setattr(Loop, "_round", plain)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])
    with pytest.raises(InputError, match=r"metrics.jsonl lacks round 1 \(1 that are done by the checkpoint\); restore"):
        resumed(tmp_path / "run", quiet)
    assert path.read_text() == lines[0] + lines[2]
    path.write_text("".join(lines))
    resumed(tmp_path / "run", quiet)
    assert [record.round for record in read_records(tmp_path / "run")[0]] == [0, 1, 2, 3]
