"""Readers, metrics and packing that are written by hand, beside libraries that do the same: the first table of
docs/why-by-hand.md.

    pip install --target libraries liac-arff pyahocorasick optree
    PYTHONPATH=libraries python -m benchmarks.by_hand [--rows 50000]

Made-up data, one thread, CPU milliseconds, the least of three. A library that is not installed has no figure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from sklearn.datasets import load_svmlight_file
from sklearn.metrics import average_precision_score, ndcg_score
from torch.utils import _pytree

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.storage.run_record import Line
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.corpus.counting import Scanner
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.json_schema import parsed
from anchorfl.tasks.metrics.ranking import Ranking, propensities
from anchorfl.tasks.sparse.arff import read_arff
from anchorfl.tasks.sparse.xc_format import read_rows
from anchorfl.tasks.synthetic import mulan
from anchorfl.tasks.synthetic.xc import SIZES, write_rows
from benchmarks.readings import least_seconds


def milliseconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Return the CPU milliseconds of a call."""
    return 1e3 * least_seconds(work, 3, repeats)


def show(what: str, ours: float, others: Mapping[str, float | None]) -> None:
    """Print a row of the table."""
    cells = [f"{name} {shown(value)}" for name, value in others.items() if value is not None]
    print(f"| {what} | {shown(ours)} | {', '.join(cells) or 'not installed'} |", flush=True)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def library(name: str) -> Any:
    """Return a module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def xc(folder: Path, rows: int) -> None:
    path, plain = folder / "xc.txt", folder / "svm.txt"
    write_rows(path, rows, SIZES["amazoncat-13k"][1], np.random.default_rng(0))
    plain.write_bytes(path.read_bytes().partition(b"\n")[2])
    features = SIZES["amazoncat-13k"][1].features
    found = read_rows(path, BadRows(False))
    x, _ = load_svmlight_file(plain, n_features=features, multilabel=True, zero_based=True)
    assert x.nnz == len(found.pairs.combine_chunks().flatten()) // 2
    theirs = milliseconds(lambda: load_svmlight_file(plain, n_features=features, multilabel=True, zero_based=True))
    size = path.stat().st_size / 1e6
    ours = milliseconds(lambda: read_rows(path, BadRows(False)))
    show(f"extreme-classification text, {rows:,} rows, {size:.0f} MB", ours, {"scikit-learn": theirs})


def arff(folder: Path) -> None:
    liac = library("arff")
    for task in ("delicious", "medical"):
        mulan.write(folder, 6000, 0, task)
        shape = mulan.SHAPES[task]
        path = folder / f"{shape.stem}-train.arff"
        kind = liac.LOD if liac and shape.sparse else liac.DENSE if liac else None
        ours = milliseconds(lambda path=path: read_arff(path, BadRows(False)))
        theirs = (
            milliseconds(lambda path=path, kind=kind: liac.loads(path.read_text(), return_type=kind)) if liac else None
        )
        form = "sparse" if shape.sparse else "dense"
        show(f"ARFF, {form}, 4,000 rows, {path.stat().st_size / 1e6:.1f} MB", ours, {"liac-arff": theirs})


def ranking(rows: int = 20_000, classes: int = 159) -> None:
    rng = np.random.default_rng(0)
    y_NC = rng.random((rows, classes)) < 0.02
    score_NC = rng.standard_normal((rows, classes), dtype=np.float32) + y_NC
    labels = Labels.of_matrix(y_NC)

    def ours() -> dict[str, float]:
        made = Ranking(rows, classes, propensities(labels.counts(), rows))
        made.add(score_NC, labels)
        return made.scores().values

    theirs = average_precision_score(y_NC[:, y_NC.any(0)], score_NC[:, y_NC.any(0)])
    assert abs(ours()["map"] - theirs) < 1e-9
    others = {
        "scikit-learn's mAP alone": milliseconds(lambda: average_precision_score(y_NC, score_NC)),
        "nDCG@5 alone": milliseconds(lambda: ndcg_score(y_NC, score_NC, k=5)),
    }
    show(f"ten ranking figures, {rows:,} x {classes}", milliseconds(ours), others)


def corpus(characters: int = 4_000_000) -> None:
    rng = np.random.default_rng(0)
    words = np.array(["".join(chr(97 + c) for c in rng.integers(26, size=rng.integers(2, 10))) for _ in range(20_000)])
    drawn = words[rng.zipf(1.3, size=characters // 6) % len(words)]
    text = "\n".join(" ".join(drawn[at : at + 60]) for at in range(0, len(drawn), 60))
    aho = library("ahocorasick")
    for kind, first in (("most frequent", 1), ("rare", 1000)):
        names = tuple(map(str, words[first : first + 52]))
        scanner, pattern = Scanner(names), re.compile(r"\b(?:" + "|".join(names) + r")\b")
        others = {"re": milliseconds(lambda pattern=pattern: sum(1 for _ in pattern.finditer(text)))}
        if aho:
            automaton = aho.Automaton()
            for name in names:
                automaton.add_word(name, name)
            automaton.make_automaton()
            others["pyahocorasick"] = milliseconds(lambda automaton=automaton: sum(1 for _ in automaton.iter(text)))
        ours = milliseconds(lambda scanner=scanner: scanner.count(text))
        show(f"scan of {len(text) / 1e6:.1f} MB for 52 names, {kind} words", ours, others)


def packing() -> None:
    tree = {f"layer{n}": {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)} for n in range(8)}
    others = {"torch _pytree": milliseconds(lambda: _pytree.tree_map(lambda t: t, tree), 300)}
    paths = {
        "torch _pytree": milliseconds(lambda: _pytree.tree_flatten_with_path(tree), 300),
    }
    if optree := library("optree"):
        others["optree"] = milliseconds(lambda: optree.tree_map(lambda t: t, tree), 300)
        paths["optree"] = milliseconds(lambda: optree.tree_flatten_with_path(tree), 300)
    show("message of 16 tensors, rebuilt", milliseconds(lambda: messages.rebuild(tree, lambda _, t: t), 300), others)
    show("message of 16 tensors, paths", milliseconds(lambda: list(messages.tensors(tree)), 300), paths)


def records() -> None:
    metrics = {f"m{n}": 0.5 for n in range(30)}
    classes = {f"c{n}": 0.1 * n for n in range(159)}
    content = {"round": 3, "time": 1.0, "metrics": metrics, "per_class": {"f1": classes, "accuracy": classes}}
    line = json.dumps(content).encode()
    others = {
        "json, types not checked": milliseconds(lambda: json.loads(line), 200),
        "msgspec alone": milliseconds(lambda: msgspec.json.decode(line, type=Line), 200),
    }
    show("a line of metrics.jsonl, 159 classes", milliseconds(lambda: parsed(line, Line, "x", ""), 200), others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="of the extreme-classification file")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| Written by hand | Ours, ms | Library's, ms |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        xc(Path(folder), chosen.rows)
        arff(Path(folder))
    ranking()
    corpus()
    packing()
    records()


if __name__ == "__main__":
    main()
