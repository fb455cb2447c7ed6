"""From a model to scores on fully labelled rows."""

from __future__ import annotations

import torch
from torch import Tensor

from models.classifier import Classifier
from pipeline.contract import Tensors
from pipeline.training import infer
from tasks.contract import ClientData, Objective
from tasks.metrics import Scores, score


@torch.no_grad()
def logits_of(model: Classifier, data: ClientData) -> Tensor:
    """Logits [N, C] in evaluation mode."""
    z_ND = infer(model, data)
    was_training = model.training
    model.eval()
    logits_NC: Tensor = model.head(z_ND)
    model.train(was_training)
    return logits_NC


def evaluate(model: Classifier, weights: Tensors, data: ClientData, objective: Objective) -> Scores:
    """Scores of ``weights`` on ``data``; ``model`` is a work-space."""
    model.load_state_dict(weights)
    predicted_NC = objective.predict(logits_of(model, data)).cpu()
    return score(objective.kind, predicted_NC.numpy(), data.y_NC.numpy(), data.known_NC.numpy())
