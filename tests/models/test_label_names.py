"""Class-name vectors: training that repeats, and the cache."""

from __future__ import annotations

import os
import random  # noqa: TID251 - the global state is what is tested
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from anchorfl.models import label_names, name_cache
from anchorfl.models.errors import NamesError
from anchorfl.models.label_names import (
    NameGraph,
    SkipGramOptions,
    from_cooccurrence,
    random_vectors,
    read_table,
    skip_gram,
    walks,
)
from tests.tiny_bert import never, without_library

Graph = Callable[..., npt.NDArray[np.float64]]


ROOT = Path(__file__).resolve().parents[2]
SMALL = SkipGramOptions(walks_per_node=20, length=20)
R8 = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")


def cliques() -> NameGraph:
    """Make two cliques of four names with one thin edge between them, and two names without an edge."""
    weight_KK = np.zeros((10, 10))
    weight_KK[:4, :4] = weight_KK[4:8, 4:8] = 1.0
    weight_KK[3, 4] = weight_KK[4, 3] = 0.01
    np.fill_diagonal(weight_KK, 0.0)
    return NameGraph(("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "lone", "other"), weight_KK)


# --- training


def test_cliques_are_closer_inside_than_between() -> None:
    table = cliques()
    result = from_cooccurrence(
        table, table.names[:8], width=16, seed=3, cache=None, training=SkipGramOptions(walks_per_node=100, length=40)
    )
    unit_CD = torch.nn.functional.normalize(result.vectors_CD)
    cosine_CC = unit_CD @ unit_CD.T
    inside = torch.kron(torch.eye(2), torch.ones(4, 4)).bool()
    assert cosine_CC[inside].min() > cosine_CC[~inside].max()


def test_training_ignores_and_leaves_global_random_state() -> None:
    path_RL = walks(cliques().weight_KK, walks_per_node=5, length=10, rng=np.random.default_rng(0))
    results = []
    for state in (1, 2):
        np.random.seed(state)  # noqa: NPY002, TID251 - the global state is what is tested
        random.seed(state)
        torch_state = torch.get_rng_state()
        before = (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]  # noqa: NPY002
        results.append(skip_gram(path_RL, 10, width=8, seed=5))
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # type: ignore[index]  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].dtype == np.float32
    assert (results[0][8:] == 0).all()
    assert (np.linalg.norm(results[0][:8], axis=1) > 0).all()
    assert not np.array_equal(results[0], skip_gram(path_RL, 10, width=8, seed=6))


def test_result_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "import numpy as np; from anchorfl.models.label_names import *\n"
        "w = np.ones((6, 6)) - np.eye(6); w[5] = w[:, 5] = 0\n"
        "t = NameGraph(tuple('abcdef'), w); h = SkipGramOptions(walks_per_node=5, length=10)\n"
        "v = from_cooccurrence(t, t.names, width=4, seed=1, cache=None, training=h)\n"
        "said = f'{v.digest} {v.without_edge} {v.vectors_CD.numpy().tobytes().hex()}'"
    )
    here = {}
    exec(code, here)  # by the seed of this process
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    there = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(said)"], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": other},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert there.stdout.strip() == here["said"]


def test_a_vector_does_not_depend_on_the_order_or_choice_of_classes() -> None:
    table = cliques()
    every = from_cooccurrence(table, table.names, width=8, seed=1, cache=None, training=SMALL)
    some = ("b2", "other", "a0")
    few = from_cooccurrence(table, some, width=8, seed=1, cache=None, training=SMALL)
    assert torch.equal(few.vectors_CD, every.vectors_CD[[table.names.index(name) for name in some]])
    assert few.vectors_CD.dtype == torch.float32
    assert few.without_edge == ("other",)
    assert every.without_edge == ("lone", "other")
    assert few.digest == every.digest
    other = from_cooccurrence(table, some, width=8, seed=2, cache=None, training=SMALL)
    assert other.digest != few.digest
    assert (other.vectors_CD != few.vectors_CD).any(dim=1).all()


def test_class_of_nothing_but_nan_keeps_a_random_vector_of_the_same_scale(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("label,a,b,c\na,1,2,nan\nb,2,1,nan\nc,nan,nan,nan\n")
    result = from_cooccurrence(read_table(path), ("c", "a", "b"), width=8, seed=1, cache=None, training=SMALL)
    assert result.without_edge == ("c",)
    norm_C = result.vectors_CD.norm(dim=1)
    torch.testing.assert_close(norm_C[0], norm_C[1:].mean())
    direction = torch.nn.functional.normalize(random_vectors(("c",), 8, 1))
    torch.testing.assert_close(result.vectors_CD[:1] / norm_C[0], direction)


def test_table_without_any_edge_gives_random_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    result = from_cooccurrence(NameGraph(("a", "b"), np.zeros((2, 2))), ("b", "a"), width=8, seed=1, cache=None)
    assert result.without_edge == ("b", "a")
    assert torch.equal(result.vectors_CD, random_vectors(("b", "a"), 8, 1))


def test_random_vectors_are_standard_normal_and_keyed_by_name() -> None:
    names = [f"class {number}" for number in range(200)]
    vectors_CD = random_vectors(names, 50, 9)
    assert vectors_CD.shape == (200, 50)
    assert vectors_CD.dtype == torch.float32
    assert abs(float(vectors_CD.mean())) < 0.04
    assert abs(float(vectors_CD.std()) - 1) < 0.03
    assert torch.equal(random_vectors(names[::-1], 50, 9), vectors_CD.flip(0))
    assert (random_vectors(names, 50, 10) != vectors_CD).any(dim=1).all()
    assert random_vectors((), 50, 9).shape == (0, 50)
    assert random_vectors(("a",), 1, 9).shape == (1, 1)
    with pytest.raises(NamesError, match="'b' occurs twice"):
        random_vectors(("a", "b", "b"), 50, 9)


def test_bad_requests_are_named(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> None:
    table = NameGraph(("earn", "grain", "money-fx", "wheat"), graph((0, 1, 1.0), nodes=4))
    with pytest.raises(NamesError, match=r"class 'Grain' is not in the table \(nearest: 'grain', .*\); rename the"):
        from_cooccurrence(table, ("earn", "Grain"), width=4, seed=0, cache=None)
    with pytest.raises(NamesError, match=r"'earn' occurs twice; give every class one name of its own"):
        from_cooccurrence(table, ("earn", "earn"), width=4, seed=0, cache=None)
    with pytest.raises(NamesError, match=r"width 0; give at least 1"):
        from_cooccurrence(table, ("earn",), width=0, seed=0, cache=None)
    with pytest.raises(NamesError, match=r"length=0.*; give at least 1 for every value"):
        from_cooccurrence(table, ("earn",), width=4, seed=0, cache=None, training=SkipGramOptions(length=0))
    without_library(monkeypatch)
    with pytest.raises(NamesError, match=r"gensim is not installed; run pip install gensim"):
        from_cooccurrence(table, ("earn",), width=4, seed=0, cache=None)


# --- cache


def test_second_start_neither_imports_nor_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = cliques()
    heard: list[str] = []
    first = from_cooccurrence(table, ("a0", "lone"), width=4, seed=1, cache=tmp_path / "new", training=SMALL)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"names-{first.digest[:16]}.npz"]
    monkeypatch.setattr(label_names, "walks", never)
    monkeypatch.setattr(label_names, "skip_gram", never)
    monkeypatch.setitem(sys.modules, "gensim", None)
    again = from_cooccurrence(
        table, ("lone", "a0"), width=4, seed=1, cache=tmp_path / "new", training=SMALL, log=heard.append
    )
    assert torch.equal(again.vectors_CD, first.vectors_CD.flip(0))
    assert heard == []


def test_whatever_changes_the_vectors_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    table = cliques()
    renamed = NameGraph(("x", *table.names[1:]), table.weight_KK)
    heavier = NameGraph(table.names, table.weight_KK * 2)
    cases = [(t, 4, 1, SMALL) for t in (table, renamed, heavier)]
    cases += [(table, 5, 1, SMALL), (table, 4, 2, SMALL)]
    cases += [
        (table, 4, 1, SkipGramOptions(**{"walks_per_node": 20, "length": 20} | {key: 3})) for key in SMALL.__slots__
    ]
    digests = [label_names._digest(*case) for case in cases]
    monkeypatch.setattr(label_names, "FORMAT", 2)
    digests.append(label_names._digest(*cases[0]))
    monkeypatch.setattr(metadata, "version", lambda _: "0")
    digests.append(label_names._digest(*cases[0]))
    assert len(set(digests)) == len(digests) == 11


def test_damaged_cache_is_said_and_replaced(tmp_path: Path) -> None:
    """Every byte of the file in turn: either it does not matter, or the file is refused."""
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    heard: list[str] = []
    file = tmp_path / "names.npz"
    name_cache.save(file, "d" * 64, rows, heard.append)
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ (0xFF, 0x08)[at % 2]]) + good[at + 1 :])
        read = name_cache.load(file, "d" * 64, lambda _: None)
        assert read is None or np.array_equal(read, rows)
    assert heard == []
    for text in (b"", good[: len(good) // 2], b"\x80\x04N.", b"garbage"):
        file.write_bytes(text)
        assert name_cache.load(file, "d" * 64, heard.append) is None
    file.write_bytes(good)
    assert name_cache.load(file, "e" * 64, heard.append) is None
    assert len(heard) == 5
    assert "made for other input" in heard[-1]


def test_damaged_cache_is_trained_again(tmp_path: Path) -> None:
    table = cliques()
    heard: list[str] = []
    first = from_cooccurrence(table, ("a0",), width=4, seed=1, cache=tmp_path, training=SMALL)
    file = tmp_path / f"names-{first.digest[:16]}.npz"
    good = np.load(file)["vectors"]
    file.write_bytes(b"half")
    again = from_cooccurrence(table, ("a0",), width=4, seed=1, cache=tmp_path, training=SMALL, log=heard.append)
    assert torch.equal(again.vectors_CD, first.vectors_CD)
    assert len(heard) == 1
    assert heard[0].startswith(f"{file}: unusable cache of class-name vectors (")
    assert "training again and overwriting it" in heard[0]
    np.testing.assert_array_equal(np.load(file)["vectors"], good)
    assert list(tmp_path.iterdir()) == [file]


def test_cache_that_cannot_be_written_is_said_and_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    heard: list[str] = []
    result = from_cooccurrence(
        cliques(), ("a0",), width=4, seed=1, cache=tmp_path / "file", training=SMALL, log=heard.append
    )
    assert result.vectors_CD.shape == (1, 4)
    assert len(heard) == 1
    assert "cannot cache class-name vectors" in heard[0]


# --- the authors' table


@pytest.mark.data
def test_r8_names_are_found_in_the_table_of_the_authors() -> None:
    folder = Path(os.environ.get("ANCHORFL_DATA") or ROOT.parent / "shared" / "data")
    path = folder / "cooccurrence_fedalign" / "cooccurrence_reuters.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there; set ANCHORFL_DATA to the folder that holds cooccurrence_fedalign/")
    table = read_table(path)
    assert len(table.names) == 52
    result = from_cooccurrence(table, R8, width=16, seed=4321, cache=None, training=SMALL)
    assert result.without_edge == ()
    assert result.vectors_CD.shape == (8, 16)
    assert (result.vectors_CD.norm(dim=1) > 0).all()
