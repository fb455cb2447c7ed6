"""A command that a scheduler ends with SIGTERM."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest

STAND = """
import sys, time
from anchorfl.pipeline.cli.main import run_console, run_main

def stand(arguments):
    {before}
    try:  # before it says that it is ready: the signal comes at once
        print("ready", flush=True)
        time.sleep(60)
    finally:
        {after}
    return 0

run_console(lambda: run_main(["run"], {{"run": stand}}))
"""


@pytest.fixture
def begun():
    """Start Python code or arguments, read its lines until one begins with a word."""
    processes = []

    def begin(arguments, word="ready", ahead=None):
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, *arguments], stdout=pipe, stderr=pipe, text=True, preexec_fn=ahead)
        processes.append(process)
        for line in process.stdout:
            if line.startswith(word):
                return process
        raise AssertionError(f"it ended without {word!r}: {process.stderr.read()}")

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def ended(process):
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    return process.returncode, said.strip().splitlines()


STOPPED = "anchorfl: interrupted"


def test_it_is_as_ctrl_c(begun):
    assert ended(begun(["-c", STAND.format(before="pass", after="pass")])) == (143, [STOPPED])


def test_also_where_ctrl_c_is_ignored(begun):
    """A shell's background has no Ctrl-C (``nohup``, ``&`` in a script)."""
    ignored = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    assert ended(begun(["-c", STAND.format(before="pass", after="pass")], ahead=ignored)) == (143, [STOPPED])


def test_a_second_one_ends_at_once(begun):
    process = begun(["-c", STAND.format(before="pass", after="print('tidying', flush=True); time.sleep(60)")])
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "tidying\n"
    assert ended(process) == (-signal.SIGTERM, [])


def test_ctrl_c_has_its_own_exit_code(begun):
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # these tests may run in a shell's background
    process = begun(["-c", STAND.format(before="pass", after="pass")], ahead=heeded)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1].strip() == STOPPED
    assert process.returncode == 130


def test_who_imports_the_packages_keeps_his_handlers():
    before = signal.getsignal(signal.SIGTERM)
    from anchorfl.pipeline.cluster import signals

    signals.renew()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not signals.received()


def test_a_run_keeps_what_it_has(begun, tmp_path):
    import mlflow

    folder, store = tmp_path / "run", f"sqlite:///{tmp_path / 'mlflow.db'}"
    options = ["digits/fedavg", "--federation.rounds", "500", "--cluster.executor", "serial", "--tracking.uri", store]
    arguments = ["run", *options, "--output", str(folder)]
    code = f"from anchorfl.pipeline.cli.main import main, run_console; run_console(lambda: main({arguments}))"
    exit_code, said = ended(begun(["-u", "-c", code], "round   2/"))
    assert exit_code == 143
    assert said[-1] == f"{STOPPED}; the last completed round is kept, go on with: anchorfl resume {folder}"
    rounds = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(len(rounds)))
    assert list((folder / "checkpoint").iterdir())
    (record,) = mlflow.MlflowClient(store).search_runs(["1"])
    assert record.info.status == "KILLED"


@pytest.mark.ray
@pytest.mark.apart
def test_with_ray_too(begun):
    """Ray, as it starts, sets a handler that prints the stack and aborts."""
    before = (
        "from anchorfl.pipeline.cluster import ray_cluster;"
        " from anchorfl.pipeline.config.cluster import ClusterOptions;"
        " ray_cluster.start(ClusterOptions())"
    )
    assert ended(begun(["-c", STAND.format(before=before, after="ray_cluster.stop()")])) == (143, [STOPPED])
