"""Proxy A-distance: how well a linear classifier tells apart the representations of two clients, or of a client and of
all.

d = 2 (1 - 2 err), err its error on rows that it was not trained on: 0 where they cannot be told apart, 2 where they
always can (Ben-David et al., NIPS 2006, section 4; Machine Learning 79, 2010). It stands in for the divergence between
local and global data in the bound of FedAlign (KDD 2023). Shape suffixes: N rows, D width, R sampled rows of all
clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression

from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.algorithm.seeds import numpy_rng
from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.clients import MOST
from anchorfl.pipeline.diagnosis.figures import draw_divergence
from anchorfl.pipeline.diagnosis.result import PartResult, write_table
from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.partition.stratify import largest_remainder

LEAST = 20
"""Rows on either side; a comparison with fewer is left out: a held-out half of ten rows says nothing."""


def proxy_a_distance(
    a_ND: npt.NDArray[np.floating[Any]], b_ND: npt.NDArray[np.floating[Any]], rng: np.random.Generator
) -> float:
    """Return 2 (1 - 2 err) between two samples of the same size without a row in common, in [-2, 2].

    Half of either trains a logistic regression on standardized features, the other half measures its error. Not cut
    off at 0: the mean of many comparisons of equal samples then is 0, too. Raises ValueError where sizes differ.
    """
    if len(a_ND) != len(b_ND) or len(a_ND) < 4:
        raise ValueError(f"proxy A-distance needs two samples of one size, at least 4: {len(a_ND)} and {len(b_ND)}")
    order_N, half = rng.permutation(len(a_ND)), len(a_ND) // 2
    parts = [(a_ND[index], b_ND[index]) for index in (order_N[:half], order_N[half:])]
    train_ND, test_ND = (np.concatenate(pair).astype(np.float64) for pair in parts)
    side_train, side_test = (np.repeat([0, 1], len(pair[0])) for pair in parts)
    mean_D, std_D = train_ND.mean(0), train_ND.std(0)
    std_D[std_D == 0] = 1.0
    model = LogisticRegression(max_iter=2000).fit((train_ND - mean_D) / std_D, side_train)
    error = float(np.mean(model.predict((test_ND - mean_D) / std_D) != side_test))
    return 2 * (1 - 2 * error)


KINDS = {"pair": "two clients", "pooled": "a client and all", "local": "two local models"}


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two samples of one size that are compared."""

    kind: Literal["pair", "pooled", "local"]
    """``pair``: rows of ``client`` and of ``other``; ``pooled``: rows of ``client`` and of all clients together, each
    with its share; ``local``: as ``pair``, but each client's rows by its own model after local training."""
    client: int
    other: int
    """-1 for ``pooled``."""
    a_R: Ints
    """Indices among the sampled rows of all clients."""
    b_R: Ints
    """Indices among the sampled rows of all clients."""


def contrasts(ids: Sequence[Ints], sizes: Sequence[int], pairs: int, rng: np.random.Generator) -> list[Contrast]:
    """Return what is compared. No row is on both sides.

    ids: row ids of every client's sample, in random order; indices count through them all. sizes: rows of every client.
    pairs: at most so many pairs, drawn among all.
    """
    start = np.concatenate([[0], np.cumsum([len(i) for i in ids])]).astype(np.int64)
    index_M = [np.arange(start[m], start[m + 1]) for m in range(len(ids))]
    every = list(combinations(range(len(ids)), 2))
    if len(every) > pairs:
        every = [every[k] for k in np.sort(rng.choice(len(every), size=pairs, replace=False))]
    planned = []
    for i, j in every:
        free = index_M[j][~np.isin(ids[j], ids[i])]
        size = min(len(index_M[i]), len(free))
        planned.append(Contrast("pair", i, j, index_M[i][:size], free[:size]))
    share_M = np.array(sizes) / max(1, sum(sizes))
    for i in range(len(ids) if len(ids) > 1 else 0):
        size = int(len(index_M[i]) / (1 + share_M[i]))  # what is left of the client's own rows is its share of the pool
        sample = ids[i][:size]
        free_M = [index_M[j][~np.isin(ids[j], sample)] for j in range(len(ids))]
        room_M = np.array([len(free) for free in free_M])
        size = min(size, int(room_M.sum()))
        take_M = largest_remainder(share_M * size, size, room_M)
        parts = [free[:take] for free, take in zip(free_M, take_M, strict=True)]
        pool = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        _, first = np.unique(np.concatenate(ids)[pool], return_index=True)
        pool = pool[np.sort(first)]  # with a client for each class, a row may be with several
        planned.append(Contrast("pooled", i, -1, index_M[i][: len(pool)], pool))
    return [c for c in planned if len(c.a_R) >= LEAST]


def row_ids(prepared: Prepared, client: int) -> Ints:
    """Return the ids of a client's rows, in the order of its data."""
    return np.asarray(prepared.client_columns(client, ["row"])["row"].to_numpy(), dtype=np.int64)


def divergence(analysis: Analysis, out: Path, *, clients: tuple[int, int], pairs: int, cap: int) -> PartResult:
    """Write ``divergence.csv``: every comparison in every round whose state is there; of several, ``divergence.png``.

    The rows are always the same. Local models are compared in rounds from which they can be trained
    (``Analysis.trainable``).

    clients: whose local models are compared, too. cap: rows that are sampled of a client at most.
    """
    sizes = analysis.prepared.manifest.examples
    if len(sizes) > MOST:  # each is compared with all
        return PartResult({}, (f"A-distance: {len(sizes)} clients are too many to compare (at most {MOST})",))
    order = [numpy_rng(analysis.seed, "diagnosis", "sample", m).permutation(size)[:cap] for m, size in enumerate(sizes)]
    ids = [row_ids(analysis.prepared, m)[order[m]] for m in range(len(sizes))]
    drawn = numpy_rng(analysis.seed, "diagnosis", "pairs")
    planned = contrasts(ids, sizes, pairs, drawn)
    two = contrasts([ids[m] for m in clients], (1, 1), 1, drawn)
    local = [replace(c, kind="local") for c in two if c.kind == "pair"]
    rows: list[tuple[int, Contrast, float]] = []
    trained = analysis.trainable()
    for round_ in analysis.rounds():
        weights = analysis.at(round_).state.weights
        z_RD = _represent(analysis, {m: weights for m in range(len(sizes))}, order)
        rows += [(round_, c, _distance(analysis, c, z_RD)) for c in planned]
        if round_ not in trained:
            continue
        z_RD = _represent(analysis, {m: analysis.local_weights(round_, m, analysis.lasting(m)) for m in clients}, order)
        rows += [(round_, replace(c, client=clients[0], other=clients[1]), _distance(analysis, c, z_RD)) for c in local]
    return _write(rows, out, {"clients": list(clients), "rows_per_client_at_most": cap})


def _represent(analysis: Analysis, weights: Mapping[int, Tensors], order: Sequence[Ints]) -> npt.NDArray[np.float32]:
    """Return representations of these clients' sampled rows, client after client, each by a model of its own."""
    parts = [
        analysis.represent(local, analysis.rows(m), torch.from_numpy(order[m])).numpy()
        for m, local in weights.items()
        if len(order[m])
    ]
    return np.concatenate(parts)


def _distance(analysis: Analysis, c: Contrast, z_RD: npt.NDArray[np.float32]) -> float:
    halves = numpy_rng(analysis.seed, "diagnosis", "halves", c.kind, c.client, c.other)
    return proxy_a_distance(z_RD[c.a_R], z_RD[c.b_R], halves)


def _write(rows: Sequence[tuple[int, Contrast, float]], out: Path, facts: dict[str, object]) -> PartResult:
    write_table(
        out / "divergence.csv",
        ("round", "kind", "client", "other", "rows", "error", "a_distance"),
        ((r, c.kind, c.client, "" if c.other < 0 else c.other, len(c.a_R), 0.5 - d / 4, d) for r, c, d in rows),
    )
    by_kind: dict[str, dict[int, list[float]]] = {}
    for round_, c, d in rows:
        by_kind.setdefault(c.kind, {}).setdefault(round_, []).append(d)
    curves = {KINDS[kind]: {r: np.array(v) for r, v in by_round.items()} for kind, by_round in by_kind.items()}
    if len({round_ for round_, _, _ in rows}) > 1:
        draw_divergence(curves, out / "divergence.png")
    metrics: dict[int, dict[str, float]] = {}
    for kind, by_round in by_kind.items():
        for round_, values in by_round.items():
            metrics.setdefault(round_, {})[f"a_distance/{kind}"] = float(np.mean(values))
    lines = [
        f"proxy A-distance after round {r} (0 alike, 2 apart): "
        + ", ".join(f"{KINDS[n.removeprefix('a_distance/')]} {v:.3f}" for n, v in metrics[r].items())
        for r in dict.fromkeys([*list(metrics)[:1], *list(metrics)[-1:]])
    ]
    return PartResult(metrics, tuple(lines) or (f"proxy A-distance: no client has {LEAST} rows to compare",), facts)
