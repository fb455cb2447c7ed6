"""The methods by name, written out by hand."""

from __future__ import annotations

from typing import Any

from pipeline.contract import Method
from pipeline.methods.fedalign import FedAlign
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedprox import FedProx
from pipeline.methods.fedpu import FedPU
from pipeline.methods.fedrs import FedRS
from pipeline.methods.moon import Moon
from pipeline.methods.scaffold import Scaffold

METHODS: dict[str, type[Method[Any, Any]]] = {
    "fedalign": FedAlign,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedpu": FedPU,
    "fedrs": FedRS,
    "moon": Moon,
    "scaffold": Scaffold,
}
