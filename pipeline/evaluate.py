"""From a model to scores on the server's splits, which are labelled as far as the raw data are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.classifier import Classifier
from pipeline.contract import Tensors
from pipeline.training import infer
from tasks.class_counts import training_counts
from tasks.contract import ClientData, Objective
from tasks.metrics import Decisions, Scores, score
from tasks.ranking import Ranking, propensities
from tasks.sparse_split import SparseSplit
from tasks.store import SPLITS, Prepared, Split

ROWS, LOGITS = 512, 2**24
"""Rows that are scored at a time in a ranking, fewer where they have more logits than that."""


@torch.no_grad()
def logits_of(model: Classifier, data: ClientData) -> Tensor:
    """Logits [N, C] in evaluation mode."""
    z_ND = infer(model, data)
    was_training = model.training
    model.eval()
    logits_NC: Tensor = model.head(z_ND)
    model.train(was_training)
    return logits_NC


def evaluate(model: Classifier, weights: Tensors, data: ClientData, objective: Objective) -> Decisions:
    """Scores of the decisions of ``weights`` on ``data``; ``model`` is a work-space."""
    model.load_state_dict(weights)
    predicted_NC = objective.predict(logits_of(model, data)).cpu()
    return score(objective.kind, predicted_NC.numpy(), data.y_NC.numpy(), data.known_NC.numpy())


def ranked(objective: Objective, logits_NC: Tensor) -> Tensor:
    """What orders classes and rows: the logits (multi-label), or the logarithm of softmax, which compares rows too.

    Both are in the order of ``Objective.scores``, and unlike these do not become equal where they are far out.
    """
    return logits_NC.log_softmax(-1) if objective.kind == "single" else logits_NC


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

    def __init__(self, data: Prepared, objective: Objective, rows: int = ROWS) -> None:
        self.splits: dict[Split, SparseSplit] = {name: data.sparse_split(name) for name in SPLITS}
        self.objective = objective
        self.classes = len(data.manifest.class_names)
        self.rows = max(1, min(rows, LOGITS // self.classes))
        held, count_C = training_counts(data)
        self.propensity_C = propensities(count_C, held)

    def scores(self, model: Classifier, weights: Tensors, name: Split) -> Scores:
        """Scores of the rankings of ``weights`` on a split; ``model`` is a work-space."""
        model.load_state_dict(weights)
        split = self.splits[name]
        ranking = Ranking(len(split), self.classes, self.propensity_C)
        for start in range(0, len(split), self.rows):
            part = split.part(start, start + self.rows)
            logits_BC = ranked(self.objective, logits_of(model, part.data)).cpu()
            ranking.add(logits_BC.numpy(), part.labels, part.known_BC)
        return ranking.scores()
