"""The scores of 0/1 decisions: NumPy, always finite. Shape suffixes: N rows, C classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.contract import LabelKind
from anchorfl.tasks.metrics.scores import ACCURACY, F1_MACRO, Floats, Scores


@dataclass(frozen=True, slots=True)
class Decisions:
    """Scores in [0, 1] of 0/1 decisions.

    Means run over the classes with support; a class without any scores 0 and counts in no mean.
    """

    macro_f1: float
    """Mean of f1_C over the classes with support."""
    accuracy: float
    """Single-label: share of right rows. Multi-label: mean of accuracy_C over the classes with support."""
    f1_C: Floats
    """F1 per class."""
    accuracy_C: Floats
    """Single-label: share of the class's rows that got it. Multi-label: share of right decisions where it is known."""
    support_C: Ints
    """Known positive rows per class."""
    precision_C: Floats
    """Share of the decisions for a class that are right, 0 where there is none."""

    def scores(self) -> Scores:
        """Return the scores as records have them."""
        values = {F1_MACRO.name: self.macro_f1, ACCURACY.name: self.accuracy}
        return Scores("threshold", values, {"f1": self.f1_C, "accuracy": self.accuracy_C})


def score(kind: LabelKind, predicted_NC: npt.ArrayLike, y_NC: npt.ArrayLike, known_NC: npt.ArrayLike) -> Decisions:
    """Return the scores of 0/1 decisions, counting only known labels (scikit-learn's macro F1 with zero_division=0).

    Single-label: a row counts if its true class is known. Raises ValueError on differing shapes or entries other than
    0, 1.
    """
    hit_NC, y, known = _zero_one(predicted_NC), _zero_one(y_NC), _zero_one(known_NC)
    if hit_NC.ndim != 2 or not hit_NC.shape == y.shape == known.shape:
        raise ValueError(f"decisions {hit_NC.shape}, labels {y.shape} and known {known.shape} must be equal matrices")
    if kind == "single":
        known = np.repeat((y & known).any(1, keepdims=True), y.shape[1], axis=1)
    true_C = (hit_NC & y & known).sum(0)
    predicted_C = (hit_NC & known).sum(0)
    support_C = (y & known).sum(0)
    f1_C = _ratio(2 * true_C, predicted_C + support_C)
    supported = support_C > 0
    if kind == "single":
        accuracy_C = _ratio(true_C, support_C)
        accuracy = float(_ratio(true_C.sum(), support_C.sum()))
    else:
        accuracy_C = _ratio(((hit_NC == y) & known).sum(0), known.sum(0))
        accuracy = mean(accuracy_C[supported])
    precision_C = _ratio(true_C, predicted_C)
    return Decisions(mean(f1_C[supported]), accuracy, f1_C, accuracy_C, support_C.astype(np.int64), precision_C)


def _zero_one(values: npt.ArrayLike) -> Bools:
    array = np.asarray(values)
    if not ((array == 0) | (array == 1)).all():
        raise ValueError("decisions, labels and known masks hold only 0 and 1")
    return array.astype(np.bool_)


def _ratio(part: Any, whole: Any) -> Floats:
    """Return the quotient part / whole, 0 where the whole is 0."""
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def mean(values: Floats) -> float:
    """Return the mean, 0 of nothing."""
    return float(values.mean()) if len(values) else 0.0
