"""Class names to vectors: a co-occurrence table is a graph, walked at random; skip-gram turns the walks into vectors.

Source: FedAlign (KDD 2023) and the authors' ``train_cooccurrence`` (dataset/utils.py), which calls node2vec, p = q = 1.
Shape suffixes: K names of the table, C classes, D width of a vector, R walks of L nodes, E directed edges.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anchorfl.models import name_cache
from anchorfl.models.errors import NamesError

FORMAT = 1  # part of every digest: raise it when the same table and seed would give other vectors
SYMMETRY = 1e-6  # largest accepted difference between a cell and its mirror, relative to the larger of the two
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class NameGraph:
    """An undirected graph of names."""

    names: tuple[str, ...]
    weight_KK: npt.NDArray[np.float64]
    """float64, > 0 where there is an edge, else 0; zero diagonal."""

    def __post_init__(self) -> None:
        """Check what ``walks`` relies on, for a table that did not come through ``read_table``; raises NamesError."""
        w, size = self.weight_KK, len(self.names)
        if len(set(self.names)) != size or w.shape != (size, size):
            raise NamesError(f"table: {size} names, weights {w.shape}; give distinct names, a row and column for each")
        if not np.isfinite(w).all() or (w < 0).any() or w.diagonal().any() or ((w > 0) != (w > 0).T).any():
            raise NamesError("table: bad weights; give finite, symmetric values >= 0 with a zero diagonal")


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipGramOptions:
    """Options of walks and skip-gram. The defaults are the authors' (node2vec's and gensim's where they set none)."""

    walks_per_node: int = 200
    length: int = 100
    """Nodes in a walk, its start included."""
    window: int = 5
    """Largest distance in a walk at which two names still count as neighbours."""
    epochs: int = 5
    """Passes over all walks; gensim's default, which the authors keep."""


PAPER = SkipGramOptions()


@dataclass(frozen=True, slots=True, eq=False)
class NameVectors:
    """The vectors of the classes."""

    vectors_CD: Tensor
    """float32, rows in the order of the class names that were asked for."""
    without_edge: tuple[str, ...]
    """Classes that kept a random vector because the table has no edge for them; the caller warns."""
    digest: str
    """Digest of all that training depends on (table, width, ``SkipGramOptions``, seed, gensim).

    The classes that were asked for are not part of it."""


def read_table(path: Path) -> NameGraph:
    """Return the graph of a CSV table.

    First column ``label``, header = names in the order of the rows; empty, ``nan`` = no edge. Only values > 0 are edges
    (authors' dataset/utils.py); the diagonal is dropped. Raises NamesError with file and row.
    """
    (line, header), *body = _rows(path) or [(1, [""])]
    names = tuple(header[1:])
    if header[0].strip() != "label" or not names:
        raise NamesError(f"{path}:{line}: bad or no header; write label,<name>,<name>,... separated by commas")
    _check_names(path, line, names)
    for (line, fields), name in zip(body, names, strict=False):
        if fields[0] != name:
            raise NamesError(f"{path}:{line}: row {fields[0]!r}, the header has {name!r}; give both the same order")
        if (got := len(fields)) != len(header):
            raise NamesError(f"{path}:{line}: {got} fields, the header has {len(header)}; write nan for no edge")
    if len(body) != len(names):
        raise NamesError(f"{path}:{line}: {len(body)} rows, {len(names)} columns; give one row and one column per name")
    value_KK = np.array([[_number(path, at, *cell) for cell in zip(names, row[1:], strict=True)] for at, row in body])
    _check_symmetric(path, names, value_KK, [at for at, _ in body])
    weight_KK = np.where(value_KK > 0, value_KK, 0.0)
    np.fill_diagonal(weight_KK, 0.0)
    return NameGraph(names, weight_KK)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the non-empty rows with the number of the line that each ends on."""
    try:
        # utf-8-sig: spreadsheets write a byte-order mark, which would become part of the first field
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, fields) for fields in reader if fields]
    except OSError as error:
        raise NamesError(f"{path}: {error.strerror}; give the path of a CSV table of co-occurrences") from error
    except (UnicodeDecodeError, csv.Error) as error:
        where = f"{path}: not CSV in UTF-8 after line {reader.line_num} ({error})"
        raise NamesError(f"{where}; save it as UTF-8, put names with commas or quotes in double quotes") from error


def _check_names(path: Path, line: int, names: Sequence[str]) -> None:
    """Raise for names that are empty, occur twice, or differ only by case or spaces (most likely a typing error)."""
    seen: dict[str, str] = {}
    for name in names:
        if not (key := "".join(name.split()).casefold()):
            raise NamesError(f"{path}:{line}: an empty name in the header; name every column")
        if key in seen:
            what = "are the same" if seen[key] == name else "differ only by case or spaces"
            raise NamesError(f"{path}:{line}: names {seen[key]!r} and {name!r} {what}; keep one of them, or rename one")
        seen[key] = name


def _number(path: Path, line: int, column: str, text: str) -> float:
    """Return the value of one cell; nan where it is empty."""
    cell = f"{path}:{line}: {text!r} in column {column!r}"
    try:
        value = float("_" if "_" in text else text.strip() or "nan")  # float() takes 1_000; in a table that is a slip
    except ValueError as error:
        raise NamesError(f"{cell} is not a number; write a number, nan, or nothing") from error
    if np.isinf(value):
        raise NamesError(f"{cell} is infinite; write a finite number, or nan for no edge")
    return value


def _check_symmetric(path: Path, names: Sequence[str], value_KK: npt.NDArray[np.float64], lines: list[int]) -> None:
    """Raise at the first cell that differs from its mirror; nan counts as 0, so a one-sided gap is found too."""
    filled_KK = np.nan_to_num(value_KK, nan=0.0)
    with np.errstate(over="ignore"):  # 1e308 against -1e308 is just as asymmetric
        gap_KK = np.abs(filled_KK - filled_KK.T)
    for i, j in np.argwhere(gap_KK > SYMMETRY * np.maximum(np.abs(filled_KK), np.abs(filled_KK.T))):
        pair = f"{names[i]!r}, {names[j]!r} is {value_KK[i, j]:.9g} here but {value_KK[j, i]:.9g} in row {lines[j]}"
        raise NamesError(f"{path}:{lines[i]}: {pair}; make the table symmetric")


def walks(
    weight_KK: npt.NDArray[np.float64], *, walks_per_node: int = 200, length: int = 100, rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """Return random walks [R, length] over node numbers: the next node is drawn in proportion to edges' weights.

    node2vec with p = q = 1. ``weight_KK`` as in ``NameGraph``. ``walks_per_node`` walks start at every node that has
    an edge, in shuffled order; a node without an edge is in no walk.
    """
    from_E, to_E = np.nonzero(weight_KK > 0)
    degree_K = np.bincount(from_E, minlength=len(weight_KK))
    active = np.flatnonzero(degree_K)
    # Shuffled within each pass, as in node2vec: skip-gram lowers its learning rate along the walks, so order matters.
    now_R = rng.permuted(np.tile(active, (walks_per_node, 1)), axis=1).ravel()
    path_RL = np.empty((len(now_R), length), np.int32)
    largest_K = weight_KK.max(axis=1, initial=0.0)  # divided out first: the sum of huge weights would not be finite
    sum_KK = np.cumsum(weight_KK / np.where(largest_K > 0, largest_K, 1.0)[:, None], axis=1)
    # Cumulative probabilities of row k lie in (k, k + 1]: one sorted array, so one binary search moves all walks.
    edge_E = from_E + sum_KK[from_E, to_E] / sum_KK[from_E, -1]
    last_K = np.cumsum(degree_K) - 1
    for step in range(length):
        path_RL[:, step] = now_R
        at_R = np.searchsorted(edge_E, now_R + rng.random(len(now_R)), side="right")
        now_R = to_E[np.minimum(at_R, last_K[now_R])]  # k + u can round up to k + 1
    return path_RL


def skip_gram(
    walks: npt.NDArray[np.int32], nodes: int, *, width: int = 256, window: int = 5, epochs: int = 5, seed: int
) -> npt.NDArray[np.float32]:
    """Return vectors [K, width] of nodes 0 .. ``nodes`` - 1 by skip-gram, 5 negative samples; 0 for nodes in no walk.

    ``epochs`` = 5 is gensim's default, as are the learning rate (0.025 falling to 0.0001) and the down-sampling of
    frequent nodes (1e-3). One worker and no draws but from ``seed`` (0 <= seed < 2**32): same walks, same vectors.
    """
    vector_KD = np.zeros((nodes, width), np.float32)
    if not len(walks):
        return vector_KD
    from gensim.models import Word2Vec  # here: a cached result does without this slow import

    word_K = [str(node) for node in range(nodes)]  # one string object per node, not one per step
    sentences = [[word_K[node] for node in walk] for walk in walks.tolist()]
    # sorted_vocab=0: words in order of appearance; the sort by frequency breaks ties in a way that depends on the CPU
    model = Word2Vec(
        sentences, vector_size=width, window=window, epochs=epochs, seed=seed, workers=1,
        sg=1, hs=0, negative=5, min_count=1, sorted_vocab=0,
    )  # fmt: skip
    vector_KD[[int(word) for word in model.wv.index_to_key]] = model.wv.vectors
    return vector_KD


def random_vectors(class_names: Sequence[str], width: int, seed: int) -> Tensor:
    """Return N(0, 1) draws, float32 [C, width] ("w/o SE"). A row depends on name, width and seed, not on others."""
    if width < 1:
        raise NamesError(f"class-name vectors: width {width}; give at least 1")
    if twice := [name for name, count in Counter(class_names).items() if count > 1]:
        raise NamesError(f"class names: {twice[0]!r} occurs twice; give every class one name of its own")
    draws = [np.random.default_rng(_seed(seed, "random vector", n)).standard_normal(width) for n in class_names]
    return torch.from_numpy(np.array(draws, np.float32).reshape(-1, width))


def from_cooccurrence(
    table: NameGraph, class_names: Sequence[str], *, width: int, seed: int, cache: Path | None,
    training: SkipGramOptions = PAPER, log: Callable[[str], None] = _LOG.warning,
) -> NameVectors:  # fmt: skip
    """Return the vectors of ``class_names``, trained on the whole table: a row does not depend on other classes.

    A class without an edge gets its row of ``random_vectors``, scaled to the mean norm of the table's trained rows.
    Trained rows are kept in ``<cache>/names-<digest>.npz``; ``log`` hears of a file that cannot be used or written.
    Raises NamesError for a class that the table does not name exactly. The authors (dataset/utils.py) cut the table
    down to the classes first; pass such a table to follow them.
    """
    if min(astuple(training)) < 1:
        raise NamesError(f"class-name vectors: {training}; give at least 1 for every value")
    random_CD = random_vectors(class_names, width, seed).numpy()
    row_of = {name: row for row, name in enumerate(table.names)}
    for name in class_names:
        if name not in row_of:
            near = ", ".join(map(repr, difflib.get_close_matches(name, table.names, n=3, cutoff=0.0)))
            raise NamesError(f"class {name!r} is not in the table (nearest: {near}); rename the class or add a row")
    digest = _digest(table, width, seed, training)
    vector_KD = name_cache.load_or_make(cache, digest, lambda: _train(table, width, seed, training), log)
    row_C = [row_of[name] for name in class_names]
    edge_K: npt.NDArray[np.bool_] = np.any(table.weight_KK > 0, axis=1)
    if edge_K.any():
        norm = np.linalg.norm(vector_KD[edge_K], axis=1).mean()
        random_CD *= norm / np.linalg.norm(random_CD, axis=1, keepdims=True)
    vector_CD = np.where(edge_K[row_C, None], vector_KD[row_C], random_CD)
    return NameVectors(torch.from_numpy(vector_CD), tuple(n for n in class_names if not edge_K[row_of[n]]), digest)


def _seed(*parts: int | str) -> int:
    """Return a number below 2**32 from a run seed and words that say what it is for; independent of PYTHONHASHSEED."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:4], "little")


def _digest(table: NameGraph, width: int, seed: int, training: SkipGramOptions) -> str:
    """Return sha256, in hex, of all that the trained rows depend on; gensim's version is read without importing it."""
    try:
        gensim = metadata.version("gensim")
    except metadata.PackageNotFoundError as error:
        raise NamesError("class-name vectors: gensim is not installed; run pip install gensim") from error
    head = json.dumps([FORMAT, table.names, width, seed, astuple(training), gensim])
    return hashlib.sha256(head.encode() + b"\n" + np.ascontiguousarray(table.weight_KK, "<f8").tobytes()).hexdigest()


def _train(table: NameGraph, width: int, seed: int, how: SkipGramOptions) -> npt.NDArray[np.float32]:
    """Return the rows [K, width] of the table's names."""
    rng = np.random.default_rng(_seed(seed, "walks"))
    path_RL = walks(table.weight_KK, walks_per_node=how.walks_per_node, length=how.length, rng=rng)
    seed, nodes = _seed(seed, "skip-gram"), len(table.names)
    return skip_gram(path_RL, nodes, width=width, window=how.window, epochs=how.epochs, seed=seed)
