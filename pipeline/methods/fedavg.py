"""FedAvg (McMahan et al., AISTATS 2017), Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from anchorfl.pipeline.algorithm.contract import Averaging


@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """Every selected client trains from the server's weights; the server takes the mean. The five defaults of the
    contract.
    """

    name = "fedavg"
