"""Weighted means over clients whose sums are exact: the same bits in any order and grouping, on any number of workers.

A client's term in a sum is n * w, with a whole number n and w in float32, and float64 holds that product exactly. It is
rounded to a grid that server and workers know before anybody trains: multiples of a power of two, ``step``, so coarse
that no sum of a round leaves the 2^53 multiples that float64 has. So no sum is ever rounded, whatever has been added to
it before, and sums of sums are sums. What cannot go on the grid, since it is larger than anybody would have thought, is
added at the end in the order of clients, so it is still the clients alone who decide the bits. Derivation, error and
limits: docs/exact-sums.md.

Shape suffixes: C rows, one of each class, I clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.messages import joined

Tensors = dict[str, Tensor]
Average = Callable[[Sequence[Mapping[str, Tensor]], Sequence[float]], Tensors]
Wide = npt.NDArray[np.float64]

HEADROOM = 8
"""Binary orders by which a client's tensor may be larger than the server's before the round, and still be summed."""
SMALLEST = -6
"""Binary order that a tensor of the server has at least, for those that start from zero."""
ADDED_AT_ONCE = 1 << 15
"""Values that are added at a time: 256 KB in float64, which stay in the processor's cache."""
WAIT_AT_MOST, BYTES_THAT_WAIT = 8, 1 << 26
"""Contributions that are added together: so many, or of so many bytes and the one more."""
LARGEST_WEIGHT = 1 << 29
"""A weight times 24 bits of float32 must be exact in the 53 of float64."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one client adds to one weighted mean."""

    values: Tensors
    """Floats, or whole numbers that count something, of which the mean takes the largest (BatchNorm's batches)."""
    weight: float | Tensor
    """Of all values, >= 0; or [C], of row c of every value."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a method's server takes in of one client's update."""

    terms: Mapping[str, Term]
    """By the name of the mean; the same names for every client of a round, with a weight of 0 where it adds nothing."""
    own: Tensors = field(default_factory=dict)
    """Small tensors that the server gets as they are."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a method's server makes its next state from."""

    values: Mapping[str, Tensors]
    """Means by name; without those whose weights are all 0. Rows of weight 0 are zeros."""
    weight: Mapping[str, Tensor]
    """Sums of the weights, float64: of one value or [C]."""
    clients: Sequence[int]
    """Who answered, ascending."""
    own: Mapping[int, Tensors]
    """``Contribution.own`` by client."""

    def __getitem__(self, name: str) -> Tensors:
        return self.values[name]

    def rows(self, name: str, before: Mapping[str, Tensor]) -> Tensors:
        """Return means row by row, with the row of ``before`` where nobody gave one a weight."""
        has_C = self.weight[name] > 0
        return {
            n: torch.where(has_C.view(-1, *[1] * (value.dim() - 1)), value, before[n])
            for n, value in self.values.get(name, {}).items()
        }


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of a round: small, and sent to every worker."""

    bounds: Mapping[str, Mapping[str, float]]
    """Mean -> tensor -> largest absolute value, a power of two. One that does not stand here has that of the weights of
    its name, or ``default_bound``.
    """
    weights: Mapping[str, float]
    """Mean -> sum of the weights of all clients that may answer, at most; "": of means that do not stand here."""
    largest_norm: float
    """Norm of weights that need a second look (``aggregation.out_of_scale``), and are not summed before."""

    def bound(self, term: str, name: str) -> float:
        """Return the largest absolute value of a tensor."""
        weights = self.bounds.get("weights", {})
        return self.bounds.get(term, weights).get(name, weights.get(name, default_bound()))

    def magic(self, term: str, bound: float) -> float:
        """Return the number that, added and taken off again, rounds to the grid: 3/2 * 2^52 * step.

        step = 2^(ceil(log2(weight * bound)) - 51): all sums lie within 2^51 steps, each rounding aside.
        """
        weight = self.weights.get(term, self.weights[""])
        return 1.5 * 2.0 ** (math.ceil(math.log2(max(weight, 1.0) * bound)) + 1)


def beyond(contribution: Contribution, grid: Grid) -> str:
    """Return the first tensor of a contribution that exceeds its bound, in words; '' for none."""
    for name, term in contribution.terms.items():
        for tensor, value in term.values.items():
            if value.is_floating_point() and value.numel():
                largest, bound = float(value.abs().max()), grid.bound(name, tensor)
                if not largest <= bound:
                    return f"{tensor!r} has values up to {largest:.3g}, and there is room for {bound:g}"
    return ""


def default_bound() -> float:
    """Return the bound of a tensor that the server has none like, or a smaller one."""
    return 2.0 ** (SMALLEST + HEADROOM)


def bounds_of(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the bound of every tensor, from the server's before the round, which are finite."""
    out = {}
    for name, value in tensors.items():
        if value.is_floating_point() and value.numel():
            low, high = torch.aminmax(value)
            largest = max(-float(low), float(high), 2.0 ** (SMALLEST - 1))
            out[name] = 2.0 ** (math.frexp(largest)[1] + HEADROOM)
    return out


class _Sum:
    """The sum of one term over clients."""

    def __init__(self, name: str, values: Mapping[str, Tensor], weight: Tensor, grid: Grid, spare: _Sum | None) -> None:
        """weight: of the shape of the term's; spare: a sum of an earlier round, whose memory is used again."""
        self.shapes = {n: value.shape for n, value in values.items()}
        self.spans: dict[str, tuple[int, int, float]] = {}  # float tensor -> (start, end, magic) in ``total``
        self.pieces: list[tuple[int, int, float, float]] = []  # (start, end, bound, magic): neighbours of one bound
        end = 0
        for n, value in values.items():
            if value.is_floating_point():
                start, end, bound = end, end + value.numel(), grid.bound(name, n)
                self.spans[n] = start, end, grid.magic(name, bound)
                if self.pieces and self.pieces[-1][2] == bound:
                    start = self.pieces.pop()[0]
                self.pieces.append((start, end, bound, grid.magic(name, bound)))
        self.total: Wide = spare.total if spare is not None and len(spare.total) == end else np.empty(end)
        self.weight = np.zeros(weight.shape)
        self.counters: Tensors = {}
        self.empty = True  # what stands in ``total`` is of no client of this round
        if weight.dim():
            self.total[:] = 0

    def ordered(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a term's tensors in the order of the sum's: another client's may come in another."""
        return values if list(values) == list(self.shapes) else {name: values[name] for name in self.shapes}

    def fits(self, flat: Tensor) -> bool:
        """Return whether all values of a term are within their bounds; NaN is not."""
        for start, end, bound, _ in self.pieces:
            if end > start:
                low, high = torch.aminmax(flat[start:end])
                if not (-bound <= float(low) and float(high) <= bound):
                    return False
        return True

    def add(self, each: Sequence[tuple[float, npt.NDArray[np.float32]]], space: Wide) -> None:
        """Add terms with one weight each. space: of ``ADDED_AT_ONCE`` values."""
        for start, end, _, magic in self.pieces:
            for first in range(start, end, ADDED_AT_ONCE):
                last = min(first + ADDED_AT_ONCE, end)
                product, total, empty = space[: last - first], self.total[first:last], self.empty
                for weight, flat in each:
                    product[:] = flat[first:last]
                    product *= weight
                    product += magic
                    product -= magic
                    if empty:
                        total[:], empty = product, False
                    else:
                        total += product
        self.empty = self.empty and not each

    def add_rows(self, weight_C: Wide, flat: npt.NDArray[np.float32]) -> None:
        """Add the rows of a term that have a weight."""
        rows = np.flatnonzero(weight_C)
        for start, end, magic in self.spans.values():
            product = flat[start:end].reshape(len(weight_C), -1)[rows] * weight_C[rows, None]
            self.total[start:end].reshape(len(weight_C), -1)[rows] += (product + magic) - magic
        self.empty = False

    def count(self, values: Mapping[str, Tensor]) -> None:
        """Keep the largest of what counts something."""
        for name, value in values.items():
            if not value.is_floating_point():
                before = self.counters.get(name)
                self.counters[name] = value.clone() if before is None else torch.maximum(before, value)

    def named(self, flat: Tensor) -> Tensors:
        """Return the values of a term, in its order, out of ``flat`` and the counters."""
        out = {}
        for name, shape in self.shapes.items():
            if name in self.spans:
                start, end, _ = self.spans[name]
                out[name] = flat[start:end].view(shape)
            else:
                out[name] = self.counters[name]
        return out

    def mean(self, others: Sequence[Term]) -> tuple[Tensors, Tensor]:
        """Return the mean of all that was added, and of ``others`` in this order; and the sum of the weights."""
        total, weight = (self.total.copy() if others else self.total), self.weight.copy()
        if self.empty:
            total = np.zeros_like(total)
        for term in others:
            weight_ = np.asarray(term.weight, dtype=np.float64)
            weight += weight_
            self.count(term.values)
            for name, (start, end, _) in self.spans.items():
                values = term.values[name].double().numpy().reshape(*weight.shape, -1)
                # a row of weight 0 is not taken in, whatever it holds
                heard = np.where(weight_[..., None] > 0, values, 0.0)
                total[start:end] += (heard * weight_[..., None]).reshape(-1)
        divided, shape = np.empty(len(total), np.float32), (*weight.shape, -1)
        by = np.where(weight > 0, weight, 1.0)[..., None]
        for start, end, _ in self.spans.values():
            parts = (array[start:end].reshape(shape) for array in (total, divided))
            np.divide(next(parts), by, out=next(parts), casting="same_kind")  # in float64, and then rounded
        return self.named(torch.from_numpy(divided)), torch.from_numpy(weight)


class ExactSums:
    """Sums of clients' contributions, and sums of such sums."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._spare: dict[str, _Sum] = {}
        self._space = np.empty(ADDED_AT_ONCE)
        self._waiting: dict[str, list[tuple[float, npt.NDArray[np.float32]]]] = {}
        self._unheard: dict[str, Tensor] = {}  # weights, all 0, of means that others' sums have nothing for
        self.clients: list[int] = []
        """Those whose contributions are in the sums."""
        self.own: dict[int, Tensors] = {}

    def clear(self) -> None:
        """Begin again, in the same memory."""
        self._spare, self._sums, self.clients, self.own = self._spare | self._sums, {}, [], {}
        self._waiting.clear()
        self._unheard.clear()

    def fits(self, contribution: Contribution, grid: Grid, largest: Mapping[str, float]) -> bool:
        """Return whether a contribution is for the grid. largest: weights that its terms can have, on which
        ``Grid.weights`` rests. ValueError where it is of other tensors than those before.
        """
        for name, term in contribution.terms.items():
            if _floats(term.values) is None or not _is_whole(term.weight, largest.get(name, largest[""])):
                return False
            sum_ = self._sum(name, term.values, _as_tensor(term.weight), grid)
            floats = _floats(sum_.ordered(term.values))
            assert floats is not None  # as above
            if not sum_.fits(floats):
                return False
        return True

    def add(self, client: int, contribution: Contribution) -> None:
        """Add a client's contribution, which ``fits``. Its tensors are read until ``flush``: the sums then pass through
        the processor once for several clients.
        """
        for name, term in contribution.terms.items():
            sum_, weight = self._sums[name], _as_tensor(term.weight)
            floats = _floats(sum_.ordered(term.values))
            assert floats is not None  # it fits
            if not bool(weight.any()):
                continue  # what counts for nothing leaves no trace, not in a counter either
            if weight.dim():
                sum_.add_rows(weight.numpy(), floats.numpy())
            else:
                self._waiting.setdefault(name, []).append((float(weight), floats.numpy()))
            sum_.weight += weight.numpy()
            sum_.count(term.values)
        self.clients.append(client)
        if contribution.own:
            self.own[client] = {name: value.clone() for name, value in contribution.own.items()}
        sizes = [sum(flat.nbytes for _, flat in each) for each in self._waiting.values()]
        if any(len(each) == WAIT_AT_MOST for each in self._waiting.values()) or sum(sizes) > BYTES_THAT_WAIT:
            self.flush()

    def flush(self) -> None:
        """Add what waits."""
        for name, each in self._waiting.items():
            self._sums[name].add(each, self._space)
        self._waiting.clear()

    def message(self) -> dict[str, Any]:
        """Return the sums as tensors, which lie where they are added to."""
        self.flush()
        sums = {
            name: {
                "values": {} if sum_.empty else sum_.named(torch.from_numpy(sum_.total)),
                "weight": torch.from_numpy(sum_.weight),
            }
            for name, sum_ in self._sums.items()
        }
        own = {str(client): values for client, values in self.own.items()}
        return {"clients": torch.tensor(self.clients), "sums": sums, "own": own}

    def add_message(self, message: Mapping[str, Any], grid: Grid) -> None:
        """Add the sums of another's ``message``."""
        self.flush()
        for name, sent in message["sums"].items():
            if not sent["values"]:
                self._unheard[name] = sent["weight"].clone()  # a worker writes there again
                continue
            sum_ = self._sum(name, sent["values"], sent["weight"], grid)
            floats = [value for value in sum_.ordered(sent["values"]).values() if value.is_floating_point()]
            flat = joined(floats)
            total = (torch.cat([value.reshape(-1) for value in floats]) if flat is None else flat).numpy()
            if sum_.empty:
                sum_.total[:], sum_.empty = total, False
            else:
                sum_.total += total
            sum_.weight += sent["weight"].numpy()
            sum_.count(sent["values"])
        self.clients += message["clients"].tolist()
        self.own |= {int(client): {k: v.clone() for k, v in own.items()} for client, own in message["own"].items()}

    def means(self, others: Sequence[tuple[int, Contribution]], grid: Grid) -> Means:
        """Return the means over all that was added and over ``others``, ascending, which were not for the grid."""
        self.flush()
        values, weights = dict[str, Tensors](), dict(self._unheard)
        for name in dict.fromkeys([*self._sums, *weights]):
            terms = [contribution.terms[name] for _, contribution in others]
            heard = [term for term in terms if bool(_as_tensor(term.weight).any())]
            if name not in self._sums and heard:
                self._sum(name, heard[0].values, _as_tensor(heard[0].weight), grid)
            if name in self._sums and (heard or not self._sums[name].empty):
                values[name], weights[name] = self._sums[name].mean(heard)
            elif name in self._sums:
                weights[name] = torch.from_numpy(self._sums[name].weight)
        own = self.own | {client: contribution.own for client, contribution in others if contribution.own}
        clients = sorted([*self.clients, *(client for client, _ in others)])
        return Means(values, weights, clients, {client: own[client] for client in sorted(own)})

    def _sum(self, name: str, values: Mapping[str, Tensor], weight: Tensor, grid: Grid) -> _Sum:
        """Return the sum of a term, which is begun where there is none."""
        if name not in self._sums:
            self._sums[name] = _Sum(name, values, weight, grid, self._spare.pop(name, None))
        shapes = {n: value.shape for n, value in values.items()}
        if self._sums[name].shapes != shapes:
            raise ValueError(f"no mean of {name}: {shapes} after {self._sums[name].shapes}")
        return self._sums[name]


Steps = dict[str, dict[str, Any]]
"""Mean -> ``values`` (tensor by name) and ``weight``, all int64: whole numbers whose sums are those of the grid."""


def steps_of(contribution: Contribution, grid: Grid) -> Steps:
    """Return a contribution, which ``fits`` and has no counters, as multiples of the grid's steps: what ``add`` adds,
    as whole numbers. ValueError where it has counters, or values that the server gets as they are.
    """
    if contribution.own:
        raise ValueError(f"tensor {next(iter(contribution.own))!r} goes to the server as it is, in no sum")
    out: Steps = {}
    for name, term in contribution.terms.items():
        weight = _as_tensor(term.weight)
        values = dict[str, Tensor]()
        for n, value in term.values.items():
            if not value.is_floating_point():
                raise ValueError(f"tensor {n!r} counts something, and has no sum")
            magic = grid.magic(name, grid.bound(name, n))
            by = weight.view(*weight.shape, *[1] * (value.dim() - weight.dim())) if weight.dim() else weight
            product = torch.where(by > 0, value.double(), 0.0) * by  # a row of weight 0 is not taken in
            values[n] = (((product + magic) - magic) / _step(magic)).long()
        out[name] = {"values": values, "weight": weight.long()}
    return out


def impossible(steps: Steps, grid: Grid, clients: int) -> str:
    """Return the first mean in a sum of so many clients' ``steps_of`` that none can have: whose weight is below 0 or
    above ``Grid.weights``, or whose values exceed their bound for it; '' for none.
    """
    for name, each in steps.items():
        most, weight = grid.weights.get(name, grid.weights[""]), each["weight"].double()
        if not bool(((weight >= 0) & (weight <= most)).all()):
            return name
        for n, value in each["values"].items():
            bound = grid.bound(name, n)
            by = weight.view(*weight.shape, *[1] * (value.dim() - weight.dim())) if weight.dim() else weight
            largest = bound / _step(grid.magic(name, bound)) * by
            if not bool((value.double().abs() <= largest + clients).all()):  # each is rounded
                return name
    return ""


def message_of_steps(steps: Steps, grid: Grid, clients: Sequence[int]) -> dict[str, Any]:
    """Return the sum of some clients' ``steps_of`` as ``ExactSums.message`` has it."""
    sums = {}
    for name, each in steps.items():
        weight, values = each["weight"].double(), dict[str, Tensor]()
        if bool(weight.any()):
            for n, value in each["values"].items():
                values[n] = value.double() * _step(grid.magic(name, grid.bound(name, n)))
        sums[name] = {"values": values, "weight": weight}
    return {"clients": torch.tensor(clients), "sums": sums, "own": {}}


def _step(magic: float) -> float:
    """Return the step of the grid that a ``Grid.magic`` rounds to."""
    return magic / (1.5 * 2.0**52)


def means_of(contributions: Sequence[tuple[int, Contribution]], average: Average) -> Means:
    """Return the means over clients, ascending, without a grid. average: of values with one weight each; those with a
    weight for every row have a mean, summed in float64 in this order.
    """
    values, weights = dict[str, Tensors](), dict[str, Tensor]()
    for name, first in contributions[0][1].terms.items():
        terms = [contribution.terms[name] for _, contribution in contributions]
        each = [_as_tensor(term.weight) for term in terms]
        weights[name] = torch.stack(each).sum(0)
        if not bool(weights[name].any()):
            continue
        if each[0].dim():
            values[name] = {n: _mean_of_rows([t.values[n] for t in terms], each) for n in first.values}
        else:
            heard = [(term.values, float(weight)) for term, weight in zip(terms, each, strict=True) if weight]
            values[name] = average([v for v, _ in heard], [weight for _, weight in heard])
    own = {client: contribution.own for client, contribution in contributions if contribution.own}
    return Means(values, weights, [client for client, _ in contributions], own)


def _mean_of_rows(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Return the mean of every row by its weights, summed in float64; a row that nobody weighs is zeros."""
    weight_C = torch.zeros(len(weights[0]), dtype=torch.float64)
    rows = torch.zeros(len(weight_C), values[0][0].numel(), dtype=torch.float64)
    for value, theirs_C in zip(values, weights, strict=True):
        has = theirs_C > 0
        rows[has] += value.reshape(rows.shape)[has].double() * theirs_C[has, None]
        weight_C += theirs_C
    mean = rows / torch.where(weight_C > 0, weight_C, 1.0)[:, None]
    return mean.reshape(values[0].shape).to(values[0].dtype)


def _floats(values: Mapping[str, Tensor]) -> Tensor | None:
    """Return all floats of a term in one piece; None where their type is not for the grid."""
    floats = [value for value in values.values() if value.is_floating_point()]
    if any(value.dtype != torch.float32 for value in floats):
        return None
    if not floats:
        return torch.empty(0)
    whole = joined(floats)
    return torch.cat([value.reshape(-1) for value in floats]) if whole is None else whole


def _as_tensor(weight: float | Tensor) -> Tensor:
    return torch.as_tensor(weight, dtype=torch.float64)


def is_weight(weight: float | Tensor) -> bool:
    """Return whether a term's weights are finite and at least 0: others would be counted, and their values left out."""
    weight = _as_tensor(weight)
    return bool((weight.isfinite() & (weight >= 0)).all())


def _is_whole(weight: float | Tensor, largest: float) -> bool:
    """Return whether a weight is a whole number from 0 to ``largest``, as sums of weights must be exact, too."""
    weight = _as_tensor(weight)
    most = min(largest, LARGEST_WEIGHT)
    return bool(((weight >= 0) & (weight <= most) & (weight == weight.floor())).all())
