"""The files of a corpus: every format gives the same counts however it is cut; what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfl.tasks.corpus import corpus_files
from anchorfl.tasks.corpus.cooccurrence import count_names
from anchorfl.tasks.corpus.corpus_files import Reading, files, shards_of
from anchorfl.tasks.corpus.counting import PairCounts, Scanner
from anchorfl.tasks.errors import InputError

NAMES = ("walking", "eat meal", "phone on table", "never")


def articles(number=60, seed=0):
    """Made-up articles of a few lines and hard-wrapped paragraphs."""
    rng = np.random.default_rng(seed)
    words = ["walking", "eats", "a", "meal", "Phone", "table", "é", "so.", "Then"]
    line = lambda: " ".join(rng.choice(words, rng.integers(1, 9)))  # noqa: E731 - short
    return ["\n".join(line() if rng.random() < 0.8 else "" for _ in range(rng.integers(1, 7))) for _ in range(number)]


def whole(texts, scanner):
    """Counts of one article after the other."""
    return sum((scanner.count(text) for text in texts), PairCounts.none(len(scanner.names)))


def equal(found, counts):
    assert found.counts.segments == counts.segments > 0
    np.testing.assert_array_equal(found.counts.pair_KK, counts.pair_KK)
    assert counts.pair_KK.diagonal()[:3].all()


def write(folder, texts):
    """Write the same articles as JSON lines, Parquet and text."""
    rows = [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("\ufeff" + "\n\n".join(rows) + '\n{"text": null}')
    (folder / "a.ndjson.gz").write_bytes(gzip.compress("\r\n".join(rows).encode()))
    table = pa.table({"id": range(len(texts) + 1), "text": [*texts, None]})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    text = "\n\n".join(texts)  # the end of an article is a blank line
    (folder / "a.txt").write_text(text)
    (folder / "a.txt.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize(
    ("segment", "layout"),
    [("paragraph", "lines"), ("paragraph", "blank_lines"), ("sentence", "blank_lines"), ("article", "lines")],
)
def test_formats_and_cuts_do_not_change_the_counts(tmp_path, monkeypatch, block, segment, layout):
    monkeypatch.setattr(corpus_files, "BLOCK", block)
    texts = articles()
    write(tmp_path, texts)
    scanner = Scanner(NAMES, segment, layout)
    expected = whole(texts, scanner)
    for name in ("a.jsonl", "a.ndjson.gz", "a.parquet"):
        equal(count_names([str(tmp_path / name)], scanner), expected)
    if segment == "article":
        expected = scanner.count("\n\n".join(texts))
    for name in ("a.txt", "a.txt.gz"):
        equal(count_names([str(tmp_path / name)], scanner), expected)
    cut = len(shards_of(tmp_path / "a.txt", Reading(segment, layout)))
    assert (cut > 1) == (block < 1 << 20 and segment != "article")


def test_folders_patterns_and_files_are_found_once(tmp_path):
    for name in ("b.txt", "a.parquet", "in/c.jsonl", "in/d.txt.gz", "in/picture.png", "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = lambda *corpus: [str(f.relative_to(tmp_path)) for f in files([str(tmp_path / c) for c in corpus])]  # noqa: E731
    assert names("") == ["a.parquet", "b.txt", "in/c.jsonl", "in/d.txt.gz"]
    assert names("b.txt", "*.txt", "notes", "**/*.gz") == ["b.txt", "notes", "in/d.txt.gz"]
    for nothing in ("none.txt", "*.csv", "in/e*"):
        with pytest.raises(InputError, match=r"no file there; give a file, a folder with \.txt"):
            names(nothing)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n\n{"txt": "b"}\n', ":3: no field 'text' (did you mean 'txt'?); name the field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', ":2: field 'text' is no text; name another with --field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', ":2: not a JSON object ("),
        ("a.json", b'[\n{"text": "a"}\n]\n', ":1: not a JSON object ("),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n[3]\n', mtime=0), ":2: not a JSON object ("),
        ("a.txt", b"one\ntwo\nthr\xe9e\n", ":3: byte 0xe9 is no UTF-8; convert the file to UTF-8"),
        ("a.txt.gz", gzip.compress(b"one\ntwo\nthr\xe9e\n", mtime=0), ":3: byte 0xe9 is no UTF-8"),
        ("a.txt.gz", gzip.compress(b"one two " * 99, mtime=0)[:-9], ": the gzip file is damaged or cut short ("),
        ("a.txt.gz", b"plain", ": the gzip file is damaged or cut short ("),
        ("a.parquet", b"plain", ": not a Parquet file ("),
    ],
)
@pytest.mark.parametrize("block", [2, 1 << 20])
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, block, name, content, message):
    monkeypatch.setattr(corpus_files, "BLOCK", block)
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(f"{path}{message}")):
        count_names([str(path)], Scanner(NAMES))


def test_parquet_without_a_column_of_text(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"texts": ["a"], "n": [1]}), path)
    with pytest.raises(InputError, match=r"no column 'text' \(did you mean 'texts'\?\); it has texts, n; name the col"):
        count_names([str(path)], Scanner(NAMES))
    with pytest.raises(InputError, match="column 'n' holds int64, no text; name another with --field"):
        count_names([str(path)], Scanner(NAMES), "n")


def test_parquet_articles_have_an_end_and_unpack_to_no_more_than_texts_do(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["walking and standing"] * 1000 + [None, "standing"]}), path)
    found = count_names([str(path)], Scanner(("walking", "standing"), "article")).counts
    assert (found.segments, found.pair_KK.tolist()) == (1001, [[1000, 1000], [1000, 1001]])
    monkeypatch.setattr(corpus_files, "MAX_SEGMENT_BYTES", 19)
    with pytest.raises(InputError, match="an article has 20 bytes, more than 19; cut it into several"):
        count_names([str(path)], Scanner(NAMES))


def test_segments_beyond_the_limit_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "BLOCK", 4)
    monkeypatch.setattr(corpus_files, "MAX_SEGMENT_BYTES", 20_000)
    text = b"word " * 10_000
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text, mtime=0))
    for name in ("a.txt", "a.txt.gz"):
        for layout, what in (("lines", "line end"), ("blank_lines", "blank line")):
            with pytest.raises(InputError, match=rf"{name}: no {what} within 20000 bytes; cut the text"):
                count_names([str(tmp_path / name)], Scanner(NAMES, layout=layout))
    with pytest.raises(
        InputError, match=r"a text file is one article, and this has 50000 bytes, more than 20000; give"
    ):
        count_names([str(tmp_path / "a.txt")], Scanner(NAMES, "article"))


def test_memory_stays_bounded(tmp_path):
    """64 MB of text in a process that may grow by less."""
    import subprocess
    import sys

    with open(tmp_path / "big.txt", "w") as file:
        for _ in range(64):
            file.write("somebody was walking and had the phone on the table\n" * 20_000)
    code = (
        "import resource, sys\n"
        "from anchorfl.tasks.corpus.cooccurrence import count_names\n"
        "from anchorfl.tasks.corpus.counting import Scanner\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before = peak()\n"
        "found = count_names([sys.argv[1]], Scanner(('walking', 'phone on table')))\n"
        "print(found.counts.segments, found.counts.pair_KK[0, 1], peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "big.txt")], capture_output=True, text=True, check=True
    )
    segments, pairs, grown = done.stdout.split()
    assert int(segments) == int(pairs) == 64 * 20_000
    assert float(grown) < 60
