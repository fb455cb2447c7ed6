"""Synthetic R8: lines ``class<TAB>words`` of invented stems; every class has words of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorfl.tasks.text.r8 import CLASSES

SHARES = (0.29, 0.046, 0.518, 0.0075, 0.035, 0.0375, 0.02, 0.046)
"""About those of R8, in the order of the classes."""
STEMS, PER_CLASS, LENGTH = 600, 25, 40
"""Stems in all, of each class, and about so many words in a text."""
CONSONANTS, VOWELS = "bcdfglmnprstv", "aeiou"


def write(folder: Path, rows: int, seed: int) -> None:
    """Write ``rows`` texts, 5 in 7 of them for training, as both variants. Raises ValueError for fewer than 28 rows."""
    if rows < 28:
        raise ValueError(
            f"{rows} rows are too few: every class needs 2 in training and 1 in the test; give at least 28"
        )
    rng = np.random.default_rng(seed)
    stems = _stems(rng)
    for split, count in (("train", rows * 5 // 7), ("test", rows - rows * 5 // 7)):
        every = np.tile(np.arange(len(CLASSES)), 2 if split == "train" else 1)[:count]
        drawn = rng.choice(len(CLASSES), count - len(every), p=np.array(SHARES) / sum(SHARES))
        labels = rng.permutation(np.concatenate([every, drawn]))
        texts = [_text(rng, stems, label) for label in labels.tolist()]
        lines = [f"{CLASSES[label]}\t{text}" for label, text in zip(labels.tolist(), texts, strict=True)]
        for variant in ("stemmed", "textgcn"):
            (folder / f"r8-{split}-{variant}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _stems(rng: np.random.Generator) -> list[str]:
    stems = dict[str, None]()
    while len(stems) < STEMS:
        stems["".join(rng.choice([*CONSONANTS]) + rng.choice([*VOWELS]) for _ in range(rng.integers(2, 4)))] = None
    return list(stems)


def _text(rng: np.random.Generator, stems: list[str], label: int) -> str:
    """Return a text: a third of the words are of the class, the others of no class, frequent ones first (Zipf)."""
    length = max(3, int(rng.poisson(LENGTH)))
    own_words = rng.integers(0, PER_CLASS, length) + label * PER_CLASS
    common = len(CLASSES) * PER_CLASS + np.minimum(rng.zipf(1.4, length), STEMS - len(CLASSES) * PER_CLASS) - 1
    return " ".join(stems[i] for i in np.where(rng.random(length) < 1 / 3, own_words, common).tolist())
