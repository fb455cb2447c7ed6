"""The command line as it is installed: the pipeline's commands, and those that need Ray Tune or a cluster.

The pipeline may not import this package (docs/adr/0009), so the commands of both meet here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import anchorfl.pipeline.cli.main
from anchorfl.pipeline.cli import report
from anchorfl.pipeline.cli.commands import probe
from anchorfl.pipeline.cli.main import Add, run_console, run_main
from anchorfl.tuning import commands

RAW_COMMANDS = {
    **anchorfl.pipeline.cli.main.RAW_COMMANDS,
    "sweep": commands.sweep,
    "probe": probe,
    "table": commands.table,
    "benchmark": commands.benchmark,
    "recommend": commands.recommend,
    "runs": commands.runs,
}
"""Commands that parse their own arguments: those with a preset and overrides, and ``runs`` with its ``stop`` and
``logs``.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; exit codes as in ``anchorfl.pipeline.cli.main``."""
    return run_main(list(sys.argv[1:] if argv is None else argv), RAW_COMMANDS, _more)


def console() -> None:
    """Run the console script."""
    run_console(main)


def _more(add: Add) -> None:
    from anchorfl.tuning.clusters import check as cloud
    from anchorfl.tuning.clusters import submit

    add("sweep", None, "search hyper-parameters: anchorfl sweep PRESET [--space name=low:high ...] [--trials N ...]")
    add("table", None, "a paper's table: run what is missing, and write it beside the published figures")
    add("benchmark", None, "the suite, methods beside each other in many settings, with ranks: anchorfl table suite")
    add("recommend", None, "methods to try first on a table of your own, by the suite: anchorfl recommend FILE ...")
    add("probe", None, "measure the memory that a client of a preset needs, and what fits this cluster")
    shipped = add("presets", commands.presets, "the shipped presets: published figures beside ours, and cost")
    shipped.add_argument("pattern", nargs="?", default="", help="part of a name, or a glob: kvasir-v2, 'r8-8/*'")
    shipped.add_argument("--toml", default="", metavar="NAME", help="print one as a TOML file of its own")
    shipped.add_argument("--diff", nargs=2, default=(), metavar="NAME", help="the options in which two differ")
    shipped.add_argument("--json", action="store_true", help="the figures as a list of objects on standard output")
    report.arguments(
        add("report", commands.report, "one HTML page of a run, or of several; the report of a sweep again")
    )
    inner = add("cluster", None, "check a cluster.yaml").add_subparsers(metavar="COMMAND", required=True)
    description = "validate a cluster.yaml without a cloud account, and say what to type next"
    check = inner.add_parser("check", help=description, description=description)
    cloud.arguments(check)
    check.set_defaults(command=cloud.check)
    submit.arguments(add("submit", submit.submit, "run a command on a Ray cluster, as a job of it"))
