"""Networks by options, with reproducible initial weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from anchorfl.models.adapters import add_adapters
from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders import plug_in
from anchorfl.models.encoders.cnn import SmallCNN
from anchorfl.models.encoders.plug_in import MakeEncoder
from anchorfl.models.encoders.resnet import LINEAR, Network, ResNet, stem_for
from anchorfl.models.encoders.side_by_side import SideBySide
from anchorfl.models.encoders.sparse import SparseEncoder
from anchorfl.models.encoders.transformer import SelfAttentionLayer, TransformerEncoder
from anchorfl.models.errors import NetworkError
from anchorfl.models.heads import (
    BiasedHead,
    ConceptHead,
    CosineHead,
    FrameHead,
    GuidedHead,
    LabelHead,
    LinearHead,
    PrototypeHead,
)
from anchorfl.models.label_encoder import LabelEncoderSpec, LanguageHead
from anchorfl.models.options import NETWORKS, EncoderSpec, ModelOptions
from anchorfl.models.start import start_from

Head = Literal["linear", "label", "cosine", "concept", "prototype", "frame", "guided", "biased"]


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
    network: MakeEncoder | None = None,
    label_encoder: LabelEncoderSpec | None = None,
) -> Classifier:
    """Return a classifier whose initial weights depend on the arguments alone.

    - ``vocabulary``: number of token ids.
    - ``unit``: normalize class representations (single-label).
    - ``vectors_CP``: first values of the class embeddings (``label``, ``biased``), or the names that stay (``guided``).
    - ``parts``: so many encoders side by side (``cosine``), or layers of attention (``guided``).
    - ``start``: first values of each encoder, as ``anchorfl.models.start`` reads them, in place of drawn ones.
    - ``concept_width``: width of the class concepts (``head == "concept"`` only).
    - ``scale``: first value of a trained scale (``prototype`` and ``frame``).
    - ``network``: makes the encoder of a plug-in, whose name ``options.network`` is.
    - ``label_encoder``: the language model that encodes the class names, in place of ``vectors_CP``.

    Raises ValueError where the network does not fit the input, or ``start`` the network.
    """
    masks = MaskSource(lookup=lookup_dropout)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = _encoder(options, input_kind, shape, vocabulary, masks, start, network)
        if head == "linear":
            return Classifier(encoder, LinearHead(options.width, classes), masks)
        if head == "cosine":
            others = [_encoder(options, input_kind, shape, vocabulary, masks, start, network) for _ in range(parts - 1)]
            whole = SideBySide([encoder, *others]) if others else encoder
            return Classifier(whole, CosineHead(classes, options.width * parts, parts), masks)
        if head == "concept":
            return Classifier(encoder, ConceptHead(classes, options.width, concept_width), masks)
        if head in ("prototype", "frame"):
            kind = PrototypeHead if head == "prototype" else FrameHead
            return Classifier(encoder, kind(classes, options.width, scale), masks)
        if label_encoder is not None:
            return Classifier(encoder, LanguageHead(label_encoder, options.width, unit=unit), masks)
        if vectors_CP is None:
            raise ValueError("a label head needs the class-name vectors")
        if head == "guided":
            sizes = options.width, options.heads, options.feedforward, options.dropout, masks
            layers = [SelfAttentionLayer(*sizes) for _ in range(parts)]
            return Classifier(encoder, GuidedHead(vectors_CP, options.width, layers), masks)
        if head == "biased":
            return Classifier(encoder, BiasedHead(vectors_CP, options.width), masks)
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
    network: MakeEncoder | None,
) -> nn.Module:
    if network is not None:
        spec = EncoderSpec(kind, shape, vocabulary, options.width, options.dropout)
        other = plug_in.make(network, spec, masks, f"model.network = {options.network!r}")
        if start is not None:
            plug_in.start(other, start, options.weights)
        if options.lora_rank:
            try:
                add_adapters(other.net, options.lora_rank)
            except NetworkError as error:
                raise ValueError(f"model.network = {options.network!r}: {error}: set model.lora_rank to 0") from error
        else:  # adapters leave nothing else to train, and what they freeze does not travel
            plug_in.keep_frozen(other.net)
        return other
    encoder = _make_encoder(options, kind, shape, vocabulary, masks)
    if start is not None:
        start_from(encoder, start, options.weights, (LINEAR,) if isinstance(encoder, ResNet) else ())
    return encoder


def _make_encoder(
    options: ModelOptions, kind: str, shape: tuple[int, ...], vocabulary: int, masks: MaskSource
) -> nn.Module:
    if options.network not in NETWORKS:
        raise ValueError(f"model.network = {options.network!r}: no network of that name: one of {', '.join(NETWORKS)}")
    if options.network != "auto":
        if kind != "image":
            raise ValueError(
                f"model.network = {options.network!r} is for images, the input is of kind {kind!r}: set it to 'auto'"
            )
        stem = stem_for(shape) if options.stem == "auto" else options.stem
        return ResNet(
            cast("Network", options.network), shape[0], options.width, stem=stem, norm=options.norm, init=options.init
        )
    match kind:
        case "tokens" | "series":
            entry = nn.Embedding(vocabulary, options.width) if kind == "tokens" else nn.Linear(shape[1], options.width)
            return TransformerEncoder(
                entry, options.width, options.heads, options.feedforward, options.dropout, shape[0], masks
            )
        case "image":
            if min(shape[1:]) < 2:
                raise ValueError(f"images of {shape[1]} x {shape[2]}: the network needs 2 a side; set task.image_size")
            return SmallCNN(shape, options.width, options.dropout, masks)
        case "sparse":
            return SparseEncoder(
                shape[0], options.width, options.feedforward, options.dropout, masks, options.embedding_std
            )
        case _:
            raise ValueError(f"no encoder for inputs of kind {kind!r}; known: tokens, series, image, sparse")
