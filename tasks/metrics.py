"""What a split scored, by what names, and the scores of 0/1 decisions: NumPy, always finite (rankings: ranking.py).

Shape suffixes: N rows, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tasks.columns import Bools, Ints
from tasks.contract import Kind

Floats = npt.NDArray[np.float64]
Metrics = Literal["decisions", "ranking", "classification"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a split, a fraction in [0, 1]. name: in records and results; value: how its names begin among the
    numbers of a comparison; short: at the head of a column; shown: anywhere else.
    """

    name: str
    value: str
    short: str
    shown: str


@dataclass(frozen=True, slots=True)
class Family:
    """The measures that are computed together, in the order of the records. The first is the primary one, by which a
    round or a point is chosen; told: those of a progress line; compared: those in tables of several runs; also: others
    by which a round may be chosen, by name.
    """

    measures: tuple[Measure, ...]
    told: tuple[Measure, ...]
    compared: tuple[Measure, ...]
    also: tuple[Measure, ...] = ()

    @property
    def primary(self) -> Measure:
        """What chooses."""
        return self.measures[0]


F1_MACRO = Measure("f1_macro", "f1", "F1", "macro F1")
ACCURACY = Measure("accuracy", "accuracy", "acc", "accuracy")
CUTS = (1, 3, 5)
"""k of the measures at k."""
P_AT, NDCG_AT, PSP_AT = (
    tuple(Measure(f"{name}_at_{k}", f"{name}_at_{k}", f"{word}@{k}", f"{word}@{k}") for k in CUTS)
    for name, word in (("p", "P"), ("ndcg", "nDCG"), ("psp", "PSP"))
)
MAP = Measure("map", "map", "mAP", "mAP")
PRECISION = Measure("precision_macro", "precision", "precision", "macro precision")
RECALL = Measure("recall_macro", "recall", "recall", "macro recall")
AUC = Measure("auc", "auc", "AUC", "AUC")
SUM = Measure("sum", "sum", "sum", "sum of five scores")
FAMILIES: Mapping[Metrics, Family] = {
    "decisions": Family((F1_MACRO, ACCURACY), (F1_MACRO, ACCURACY), (F1_MACRO, ACCURACY)),
    "ranking": Family((*P_AT, *NDCG_AT, *PSP_AT, MAP), P_AT, (*P_AT, MAP)),
    "classification": Family(
        (F1_MACRO, ACCURACY, PRECISION, RECALL, AUC, SUM), (F1_MACRO, ACCURACY, AUC), (F1_MACRO, ACCURACY, AUC), (SUM,)
    ),
}
"""By ``evaluation.metrics``."""
MEASURES: Mapping[str, Measure] = {m.name: m for family in FAMILIES.values() for m in family.measures}
"""By name."""


def family_of(name: str) -> Family:
    """The family of a measure. KeyError where there is no such name."""
    return next(family for family in FAMILIES.values() if MEASURES[name] in family.measures)


@dataclass(frozen=True, slots=True)
class Scores:
    """What a split scored. values: by name of a measure, in the order of its family, those left out excepted;
    per_class: name -> value of every class; counts: further numbers of the split for the records, which are no scores;
    notes: what a person must know to read them, a line each.
    """

    metrics: Metrics
    values: dict[str, float]
    per_class: dict[str, Floats] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def primary(self) -> float:
        """The figure by which a round is chosen."""
        return self.values[FAMILIES[self.metrics].primary.name]

    @property
    def line(self) -> str:
        """The figures of a progress line, in percent."""
        return "  ".join(f"{m.shown} {100 * self.values[m.name]:5.2f}" for m in FAMILIES[self.metrics].told)


@dataclass(frozen=True, slots=True)
class Decisions:
    """Scores in [0, 1]. Means run over the classes with support; a class without any scores 0 and counts in no mean.

    f1_C: F1 per class; accuracy_C: single-label, share of the class's rows that got it; multi-label, share of right
    decisions where the class is known; support_C: known positive rows per class; precision_C: share of the decisions
    for a class that are right, 0 where there is none.
    """

    macro_f1: float
    accuracy: float
    """Single-label: share of right rows. Multi-label: mean of accuracy_C over the classes with support."""
    f1_C: Floats
    accuracy_C: Floats
    support_C: Ints
    precision_C: Floats

    def scores(self) -> Scores:
        """As records have them."""
        values = {F1_MACRO.name: self.macro_f1, ACCURACY.name: self.accuracy}
        return Scores("decisions", values, {"f1": self.f1_C, "accuracy": self.accuracy_C})


def score(kind: Kind, predicted_NC: npt.ArrayLike, y_NC: npt.ArrayLike, known_NC: npt.ArrayLike) -> Decisions:
    """The scores of 0/1 decisions, counting only known labels (scikit-learn's macro F1 with zero_division=0).

    Single-label: a row counts if its true class is known. Raises ValueError on differing shapes or entries other than
    0, 1.
    """
    hit_NC, y, known = _zero_one(predicted_NC), _zero_one(y_NC), _zero_one(known_NC)
    if hit_NC.ndim != 2 or not hit_NC.shape == y.shape == known.shape:
        msg = f"decisions {hit_NC.shape}, labels {y.shape} and known {known.shape} must be equal matrices"
        raise ValueError(msg)
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
        msg = "decisions, labels and known masks hold only 0 and 1"
        raise ValueError(msg)
    return array.astype(np.bool_)


def _ratio(part: Any, whole: Any) -> Floats:
    """Quotient part / whole, 0 where the whole is 0."""
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def mean(values: Floats) -> float:
    """The mean, 0 of nothing."""
    return float(values.mean()) if len(values) else 0.0
