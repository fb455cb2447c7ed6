"""Seconds and memory of the engine: rounds of clients that load the weights and send them back, without training.

    python -m benchmarks.bench_engine                             # the table; ten minutes on two cores
    python -m benchmarks.bench_engine --flower flwr/bin/python    # beside Flower's simulation, installed there
    python -m benchmarks.bench_engine --pfl pfl/bin/python        # beside pfl-research in one process, installed there
    python -m benchmarks.bench_engine --cases shared-8            # one of them

Every measurement is a process of its own, with a Ray of its own; ``--repeats`` goes round all of them in turn, so that
what else the machine does falls on all alike. Per case: seconds of a round (least and median, without the first), CPU
seconds of all processes for one, seconds from the start of the process to the end of round 1, and memory (PSS) of all
processes at the end. Writes ``--out``, JSON with every reading, the machine and the versions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.readings import MEGABYTE, machine, pss, reading_of, report

FLOWER, PFL = (Path(__file__).with_name(f"no_op_{peer}.py") for peer in ("flower", "pfl"))
SETTLED = 1
"""Rounds that are left out: the first starts the actors."""
LEAST_MS = 0.1
"""Of CPU a round; a process that takes less is not shown."""


@dataclass(frozen=True)
class Case:
    """A size of the federation."""

    name: str
    clients: int
    """Per round, out of ``population``."""
    population: int
    megabytes: str
    """Of weights, each way."""
    actors: int
    """0 for this process alone, or with forked workers."""
    rounds: int = 30
    forks: int = 0


CASES = {
    case.name: case
    for case in (
        Case("serial-8", 8, 8, "1.94", 0),
        Case("shared-1", 1, 8, "1.94", 2),
        Case("shared-8", 8, 8, "1.94", 2),
        Case("shared-8-small", 8, 8, "0.1", 2),
        Case("shared-20", 20, 20, "1.94", 2),
        Case("shared-20-large", 20, 20, "44", 2, 10),
        Case("shared-100", 100, 1000, "1.94", 2, 15),
        Case("own-8", 8, 8, "1.94", 8),
        Case("forked-8", 8, 8, "1.94", 0, forks=2),
        Case("forked-8-small", 8, 8, "0.1", 0, forks=2),
        Case("forked-20-large", 20, 20, "44", 0, 10, forks=2),
        Case("forked-100", 100, 1000, "1.94", 0, 15, forks=2),
    )
}
BESIDE = {
    "flower": ("shared-8", "shared-20-large", "shared-100"),
    "pfl": ("serial-8",),
}
"""Cases that a peer is asked for, too."""


def clients_of(case: Case, round_: int) -> list[int]:
    """Return the clients of a round, which take turns."""
    return sorted((round_ * case.clients + i) % case.population for i in range(case.clients))


def cpu_seconds() -> dict[str, float]:
    """Return the CPU seconds so far of this process, the driver, and of those below it, by their name."""
    me, out = psutil.Process(), Counter[str]()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # one of Ray's helpers that has just ended
            title = (process.cmdline() or [""])[0]
            title = title if title.startswith("ray::") else process.name()
            name = "driver" if process == me else title.removeprefix("ray::").partition(".")[0]
            out["fork" if name == me.name() else name] += sum(process.cpu_times()[:2])
    return dict(out)


def run_case(case: Case) -> None:
    """Report the seconds of every round, those from the start of this process to the end of round 1, bytes sent to a
    client, and memory.
    """
    from benchmarks.no_op import no_op_executor

    executor = no_op_executor(case.population, case.clients, case.megabytes, case.actors, case.forks)
    taken, first, size, cpu = [], 0.0, 0, dict[str, float]()
    try:
        executor.warm_up(clients_of(case, 1))  # as the round loop does
        for round_ in range(1, case.rounds + 1):
            began = time.perf_counter()
            outcome = executor.round(round_, clients_of(case, round_), lambda busy, done, failed: None)
            taken.append(time.perf_counter() - began)
            if round_ == SETTLED:
                cpu = cpu_seconds()
            first = first or time.time() - psutil.Process().create_time()
            size = outcome.bytes_down // case.clients
        spent = {n: (s - cpu.get(n, 0.0)) / (case.rounds - SETTLED) for n, s in cpu_seconds().items()}
        report(case.name, seconds=taken, first=first, bytes=size, pss=pss(), cpu=sum(spent.values()), cpu_of=spent)
    finally:
        executor.close()


def commands(names: Iterable[str], flower: str, pfl: str) -> dict[str, list[str]]:
    """Return the commands that measure, by their name in the table."""
    out = {}
    for name in names:
        out[name] = [sys.executable, "-m", "benchmarks.bench_engine", "--one", name]
        case = CASES[name]
        words = [str(case.clients), str(case.population), case.megabytes, str(case.rounds)]
        for peer, python, script in (("flower", flower, FLOWER), ("pfl", pfl, PFL)):
            if python and name in BESIDE[peer]:
                out[f"{peer} {name}"] = [python, str(script), *words]
    return out


def table(readings: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians over the repeats, as Markdown."""
    lines = [
        "| | MB | round, least (ms) | median (ms) | CPU (ms) | start to end of round 1 (s) | memory, PSS (MB) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in readings.items():
        rounds = [s for one in each for s in one["seconds"][SETTLED:]]
        first = statistics.median(one["first"] for one in each)
        memory = statistics.median(one["pss"] for one in each)
        size = each[0]["bytes"] / MEGABYTE
        cpu = f"{1e3 * statistics.median(one['cpu'] for one in each):.1f}" if "cpu" in each[0] else ""
        lines.append(
            f"| {name} | {size:.2f} | {1e3 * min(rounds):.1f} | {1e3 * statistics.median(rounds):.1f} | {cpu}"
            f" | {first:.1f}"
            f" | {memory / MEGABYTE:,.0f} |"
        )
    return "\n".join(lines)


def profile(readings: dict[str, list[dict[str, Any]]]) -> str:
    """Return the CPU of a round by process, medians over the repeats, as Markdown."""
    lines = ["| CPU of a round (ms) | by process |", "|---|---|"]
    for name, each in readings.items():
        if "cpu_of" in each[0]:
            of = {n: 1e3 * statistics.median(one["cpu_of"].get(n, 0.0) for one in each) for n in each[0]["cpu_of"]}
            shown = sorted(((ms, n) for n, ms in of.items() if ms >= LEAST_MS), reverse=True)
            lines.append(f"| {name} | {', '.join(f'{n} {ms:.1f}' for ms, n in shown)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flower", default="", help="a Python that has flwr[simulation] and torch")
    parser.add_argument("--pfl", default="", help="a Python that has pfl, torch and psutil")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    parser.add_argument("--one", default="", choices=["", *CASES], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_case(CASES[options.one])
        return
    readings: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.repeats):
        for name, command in commands(options.cases, options.flower, options.pfl).items():
            readings.setdefault(name, []).append(reading_of(command))
    print(table(readings), profile(readings), sep="\n\n")
    if options.out is not None:
        about = machine("ray", "torch", "numpy")
        content = {"about": about, "cases": {n: asdict(c) for n, c in CASES.items()}, "readings": readings}
        options.out.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
