"""Class-name vectors: the table, the walks against an independent count, training that repeats, and the cache."""

from __future__ import annotations

import csv
import math
import os
import random  # noqa: TID251 - the global state is what is tested
import subprocess
import sys
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import label_names
from models.label_names import (
    Cooccurrence,
    NamesError,
    Training,
    from_cooccurrence,
    random_vectors,
    read_table,
    skip_gram,
    walks,
)

ROOT = Path(__file__).resolve().parents[2]
SMALL = Training(walks_per_node=20, length=20)
R8 = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")


def graph(*edges: tuple[int, int, float], nodes: int) -> npt.NDArray[np.float64]:
    """Symmetric weights [K, K]."""
    weight_KK = np.zeros((nodes, nodes))
    for i, j, weight in edges:
        weight_KK[i, j] = weight_KK[j, i] = weight
    return weight_KK


def cliques() -> Cooccurrence:
    """Two cliques of four names with one thin edge between them, and two names without an edge."""
    weight_KK = np.zeros((10, 10))
    weight_KK[:4, :4] = weight_KK[4:8, 4:8] = 1.0
    weight_KK[3, 4] = weight_KK[4, 3] = 0.01
    np.fill_diagonal(weight_KK, 0.0)
    return Cooccurrence(("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "lone", "other"), weight_KK)


def never(*_: object, **__: object) -> npt.NDArray[np.float32]:
    """Stand-in for what must not be called."""
    raise AssertionError("called")


def write(folder: Path, text: str) -> Path:
    """A table file."""
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


# --- read_table


def test_only_positive_values_off_the_diagonal_are_edges(tmp_path: Path) -> None:
    path = write(tmp_path, "label,a,b,c\na,9,0.5,nan\nb,0.5,9,-2\n\nc,, -2 ,NaN\n")
    table = read_table(path)
    assert table.names == ("a", "b", "c")
    assert table.weight_KK.dtype == np.float64
    np.testing.assert_array_equal(table.weight_KK, graph((0, 1, 0.5), nodes=3))


def test_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbflabel,a,b\r\na,0,1\r\nb,1,0\r\n")
    assert read_table(path).names == ("a", "b")


def test_asymmetry_below_the_limit_is_accepted(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "label,a,b\na,0,1\nb,1.0000009,0\n"))
    assert table.weight_KK[0, 1] == 1.0
    with pytest.raises(NamesError, match=r"table\.csv:2: 'a', 'b' is 1 here but 1\.0000011 in row 3; make"):
        read_table(write(tmp_path, "label,a,b\na,0,1\nb,1.0000011,0\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "table.csv:1: bad or no header; write label,<name>,"),
        ("label\n", "table.csv:1: bad or no header; write label,<name>,"),
        ("label;a;b\na;0;1\nb;1;0\n", "table.csv:1: bad or no header; write label,<name>,<name>,... separated"),
        ("name,a\na,0\n", "table.csv:1: bad or no header"),
        ("label,a,b\nb,0,1\na,1,0\n", "table.csv:2: row 'b', the header has 'a'; give both the same order"),
        ("label,a,b\na,0,1\nb,1\n", "table.csv:3: 2 fields, the header has 3; write nan for no edge"),
        ("label,a,b\na,0,1,2\nb,1,0\n", "table.csv:2: 4 fields, the header has 3"),
        ("label,a,b\na,0,1\n", "table.csv:2: 1 rows, 2 columns; give one row and one column per name"),
        ("label,a,b\n", "table.csv:1: 0 rows, 2 columns"),
        ("label,a\na,0\nb,1\n", "table.csv:2: 2 rows, 1 columns"),
        ("label,a,b\na,0,x1\nb,1,0\n", "table.csv:2: 'x1' in column 'b' is not a number; write a number, nan"),
        ("label,a,b\na,0,1\nb,1_0,0\n", "table.csv:3: '1_0' in column 'a' is not a number"),
        ("label,a,b\na,0,inf\nb,inf,0\n", "table.csv:2: 'inf' in column 'b' is infinite; write a finite number"),
        ("label,a,b\na,0,1e999\nb,1,0\n", "table.csv:2: '1e999' in column 'b' is infinite"),
        ("label,a,a\na,0,1\na,1,0\n", "table.csv:1: names 'a' and 'a' are the same; keep one of them"),
        ("label,Ab c,aB C\n", "table.csv:1: names 'Ab c' and 'aB C' differ only by case or spaces"),
        ("label,a b,ab\n", "table.csv:1: names 'a b' and 'ab' differ only by case or spaces; keep one"),
        ("label,a, \n", "table.csv:1: an empty name in the header; name every column"),
        ("label,a,b\na,0,1\nb,2,0\n", "table.csv:2: 'a', 'b' is 1 here but 2 in row 3; make the table symmetric"),
        ("label,a,b\na,0,1\nb,nan,0\n", "table.csv:2: 'a', 'b' is 1 here but nan in row 3"),
        ("label,a,b\na,0,1e308\nb,-1e308,0\n", "table.csv:2: 'a', 'b' is 1e+308 here but -1e+308 in row 3"),
        ('label,"a,b\na,0,1\n', "table.csv: not CSV in UTF-8 after line"),
    ],
)
def test_bad_table_is_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NamesError) as caught:
        read_table(write(tmp_path, text))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)  # what to do about it


def test_missing_unreadable_and_binary_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(NamesError, match=r"none\.csv: No such file or directory; give the path of a CSV table"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(NamesError, match=r"Is a directory; give the path"):
        read_table(tmp_path)
    path = tmp_path / "table.csv"
    path.write_bytes(b"label,\xe9\n")
    with pytest.raises(NamesError, match=r"table\.csv: not CSV in UTF-8 after line 0 .*; save it as UTF-8"):
        read_table(path)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Names that a table may hold (commas, quotes, line breaks, ...) and symmetric values, nan among them."""
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
    names = draw(
        st.lists(text, min_size=1, max_size=5, unique_by=lambda n: "".join(n.split()).casefold()).filter(
            lambda some: all(name.split() for name in some)
        )
    )
    value_KK = np.zeros((len(names), len(names)))
    for i, j in zip(*np.triu_indices(len(names)), strict=True):
        value_KK[i, j] = value_KK[j, i] = draw(st.just(math.nan) | st.floats(allow_nan=False, allow_infinity=False))
    return names, value_KK


@given(tables())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, case: tuple[list[str], np.ndarray]) -> None:
    names, value_KK = case
    path = tmp_path_factory.mktemp("round") / "table.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *names])
        writer.writerows([name, *map(repr, row)] for name, row in zip(names, value_KK.tolist(), strict=True))
    table = read_table(path)
    expected = np.where(np.nan_to_num(value_KK, nan=0.0) > 0, value_KK, 0.0) * (1 - np.eye(len(names)))
    assert table.names == tuple(names)
    np.testing.assert_array_equal(table.weight_KK, expected)


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [
        (("a", "a"), np.zeros((2, 2)), "2 names, weights (2, 2); give distinct names"),
        (("a", "b"), np.zeros((2, 3)), "2 names, weights (2, 3)"),
        (("a", "b"), np.array([[0, 1], [0, 0.0]]), "bad weights; give finite, symmetric values >= 0"),
        (("a", "b"), np.array([[0, -1], [-1, 0.0]]), "bad weights"),
        (("a", "b"), np.array([[1, 1], [1, 0.0]]), "zero diagonal"),
        (("a", "b"), np.array([[0, np.nan], [np.nan, 0]]), "finite"),
    ],
)
def test_a_table_made_in_memory_is_checked(names: tuple[str, ...], weights: np.ndarray, message: str) -> None:
    with pytest.raises(NamesError) as caught:
        Cooccurrence(names, weights)
    assert message in str(caught.value)


# --- walks


def test_transitions_follow_the_edge_weights() -> None:
    """Oracle: count(i -> j) / count(i) ~ weight_ij / sum_j weight_ij, standard error sqrt(p (1 - p) / count(i))."""
    rng = np.random.default_rng(7)
    weight_KK = np.triu(rng.exponential(size=(7, 7)) * (rng.random((7, 7)) < 0.6), 1)
    weight_KK += weight_KK.T
    weight_KK[2, :] = weight_KK[:, 2] = 0.0
    path_RL = walks(weight_KK, walks_per_node=1000, length=40, rng=np.random.default_rng(1))
    count_KK = np.zeros((7, 7))
    for walk in path_RL.tolist():
        for here, there in pairwise(walk):
            count_KK[here][there] += 1
    for node in set(range(7)) - {2}:
        p_K = weight_KK[node] / weight_KK[node].sum()
        seen = count_KK[node].sum()
        assert seen > 4000
        error_K = np.abs(count_KK[node] / seen - p_K)
        assert (error_K <= 4 * np.sqrt(p_K * (1 - p_K) / seen) + 1e-12).all()  # no edge: never walked
    assert (path_RL != 2).all()


def test_every_connected_node_starts_its_share_of_walks() -> None:
    path_RL = walks(graph((0, 1, 1.0), (1, 3, 2.0), nodes=4), walks_per_node=5, length=3, rng=np.random.default_rng(0))
    assert path_RL.shape == (15, 3)
    assert path_RL.dtype == np.int32
    passes = path_RL[:, 0].reshape(5, 3).tolist()
    assert [sorted(one_pass) for one_pass in passes] == [[0, 1, 3]] * 5
    assert passes != [passes[0]] * 5  # shuffled


def test_extreme_weights_stay_on_edges() -> None:
    weight_KK = graph((0, 1, 1e308), (0, 2, 1e308), (1, 2, 5e-324), (3, 4, 5e-324), nodes=6)
    path_RL = walks(weight_KK, walks_per_node=50, length=50, rng=np.random.default_rng(0))
    assert (weight_KK[path_RL[:, :-1], path_RL[:, 1:]] > 0).all()
    assert set(path_RL[:, 1][path_RL[:, 0] == 0].tolist()) == {1, 2}


class Topmost(np.random.Generator):
    """Draws nothing but the largest number below 1."""

    def random(self, size: int) -> npt.NDArray[np.float64]:  # type: ignore[override]  # walks needs this form only
        """Return ``size`` times the largest double below 1."""
        return np.full(size, np.nextafter(1.0, 0.0))


def test_a_draw_that_rounds_up_stays_in_its_row() -> None:
    weight_KK = graph((0, 9, 1.0), (8, 9, 1.0), (1, 2, 1.0), nodes=10)
    path_RL = walks(weight_KK, walks_per_node=1, length=10, rng=Topmost(np.random.PCG64(0)))
    assert (weight_KK[path_RL[:, :-1], path_RL[:, 1:]] > 0).all()


@pytest.mark.parametrize("nodes", [1, 3])
def test_no_edge_no_walk(nodes: int) -> None:
    path_RL = walks(np.zeros((nodes, nodes)), length=4, rng=np.random.default_rng(0))
    assert path_RL.shape == (0, 4)
    np.testing.assert_array_equal(skip_gram(path_RL, nodes, width=2, seed=0), np.zeros((nodes, 2), np.float32))


# --- training


def test_cliques_are_closer_inside_than_between() -> None:
    table = cliques()
    result = from_cooccurrence(
        table, table.names[:8], width=16, seed=3, cache=None, training=Training(walks_per_node=100, length=40)
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
        "import numpy as np; from models.label_names import *; w = np.ones((6, 6)) - np.eye(6); w[5] = w[:, 5] = 0\n"
        "t = Cooccurrence(tuple('abcdef'), w); h = Training(walks_per_node=5, length=10)\n"
        "v = from_cooccurrence(t, t.names, width=4, seed=1, cache=None, training=h)\n"
        "print(v.digest, v.without_edge, v.vectors_CD.numpy().tobytes().hex())"
    )
    runs = [
        subprocess.Popen(  # both at once: the import of torch and gensim is most of the time
            [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate(timeout=60)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert first == second != b""


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
    path = write(tmp_path, "label,a,b,c\na,1,2,nan\nb,2,1,nan\nc,nan,nan,nan\n")
    result = from_cooccurrence(read_table(path), ("c", "a", "b"), width=8, seed=1, cache=None, training=SMALL)
    assert result.without_edge == ("c",)
    norm_C = result.vectors_CD.norm(dim=1)
    torch.testing.assert_close(norm_C[0], norm_C[1:].mean())
    direction = torch.nn.functional.normalize(random_vectors(("c",), 8, 1))
    torch.testing.assert_close(result.vectors_CD[:1] / norm_C[0], direction)


def test_table_without_any_edge_gives_random_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    result = from_cooccurrence(Cooccurrence(("a", "b"), np.zeros((2, 2))), ("b", "a"), width=8, seed=1, cache=None)
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


def test_bad_requests_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Cooccurrence(("earn", "grain", "money-fx", "wheat"), graph((0, 1, 1.0), nodes=4))
    with pytest.raises(NamesError, match=r"class 'Grain' is not in the table \(nearest: 'grain', .*\); rename the"):
        from_cooccurrence(table, ("earn", "Grain"), width=4, seed=0, cache=None)
    with pytest.raises(NamesError, match=r"'earn' occurs twice; give every class one name of its own"):
        from_cooccurrence(table, ("earn", "earn"), width=4, seed=0, cache=None)
    with pytest.raises(NamesError, match=r"width 0; give at least 1"):
        from_cooccurrence(table, ("earn",), width=0, seed=0, cache=None)
    with pytest.raises(NamesError, match=r"length=0.*; give at least 1 for every value"):
        from_cooccurrence(table, ("earn",), width=4, seed=0, cache=None, training=Training(length=0))

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
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
    renamed = Cooccurrence(("x", *table.names[1:]), table.weight_KK)
    heavier = Cooccurrence(table.names, table.weight_KK * 2)
    cases = [(t, 4, 1, SMALL) for t in (table, renamed, heavier)]
    cases += [(table, 5, 1, SMALL), (table, 4, 2, SMALL)]
    cases += [(table, 4, 1, Training(**{"walks_per_node": 20, "length": 20} | {key: 3})) for key in SMALL.__slots__]
    digests = [label_names._digest(*case) for case in cases]
    monkeypatch.setattr(label_names, "FORMAT", 2)
    digests.append(label_names._digest(*cases[0]))
    monkeypatch.setattr(metadata, "version", lambda _: "0")
    digests.append(label_names._digest(*cases[0]))
    assert len(set(digests)) == len(digests) == 11


def test_damaged_cache_is_said_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of the file in turn: either it does not matter, or the file is refused."""
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    heard: list[str] = []
    file = tmp_path / "names.npz"
    label_names._save(file, "d" * 64, rows, heard.append)
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ (0xFF, 0x08)[at % 2]]) + good[at + 1 :])
        read = label_names._load(file, "d" * 64, lambda _: None)
        assert read is None or np.array_equal(read, rows)
    assert heard == []
    for text in (b"", good[: len(good) // 2], b"\x80\x04N.", b"garbage"):
        file.write_bytes(text)
        assert label_names._load(file, "d" * 64, heard.append) is None
    file.write_bytes(good)
    assert label_names._load(file, "e" * 64, heard.append) is None
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
