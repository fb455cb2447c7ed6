"""Synthetic extreme-classification sets: made-up rows in the text format, with the file names of each set.

A row has a main label, often its partner (0 with 1, 2 with 3, ...) and sometimes a third; five features belong to each
label, the others are noise. There is one label for twenty rows, so that each has some. Rows without labels and the
feature orders of the real files are there too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.arrays.ragged import offsets

BLOCK_ROWS = 20_000
PER_LABEL = 5
"""Features that belong to a label."""
MILLION = 1_000_000
Masked = tuple[Ints, Bools]
"""Values [N, K], and which of them are there."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a file."""

    features: int
    """Number in the header."""
    labels: int
    """Number in the header."""
    pairs: int
    """Features of a row, before those that fall together count once."""
    extra: float = 1.0
    """Labels of a row beside the main one, on average."""
    binary: bool = False
    """True: all values are 1."""
    unlabeled: int = 97
    """One row of so many has no label; 0: none."""


BIBTEX = Size(1836, 159, 40, binary=True, unlabeled=0)
SIZES = {
    "eurlex-4k": ("eurlex_", Size(5_000, 3_993, 60)),
    "amazoncat-13k": ("amazonCat_", Size(203_882, 13_330, 71, extra=4.0)),
    "amazon-670k": ("amazon_", Size(135_909, 670_091, 60)),
    "amazontitles-670k": ("", Size(66_666, 670_091, 6)),
    "wikilshtc-325k": ("wikiLSHTC_", Size(1_617_899, 325_056, 42)),
}
"""Beginning of the file names, and the size of the real set."""


def write(folder: Path, rows: int, seed: int, task: str = "bibtex") -> None:
    """Write the files of a data set with ``rows`` rows in all, a third of them test rows."""
    rng = np.random.default_rng(seed)
    labels = max(2, rows // 20)
    if task == "bibtex":
        size = replace(BIBTEX, labels=min(BIBTEX.labels, labels))
        write_rows(folder / "Bibtex_data.txt", rows, size, rng)
        for variant, order in (("", rng.permutation(rows)), ("_mulan", np.arange(rows))):
            for part, chosen in (("tr", order[: rows - rows // 3]), ("tst", order[rows - rows // 3 :])):
                lines = "".join(f"{row + 1}\n" for row in np.sort(chosen).tolist())
                (folder / f"bibtex_{part}Split{variant}.txt").write_text(lines)
        _write_names(folder / "label_names.txt", "TAG_{}", size.labels)
        return
    stem, size = SIZES[task]
    size = replace(size, labels=min(size.labels, labels))
    write_rows(folder / f"{stem}train.txt", rows - rows // 3, size, rng)
    write_rows(folder / f"{stem}test.txt", rows // 3, size, rng)
    if task == "amazontitles-670k":
        _write_names(folder / "Yf.txt", "A {} for the kitchen", size.labels)


def write_rows(path: Path, rows: int, size: Size, rng: np.random.Generator) -> None:
    """Write one file, block by block: memory does not grow with the rows."""
    with path.open("wb") as stream:
        stream.write(f"{rows} {size.features} {size.labels}\n".encode())
        for first in range(0, rows, BLOCK_ROWS):
            stream.write(_block(np.arange(first, min(rows, first + BLOCK_ROWS)), size, rng))


def _block(row_N: Ints, size: Size, rng: np.random.Generator) -> bytes:
    main_N = row_N % size.labels
    label_NK, there_NK = _labels(row_N, main_N, size, rng)
    own_NK = main_N[:, None] * PER_LABEL + np.arange(PER_LABEL)
    noise_NK = rng.integers(size.features, size=(len(row_N), max(1, size.pairs - PER_LABEL)))
    feature_NK, kept_NK = _once(np.concatenate([own_NK % size.features, noise_NK], axis=1))
    ones = "1.000000"
    if size.binary:
        values: Any = pa.array([ones]).take(pa.array(np.zeros(int(kept_NK.sum()), dtype=np.int8)))
    else:
        millionths = pa.array(rng.integers(1, MILLION, size=int(kept_NK.sum()))).cast(pa.string())
        values = pc.binary_join_element_wise("0", pc.utf8_lpad(millionths, 6, "0"), ".")
    pairs = pc.binary_join_element_wise(pa.array(feature_NK[kept_NK]).cast(pa.string()), values, ":")
    labels = pa.array(label_NK[there_NK]).cast(pa.string())
    lines = pc.binary_join_element_wise(
        pc.binary_join(_lists(labels, there_NK), ","), pc.binary_join(_lists(pairs, kept_NK), " "), " "
    )
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text: str = pc.binary_join(whole, "\n")[0].as_py()
    return f"{text}\n".encode()


def _labels(row_N: Ints, main_N: Ints, size: Size, rng: np.random.Generator) -> Masked:
    """Return the labels of every row, ascending."""
    others = max(1, round(2 * size.extra))
    partner_N = np.minimum(main_N ^ 1, size.labels - 1)
    drawn_NK = rng.integers(size.labels, size=(len(row_N), others))
    drawn_NK[:, 0] = partner_N
    drawn_NK = np.where(rng.random(drawn_NK.shape) < size.extra / others, drawn_NK, main_N[:, None])
    label_NK, there_NK = _once(np.concatenate([main_N[:, None], drawn_NK], axis=1))
    if size.unlabeled:
        there_NK &= (row_N % size.unlabeled != size.unlabeled - 1)[:, None]
    return label_NK, there_NK


def _once(value_NK: Ints) -> Masked:
    """Return the values of every row, ascending, without repetitions."""
    value_NK = np.sort(value_NK, axis=1)
    return value_NK, np.diff(value_NK, axis=1, prepend=-1) > 0


def _lists(values: Any, there_NK: Bools) -> Any:
    return pa.ListArray.from_arrays(pa.array(offsets(there_NK.sum(1)).astype(np.int32)), values)


def _write_names(path: Path, form: str, count: int) -> None:
    """Write made-up words of syllables, one a line, all different."""
    syllables = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
    words = [syllables[n // 60 % 60] + syllables[n % 60] + ("" if n < 3600 else str(n // 3600)) for n in range(count)]
    path.write_text("".join(form.format(word) + "\n" for word in words))
