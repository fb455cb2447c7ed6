"""Segments of a text in which class names occur, alone and in pairs: FedAlign's co-occurrence counts (KDD 2023).

A name of n words (a set, see ``name_matching.py``) occurs in a segment where all its words lie within L_w = window * n
words in a row, in any order; a name of one word, where that word stands. A segment counts a name once.

A text is gone through once, as an array: its characters become letters of the names' alphabet, all its words walk
down one trie of the names' words at the same time, and nearly all leave it after two letters. Windows are looked for
among the words that are left. So the time hardly depends on the number of names, and not at all on the window.

Measured beside a library in docs/why-by-hand.md.

Shape suffixes: T characters of a text, W words of it, H words that belong to a name, Q states of the trie, A letters,
K names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.corpus.name_matching import CODES, Stem, forms, letters, name_words

Segment = Literal["sentence", "paragraph", "article"]
Layout = Literal["lines", "blank_lines"]
"""End of a paragraph: every line end, or (texts with hard line breaks) a line without any word."""
Floats = npt.NDArray[np.float64]
Units = npt.NDArray[np.uint16]
RECORD = "\x1e"
"""Stands between articles in a block of text (ASCII's record separator)."""
MARKS = ".!?…؟।"
"""A sentence ends at one of these if white space follows within three characters, then a word that does not begin
with a small letter; a full stop after a single letter or one of ``TITLES`` ends none."""
TITLES = ("capt", "col", "dr", "gen", "lt", "messrs", "mlle", "mme", "mr", "mrs", "ms", "prof", "rev", "sgt", "st")
_LINE, _RECORD, _MARK, _OTHER = 1, 2, 3, 4  # kinds of characters; 0: separates words; letters come after _OTHER
_SPACES = np.array([code for code in range(CODES) if chr(code).isspace()], np.uint16)
_SMALL = np.array([chr(code).islower() for code in range(CODES)])


@dataclass(frozen=True, slots=True, eq=False)
class PairCounts:
    """The number of segments, and of those in which two names occur together."""

    segments: int
    """Segments with at least one word."""
    pair_KK: Ints
    """Segments with names i and j; the diagonal: with name i. int64, symmetric."""

    @classmethod
    def none(cls, names: int) -> PairCounts:
        """Return the counts of no text."""
        return cls(0, np.zeros((names, names), np.int64))

    def __add__(self, other: PairCounts) -> PairCounts:
        return PairCounts(self.segments + other.segments, self.pair_KK + other.pair_KK)

    def pmi(self) -> Floats:
        """Return PMI(i, j) = log p(i,j) / (p(i) p(j)), natural logarithm: [K, K].

        It is -inf for names that never meet, nan for names that never occur; the diagonal is -log p(i).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            log_KK, log_K = np.log(self.pair_KK), np.log(self.pair_KK.diagonal())
            pmi_KK: Floats = log_KK + np.log(self.segments) - (log_K[:, None] + log_K[None, :])
        return pmi_KK

    def weights(self) -> Floats:
        """Return the edges of FedAlign's graph: PMI less the mean PMI of all pairs that meet; 0 where that is negative
        or the two never meet, and on the diagonal; nan in rows and columns of names that never occur.
        """
        pmi_KK = self.pmi()
        upper = pmi_KK[np.triu_indices(len(pmi_KK), 1)]
        finite = upper[np.isfinite(upper)]
        weight_KK = np.maximum(pmi_KK - (finite.mean() if len(finite) else 0.0), 0.0)  # keeps nan
        np.fill_diagonal(weight_KK, np.where(np.isnan(weight_KK.diagonal()), np.nan, 0.0))
        return weight_KK


@dataclass(frozen=True)
class Scanner:
    """The counting of names in texts."""

    names: tuple[str, ...]
    segment: Segment = "paragraph"
    layout: Layout = "lines"
    window: int = 3
    """Words of the window per word of a name, >= 1."""
    stem: Stem = "plural"
    words: tuple[tuple[int, ...], ...] = field(init=False)
    """Numbers of the words of every name."""
    _trie: _Trie = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Build the trie. Raises InputError on a name without words, ValueError on a window below 1."""
        if self.window < 1:
            raise ValueError(f"window = {self.window}: give at least 1 word per word of a name")
        roots = name_words(self.names, self.stem)
        number = {root: at for at, root in enumerate(dict.fromkeys(root for name in roots for root in name))}
        object.__setattr__(self, "words", tuple(tuple(number[root] for root in name) for name in roots))
        known = {form: at for root, at in number.items() for form in forms(root, self.stem)}
        object.__setattr__(self, "_trie", _Trie.of(known, TITLES if self.segment == "sentence" else ()))

    def count(self, text: str) -> PairCounts:
        """Count the names in a text that begins and ends with a segment; ``RECORD`` separates articles in it."""
        units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
        kind_T = self._trie.kinds(units)
        word_T = kind_T >= _OTHER
        start_W = np.flatnonzero(word_T[1:] & ~word_T[:-1]) + 1
        if not len(start_W):
            return PairCounts.none(len(self.names))
        position_H, state_H = self._trie.matches(kind_T, start_W)
        cut = self._cuts(units, kind_T, start_W, position_H[self._trie.title_Q[state_H]])
        word_H = self._trie.word_Q[state_H]
        rows, columns = [], []
        for name, segments in enumerate(self._segments(position_H, word_H, cut)):
            rows.append(segments)
            columns.append(np.full(len(segments), name))
        row, column = np.concatenate(rows), np.concatenate(columns)
        shape = len(cut), len(self.names)
        occurs = sparse.csr_matrix((np.ones(len(row), np.int64), (row, column)), shape=shape)
        return PairCounts(len(cut), (occurs.T @ occurs).toarray())

    def _segments(self, position_H: Ints, word_H: Ints, cut: Ints) -> list[Ints]:
        """Return the numbers of the segments that each name occurs in, ascending."""
        order_H = np.lexsort((position_H, word_H))
        position_H, word_H = position_H[order_H], word_H[order_H]
        ends = np.searchsorted(word_H, np.arange(1 + max(map(max, self.words), default=-1)), side="right")
        begins = np.searchsorted(word_H, np.arange(len(ends)))
        positions = [position_H[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return [_together([positions[word] for word in words], self.window * len(words), cut) for words in self.words]

    def _cuts(self, units: Units, kind_T: npt.NDArray[np.uint16], start_W: Ints, title: Ints) -> Ints:
        """Return the first words of all segments that have words, ascending. title: the words that are titles."""
        cuts = [np.zeros(1, np.int64), np.searchsorted(start_W, np.flatnonzero(kind_T == _RECORD))]
        if self.segment != "article":
            line = np.searchsorted(start_W, np.flatnonzero(kind_T == _LINE))
            # two line ends with the same number of words before them have none between them
            cuts.append(line if self.layout == "lines" else line[1:][line[1:] == line[:-1]])
        if self.segment == "sentence":
            cuts.append(_sentence_cuts(units, np.flatnonzero(kind_T == _MARK), start_W, title))
        cut = np.unique(np.concatenate(cuts))
        return cut[cut < len(start_W)]


def _together(positions: Sequence[Ints], width: int, cut: Ints) -> Ints:
    """Return the segments with one word of each list within ``width`` words in a row."""
    if not all(map(len, positions)):
        return np.zeros(0, np.int64)
    last = positions[0] if len(positions) == 1 else np.concatenate(positions)
    first = last
    for position in positions if len(positions) > 1 else ():
        before = np.searchsorted(position, last, side="right") - 1  # the nearest such word up to ``last``
        first = np.minimum(first, np.where(before >= 0, position[before], -width))
    segment = np.searchsorted(cut, last, side="right") - 1
    return np.unique(segment[(last - first < width) & (first >= cut[segment])])


def _sentence_cuts(units: Units, mark: Ints, start_W: Ints, title: Ints) -> Ints:
    """Return the numbers of the words that begin a sentence, by the rule of ``MARKS``.

    mark: positions of the marks in the text with one character put before it, as are the starts of words.
    """
    word = np.searchsorted(start_W, mark)
    inside = word < len(start_W)
    mark, word = mark[inside], word[inside]
    padded = np.concatenate([np.zeros(1, np.uint16), units, np.zeros(4, np.uint16)])
    spaced = np.zeros(len(mark), np.bool_)
    for step in (1, 2, 3):
        spaced |= (mark + step < start_W[word]) & np.isin(padded[mark + step], _SPACES)
    before = np.maximum(word - 1, 0)
    initial = (word > 0) & (mark - start_W[before] == 1)
    stop = padded[mark] == ord(".")
    short = stop & (initial | np.isin(word - 1, title))
    ends: Ints = word[spaced & ~_SMALL[padded[start_W[word]]] & ~short]
    return ends


@dataclass(frozen=True)
class _Trie:
    """A trie of words by their letters. State 0: no word begins like this; 1: the beginning."""

    kind_of: npt.NDArray[np.uint16]
    """Kind of every UTF-16 code unit, uint16 [65536]."""
    next_QA: npt.NDArray[np.int32]
    word_Q: Ints
    """Number of the word that ends in a state, else -1."""
    title_Q: Bools
    longest: int
    """Letters of the longest word."""

    @classmethod
    def of(cls, words: Mapping[str, int], titles: Sequence[str]) -> _Trie:
        """Return the trie of words with their numbers, and of titles, which may be among the words."""
        every = [*words, *titles]
        alphabet = sorted({letter for word in every for letter in word})
        number = {letter: at for at, letter in enumerate(alphabet, _OTHER + 1)}
        steps = [dict[int, int](), dict[int, int]()]
        end = dict[str, int]()
        for word in every:
            state = 1
            for letter in word:
                if (at := number[letter]) not in steps[state]:
                    steps[state][at] = len(steps)
                    steps.append({})
                state = steps[state][at]
            end[word] = state
        next_QA = np.zeros((len(steps), _OTHER + 1 + len(alphabet)), np.int32)
        for state, step in enumerate(steps):
            next_QA[state, list(step)] = list(step.values())
        word_Q, title_Q = np.full(len(steps), -1, np.int64), np.zeros(len(steps), np.bool_)
        word_Q[[end[word] for word in words]] = list(words.values())
        title_Q[[end[word] for word in titles]] = True
        return cls(_kinds(number), next_QA, word_Q, title_Q, max(map(len, every), default=0))

    def kinds(self, units: Units) -> npt.NDArray[np.uint16]:
        """Return every character's kind, with a separator before the text and as many after it as a word is long."""
        kind_T = np.zeros(len(units) + self.longest + 2, np.uint16)
        np.take(self.kind_of, units, out=kind_T[1 : len(units) + 1])
        return kind_T

    def matches(self, kind_T: npt.NDArray[np.uint16], start_W: Ints) -> tuple[Ints, Ints]:
        """Return the words of a text that are words of the trie: their numbers, and the states that they end in."""
        flat, kinds = self.next_QA.ravel(), self.next_QA.shape[1]
        state = self.next_QA[1][kind_T[start_W]]
        position = np.flatnonzero(state)
        state, at = state[position], start_W[position]
        positions, states = [], []
        for _ in range(self.longest):
            at = at + 1
            kind = kind_T[at]
            ended = np.flatnonzero(kind < _OTHER)
            positions.append(position[ended])
            states.append(state[ended])
            state = flat[state * kinds + kind]
            alive = np.flatnonzero(state)
            state, at, position = state[alive], at[alive], position[alive]
        position, state = np.concatenate(positions), np.concatenate(states).astype(np.int64)
        whole = (self.word_Q[state] >= 0) | self.title_Q[state]
        return position[whole], state[whole]


def _kinds(number: Mapping[str, int]) -> npt.NDArray[np.uint16]:
    """Return the kind of every UTF-16 code unit. number: the kinds of the letters that the trie knows."""
    lower = letters()
    kind_of = np.where(lower > 0, _OTHER, 0).astype(np.uint16)
    for letter, kind in number.items():
        kind_of[lower == ord(letter)] = kind
    kind_of[[ord(mark) for mark in MARKS]] = _MARK
    kind_of[ord("\n")], kind_of[ord(RECORD)] = _LINE, _RECORD
    return kind_of
