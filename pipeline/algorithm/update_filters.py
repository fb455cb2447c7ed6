"""Steps between the clients' updates and their aggregation, in the order of a list: clip the norm, select by Krum.

A step that a run wants of its own is one more class here and one more line in ``filters_of``; no method and no server
knows which there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchorfl.pipeline.algorithm.aggregation import Aggregator, clip_step, krum
from anchorfl.pipeline.algorithm.contract import ClientResult, Tensors

Results = Sequence[ClientResult[Any]]


class UpdateFilter(ABC):
    """A step between updates and aggregation."""

    @abstractmethod
    def apply(self, results: Results, sent: Tensors) -> tuple[Results, dict[str, float]]:
        """Return the results to go on with, in the order of client ids, and metrics of the round by name.

        sent: the weights that the clients were sent.
        """


@dataclass(frozen=True)
class ClipNorm(UpdateFilter):
    """Cut every client's step to an L2 norm (``clip_step``)."""

    norm: float
    """Largest norm, above 0."""

    def apply(self, results: Results, sent: Tensors) -> tuple[Results, dict[str, float]]:
        """Return every result with its step cut, and how many that changed."""
        cut = [clip_step(r.update.weights, sent, self.norm) for r in results]
        kept = [replace(r, update=replace(r.update, weights=w)) for r, (w, _) in zip(results, cut, strict=True)]
        return kept, {"aggregation/clipped": float(sum(changed for _, changed in cut))}


@dataclass(frozen=True)
class Krum(UpdateFilter):
    """Keep the updates that lie closest to the others (``krum``)."""

    num_malicious: int
    """Faulty clients that a round withstands."""
    num_selected: int
    """Updates that are kept."""

    def apply(self, results: Results, sent: Tensors) -> tuple[Results, dict[str, float]]:
        """Return the selected results, and how many were left out."""
        selected = krum([r.update.weights for r in results], self.num_malicious, self.num_selected)
        return [results[i] for i in selected], {"aggregation/rejected_by_krum": float(len(results) - len(selected))}


def filters_of(aggregator: Aggregator) -> list[UpdateFilter]:
    """Return the steps that the options of [federation] ask for, in their order."""
    filters: list[UpdateFilter] = []
    if aggregator.clip_norm:
        filters.append(ClipNorm(aggregator.clip_norm))
    if aggregator.aggregation == "krum":
        filters.append(Krum(aggregator.num_malicious, aggregator.num_selected))
    return filters
