"""``anchorfl submit``: hands a command to a running Ray cluster as a job, shows its log, ends as the job ends.
``anchorfl runs logs JOB`` and ``runs stop JOB``: the log of such a job, and its end.

The job runs on the head node, in the folder in which Ray was started there; with ``--upload`` in the home folder there,
since Ray deletes what was uploaded, and all that was written into it, some time after the job.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import ipaddress
import json
import os
import shlex
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anchorfl.pipeline.cli.main import EXIT_INTERRUPT
from anchorfl.pipeline.cluster import auth_token
from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.terminal import say, say_error
from anchorfl.tasks.errors import InputError

DEFAULT = "http://127.0.0.1:8265"
ADDRESS_HELP = f"Ray's dashboard; default: $RAY_API_SERVER_ADDRESS, or {DEFAULT}"
PROBE_SECONDS = 10
NOT_FOUND = 127
"""Exit code of a shell that does not find the command."""
COMMANDS = ("run", "sweep", "resume", "table", "benchmark", "probe", "data", "cooccurrence")
"""What a cluster can be asked for: ``data`` to prepare, ``cooccurrence`` to count class names in a corpus."""
LEFT_OUT = (".git", ".venv*", "venv", "__pycache__", "/runs/", "/mlruns/", "/mlflow.db*", "/data/")
"""Files left out of an upload, besides those of .gitignore: git's own, environments, and what runs leave behind."""


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    sub.usage = f"anchorfl submit [--address URL] [--no-wait] [--upload] [--env NAME] {{{','.join(COMMANDS)}}} ..."
    sub.add_argument("--address", default="", help=ADDRESS_HELP)
    sub.add_argument("--no-wait", action="store_true", help="do not wait for the job's end")
    sub.add_argument("--upload", action="store_true", help="run the checkout in this folder, not what is installed")
    sub.add_argument(
        "--env", action="append", default=[], metavar="NAME",
        help="a variable of this shell that the job gets, too, such as MLFLOW_TRACKING_URI; several times",
    )  # fmt: skip
    sub.add_argument("what", choices=COMMANDS, help="the command that the cluster is to run")
    sub.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments; paths are those of the head node")


def submit(options: argparse.Namespace) -> int:
    """Submit a job; return its exit code, 1 where the connection was lost, 130 where it was stopped or Ctrl-C came.

    InputError: nothing answers, the token is missing or wrong, Ray's versions differ, or a bad command.
    """
    command = entrypoint(options.what, options.rest, upload=options.upload)
    environment = runtime_env(Path.cwd()) if options.upload else {}
    if options.env:
        environment["env_vars"] = variables(options.env)
    address = resolve_address(options.address)
    client = _connect(address)
    job = _ask(address, lambda: client.submit_job(entrypoint=command, runtime_env=environment))
    say(f"job {job} at {address}: {redact(command)}")
    if options.no_wait:
        say(f"{_command('logs', address, job)} --follow\n{_command('stop', address, job)}")
        return 0
    return _follow(client, address, job)


def job_command(verb: str, words: list[str]) -> int:
    """Stop a job (``stop``), or print its log (``logs``); with ``--follow`` also what comes, and end as the job ends.

    InputError as of ``submit``, and where there is no such job.
    """
    what = {"stop": "stop a job of a Ray cluster", "logs": "the log of a job of a Ray cluster"}[verb]
    parser = argparse.ArgumentParser(prog=f"anchorfl runs {verb}", description=what)
    parser.add_argument("job", help="its name, which anchorfl submit has printed")
    parser.add_argument("--address", default="", help=ADDRESS_HELP)
    if verb == "logs":
        parser.add_argument("--follow", action="store_true", help="wait for the job's end, and show what comes")
    options = parser.parse_args(words)
    address, job = resolve_address(options.address), options.job
    client = _connect(address)
    jobs = {details.submission_id: details for details in _ask(address, client.list_jobs) if details.submission_id}
    if job not in jobs:
        raise InputError(f"no job {job!r} at {address}; there are: {', '.join(sorted(jobs)) or 'none'}")
    if verb == "stop":
        if jobs[job].status.is_terminal():
            say(f"job {job} has ended already: {jobs[job].status}")
            return 0
        _ask(address, lambda: client.stop_job(job))
        say(f"job {job} stops; its runs keep their last completed round, and anchorfl submit resume FOLDER goes on")
        return 0
    if options.follow:
        return _follow(client, address, job)
    say(_ask(address, lambda: client.get_job_logs(job)).rstrip("\n"))
    return 0


def entrypoint(what: str, rest: list[str], *, upload: bool) -> str:
    """Return the shell command of the job. InputError: the arguments name a cluster.

    What starts anew is told to join the cluster; a resumed run or sweep joins the one that its folder names, which is
    the same where it was submitted.
    """
    if not rest and what != "benchmark":
        raise InputError(f"submit {what}: nothing to {what}; give what you would give to 'anchorfl {what}'")
    if what == "data" and rest[0] != "prepare":
        raise InputError(f"submit data {rest[0]}: the cluster prepares data; the rest of 'anchorfl data' is for here")
    option = "--address" if what == "cooccurrence" else "--cluster.address"
    flags = {word.partition("=")[0].replace("_", "-") for word in rest}
    if option in flags:
        raise InputError(f"submit: leave {option} out; the job joins the cluster that runs it")
    if "--address" in flags:
        raise InputError(f"submit: --address goes before {what}: anchorfl submit --address URL {what} ...")
    resumed = what == "resume" or (what == "sweep" and "--resume" in flags)
    joined = [] if resumed else [option, "auto"]
    if what == "data" and "--cluster.executor" not in flags:
        joined += ["--cluster.executor", "ray"]  # its own default is serial
    words = [shlex.quote(word) for word in [what, *rest, *joined]]
    if not upload:
        return " ".join(["anchorfl", *words])
    for i, word in enumerate([what, *rest]):
        if word.endswith(".toml") and not Path(word).is_absolute() and Path(word).exists():
            words[i] = f'"$OLDPWD"/{shlex.quote(word)}'  # uploaded too: the shell has just left that folder
    return " ".join(['cd "$HOME" && python -P -m anchorfl', *words])


def variables(names: list[str]) -> dict[str, str]:
    """Return variables of this process by name. InputError: one has a value on the command line, or is not set."""
    for name in names:
        if "=" in name:
            word = name.partition("=")[0]
            raise InputError(
                f"--env {word}=...: others see a command line; set {word} in this shell, and give its name"
            )
        if name not in os.environ:
            raise InputError(f"--env {name}: it is not set in this shell")
    return {name: os.environ[name] for name in names}


def runtime_env(checkout: Path) -> dict[str, Any]:
    """Return Ray's runtime environment with ``checkout`` but no data. InputError: it is none, or is all data."""
    package = checkout / "src" / "anchorfl"
    if not (checkout / "pyproject.toml").is_file() or not (package / "tuning" / "clusters" / "submit.py").is_file():
        raise InputError(f"--upload sends the checkout in the working folder, and {checkout} is none: cd to it first")
    left_out = list(LEFT_OUT)
    for name in ("ANCHORFL_DATA", "ANCHORFL_CACHE"):
        folder = Path(os.environ.get(name) or os.devnull).resolve()
        if folder == checkout.resolve():
            raise InputError(f"--upload would send {folder}, which is {name}, too: put data outside the checkout")
        if folder.is_relative_to(checkout.resolve()):
            left_out.append(f"/{folder.relative_to(checkout.resolve()).as_posix()}/")
    # Ray follows the links in ``src`` and puts the package on every worker's path; the rest is for presets and files.
    return {"working_dir": str(checkout), "py_modules": [str(package)], "excludes": [*left_out, "/src/"]}


def resolve_address(address: str) -> str:
    """Return the dashboard's URL: ``address``, else the environment's, else loopback. InputError: it is no URL."""
    address = (address or os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT).rstrip("/")
    try:
        host = urlsplit(address).netloc
    except ValueError as error:
        said = f"--address {redact(address)}: {error}"
        raise InputError(f"{said}; give the URL of Ray's dashboard, as {DEFAULT}") from error
    if "@" in host:
        raise InputError(f"--address {redact(address)}: leave user and password out; Ray takes the token alone")
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--address {address}: give the URL of Ray's dashboard, as {DEFAULT}")
    return address


def _connect(address: str) -> Any:
    """Return a client of the cluster's job server, which has the same version of Ray."""
    _probe(address)
    _use_token(address)
    os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray prefers the environment to what it is given
    os.environ["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""  # LEFT_OUT has them; Ray would warn of each
    import ray
    from ray.job_submission import JobSubmissionClient

    client = _ask(address, lambda: JobSubmissionClient(address))
    # get_version() tells the version of the interface, not Ray's.
    theirs = _ask(address, lambda: client._do_request("GET", "/api/version").json()["ray_version"])
    if theirs != ray.__version__:
        raise InputError(
            f"the cluster at {address} runs Ray {theirs}, here is {ray.__version__}: install the same on both sides"
            f" (pip install 'ray[data,default,tune]=={theirs}')"
        )
    return client


def _probe(address: str) -> None:
    """Raise InputError where nothing answers: Ray's own client would wait as long as the network lets it."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=PROBE_SECONDS) as answer:
            version = json.loads(answer.read(1 << 16))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):  # it wants a token, which Ray's client knows how to send
            return
        raise InputError(f"--address {address}: what answers there is not Ray's dashboard ({error})") from error
    except json.JSONDecodeError as error:
        raise InputError(f"--address {address}: what answers there is not Ray's dashboard (no JSON)") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise InputError(
            f"--address {address}: no Ray dashboard answers there ({getattr(error, 'reason', error)}); start a cluster"
            " with 'ray start --head', or reach one with 'ray dashboard cluster.yaml'"
        ) from error
    if not (isinstance(version, dict) and isinstance(version.get("ray_version"), str)):
        raise InputError(f"--address {address}: what answers there is not Ray's dashboard (no version of Ray)")


def _use_token(address: str) -> None:
    """Send a token where there is one, as ``ray start`` does: Ray's job client by itself does so only if told."""
    named = os.environ.get(auth_token.TOKEN) or os.environ.get(auth_token.PATH)
    if named or auth_token.default_path().exists():
        os.environ.setdefault(auth_token.MODE, "token")
    if os.environ.get(auth_token.MODE, "").lower() != "token":
        return
    if not os.environ.get(auth_token.TOKEN):
        auth_token.restrict_mode()
    url = urlsplit(address)
    if url.scheme == "http" and not _on_loopback(url.hostname or ""):
        say_error(
            f"anchorfl: {address} is another machine, and the token goes to it unencrypted: whoever reads it on the way"
            " can run code on the cluster; reach it through 'ray dashboard cluster.yaml' or ssh -L 8265:localhost:8265"
        )


def _on_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _ask(address: str, question: Any) -> Any:
    """Return the job server's answer; its complaints are InputErrors of one line."""
    from ray.exceptions import AuthenticationError
    from requests.exceptions import RequestException

    try:
        return question()
    except AuthenticationError as error:
        where = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
        raise InputError(
            f"{address} refuses the token ({_first_line(error.message)}): it wants the token of the cluster's head"
            f" node ('ray get-auth-token' shows it there), in {where} or in $RAY_AUTH_TOKEN"
        ) from error
    except (RuntimeError, ValueError, ConnectionError, RequestException) as error:
        raise InputError(f"{address}: {_first_line(error)}") from error


def _follow(client: Any, address: str, job: str) -> int:
    from aiohttp import ClientError
    from requests.exceptions import RequestException

    try:
        asyncio.run(_show(client, job))
        details = client.get_job_info(job)
        while not details.status.is_terminal():
            time.sleep(1.0)
            details = client.get_job_info(job)
    except KeyboardInterrupt:
        say_error(f"\nanchorfl: the job goes on; to stop it: {_command('stop', address, job)}")
        return EXIT_INTERRUPT
    except (RuntimeError, ClientError, RequestException, ConnectionError) as error:
        again = f"{_command('logs', address, job)} --follow"
        say_error(f"anchorfl: lost {address} ({_first_line(error)}); the job may go on: {again}")
        return 1
    return _exit_code(job, details)


async def _show(client: Any, job: str) -> None:
    async for text in client.tail_job_logs(job):
        print(text, end="", flush=True)  # noqa: T201 - in parts of lines, and with the colors of Ray's log


def _exit_code(job: str, details: Any) -> int:
    if details.status == "SUCCEEDED":
        return 0
    if details.status == "STOPPED":
        say_error(f"anchorfl: job {job} was stopped")
        return EXIT_INTERRUPT
    code = int(details.driver_exit_code or 1)
    why = f"exit code {code}" if details.driver_exit_code else _first_line(details.message or "no reason given")
    if code == NOT_FOUND:
        why += ": the head node does not find it; install AnchorFL there, or give --upload in a checkout"
    say_error(f"anchorfl: job {job} failed ({why})")
    return code


def _command(verb: str, address: str, job: str) -> str:
    return f"anchorfl runs {verb} {job} --address {address}"


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
