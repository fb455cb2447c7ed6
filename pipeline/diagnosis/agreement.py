"""Agreement of two local models and the global one about where classes are, in one frame (FedAlign, Figure 6).

Two clients train for one round from the last state, with the memory that they have; the test rows are represented by
the global model and by both local ones. Shape suffixes: K models (global, a, b), N test rows, D width, C classes, P
pairs of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_samples

from anchorfl.pipeline.algorithm.seeds import numpy_rng, seed_for
from anchorfl.pipeline.diagnosis.analysis import Analysis, part_of
from anchorfl.pipeline.diagnosis.divergence import LEAST, proxy_a_distance
from anchorfl.pipeline.diagnosis.figures import draw_frames
from anchorfl.pipeline.diagnosis.result import Floats, PartResult, share_text, write_table
from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.partition.stratify import largest_remainder

PAIRS = ("global_a", "global_b", "a_b")
"""Pairs of models, in the order of ``combinations``."""


def select_rows(y_NC: Bools, most: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the indices of at most ``most`` rows, ascending, and the class of each: its rarest.

    Rows without a class are left out. Every class has as many, as far as it can, so that rare ones are seen.
    """
    class_N = Labels.of_matrix(y_NC).rarest()
    count_C = np.bincount(class_N[class_N >= 0], minlength=y_NC.shape[1])
    total = min(most, int(count_C.sum()))
    occurs = np.flatnonzero(count_C)
    quota = largest_remainder(np.full(len(occurs), total / max(1, len(occurs))), total, count_C[occurs])
    parts = [
        rng.permutation(np.flatnonzero(class_N == c))[:take] for c, take in zip(occurs.tolist(), quota, strict=True)
    ]
    index_N = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    return index_N, class_N[index_N]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of three models, per class that occurs and pair of models (``PAIRS``)."""

    classes: Ints
    """Index of every class that occurs, [C]."""
    rows_C: Ints
    """Rows of the class."""
    cosine_PC: Floats
    """Cosine of the class's centroids in both models, as seen from the mean of the whole frame."""
    match_PC: Floats
    """Share of the class's rows that lie nearest to their own class's centroid in the *other* model, mean of both."""
    silhouette_C: Floats
    """Mean over the class's points of all three models together; NaN where there is one class only."""


def agreement_of(z_KND: Floats, class_N: Ints) -> Agreement:
    """Return how far the three models agree about where the classes are."""
    classes, at_N, rows_C = np.unique(class_N, return_inverse=True, return_counts=True)
    member_CN = (np.arange(len(classes))[:, None] == at_N).astype(np.float64)
    centred_KND = z_KND - z_KND.mean((0, 1))
    centroid_KCD = np.stack([member_CN @ z_ND for z_ND in centred_KND]) / rows_C[:, None]
    unit_KCD = centroid_KCD / np.maximum(np.linalg.norm(centroid_KCD, axis=-1, keepdims=True), 1e-12)
    pairs = list(combinations(range(len(z_KND)), 2))
    cosine_PC = np.stack([(unit_KCD[i] * unit_KCD[j]).sum(-1) for i, j in pairs])

    def hits(points: int, centroids: int) -> Floats:
        z_ND, c_CD = centred_KND[points], centroid_KCD[centroids]
        nearest_N = ((c_CD**2).sum(-1) - 2 * z_ND @ c_CD.T).argmin(-1)
        return np.asarray(member_CN @ (nearest_N == at_N) / rows_C, dtype=np.float64)

    match_PC = np.stack([(hits(i, j) + hits(j, i)) / 2 for i, j in pairs])
    silhouette_C = np.full(len(classes), np.nan)
    if len(classes) > 1:
        flat = np.asarray(silhouette_samples(z_KND.reshape(-1, z_KND.shape[-1]), np.tile(at_N, len(z_KND))))
        silhouette_C = member_CN @ flat.reshape(len(z_KND), -1).mean(0) / rows_C
    return Agreement(classes, rows_C, cosine_PC, match_PC, silhouette_C)


def embed(z_KND: Floats, seed: int) -> Floats:
    """Return all points of all models in one plane [K, N, 2] by t-SNE (van der Maaten and Hinton, 2008)."""
    flat = z_KND.reshape(-1, z_KND.shape[-1])
    perplexity = min(30.0, (len(flat) - 1) / 3)
    plane = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=seed % 2**32).fit_transform(flat)
    return np.asarray(plane, dtype=np.float64).reshape(*z_KND.shape[:2], 2)


def agreement(analysis: Analysis, out: Path, *, clients: tuple[int, int], rows: int) -> PartResult:
    """Write ``agreement.csv``, ``representations.csv`` and ``representations.png``, after the last completed round."""
    cards, test = analysis.server.cards, analysis.server.splits["test"]
    a, b = clients
    y_NC = (test.y_NC.numpy() > 0) & (test.known_NC.numpy() > 0)
    index_N, class_N = select_rows(y_NC, rows, numpy_rng(analysis.seed, "diagnosis", "test rows"))
    if len(index_N) < LEAST:
        raise InputError(f"{analysis.folder}: only {len(index_N)} labeled test rows: leave 'agreement' out of --parts")
    shown = part_of(test, torch.from_numpy(index_N))
    locals_ = [analysis.local_weights(analysis.last.round, m, analysis.memory(m)) for m in (a, b)]
    weights = [analysis.at(analysis.last.round).state.weights, *locals_]
    z_KND = np.stack([analysis.represent(w, shown).double().numpy() for w in weights])
    result = agreement_of(z_KND, class_N)
    plane_KN2 = embed(z_KND, seed_for(analysis.seed, "diagnosis", "t-sne"))
    aware_KC = np.stack(
        [np.ones(len(analysis.class_names), np.bool_), *(cards[m].identified_C.numpy() for m in (a, b))]
    )
    titles = ("global model", f"client {a}'s model", f"client {b}'s model")
    draw_frames(plane_KN2, class_N, analysis.class_names, aware_KC, titles, out / "representations.png")
    _write(analysis.class_names, result, aware_KC, plane_KN2, index_N, class_N, out)
    return _summarize(analysis, result, _model_distances(z_KND, analysis.seed), (a, b), len(index_N))


def _model_distances(z_KND: Floats, seed: int) -> dict[str, float]:
    """Return the proxy A-distances between models: half of the test rows by one against the other half by the other."""
    order_N, half = numpy_rng(seed, "diagnosis", "models").permutation(z_KND.shape[1]), z_KND.shape[1] // 2
    return {
        f"a_distance/{name}": proxy_a_distance(
            z_KND[i][order_N[:half]], z_KND[j][order_N[half : 2 * half]], numpy_rng(seed, "diagnosis", "models", name)
        )
        for name, (i, j) in zip(PAIRS, combinations(range(3), 2), strict=True)
    }


def _write(
    names: Sequence[str], result: Agreement, aware_KC: Bools, plane_KN2: Floats, index_N: Ints, class_N: Ints, out: Path
) -> None:
    header = ["class", "rows", "known_to_a", "known_to_b"]
    header += [f"{what}_{pair}" for what in ("cosine", "match") for pair in PAIRS] + ["silhouette"]
    table = [
        [
            names[c], result.rows_C[k], int(aware_KC[1, c]), int(aware_KC[2, c]),
            *result.cosine_PC[:, k], *result.match_PC[:, k], result.silhouette_C[k],
        ]
        for k, c in enumerate(result.classes.tolist())
    ]  # fmt: skip
    write_table(out / "agreement.csv", header, table)
    points = (
        [model, index, names[c], *point]
        for model, plane_N2 in zip(("global", "a", "b"), plane_KN2, strict=True)
        for index, c, point in zip(index_N.tolist(), class_N.tolist(), plane_N2, strict=True)
    )
    write_table(out / "representations.csv", ("model", "test_row", "class", "x", "y"), points)


def _summarize(
    analysis: Analysis, result: Agreement, distances: dict[str, float], clients: tuple[int, int], rows: int
) -> PartResult:
    values = {f"cosine/{pair}": float(v) for pair, v in zip(PAIRS, result.cosine_PC.mean(1), strict=True)}
    values |= {f"match/{pair}": float(v) for pair, v in zip(PAIRS, result.match_PC.mean(1), strict=True)}
    agreed = int((result.match_PC[2] > 0.5).sum())
    values |= {"agreed_classes": float(agreed), "silhouette": float(result.silhouette_C.mean())} | distances
    lines = (
        f"local models of clients {clients[0]} and {clients[1]} after round {analysis.last.round + 1}, {rows} test"
        f" rows: they agree on {agreed} of {len(result.classes)} classes (match above 0.5), cosine of their class"
        f" centroids {values['cosine/a_b']:.3f}, match {values['match/a_b']:.3f}, joint silhouette"
        f" {share_text(values['silhouette'])}",
    )
    metrics = {f"agreement/{n}": v for n, v in values.items() if np.isfinite(v)}
    measured = {name: value for name, value in distances.items() if np.isfinite(value)}
    return PartResult({analysis.last.round: metrics}, lines, {"clients": list(clients), "test_rows": rows} | measured)
