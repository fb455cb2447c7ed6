"""Reading the extreme-classification text format: rows and megabytes a second, and the peak memory of the reader.

    python benchmarks/sparse_ingest.py [--rows 200000 1186239] [--folder /tmp]

A made-up file of AmazonCat-13K's width (203 882 features, 13 330 labels, 71 pairs and about 5 labels a row) is written,
then read by a fresh process: ``read`` alone, and ``read`` with the encoding of all rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tasks.bad_rows import BadRows
from tasks.sparse.pairs import encode, fit, sparse_table
from tasks.sparse.xc_format import read_rows
from tasks.twins.xc import SIZES, write_rows

PEAK = "VmHWM"


def measured(path: Path) -> dict[str, float]:
    """What this process needed to read and encode the file."""
    began = time.perf_counter()
    rows = read_rows(path, BadRows(False))
    read = time.perf_counter() - began
    peak_read = peak_mib()
    names = [f"label {n}" for n in range(rows.header.labels)]
    test_N = np.arange(len(rows.place_N)) % 5 == 0
    table = sparse_table(rows.place_N, test_N, rows.labels, rows.pairs, names, rows.header.features)
    encoded = encode(table, fit(table, None))
    pairs = encoded["x"].nbytes // 8
    seconds = time.perf_counter() - began
    return {"read": read, "all": seconds, "pairs": pairs, "peak_read": peak_read, "peak": peak_mib()}


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(PEAK))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--folder", default=None)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        print(json.dumps(measured(Path(options.file))))
        return
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "amazonCat_train.txt"
            began = time.perf_counter()
            write_rows(path, rows, SIZES["amazoncat-13k"][1], np.random.default_rng(0))
            wrote, size = time.perf_counter() - began, path.stat().st_size / 1e6
            child = [sys.executable, __file__, "--file", str(path)]
            found = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
        print(
            f"{rows} rows, {found['pairs'] / 1e6:.1f} M pairs, {size:.0f} MB (written in {wrote:.0f} s): read in "
            f"{found['read']:.1f} s = {rows / found['read']:.0f} rows/s, {size / found['read']:.0f} MB/s, peak "
            f"{found['peak_read']:.0f} MiB; with encoding {found['all']:.1f} s, peak {found['peak']:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
