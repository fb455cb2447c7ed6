"""A run that was killed and resumed ends with the bits, and the rows, of one that was not."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.checkpoint import seal
from anchorfl.pipeline.storage.run_folder import write_config
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from anchorfl.testing import stopped_before
from tests.runs import quiet, recorded

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("method", ["fedavg", "fedalign"])
def test_stopped_and_resumed(experiment, tmp_path, method):
    """Interrupted twice: the selected model comes back, too. Every method, with its moments and memories:
    tests/product/test_contract.py.
    """
    e = experiment(method, evaluation={"model_selection": "best_validation"}, federation={"rounds": 4})
    whole = run(e, tmp_path / "whole", quiet)
    folder = tmp_path / "parts"
    with stopped_before(2):
        run(e, folder, quiet)
    with stopped_before(3):
        resume(folder, quiet)
    parts = resume(folder, quiet)
    assert (parts.checksum, parts.scores) == (whole.checksum, whole.scores)
    assert recorded(folder) == recorded(tmp_path / "whole")
    assert resume(folder, quiet).checksum == whole.checksum  # finished: told so, not trained again


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
    got = resume(folder, quiet)
    assert got.checksum == whole.checksum
    assert recorded(folder) == recorded(tmp_path / "whole")


def test_a_checkpoint_of_another_method_is_refused(experiment, tmp_path):
    folder = tmp_path / "run"
    run(experiment("fedavg"), folder, quiet)
    (folder / "result.json").unlink()
    write_config(folder, experiment("fedalign"))
    with pytest.raises(InputError, match="is of another run"):
        resume(folder, quiet)
    index = folder / "checkpoint" / "checkpoint.json"
    content = json.loads(index.read_text())
    del content["sha256"], content["digest"]  # as an earlier version wrote it
    index.write_text(json.dumps(content | {"sha256": seal(content)}))
    with pytest.raises(InputError, match="tensors do not fit the state"):
        resume(folder, quiet)


def test_a_run_goes_back_by_a_checkpoint(experiment, tmp_path):
    """As the message says where no client can train from the last round's model."""
    e = experiment("fedalign", federation={"rounds": 4})
    whole = run(e, tmp_path / "whole", quiet)
    with stopped_before(4):
        run(e, tmp_path / "run", quiet)
    (tmp_path / "run" / "checkpoint" / "checkpoint.json").unlink()
    assert resume(tmp_path / "run", quiet).checksum == whole.checksum
    assert recorded(tmp_path / "run") == recorded(tmp_path / "whole")


def test_a_checkpoint_of_another_seed_is_refused(experiment, tmp_path):
    """Its tensors fit, and nothing else would say that they are of another run."""
    for seed in (1, 2):
        with stopped_before(3):
            run(experiment(seed=seed), tmp_path / f"{seed}", quiet)
    shutil.rmtree(tmp_path / "1" / "checkpoint")
    shutil.copytree(tmp_path / "2" / "checkpoint", tmp_path / "1" / "checkpoint")
    with pytest.raises(InputError, match="is of another run"):
        resume(tmp_path / "1", quiet)


@pytest.mark.parametrize(
    ("section", "option", "value"), [("federation", "rounds", 2), ("optimizer", "lr", 0.02), ("task", "beta", 0.1)]
)
def test_edited_options_are_refused(experiment, tmp_path, section, option, value):
    with stopped_before(3):
        run(experiment(), tmp_path / "run", quiet)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config[section][option] = value
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config\.json: its options do not have the digest"):
        resume(tmp_path / "run", quiet)


def test_a_result_of_other_weights_is_not_repeated(experiment, finished_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished_run(experiment()).folder, folder)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"checksum": "0" * 64}))
    with pytest.raises(InputError, match=r"result\.json states the checksum"):
        resume(folder, quiet)
    shutil.rmtree(folder / "model")  # to save room
    assert resume(folder, quiet).checksum == "0" * 64


def test_resume_of_nothing(tmp_path):
    with pytest.raises(InputError, match=r"holds no run \(config.json is missing\)"):
        resume(tmp_path, quiet)


def test_two_processes_never_share_a_folder(experiment, tmp_path):
    from anchorfl.pipeline.storage.run_folder import lock_run

    in_use = rf"is in use by process {os.getpid()}: wait for it"
    with lock_run(tmp_path / "run"), pytest.raises(InputError, match=in_use):
        run(experiment("fedavg"), tmp_path / "run", quiet)


def test_a_run_does_not_go_on_over_a_gap_in_its_records(experiment, tmp_path):
    """The checkpoint says that rounds 0 to 2 are done, and the record of one is gone: nothing is changed."""
    with stopped_before(3):
        run(experiment(), tmp_path / "run", quiet)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])
    with pytest.raises(InputError, match=r"metrics.jsonl lacks round 1, which is done by the checkpoint; restore"):
        resume(tmp_path / "run", quiet)
    assert path.read_text() == lines[0] + lines[2]
    path.write_text("".join(lines))
    resume(tmp_path / "run", quiet)
    assert [record.round for record in read_records(tmp_path / "run")[0]] == [0, 1, 2, 3]
