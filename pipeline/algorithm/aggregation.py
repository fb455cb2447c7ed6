"""Averages of what clients send: the mean, and those that a few faulty clients cannot steer: coordinate median,
trimmed mean, Krum, and a clip of clients' steps.

Pure functions over plain dicts of tensors, whose values are finite (an update with others is refused before). A client
counts once, whatever number of samples it says it has, in ``median_of`` and ``trimmed_mean_of``; the mean that follows
``krum`` or ``clip_step`` has the method's weights. As in ``mean_of``, integer tensors are counters and take the largest
value, and floats are computed in float64 and come back in their own type. What none of this protects:
docs/robust-aggregation.md.

Shape suffixes: N answers of a round, P coordinates that are sorted at once, C classes, D width.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.messages import joined
from anchorfl.pipeline.algorithm.options import Aggregation

Average = Callable[[Sequence[Mapping[str, Tensor]], Sequence[float]], dict[str, Tensor]]
"""The average of what clients send whole: (tensors of every client, weights) -> tensors."""
ROBUST = ("median", "trimmed_mean", "krum", "clip_norm")
"""Changes that a run can make to the mean, or before it; a method says which of them it allows."""
Weighting = Literal["samples", "uniform"]
"""Weight of a client in a mean: its number of samples, or 1."""
SORTED_AT_ONCE = 1 << 18
"""Coordinates that are sorted at one time, so that memory grows with answers times this and not times the model."""


def median_of(values: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the coordinate-wise median of each tensor: the mean of the two in the middle where N is even.

    It stays within the range of the others in every coordinate while fewer than N / 2 clients are faulty (Yin et al.,
    ICML 2018, Definition 1; Algorithm 1, option I). ValueError where there is no update.
    """
    return _between(values, (len(values) - 1) // 2)


def trimmed_mean_of(values: Sequence[Mapping[str, Tensor]], trim: float) -> dict[str, Tensor]:
    """Return the coordinate-wise mean without the ``trimmed_count(N, trim)`` largest and as many smallest values.

    It stays within the range of the others in every coordinate while no more clients than those are faulty (Yin et al.,
    ICML 2018, Definition 2; Algorithm 1, option II). ValueError where there is no update.
    """
    return _between(values, trimmed_count(len(values), trim))


def trimmed_count(answers: int, trim: float) -> int:
    """Return how many of N answers a trimmed mean leaves out at each side: trim * N rounded down, and never all."""
    if not 0 <= trim < 0.5:
        raise ValueError(f"trim = {trim}: must be in [0, 0.5)")
    count = math.floor(trim * answers + 1e-9)  # 0.29 * 100 is 28.999999999999996
    return max(0, min(count, (answers - 1) // 2))


def _between(values: Sequence[Mapping[str, Tensor]], left_out: int) -> dict[str, Tensor]:
    """Return the mean of every coordinate's values without the ``left_out`` smallest and largest."""
    if not values:
        raise ValueError("0 updates: nothing to merge")
    out: dict[str, Tensor] = {}
    for name, first in values[0].items():
        if not first.is_floating_point():
            out[name] = torch.stack([v[name] for v in values]).amax(0)
            continue
        wide = first.dtype if first.dtype == torch.float64 else torch.float32
        flat = [v[name].reshape(-1).to(wide) for v in values]
        means = []
        for start in range(0, max(1, first.numel()), SORTED_AT_ONCE):
            rows_PN = torch.stack([f[start : start + SORTED_AT_ONCE] for f in flat], dim=1)
            sorted_PN = torch.from_numpy(np.sort(rows_PN.numpy(), axis=1))  # up to 17 times as fast as torch's
            kept_PN = sorted_PN[:, left_out : len(values) - left_out]
            means.append(kept_PN.double().mean(1) + 0.0)  # which of 0.0 and -0.0 comes first is the processor's choice
        out[name] = torch.cat(means).reshape(first.shape).to(first.dtype)
    return out


def krum(values: Sequence[Mapping[str, Tensor]], faulty: int, keep: int = 1) -> list[int]:
    """Return the indices of the ``keep`` updates with the lowest scores, ascending; of equal scores the first ones.

    The score of an update is the sum of its squared distances to the N - faulty - 2 nearest of the others, over all
    float tensors at once (Blanchard et al., NeurIPS 2017, section 4; keep > 1: Multi-Krum, section 6, whose mean is the
    caller's). ValueError unless N >= 2 faulty + 3 (Proposition 1) and 1 <= keep <= N - faulty - 2, the range in which
    Multi-Krum is studied (El-Mhamdi, Guerraoui and Rouault, arXiv 1905.04374).
    """
    count = len(values)
    if faulty < 0 or count < 2 * faulty + 3:
        raise ValueError(f"Krum with {faulty} faulty clients needs {2 * max(0, faulty) + 3} updates, not {count}")
    nearest = count - faulty - 2
    if not 1 <= keep <= nearest:
        raise ValueError(f"Krum of {count} updates, {faulty} of them faulty, keeps 1 to {nearest}, not {keep}")
    square_NN = _squared_distances(values).fill_diagonal_(math.inf)
    score_N = square_NN.sort(dim=1).values[:, :nearest].sum(1)
    selected: list[int] = score_N.argsort(stable=True)[:keep].tolist()
    return sorted(selected)


def _squared_distances(values: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the squared distance of every pair, float64 [N, N].

    By differences: by products they would drown in the size of the weights.
    """
    square_NN = torch.zeros(len(values), len(values), dtype=torch.float64)
    names = [name for name, first in values[0].items() if first.is_floating_point()]
    for i, one in enumerate(values):
        for j in range(i):
            for name in names:
                square_NN[i, j] += (one[name].double() - values[j][name].double()).square().sum()
    return square_NN + square_NN.T


LARGEST_RATIO = 1e4
"""No client's weights grow so much in a round that trains anything."""


NORM_VALUES = 1 << 16
"""Values whose squares are summed at a time in their own type."""


def norm_of(weights: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all float tensors at once, to four digits. BatchNorm's statistics are float tensors and
    count.

    It does not overflow: squares that do are those of float64, where float32's largest value has one of 1e77.
    """
    floats = [value for value in weights.values() if value.is_floating_point()]
    whole = joined(floats) if floats else None
    square = 0.0
    for value in floats if whole is None else [whole]:
        for part in torch.split(value.reshape(-1), NORM_VALUES):
            here = float(part.dot(part))
            if not math.isfinite(here):
                wide = part.double()
                here = float(wide.dot(wide))
            square += here
    return math.sqrt(square)


def out_of_scale(norms: Sequence[float], sent: float) -> list[bool]:
    """Return for each client's norm whether it is above ``LARGEST_RATIO`` times what could explain it.

    That is the norm of the weights that it was sent, the median norm of the other clients, or 1, whichever is largest.
    """
    order = sorted(norms)

    def median_of_others(norm: float) -> float:
        rank, others = bisect.bisect_left(order, norm), len(order) - 1
        middle = (others - 1) // 2, others // 2  # twice the same, or two neighbours
        low, high = (order[k + (k >= rank)] for k in middle)
        return (low + high) / 2

    scales = [max(1.0, sent, median_of_others(norm) if len(order) > 1 else 0.0) for norm in norms]
    return [norm > LARGEST_RATIO * scale for norm, scale in zip(norms, scales, strict=True)]


def clip_step(weights: Mapping[str, Tensor], sent: Mapping[str, Tensor], norm: float) -> tuple[dict[str, Tensor], bool]:
    """Return a client's weights with its step cut to L2 norm ``norm``, and whether that changed them.

    The step is the difference from what it was sent, over all float tensors at once; a shorter one comes back as it is.

    ``sent + step / max(1, |step| / norm)`` (Sun et al., arXiv 1911.07963: norm thresholding of updates). BatchNorm's
    statistics are float tensors and count.
    """
    names = [name for name, value in weights.items() if value.is_floating_point()]
    step = {name: weights[name].double() - sent[name].double() for name in names}
    length = math.sqrt(math.fsum(float(s.square().sum()) for s in step.values()))
    if length <= norm:
        return dict(weights), False
    scale = norm / length
    cut_off = {name: (sent[name].double() + scale * s).to(weights[name].dtype) for name, s in step.items()}
    return dict(weights) | cut_off, True


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregator:
    """The aggregation of a run: five options of [federation], whose names stand in its errors (ValueError)."""

    aggregation: Aggregation = "mean"
    """Average of what clients send whole."""
    trim_fraction: float = 0.2
    """Share of the answers that a trimmed mean cuts at each side, in [0, 0.5)."""
    num_malicious: int = 1
    """Faulty clients that Krum withstands, >= 1."""
    num_selected: int = 1
    """Updates that Krum keeps, >= 1."""
    clip_norm: float = 0.0
    """Longest step of a client, >= 0; 0: none is cut."""

    def __post_init__(self) -> None:
        if not 0 <= self.trim_fraction < 0.5:
            raise ValueError(
                f"federation.trim_fraction = {self.trim_fraction}: must be in [0, 0.5), the share cut at each side"
            )
        for name, value in (("krum_num_malicious", self.num_malicious), ("krum_num_selected", self.num_selected)):
            if value < 1:
                raise ValueError(f"federation.{name} = {value}: must be at least 1")
        if not 0 <= self.clip_norm < math.inf:
            raise ValueError(f"federation.clip_norm = {self.clip_norm}: must be above 0 and finite, or 0 for no clip")

    @property
    def uses(self) -> tuple[tuple[str, str], ...]:
        """The members of ``ROBUST`` that are on, each with the option that says so."""
        rule = (self.aggregation, f"federation.aggregation = {self.aggregation!r}")
        clip = ("clip_norm", f"federation.clip_norm = {self.clip_norm:g}")
        return ((rule,) if self.aggregation != "mean" else ()) + ((clip,) if self.clip_norm else ())

    @property
    def average(self) -> Average:
        """The average of what clients send whole: ``mean_of``, also for Krum; or one that ignores the weights."""
        if self.aggregation == "median":
            return lambda values, _: median_of(values)
        if self.aggregation == "trimmed_mean":
            return lambda values, _: trimmed_mean_of(values, self.trim_fraction)
        return mean_of

    def lack(self, answers: int) -> str:
        """Return why a round of so many answers would not withstand a single faulty client; '' where it does, or where
        the aggregation is the mean.
        """
        if self.aggregation == "median" and answers < 3:
            return f"the median of {answers} withstands no faulty client, that of 3 does"
        if self.aggregation == "trimmed_mean" and not trimmed_count(answers, self.trim_fraction):
            return f"trim_fraction = {self.trim_fraction:g} of {answers} answers cuts nobody"
        if self.aggregation == "krum" and answers < 2 * self.num_malicious + 3:
            return (
                f"krum_num_malicious = {self.num_malicious} needs {2 * self.num_malicious + 3} answers, not {answers}"
            )
        if self.aggregation == "krum" and self.num_selected > answers - self.num_malicious - 2:
            most = answers - self.num_malicious - 2
            return (
                f"krum_num_selected = {self.num_selected} is more than answers - krum_num_malicious - 2, which is"
                f" {most}"
            )
        return ""


AVERAGED_AT_ONCE = 1 << 15
"""Values of a tensor that are averaged at a time: 256 KB in float64."""


def mean_of(values: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of each tensor, summed in float64 in the given order.

    ``shares`` are renormalized to sum to 1. Integer tensors take the largest value: they are counters (BatchNorm's
    batches), which have no mean.
    """
    total = float(sum(shares))
    if not total > 0 or len(values) != len(shares):
        raise ValueError(f"{len(values)} updates with weights that sum to {total}: nothing to average")
    parts = [share / total for share in shares]
    return _joined_mean(values, parts) or {name: _mean([value[name] for value in values], parts) for name in values[0]}


def _joined_mean(values: Sequence[Mapping[str, Tensor]], parts: Sequence[float]) -> dict[str, Tensor]:
    """Return the mean where all tensors are of one type and every client's lie in one piece in the same order, at once:
    the same sums of the same terms; {} where they do not.
    """
    first = values[0]
    shapes = {name: value.shape for name, value in first.items()}
    same = all({name: value.shape for name, value in other.items()} == shapes for other in values[1:])
    if not same or not first or not next(iter(first.values())).is_floating_point():
        return {}
    whole = [joined([value[name] for name in first]) for value in values]
    flat = [part for part in whole if part is not None]
    if len(flat) < len(values):
        return {}
    pieces = torch.split(_mean(flat, parts), [shape.numel() for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def _mean(values: Sequence[Tensor], parts: Sequence[float]) -> Tensor:
    """Return the mean of one tensor of every client, piece by piece: sum and term stay in the processor's cache."""
    if unlike := [v for v in values if v.shape != values[0].shape or v.dtype != values[0].dtype]:
        (first, *_), other = values, unlike[0]
        raise ValueError(f"no mean of {first.dtype} {tuple(first.shape)} and {other.dtype} {tuple(other.shape)}")
    if not values[0].is_floating_point():
        return torch.stack(list(values)).amax(0)
    flat = [value.reshape(-1) for value in values]
    out = torch.empty_like(flat[0])
    total, term = torch.empty((2, min(len(out), AVERAGED_AT_ONCE)), dtype=torch.float64, device=out.device)
    for start in range(0, len(out), AVERAGED_AT_ONCE):
        end = min(start + AVERAGED_AT_ONCE, len(out))
        sum_, product = total[: end - start].zero_(), term[: end - start]
        for value, part in zip(flat, parts, strict=True):
            # two roundings, as in a sum of products: add_ with alpha would have one
            sum_ += product.copy_(value[start:end]).mul_(part)
        out[start:end] = sum_
    return out.view(values[0].shape)
