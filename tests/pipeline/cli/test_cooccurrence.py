"""``anchorfl cooccurrence``: from a corpus to class embeddings; bad arguments are one line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from anchorfl.models.label_names import SkipGramOptions, from_cooccurrence, read_table
from anchorfl.pipeline.cli.main import main
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.synthetic import SYNTHETIC

CLASSES = find_task("toy-single").class_names


@pytest.fixture
def corpus(tmp_path):
    """Write texts in which two classes of the toy task go together, a third goes with none, others never occur."""
    one, two, three = CLASSES[:3]
    lines = (
        [f"{one} and {two}s."] * 30 + [f"only {three} here"] * 20 + [f"{one} alone", f"{one} with {three}", "no"] * 5
    )
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines))
    return path


def test_a_corpus_becomes_a_table_that_becomes_vectors(corpus, tmp_path, capsys):
    out = tmp_path / "table.csv"
    assert main(["cooccurrence", str(corpus), "--task", "toy-single", "--out", str(out), "--serial"]) == 0
    said = capsys.readouterr().out
    assert f"3 of {len(CLASSES)} names occur; 1 edges" in said
    assert f"never occur, and will keep a random vector: {', '.join(CLASSES[3:])}" in said
    assert f"occur but have no edge, and will keep a random vector: {CLASSES[2]}" in said
    table = read_table(out)
    assert table.names == CLASSES
    assert np.argwhere(table.weight_KK).tolist() == [[0, 1], [1, 0]]
    counts = json.loads(out.with_suffix(".json").read_text())
    assert counts["segments"] == 65
    assert counts["with_name"][CLASSES[0]] == 40
    assert counts["with_pair"] == {CLASSES[0]: {CLASSES[1]: 30, CLASSES[2]: 5}}
    pmi = np.log(30 * 65 / (40 * 30)), np.log(5 * 65 / (40 * 25))
    assert table.weight_KK[0, 1] == pytest.approx(pmi[0] - np.mean(pmi))
    small = SkipGramOptions(walks_per_node=5, length=5)
    got = from_cooccurrence(table, CLASSES, width=8, seed=1, cache=None, training=small)
    assert got.without_edge == CLASSES[2:]


def test_class_names_that_stand_in_the_files_only(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "data" / "bibtex"
    folder.mkdir(parents=True)
    SYNTHETIC["bibtex"](folder, 60, 1)
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path / "data"))
    (tmp_path / "c.txt").write_text("nothing of the sort\n")
    words = ["cooccurrence", str(tmp_path / "c.txt"), "--task", "bibtex", "--out", str(tmp_path / "t.csv"), "--serial"]
    assert main(words) == 0
    assert read_table(tmp_path / "t.csv").names == tuple((folder / "label_names.txt").read_text().split())
    shutil.rmtree(folder)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "bibtex" in error


def test_window_stem_and_segment_matter(tmp_path):
    (tmp_path / "names").write_text("phone on table\nwalk\n")
    (tmp_path / "c.txt").write_text("Phone a b c d table. He walked.\nPhone table. walk\nphone table\n")
    base = ["cooccurrence", str(tmp_path / "c.txt"), "--names", str(tmp_path / "names"), "--serial", "--out"]
    found = []
    for more in ([], ["--window", "2"], ["--stem", "verbs"], ["--segment", "sentence"], ["--segment", "article"]):
        assert main([*base, str(tmp_path / "t.csv"), *more]) == 0
        counts = json.loads((tmp_path / "t.json").read_text())
        found.append((counts["segments"], *counts["with_name"].values()))
    assert found == [(3, 3, 1), (3, 2, 1), (3, 3, 2), (4, 3, 1), (1, 1, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["corpus.txt", "--task", "toy-singel", "--out", "t.csv"],
            "no task 'toy-singel' in [task] name (did you mean 'toy-single'?)",
        ),
        (["none.txt", "--task", "toy-single", "--out", "t.csv"], "none.txt: no file there; give a file, a folder"),
        (["corpus.txt", "--task", "toy-single", "--out", "no/t.csv"], "--out no/t.csv: no folder no; make it first"),
        (
            ["corpus.txt", "--task", "toy-single", "--out", "t.json"],
            "--out t.json: give the name of a file, for example",
        ),
        (["corpus.txt", "--task", "toy-single", "--out", "t.csv", "--window", "0"], "--window 0: give at least 1 word"),
        (["corpus.txt", "--names", "none", "--out", "t.csv"], "--names none: no such file; give a text file with one"),
        (["empty.txt", "--task", "toy-single", "--out", "t.csv"], "empty.txt: no word in it; give a corpus with text"),
    ],
)
def test_bad_arguments_are_one_line(corpus, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    assert main(["cooccurrence", *arguments, "--serial"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "t.csv").exists()
