"""Sums on a grid: no rounding in any order and grouping, against exact rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm.aggregation import mean_of
from anchorfl.pipeline.algorithm.exact_sums import (
    ADDED_AT_ONCE,
    HEADROOM,
    Contribution,
    ExactSums,
    Grid,
    Term,
    bounds_of,
    default_bound,
    means_of,
)

QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**32)
C = 5
LARGEST = {"": 1000.0}


def contribution(rng, scale=1.0):
    """Two means of weights, rows and a counter; rows of weight 0 hold anything."""
    weight = int(rng.integers(0, 4)) * int(rng.integers(1, 300))
    holds_C = rng.integers(0, 3, size=C).astype(np.float64)
    rows_CD = (scale * rng.normal(size=(C, 3))).astype(np.float32)
    rows_CD[holds_C == 0] = 0.1 * scale
    values = {
        "a": torch.from_numpy((scale * rng.normal(size=(4, 3)) * 10.0 ** rng.integers(-9, 1)).astype(np.float32)),
        "n": torch.tensor(int(rng.integers(9))),
        "b": torch.from_numpy((scale * rng.normal(size=7)).astype(np.float32)),
    }
    terms = {"weights": Term(values, weight), "rows": Term({"r": torch.from_numpy(rows_CD)}, torch.from_numpy(holds_C))}
    return Contribution(terms, {"own": torch.tensor([float(weight)])})


def grid(count, scale=1.0):
    bound = 2.0 ** (math.ceil(math.log2(scale)) + HEADROOM)
    return Grid({"weights": {"a": bound, "b": bound, "r": bound}}, {"": 1000.0 * count}, math.inf)


def summed(each, order, grid_):
    """The sums of a group of clients."""
    sums = ExactSums()
    for client in order:
        assert sums.fits(each[client], grid_, LARGEST)
        sums.add(client, each[client])
    return sums


def grouped(each, rng, grid_):
    """The sums of all clients in a random order and a random tree."""
    parts = [summed(each, [client], grid_) for client in rng.permutation(len(each)).tolist()]
    while len(parts) > 1:
        i, j = rng.choice(len(parts), size=2, replace=False)
        parts[i].add_message(parts[j].message(), grid_)
        del parts[j]
    return parts[0]


def bits(means):
    out = {f"{n}/{name}": value.numpy().tobytes() for n, v in means.values.items() for name, value in v.items()}
    out |= {f"weight/{name}": value.numpy().tobytes() for name, value in means.weight.items()}
    return out | {"clients": list(means.clients), "own": {c: own["own"].item() for c, own in means.own.items()}}


@QUICK
@given(SEEDS, st.integers(2, 12), st.sampled_from([1e-6, 1.0, 3e4]))
def test_any_order_and_any_tree_give_the_same_bits(seed, count, scale):
    rng = np.random.default_rng(seed)
    each, grid_ = [contribution(rng, scale) for _ in range(count)], grid(count, scale)
    want = bits(summed(each, range(count), grid_).means([], grid_))
    for _ in range(3):
        assert bits(grouped(each, rng, grid_).means([], grid_)) == want


@QUICK
@given(SEEDS, st.integers(1, 8))
def test_sums_are_those_of_rational_numbers_on_the_grid(seed, count):
    """Each product to the nearest multiple of the step, half to even; then nothing is rounded until the quotient."""
    rng = np.random.default_rng(seed)
    each, grid_ = [contribution(rng) for _ in range(count)], grid(count)
    means = summed(each, range(count), grid_).means([], grid_)
    step = Fraction(grid_.magic("weights", 2.0**HEADROOM)) / Fraction(3, 2) / 2**52
    assert step == Fraction(2) ** (math.ceil(math.log2(1000 * count * 2.0**HEADROOM)) - 51)
    weights = [each[m].terms["weights"].weight for m in range(count)]
    heard = [m for m in range(count) if weights[m]]
    if not heard:
        assert "weights" not in means.values
        return
    for name in ("a", "b"):
        got = means["weights"][name].reshape(-1)
        flat = [each[m].terms["weights"].values[name].reshape(-1).tolist() for m in range(count)]
        for i, value in enumerate(got.tolist()):
            terms = [Fraction(flat[m][i]) * weights[m] for m in range(count)]
            on_grid = sum(round(t / step) * step for t in terms)
            assert value == float(np.float32(float(on_grid) / sum(weights)))
            error = abs(Fraction(value) - sum(terms) / sum(weights))
            assert error <= step * count / 2 / sum(weights) + Fraction(float(abs(np.spacing(np.float32(value))))) / 2
    assert int(means["weights"]["n"]) == max(int(each[m].terms["weights"].values["n"]) for m in heard)
    assert list(means["weights"]) == ["a", "n", "b"]
    assert float(means.weight["weights"]) == sum(weights)


@QUICK
@given(SEEDS, st.integers(1, 8))
def test_rows_are_means_over_those_who_give_them_a_weight(seed, count):
    rng = np.random.default_rng(seed)
    each = [contribution(rng) for _ in range(count)]
    before = {"r": torch.full((C, 3), 7.0)}
    for means in (
        summed(each, range(count), grid(count)).means([], grid(count)),
        means_of(list(enumerate(each)), mean_of),
        summed(each, range(count // 2), grid(count)).means(list(enumerate(each))[count // 2 :], grid(count))
        if count > 1
        else None,
    ):
        if means is None:
            continue
        got = means.rows("rows", before).get("r", before["r"]).numpy()
        for c in range(C):
            held = [(float(one.terms["rows"].weight[c]), one.terms["rows"].values["r"][c].double()) for one in each]
            total = sum(weight for weight, _ in held)
            assert float(means.weight["rows"][c]) == total
            want = sum(weight * row for weight, row in held) / total if total else before["r"][c]
            assert np.allclose(got[c], want, rtol=1e-6, atol=1e-8)
            if not total:
                assert got[c].tobytes() == before["r"][c].numpy().tobytes()


def test_a_row_that_nobody_weighs_may_hold_anything():
    rows = torch.tensor([[1.0, 2.0], [math.nan, math.inf]])
    one = Contribution({"rows": Term({"r": rows}, torch.tensor([1.0, 0.0]))})
    assert not ExactSums().fits(one, grid(1), LARGEST)
    for means in (means_of([(0, one), (1, one)], mean_of), summed_with_others(one)):
        assert means["rows"]["r"].tolist() == [[1, 2], [0, 0]]


def summed_with_others(one):
    fine = Contribution({"rows": Term({"r": torch.ones(2, 2)}, torch.tensor([0.0, 0.0]))})
    return summed([fine], [0], grid(1)).means([(1, one), (2, one)], grid(1))


@QUICK
@given(SEEDS, st.integers(2, 8))
@example(694448, 2)  # all weights are 0
def test_what_is_not_for_the_grid_is_added_in_the_order_of_clients(seed, count):
    rng = np.random.default_rng(seed)
    each = [contribution(rng) for _ in range(count)] + [contribution(rng, 1e9) for _ in range(2)]
    grid_, others = grid(count), [(count, each[count]), (count + 1, each[count + 1])]
    assert not any(ExactSums().fits(one, grid_, LARGEST) for _, one in others)
    want = bits(summed(each, range(count), grid_).means(others, grid_))
    assert bits(grouped(each[:count], rng, grid_).means(others, grid_)) == want
    plain = means_of(list(enumerate(each)), mean_of)
    weights = plain.values.get("weights", {})  # none where nobody has a weight
    assert {f"weights/{name}" for name in weights} == {name for name in want if name.startswith("weights/")}
    for name, value in weights.items():
        got = np.frombuffer(want[f"weights/{name}"], value.numpy().dtype).reshape(value.shape)
        assert np.allclose(got, value, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        (torch.tensor([1025.0]), 1), (torch.tensor([-1025.0]), 1), (torch.tensor([math.nan]), 1),
        (torch.tensor([math.inf]), 1), (torch.tensor([1.0], dtype=torch.float64), 1),
        (torch.tensor([1.0], dtype=torch.float16), 1), (torch.tensor([1.0]), 0.5), (torch.tensor([1.0]), 1001),
        (torch.tensor([1.0]), -1), (torch.tensor([1.0]), math.nan),
    ],
)  # fmt: skip
def test_what_is_not_for_the_grid(value, weight):
    bounds = Grid({"weights": {"w": 1024.0}}, {"": 4000.0}, math.inf)
    assert ExactSums().fits(Contribution({"weights": Term({"w": torch.tensor([-1024.0])}, 1000)}), bounds, LARGEST)
    assert not ExactSums().fits(Contribution({"weights": Term({"w": value}, weight)}), bounds, LARGEST)


def test_the_largest_sum_that_there_can_be_is_exact():
    """All clients at their bound, with all the weight that the grid is for."""
    count, bound = 64, default_bound()
    each = [Contribution({"w": Term({"w": torch.full((3,), bound)}, 1000)}) for _ in range(count)]
    grid_ = Grid({}, {"": 1000.0 * count}, math.inf)
    sums = summed(each, range(count), grid_)
    assert sums.means([], grid_)["w"]["w"].tolist() == [bound] * 3
    magic = grid_.magic("w", bound)
    assert 2.0**52 <= (magic + 1000 * count * bound) * 2.0**52 / (magic / 1.5) < 2.0**53


def test_bounds_follow_what_the_server_has():
    tensors = {"w": torch.tensor([0.3, -5.0]), "zero": torch.zeros(3), "none": torch.zeros(0), "n": torch.tensor(7)}
    assert bounds_of(tensors) == {"w": 8.0 * 2**HEADROOM, "zero": default_bound()}
    grid_ = Grid({"weights": {"w": 2.0}, "control": {"w": 4.0}}, {"": 1.0}, math.inf)
    assert [grid_.bound(t, "w") for t in ("weights", "control", "other")] == [2.0, 4.0, 2.0]
    assert grid_.bound("weights", "new") == default_bound()
    assert Grid({}, {"": 1.0, "rows": 16.0}, math.inf).magic("rows", 1.0) == 16 * grid_.magic("weights", 1.0)


def test_many_values_in_pieces_and_in_several_tensors_of_one_bound():
    """Parts that do not end where tensors or pieces do; memory of an earlier round."""
    rng, sums = np.random.default_rng(0), ExactSums()
    grid_ = Grid({"weights": {"a": 256.0, "b": 256.0, "c": 1024.0}}, {"": 30.0}, math.inf)
    for _ in range(2):
        sums.clear()
        sent = []
        for client in range(20):
            sizes = {"a": ADDED_AT_ONCE + 3, "b": 7, "c": 2 * ADDED_AT_ONCE}
            values = {n: torch.from_numpy(rng.normal(size=size).astype(np.float32)) for n, size in sizes.items()}
            sent.append((client, Contribution({"weights": Term(values, client % 3)})))
            assert sums.fits(sent[-1][1], grid_, {"": 2.0})
            sums.add(*sent[-1])
        got, want = sums.means([], grid_)["weights"], means_of(sent, mean_of)["weights"]
        assert all(np.allclose(got[name], want[name], rtol=1e-6, atol=1e-9) for name in want)
        assert all(value.dtype == torch.float32 for value in got.values())


def test_a_mean_without_weight_is_left_out():
    nothing = Contribution({"theta": Term({"w": torch.ones(2)}, 0), "rest": Term({"w": torch.ones(2)}, 1)})
    for means in (
        summed([nothing] * 2, range(2), grid(2)).means([], grid(2)),
        means_of([(0, nothing), (1, nothing)], mean_of),
    ):
        assert list(means.values) == ["rest"]
        assert float(means.weight["theta"]) == 0.0
    sums = summed([nothing], [0], grid(1))
    assert sums.message()["sums"]["theta"]["values"] == {}


def test_the_order_in_which_a_client_has_its_tensors_is_nothing():
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([10.0, 20.0, 30.0])}
    other = {"b": torch.tensor([0.0, 4.0, 8.0]), "a": torch.tensor([3.0, 6.0])}
    each = [Contribution({"w": Term(values, 1)}) for values in (one, other)]
    sums, first, second = (summed(each, order, grid(2)) for order in (range(2), [0], [1]))
    first.add_message(second.message(), grid(2))
    for means in (sums.means([], grid(2)), first.means([], grid(2)), means_of(list(enumerate(each)), mean_of)):
        assert means["w"]["a"].tolist() == [2.0, 4.0]
        assert means["w"]["b"].tolist() == [5.0, 12.0, 19.0]


def test_a_message_may_be_written_over_once_it_is_added():
    """Forked workers answer in memory that their next answer takes."""
    nobodys = Contribution({"w": Term({"a": torch.ones(2)}, 1), "rows": Term({"r": torch.ones(3, 2)}, torch.zeros(3))})
    message, sums = summed([nobodys] * 2, range(2), grid(2)).message(), ExactSums()
    sums.add_message(message, grid(2))
    for sent in message["sums"].values():
        sent["weight"].fill_(7)
        for value in sent["values"].values():
            value.fill_(7)
    means = sums.means([], grid(2))
    assert means.weight["rows"].tolist() == [0, 0, 0]
    assert means["w"]["a"].tolist() == [1, 1]


def test_tensors_of_another_shape_are_an_error():
    sums = summed([Contribution({"w": Term({"a": torch.ones(2)}, 1)})], [0], grid(1))
    with pytest.raises(ValueError, match=r"no mean of w: \{'a': torch.Size\(\[3\]\)\} after"):
        sums.fits(Contribution({"w": Term({"a": torch.ones(3)}, 1)}), grid(1), LARGEST)
