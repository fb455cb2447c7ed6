"""A command that is ended early says how to go on, and what goes on shows the whole run."""

from __future__ import annotations

import json
import re

import pytest

from anchorfl.pipeline.cli.main import main, run_main
from anchorfl.pipeline.cli.resumable import resumable
from anchorfl.pipeline.training.errors import QuorumError
from tests.screen import in_terminal, rows_of


def test_ctrl_c_names_the_folder_on_a_line_of_its_own(here, capsys):
    words = ["--cluster.executor", "serial", "--tracking.uri", "none", "--federation.rounds", "6"]
    code, text = in_terminal(["run", "digits/fedavg", *words], here, columns=200, keys="\x03", after="round 2/6")
    assert code == 130, text
    last = rows_of(text, 200)[-2]
    assert last.startswith("anchorfl: interrupted; the last completed round is kept, go on with: ")
    *command, folder = last.partition("go on with: ")[2].split()
    assert command == ["anchorfl", "resume"]
    lines = (here / folder / "metrics.jsonl").read_text().splitlines()
    moved = [sum(v for k, v in json.loads(line)["metrics"].items() if k.startswith("communication/")) for line in lines]
    assert main(["resume", folder]) == 0
    said = capsys.readouterr().out
    first = next(line for line in said.splitlines() if line.startswith("round "))
    number, megabytes = re.match(r"round (\d+)/6 .* ([0-9.]+) MB ", first).groups()
    assert float(megabytes) == pytest.approx(int(number) * sum(moved) / 1e6 / (len(lines) - 1), 0.05)  # 0 moves nothing
    assert f"Table and curves: {folder}/report" in said
    assert f"records: {folder}" in said


def test_only_what_can_go_on_is_promised(here, capsys):
    def stopped(begun, error):
        def command(arguments):
            with resumable("anchorfl", "resume", "runs/a b", begun=begun):
                raise error

        return {"run": command}

    assert run_main(["run"], stopped(here / "none", KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "anchorfl: interrupted\n"
    assert run_main(["run"], stopped(here, KeyboardInterrupt())) == 130
    assert "go on with: anchorfl resume 'runs/a b'\n" in capsys.readouterr().err
    assert run_main(["run"], stopped(here, QuorumError("0 of 1 answered"))) == 3
    assert "go on with: anchorfl resume 'runs/a b'\n" in capsys.readouterr().err
    assert run_main(["run"], stopped(here, OSError(28, "No space left on device"))) == 3
    assert "go on with: anchorfl resume 'runs/a b'\n" in capsys.readouterr().err
