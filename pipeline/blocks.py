"""Mathematics that several methods share: pure functions over tensors.

Shape suffixes: C classes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every weight and buffer of the model's state dict, copied."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def load_sent(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model's own storage; parameters that were not sent become NaN, so that whoever uses one
    shows it. ValueError where a weight is not the model's.
    """
    found = model.load_state_dict(dict(weights), strict=False)
    if found.unexpected_keys:
        raise ValueError(f"not weights of this model: {found.unexpected_keys[:3]}")
    missing = model.state_dict()
    for name in found.missing_keys:
        if missing[name].is_floating_point():
            missing[name].fill_(float("nan"))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With a prefix to every name: a part of a client's memory."""
    return {prefix + name: value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names have the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def mean_of(values: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Weighted mean of each tensor, summed in float64 in the given order; integer tensors take the largest value.

    ``shares`` are renormalised to sum to 1. Integer tensors are counters (BatchNorm's batches), which have no mean.
    """
    total = float(sum(shares))
    if not total > 0 or len(values) != len(shares):
        raise ValueError(f"{len(values)} updates with weights that sum to {total}: nothing to average")
    out: dict[str, Tensor] = {}
    for name, first in values[0].items():
        if not first.is_floating_point():
            out[name] = torch.stack([v[name] for v in values]).amax(0)
            continue
        mean = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        for value, share in zip(values, shares, strict=True):
            mean += value[name].double() * (share / total)
        out[name] = mean.to(first.dtype)
    return out


def rows_by_holder(rows_CD: Tensor, reports: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Per class, the mean row over those who hold the class; a class that nobody holds keeps its row.

    ``rows_CD``: the rows before; ``reports``: (rows_CD, holds_C bool) of every client, in order. Summed in float64.
    """
    total_CD = torch.zeros(rows_CD.shape, dtype=torch.float64, device=rows_CD.device)
    count_C = torch.zeros(len(rows_CD), dtype=torch.float64, device=rows_CD.device)
    for theirs_CD, holds_C in reports:
        total_CD[holds_C] += theirs_CD[holds_C].double()
        count_C += holds_C.double()
    mean_CD = total_CD / count_C.clamp(min=1)[:, None]
    return torch.where(count_C[:, None] > 0, mean_CD, rows_CD.double()).to(rows_CD.dtype)


def percentiles(values_NC: Tensor, q: float) -> Tensor:
    """Per column the q-th percentile (0..100), linear interpolation, in float64."""
    # Not torch.quantile, which refuses large inputs; the same arithmetic.
    sorted_NC = values_NC.double().sort(dim=0).values
    rank = torch.tensor(q / 100, dtype=torch.float64, device=values_NC.device) * (len(values_NC) - 1)
    below = int(rank.floor())
    return torch.lerp(sorted_NC[below], sorted_NC[int(rank.ceil())], rank - below)


def log_prior(count_C: Tensor, gamma: float) -> Tensor:
    """What balanced softmax adds to the logits in training: ``gamma log n_c`` with counts of at least 1, float64 [C]
    (Ren et al., NeurIPS 2020; gamma: FedROD). A class that a client lacks is pushed down by as much as one
    sample would be; log 0 would cut it out of the softmax instead.
    """
    return gamma * count_C.clamp(min=1).double().log()
