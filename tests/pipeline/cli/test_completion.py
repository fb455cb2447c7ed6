"""The script of ``anchorfl completion`` completes in a real bash."""

from __future__ import annotations

import subprocess

import pytest

from anchorfl.pipeline.config.presets import preset_names
from anchorfl.tuning.cli import main


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("anchorfl.pipeline.cli.completion.say", lines.append)
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "anchorfl.bash"
    path.write_text(f"{lines[0]}\n")
    return path


@pytest.fixture
def completed(script):
    """Return the words that bash offers behind ``anchorfl`` and some words, the last of which is begun."""

    def complete(*words):
        code = 'source "$0"; COMP_WORDS=(anchorfl "$@"); COMP_CWORD=$#; _anchorfl; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", code, script, *words], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return complete


def test_commands_presets_options_and_choices(completed):
    assert {"recommend", "run", "runs", "resume", "report"} == set(completed("r"))
    assert set(completed("run", "r8-8/")) == {name for name in preset_names() if name.startswith("r8-8/")}
    assert completed("sweep", "digits/fedal") == ["digits/fedalign"]
    assert completed("run", "digits/fedavg", "--federation.st") == ["--federation.steps", "--federation.stack"]
    assert {"--method.q1", "--method.q2"} == set(completed("run", "--method.q"))
    assert completed("recommend", "x.csv", "--task.client_t") == ["--task.client_test"]
    assert completed("recommend", "digits/f") == []
    assert completed("compare", "x", "--o") == ["--out"]
    assert completed("completion", "z") == ["zsh"]


def test_where_no_word_fits_files_do(completed):
    assert completed("resume", "runs/") == []
    assert completed("no-command", "x") == []


def test_zsh_gets_the_same_words_behind_its_own_start(capsys, script):
    assert main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("autoload ")
    assert text.endswith(script.read_text())
