"""``anchorfl submit``: the command that a job runs, what is uploaded, its complaints, and a real job on a real Ray."""

from __future__ import annotations

import argparse
import http.server
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tuning.cli import main
from anchorfl.tuning.clusters import submit
from anchorfl.tuning.clusters.submit import _use_token, arguments, entrypoint, resolve_address, runtime_env, variables
from tests.processes import MAIN, checksum_of, end, free_port

ROOT = Path(__file__).resolve().parents[3]
SHORT = ("digits/fedavg", "--federation.rounds", "1", "--federation.epochs", "1", "--tracking.uri", "none",
         "--cluster.clients_per_actor", "5")  # fmt: skip


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("what", "rest", "command"),
    [
        ("run", "digits/fedavg --seed 3", "anchorfl run digits/fedavg --seed 3 --cluster.address auto"),
        ("sweep", "digits/fedavg --trials 2", "anchorfl sweep digits/fedavg --trials 2 --cluster.address auto"),
        ("sweep", "--resume runs/s --trials 9", "anchorfl sweep --resume runs/s --trials 9"),
        ("sweep", "--resume=runs/s", "anchorfl sweep --resume=runs/s"),
        ("resume", "runs/r", "anchorfl resume runs/r"),
        ("table", "fedalign --data r8-8", "anchorfl table fedalign --data r8-8 --cluster.address auto"),
        ("benchmark", "", "anchorfl benchmark --cluster.address auto"),
        ("probe", "r8-8/fedavg", "anchorfl probe r8-8/fedavg --cluster.address auto"),
        (
            "data",
            "prepare r8-8/fedavg",
            "anchorfl data prepare r8-8/fedavg --cluster.address auto --cluster.executor ray",
        ),
        (
            "data",
            "prepare r8-8/fedavg --cluster.executor serial",
            "anchorfl data prepare r8-8/fedavg --cluster.executor serial --cluster.address auto",
        ),
        ("cooccurrence", "--task r8 c.txt", "anchorfl cooccurrence --task r8 c.txt --address auto"),
    ],
)
def test_what_starts_anew_joins_the_cluster_and_what_goes_on_stays_where_it_was(what, rest, command):
    assert entrypoint(what, rest.split(), upload=False) == command


def test_words_reach_the_job_as_they_are():
    """A shell splits the command as the arguments were split here."""
    rest = ["my preset.toml", "--output", "$HOME/a;b"]
    command = entrypoint("run", rest, upload=False).replace("anchorfl", "printf '%s\\n'", 1)
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["run", *rest, "--cluster.address", "auto"]


def test_an_uploaded_preset_is_read_from_the_upload_while_the_run_lies_in_the_home_folder(tmp_path, monkeypatch):
    (tmp_path / "upload").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "upload" / "own.toml").write_text("seed = 7")
    monkeypatch.chdir(tmp_path / "upload")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    command = entrypoint("run", ["own.toml", "other.toml"], upload=True)
    shown = subprocess.run(
        ["sh", "-c", command.replace("python -P -m anchorfl", "pwd; printf '%s\\n'")], capture_output=True, text=True
    ).stdout.splitlines()
    assert shown[0] == str(tmp_path / "home")
    assert Path(shown[2]).read_text() == "seed = 7"
    assert shown[3] == "other.toml"


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [([], "nothing to run"), (["p", "--cluster.address", "x"], "leave --cluster.address out"),
     (["p", "--cluster.address=x"], "leave --cluster.address out")],
)  # fmt: skip
def test_bad_commands_are_refused_here(rest, complaint):
    with pytest.raises(InputError, match=complaint):
        entrypoint("run", rest, upload=False)


@pytest.mark.parametrize(
    ("what", "rest", "complaint"),
    [
        ("data", ["check"], "the cluster prepares data"),
        ("cooccurrence", ["c", "--address", "x"], "leave --address out"),
    ],
)
def test_what_is_not_for_a_cluster_is_refused_here(what, rest, complaint):
    with pytest.raises(InputError, match=complaint):
        entrypoint(what, rest, upload=False)


def test_a_job_gets_the_variables_that_are_named(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://here")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    options = parsed("--env", "MLFLOW_TRACKING_URI", "--env", "MLFLOW_TRACKING_PASSWORD", "run", "p")
    assert variables(options.env) == {"MLFLOW_TRACKING_URI": "https://here", "MLFLOW_TRACKING_PASSWORD": "secret"}
    with pytest.raises(InputError, match=r"\A--env GONE: it is not set in this shell\Z"):
        variables(["GONE"])
    with pytest.raises(InputError, match="others see a command line") as refused:
        variables(["MLFLOW_TRACKING_PASSWORD=secret"])
    assert "secret" not in str(refused.value)


def test_options_before_the_command_are_ours_and_those_after_it_are_its_own():
    options = parsed("--address", "http://h:1", "--upload", "sweep", "p", "--no-wait", "--trials", "2")
    assert (options.address, options.upload, options.no_wait) == ("http://h:1", True, False)
    assert (options.what, options.rest) == ("sweep", ["p", "--no-wait", "--trials", "2"])


def test_the_address_is_as_given_then_from_the_environment_then_loopback(monkeypatch):
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    assert resolve_address("") == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://other:1/")
    assert resolve_address("") == "http://other:1"
    assert resolve_address("https://given:2") == "https://given:2"
    with pytest.raises(InputError, match="give the URL"):
        resolve_address("auto")


def test_data_are_not_uploaded_wherever_they_lie(tmp_path, monkeypatch):
    monkeypatch.delenv("ANCHORFL_DATA", raising=False)
    with pytest.raises(InputError, match="is none"):
        runtime_env(tmp_path)
    package = tmp_path / "src" / "anchorfl"
    (package / "tuning" / "clusters").mkdir(parents=True)
    for name in ("pyproject.toml", "src/anchorfl/tuning/clusters/submit.py"):
        (tmp_path / name).touch()
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path / "patients"))
    sent = runtime_env(tmp_path)
    assert {"/patients/", "/runs/", "/data/", ".git"} <= set(sent["excludes"])
    assert sent["py_modules"] == [str(package)]
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path))
    with pytest.raises(InputError, match="put data outside the checkout"):
        runtime_env(tmp_path)


def test_where_nothing_answers_one_line_says_so(capsys, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    address = f"http://127.0.0.1:{free_port()}"
    assert main(["submit", "--address", address, "run", "digits/fedavg"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert f"--address {address}: no Ray dashboard answers there" in shown


@pytest.mark.parametrize("address", ["http://a b:8265", "http://127.0.0.1:abc", "http://[::1", "http://[abc"])
def test_an_address_that_is_none_is_one_line(capsys, address):
    assert main(["runs", "logs", "job", "--address", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"anchorfl: --address {address}: ")


def test_an_address_after_the_command_or_with_a_password_is_refused(capsys):
    assert main(["submit", "run", "digits/fedavg", "--address", "http://127.0.0.1:1"]) == 2
    assert "--address goes before run: anchorfl submit --address URL run" in capsys.readouterr().err
    assert main(["submit", "--address", "http://me:sesame@127.0.0.1:1", "run", "digits/fedavg"]) == 2
    shown = capsys.readouterr().err
    assert "leave user and password out" in shown
    assert "sesame" not in shown


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((200, {"ray_version": "2.0.5", "version": "4"}), "runs Ray 2.0.5, here is"),
        ((404, {}), "is not Ray's"),
        ((200, {"version": "0.5.1"}), "is not Ray's dashboard (no version of Ray)"),
        ((200, []), "is not Ray's dashboard (no version of Ray)"),
    ],
)
def test_another_version_and_another_server_are_told_apart(answer, complaint, tmp_path):
    """In a process of its own: Ray reads its environment once."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Print nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = anchorfl(
            environment(tmp_path), "submit", "--address", f"http://127.0.0.1:{server.server_port}", "run", "x"
        )
        server.shutdown()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert complaint in done.stderr
    assert "no Ray dashboard answers" not in done.stderr


class Jobs:
    """Stands for Ray's client of a cluster with one job that runs."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def list_jobs(self):
        running = types.SimpleNamespace(is_terminal=lambda: False)
        return [types.SimpleNamespace(submission_id=name, status=running) for name in ("raysubmit_1", None)]

    def stop_job(self, job):
        self.stopped.append(job)

    def get_job_logs(self, job):
        return f"log of {job}\n"


def test_a_job_is_stopped_and_its_log_shown_and_another_is_one_line(monkeypatch, capsys):
    client, asked = Jobs(), []
    monkeypatch.setattr(submit, "_connect", lambda address: asked.append(address) or client)
    assert main(["runs", "logs", "raysubmit_1", "--address", "http://h:1/"]) == 0
    assert capsys.readouterr().out == "log of raysubmit_1\n"
    assert main(["runs", "stop", "raysubmit_1", "--address", "http://h:1"]) == 0
    assert client.stopped == ["raysubmit_1"]
    capsys.readouterr()
    assert main(["runs", "stop", "other", "--address", "http://h:1"]) == 2
    said = capsys.readouterr().err
    assert said == "anchorfl: no job 'other' at http://h:1; there are: raysubmit_1\n"
    assert asked == ["http://h:1"] * 3
    assert client.stopped == ["raysubmit_1"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    env = (
        os.environ
        | {"PYTHONPATH": str(ROOT / "src"), "ANCHORFL_CACHE": str(folder / "cache"), "HOME": str(folder)}
        | more
    )
    mine = {"RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "ANCHORFL_DATA", "MLFLOW_TRACKING_URI"}
    mine |= {name for name in env if name.startswith("RAY_AUTH_")} - more.keys()
    return {name: value for name, value in env.items() if name not in mine}


def anchorfl(env: dict[str, str], *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", MAIN, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=180, check=False)


@dataclass
class Head:
    address: str
    env: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """Start a Ray of one node on loopback that wants a token; its ``python`` is the tests' own."""
    folder = tmp_path_factory.mktemp("head")
    with ExitStack() as stack:
        short = Path(tempfile.mkdtemp(prefix="afl-", dir="/tmp"))  # Ray's sockets lie there: their paths must be short
        stack.callback(shutil.rmtree, short, ignore_errors=True)
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = environment(folder, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token), PATH=path)
        port, log = free_port(), folder / "start.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats",
                 "--node-ip-address", "127.0.0.1", "--port", str(free_port()), "--num-cpus", "2", "--num-gpus", "0",
                 "--include-dashboard", "true", "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port),
                 "--object-store-memory", "600000000", "--min-worker-port", "0", "--max-worker-port", "0",
                 "--dashboard-agent-listen-port", str(free_port()), "--temp-dir", str(short)],
                cwd=folder, env={k: v for k, v in env.items() if k != "PYTHONPATH"}, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        stack.callback(end, [process])
        until = time.monotonic() + 240
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.3)
        yield Head(f"http://127.0.0.1:{port}", env, folder)


@pytest.mark.parametrize(
    ("address", "open_to_all"),
    [("http://127.0.0.1:8265", False), ("http://localhost:8265", False), ("http://[::1]:8265", False),
     ("https://head.example.org", False), ("http://head.example.org:8265", True), ("http://192.0.2.1:8265", True)],
)  # fmt: skip
def test_a_token_that_travels_in_the_open_is_said_aloud(address, open_to_all, monkeypatch, capsys):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    _use_token(address)
    printed = capsys.readouterr().err
    assert printed.count("\n") == open_to_all
    assert ("the token goes to it unencrypted" in printed) == open_to_all
    assert "abc" not in printed
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _use_token(address)
    assert capsys.readouterr().err == ""


def test_a_token_is_sent_where_there_is_one_and_its_file_is_closed(monkeypatch, tmp_path, capsys):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # so that what the call sets is undone
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("HOME", str(tmp_path))
    _use_token("http://127.0.0.1:8265")
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("abc")
    (tmp_path / ".ray" / "auth_token").chmod(0o644)
    _use_token("http://127.0.0.1:8265")
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    assert "now closed" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.cluster
def test_a_job_runs_the_uploaded_checkout_and_gives_the_bits_of_a_serial_run(head, tmp_path):
    """The head has no PYTHONPATH and AnchorFL is not installed there, or another one is: the upload is what runs."""
    serial = anchorfl(head.env, "run", *SHORT, "--cluster.executor", "serial", cwd=tmp_path)
    done = anchorfl(
        head.env, "submit", "--address", head.address, "--upload", "run", *SHORT, "--output", str(tmp_path / "job")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert checksum_of(done) == checksum_of(serial)
    assert (tmp_path / "job" / "result.json").exists()
    failed = anchorfl(head.env, "submit", "--address", head.address, "--upload", "resume", str(tmp_path / "nothing"))
    assert failed.returncode == 2
    assert "holds no run" in failed.stdout
    assert "failed (exit code 2)" in failed.stderr
    job = failed.stdout.split()[1]
    logs = anchorfl(head.env, "runs", "logs", job, "--address", head.address)
    assert "holds no run" in logs.stdout, logs.stderr
    ended = anchorfl(head.env, "runs", "stop", job, "--address", head.address)
    assert (ended.returncode, ended.stdout) == (0, f"job {job} has ended already: FAILED\n")


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.parametrize("token", ["", "0123456789abcdef" * 4])
def test_without_the_token_of_the_cluster_one_line_says_how_to_get_it(head, token):
    env = {k: v for k, v in head.env.items() if not k.startswith("RAY_AUTH")}
    if token:
        env["RAY_AUTH_TOKEN"] = token
    done = anchorfl(env, "submit", "--address", head.address, "run", "digits/fedavg")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "refuses the token" in done.stderr
    assert "ray get-auth-token" in done.stderr
