"""Class embeddings beside the co-occurrence of the labels (FedAlign, Figure 7), and of the classes' names in text.

Do classes that occur together end up close? The table of names says less: the embeddings started from it.

Shape suffixes: C classes, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.cluster import SpectralClustering
from sklearn.manifold import spectral_embedding

from anchorfl.models.heads import AnchorHead, CosineHead, PrototypeHead
from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.figures import Beside, draw_matrices
from anchorfl.pipeline.diagnosis.result import Floats, PartResult, share_text, write_table
from anchorfl.pipeline.diagnosis.truth import read_truth
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.class_vectors import cooccurrence_table
from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.errors import InputError, nearest


def cosines(head: AnchorHead | CosineHead | PrototypeHead) -> Floats:
    """Return the cosine of every two class representations [C, C]."""
    unit_CD = F.normalize(head.classes().detach().double(), dim=-1)
    return np.asarray((unit_CD @ unit_CD.T).numpy(), dtype=np.float64)


def order_classes(cosine_CC: Floats, clusters: int, seed: int) -> tuple[Ints, Ints]:
    """Return an order of the classes that puts similar ones side by side, and the cluster of each class [C].

    Spectral clustering of (1 + cosine) / 2; clusters, and the classes in each, follow the second eigenvector of its
    Laplacian (the Fiedler vector). Up to three classes: the order that they have, one cluster.
    """
    classes = len(cosine_CC)
    if classes <= 3:
        return np.arange(classes), np.zeros(classes, np.int64)
    affinity_CC = np.maximum((1 + cosine_CC) / 2, 1e-6)  # above 0, so that the graph holds together
    model = SpectralClustering(clusters, affinity="precomputed", random_state=seed % 2**32, assign_labels="cluster_qr")
    cluster_C = np.asarray(model.fit_predict(affinity_CC), dtype=np.int64)
    fiedler_C = spectral_embedding(affinity_CC, n_components=1, random_state=seed % 2**32).ravel()
    mean_K = np.array([fiedler_C[cluster_C == k].mean() if (cluster_C == k).any() else 0.0 for k in range(clusters)])
    order_C = np.lexsort((fiedler_C, cluster_C, mean_K[cluster_C]))
    return order_C, cluster_C


def rank_correlation(a_CC: Floats, b_CC: Floats) -> tuple[float, int]:
    """Return Spearman's rank correlation over the pairs of classes that are known in both matrices, and their number.

    NaN where one matrix has the same value for all of them.
    """
    upper = np.triu_indices(len(a_CC), 1)
    a_P, b_P = a_CC[upper], b_CC[upper]
    known_P = ~np.isnan(a_P) & ~np.isnan(b_P)
    a_P, b_P = a_P[known_P], b_P[known_P]
    if len(np.unique(a_P)) < 2 or len(np.unique(b_P)) < 2:
        return float("nan"), len(a_P)
    return float(spearmanr(a_P, b_P).statistic), len(a_P)


def associations(analysis: Analysis) -> Floats | None:
    """Return the weights of the co-occurrence table's edges for every two classes [C, C], from which the embeddings
    started: PMI less its mean, 0 where there is no edge. None where the run had no table.
    """
    experiment = analysis.run_spec.experiment
    if experiment.class_embeddings.init != "cooccurrence" or not experiment.method.head.semantic:
        return None
    table, known = cooccurrence_table(experiment, analysis.class_names)
    row_C = [table.names.index(name) for name in known]
    return np.asarray(table.weight_KK[np.ix_(row_C, row_C)], dtype=np.float64)


def label_pmi(analysis: Analysis, log: Log) -> Floats | None:
    """Return the pointwise mutual information of every two labels over the rows of all clients, [C, C], from the raw
    data: log p(i, j) / (p(i) p(j)), natural. -inf for labels that never stand together.

    Each pair is taken over the rows where both are given; NaN where none has both, or one of them is never there. None
    for single-label tasks.
    """
    if analysis.prepared.manifest.kind == "single":
        return None
    truth = read_truth(analysis, log)
    row_N = np.unique(np.concatenate([client.rows for client in analysis.prepared.plan().clients]))
    y_NC, given_NC = (part.astype(np.float64) for part in truth.of(row_N))
    y_NC = y_NC * given_NC
    both_CC, one_CC, other_CC, rows_CC = y_NC.T @ y_NC, y_NC.T @ given_NC, given_NC.T @ y_NC, given_NC.T @ given_NC
    expected_CC = one_CC * other_CC
    with np.errstate(divide="ignore"):  # log 0 of labels that never stand together
        return np.asarray(np.log(both_CC * rows_CC / np.where(expected_CC > 0, expected_CC, np.nan)))


def chosen_classes(words: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the numbers of classes that are named, or given by number; all where there are no words. InputError where
    there is no such class, or fewer than two are chosen.
    """
    out = list[int]()
    for word in words:
        if word not in names and not (word.isdecimal() and int(word) < len(names)):
            raise InputError(f"--classes {word}: no class of that name{nearest(word, names)}; or give its number")
        out.append(names.index(word) if word in names else int(word))
    if words and len(set(out)) < 2:
        raise InputError(f"--classes {','.join(words)}: name two classes at least")
    return sorted(set(out)) or list(range(len(names)))


def embeddings(analysis: Analysis, out: Path, *, clusters: int, classes: Sequence[str], log: Log) -> PartResult:
    """Write ``class_cosine.csv`` and ``class_embeddings.png``, after the last completed round.

    Beside them stand ``class_names.csv`` where the run started from a table of names, and ``class_pmi.csv`` where rows
    have several labels. All are in the order of the clusters. clusters: 0 for the root of the number of classes;
    classes: names or numbers of those that are shown; none: all.
    """
    names = analysis.class_names
    chosen = chosen_classes(classes, names)
    server = analysis.at(analysis.last.round)
    server.model.load_state_dict(server.state.weights)
    if not isinstance(server.model.head, AnchorHead | CosineHead | PrototypeHead):
        return PartResult({}, (f"class embeddings: {analysis.run_spec.experiment.method.name} has none",))
    index = np.ix_(chosen, chosen)
    cosine_CC, names = cosines(server.model.head)[index], tuple(names[c] for c in chosen)
    number = min(clusters or max(2, round(len(names) ** 0.5)), len(names))
    order_C, cluster_C = order_classes(cosine_CC, number, seed_for(analysis.seed, "diagnosis", "clusters"))
    besides = list[Beside]()
    for name, short, title, signed, whole_CC in (
        (
            "names",
            "weight of the names",
            "table of names, from which they started; edges",
            False,
            associations(analysis),
        ),
        ("pmi", "PMI of the labels", "PMI of the labels in all clients' rows", True, label_pmi(analysis, log)),
    ):
        if whole_CC is not None:
            values_CC = whole_CC[index]
            besides.append(Beside(name, short, title, signed, values_CC, *rank_correlation(cosine_CC, values_CC)))
    in_order = [names[c] for c in order_C]
    for name, matrix_CC in (("cosine", cosine_CC), *((beside.name, beside.values_CC) for beside in besides)):
        rows = ([names[c], cluster_C[c], *matrix_CC[c, order_C]] for c in order_C.tolist())
        write_table(out / f"class_{name}.csv", ("class", "cluster", *in_order), rows)
    summary = [f"class embeddings after round {analysis.last.round}: {len(set(cluster_C.tolist()))} spectral clusters"]
    every = math.comb(len(names), 2)
    for beside in besides:
        known = f"{beside.pairs}" if beside.pairs == every else f"the {beside.pairs} known of {every}"
        summary.append(
            f"Spearman's rank correlation of cosine and {beside.short} over {known} pairs of classes"
            f" {share_text(beside.rho)}"
        )
    draw_matrices(cosine_CC, besides, order_C, cluster_C, names, out)
    metrics = {f"classes/spearman_{b.name}": b.rho for b in besides if np.isfinite(b.rho)}
    return PartResult({analysis.last.round: metrics} if metrics else {}, ("; ".join(summary),), {"order": in_order})
