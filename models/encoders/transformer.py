"""FedAlign's data encoder: one post-norm transformer layer over tokens or a series (KDD 2023, section 5).

Shape suffixes: B rows, L positions, D width, H heads, F features, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.models.dropout import Dropout, MaskSource


def sinusoids(length: int, width: int) -> Tensor:
    """Return the positions [length, width] of Vaswani et al. (2017), section 3.5.

    Sines stand in the even columns, cosines in the odd.
    """
    position_L1 = torch.arange(length, dtype=torch.float64)[:, None]
    rate_D = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    table_LD = torch.zeros(length, width, dtype=torch.float64)
    table_LD[:, 0::2] = torch.sin(position_L1 * rate_D)
    table_LD[:, 1::2] = torch.cos(position_L1 * rate_D)[:, : width // 2]
    return table_LD.float()


class SelfAttentionLayer(nn.Module):
    """Post-norm encoder layer with ReLU; the mathematics and initial values of ``nn.TransformerEncoderLayer``.

    Written out because the library's layer draws masks by ``bernoulli_``, which takes a third of the time on a CPU.
    """

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float, masks: MaskSource) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"model.width = {width} is not a multiple of model.heads = {heads}")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, feedforward)
        self.down = nn.Linear(feedforward, width)
        self.norm_attention = nn.LayerNorm(width)
        self.norm_feedforward = nn.LayerNorm(width)
        self.drop = Dropout(dropout, masks)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_BLD: Tensor, bias_B11L: Tensor | None) -> Tensor:
        x_BLD = self.norm_attention(x_BLD + self.drop(self.attend(x_BLD, bias_B11L), (1,)))
        hidden = self.down(self.drop(F.relu(self.up(x_BLD)), (1,)))
        out: Tensor = self.norm_feedforward(x_BLD + self.drop(hidden, (1,)))
        return out

    def attend(self, x_BLD: Tensor, bias_B11L: Tensor | None) -> Tensor:
        """Return multi-head self-attention; ``bias`` is 0 at real positions and -inf at padding."""
        b, length, width = x_BLD.shape
        q, k, v = self.qkv(x_BLD).view(b, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weight_BHLL = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)
        if bias_B11L is not None:
            weight_BHLL = weight_BHLL + bias_B11L
        weight_BHLL = self.drop(weight_BHLL.softmax(-1), (2, 3))
        mixed: Tensor = self.out((weight_BHLL @ v).transpose(1, 2).reshape(b, length, width))
        return mixed


class TransformerEncoder(nn.Module):
    """Embedding (tokens) or Linear (series) + positions + dropout + one layer + LayerNorm, mean over real positions
    -> z_BD.

    A position is padding where its token id is 0, or its whole feature row is 0. A row without a real one gives zeros.
    """

    positions: Tensor
    stacked = False
    """True where it is one of several that are computed at once (``anchorfl.models.stacked``)."""

    def __init__(
        self, entry: nn.Module, width: int, heads: int, feedforward: int, dropout: float, length: int, masks: MaskSource
    ) -> None:
        super().__init__()
        self.entry = entry
        self.layer = SelfAttentionLayer(width, heads, feedforward, dropout, masks)
        self.norm = nn.LayerNorm(width)
        self.drop = Dropout(dropout, masks)
        # A constant of the architecture: not a weight, so it neither travels nor is it saved.
        self.register_buffer("positions", sinusoids(length, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        real_BL = x != 0 if x.dim() == 2 else (x != 0).any(-1)
        x_BLD = self.drop(self.entry(x) + self.positions[: x.shape[1]], (1,))
        bias = None
        # a GPU would have to be waited for to know that there is no padding: there the bias is added in any case
        if self.stacked or x.device.type != "cpu" or not bool(real_BL.all()):
            # A fully padded row attends to everything: its result is multiplied by zero below, and must not be NaN.
            hidden_BL = ~real_BL & real_BL.any(-1, keepdim=True)
            bias = torch.zeros(real_BL.shape, device=x.device).masked_fill(hidden_BL, -math.inf)[:, None, None, :]
        z_BLD: Tensor = self.norm(self.layer(x_BLD, bias))
        if bias is None:
            return z_BLD.mean(1)
        weight_BL1 = real_BL[..., None].to(z_BLD.dtype)
        return (z_BLD * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1)
