"""Mathematics that several methods share: pure functions over tensors.

Shape suffixes: C classes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

AVERAGED_AT_ONCE = 1 << 15
"""Values of a tensor that are averaged at a time: 256 KB in float64."""


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every weight and buffer of the model's state dict, copied; those of a type one behind the other in one storage,
    as they travel (``tree.joined``).
    """
    values = {name: value.detach() for name, value in model.state_dict().items()}
    kinds = dict.fromkeys((value.dtype, value.device) for value in values.values())
    out = dict[str, Tensor]()
    for kind in kinds:
        own = {name: value for name, value in values.items() if (value.dtype, value.device) == kind}
        flat = torch.cat([value.reshape(-1) for value in own.values()])
        parts = torch.split(flat, [value.numel() for value in own.values()])
        out |= {name: part.view(value.shape) for (name, value), part in zip(own.items(), parts, strict=True)}
    return {name: out[name] for name in values}


def load_sent(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model's own storage; parameters that were not sent become NaN, so that whoever uses one
    shows it. ValueError where a weight is not the model's.
    """
    own = model.state_dict()  # not load_state_dict, whose walk over the modules takes longer than the copy of 2 MB
    if strange := [name for name, value in weights.items() if name not in own or own[name].shape != value.shape]:
        raise ValueError(f"not weights of this model: {strange[:3]}")
    for name, value in own.items():
        if name in weights:
            value.copy_(weights[name])
        elif value.is_floating_point():
            value.fill_(float("nan"))


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
    parts = [share / total for share in shares]
    return {name: _mean([value[name] for value in values], parts) for name in values[0]}


def _mean(values: Sequence[Tensor], parts: Sequence[float]) -> Tensor:
    """Of one tensor of every client, piece by piece, so that sum and term stay in the processor's cache."""
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
