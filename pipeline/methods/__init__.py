"""The methods by name, written out by hand."""

from __future__ import annotations

from typing import Any

from anchorfl.pipeline.algorithm.contract import Method
from anchorfl.pipeline.methods.fedalc import FedALC
from anchorfl.pipeline.methods.fedalc_fixed import FedALCFixed
from anchorfl.pipeline.methods.fedalign import FedAlign
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedavg_positive import FedAvgPositive
from anchorfl.pipeline.methods.fedaws import FedAwS
from anchorfl.pipeline.methods.fedbm import FedBM
from anchorfl.pipeline.methods.feddyn import FedDyn
from anchorfl.pipeline.methods.fedetf import FedETF
from anchorfl.pipeline.methods.fedmlh import FedMLH
from anchorfl.pipeline.methods.fednh import FedNH
from anchorfl.pipeline.methods.fedproto import FedProto
from anchorfl.pipeline.methods.fedprox import FedProx
from anchorfl.pipeline.methods.fedpu import FedPU
from anchorfl.pipeline.methods.fedrep import FedRep
from anchorfl.pipeline.methods.fedrod import FedROD
from anchorfl.pipeline.methods.fedrs import FedRS
from anchorfl.pipeline.methods.flag import Flag
from anchorfl.pipeline.methods.moon import Moon
from anchorfl.pipeline.methods.scaffold import Scaffold

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
