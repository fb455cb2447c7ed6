"""Scores of a model on the server's splits, by the labels that their rows show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anchorfl.models.classifier import Classifier
from anchorfl.models.heads import in_pieces
from anchorfl.models.label_encoder import encoded_once
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.training.local_training import infer
from anchorfl.tasks.arrays.arrow import Bools
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.sparse_rows import SparseRows
from anchorfl.tasks.contract import ClientData, Objective
from anchorfl.tasks.ingest.prepared import SERVER_SPLITS, Prepared, Split, training_counts
from anchorfl.tasks.metrics.classification import classification
from anchorfl.tasks.metrics.decisions import Decisions, mean, score
from anchorfl.tasks.metrics.ranking import Ranking, propensities
from anchorfl.tasks.metrics.scores import F1_UNCOVERED, Metrics, Scores

ROWS_AT_ONCE, LOGITS_AT_ONCE = 512, 2**24
"""Rows that are scored at a time in a ranking, fewer where they have more logits than that."""


@torch.no_grad()
def logits_of(model: Classifier, data: ClientData) -> Tensor:
    """Return logits [N, C] in evaluation mode."""
    z_ND = infer(model, data)
    was_training = model.training
    model.eval()
    logits_NC = in_pieces(model.head, z_ND)
    model.train(was_training)
    return logits_NC


def evaluate(model: Classifier, weights: Tensors, data: ClientData, objective: Objective) -> Decisions:
    """Score the decisions of ``weights`` on ``data``; ``model`` is a work-space."""
    model.load_state_dict(weights)
    return decisions_of(model, data, objective)


def decisions_of(model: Classifier, data: ClientData, objective: Objective) -> Decisions:
    """Score the decisions of a model as it is."""
    predicted_NC = objective.predict(logits_of(model, data)).cpu()
    return score(objective.kind, predicted_NC.numpy(), data.y_NC.numpy(), data.known_NC.numpy())


def ranking_scores(objective: Objective, logits_NC: Tensor) -> Tensor:
    """Return an order of classes and rows: the logits (multi-label), or the logarithm of softmax, which compares rows.

    Both are in the order of ``Objective.scores``, and unlike these do not become equal where they are far out.
    """
    return logits_NC.log_softmax(-1) if objective.kind == "single" else logits_NC


def score_logits(metrics: Metrics, objective: Objective, logits_NC: Tensor, rows: ClientData) -> Scores:
    """Return the figures of a family from the logits of all rows, on the CPU; PSP@k excepted, which needs counts of the
    training rows. InputError where the model has diverged and the figures need an order.
    """
    y_NC, known_NC = rows.y_NC.numpy(), rows.known_NC.numpy()
    if metrics == "ranking":
        ranking = Ranking(*logits_NC.shape)
        ranking.add(ranking_scores(objective, logits_NC).numpy(), Labels.of_matrix(y_NC == 1), known_NC == 1)
        return ranking.scores()
    predicted_NC = objective.predict(logits_NC).numpy()
    if metrics == "classification":
        return classification(predicted_NC, ranking_scores(objective, logits_NC).numpy(), y_NC, known_NC)
    return score(objective.kind, predicted_NC, y_NC, known_NC).scores()


class DenseSplits(dict[Split, ClientData]):
    """The server's splits with matrices of their labels: ``first`` at once, others when they are first asked for."""

    def __init__(self, data: Prepared, objective: Objective, first: Sequence[Split]) -> None:
        super().__init__({name: data.split(name, objective) for name in first})
        self.data, self.objective = data, objective

    def __missing__(self, name: Split) -> ClientData:
        self[name] = self.data.split(name, self.objective)
        return self[name]


class RankedSplits:
    """The server's splits to be scored as rankings, a part at a time and without a matrix of labels."""

    def __init__(
        self,
        data: Prepared,
        objective: Objective,
        rows: int = ROWS_AT_ONCE,
        names: Sequence[Split] = SERVER_SPLITS,
    ) -> None:
        self.splits: dict[Split, SparseRows] = {name: data.sparse_split(name) for name in names}
        self.objective = objective
        self.classes = len(data.manifest.class_names)
        self.rows = max(1, min(rows, LOGITS_AT_ONCE // self.classes))
        training_rows, count_C = training_counts(data)
        self.count_C = count_C
        self.propensity_C = propensities(count_C, training_rows)

    def of(self, model: Classifier, name: Split) -> Scores:
        """Score the rankings of a model as it is."""
        return self.of_rows(model, self.splits[name])

    def of_rows(self, model: Classifier, rows: SparseRows) -> Scores:
        """Score the same on any rows."""
        with encoded_once(model.head):
            return self._scores(rows, lambda data: ranking_scores(self.objective, logits_of(model, data)).cpu().numpy())

    def of_most_frequent(self, name: Split) -> Scores:
        """Score one ranking for all rows: the classes by their rows in training, of equal ones the first.

        The least that a model must beat; a network that has collapsed scores about as much.
        """
        return self._scores(self.splits[name], lambda data: np.tile(self.count_C.astype(np.float32), (len(data), 1)))

    def _scores(self, split: SparseRows, score: Callable[[ClientData], npt.NDArray[np.float32]]) -> Scores:
        ranking = Ranking(len(split), self.classes, self.propensity_C)
        for start in range(0, len(split), self.rows):
            part = split.part(start, start + self.rows)
            ranking.add(score(part.data), part.labels, part.known_BC)
        return ranking.scores()


class Scoring:
    """Scores models on the server's splits by the figures of a run; ``first`` as in ``DenseSplits``."""

    def __init__(self, data: Prepared, objective: Objective, metrics: Metrics, first: Sequence[Split] = ()) -> None:
        ranking = metrics == "ranking"
        self.data, self.objective, self.metrics = data, objective, metrics
        self.dense = DenseSplits(data, objective, () if ranking else first)
        self.ranked = RankedSplits(data, objective) if ranking else None
        self.uncovered_C = data.manifest.uncovered_C()

    def scores(self, model: Classifier, splits: Sequence[str]) -> dict[str, Scores]:
        """Return the scores of a model as it is, by split; a split without rows is left out."""
        return {name: self._on(name, model) for name in SERVER_SPLITS if name in splits and self.data.size(name)}

    def _on(self, name: Split, model: Classifier) -> Scores:
        if self.ranked is not None:
            return self.ranked.of(model, name)
        rows = self.dense[name]
        scores = score_logits(self.metrics, self.objective, logits_of(model, rows).cpu(), rows)
        return with_f1_uncovered(scores, self.uncovered_C, rows)


def with_f1_uncovered(scores: Scores, uncovered_C: Bools, rows: ClientData) -> Scores:
    """Return scores with the mean F1 of the classes that no client identifies, where there are such with known rows."""
    counted_C = uncovered_C & ((rows.y_NC == 1) & (rows.known_NC == 1)).any(0).numpy()
    if not counted_C.any():
        return scores
    return replace(scores, values=scores.values | {F1_UNCOVERED.name: mean(scores.per_class["f1"][counted_C])})


def mean_of_models(models: Sequence[Mapping[str, Scores]]) -> dict[str, Scores]:
    """Return the mean over models, by split, of every figure that all of them have; the counts are the split's own."""
    out = {}
    for split, first in models[0].items():
        each = [model[split] for model in models]
        shared = [name for name in first.values if all(name in s.values for s in each)]
        values = {name: float(np.mean([s.values[name] for s in each])) for name in shared}
        per_class = {name: np.mean([s.per_class[name] for s in each], axis=0) for name in first.per_class}
        notes = tuple(dict.fromkeys(note for s in each for note in s.notes))
        out[split] = Scores(first.metrics, values, per_class, first.counts, notes)
    return out
