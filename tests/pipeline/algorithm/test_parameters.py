"""Means and percentiles against NumPy, and the laws of a mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.models.heads import LinearHead
from anchorfl.pipeline.algorithm.aggregation import AVERAGED_AT_ONCE, mean_of
from anchorfl.pipeline.algorithm.parameters import load_sent, log_prior, state_of_module, weights_of
from anchorfl.pipeline.algorithm.pseudo_labels import percentiles

QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**32)


def clients(seed, count, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        {
            "w": torch.from_numpy((scale * rng.normal(size=(3, 4))).astype(np.float32)),
            "d": torch.from_numpy(rng.normal(size=5)),
            "n": torch.tensor(int(rng.integers(100))),
        }
        for _ in range(count)
    ]


@QUICK
@given(SEEDS, st.integers(1, 6), st.sampled_from([1e-3, 1.0, 1e6]))
def test_mean_equals_numpy_in_float64(seed, count, scale):
    values = clients(seed, count, scale)
    shares = np.random.default_rng(seed + 1).integers(1, 1000, size=count)
    got = mean_of(values, shares.tolist())
    for name in ("w", "d"):
        want = np.average([v[name].numpy().astype(np.float64) for v in values], axis=0, weights=shares)
        # one rounding to float32 at the end: half a unit in the last place
        assert np.allclose(got[name].numpy(), want, rtol=6e-8 if name == "w" else 1e-12, atol=1e-14 * scale)
        assert got[name].dtype == values[0][name].dtype
    assert int(got["n"]) == max(int(v["n"]) for v in values)
    assert got["n"].dtype == torch.int64


@pytest.mark.parametrize(
    "length", [1, AVERAGED_AT_ONCE - 1, AVERAGED_AT_ONCE, AVERAGED_AT_ONCE + 1, 3 * AVERAGED_AT_ONCE + 7]
)
def test_a_mean_in_pieces_is_the_sum_of_products_bit_for_bit(length):
    rng = np.random.default_rng(length)
    values = [rng.normal(size=(length, 1)).astype(np.float32) for _ in range(5)]
    shares = rng.integers(1, 1000, size=5).tolist()
    want = np.zeros((length, 1))
    for value, share in zip(values, shares, strict=True):
        want += value.astype(np.float64) * (share / float(sum(shares)))
    got = mean_of([{"w": torch.from_numpy(value)} for value in values], shares)["w"]
    assert np.array_equal(got.numpy(), want.astype(np.float32))


def test_only_weights_of_the_model_are_loaded():
    model = LinearHead(3, 2)
    weights = {name: torch.full_like(value, 7.0) for name, value in model.state_dict().items()}
    first = next(iter(weights))
    load_sent(model, {first: weights[first]})
    for name, value in model.state_dict().items():
        assert bool((value == 7).all() if name == first else value.isnan().all())
    for wrong in ({"other": torch.ones(1)}, {first: weights[first][:1]}):
        with pytest.raises(ValueError, match="not weights of this model"):
            load_sent(model, wrong)


@QUICK
@given(SEEDS, st.integers(1, 6), st.integers(2, 10_000))
def test_scaling_all_shares_changes_nothing(seed, count, k):
    values = clients(seed, count)
    shares = np.random.default_rng(seed + 1).integers(1, 1000, size=count).tolist()
    a, b = mean_of(values, shares), mean_of(values, [k * s for s in shares])
    # both quotients s / total and ks / k total are the one nearest double to the same rational number
    assert all(torch.equal(a[name], b[name]) for name in a)


@QUICK
@given(SEEDS, st.floats(1e-3, 1e6), st.floats(1e-300, 1e300))
def test_one_client_comes_out_bit_for_bit(seed, scale, share):
    (value,) = clients(seed, 1, scale)
    got = mean_of([value], [share])
    assert all(torch.equal(got[name], value[name]) for name in value)
    assert got["w"].data_ptr() != value["w"].data_ptr()


@QUICK
@given(SEEDS)
def test_a_share_of_zero_is_not_heard(seed):
    a, b, c = clients(seed, 3)
    assert torch.equal(mean_of([a, b, c], [2, 0, 3])["w"], mean_of([a, c], [2, 3])["w"])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool]
)
def test_every_type_is_kept(dtype):
    got = mean_of([{"t": torch.ones(2, dtype=dtype)}, {"t": torch.zeros(2, dtype=dtype)}], [1, 1])["t"]
    assert got.dtype == dtype
    assert got.tolist() == [0.5, 0.5] if dtype.is_floating_point else got.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("count", "shares", "text"),
    [
        (2, [0, 0], "2 updates with weights that sum to 0.0: nothing to average"),
        (0, [], "0 updates with weights that sum to 0.0: nothing to average"),
        (1, [-1], "1 updates with weights that sum to -1.0: nothing to average"),
        (1, [float("nan")], "1 updates with weights that sum to nan: nothing to average"),
        (2, [1], "2 updates with weights that sum to 1.0: nothing to average"),
    ],
)
def test_nothing_to_average_is_an_error(count, shares, text):
    with pytest.raises(ValueError, match="nothing to average") as caught:
        mean_of(clients(0, count), shares)
    assert str(caught.value) == text


@QUICK
@given(SEEDS)
def test_percentiles_and_the_decisions_they_make_equal_numpy(seed):
    """Strict comparisons follow, so a last bit may decide on a label: ties, and q that hit a row exactly."""
    rng = np.random.default_rng(seed)
    rows, classes = int(rng.integers(1, 102)), int(rng.integers(1, 5))
    values = rng.normal(size=(rows, classes)).astype(np.float32)
    values = values.round(1) if rng.integers(2) else values
    for q in (0.1, 1, 5, 10, 25, 33.3, 50, 60, 75, 90, 95, 98, 99, 99.5, 99.9, 100 / max(1, rows - 1) % 100):
        got = percentiles(torch.from_numpy(values), q).numpy()
        assert got.dtype == np.float64
        want = np.percentile(values.astype(np.float64), q, axis=0, method="linear")
        assert np.allclose(got, want, rtol=1e-14, atol=1e-16), q
        assert np.array_equal(values > got, values > want), q
        assert np.array_equal(values < got, values < want), q


def test_weights_are_copies_and_include_buffers():
    norm = torch.nn.BatchNorm1d(3)
    weights = weights_of(norm)
    assert set(weights) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    head = LinearHead(3, 2)
    taken = weights_of(head)
    want = head.weight.detach().clone()
    with torch.no_grad():
        head.weight.zero_()
    assert torch.equal(taken["weight"], want)
    assert not taken["weight"].requires_grad


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_balanced_softmax_equals_numpy(gamma):
    """The shifted softmax is n_c^gamma e^(s_c) over its sum, with counts of at least 1 (Ren et al., NeurIPS 2020)."""
    count_C, s_BC = np.array([40, 0, 1, 7, 0]), np.random.default_rng(3).normal(size=(6, 5))
    shift_C = log_prior(torch.from_numpy(count_C), gamma)
    assert shift_C.dtype == torch.float64
    assert not shift_C[[1, 2, 4]].any()  # without a sample as with one
    weight_C = np.array([40, 1, 1, 7, 1]) ** gamma
    want = weight_C * np.exp(s_BC) / (weight_C * np.exp(s_BC)).sum(1, keepdims=True)
    got = (torch.from_numpy(s_BC) + shift_C).softmax(-1)
    assert np.allclose(got.numpy(), want, rtol=1e-12, atol=0)


def test_equal_counts_and_a_power_of_zero_shift_nothing():
    assert torch.equal(log_prior(torch.tensor([0, 3, 9]), 0.0), torch.zeros(3, dtype=torch.float64))
    assert len(log_prior(torch.tensor([5, 5, 5]), 1.0).unique()) == 1


@pytest.mark.parametrize("other", [torch.zeros(1), torch.zeros(4), torch.zeros(3, dtype=torch.float64)])
def test_no_mean_of_unlike_tensors(other):
    """A value in place of three would be broadcast, one too many left out."""
    with pytest.raises(ValueError, match=r"no mean of torch.float32 \(3,\) and torch.float"):
        mean_of([{"row": torch.zeros(3)}, {"row": other}], [1, 1])


def test_a_models_state_is_its_own_memory_and_follows_it():
    """Read once; read again where the model has moved, so that weights never go to memory that nobody uses."""
    model = torch.nn.Linear(3, 2)
    state = state_of_module(model)
    assert state_of_module(model) is state
    load_sent(model, {"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert model.weight.sum() == 6
    model.double()
    assert state_of_module(model)["weight"].dtype == torch.float64
    load_sent(model, {"weight": torch.full((2, 3), 2.0)})
    assert model.weight.sum() == 12
    assert model.bias.isnan().all()
    assert weights_of(model)["weight"].tolist() == model.weight.tolist()


class Running(torch.nn.Module):
    """A network of others, which puts a new tensor in a buffer's place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return self.linear(x - self.mean)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_buffer_that_is_replaced_travels_and_is_written_to(wrapped):
    network = Running()
    model = torch.nn.Sequential(network) if wrapped else network
    name = "0.mean" if wrapped else "mean"
    sent = weights_of(model)
    model(torch.full((3, 2), 8.0))
    assert weights_of(model)[name].tolist() == [4.0, 4.0]
    load_sent(model, sent)
    assert network.mean.tolist() == [0.0, 0.0]
