"""The methods by name, written out by hand."""

from __future__ import annotations

from typing import Any

from pipeline.algorithm.contract import Method
from pipeline.methods.fedalc import FedALC
from pipeline.methods.fedalc_fixed import FedALCFixed
from pipeline.methods.fedalign import FedAlign
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavg_positive import FedAvgPositive
from pipeline.methods.fedaws import FedAwS
from pipeline.methods.fedbm import FedBM
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fedetf import FedETF
from pipeline.methods.fedmlh import FedMLH
from pipeline.methods.fednh import FedNH
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedprox import FedProx
from pipeline.methods.fedpu import FedPU
from pipeline.methods.fedrep import FedRep
from pipeline.methods.fedrod import FedROD
from pipeline.methods.fedrs import FedRS
from pipeline.methods.flag import Flag
from pipeline.methods.moon import Moon
from pipeline.methods.scaffold import Scaffold

METHODS: dict[str, type[Method[Any, Any]]] = {
    "fedalc": FedALC,
    "fedalc-fixed": FedALCFixed,
    "fedalign": FedAlign,
    "fedavg": FedAvg,
    "fedavg-positive": FedAvgPositive,
    "fedaws": FedAwS,
    "fedbm": FedBM,
    "feddyn": FedDyn,
    "fedetf": FedETF,
    "fedmlh": FedMLH,
    "fednh": FedNH,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedpu": FedPU,
    "fedrep": FedRep,
    "fedrod": FedROD,
    "fedrs": FedRS,
    "flag": Flag,
    "moon": Moon,
    "scaffold": Scaffold,
}
