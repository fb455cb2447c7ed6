"""From options to a network with reproducible initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from models.classifier import Classifier
from models.dropout import MaskSource
from models.encoders.cnn import SmallCNN
from models.encoders.sparse import SparseEncoder
from models.encoders.transformer import TransformerEncoder
from models.heads import LabelHead, LinearHead

Head = Literal["linear", "label"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """The network. Defaults are FedAlign's (KDD 2023, section 4.1 and reference code)."""

    width: int = 256
    """Width d of the representation."""
    heads: int = 4
    """Attention heads (transformer)."""
    feedforward: int = 64
    """Hidden width of the feed-forward block (transformer), or of the two hidden layers (sparse; FedALC: 1024)."""
    dropout: float = 0.5
    """Dropout probability, in [0, 1)."""
    names: Literal["random", "cooccurrence", "language_model"] = "random"
    """First values of the class embeddings: ``random``; skip-gram over random walks on a co-occurrence table of the
    names; or what a language model makes of the names."""
    names_table: str = ""
    """CSV of the co-occurrence table; a relative path is looked up below ``$ANCHORFL_DATA`` too
    (docs/label-names.md)."""
    names_width: int = 256
    """Width of the class-name vectors (a language model has its own); where it differs from ``width``, a linear layer
    maps between them."""
    names_model: str = ""
    """Language model: a folder with its files, or a hub name (``name@revision`` to pin it); needs ``anchorfl[plm]``."""
    names_prompts: str = "{name}"
    """Language model: templates with ``{name}``, separated by ``|``; a name's vector is the mean over them."""
    names_normalise: bool = True
    """Language model: bring the vector of every prompt to length 1 before the mean."""

    def __post_init__(self) -> None:
        for name in ("width", "heads", "feedforward", "names_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout = {self.dropout}: must be in [0, 1)")
        if self.names == "cooccurrence" and not self.names_table:
            raise ValueError("model.names = 'cooccurrence' needs model.names_table, the CSV of the co-occurrence table")
        if self.names == "language_model" and not self.names_model:
            raise ValueError("model.names = 'language_model' needs model.names_model, its folder or hub name")
        if bad := next((prompt for prompt in self.prompts if "{name}" not in prompt), ""):
            raise ValueError(f"model.names_prompts: {bad!r} has no {{name}}: write it where the class name belongs")

    @property
    def prompts(self) -> tuple[str, ...]:
        """The templates of ``names_prompts``."""
        return tuple(prompt.strip() for prompt in self.names_prompts.split("|"))


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
) -> Classifier:
    """A classifier whose initial weights depend on the arguments alone.

    ``vocabulary``: number of token ids; ``unit``: normalise class representations (single-label); ``vectors_CP``: first
    values of the class embeddings (``head == "label"`` only).
    """
    masks = MaskSource(lookup=lookup_dropout)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = _encoder(options, input_kind, shape, vocabulary, masks)
        if head == "linear":
            return Classifier(encoder, LinearHead(options.width, classes), masks)
        if vectors_CP is None:
            raise ValueError("a label head needs the class-name vectors")
        return Classifier(encoder, LabelHead(vectors_CP, options.width, unit=unit), masks)


def _encoder(o: ModelOptions, kind: str, shape: tuple[int, ...], vocabulary: int, masks: MaskSource) -> nn.Module:
    match kind:
        case "tokens":
            entry: nn.Module = nn.Embedding(vocabulary, o.width)
            return TransformerEncoder(entry, o.width, o.heads, o.feedforward, o.dropout, shape[0], masks)
        case "series":
            entry = nn.Linear(shape[1], o.width)
            return TransformerEncoder(entry, o.width, o.heads, o.feedforward, o.dropout, shape[0], masks)
        case "image":
            return SmallCNN(shape, o.width, o.dropout, masks)
        case "sparse":
            return SparseEncoder(shape[0], o.width, o.feedforward, o.dropout, masks)
        case _:
            raise ValueError(f"no encoder for inputs of kind {kind!r}; known: tokens, series, image, sparse")
