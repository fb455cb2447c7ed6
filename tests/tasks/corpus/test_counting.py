"""Counting class names in texts: against the plain loop over names and windows, and by hand."""

from __future__ import annotations

import pickle
import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anchorfl.tasks.corpus.counting import MARKS, RECORD, TITLES, PairCounts, Scanner
from anchorfl.tasks.corpus.name_matching import STOP, forms, name_words, stem_word, words_of
from anchorfl.tasks.errors import InputError

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None)
WORD = re.compile(r"[^\W_]+")
WORDS = [
    "walk",
    "walks",
    "walking",
    "Table",
    "phone",
    "in",
    "the",
    "dish",
    "dishes",
    "Stairs",
    "up",
    "Mr",
    "é",
    "x",
    "İ",
]
GAPS = [
    " ",
    "  ",
    ", ",
    ". ",
    "." + "\u201d ",
    "! ",
    "...",
    "…\n",
    "\n",
    "\n\n",
    " \r\n \r\n",
    "_",
    "-",
    "3.14 ",
    RECORD,
    "😀",
    ".",
]


def segments(text, segment, layout):
    """Lists of words, by the rules of the documentation, one character and one word at a time."""
    for article in text.split(RECORD):
        if segment == "article":
            parts = [article]
        elif layout == "lines":
            parts = article.split("\n")
        else:
            parts = [""]
            for line in article.split("\n"):
                if WORD.search(line):
                    parts[-1] += f"{line}\n"
                else:
                    # marks in a line without words still end the sentence before them
                    parts[-1] += f"{line}\n"
                    parts.append("")
        for part in parts:
            yield from sentences(part) if segment == "sentence" else [words_of(part)]


def sentences(part):
    found = list(WORD.finditer(part))
    held = []
    for at, match in enumerate(found):
        before = part[found[at - 1].end() if at else 0 : match.start()]
        last = found[at - 1].group() if at else ""
        ends = False
        for place, mark in enumerate(before):
            short = mark == "." and place == 0 and at and len(last) == 1
            title = mark == "." and last.lower() in TITLES
            space = any(char.isspace() for char in before[place + 1 : place + 4])
            if mark in MARKS and space and not short and not title and not match.group()[0].islower():
                ends = True
        if ends:
            yield held
            held = []
        held.append(words_of(match.group())[0])
    yield held


def oracle(names, text, segment, layout, window, stem):
    """Find all names in all windows of all segments."""
    wanted = []
    for name in names:
        words = [word.lower() for word in WORD.findall(name)]
        words = [word for word in words if word not in STOP] or words
        wanted.append({stem_word(word, stem) for word in words})
    total, pair_KK = 0, np.zeros((len(names), len(names)), np.int64)
    for words in segments(text, segment, layout):
        if not words:
            continue
        total += 1
        roots = [stem_word(word, stem) for word in words]
        hits = [any(words <= set(roots[at : at + window * len(words)]) for at in range(len(roots))) for words in wanted]
        pair_KK += np.outer(hits, hits)
    return total, pair_KK


@st.composite
def cases(draw):
    name = st.lists(st.sampled_from([*WORDS[:-1], "dr"]), min_size=1, max_size=3).map("_".join)
    names = draw(st.lists(name, min_size=1, max_size=5, unique_by=str.casefold))
    shards = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), max_size=25)
    text = "".join(word + gap for word, gap in draw(shards))
    return (
        tuple(names), text, draw(st.sampled_from(["sentence", "paragraph", "article"])),
        draw(st.sampled_from(["lines", "blank_lines"])), draw(st.integers(1, 4)),
        draw(st.sampled_from(["none", "plural", "verbs"])),
    )  # fmt: skip


@given(cases())
@example((("walk",), "", "paragraph", "lines", 1, "none"))
@example((("phone_Table", "the"), "Table x phone" + RECORD, "article", "lines", 1, "none"))
@QUICK
def test_counts_are_those_of_all_windows_of_all_names(case):
    names, text, segment, layout, window, stem = case
    counts = Scanner(names, segment, layout, window, stem).count(text)
    total, pair_KK = oracle(*case)
    assert counts.segments == total
    np.testing.assert_array_equal(counts.pair_KK, pair_KK)


@given(st.text("aeinglsdkt", min_size=1, max_size=9), st.text("aeinglsdkt", min_size=1, max_size=9))
@example("walk", "walking")
@example("running", "runs")
@settings(QUICK, max_examples=500)
def test_the_forms_of_a_stem_are_the_words_with_that_stem(one, two):
    for stem in ("none", "plural", "verbs"):
        assert one in forms(stem_word(one, stem), stem)
        assert (two in forms(stem_word(one, stem), stem)) == (stem_word(one, stem) == stem_word(two, stem))


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (("stair", "stairs"), "plural"), (("dish", "dishes"), "plural"), (("laundry", "laundries"), "plural"),
        (("walk", "walks", "walked", "walking"), "verbs"), (("cycle", "cycling", "cycles", "cycled"), "verbs"),
        (("run", "running", "runs"), "verbs"), (("dress", "dressing", "dresses"), "verbs"),
        (("sit", "sitting", "sits"), "verbs"),
    ],
)  # fmt: skip
def test_forms_that_are_one_word(words, same):
    assert len({stem_word(word, same) for word in words}) == 1
    assert len({stem_word(word, "none") for word in words}) == len(words)


def test_words_that_stay_themselves():
    for word in ("bus", "gas", "string", "class", "tennis", "king", "red"):
        assert stem_word(word, "verbs") == word


def test_a_window_does_not_reach_into_the_next_segment_and_order_does_not_matter():
    scanner = Scanner(("phone on table", "table"), window=2)  # L_w = 4
    text = "Phone a b TABLE\ntable a, (phone)\nphone a b c table\nphone\ntable\n\nnothing here"
    counts = scanner.count(text)
    assert counts.segments == 6
    assert counts.pair_KK.tolist() == [[2, 2], [2, 4]]


def test_the_plain_layout_and_sentences_by_hand():
    text = "He sat by Mr. Smith. J. Doe ate!\u201d Then\nhe slept... and woke.\n \n3.5 kg. end"
    assert Scanner(("x",), "sentence", "blank_lines").count(text).segments == 4
    assert Scanner(("x",), "paragraph", "blank_lines").count(text).segments == 2
    assert Scanner(("x",), "paragraph", "lines").count(text).segments == 3
    assert Scanner(("x",), "article").count(text + RECORD + "!" + RECORD + "more").segments == 2


def test_other_alphabets_and_signs():
    scanner = Scanner(("Спать", "naïve café", "睡觉"))
    counts = scanner.count("спать, café—NAÏVE\n睡觉 спать\ncaf\u00e9")
    assert counts.pair_KK.tolist() == [[2, 1, 1], [1, 1, 0], [1, 0, 1]]


def test_stop_words_count_only_where_a_name_has_no_others():
    assert name_words(["at home", "on", "IN_THE_CAR", "walk walks"], "plural") == [
        ("home",),
        ("on",),
        ("car",),
        ("walk",),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "__"), "class name '__' has no letter or digit; give a name that can occur in a text"),
        (("At home", "athome"), "class names 'At home' and 'athome' are the same but for case and spaces; rename one"),
    ],
)
def test_names_that_cannot_be_counted(names, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Scanner(names)
    with pytest.raises(ValueError, match="window = 0: give at least 1"):
        Scanner(("a",), window=0)


def test_counts_add_up_and_travel():
    scanner = Scanner(("walk", "eat"))
    lines = ["walk", "walk and eat", "eats", "none"]
    parts = [pickle.loads(pickle.dumps(scanner)).count(line) for line in lines]
    whole = scanner.count("\n".join(lines))
    total = sum(parts, PairCounts.none(2))
    assert (total.segments, total.pair_KK.tolist()) == (whole.segments, whole.pair_KK.tolist()) == (4, [[2, 1], [1, 2]])


def test_pmi_and_weights_by_hand():
    """8 segments; a in 4, b in 2, c in 1, d never; a and b meet twice, a and c once."""
    pair_KK = np.array([[4, 2, 1, 0], [2, 2, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    pmi_KK = PairCounts(8, pair_KK).pmi()
    assert pmi_KK[0, 1] == pytest.approx(np.log(2 / 8 / (4 / 8 * 2 / 8)))
    assert pmi_KK[0, 2] == pytest.approx(np.log(2))
    assert pmi_KK[1, 2] == -np.inf
    assert np.isnan(pmi_KK[3]).all()
    pair_KK[0, 1] = pair_KK[1, 0] = 1
    weight_KK = PairCounts(8, pair_KK).weights()  # PMI 0 and log 2, mean log(2) / 2
    assert weight_KK[0, 2] == weight_KK[2, 0] == pytest.approx(np.log(2) / 2)
    assert weight_KK[0, 1] == weight_KK[1, 2] == weight_KK[0, 0] == 0
    assert np.isnan(weight_KK[3]).all()
    assert np.isnan(weight_KK[:, 3]).all()
    alone = PairCounts(3, np.diag([1, 1])).weights()
    assert alone.tolist() == [[0, 0], [0, 0]]


@given(cases())
@QUICK
def test_weights_are_a_graph(case):
    names, text, segment, layout, window, stem = case
    counts = Scanner(names, segment, layout, window, stem).count(text)
    weight_KK = counts.weights()
    seen = counts.pair_KK.diagonal() > 0
    assert (np.isnan(weight_KK) == ~np.outer(seen, seen)).all()
    met = np.array([counts.pmi()[i, j] for i, j in combinations(range(len(names)), 2) if counts.pair_KK[i, j]])
    known_KK = np.nan_to_num(weight_KK)
    assert np.isfinite(known_KK).all()
    assert (known_KK >= 0).all()
    np.testing.assert_array_equal(known_KK, known_KK.T)
    if len(met) > 1 and np.ptp(met) > 1e-9:
        assert known_KK.max() == pytest.approx(met.max() - met.mean())
