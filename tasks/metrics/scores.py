"""The measures by name, the families that are computed together, and the scores of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Metrics = Literal["threshold", "ranking", "classification"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a split, a fraction in [0, 1]."""

    name: str
    """Name in records and results."""
    value: str
    """Beginning of its names among the numbers of a comparison."""
    short: str
    """Name at the head of a column and in a progress line."""
    shown: str
    """Name anywhere else."""


@dataclass(frozen=True, slots=True)
class Family:
    """The measures that are computed together."""

    measures: tuple[Measure, ...]
    """Measures in the order of the records. By the first, the primary one, a round or a point is chosen."""
    progress: tuple[Measure, ...]
    """Measures of a progress line."""
    compared: tuple[Measure, ...]
    """Measures in tables of several runs."""
    also: tuple[Measure, ...] = ()
    """Others by which a round may be chosen, by name."""
    some: tuple[Measure, ...] = ()
    """Measures that only some data have."""

    @property
    def primary(self) -> Measure:
        """The measure by which a round is chosen."""
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
F1_UNCOVERED = Measure("f1_uncovered", "f1_uncovered", "F1 uncovered", "macro F1 of classes that nobody identifies")
FAMILIES: Mapping[Metrics, Family] = {
    "threshold": Family((F1_MACRO, ACCURACY), (F1_MACRO, ACCURACY), (F1_MACRO, ACCURACY), some=(F1_UNCOVERED,)),
    "ranking": Family((*P_AT, *NDCG_AT, *PSP_AT, MAP), P_AT, (*P_AT, MAP)),
    "classification": Family(
        (F1_MACRO, ACCURACY, PRECISION, RECALL, AUC, SUM),
        (F1_MACRO, ACCURACY, AUC),
        (F1_MACRO, ACCURACY, AUC),
        (SUM,),
        (F1_UNCOVERED,),
    ),
}
"""``evaluation.metrics`` -> family."""
MEASURES: Mapping[str, Measure] = {m.name: m for family in FAMILIES.values() for m in (*family.measures, *family.some)}
"""Name -> measure."""


def family_of(name: str) -> Family:
    """Return the family of a measure. Raises KeyError where there is no such name."""
    return next(family for family in FAMILIES.values() if MEASURES[name] in (*family.measures, *family.some))


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a split."""

    metrics: Metrics
    values: dict[str, float]
    """Name of a measure -> score, in the order of the family, those left out excepted."""
    per_class: dict[str, Floats] = field(default_factory=dict)
    """Name -> value of every class."""
    counts: dict[str, float] = field(default_factory=dict)
    """Further numbers of the split for the records, which are no scores."""
    notes: tuple[str, ...] = ()
    """Lines that a person must know to read the scores."""

    @property
    def line(self) -> str:
        """The figures of a progress line, in percent."""
        return "  ".join(f"{m.short} {100 * self.values[m.name]:5.2f}" for m in FAMILIES[self.metrics].progress)
