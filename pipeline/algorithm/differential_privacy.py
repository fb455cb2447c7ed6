"""Differential privacy of the class embeddings: noise on the server's step on the class rows (FedALC, IV-C).

The server's gradient is a sum over classes u of terms h_u: the gradient [C, D] of u's own part of the regularizer,
which weighs u's K nearest classes by u's row of label correlations and has at most K + 1 rows that are not zero. Each
h_u is cut to Frobenius norm ``clip``, they are added up, and Gaussian noise of deviation ``noise * clip`` is added to
every entry: one such release per round, all classes in each. The guarantee is for the term of ONE class; what clients
send is NOT covered, and who knows the seed can take the noise away. docs/label-collection.md has all of it.

Shape suffixes: U classes of a piece, C classes, D width, K + 1 rows that a term touches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.options import LEAST_NOISE
from anchorfl.tasks.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyOptions:
    """Differential privacy of the server's step on the class rows; a method has them as ``dp_noise`` and so on."""

    noise: float = 0.0
    """Deviation of the noise, in units of ``clip``, >= 0; 0: none, and nothing is cut."""
    clip: float = 1.0
    """Largest Frobenius norm of a class's term, > 0; used where ``noise`` is above 0."""
    delta: float = 1e-5
    """Probability that is left out of the guarantee, in (0, 1); well below 1 / classes."""

    def __post_init__(self) -> None:
        if not (self.noise == 0 or LEAST_NOISE <= self.noise < math.inf):
            raise ValueError(f"method.dp_noise = {self.noise}: must be 0 (off) or at least {LEAST_NOISE}, and finite")
        if not 0 < self.clip < math.inf:
            raise ValueError(f"method.dp_clip = {self.clip}: must be above 0 and finite")
        if not 0 < self.delta < 1:
            raise ValueError(f"method.dp_delta = {self.delta}: must be in (0, 1)")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms h_u of some classes."""

    index_UK: Tensor
    """int64 [U, K + 1]: the class rows that a term touches, each once."""
    grad_UKD: Tensor
    """[U, K + 1, D]: its gradient there; it is zero elsewhere."""


def noisy_sum(
    terms: Iterable[Terms], classes: int, *, clip: float, noise: float, generator: np.random.Generator | None
) -> Tensor:
    """Return the released gradient [C, D]: each term cut to Frobenius norm ``clip`` (inf: as it is), added up, plus
    N(0, (noise clip)^2) on every entry, drawn from ``generator`` (None where ``noise`` is 0).

    terms: one piece or several that hold every class once; pieces bound the memory, and their sizes do not change the
    noise. Raises ValueError where a row stands twice in a term or a gradient is not finite, for which the bound would
    not hold, and for noise without clip or generator.
    """
    if noise and (generator is None or not math.isfinite(clip)):
        raise ValueError(f"noise = {noise} needs a generator and a finite clip, not {clip}")
    total_CD: Tensor | None = None
    for term in terms:
        if total_CD is None:
            total_CD = term.grad_UKD.new_zeros((classes, term.grad_UKD.shape[-1]))
        cut_UKD = term.grad_UKD * _scale(term, clip)[:, None, None]
        total_CD.index_add_(0, term.index_UK.reshape(-1), cut_UKD.reshape(-1, cut_UKD.shape[-1]))
    if total_CD is None:
        raise ValueError("there is no term; give those of all classes")
    if noise:
        assert generator is not None
        normal_CD = torch.from_numpy(generator.standard_normal(total_CD.shape)).to(total_CD)
        total_CD += noise * clip * normal_CD
    return total_CD


def _scale(term: Terms, clip: float) -> Tensor:
    """Return the factor of every term, [U]; exactly 1 where nothing is cut."""
    sorted_UK = term.index_UK.sort(dim=-1).values
    if bool((sorted_UK[:, 1:] == sorted_UK[:, :-1]).any()):
        raise ValueError("a class row stands twice in a term, so that its norm is not what is cut; add the two up")
    norm_U = torch.linalg.vector_norm(term.grad_UKD, dim=(1, 2), dtype=torch.float64)
    if not bool(torch.isfinite(norm_U).all()):
        raise InputError("a term of the class rows' gradient is not finite, so that no clip bounds it; lower the rate")
    scale_U: Tensor = (clip / norm_U).clamp(max=1.0).to(term.grad_UKD.dtype)
    return scale_U


def spent_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Return the epsilon of ``rounds`` releases at ``delta``; inf without noise, 0 before the first.

    Each release is a Gaussian mechanism of sensitivity 1 and deviation ``noise``. Any number of them, each chosen after
    the last, is exactly one of deviation noise / sqrt(rounds) (Dong, Roth and Su, 2022, Corollary 2), as the library's
    accountant also has it; its epsilon is exact (Balle and Wang, 2018, Theorem 8), by Google's dp-accounting. No round
    is subsampled, so nothing is amplified. Raises InputError where the library is missing.
    """
    if not noise >= 0 or rounds < 0 or not 0 < delta < 1:
        raise ValueError(f"noise = {noise} and rounds = {rounds} must be at least 0, delta = {delta} in (0, 1)")
    if rounds == 0:
        return 0.0
    try:
        from dp_accounting import gaussian_mechanism
    except ImportError as error:
        raise InputError(
            f"epsilon needs Python package dp-accounting ({error}): pip install 'anchorfl[dp]', or dp_noise = 0"
        ) from error
    with np.errstate(divide="ignore"):  # dp-accounting 0.6.0: log of 0 in its search where noise is very large
        return float(gaussian_mechanism.get_epsilon_gaussian(noise / math.sqrt(rounds), delta))


def privacy_notice(options: PrivacyOptions, rounds: int) -> str:
    """Return a line for the log: epsilon after ``rounds``, and its assumptions. InputError as ``spent_epsilon``."""
    if not options.noise:
        return "no DP guarantee (method.dp_noise = 0)"
    epsilon = spent_epsilon(options.noise, rounds, options.delta)
    return (
        f"DP of the class rows: epsilon {epsilon:.4g} at delta {options.delta:g} after {rounds} rounds (Gaussian noise "
        f"{options.noise:g} x clip {options.clip:g}, every class in every round), for the label correlations of one "
        "class, in its own term or absent (replaced by others: as with half the noise); what clients send (class rows, "
        "theta, counts, digests) is not covered, and the noise is as secret as the seed"
    )
