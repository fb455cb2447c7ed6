"""Reading the extreme-classification text format: rows and megabytes a second, and the peak memory of the reader.

    python benchmarks/sparse_ingest.py [--rows 200000 1186239] [--folder /tmp]

Made-up files of AmazonCat-13K's width (203 882 features, 13 330 labels, 71 pairs and about 5 labels a row) are written;
fresh processes then read them, read and encode them, and prepare the data of 100 clients from them (``--clients``).
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

from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.sparse.pairs import encode, fit, sparse_table
from anchorfl.tasks.sparse.xc_format import read_rows
from anchorfl.tasks.synthetic.xc import SIZES, write_rows

PEAK = "VmHWM"


def measured(path: Path) -> dict[str, float]:
    """What this process needed to read and encode the file."""
    began = time.perf_counter()
    rows = read_rows(path, BadRows(False))
    read = time.perf_counter() - began
    peak_read = peak_mib()
    names = [f"label {n}" for n in range(rows.header.labels)]
    test_N = np.arange(len(rows.index_N)) % 5 == 0
    table = sparse_table(rows.index_N, test_N, rows.labels, rows.pairs, names, rows.header.features)
    encoded = encode(table, fit(table, None))
    pairs = encoded["x"].nbytes // 8
    seconds = time.perf_counter() - began
    return {"read": read, "all": seconds, "pairs": pairs, "peak_read": peak_read, "peak": peak_mib()}


def prepared(folder: Path, clients: int) -> dict[str, float]:
    """What this process needed to prepare the data of all clients."""
    began = time.perf_counter()
    options = TaskOptions(
        name="amazoncat-13k", root=str(folder), cache=str(folder / "cache"), clients=clients, partition="iid"
    )
    manifest = prepare(find_task(options.name), options, 0, engine="local").manifest
    rows = sum(manifest.examples) + manifest.validation + manifest.test
    return {"all": time.perf_counter() - began, "peak": peak_mib(), "rows": rows}


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(PEAK))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--folder", default=None)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file or options.prepare:
        found = measured(Path(options.file)) if options.file else prepared(Path(options.prepare), options.clients)
        print(json.dumps(found))
        return
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "amazonCat_train.txt"
            began = time.perf_counter()
            write_rows(path, rows, SIZES["amazoncat-13k"][1], np.random.default_rng(0))
            write_rows(Path(folder) / "amazonCat_test.txt", 1000, SIZES["amazoncat-13k"][1], np.random.default_rng(1))
            wrote, size = time.perf_counter() - began, path.stat().st_size / 1e6
            found = told("--file", str(path))
            whole = told("--prepare", folder, "--clients", str(options.clients))
        print(
            f"{rows} rows, {found['pairs'] / 1e6:.1f} M pairs, {size:.0f} MB (written in {wrote:.0f} s): read in "
            f"{found['read']:.1f} s = {rows / found['read']:.0f} rows/s, {size / found['read']:.0f} MB/s, peak "
            f"{found['peak_read']:.0f} MiB; with encoding {found['all']:.1f} s, peak {found['peak']:.0f} MiB; "
            f"prepared for {options.clients} clients in {whole['all']:.1f} s = "
            f"{whole['rows'] / whole['all']:.0f} rows/s, peak {whole['peak']:.0f} MiB",
            flush=True,
        )


def told(*arguments: str) -> dict[str, float]:
    """What a fresh process of this file measured."""
    command = [sys.executable, __file__, *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


if __name__ == "__main__":
    main()
