"""``deploy/Containerfile`` without docker: its first stage in an empty folder, and a run of what it makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNSEEN = shutil.ignore_patterns("__pycache__", "*.egg-info")  # as .dockerignore has it
TRAIN = ("run", "digits/fedavg", "--federation.rounds", "2", "--federation.epochs", "1")


@pytest.mark.slow
def test_the_build_stage_makes_what_trains(tmp_path):
    """COPY and RUN as they stand, with this folder's paths for the image's, and torch as pip takes it here."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11")
    text = (ROOT / "deploy/Containerfile").read_text().partition("\nFROM python:3.11-slim-bookworm\n")[0]
    place = {"/opt/anchorfl": f"{tmp_path}/env", "/tmp/": f"{tmp_path}/lock/", "/src": f"{tmp_path}/src"}
    here = tmp_path

    def moved(words: str) -> str:
        return re.sub("|".join(map(re.escape, place)), lambda found: place[found[0]], words)

    def run(*command: str | Path, where: Path) -> None:
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    base = Path(sys.base_prefix) / "bin"
    env["PATH"] = os.pathsep.join([str(base), env["PATH"]])
    (tmp_path / "lock").mkdir()
    steps = re.findall(r"^(COPY|RUN|WORKDIR) ((?:.*\\\n)*.*)$", text, re.M)
    assert [verb for verb, _ in steps].count("RUN") == 2
    for verb, words in steps:
        if verb == "WORKDIR":
            here = Path(moved(words))
            here.mkdir()
        elif verb == "COPY":
            *sources, target = words.split()
            for source in sources:
                to = here / moved(target)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, to, symlinks=True, ignore=UNSEEN)
                else:
                    shutil.copy(ROOT / source, to)
        else:
            run("bash", "-c", moved(words), where=here)
    (empty := tmp_path / "empty").mkdir()
    run(tmp_path / "env/bin/anchorfl", *TRAIN, where=empty)
    run(tmp_path / "env/bin/pip", "check", where=empty)
