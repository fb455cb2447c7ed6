"""Options of networks and text encoders, as plain values. Nothing slow is imported: the command line lists them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Init = Literal["he", "torch"]
Pooling = Literal["auto", "mean", "first", "projected"]


NETWORKS = "auto", "resnet8", "resnet20", "resnet18", "resnet34", "resnet50"
"""Networks of AnchorFL. All but ``auto`` are residual."""
LIBRARIES = {"timm": ("timm", "timm"), "torchvision": ("torchvision", "torchvision"), "hf": ("transformers", "plm")}
"""Prefixes of ``model.network`` -> the package whose networks they name, and the extra of AnchorFL that installs it."""


def library_of(network: str) -> str:
    """Return the prefix of a network of a library, such as ``timm``; empty for any other network."""
    prefix, colon, _ = network.partition(":")
    return prefix if colon and prefix in LIBRARIES else ""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """What an encoder of a plug-in is made for."""

    kind: str
    """Kind of input: ``tokens``, ``series``, ``image`` or ``sparse``. Batches are ``x`` of
    ``anchorfl.tasks.contract.Batch``."""
    shape: tuple[int, ...]
    """Shape of one sample: tokens (positions,), series (steps, features), image (channels, height, width), sparse
    (features,). A batch of tokens or series may be shorter; sparse rows are [entries, 2]."""
    vocabulary: int
    """Number of token ids, of which 0 is padding; 0 where there are no tokens."""
    width: int
    """``model.width``: numbers that ``forward`` gives for a row, [B, width], float32."""
    dropout: float
    """``model.dropout``, in [0, 1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """The options of [model]: the network. Defaults are FedAlign's (KDD 2023, section 5 and reference code)."""

    network: str = "auto"
    """Encoder: ``auto``, by the kind of input (docs/networks.md); ``resnet8``, ``resnet20``, ``resnet18``, ``resnet34``
    or ``resnet50``, for images; ``timm:NAME``, ``torchvision:NAME`` or ``hf:FOLDER``, a library's; or a plug-in's, by
    its name or ``package.module:Name`` (docs/plug-ins.md)."""
    stem: Literal["auto", "imagenet", "small"] = "auto"
    """First layer of a residual network: ``imagenet``, 7x7 with stride 2 and max-pooling; ``small``, 3x3; ``auto``:
    ``small`` up to 64 pixels a side."""
    norm: Literal["group", "batch", "frozen"] = "group"
    """Normalization of a residual network: ``group``, in 32 groups; ``batch``, whose statistics are averaged with the
    weights; ``frozen``, BatchNorm with the statistics of ``weights``, which stay as they are."""
    init: Init = "he"
    """First values of a residual network's convolutions: ``he``, He-normal by the fan-out; ``torch``, torch's own,
    uniform by the fan-in (FedBM)."""
    weights: str = ""
    """Weights that the encoder starts from: a .safetensors file, or that of a run's ``model`` folder; a relative path
    is looked up below ``$ANCHORFL_DATA`` too. Empty: drawn from the seed."""
    lora_rank: int = 0
    """Rank of low-rank adapters (LoRA) in the linear layers of a library's or a plug-in's network, whose own weights
    stay as they are and do not travel (docs/networks.md); 0: none, all weights are trained."""
    width: int = 256
    """Width d of the representation."""
    heads: int = 4
    """Attention heads (transformer)."""
    feedforward: int = 64
    """Hidden width of the feed-forward block (transformer), or of the two hidden layers (sparse; FedALC: 1024)."""
    dropout: float = 0.5
    """Dropout probability, in [0, 1); residual networks have none."""
    embedding_std: float = 1.0
    """Standard deviation of the first values of the embedding matrix, above 0 (sparse)."""

    def __post_init__(self) -> None:
        for name in ("width", "heads", "feedforward"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} = {getattr(self, name)}: must be at least 1")
        if self.lora_rank < 0:
            raise ValueError(f"model.lora_rank = {self.lora_rank}: must be at least 0")
        if self.lora_rank and self.network in NETWORKS:
            raise ValueError(
                f"model.lora_rank = {self.lora_rank} is for networks of libraries and plug-ins, and model.network ="
                f" {self.network!r} is AnchorFL's: set it to 0"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout = {self.dropout}: must be in [0, 1)")
        if not 0 < self.embedding_std < math.inf:
            raise ValueError(f"model.embedding_std = {self.embedding_std}: must be above 0")
        standard = {"stem": "auto", "norm": "group", "init": "he"}
        idle = [] if self.network in NETWORKS[1:] else [n for n in standard if getattr(self, n) != standard[n]]
        if idle:
            have = ", ".join(f"model.{name} = {getattr(self, name)!r}" for name in idle)
            back = " ".join(f"--model.{name} {standard[name]}" for name in idle)
            raise ValueError(
                f"{have}: for residual networks alone, and model.network is {self.network!r}: set {back}, or"
                " model.network, for example to 'resnet18'"
            )
