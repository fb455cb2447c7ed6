"""Differential privacy of whole clients: noise on the mean of steps that were cut to a norm.

DP-FedAvg (McMahan, Ramage, Talwar and Zhang, ICLR 2018, Algorithm 1, with its fixed denominator): every step is cut to
L2 norm ``clip``, every client counts 1, and

    weights = sent + (sum of the steps + noise * clip * N(0, 1) on every value) / clients,

with the number of clients that a round expects, whatever number answers. What is covered and what is not:
docs/client-privacy.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.differential_privacy import spent_epsilon
from anchorfl.tasks.errors import InputError

INTERVAL = 1e-4
"""Step of privacy losses at a noise of 1 and above."""
REDRAWN = 0.01
"""Part of delta that may go to what no accountant counts: an empty draw of clients is drawn again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientPrivacy:
    """The noise of a run."""

    noise: float
    """Deviation of the noise on the sum of the steps, in units of ``clip``, > 0."""
    clip: float
    """Largest L2 norm of a client's step, > 0."""
    delta: float
    """Probability that is left out of the guarantee, in (0, 1)."""
    population: int
    """Number of all clients."""
    clients: int
    """Number of clients that a round expects."""
    poisson: bool
    """Each client takes part by a draw of its own; else a fixed number of them does."""

    def private_mean(
        self, mean: Mapping[str, Tensor], sent: Mapping[str, Tensor], answers: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """Return the round's weights, noise included. mean: of ``answers`` clients with cut steps, each counting 1."""
        share, deviation = answers / self.clients, self.noise * self.clip / self.clients
        out = {}
        for name, value in mean.items():
            step = value.double() - sent[name].double()
            normal = torch.from_numpy(np.asarray(rng.standard_normal(tuple(value.shape))))
            out[name] = (sent[name].double() + share * step + deviation * normal).to(value.dtype)
        return out

    @cache  # noqa: B019  # a few of them, frozen, each asked for twice
    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of so many rounds at ``delta``.

        Poisson draws: for one client more or less, by the privacy loss distribution of the subsampled Gaussian (by
        Google's dp-accounting). A fixed number: for one client's data replaced by any others, so that the sum moves by
        two ``clip``; exact where all take part (``spent_epsilon``), else by Renyi differential privacy under sampling
        without replacement (Wang, Balle and Kasiviswanathan, 2019, Theorem 27), which is loose. InputError where the
        library is missing, or an empty draw is too likely.
        """
        if rounds == 0:
            return 0.0
        if not self.poisson and self.clients == self.population:
            return spent_epsilon(self.noise / 2, rounds, self.delta)
        try:
            import dp_accounting
            from dp_accounting import pld, rdp
        except ImportError as error:
            raise InputError(
                f"epsilon needs Python package dp-accounting ({error}): pip install 'anchorfl[dp]', or dp_noise = 0"
            ) from error
        relation = dp_accounting.NeighboringRelation
        if not self.poisson:
            sampled = dp_accounting.SampledWithoutReplacementDpEvent(
                self.population, self.clients, dp_accounting.GaussianDpEvent(self.noise / 2)
            )
            by_renyi = rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
            return float(by_renyi.compose(sampled, rounds).get_epsilon(self.delta))
        rate = self.clients / self.population
        # beside one client: where no other is drawn, it is there alone, or the draw is empty and not seen
        if rate < 1 and (alone := rounds * (1 - rate) ** (self.population - 1)) > REDRAWN * self.delta:
            raise InputError(
                f"federation.selection = 'poisson': in {rounds} rounds no other client is drawn with probability"
                f" {min(1.0, alone):.2g}, too much beside federation.dp_delta = {self.delta:g}: raise"
                " federation.clients_per_round"
            )
        drawn = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(self.noise))
        # losses grow as 1 / noise^2, and so does the step on which they lie, which is rounded up: seconds, not minutes
        step = INTERVAL / min(1.0, self.noise) ** 2
        by_loss = pld.PLDAccountant(relation.ADD_OR_REMOVE_ONE, value_discretization_interval=step)
        return float(by_loss.compose(drawn, rounds).get_epsilon((1 - REDRAWN) * self.delta))

    def notice(self, rounds: int) -> str:
        """Return a line for the log: epsilon after ``rounds``, and what it is for. InputError as ``epsilon``."""
        epsilon = self.epsilon(rounds)
        drawn, change = ("a draw each", "more or less") if self.poisson else ("a fixed number", "with any other data")
        return (
            f"DP of clients: epsilon {epsilon:.4g} at delta {self.delta:g} after {rounds} rounds, for one client"
            f" {change} (noise {self.noise:g} x clip {self.clip:g}, {self.clients} of {self.population} clients by"
            f" {drawn}); cards, scaling, vocabulary, scores and losses are not covered, and the"
            " noise is as secret as the seed"
        )
