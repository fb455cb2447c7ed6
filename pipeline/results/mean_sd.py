"""A mean and its standard deviation as text, in one way everywhere."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def mean_sd(mean: float, sd: float | None) -> str:
    """Return ``84.26 ± 3.15``; the mean alone where there is no sd, since one value says nothing about its spread."""
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def mean_sd_percent(scores: Sequence[float]) -> str:
    """Return mean and sd (ddof 1) of scores (0 to 1) in percent, as ``mean_sd``."""
    sd = 100 * statistics.stdev(scores) if len(scores) > 1 else None
    return mean_sd(100 * statistics.fmean(scores), sd)
