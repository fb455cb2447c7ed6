"""Scores on every client's own test rows: of the global model, or of each client's own where a method has no other."""

from __future__ import annotations

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.training.evaluation import RankedSplits, logits_of, score_logits
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.metrics.scores import AUC, SUM, Metrics


class ClientTest:
    """Scores models on clients' own test rows by the figures of a run."""

    def __init__(self, data: Prepared, objective: Objective, metrics: Metrics) -> None:
        self.data, self.objective, self.metrics = data, objective, metrics
        self.ranked = RankedSplits(data, objective, names=()) if metrics == "ranking" else None

    def scores(self, model: Classifier, client: int) -> dict[str, float]:
        """Return the scores of a model as it is; {} where the client has no test row with a known class.

        AUC, and the sum that it is part of, are left out where all rows are of one class.
        """
        if self.ranked is not None:
            rows = self.data.sparse_client_test(client)
            return self.ranked.of_rows(model, rows).values if len(rows.labels.class_P) else {}
        dense = self.data.client_test(client, self.objective)
        present_C = ((dense.y_NC == 1) & (dense.known_NC == 1)).any(0)
        if not present_C.any():
            return {}
        logits_NC = logits_of(model, dense).cpu()
        values = score_logits(self.metrics, self.objective, logits_NC, dense).values
        if int(present_C.sum()) < 2:
            return {name: value for name, value in values.items() if name not in (AUC.name, SUM.name)}
        return values
