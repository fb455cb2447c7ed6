"""Words of a class name that must be found in a text, and all forms of a word.

A name is a set of words: its runs of letters and digits in lower case, without the stop words below ("phone on table":
phone, table), unless it has no others. A word of a text is such a run too. What counts as the same word is chosen by
``Stem``; the suffix rules are English ones, and leave other languages alone but for those letters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.errors import InputError

Stem = Literal["none", "plural", "verbs"]
"""``none``: equal words only; ``plural``: stairs = stair, dishes = dish, laundries = laundry; ``verbs``: also
walking = walked = walks = walk, cycling = cycle (and, wrongly, evening = even)."""
STOP = {"a", "an", "and", "at", "by", "for", "from", "i", "in", "into", "m", "my", "of", "on", "or", "s", "t", "the"}
STOP |= {"to", "with"}
"""Ignored in names. They count as words of the text, so they take up room in a window."""
CODES = 1 << 16
_VOWELS = frozenset("aeiouy")


@lru_cache(maxsize=1)
def letters() -> npt.NDArray[np.uint16]:
    """Return the lower case of every UTF-16 code unit, 0 where it is no part of a word: uint16 [65536].

    Parts of words are letters, digits and combining marks. Characters beyond the Basic Multilingual Plane (emoji, old
    scripts) separate words.
    """
    lower = np.zeros(CODES, np.uint16)
    for code in range(CODES):
        sign = chr(code)
        if sign.isalnum() or unicodedata.category(sign)[0] == "M":
            small = sign.lower()
            lower[code] = ord(small) if len(small) == 1 else code
    return lower


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order."""
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    folded = letters()[units]
    return "".join(map(chr, np.where(folded > 0, folded, 32).tolist())).split()


def name_words(names: Sequence[str], stem: Stem) -> list[tuple[str, ...]]:
    """Return the stems of every name's words, each once. Raises InputError on a name without a word, or given twice."""
    seen = dict[str, str]()
    stems = []
    for name in names:
        key = "".join(name.split()).casefold()  # what the reader of a table takes for the same name
        if key in seen:
            raise InputError(f"class names {seen[key]!r} and {name!r} are the same but for case and spaces; rename one")
        seen[key] = name
        words = words_of(name)
        if not words:
            raise InputError(f"class name {name!r} has no letter or digit; give a name that can occur in a text")
        content_words = [word for word in words if word not in STOP] or words
        stems.append(tuple(dict.fromkeys(stem_word(word, stem) for word in content_words)))
    return stems


def stem_word(word: str, stem: Stem) -> str:
    """Return the stem of a word in lower case. Words of up to three letters are their own stem."""
    if stem == "none":
        return word
    word = _singular(word)
    return word if stem == "plural" else _verb(word)


def forms(root: str, stem: Stem) -> frozenset[str]:
    """Return every word whose stem is ``root``. They are looked for in a text, so that none of its words is stemmed."""
    if stem == "none":
        return frozenset({root})
    bases = {root}
    if stem == "verbs":
        bases |= {root + "e"}
        bases |= {base + base[-1] for base in tuple(bases)}
        bases |= {base + end for base, end in product(tuple(bases), ("ing", "ed"))}
    candidates = {base + end for base, end in product(bases, ("", "s", "es"))}
    candidates |= {base[:-1] + "ies" for base in bases if base.endswith("y")}
    return frozenset(word for word in candidates if stem_word(word, stem) == root)


def _singular(word: str) -> str:
    """Strip the plural: Harman's S-stemmer (1991), with -es after a hiss taken off whole."""
    if len(word) <= 3 or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    return word.removesuffix("s")


def _verb(word: str) -> str:
    """Strip -ing or -ed after a part with a vowel (and the doubled consonant before it), then a last e."""
    for end in ("ing", "ed"):
        rest = word.removesuffix(end)
        if rest != word and len(rest) >= 3 and _VOWELS & set(rest):
            double = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "aeioulsz"
            word = rest[:-1] if double else rest
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
