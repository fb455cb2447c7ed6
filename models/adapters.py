"""Low-rank adapters (LoRA; Hu et al., ICLR 2022): a network whose own weights stay as they are, and do not travel.

Every linear layer computes with ``W + B A``, where A [rank, inputs] is drawn and B [outputs, rank] starts at 0, so that
the first pass is that of the network without adapters. The scale alpha / rank is 1. Frozen weights become buffers that
are no part of the state dict: neither messages nor optimizers see them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from anchorfl.models.encoders.libraries import LibraryEncoder
from anchorfl.models.errors import NetworkError


class LowRank(nn.Module):
    """The change ``B A`` of a weight [outputs, inputs]."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def add_adapters(net: nn.Module, rank: int) -> None:
    """Give every linear layer of a network an adapter, and freeze the rest of it.

    Trained in full are the parts of a library's encoder that the task brings: the vectors of its words, and the layer
    to ``model.width``. Layers that share a weight share the adapter. Raises NetworkError where there is no such layer.
    """
    brought = {id(part) for part in (net.brought() if isinstance(net, LibraryEncoder) else ())}
    # its kinds have forwards of their own, which take the weight past the layer; parametrized, all of them see B A
    layers = [m for m in net.modules() if isinstance(m, nn.Linear) and id(m) not in brought]
    if not layers:
        raise NetworkError("has no linear layer (torch.nn.Linear) for an adapter")
    adapters = dict[Tensor, LowRank]()
    for layer in layers:
        if layer.weight not in adapters:
            adapters[layer.weight] = LowRank(layer.weight, rank)
    for layer in layers:
        register_parametrization(layer, "weight", adapters[layer.weight])
    kept = {id(p) for adapter in adapters.values() for p in adapter.parameters()}
    frozen = dict[nn.Parameter, Tensor]()
    for module in net.modules():
        for name, p in () if id(module) in brought else list(module.named_parameters(recurse=False)):
            if id(p) not in kept:
                delattr(module, name)
                module.register_buffer(name, frozen.setdefault(p, p.detach()), persistent=False)


def frozen_of(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model computes with and its state dict has not, by name: its own tensors."""
    travelling = model.state_dict().keys()
    return {name: value for name, value in model.named_buffers() if name not in travelling}
