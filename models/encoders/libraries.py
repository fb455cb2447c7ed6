"""Networks of timm, torchvision and transformers as encoders: without their classifier, pooled, brought to the width.

Nothing is downloaded. First values are drawn from torch's global generator, or read from safetensors files on this
machine. Shape suffixes: B rows, L positions, C channels, H height, W width of an image, D numbers a row.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorfl.models.errors import NetworkError
from anchorfl.models.options import EncoderSpec
from anchorfl.models.text_encoders import mean_states, quiet

LINEAR = "linear."
"""Prefix of the layer that brings a network's numbers to ``model.width``. It is AnchorFL's own."""
Pass = Callable[[nn.Module, Tensor], Tensor]
"""(network, x) -> representations [B, D]."""


class LibraryEncoder(nn.Module):
    """A library's network, and a linear layer where it gives another width: ``x -> z_BD``.

    classifier: the names of layers that were taken off, whose tensors a file of weights may have. own: names of the
    network's parts that belong to the task, beside ``linear``: the vectors of its words.
    """

    def __init__(
        self, net: nn.Module, run: Pass, spec: EncoderSpec, classifier: Sequence[str] = (), own: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.net, self.run = net, run
        self.classifier, self.own = tuple(f"{name}." for name in classifier), tuple(f"net.{name}" for name in own)
        x = torch.ones(1, *spec.shape, dtype=torch.int32 if spec.kind == "tokens" else torch.float32)
        with torch.no_grad():
            z_BD = run(net.eval(), x)
        net.train()
        if z_BD.ndim != 2:
            raise NetworkError(f"gives {tuple(z_BD.shape)} for a row, and not one representation")
        features = z_BD.shape[1]
        self.linear = nn.Identity() if features == spec.width else nn.Linear(features, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.run(self.net, x))
        return out

    def brought(self) -> list[nn.Module]:
        """Return the parts whose values are no file's of the library, but this task's."""
        return [self.linear, *(self.get_submodule(name) for name in self.own)]

    def named(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return tensors under this encoder's names, of which a file of the library's lacks the prefix ``net.`` and has
        the classifier beside.
        """
        if any(name.startswith("net.") for name in values):
            return values
        # a transformers model with a head of its own has the network below its name, and the head beside
        base = f"{getattr(self.net, 'base_model_prefix', '')}."
        if base != "." and any(name.startswith(base) for name in values):
            values = {name.removeprefix(base): value for name, value in values.items() if name.startswith(base)}
        return {f"net.{name}": value for name, value in values.items() if not name.startswith(self.classifier or "\0")}


def make(library: str, name: str, spec: EncoderSpec) -> LibraryEncoder:
    """Return the encoder of a network that a library knows by name, or of a transformers folder.

    Raises NetworkError where there is none, or it is not for such an input.
    """
    if library == "hf":
        return _of_transformers(Path(name), spec)
    if spec.kind != "image":
        raise NetworkError(f"is for images, and the input is of kind {spec.kind!r}")
    return (_of_timm if library == "timm" else _of_torchvision)(name, spec)


def _of_timm(name: str, spec: EncoderSpec) -> LibraryEncoder:
    timm: Any = importlib.import_module("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    sized = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)  # such as a vision transformer
    size = {"img_size": spec.shape[1:]} if sized else {}
    net = timm.create_model(name, pretrained=False, in_chans=spec.shape[0], num_classes=0, **size)
    classifier = net.default_cfg.get("classifier") or ()
    return LibraryEncoder(net, _pixels, spec, (classifier,) if isinstance(classifier, str) else classifier)


def _of_torchvision(name: str, spec: EncoderSpec) -> LibraryEncoder:
    models: Any = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)  # of classification: others may fetch a backbone's weights
    if name not in known:
        raise _unknown("torchvision", name, known)
    size = {"image_size": spec.shape[1]} if name.startswith("vit_") else {}
    branches = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    net = models.get_model(name, weights=None, **size, **branches)
    last = [place for place, module in net.named_modules() if isinstance(module, nn.Linear)][-1:]
    if not last:
        raise NetworkError("ends in no linear layer that could be taken off: take another network")
    net.set_submodule(last[0], nn.Identity())
    first, conv = next((place, module) for place, module in net.named_modules() if isinstance(module, nn.Conv2d))
    if conv.in_channels != spec.shape[0]:
        net.set_submodule(first, nn.Conv2d(
            spec.shape[0], conv.out_channels, conv.kernel_size, conv.stride, conv.padding,  # type: ignore[arg-type]
            bias=conv.bias is not None,
        ))  # fmt: skip
    return LibraryEncoder(net, _pixels, spec, last)


def _of_transformers(folder: Path, spec: EncoderSpec) -> LibraryEncoder:
    """Return the encoder of a folder with config.json: with the weights beside it, or drawn where there are none.

    Its words are the task's, whose vectors are drawn in any case: an id means another word in the file.
    """
    transformers: Any = importlib.import_module("transformers")
    net: Any
    first: int | None = None
    with quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        padding = getattr(config, "pad_token_id", None)
        if spec.kind == "tokens":
            config.vocab_size, config.pad_token_id = spec.vocabulary, 0
        elif spec.kind == "image":
            config.num_channels = spec.shape[0]
            if hasattr(config, "image_size"):
                config.image_size = spec.shape[1] if spec.shape[1] == spec.shape[2] else spec.shape[1:]
        if any(folder.glob("*.safetensors")):
            net = _with_weights(transformers, folder, config)
            if padding is not None and hasattr(getattr(net, "embeddings", None), "padding_idx"):
                first = padding + 1  # RoBERTa and its kin count positions from their padding's id
        else:
            net = transformers.AutoModel.from_config(config, dtype=torch.float32)
    wanted = {"input_ids": "tokens", "pixel_values": "image"}.get(net.main_input_name, net.main_input_name)
    if spec.kind != wanted:
        raise NetworkError(f"a {type(net).__name__} is for inputs of kind {wanted!r}, and these are {spec.kind!r}")
    taken: tuple[str, ...] = ()
    pooler = getattr(net, "pooler", None)
    if isinstance(pooler, nn.Module) and next(pooler.parameters(), None) is not None:
        net.pooler, taken = None, ("pooler",)  # its output is not used
    if spec.kind == "image":
        _check_patches(net, config, spec)
        return LibraryEncoder(net, _image_states, spec, taken)
    counted = hasattr(getattr(net, "embeddings", None), "padding_idx")
    most = getattr(config, "max_position_embeddings", 0) - (first or int(counted))
    if 0 < most < spec.shape[0] and hasattr(getattr(net, "embeddings", None), "position_embeddings"):
        raise NetworkError(f"takes {most} tokens, and texts have up to {spec.shape[0]}: set --task.max_tokens {most}")
    words = net.get_input_embeddings()
    nn.init.normal_(words.weight, std=getattr(config, "initializer_range", 0.02))
    with torch.no_grad():
        words.weight[0] = 0
    own = [name for name, module in net.named_modules() if module is words]
    return LibraryEncoder(net, _word_states if first is None else partial(_word_states, first=first), spec, taken, own)


def _check_patches(net: nn.Module, config: Any, spec: EncoderSpec) -> None:
    """Raise NetworkError where a network cuts images into patches, and leaves the rest of a side out."""
    patch = getattr(config, "patch_size", None)
    sides = (patch, patch) if isinstance(patch, int) else patch
    if not sides or all(size % side == 0 for size, side in zip(spec.shape[1:], sides, strict=True)):
        return
    with torch.enable_grad():
        x = torch.linspace(-1, 1, math.prod(spec.shape)).view(1, *spec.shape).requires_grad_()
        (gradient,) = torch.autograd.grad(_image_states(net.eval(), x).square().sum(), x)
    net.train()
    if not (bool(gradient[..., -1, :].any()) and bool(gradient[..., -1].any())):
        raise NetworkError(
            f"sees whole patches of {' x '.join(map(str, sides))} pixels alone, and images have"
            f" {' x '.join(map(str, spec.shape[1:]))}: set --task.image_size to a multiple, or another patch_size"
            " in its config.json"
        )


def _with_weights(transformers: Any, folder: Path, config: Any) -> nn.Module:
    """Return the network with the values of its safetensors files. NetworkError where some are missing."""
    net, info = transformers.AutoModel.from_pretrained(
        folder, config=config, local_files_only=True, use_safetensors=True, ignore_mismatched_sizes=True,
        output_loading_info=True, dtype=torch.float32,
    )  # fmt: skip
    lacking = {name for name in info["missing_keys"] if not name.startswith("pooler.")}
    lacking |= {name for name, *_ in info["mismatched_keys"] if net.get_parameter(name) is not _words(net)}
    if lacking:
        raise NetworkError(
            f"{folder}: tensor {min(lacking)!r} is missing in its weights, or of another shape than this input needs"
        )
    return net  # type: ignore[no-any-return]


def _words(net: Any) -> Tensor | None:
    try:
        weight: Tensor | None = getattr(net.get_input_embeddings(), "weight", None)
    except NotImplementedError:  # of images
        return None
    return weight


def _pixels(net: nn.Module, x_BCHW: Tensor) -> Tensor:
    return _mean(net(x_BCHW))


def _image_states(net: nn.Module, x_BCHW: Tensor) -> Tensor:
    return _mean(net(pixel_values=x_BCHW).last_hidden_state)


def _word_states(net: nn.Module, x_BL: Tensor, first: int | None = None) -> Tensor:
    """first: position of a row's first word, for networks that would count from the id of padding."""
    there_BL = x_BL != 0
    there_BL[:, 0] = True  # of a row without words, whose mean is one of padding
    mask_BL = there_BL.long()
    placed = {} if first is None else {"position_ids": mask_BL.cumsum(1) * mask_BL + first - 1}
    return mean_states(net(input_ids=x_BL, attention_mask=mask_BL, **placed).last_hidden_state, there_BL)


def _mean(z: Tensor) -> Tensor:
    """Return the mean over the positions of [B, D, H, W] or [B, L, D]; [B, D] as it is."""
    return z.mean((2, 3)) if z.ndim == 4 else z.mean(1) if z.ndim == 3 else z


def _unknown(library: str, name: str, known: Sequence[str]) -> NetworkError:
    close = get_close_matches(name[:100], known, n=1)
    return NetworkError(f"{library} has no network {name!r}{f' (did you mean {close[0]!r}?)' if close else ''}")
