"""Every option that takes text is given a place that cannot be used: one line and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import anchorfl.tuning.cli
from anchorfl.pipeline.cli import main as cli
from anchorfl.pipeline.config.experiment import Experiment, option_types
from anchorfl.pipeline.run.progress import Progress
from anchorfl.tuning.cli import main
from tests.fuzz.promise import limits
from tests.runs import SMALL

BAD = ("/proc/nope/x", "file/x", "file", "n" * 300)
"""A place that cannot be made, one below a file, a file (for a folder, or of another format), too long a name."""
NAMES = (
    "task.name", "task.variant", "task.normalize", "task.label_columns", "task.input_columns", "task.client_column",
    "task.split_column", "task.sites", "class_embeddings.prompts", "federation.aggregation", "cluster.address",
    "tracking.experiment", "tracking.run_name", "tracking.register",
)  # fmt: skip
"""Options that take text and name no place. A new option counts as a place until it stands here."""
NEEDS = {
    "class_embeddings.table": ("--class_embeddings.init", "cooccurrence"),
    "class_embeddings.encoder": ("--class_embeddings.init", "language_model"),
    "task.root": ("--task.name", "r8"),
    "task.class_names": ("--task.file", "table.csv", "--task.label_columns", "kind"),
}
"""What an option needs so that it is used."""
GOOD = {"file": "samples.csv", "corpus": "corpus.txt", "what": "resume"}
"""Arguments that are not under test, by name; others are a run folder."""


def places_of_a_run() -> list[str]:
    sections = option_types(Experiment)
    texts = [name for name, hint in sections.items() if hint is str]
    for section, kind in sections.items():
        if dataclasses.is_dataclass(kind):
            texts += [f"{section}.{name}" for name, hint in option_types(kind).items() if hint is str]
    return sorted(set(texts) - set(NAMES))


def places_of_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield command lines with ``BAD`` in place of one text: of every argument of every command with a parser."""

    def walk(parser, words):
        # what has a section is an option of a run, as above, and need not be used of a finished one
        actions = [a for a in parser._actions if a.dest not in ("help", "version") and "." not in a.dest]
        for action in actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    yield from walk(sub, [*words, name])
            elif action.type in (None, Path) and action.choices is None and action.nargs not in (0, argparse.REMAINDER):
                needed = [a for a in actions if not a.option_strings and a.nargs not in ("?", "*")]
                given = ["BAD" if a is action else GOOD.get(a.dest, "run") for a in needed]
                mine = (
                    [*action.option_strings[:1], *["BAD"] * (2 if action.nargs == 2 else 1)]
                    if action not in needed
                    else []
                )
                if [*words, action.dest] != ["runs", "words"]:  # which choose by name
                    yield f"{' '.join(words)} {action.dest}", [*words, *given, *mine]

    yield from walk(cli._parser(anchorfl.tuning.cli._more), [])


OF_COMMANDS = {
    **dict(places_of_commands()),
    "cooccurrence corpus": ["cooccurrence", "BAD", "--serial", "--task", "digits", "--out", "counts.csv"],
    "cooccurrence names": ["cooccurrence", "corpus.txt", "--serial", "--names", "BAD", "--out", "counts.csv"],
    "cooccurrence out": ["cooccurrence", "corpus.txt", "--serial", "--task", "digits", "--out", "BAD"],
    "data prepare": ["data", "prepare", "BAD"],
    "data prepare root": ["data", "prepare", "r8", "--task.root", "BAD"],
    "data prepare cache": ["data", "prepare", "digits", "--task.cache", "BAD"],
    "data fetch": ["data", "fetch", "BAD"],
    "data fetch root": ["data", "fetch", "yeast", "--accept-licence", "--root", "BAD"],
    "data demo out": ["data", "demo", "r8", "--out", "BAD"],
    "data check": ["data", "check", "BAD"],
    "data check root": ["data", "check", "table.csv", "--root", "BAD"],
    "data check class_names": ["data", "check", "table.csv", "--label_columns", "kind", "--class_names", "BAD"],
    "run": ["run", "BAD"],
    "probe": ["probe", "BAD"],
    "probe out": ["probe", "digits/fedavg", "--cluster.executor", "serial", "--out", "BAD"],
    "sweep": ["sweep", "BAD"],
    "sweep resume": ["sweep", "--resume", "BAD"],
    "table runs": ["table", "fedalign", "--show", "--runs", "BAD"],
    "table out": ["table", "fedalign", "--show", "--out", "BAD"],
}  # fmt: skip


FOR_A_FILE = dict.fromkeys(("cooccurrence names", "cooccurrence out", "predict out", "probe out", "report out"), ".")
FOR_A_FILE["cooccurrence corpus"] = "none-*.txt"
"""What is bad in place of a text file, where that is good."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places") / "run"
    assert main(["run", "digits/fedavg", *SMALL, "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def there(here, monkeypatch, whole_run):
    """Make files and a finished run; the encoders' hub is not asked."""
    monkeypatch.setenv("ANCHORFL_DATA", str(here))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (here / "run").symlink_to(whole_run)
    (here / "samples.csv").write_text(",".join(f"p{i}" for i in range(64)) + "\n" + ",".join(["1"] * 64) + "\n")
    (here / "corpus.txt").write_text("zero one two\n" * 20)
    (here / "file").write_text("text\n")
    (here / "table.csv").write_text("height,kind\n" + "1.5,ash\n2.5,elm\n" * 20)
    return here


def refused(capsys, words, place):
    words = [place if word == "BAD" else word for word in words]
    try:
        code = main(words)
    except SystemExit as stop:  # argparse's own complaint
        code = stop.code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert code == 2, f"{words}: {code} {said}"
    assert said.count("\n") == 1 or said.startswith("usage: "), said


@pytest.mark.parametrize("place", BAD, ids=["unmakable", "below-a-file", "file", "long"])
@pytest.mark.parametrize("option", places_of_a_run())
def test_a_run(there, capsys, option, place):
    refused(capsys, ["run", "digits/fedalign", *SMALL, *NEEDS.get(option, ()), f"--{option}", place], place)


@pytest.mark.parametrize("place", BAD, ids=["unmakable", "below-a-file", "file", "long"])
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_a_command(there, capsys, name, place):
    if place == "file":
        place = FOR_A_FILE.get(name, place)
    refused(capsys, OF_COMMANDS[name], place)


@pytest.mark.parametrize("option", ["model.width", "class_embeddings.width"])
def test_a_network_that_no_memory_holds(there, fails, option):
    small = ["--task.name", "toy-multi", "--task.clients", "4", "--federation.clients_per_round", "4"]
    fails(["run", "digits/fedalign", *small, *SMALL, f"--{option}", "2000000000"], f"{option} = 2000000000")


def test_a_current_folder_that_takes_no_file(there, fails, monkeypatch):
    monkeypatch.chdir("/proc")
    fails(["run", "digits/fedavg", *SMALL], "/proc/runs")


def test_a_run_folder_that_is_deleted_meanwhile(there, fails, monkeypatch):
    monkeypatch.setattr(Progress, "round", lambda self, *_: shutil.rmtree("out", ignore_errors=True))
    fails(["run", "digits/fedavg", *SMALL, "--output", "out"], "/out")


@pytest.mark.parametrize("command", ["resume", "compare", "diagnose", "report", "sync"])
def test_a_file_in_place_of_a_folder_is_named(there, fails, command):
    fails([command, "file"], "file", main=main)


@pytest.mark.parametrize(
    ("name", "command"),
    [("metrics.jsonl", "compare"), ("run.json", "compare"), ("config.json", "resume"), ("result.json", "resume"),
     ("model/model.json", "predict"), ("model/weights.safetensors", "predict")],
)  # fmt: skip
@pytest.mark.parametrize("what", ["pipe", "device"])
def test_no_regular_file(there, fails, name, command, what):
    """It would never end, or never begin."""
    shutil.copytree("run", "copy")
    path = there / "copy" / name
    path.unlink()
    os.mkfifo(path) if what == "pipe" else path.symlink_to("/dev/zero")
    with limits():
        said = "link out of its folder" if (what, command) == ("device", "compare") and name != "run.json" else "pipe"
        fails([command, "copy", *(["samples.csv"] if command == "predict" else [])], f"copy/{name} is a {said}")


def test_an_image_that_is_a_pipe(there, capsys):
    (there / "images.csv").write_text("image,kind\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(40)))
    for i in range(40):
        Image.new("L", (8, 8), i).save(there / f"{i}.png")
    (there / "7.png").unlink()
    os.mkfifo(there / "7.png")
    with limits():
        assert main(["data", "check", "images.csv", "--label_columns", "kind", "--input_columns", "image"]) == 2
    assert "7.png is a pipe" in capsys.readouterr().out


@pytest.mark.parametrize("port", ["99999", "0", "-1"])
def test_a_port_that_there_is_not(there, fails, port):
    (there / "mlflow.db").touch()
    fails(["ui", "--uri", "sqlite:///mlflow.db", "--port", port], f"--port {port}")
