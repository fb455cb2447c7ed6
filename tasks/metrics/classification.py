"""Scores of a single-label classifier from its decisions and its scores: FedBM's five figures and their mean.

- Precision, recall and F1 are means over the classes with at least one known row; precision is 0 where a class is never
  decided for. Recall averaged over decisions instead of classes ("micro") is the accuracy.
- AUC: the area under the ROC curve of a class against the rest, which is how often a row of the class scores above
  another row, a tie counting one half (scikit-learn's ``roc_auc_score``); the mean over the classes that have a row on
  either side.
- sum: accuracy + micro recall + precision + F1 + AUC, over 5. FedBM's reference code chooses the round by that sum;
  the accuracy is in it twice.
- A row whose class is not known counts nowhere.

Shape suffixes: N rows, C classes, P positives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.decisions import mean, score
from anchorfl.tasks.metrics.scores import ACCURACY, AUC, F1_MACRO, PRECISION, RECALL, SUM, Floats, Scores


def count_confusion(true_N: Ints, predicted_N: Ints, classes: int) -> Ints:
    """Count the rows of each true class (first axis) that were predicted as each class: [C, C]."""
    return np.bincount(true_N * classes + predicted_N, minlength=classes * classes).reshape(classes, classes)


def classification(
    predicted_NC: npt.ArrayLike, score_NC: npt.NDArray[Any], y_NC: npt.ArrayLike, known_NC: npt.ArrayLike
) -> Scores:
    """Return the figures of a split. score_NC: any that put the rows of a class in the order of its confidence.

    Raises ValueError as ``metrics.score`` does, InputError where a score is not finite.
    """
    decisions = score("single", predicted_NC, y_NC, known_NC)
    finite_N = np.isfinite(score_NC).all(1)
    if not finite_N.all():
        row = int(np.flatnonzero(~finite_N)[0])
        raise InputError(f"row {row} has a score that is not finite: the model diverged; lower optimizer.lr")
    y = np.asarray(y_NC, dtype=np.bool_)
    counted_N = (y & np.asarray(known_NC, dtype=np.bool_)).any(1)
    auc_C, sides_C = auc(score_NC[counted_N], y[counted_N])
    supported = decisions.support_C > 0
    precision, area = mean(decisions.precision_C[supported]), mean(auc_C[sides_C])
    accuracy, f1 = decisions.accuracy, decisions.macro_f1
    values = {
        F1_MACRO.name: f1,
        ACCURACY.name: accuracy,
        PRECISION.name: precision,
        RECALL.name: mean(decisions.accuracy_C[supported]),
        AUC.name: area,
        SUM.name: (accuracy + accuracy + precision + f1 + area) / 5,
    }
    each = {"f1": decisions.f1_C, "precision": decisions.precision_C, "recall": decisions.accuracy_C, "auc": auc_C}
    missing = int((~sides_C).sum())
    notes = (
        (f"{missing} of {len(sides_C)} classes have no row, or all of them; AUC leaves them out",) if missing else ()
    )
    return Scores("classification", values, each, notes=notes)


def auc(score_NC: npt.NDArray[Any], y_NC: Bools) -> tuple[Floats, Bools]:
    """Return the area of every class against the rest, 0 without a row on either side, and which have both."""
    auc_C = np.zeros(y_NC.shape[1])
    sides_C: Bools = np.asarray(y_NC.any(0) & ~y_NC.all(0))
    for class_ in np.flatnonzero(sides_C):
        positive_P = score_NC[y_NC[:, class_], class_]
        negative = np.sort(score_NC[~y_NC[:, class_], class_])
        # twice the pairs that are won: those strictly above, and once again those at least equal
        won = sum(int(np.searchsorted(negative, positive_P, side).sum()) for side in ("left", "right"))
        auc_C[class_] = won / (2 * len(positive_P) * len(negative))
    return auc_C, sides_C
