"""R8: its reader and its errors on made-up files, its numbers on the real ones."""

from __future__ import annotations

import gzip
import json
import random  # noqa: TID251 - the generator of the authors' code
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.contract import InputSpec, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.text import r8 as module
from anchorfl.tasks.text.r8 import CLASSES
from anchorfl.tasks.text.words import encode_text, tokenize, vocabulary

GOOD = "".join(f"{name}\tsome words about {name} number {n}\n" for n in range(6) for name in CLASSES)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "r8-train-stemmed.txt").write_text(GOOD)
    (tmp_path / "r8-test-stemmed.txt").write_text(GOOD)
    return tmp_path


def run(folder, tmp_path, **options):
    options = TaskOptions(name="r8", root=str(folder), cache=str(tmp_path / "cache"), **{"min_count": 2, **options})
    return prepare(find_task("r8"), options, 0, engine="local")


def test_made_up_files_are_prepared(folder, tmp_path):
    prepared = run(folder, tmp_path, clients=2, classes_per_client=4)
    assert prepared.manifest.test == 48
    assert prepared.manifest.spec.vocabulary[:5] == ("<pad>", "<unk>", "about", "number", "some")
    assert prepared.split("test", Objective("single")).x.shape == (48, 6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("earn without a tab", "49: no tab between class and text; every line must be 'class<TAB>text'"),
        ("ern\tsome words", "49: unknown class 'ern' (did you mean 'earn'?); the classes are acq, crude"),
        ("earn\t  ", "49: the text is empty; remove the line or fill it in"),
    ],
)
def test_a_bad_line_is_named(folder, tmp_path, line, message):
    path = folder / "r8-train-stemmed.txt"
    path.write_text(GOOD + line + "\n")
    with pytest.raises(InputError, match=re.escape(f"{path}:{message}")):
        run(folder, tmp_path, clients=2, classes_per_client=4)
    without = run(folder, tmp_path, clients=2, classes_per_client=4, on_bad_row="skip")
    path.write_text(GOOD)
    assert without.manifest.examples == run(folder, tmp_path, clients=2, classes_per_client=4).manifest.examples


def test_missing_empty_and_truncated_files_are_named(folder, tmp_path):
    test = folder / "r8-test-stemmed.txt"
    test.write_text("")
    with pytest.raises(InputError, match=r"r8-test-stemmed\.txt: the file is empty; get it again"):
        run(folder, tmp_path)
    test.unlink()
    with pytest.raises(InputError, match=r"r8: no r8-test-stemmed\.txt \(plain or \.gz\); looked in"):
        run(folder, tmp_path)
    (folder / "r8-test-stemmed.txt.gz").write_bytes(gzip.compress(GOOD.encode())[:-20])
    with pytest.raises(InputError, match=r"r8-test-stemmed\.txt\.gz:\d+: the gzip file is damaged or cut short"):
        run(folder, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 2, "classes_per_client": 9}, r"classes_per_client = 9, but client 0 has rows of only \d classes"),
        ({"clients": 2, "classes_per_client": 3}, "2 clients with 3 classes each cannot identify all 8 classes"),
        ({"clients": 1, "classes_per_client": 7, "cover": "error"}, "is identified by no client: set"),
        ({"clients": 2, "classes_per_client": 4, "min_count": 999}, "no word occurs 999 times"),
        ({"clients": 2, "classes_per_client": 4, "max_tokens": 0}, "max_tokens = 0 must be at least 1"),
        ({"variant": "raw"}, "'raw' is no variant of r8: it has stemmed, textgcn"),
    ],
)
def test_bad_options_are_refused(folder, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        run(folder, tmp_path, **options)


def test_vocabulary_is_ordered_by_count_then_word():
    texts = pa.array(["b a  b", "A c", " c d "])
    assert vocabulary(texts, 2) == ("<pad>", "<unk>", "a", "b", "c")
    assert vocabulary(pa.chunked_array([texts[:1], texts[1:]]), 2) == vocabulary(texts, 2)
    assert tokenize(texts).to_pylist() == [["b", "a", "b"], ["a", "c"], ["c", "d"]]


def test_encoding_cuts_and_marks_unknown_words():
    table = pa.table({"row": [0, 1, 2], "text": ["a x b a", "b", "y"]})
    spec = InputSpec("tokens", (3,), ("<pad>", "<unk>", "a", "b"))
    for part in (table, table.slice(1), pa.concat_tables([table.slice(0, 1), table.slice(1)])):
        expected = [[2, 1, 3], [3], [1]][3 - part.num_rows :]
        assert encode_text(part, spec)["x"].to_pylist() == expected
    assert encode_text(table.slice(0, 0), spec).num_rows == 0


@pytest.mark.data
@pytest.mark.parametrize("variant", ["stemmed", "textgcn"])
def test_the_real_data_have_the_counts_of_the_docstring(data_folder, variant):
    folder = data_folder / "reuters21578_r8"
    table = module.read(folder, TaskOptions(name="r8", variant=variant))
    text = " ".join(str(module.__doc__).split())
    for split, count, total in (("train", 5485, "5485 training"), ("test", 2189, "2189 test")):
        assert table.filter(pa.compute.equal(table["split"], split)).num_rows == count
        assert re.search(rf"(?<!\d){total}\b", text)
    label_N = table["labels"].combine_chunks().flatten().to_numpy()
    train_N = np.array(table["split"]) == "train"
    assert len(CLASSES) == 8
    for c, name in enumerate(CLASSES):
        counts = f"{(label_N[train_N] == c).sum()}/{(label_N[~train_N] == c).sum()}"
        assert re.search(rf"\b{name} {counts}(?!\d)", text), (name, counts)


@pytest.mark.data
def test_the_real_federation_looks_like_the_papers(data_folder, tmp_path):
    """R8-8: 8 clients of 617 rows with 3 classes each, vocabulary 534, mean 66 words."""
    options = TaskOptions(name="r8", clients=8, cache=str(tmp_path))
    prepared = prepare(find_task("r8"), options, 0, engine="local")
    assert np.mean(prepared.manifest.examples) == pytest.approx(617, abs=1)
    assert {len(classes) for classes in prepared.manifest.classes} == {3}
    assert len(prepared.manifest.spec.vocabulary) == pytest.approx(534, abs=15)
    length_N = prepared.client(0, Objective("single")).length_N
    assert length_N is not None
    assert length_N.double().mean() == pytest.approx(66, abs=5)


ORDER = ("trade", "grain", "ship", "acq", "earn", "money-fx", "interest", "crude")
"""R8's classes as the authors' code has them."""


def test_the_presets_have_the_class_sets_of_the_authors_code():
    """Three classes for one client after the other, from Python's own generator with the run's seed."""
    sets = json.loads(read_preset("r8-8/fedalign").task.client_classes)
    assert list(sets) == ["4321", "4322", "4323", "4324", "4325"]
    for seed, of_clients in sets.items():
        drawn = random.Random(int(seed))
        assert of_clients == [drawn.sample(ORDER, 3) for _ in range(8)]


@pytest.mark.data
def test_the_presets_give_each_class_to_as_many_clients_as_the_authors_code(data_folder, tmp_path):
    """By seed, in the order of ``ORDER``; the classes of other seeds are drawn."""
    counts = {
        4321: [4, 4, 1, 4, 2, 3, 3, 3],
        4322: [4, 6, 3, 4, 2, 3, 0, 2],
        4323: [6, 2, 1, 4, 3, 4, 3, 1],
        4324: [2, 4, 5, 4, 3, 1, 3, 2],
        4325: [3, 5, 5, 4, 1, 4, 1, 1],
    }
    for seed, count in counts.items():
        lines = []
        options = replace(read_preset("r8-8/fedalign").task, cache=str(tmp_path))
        manifest = prepare(find_task("r8"), options, seed, engine="local", log=lines.append).manifest
        identified = [CLASSES[c] for classes in manifest.classes for c in classes]
        assert [identified.count(name) for name in ORDER] == count
        assert [CLASSES[c] for c in np.flatnonzero(manifest.uncovered_C())] == ["interest"] * (seed == 4322)
        assert ("class 'interest'" in lines[-1]) == (seed == 4322)
        redrawn = replace(read_preset("r8-8-redrawn/fedalign").task, cache=str(tmp_path))
        again = prepare(find_task("r8"), redrawn, seed, engine="local").manifest
        assert again.examples == manifest.examples
        assert not again.uncovered_C().any()


def test_a_vocabulary_is_counted_chunk_by_chunk():
    """Arrow joins no more than 2 GiB of text."""
    chunks = [["b a", "a  C"], [], ["c c b", None]]
    parts = pa.chunked_array(chunks, pa.string())
    assert vocabulary(parts, 2) == vocabulary(parts.combine_chunks(), 2) == ("<pad>", "<unk>", "c", "a", "b")
