"""An encoder of another package, held to the promises of those here: random numbers and the shape of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.libraries import LINEAR, LibraryEncoder
from anchorfl.models.errors import NetworkError
from anchorfl.models.options import EncoderSpec
from anchorfl.models.start import start_from

MakeEncoder = Callable[[EncoderSpec], nn.Module]
"""Makes an encoder for an input: a subclass of ``nn.Module``, or a function."""


class PlugIn(nn.Module):
    """An encoder ``net(x) -> z_BD`` whose dropout, in training mode, draws from the source's generator.

    It may draw by torch's global generator, as modules do: for the time of a pass that is seeded from the source.
    """

    def __init__(self, net: nn.Module, source: MaskSource) -> None:
        super().__init__()
        self.net = net
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            out: Tensor = self.net(x)
            return out
        with self.source.seeded(x.device):
            out = self.net(x)
        return out


def make(make_encoder: MakeEncoder, spec: EncoderSpec, source: MaskSource, where: str) -> PlugIn:
    """Return the encoder. where: its option, for messages. ValueError where its code fails or gives no network."""
    try:
        net = make_encoder(spec)
    except NetworkError as error:
        raise ValueError(f"{where}: {error}") from error
    except Exception as error:  # it is anybody's code
        lines = str(error).strip().splitlines()
        raise ValueError(f"{where}: making it failed ({type(error).__name__}: {lines[0] if lines else ''})") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"{where}: gives a {type(net).__name__}, and no torch.nn.Module")  # noqa: TRY004
    for name, value in net.state_dict().items():
        if fault := _cannot_travel(value):
            raise ValueError(f"{where}: {name} {fault}")
    return PlugIn(net, source)


def keep_frozen(net: nn.Module) -> None:
    """Make buffers of a network's parameters that it has frozen: all parameters of a model are trained."""
    buffers = dict[nn.Parameter, Tensor]()
    for module in net.modules():
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not p.requires_grad:
                delattr(module, name)
                module.register_buffer(name, buffers.setdefault(p, p.detach()))


def _cannot_travel(value: object) -> str:
    """Return why an entry of a state_dict cannot be sent and averaged, and how to mend it; empty where it can."""
    if not isinstance(value, Tensor):
        return f"of its state_dict is a {type(value).__name__}, and only tensors travel: leave get_extra_state out"
    if is_lazy(value):
        return "has no size yet: take a layer that is given its size, such as nn.Linear in place of nn.LazyLinear"
    if value.is_complex():
        return f"is {value.dtype}: keep its real and imaginary parts as two tensors"
    return ""


def start(encoder: PlugIn, values: Mapping[str, Tensor], where: str) -> None:
    """Copy values into an encoder, under the names that its network has by itself or as a part of a run's model.

    Arguments and errors as ``anchorfl.models.start.start_from``.
    """
    if not values.keys() <= encoder.net.state_dict().keys():
        values = {name.removeprefix("net."): value for name, value in values.items()}
    if isinstance(encoder.net, LibraryEncoder):
        start_from(encoder.net, encoder.net.named(values), where, (LINEAR,))
    else:
        start_from(encoder.net, values, where)


def check(encoder: PlugIn, spec: EncoderSpec, where: str) -> None:
    """Pass two made-up rows through an encoder. ValueError where that fails, or gives another shape than [2, width]."""
    rows = 2
    x = torch.ones(rows, *spec.shape, dtype=torch.int32) if spec.kind == "tokens" else torch.zeros(rows, *spec.shape)
    if spec.kind == "sparse":
        x = torch.ones(rows, 3, 2)
    training = encoder.training
    try:
        with torch.no_grad():
            z_BD = encoder.eval()(x)
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ValueError(
            f"{where}: a pass over {rows} rows of kind {spec.kind!r} and shape {tuple(x.shape)} failed"
            f" ({type(error).__name__}: {lines[0] if lines else ''})"
        ) from error
    finally:
        encoder.train(training)
    shape = tuple(z_BD.shape) if isinstance(z_BD, Tensor) else type(z_BD).__name__
    if shape != (rows, spec.width):
        raise ValueError(
            f"{where}: gives {shape} for {rows} rows, and not (rows, model.width), which is {(rows, spec.width)}"
        )
    if z_BD.dtype != torch.float32:
        raise ValueError(f"{where}: gives {z_BD.dtype}, and not torch.float32")
