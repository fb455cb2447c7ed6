"""Reading ExtraSensory against pandas.read_csv of the same files one by one: seconds, CPU seconds and peak memory.

The two take turns.

    ANCHORFL_DATA=... python benchmarks/extrasensory_ingest.py [--pairs 3]

Each measurement is a process of its own. What is compared: pandas gives 16 data frames; ours gives the checked table
of sequences, labels and splits. Goals: ratio at most 1, peak below 2 GiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path


def files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.features_labels.csv.gz"))
    if not found:
        raise SystemExit(f"no *.features_labels.csv.gz in {folder}; set ANCHORFL_DATA")
    return found


def ours(folder: Path) -> int:
    from anchorfl.tasks.options import TaskOptions
    from anchorfl.tasks.signals.extrasensory import read

    return read(folder, TaskOptions(name="extrasensory", fold=0)).num_rows


def pandas(folder: Path) -> int:
    import pandas

    return sum(len(pandas.read_csv(path)) for path in files(folder))


READERS = {"pandas": pandas, "ours": ours}


def measure(name: str, folder: Path) -> None:
    """Seconds, peak bytes and rows of one reader, to standard output; imports are not timed."""
    import pandas as _pandas  # noqa: F401  both processes import both, so that the peaks compare

    import anchorfl.tasks.signals.extrasensory  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, worked = time.perf_counter(), time.process_time()
    rows = READERS[name](folder)
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(seconds, work, peak * 1024, before * 1024, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--measure", choices=list(READERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(os.environ.get("ANCHORFL_DATA", "")) / "extrasensory"
    if options.measure:
        measure(options.measure, folder)
        return
    size = sum(path.stat().st_size for path in files(folder))
    print(f"{len(files(folder))} files, {size / 2**20:.1f} MiB, {os.cpu_count()} CPUs, {options.pairs} pairs")
    seconds, work_s = ({name: list[float]() for name in READERS} for _ in range(2))
    for pair in range(options.pairs):
        for name in READERS:
            command = [sys.executable, __file__, "--measure", name]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            taken, work, peak, before, rows = (float(word) for word in told.split())
            seconds[name].append(taken)
            work_s[name].append(work)
            print(
                f"{pair + 1} {name:7} {taken:6.2f} s, CPU {work:.2f} s  peak {peak / 2**20:5.0f} MiB "
                f"({before / 2**20:.0f} MiB before reading)  {rows:.0f} rows",
                flush=True,
            )
    for what, taken_s in (("time", seconds), ("CPU time", work_s)):
        ratios = [a / b for a, b in zip(taken_s["ours"], taken_s["pandas"], strict=True)]
        print(f"{what}, ours / pandas: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
