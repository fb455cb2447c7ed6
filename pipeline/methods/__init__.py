"""The methods by name, written out by hand."""

from __future__ import annotations

from typing import Any

from pipeline.contract import Method
from pipeline.methods.fedalign import FedAlign
from pipeline.methods.fedavg import FedAvg

METHODS: dict[str, type[Method[Any, Any]]] = {
    "fedalign": FedAlign,
    "fedavg": FedAvg,
}
