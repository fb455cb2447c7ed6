"""PMI of published class names from a corpus of one's own, and its rank correlation with the published tables.

    ANCHORFL_DATA=... python -m benchmarks.names_correlation [CORPUS ...] [--segment paragraph] [--window 3]

The names are the row labels of FedAlign's tables, without the prefixes of ExtraSensory's columns (FIX_, LOC_, OR_).
Spearman's rho over pairs of names, twice: over those for which both sides have a value (published: a number that is
not the floor of log2(1e-12), nor 0 in the tables that hold no negative values; here: both occur in one segment), and
over all pairs of names that occur in both, where what is dropped or never meets shares the lowest rank.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from anchorfl.tasks.corpus.cooccurrence import count_names
from anchorfl.tasks.corpus.counting import Scanner

DATA = Path(os.environ.get("ANCHORFL_DATA", "."))
FLOOR = -39.0


def published(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Return names, and values [K, K]: nan where a name is unknown, -inf for what was dropped or never met."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    value_KK = np.array([[float(cell or "nan") for cell in row[1:]] for row in rows])
    dropped = value_KK < FLOOR if np.nanmin(value_KK) < 0 else value_KK == 0
    value_KK[dropped] = -np.inf
    return tuple(header[1:]), value_KK


def spoken(label: str) -> str:
    """Return the name without the prefix that says how ExtraSensory came by a label."""
    return re.sub(r"^(FIX|LOC|OR)_", "", label)


def rho(one: np.ndarray, two: np.ndarray) -> str:
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return f"not defined over {len(one)} pairs"
    result = spearmanr(one, two)
    return f"rho {result.statistic:+.3f} (p {result.pvalue:.3g}) over {len(one)} pairs"


def compare(title: str, theirs_KK: np.ndarray, ours_KK: np.ndarray) -> None:
    upper = np.triu_indices(len(theirs_KK), 1)
    theirs, ours = theirs_KK[upper], ours_KK[upper]
    both = np.isfinite(theirs) & np.isfinite(ours)
    known = ~np.isnan(theirs) & ~np.isnan(ours)
    lowest = [np.where(side[known] == -np.inf, -1e9, side[known]) for side in (theirs, ours)]
    print(f"  {title:<28} values on both sides: {rho(theirs[both], ours[both])}")
    print(f"  {'':<28} all known pairs:      {rho(*lowest)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs="*", default=[str(DATA / "text_novels" / "novels_paragraphs.txt.gz")])
    parser.add_argument("--segment", nargs="*", default=["paragraph", "sentence"])
    parser.add_argument("--window", type=int, nargs="*", default=[3])
    options = parser.parse_args()
    for data in ("extrasensory", "pamap2"):
        names, theirs_KK = published(DATA / "cooccurrence_fedalign" / f"cooccurrence_{data}.csv")
        for segment, window, stem in product(options.segment, options.window, ("none", "plural", "verbs")):
            scanner = Scanner(tuple(map(spoken, names)), segment, "lines", window, stem)
            counts = count_names(options.corpus, scanner).counts
            weight_KK = counts.weights()
            seen = (counts.pair_KK.diagonal() > 0).sum()
            edges = int((np.nan_to_num(weight_KK) > 0).sum() // 2)
            print(
                f"{data}: {segment}, L_w = {window} n, stem {stem}: {counts.segments} segments,"
                f" {seen} of {len(names)} names occur, {edges} edges"
            )
            compare("PMI", theirs_KK, counts.pmi())


if __name__ == "__main__":
    main()
