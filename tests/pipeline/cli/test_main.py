"""The command line: what a person types, what comes back, and exit code 2 with one line on bad input."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.tasks.images.digits import digits
from anchorfl.tasks.options import TaskOptions
from anchorfl.tuning.cli import main as tuning_main

SERIAL = ["--cluster.executor", "serial", "--tracking.uri", "none"]
SMALL = [*SERIAL, "--federation.rounds", "2", "--federation.epochs", "1"]


def write_r8(folder, train=None, test=None) -> None:
    """Write a tiny R8: every class, words that tell them apart."""
    names = ["acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"]
    folder.mkdir(exist_ok=True)
    lines = [f"{name}\t{name.replace('-', '')} word{i % 3} common" for i in range(12) for name in names]
    for split, own in (("train", train), ("test", test)):
        (folder / f"r8-{split}-stemmed.txt").write_text("\n".join(own or lines) + "\n")


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    assert "run" in capsys.readouterr().out


def test_data_of_later_presets_are_prepared_before_actors_hold_the_cpus(here, capsys):
    (here / "seven.toml").write_text('extends = "digits/fedavg"\n[task]\nclients = 7\nmin_count = 3\n')
    assert main(["run", "digits/fedavg", "seven.toml", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert shown.index("rows for 7 clients") < shown.index("digits/fedavg: run folder")


def test_run_compare_predict(here, capsys):
    assert main(["run", "digits/fedavg", "digits/fedalign", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "round 2/2" in shown
    assert "fedalign" in shown.rpartition("round 2/2")[2]
    runs = sorted(p for p in (here / "runs").iterdir() if p.name.startswith("digits-"))
    assert len(runs) == 2
    assert (here / "runs" / "comparison" / "curves.png").stat().st_size > 10_000
    assert main(["compare", *map(str, runs), "--out", "mine"]) == 0
    assert {"comparison.md", "comparison.csv", "curves.png"} <= {p.name for p in (here / "mine").iterdir()}
    capsys.readouterr()
    assert main(["compare", *map(str, runs), "--json"]) == 0
    for run, entry in zip(runs, json.loads(capsys.readouterr().out), strict=True):
        result = json.loads((run / "result.json").read_text())
        assert (entry["name"], entry["checksum"], entry["rounds"]) == (run.name, result["checksum"], 2)
        assert entry["f1_last"] == result["scores"]["test"]["f1_macro"]
    write_digits(here / "samples.csv")
    assert main(["predict", str(runs[0]), "samples.csv", "--out", "scores.csv"]) == 0
    logged = json.loads((runs[0] / "result.json").read_text())["scores"]["test"]
    said = capsys.readouterr()
    assert f"macro F1 {100 * logged['f1_macro']:.2f}, accuracy {100 * logged['accuracy']:.2f}" in said.err
    assert "scores.csv" in said.out
    with (here / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 359
    assert abs(sum(float(rows[0][name]) for name in digits().class_names) - 1) < 1e-4


def write_digits(path) -> None:
    """Write the test split of the digits as a user's CSV, labels included."""
    task = digits()
    table = task.read(None, TaskOptions(name="digits"))
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", *(f"p{i}" for i in range(64))])
        for row in table.filter(np.array(table["split"]) == "test").to_pylist():
            writer.writerow([task.class_names[row["labels"][0]], *row["pixels"]])


def test_own_preset_file_and_r8_texts(here, capsys, fails):
    """R8 from a folder of one's own; ``predict`` on the test texts gives the logged score, plain or gzip."""
    write_r8(here / "mine")
    arguments = ["--task.root", "mine", "--task.min_count", "2", "--task.clients", "4", "--output", "out",
                 "--federation.clients_per_round", "4", "--model.width", "16", "--model.heads", "2",
                 "--class_embeddings.init", "random", *SMALL]  # fmt: skip
    assert main(["run", "r8-8-redrawn/fedalign", *arguments]) == 0
    logged = json.loads((here / "out" / "result.json").read_text())["scores"]["test"]
    texts = (here / "mine" / "r8-test-stemmed.txt").read_bytes()
    (here / "texts.txt.gz").write_bytes(gzip.compress(texts))
    for file in ("mine/r8-test-stemmed.txt", "texts.txt.gz"):
        capsys.readouterr()
        assert main(["predict", "out", file]) == 0
        figures = f"macro F1 {100 * logged['f1_macro']:.2f}, accuracy {100 * logged['accuracy']:.2f}"
        assert figures in capsys.readouterr().err
    fails(["run", "r8-8/fedalign", *arguments, *SMALL], "holds a run already: continue it with: anchorfl resume out")
    assert main(["resume", "out"]) == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["acq\tsome words", "no tab here"], "r8-train-stemmed.txt:2"),
        (["acq\tsome words", "aqc\tmore words"], "r8-train-stemmed.txt:2"),
        (["acq\t"], "r8-train-stemmed.txt:1"),
    ],
)
def test_bad_lines_are_named(here, fails, lines, message):
    write_r8(here / "mine", train=lines)
    fails(["run", "r8-8/fedavg", "--task.root", "mine", *SMALL], message)
    assert not list((here / "runs").glob("*")), "nothing half-written"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "run needs a preset: digits/fedalign"),
        (["run", "digits/fedavgg"], "no preset 'digits/fedavgg' (did you mean 'digits/fedavg'?)"),
        (["run", "digits/fedavg", "--method.namee", "fedpu"],
         "method 'fedavg' has no option --method.namee (did you mean 'method.name'?)"),
        (["run", "digits/fedavg", "--sed", "3"], "no option --sed (did you mean 'seed'?)"),
        (["run", "digits/fedavg", "--lr", "3"], "no option --lr (did you mean 'optimizer.lr'?)"),
        (["run", "digits/fedalign", "digits/fedavg", "--method.q1", "97"],
         "method 'fedavg' has no option --method.q1; 'anchorfl run digits/fedavg --help' lists all"),
        (["run", "digits/fedavg", "--federation.rounds", "ten"], "federation.rounds = 'ten': must be a whole number"),
        (["run", "r8-8/fedavg"], "r8: no r8-train-stemmed.txt, r8-test-stemmed.txt (plain or .gz)"),
        (["run", "digits/fedavg", "--task.classes_per_client", "11", *SMALL],
         "classes_per_client = 11, but client 0 has rows of only 10 classes; lower it to 10"),
        (["run", "digits/fedavg", "--task.classes_per_client", "1", "--task.clients", "5", *SMALL],
         "cannot identify all 10"),
        (
            [
                "run",
                "digits/fedalign",
                "--class_embeddings.init",
                "cooccurrence",
                "--class_embeddings.table",
                "no.csv",
                *SMALL,
            ],
            "no such file",
        ),
        (["run", "digits/fedavg", "--tracking.uri", "mlruns", "--cluster.executor", "serial"], "mlruns"),
        (["run", "digits/fedavg", "digits/fedalign", "--output", "x"], "one preset at a time"),
        (["run", "bibtex/fedmlh", "--method.class_embedding_lr", "0.1"],
         "anchorfl: method.class_embedding_lr: fedmlh does not move rows"),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["compare", "nowhere"], "nowhere"),
        (["predict", "nowhere", "file"], "holds no trained model"),
        (["ui", "--uri", "sqlite:///no.db"], "no MLflow database at"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(here, fails, arguments, message):
    fails(arguments, message)
    assert not (here / "runs").exists() or not list((here / "runs").glob("digits*")), "nothing half-written"


def test_a_table_in_the_place_of_a_preset(here, fails):
    (here / "mine.csv").touch()
    fails(
        ["run", "mine.csv"], "no preset 'mine.csv'; a table of your own is given as --task.file mine.csv; there are: "
    )


def test_data_tells_what_is_there(here, capsys, monkeypatch):
    assert main(["data"]) == 0
    shown = capsys.readouterr().out
    assert "digits" in shown
    assert "lacks r8-train-stemmed.txt" in shown
    write_r8(here / "reuters21578_r8")
    monkeypatch.setenv("ANCHORFL_DATA", str(here))
    assert main(["data"]) == 0
    assert f"r8                  found in {here / 'reuters21578_r8'}" in capsys.readouterr().out


@pytest.mark.parametrize(("module", "command"), [("pipeline.cli.main", "data"), ("tuning.cli", "presets")])
def test_a_reader_that_has_enough(module, command):
    """As ``anchorfl data | head -1`` does."""
    code = f"from anchorfl.{module} import main, run_console\nrun_console(lambda: main([{command!r}]))"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as asked:
        asked.stdout.close()
        assert asked.stderr.read() == ""
    assert asked.returncode == 141


LEFT_BEHIND = """
import threading, time
import pyarrow as pa
from anchorfl.pipeline.cli.main import run_console

class Store:
    closed = False
    def read(self, size=None):
        time.sleep(0.01)  # comes back to the interpreter's end
        return b""

def ask():
    while True:
        pa.PythonFile(Store(), mode="r").read(1)

def main():
    threading.Thread(target=ask, daemon=True).start()
    print("done")
    return 3

run_console(main)
"""


def test_a_thread_that_is_left_at_a_store_does_not_abort_the_end():
    """Killed at the interpreter's end inside Arrow's C++, it ended the process with code 134."""
    ended = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "done\n", "")


def test_help_of_what_parses_its_own_arguments(here, capsys):
    assert main(["data", "prepare", "--help"]) == 0
    assert "usage: anchorfl data prepare PRESET|NAME" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        tuning_main(["sweep", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--reference {True,False}" in shown
    assert "--no-reference" not in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("p0,p1\n1,2\n", ":1: 2 value columns; this model takes 64"),
        (",".join(f"p{i}" for i in range(64)) + "\n" + ",".join(["x"] * 64) + "\n", ":2: column 'p0' holds 'x'"),
        (",".join(f"p{i}" for i in range(64)) + "\n1,2\n", ":2: 2 fields, the header has 64"),
        ("", "give a header line and at least one sample"),
        (
            ",".join(["label", *(f"p{i}" for i in range(64))]) + "\nthre," + ",".join(["1"] * 64) + "\n",
            ":2: unknown class 'thre'",
        ),
    ],
)
def test_bad_samples_are_named(here, capsys, fails, content, message):
    if not (here / "run").exists():
        assert main(["run", "digits/fedavg", *SERIAL, "--federation.rounds", "1", "--output", "run"]) == 0
    (here / "samples.csv").write_text(content)
    capsys.readouterr()
    fails(["predict", "run", "samples.csv"], message)
