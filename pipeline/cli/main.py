"""The command line: ``anchorfl``."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from anchorfl.models.errors import NamesError
from anchorfl.pipeline.cli import commands, completion, cooccurrence, export, new, runs, verify
from anchorfl.pipeline.cli.resumable import command_of
from anchorfl.pipeline.cluster import signals
from anchorfl.pipeline.terminal import erase_line, say_error
from anchorfl.pipeline.training.errors import LostError, QuorumError
from anchorfl.tasks.errors import FULL, InputError, place_line

Command = Callable[[argparse.Namespace], int]
RawCommands = Mapping[str, Callable[[list[str]], int]]
"""Commands that parse their own arguments: name -> function of the arguments behind the name."""
Add = Callable[[str, Command | None, str], argparse.ArgumentParser]
"""Adds a command (name, function, one line about it); None: it has commands of its own."""
EXIT_INPUT, EXIT_QUORUM, EXIT_INTERRUPT, EXIT_PIPE, EXIT_TERMINATED = 2, 3, 130, 141, 143
RAW_COMMANDS: RawCommands = {"run": commands.run, "data": commands.data, "export": export.export}
"""Commands that take presets and overrides, or have commands of their own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    - 0: done
    - 2: bad input
    - 3: too few clients answered, the server was lost again and again, Ray died, or the disk is full;
      ``anchorfl resume`` goes on
    - 130: interrupted; the console script: 143 by SIGTERM
    """
    return run_main(list(sys.argv[1:] if argv is None else argv))


def run_main(arguments: list[str], raw: RawCommands = RAW_COMMANDS, more: Callable[[Add], None] | None = None) -> int:
    """Run a command as ``main`` does, with further ones: ``raw`` parse their own arguments, ``more`` adds others."""
    try:
        return _dispatch(arguments, raw, more)
    except (InputError, NamesError) as error:
        say_error(f"anchorfl: {InputError(str(error))}")
        return EXIT_INPUT
    except (QuorumError, LostError) as error:
        say_error(f"anchorfl: {error}{_kept(error)}")
        return EXIT_QUORUM
    except OSError as error:
        if error.errno in FULL:
            say_error(f"anchorfl: {_full(error)}")
            return EXIT_QUORUM
        if error.filename is None:  # a pipe or a connection, which is for others to say
            raise
        say_error(f"anchorfl: {InputError(place_line(error))}")
        return EXIT_INPUT
    except KeyboardInterrupt as stop:
        erase_line(sys.stderr)  # there stands ^C
        say_error(f"anchorfl: interrupted{_kept(stop)}")
        return EXIT_INTERRUPT


def _kept(error: BaseException) -> str:
    """Return what is left of a run that an error ended, and the command that goes on with it."""
    command = command_of(error)
    return f"; the last completed round is kept, go on with: {command}" if command else ""


def _full(error: OSError) -> str:
    """Return one line about a disk that is full."""
    where = f" ({error.filename})" if error.filename else ""
    command = command_of(error)
    go_on = f", go on with: {command}" if command else ""
    return f"{error.strerror}{where}: make room; what was saved is whole{go_on}"


def run_console(main: Callable[[], int]) -> None:
    """Run ``main`` as a console script; SIGTERM interrupts it as Ctrl-C does, with exit code 143."""
    signals.as_ctrl_c()
    # A deprecation in a library is for its developers, not for the reader of a progress line.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.showwarning = _say_warning
    codes: list[int] = []
    atexit.register(_leave_threads, codes)  # the first that is registered is the last that runs
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads (``| head``) has enough; Python would tell it once more at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_PIPE
    codes.append(EXIT_TERMINATED if code == EXIT_INTERRUPT and signals.received() else code)
    sys.exit(codes[0])


def _leave_threads(codes: Sequence[int]) -> None:
    """End the process with its code where a thread is still at a store that did not answer in time.

    Python ends such a thread where it stands; inside a library in C++ that aborts the process, with a code of its own.
    """
    if codes and any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


def _say_warning(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """Print a warning as one line: of a library's source the reader knows nothing, and it may quote a file."""
    say_error(f"anchorfl: {category.__name__}: {InputError(str(message))}")


def _dispatch(arguments: list[str], raw: RawCommands, more: Callable[[Add], None] | None) -> int:
    if arguments and arguments[0] in raw:
        return raw[arguments[0]](arguments[1:])
    parser = _parser(more)
    options = parser.parse_args(arguments)
    command: Command | None = getattr(options, "command", None)
    if command is None:
        parser.print_help()
        return EXIT_INPUT
    return command(options)


def _parser(more: Callable[[Add], None] | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anchorfl", description="Federated learning for clients that know some classes."
    )
    parser.add_argument("--version", action="version", version=f"anchorfl {version('anchorfl')}")
    subs = parser.add_subparsers(metavar="COMMAND")
    subs.add_parser("run", help="train: anchorfl run PRESET [PRESET ...] [--section.option value ...]", add_help=False)

    def add(name: str, command: Command | None, summary: str) -> argparse.ArgumentParser:
        sub = subs.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=command)
        return sub

    if more is not None:
        more(add)

    sub = add("resume", commands.resume, "go on with an interrupted run")
    sub.add_argument("run", help="run folder, or its copy: s3://bucket/runs/NAME (cluster.backup)")
    commands.add_places(sub)
    add("data", None, "every data set: found or missing, where to get it, licence; data check: a table of your own")
    add(
        "export",
        None,
        "an experiment as an app of another framework: anchorfl export flower|nvflare PRESET [--output FOLDER]",
    )
    cooccurrence.arguments(
        add(
            "cooccurrence",
            cooccurrence.cooccurrence,
            "co-occurrence table of the class names of a data set, from a corpus",
        )
    )
    new.arguments(add("new", new.new, "a package of your own with a method, network, task or tracker, and its tests"))
    runs.run_arguments(add("runs", runs.runs, "every run of a folder: finished, running, interrupted or failed"))
    verify.arguments(add("verify", verify.verify, "the first rounds of a run again, held against its record"))
    sub = add("completion", lambda o: completion.completion(o.shell, subs.choices), "words by TAB, in bash and zsh")
    completion.arguments(sub)
    sub = add("env", runs.env, "versions, folders and plug-ins: what a report of a fault should say")
    sub.add_argument("--json", action="store_true", help="as an object on standard output")
    sub = add("compare", commands.compare, "table and curves of several runs")
    sub.add_argument("runs", type=Path, nargs="+")
    sub.add_argument("--out", type=Path, default=None, help="folder for comparison.md, comparison.csv and curves.png")
    sub.add_argument("--json", action="store_true", help="a list of objects on standard output")
    _diagnose(add("diagnose", commands.diagnose, "what scores do not show: divergence, pseudo-labels, agreement"))
    sub = add("predict", commands.predict, "scores per class name for the samples of a file")
    sub.add_argument("run", type=Path, help="run folder, or a folder with model.json and weights.safetensors")
    sub.add_argument("file", type=Path)
    sub.add_argument("--out", default="", help="CSV file; default: standard output")
    for option, word in (("model.network", "network"), ("task.name", "task")):
        what = f"{word} of a model by others, where it is a plug-in's: package.module:Name"
        sub.add_argument(f"--{option}", dest=word, default="", metavar="NAME", help=what)
    sub = add("sync", commands.sync, "send to MLflow what it lacks of a run")
    sub.add_argument("run", type=Path)
    sub.add_argument(
        "--uri",
        default="",
        help="MLflow store, as --tracking.uri; default: $MLFLOW_TRACKING_URI, or mlflow.db beside the run",
    )
    sub = add("ui", commands.ui, "MLflow's pages on loopback")
    sub.add_argument("--uri", default="", help="MLflow store; default: $MLFLOW_TRACKING_URI, or runs/mlflow.db")
    sub.add_argument("--port", type=int, default=5000)
    sub.add_argument("--host", default="", help="default: loopback; any other address is open to all who reach it")
    return parser


def _diagnose(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folder, finished or interrupted")
    parts = "divergence,theory,pseudo,agreement,embeddings,confusion,generated"
    sub.add_argument("--parts", default=parts, help="some of these (default: all): %(default)s")
    sub.add_argument(
        "--clients", default="", help="whose local models, as i,j; default: those that share least classes"
    )
    sub.add_argument("--rows", type=int, default=1500, help="test rows for the picture of the models, at most")
    sub.add_argument("--pairs", type=int, default=45, help="pairs of clients that are compared, at most")
    sub.add_argument("--cap", type=int, default=500, help="rows of a client that are compared, at most")
    sub.add_argument("--clusters", type=int, default=0, help="of class embeddings; default: root of the classes")
    sub.add_argument(
        "--classes", default="", help="whose embeddings are shown, names or numbers with commas; default: all"
    )
    commands.add_places(sub)
