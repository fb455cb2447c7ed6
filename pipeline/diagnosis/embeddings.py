"""Class embeddings beside the co-occurrence of the classes' names in text (FedAlign, Figure 7), or of the labels.

Do classes whose names, or which themselves, occur together end up close?

Shape suffixes: C classes, D width.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.cluster import SpectralClustering
from sklearn.manifold import spectral_embedding

from anchorfl.models.heads import CosineHead, LabelHead, PrototypeHead
from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.figures import PHI, PMI, draw_matrices
from anchorfl.pipeline.diagnosis.result import Floats, PartResult, share_text, write_table
from anchorfl.pipeline.diagnosis.truth import read_truth
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.class_vectors import cooccurrence_table
from anchorfl.tasks.arrays.arrow import Ints


def cosines(head: LabelHead | CosineHead | PrototypeHead) -> Floats:
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
    known_P = np.isfinite(a_P) & np.isfinite(b_P)
    a_P, b_P = a_P[known_P], b_P[known_P]
    if len(a_P) < 2 or np.ptp(a_P) == 0 or np.ptp(b_P) == 0:
        return float("nan"), len(a_P)
    return float(spearmanr(a_P, b_P).statistic), len(a_P)


def associations(analysis: Analysis) -> Floats | None:
    """Return the weights of the co-occurrence table's edges for every two classes [C, C]: PMI less its mean, 0 where
    there is no edge. None where the run had no table.
    """
    experiment = analysis.run_spec.experiment
    if experiment.class_embeddings.init != "cooccurrence" or not experiment.method.head.semantic:
        return None
    table, known = cooccurrence_table(experiment, analysis.class_names)
    row_C = [table.names.index(name) for name in known]
    return np.asarray(table.weight_KK[np.ix_(row_C, row_C)], dtype=np.float64)


def correlations(analysis: Analysis, log: Log) -> Floats | None:
    """Return the correlation (phi) of every two labels over the clients' rows, [C, C], from the raw data.

    Each pair is taken over the rows where both are given. NaN where phi is undefined: no row has both, or one of them
    is always or never there. None for single-label tasks.
    """
    if analysis.prepared.manifest.kind == "single":
        return None
    truth = read_truth(analysis, log)
    row_N = np.unique(np.concatenate([client.rows for client in analysis.prepared.plan().clients]))
    y_NC, given_NC = (part.astype(np.float64) for part in truth.of(row_N))
    y_NC = y_NC * given_NC
    both_CC, one_CC, other_CC, rows_CC = y_NC.T @ y_NC, y_NC.T @ given_NC, given_NC.T @ y_NC, given_NC.T @ given_NC
    spread_CC = one_CC * (rows_CC - one_CC) * other_CC * (rows_CC - other_CC)
    phi_CC: Floats = (both_CC * rows_CC - one_CC * other_CC) / np.sqrt(np.where(spread_CC > 0, spread_CC, np.nan))
    return phi_CC


def embeddings(analysis: Analysis, out: Path, *, clusters: int, log: Log) -> PartResult:
    """Write ``class_cosine.csv`` and ``class_embeddings.png``, after the last completed round.

    Beside them stands ``class_pmi.csv`` where the run has a table of names, else ``class_phi.csv`` where rows have
    several labels. All are in the order of the clusters. clusters: 0 for the root of the number of classes.
    """
    server = analysis.at(analysis.last.round)
    server.model.load_state_dict(server.state.weights)
    if not isinstance(server.model.head, LabelHead | CosineHead | PrototypeHead):
        return PartResult({}, (f"class embeddings: {analysis.run_spec.experiment.method.name} has none",))
    cosine_CC, names = cosines(server.model.head), analysis.class_names
    number = min(clusters or max(2, round(len(names) ** 0.5)), len(names))
    order_C, cluster_C = order_classes(cosine_CC, number, seed_for(analysis.seed, "diagnosis", "clusters"))
    pmi_CC, in_order = associations(analysis), [names[c] for c in order_C]
    beside, beside_CC = (PMI, pmi_CC) if pmi_CC is not None else (PHI, correlations(analysis, log))
    summary = [f"class embeddings after round {analysis.last.round}: {len(set(cluster_C.tolist()))} spectral clusters"]
    metrics: dict[str, float] = {}
    for name, matrix_CC in (("cosine", cosine_CC), (beside.name, beside_CC)):
        if matrix_CC is not None:
            rows = ([names[c], cluster_C[c], *matrix_CC[c, order_C]] for c in order_C.tolist())
            write_table(out / f"class_{name}.csv", ("class", "cluster", *in_order), rows)
    if beside_CC is not None:
        rho, pairs = rank_correlation(cosine_CC, beside_CC)
        every = math.comb(len(names), 2)
        known = f"{pairs}" if pairs == every else f"the {pairs} known of {every}"
        summary.append(
            f"Spearman's rank correlation of cosine and {beside.short} over {known} pairs of classes {share_text(rho)}"
        )
        metrics = {"classes/spearman": rho} if np.isfinite(rho) else {}
    draw_matrices(cosine_CC, beside_CC, beside, order_C, cluster_C, names, metrics.get("classes/spearman"), out)
    return PartResult({analysis.last.round: metrics} if metrics else {}, ("; ".join(summary),), {"order": in_order})
