"""``anchorfl probe``: a client measured in a fresh process, and what the command prints and writes."""

from __future__ import annotations

import dataclasses
import json
import math
import posix
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm import generator_training, messages
from anchorfl.pipeline.cli.main import RAW_COMMANDS, run_main
from anchorfl.pipeline.cli.probe import _measure, described, largest, probe
from anchorfl.pipeline.cluster.placement import own_cpus
from anchorfl.pipeline.cluster.sizing import GpuNeed
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.execution import fresh_process, memory_probe, system_metrics
from anchorfl.pipeline.execution.executor import server_of
from anchorfl.pipeline.run.prepare import make_run_spec

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
GB = 10**9
SERIAL = ["--cluster.executor", "serial", "--federation.epochs", "1"]


def main(arguments):
    return run_main(arguments, {**RAW_COMMANDS, "probe": probe})


@QUICK
@given(
    total=st.integers(8 * GB, 80 * GB),
    taken=st.integers(0, GB),
    probe=st.integers(0, GB // 2),
    beyond=st.integers(0, GB),
    reserved=st.integers(0, 5 * GB),
)
def test_gpu_readings_give_back_what_was_there(total, taken, probe, beyond, reserved):
    """A process whose context is ``probe + beyond`` beside another with a context of ``probe``."""
    context = probe + beyond
    before = total - taken - probe
    own = total - taken - context - reserved
    assert memory_probe.gpu_use(total, before, own - probe, own, reserved, reserved) == GpuNeed(
        total, taken, reserved, context
    )


def test_a_fresh_process_does_not_inherit_the_peak_of_its_parent():
    ballast = bytearray(900_000_000)
    assert system_metrics.peak_resident() > len(ballast)
    assert fresh_process.in_fresh_process(system_metrics.peak_resident) < len(ballast)


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (signal.raise_signal, signal.SIGKILL, "ended by signal SIGKILL, most often because memory ran out"),
        (signal.raise_signal, signal.SIGTERM, r"ended by signal SIGTERM$"),
        (posix._exit, 3, "ended with exit code 3"),  # os._exit is wrapped, and not to be pickled, under SlipCover
        (int, "x", "ValueError: invalid literal for int"),
    ],
)
def test_a_process_that_gives_nothing_says_why(function, argument, message):
    with pytest.raises(RuntimeError, match=message):
        fresh_process.in_fresh_process(function, argument)


def test_limits_of_a_container_count(tmp_path):
    free = memory_probe.free_memory(tmp_path)
    assert free > 1_000_000
    for name, text in (("max", "1000000"), ("current", "700000"), ("stat", "anon 5\ninactive_file 100000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_probe.free_memory(tmp_path) == 400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_probe.free_memory(tmp_path) > 1_000_000
    allowed = own_cpus(tmp_path)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert own_cpus(tmp_path) == 0.5 < allowed


def test_the_client_with_most_labeled_rows_times_longest_row_is_chosen(experiment):
    run_spec = make_run_spec(experiment("fedalign", "toy-single"), print)
    every = [described(run_spec, client) for client in range(4)]
    best = max(c.active * c.longest for c in every)
    chosen = largest(run_spec)
    assert chosen.active * chosen.longest == best
    assert chosen == every[chosen.client]
    assert 0 < chosen.active <= chosen.rows
    assert chosen.longest > 1


def test_probe_writes_overrides_and_figures(here, capsys):
    assert main(["probe", "digits/fedalign", *SERIAL, "--cpu", "--client", "2", "--out", "own.txt"]) == 0
    shown = capsys.readouterr().out
    figures = json.loads((here / "own.json").read_text())
    text = (here / "own.txt").read_text()
    assert text == figures["overrides"] + "\n"
    assert text.strip() in shown
    assert f"anchorfl run digits/fedalign {' '.join(SERIAL)} $(cat own.txt)" in shown, "with the same overrides"
    assert figures["chosen"]["client"] == 2
    for part in ("client", "server"):
        assert 50e6 < figures[part]["baseline"] <= figures[part]["peak"] < 5e9
    assert figures["client"]["kept"] > 2 * 0.9 * figures["client"]["update"]  # two moments of Adam
    assert len(figures["client"]["seconds"]) == memory_probe.ROUNDS
    assert figures["need"]["server"] == figures["server"]["peak"] + 4 * figures["client"]["update"]
    read = override(read_preset("digits/fedalign"), text.split()).cluster
    assert math.ceil(10 / read.clients_per_actor) == figures["shares"]["actors"]
    assert f"{figures['shares']['actors']} actors of 1 CPU and 0 GPU" in shown


def test_fedbm_is_measured_with_its_generator(experiment, monkeypatch):
    """A client keeps it and the server trains it; the first rounds lack it."""
    options = {
        "cgde": True,
        "lambda_dis": 0.0,
        "generator_every": 2,
        "generator_steps": 1,
        "generator_batch": 2,
        "synthetic_per_batch": 2,
    }
    e = experiment("fedbm", "digits", options=options)
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid"))
    trained = []
    monkeypatch.setattr(generator_training, "retrain", lambda values, *rest: trained.append(1) or values)
    run_spec = make_run_spec(e, print)
    got = _measure(run_spec, described(run_spec, 0), [], lambda function, *arguments: function(*arguments))
    generator = messages.nbytes(server_of(run_spec).state.generator)
    assert got.client.kept > generator > 1e5
    assert trained == [1]


def test_bad_arguments_are_said_in_one_line(here, capsys, fails):
    fails(["probe"], "probe needs a preset: digits/fedalign", main)
    fails(["probe", "digits/fedaling"], "no preset 'digits/fedaling'", main)
    fails(["probe", "digits/fedavg", "--client", "10"], "--client 10: the clients are 0..9", main)
    fails(["probe", "digits/fedavg", "--client", "x"], "argument --client: invalid int value: 'x'", main)
    fails(["probe", "digits/fedavg", "--out", "no/such.txt"], "must be a file in a folder that exists", main)
    fails(["probe", "digits/fedavg", "--out", "a.json"], "and not end in .json", main)
    fails(["probe", "digits/fedavg", "--federation.epoch", "1"], "no option --federation.epoch", main)
    assert main(["probe", "--help"]) == 0
    assert "usage: anchorfl probe PRESET" in capsys.readouterr().out
    assert list(here.iterdir()) == []


def test_a_client_that_fails_or_is_killed_is_named(here, fails, monkeypatch):
    wild = ["probe", "digits/fedavg", *SERIAL, "--cpu", "--client", "3", "--optimizer.lr", "1e35"]
    fails(wild, "client 3 could not be measured: UpdateError: client 3, round ", main)
    real = fresh_process.in_fresh_process
    monkeypatch.setattr(fresh_process, "in_fresh_process", lambda *_: real(signal.raise_signal, signal.SIGKILL))
    fails(wild[:-2], "client 3 could not be measured: the process was ended by signal SIGKILL, most often", main)
    assert not (here / "probe.txt").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_probe_measures_a_gpu(here):
    assert main(["probe", "digits/fedalign", *SERIAL]) == 0
    gpu = json.loads((here / "probe.json").read_text())["client"]["gpu"]
    assert gpu["total"] == torch.cuda.mem_get_info()[1]
    assert 0 < gpu["reserved"] < gpu["total"]
    assert 50e6 < gpu["context"] < 3e9
    assert "--cluster.client_gpus 0." in (here / "probe.txt").read_text()


def test_probe_of_a_table_needs_no_preset(here, capsys):
    rows = [f"{i * 5 % 7},{(i * 5 % 3 + i % 2) / 2},{'abc'[i % 3]},{i % 4}" for i in range(120)]
    (here / "my sales.csv").write_text("\n".join(["x,y,class,shop", *rows]) + "\n")
    own = ["--task.file", "my sales.csv", "--task.label_columns", "class", "--task.client_column", "shop"]
    assert main(["probe", *own, *SERIAL, "--cpu"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("anchorfl run --task.file 'my sales.csv' --task.label_columns class")
    assert "$(cat probe.txt)" in last
    assert json.loads((here / "probe.json").read_text())["preset"] == "my-sales-anchor"
