"""Megabytes per second of counting class names in a corpus, beside the plain loop over names and windows.

    ANCHORFL_DATA=... python -m benchmarks.corpus_scan [CORPUS] [--plain-mb 1] [--pairs 3] [--ray]

The plain loop does what the words of the method say: cut the text into segments and words, and for every name look
whether all its words lie in one of the windows. Both count the same first megabytes, and must agree; the scan is timed
on the whole text too. The names are those of a co-occurrence table (51 of ExtraSensory by default).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from anchorfl.tasks.corpus.cooccurrence import count_names
from anchorfl.tasks.corpus.counting import Scanner
from anchorfl.tasks.corpus.name_matching import name_words, stem_word

DATA = Path(os.environ.get("ANCHORFL_DATA", "."))
WORD = re.compile(r"[^\W_]+")


def names_of(table: Path) -> tuple[str, ...]:
    with table.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file))[1:])


def plain(scanner: Scanner, text: str) -> tuple[int, np.ndarray]:
    """Return segments, and segments with each pair, by names times windows."""
    wanted = [set(words) for words in name_words(scanner.names, scanner.stem)]
    segments, pair_KK = 0, np.zeros((len(wanted), len(wanted)), np.int64)
    for line in text.split("\n"):
        words = [stem_word(word, scanner.stem) for word in WORD.findall(line.lower())]
        if not words:
            continue
        segments += 1
        found = []
        for name, some in enumerate(wanted):
            width = scanner.window * len(some)
            if any(some.issubset(words[at : at + width]) for at in range(max(1, len(words) - width + 1))):
                found.append(name)
        for i in found:
            pair_KK[i, found] += 1
    return segments, pair_KK


def timed(work) -> tuple[float, float]:
    """Return the CPU seconds of this process, and the seconds that passed."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def on_ray(text: str, scanner: Scanner) -> None:
    from anchorfl.pipeline.cluster import ray_cluster
    from anchorfl.pipeline.config.cluster import ClusterOptions

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "corpus.txt")
        with file.open("wb") as stream:
            for _ in range(20):
                stream.write(text.encode())
        ray_cluster.start(ClusterOptions())
        try:
            for turn in ("first, with the start of the workers", "second"):
                found = count_names([str(file)], scanner, engine="ray")
                print(f"Ray, 20 copies, {turn}: {found.size / 1e6:.0f} MB, {found.size / 1e6 / found.seconds:.1f} MB/s")
        finally:
            ray_cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", default=DATA / "text_novels" / "novels_paragraphs.txt.gz")
    table = DATA / "cooccurrence_fedalign" / "cooccurrence_extrasensory.csv"
    parser.add_argument("--names", type=Path, default=table, help="CSV table whose header holds the names")
    parser.add_argument("--plain-mb", type=float, default=1.0, help="megabytes that the plain loop gets")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    text = (gzip.open if options.corpus.suffix == ".gz" else open)(options.corpus, "rt", encoding="utf-8").read()
    few = text[: text.index("\n", int(options.plain_mb * 1e6)) + 1]
    scanner = Scanner(names_of(options.names))
    fast, (segments, pair_KK) = scanner.count(few), plain(scanner, few)
    assert fast.segments == segments, (fast.segments, segments)
    np.testing.assert_array_equal(fast.pair_KK, pair_KK)
    few_mb, all_mb = len(few.encode()) / 1e6, len(text.encode()) / 1e6
    print(f"{len(scanner.names)} names; equal counts on the first {few_mb:.1f} MB ({segments} paragraphs)")
    ratios, rates = [], []
    for _ in range(options.pairs):
        slow, _ = timed(lambda: plain(scanner, few))
        quick, wall = timed(lambda: count_names([str(options.corpus)], scanner))
        rates.append((few_mb / slow, all_mb / quick, all_mb / wall))
        ratios.append(rates[-1][1] / rates[-1][0])
        print("plain loop {:.3f} MB per CPU s; scan with unpacking {:.1f} MB per CPU s, {:.1f} MB/s".format(*rates[-1]))
    print(f"ratio {statistics.median(ratios):.0f} x (median of {options.pairs}, one core, CPU time)")
    if options.ray:
        on_ray(text, scanner)


if __name__ == "__main__":
    main()
