"""Seconds and memory of a round of training: ours, a plain PyTorch loop, the limit by hand, and Flower running both.

    python -m benchmarks.bench_rounds                                # the table; some minutes on two cores
    python -m benchmarks.bench_rounds --flower flwr/bin/python       # beside Flower's simulation, installed there
    python -m benchmarks.bench_rounds --cases r8-8 --out rounds.json --plot rounds.png

All ways of a case train the same clients on the same rows with the same mathematics (``--check`` compares the weights
after an epoch without dropout). Every measurement is a process of its own; ``--repeats`` goes round all of them in
turn. Of r8-8: two workers, one thread each, seconds on the clock; of the others: this process, CPU seconds of one
thread. The first round of each is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench_engine import SETTLED
from benchmarks.readings import MEGABYTE, machine, pss, reading_of, report
from benchmarks.round_ways import ROUNDS, WAYS, compared, prepared_clients

FLOWER = Path(__file__).with_name("r8_flower.py")
BY_HAND = Path(__file__).with_name("r8_by_hand.py")


def run_way(case: str, way: str, rounds: int) -> None:
    """Report the seconds of every round of a way of a case, and memory."""
    once, taken = WAYS[case][way](rounds), []
    clock = time.perf_counter if case == "r8-8" else time.process_time
    for round_ in range(1, rounds + 1):
        began = clock()
        once(round_)
        taken.append(clock() - began)
    report(way, seconds=taken, pss=pss())


def commands(cases: list[str], flower: str, clients: Path | None) -> dict[tuple[str, str], list[str]]:
    """Return the commands that measure, by case and way."""
    out = {}
    for case in cases:
        if clients is not None and case == "r8-8":
            file, count = str(clients), str(ROUNDS[case])
            for way in ("plain", "fast", "bfloat16"):
                out[case, f"by hand, {way}"] = [sys.executable, str(BY_HAND), file, way, count]
                if flower:
                    out[case, f"Flower, {way}"] = [flower, str(FLOWER), file, way, count]
        for way in WAYS[case]:
            out[case, way] = [sys.executable, "-m", "benchmarks.bench_rounds", "--one", case, way]
    return out


Readings = dict[tuple[str, str], list[dict[str, Any]]]


def medians(readings: Readings) -> dict[tuple[str, str], float]:
    """Return the seconds of a round, the median over all rounds of all repeats."""
    return {
        key: statistics.median(s for one in each for s in one["seconds"][SETTLED:]) for key, each in readings.items()
    }


def table(readings: Readings) -> str:
    """Return a Markdown table, each way beside the plain one of its case."""
    lines = [
        "| Case | Way | s a round, least | median | plain takes times as long | memory, PSS (MB) |",
        "|---|---|---|---|---|---|",
    ]
    middle = medians(readings)
    for (case, way), each in readings.items():
        least = min(s for one in each for s in one["seconds"][SETTLED:])
        plain = next(middle[key] for key in middle if key[0] == case and key[1].endswith("plain"))
        memory = statistics.median(one["pss"] for one in each) / MEGABYTE
        seconds = middle[case, way]
        lines.append(f"| {case} | {way} | {least:.3f} | {seconds:.3f} | {plain / seconds:.1f} | {memory:,.0f} |")
    return "\n".join(lines)


def draw(readings: Readings, path: Path) -> None:
    """Draw the medians as bars, a panel per case."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    middle = medians(readings)
    cases = list(dict.fromkeys(case for case, _ in middle))
    counts = [sum(key[0] == case for key in middle) for case in cases]
    figure = Figure(figsize=(8, 0.9 + 0.35 * sum(counts) + 0.4 * len(cases)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(cases), 1, squeeze=False, height_ratios=counts)[:, 0]
    for panel, case in zip(panels, cases, strict=True):
        ways = {way: value for (c, way), value in middle.items() if c == case}
        bars = panel.barh(
            list(ways), list(ways.values()), color=["C0" if w.startswith("ours") else "0.7" for w in ways]
        )
        panel.bar_label(bars, fmt=" %.3g s")
        panel.set(title=case)
        panel.margins(x=0.15)
        panel.invert_yaxis()
    panels[-1].set_xlabel("seconds a round, median")
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flower", default="", help="a Python that has flwr[simulation], torch and psutil")
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    parser.add_argument("--plot", type=Path, default=None, help="PNG file")
    parser.add_argument("--check", action="store_true", help="compare the mathematics, and measure nothing")
    parser.add_argument("--one", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        print(f"largest difference of a weight of R8-8's network after an epoch: {compared():.1e}")
        return
    if options.one:
        run_way(*options.one, ROUNDS[options.one[0]])
        return
    readings: Readings = {}
    with tempfile.TemporaryDirectory() as folder:
        clients = prepared_clients(Path(folder)) if "r8-8" in options.cases else None
        for _ in range(options.repeats):
            for key, command in commands(options.cases, options.flower, clients).items():
                readings.setdefault(key, []).append(reading_of(command))
    print(table(readings))
    if options.out is not None:
        kept = {" | ".join(key): each for key, each in readings.items()}
        options.out.write_text(
            json.dumps({"about": machine("ray", "torch", "numpy"), "readings": kept}, indent=1), encoding="utf-8"
        )
    if options.plot is not None:
        draw(readings, options.plot)


if __name__ == "__main__":
    main()
