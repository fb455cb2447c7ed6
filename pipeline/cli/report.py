"""``anchorfl report RUN``: the page of runs, as a file or on loopback."""

from __future__ import annotations

import argparse
from pathlib import Path

from anchorfl.pipeline.cli.commands import add_places, typed_places
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.terminal import say
from anchorfl.tasks.errors import InputError

PORT = 8765
"""Of ``--serve`` where none is named."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders, side by side; or a sweep's")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="default: report/run.html of the first")
    what = "on loopback, made anew on each request, in place of a file; default port: %(const)s"
    parser.add_argument("--serve", type=int, nargs="?", const=PORT, default=None, metavar="PORT", help=what)
    add_places(parser)


def report(options: argparse.Namespace) -> int:
    """Write the page of runs, or serve it until Ctrl-C."""
    from anchorfl.pipeline.results.run_view import Run

    runs = [Run(folder, places=typed_places(options)) for folder in options.runs]
    if options.serve is not None:
        from anchorfl.pipeline.results.page_server import PageServer

        with PageServer(runs, options.serve) as server:
            say(f"{server.address} (stop it with Ctrl-C)")
            server.serve_forever()
    if options.out and options.out.is_dir():
        raise InputError(f"--out {options.out}: is a folder; name a file in it, such as run.html")
    from anchorfl.pipeline.results.run_page import PAGE, run_page

    page = run_page(runs)
    path = options.out or options.runs[0] / "report" / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    say(path)
    return 0
