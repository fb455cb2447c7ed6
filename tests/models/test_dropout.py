"""Dropout masks as random variables: rate, independence, mean, and both ways of drawing them.

All tests have fixed seeds. Bounds are five standard deviations of the statistic under independent Bernoulli draws.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ks_2samp

from anchorfl.models.dropout import Dropout, MaskSource

N = 1_000_000
RATES = [0.5, 0.25, 0.1]
TINY = 1e-7  # a chi-square beyond this quantile is no chance: about five sigma
BOTH = pytest.mark.parametrize("lookup", [True, False])


def source(seed=7, *, lookup=True):
    masks = MaskSource(lookup=lookup)
    masks.reseed(torch.Generator().manual_seed(seed))
    return masks


def kept(p, seed=7, n=N, *, lookup=True):
    """Bool array [n]: which elements survive."""
    return (source(seed, lookup=lookup).mask(torch.empty(n), p) != 0).numpy()


def correlated(a, b):
    """Correlation of two 0/1 arrays in units of its standard deviation 1 / sqrt(n)."""
    return abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a))


@BOTH
@pytest.mark.parametrize("p", [*RATES, 0.9])
def test_keep_rate(p, lookup):
    deviation = kept(p, lookup=lookup).sum() - N * (1 - p)
    assert abs(deviation) < 5 * math.sqrt(N * p * (1 - p))


def test_a_half_takes_one_random_bit_per_element_and_other_rates_sixteen(monkeypatch):
    asked, draw = [], MaskSource._random_bytes
    monkeypatch.setattr(MaskSource, "_random_bytes", lambda self, count: asked.append(count) or draw(self, count))
    for p in (0.5, 0.25):
        source().mask(torch.empty(800), p)
    assert asked == [100, 1600]


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 7, 8, 16, 64])
def test_neighbours_are_independent(p, lag):
    """Lags inside a byte, over the two lanes of 8 and the four of 16 bits in a 64-bit word, and over words."""
    k = kept(p)
    assert correlated(k[:-lag], k[lag:]) < 5


@pytest.mark.parametrize("p", RATES)
def test_places_within_eight_elements_are_fair_and_independent(p):
    """For p = 0.5 the eight elements are the eight bits of one byte."""
    k_R8 = kept(p).reshape(-1, 8)
    rows = len(k_R8)
    rate_8 = k_R8.mean(0)
    assert np.abs(rate_8 - (1 - p)).max() < 5 * math.sqrt(p * (1 - p) / rows)
    off = np.corrcoef(k_R8.T) - np.eye(8)
    assert np.abs(off).max() * math.sqrt(rows) < 5


@pytest.mark.parametrize("p", RATES)
def test_all_256_patterns_of_eight_elements_have_their_probability(p):
    """Chi-square with 255 degrees of freedom; a pattern with j survivors has probability (1-p)^j p^(8-j)."""
    pattern = kept(p).reshape(-1, 8) @ (1 << np.arange(8))
    seen = np.bincount(pattern, minlength=256)
    j = np.array([bin(i).count("1") for i in range(256)])
    expected = len(pattern) * (1 - p) ** j * p ** (8 - j)
    big = expected >= 5  # the usual rule for the approximation; the rare patterns count as one
    cells = np.append((seen[big] - expected[big]) ** 2 / expected[big], 0.0)
    if not big.all():
        cells[-1] = (seen[~big].sum() - expected[~big].sum()) ** 2 / expected[~big].sum()
    assert chi2.sf(cells.sum(), df=big.sum() - 1 + (not big.all())) > TINY


@pytest.mark.parametrize("p", RATES)
def test_successive_calls_are_independent(p):
    """Pairs (element in call 1, same element in call 2): correlation, and chi-square with 3 degrees of freedom."""
    masks, like = source(), torch.empty(N)
    a, b = ((masks.mask(like, p) != 0).numpy() for _ in range(2))
    assert correlated(a, b) < 5
    seen = np.bincount(2 * a + b, minlength=4)
    expected = N * np.array([p * p, p * (1 - p), (1 - p) * p, (1 - p) ** 2])
    assert chi2.sf(((seen - expected) ** 2 / expected).sum(), df=3) > TINY


@BOTH
@pytest.mark.parametrize("p", [*RATES, 0.9])
def test_the_output_has_the_mean_of_the_input(p, lookup):
    """Var(sum m_i x_i) = p / (1 - p) sum x_i^2."""
    x = torch.linspace(-1, 3, N, dtype=torch.float64)
    out = Dropout(p, source(lookup=lookup)).train()(x)
    sigma = math.sqrt(p / (1 - p) * float((x**2).sum()))
    assert abs(float(out.sum() - x.sum())) < 5 * sigma


@pytest.mark.parametrize("p", [*RATES, 0.3, 0.9])
def test_look_up_and_bernoulli_have_one_distribution(p):
    """Survivors per row of 1000: two-sample Kolmogorov-Smirnov (conservative on ties), equal means and variances."""
    a, b = (kept(p, seed=s, lookup=way).reshape(-1, 1000).sum(1) for s, way in ((1, True), (2, False)))
    assert ks_2samp(a, b).pvalue > 1e-4
    variance = 1000 * p * (1 - p)
    assert abs(a.mean() - b.mean()) < 5 * math.sqrt(2 * variance / len(a))
    for counts in (a, b):  # the variance of a sample variance is about 2 variance^2 / n
        assert abs(counts.var(ddof=1) / variance - 1) < 5 * math.sqrt(2 / len(counts))


@pytest.mark.parametrize("p", [*RATES, 0.3])
def test_survivors_are_scaled_by_the_probability_that_is_drawn(p):
    """Two values: 0 and 65536 / round(65536 (1 - p)), so that the mean of a mask is 1 exactly."""
    values = source().mask(torch.empty(1000, dtype=torch.float64), p).unique().tolist()
    assert values == [0, pytest.approx(65536 / round(65536 * (1 - p)), rel=1e-12)]
    assert values[1] == pytest.approx(1 / (1 - p), rel=2e-5)


@pytest.mark.parametrize("p", [0.0, *RATES])
def test_evaluation_and_p_zero_are_the_identity_and_draw_nothing(p):
    masks, x = source(), torch.randn(5, 3)
    before = masks.generator.get_state()
    assert Dropout(p, masks).eval()(x) is x
    assert Dropout(0.0, masks).train()(x) is x
    assert torch.equal(masks.generator.get_state(), before)


@BOTH
@pytest.mark.parametrize("p", RATES)
def test_the_seed_alone_decides(p, lookup):
    like = torch.empty(37, 5)
    with torch.random.fork_rng(devices=[]):
        a = source(3, lookup=lookup).mask(like, p)
        torch.default_generator.manual_seed(99)
        b = source(3, lookup=lookup).mask(like, p)
    assert torch.equal(a, b)
    assert not torch.equal(a, source(4, lookup=lookup).mask(like, p))


@BOTH
@pytest.mark.parametrize("p", [0.5, 0.25])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (13, 3), (2, 0), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_has_shape_and_type_of_its_input(p, shape, dtype, lookup):
    mask = source(lookup=lookup).mask(torch.empty(shape, dtype=dtype), p)
    assert mask.shape == shape
    assert mask.dtype == dtype


def test_the_gradient_is_the_mask():
    x = torch.randn(50, requires_grad=True)
    out = Dropout(0.25, source()).train()(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, source().mask(x, 0.25))


@BOTH
def test_a_copied_model_draws_from_a_source_of_its_own(lookup):
    drop = Dropout(0.5, source(lookup=lookup))
    twin = copy.deepcopy(drop)
    assert twin.source.lookup is lookup
    before = drop.source.generator.get_state()
    twin.train()(torch.ones(100))
    assert torch.equal(drop.source.generator.get_state(), before)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan])
def test_a_probability_out_of_range_is_refused(p):
    with pytest.raises(ValueError, match=r"^dropout p = .*: must be in \[0, 1\)$"):
        Dropout(p, source())


@pytest.mark.parametrize("p", [1e-6, 1 - 1e-6])
def test_probabilities_beyond_sixteen_bits_still_have_the_mean(p):
    """p below 2^-17 must keep (nearly) all; p above 1 - 2^-17 must not divide by zero."""
    mask = source().mask(torch.empty(1000), p)
    assert mask.isfinite().all()
    assert float((mask != 0).float().mean()) == pytest.approx(1 - p, abs=0.01)


@pytest.mark.parametrize(("p", "scale"), [(1 - 1e-9, 2**16), (1e-9, 2**16 / (2**16 - 1))])
def test_a_rate_next_to_0_or_1_is_the_nearest_that_can_be_drawn(p, scale):
    """One in 65,536 elements is kept, or dropped; the others are what keeps the mean."""
    mask = source().mask(torch.empty(2**21), p)
    assert set(mask.tolist()) == {0.0, torch.tensor(scale).item()}
