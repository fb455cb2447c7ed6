"""FedAvg (McMahan et al., AISTATS 2017), Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from anchorfl.pipeline.algorithm.contract import Averaging


@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """Selected clients train from the server's weights, and it takes the mean: the five defaults of the contract."""

    name = "fedavg"
