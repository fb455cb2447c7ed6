"""The one shape every network here has: an encoder and a head."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.plug_in import PlugIn
from anchorfl.models.label_encoder import LanguageHead


class Classifier(nn.Module):
    """An encoder and a head: ``encoder(x) -> z_BD``, then ``head(z_BD) -> logits_BC``."""

    def __init__(self, encoder: nn.Module, head: nn.Module, masks: MaskSource) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out

    def reseed(self, generator: torch.Generator) -> None:
        """Draw every dropout mask from here on out of ``generator``."""
        self.masks.reseed(generator)

    @cached_property
    def replayable(self) -> bool:
        """True where a pass is one program of tensors for all clients: of networks of other packages nobody knows."""
        return not any(isinstance(m, PlugIn | LanguageHead) for m in self.modules())

    @cached_property
    def looks_up(self) -> bool:
        """True where a position of a row costs a look-up and no product, so that a pass wants many rows."""
        return any(isinstance(m, nn.EmbeddingBag) for m in self.encoder.modules())

    @cached_property
    def couples_rows(self) -> bool:
        """True where the rows of a batch influence each other in training (BatchNorm), so that none may be left out."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.modules())
