"""Networks by options, with reproducible initial weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.cnn import SmallCNN
from anchorfl.models.encoders.resnet import LINEAR, Init, ResNet, stem_for
from anchorfl.models.encoders.side_by_side import SideBySide
from anchorfl.models.encoders.sparse import SparseEncoder
from anchorfl.models.encoders.transformer import TransformerEncoder
from anchorfl.models.heads import ConceptHead, CosineHead, FrameHead, LabelHead, LinearHead, PrototypeHead
from anchorfl.models.start import start_from

Head = Literal["linear", "label", "cosine", "concept", "prototype", "frame"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """The options of [model]: the network. Defaults are FedAlign's (KDD 2023, section 5 and reference code)."""

    network: Literal["auto", "resnet8", "resnet20", "resnet18", "resnet34", "resnet50"] = "auto"
    """Encoder: ``auto``, by the kind of input (docs/networks.md); or one of the residual networks, for images."""
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
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout = {self.dropout}: must be in [0, 1)")
        if not 0 < self.embedding_std < math.inf:
            raise ValueError(f"model.embedding_std = {self.embedding_std}: must be above 0")
        for name, standard in (("stem", "auto"), ("norm", "group"), ("init", "he")):
            if self.network == "auto" and getattr(self, name) != standard:
                raise ValueError(
                    f"model.{name} = {getattr(self, name)!r} is for residual networks: set model.network, for example"
                    " to 'resnet18'"
                )


def build(
    options: ModelOptions,
    *,
    input_kind: str,
    shape: tuple[int, ...],
    vocabulary: int,
    classes: int,
    head: Head,
    unit: bool,
    vectors_CP: Tensor | None,
    seed: int,
    lookup_dropout: bool = True,
    parts: int = 1,
    start: Mapping[str, Tensor] | None = None,
    concept_width: int = 0,
    scale: float = 1.0,
) -> Classifier:
    """Return a classifier whose initial weights depend on the arguments alone.

    - ``vocabulary``: number of token ids.
    - ``unit``: normalize class representations (single-label).
    - ``vectors_CP``: first values of the class embeddings (``head == "label"`` only).
    - ``parts``: so many encoders side by side (``head == "cosine"`` only).
    - ``start``: first values of each encoder, as ``anchorfl.models.start`` reads them, in place of drawn ones.
    - ``concept_width``: width of the class concepts (``head == "concept"`` only).
    - ``scale``: first value of a trained scale (``prototype`` and ``frame``).

    Raises ValueError where the network does not fit the input, or ``start`` the network.
    """
    masks = MaskSource(lookup=lookup_dropout)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = _encoder(options, input_kind, shape, vocabulary, masks, start)
        if head == "linear":
            return Classifier(encoder, LinearHead(options.width, classes), masks)
        if head == "cosine":
            others = [_encoder(options, input_kind, shape, vocabulary, masks, start) for _ in range(parts - 1)]
            whole = SideBySide([encoder, *others]) if others else encoder
            return Classifier(whole, CosineHead(classes, options.width * parts, parts), masks)
        if head == "concept":
            return Classifier(encoder, ConceptHead(classes, options.width, concept_width), masks)
        if head in ("prototype", "frame"):
            kind = PrototypeHead if head == "prototype" else FrameHead
            return Classifier(encoder, kind(classes, options.width, scale), masks)
        if vectors_CP is None:
            raise ValueError("a label head needs the class-name vectors")
        return Classifier(encoder, LabelHead(vectors_CP, options.width, unit=unit), masks)


def encoder_bytes(options: ModelOptions, input_kind: str, shape: tuple[int, ...], vocabulary: int) -> int:
    """Return the bytes of the encoder's weights, which are not allocated. ValueError as ``build``; RuntimeError where
    torch cannot count them.
    """
    with torch.device("meta"):
        encoder = _make_encoder(options, input_kind, shape, vocabulary, MaskSource(lookup=True))
    return sum(tensor.nbytes for tensor in (*encoder.parameters(), *encoder.buffers()))


def _encoder(
    options: ModelOptions,
    kind: str,
    shape: tuple[int, ...],
    vocabulary: int,
    masks: MaskSource,
    start: Mapping[str, Tensor] | None,
) -> nn.Module:
    encoder = _make_encoder(options, kind, shape, vocabulary, masks)
    if start is not None:
        start_from(encoder, start, options.weights, (LINEAR,) if isinstance(encoder, ResNet) else ())
    return encoder


def _make_encoder(
    options: ModelOptions, kind: str, shape: tuple[int, ...], vocabulary: int, masks: MaskSource
) -> nn.Module:
    if options.network != "auto":
        if kind != "image":
            raise ValueError(
                f"model.network = {options.network!r} is for images, the input is of kind {kind!r}: set it to 'auto'"
            )
        stem = stem_for(shape) if options.stem == "auto" else options.stem
        return ResNet(options.network, shape[0], options.width, stem=stem, norm=options.norm, init=options.init)
    match kind:
        case "tokens" | "series":
            entry = nn.Embedding(vocabulary, options.width) if kind == "tokens" else nn.Linear(shape[1], options.width)
            return TransformerEncoder(
                entry, options.width, options.heads, options.feedforward, options.dropout, shape[0], masks
            )
        case "image":
            return SmallCNN(shape, options.width, options.dropout, masks)
        case "sparse":
            return SparseEncoder(
                shape[0], options.width, options.feedforward, options.dropout, masks, options.embedding_std
            )
        case _:
            raise ValueError(f"no encoder for inputs of kind {kind!r}; known: tokens, series, image, sparse")
