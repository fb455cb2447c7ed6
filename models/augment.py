"""Random crops and flips of a whole batch at once: no step of it is taken image by image.

Shape suffixes: B images, C channels, H height, W width, S pixels of a side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(
    x_BCHW: Tensor, rng: torch.Generator, padding: int = 4, *, horizontal: bool = True, vertical: bool = True
) -> Tensor:
    """Return images of the same size, cut at a random position out of themselves and flipped at random.

    Images get ``padding`` zeros on every side before they are cut. Each is flipped with probability 1/2 where
    ``horizontal`` or ``vertical`` says so. The result is a new tensor of the same type.

    The defaults are what FedBM's reference code does to its generated images, but that it draws once for the whole
    batch. Zero must be black: augment first, scale afterwards. Numbers are drawn on the device of ``rng``, so that the
    same generator gives the same images on every device. Gradients go through.
    """
    rows, channels, height, width = x_BCHW.shape
    row_BH = _source_indices(rows, height, padding, vertical, rng).to(x_BCHW.device, non_blocking=True)
    column_BW = _source_indices(rows, width, padding, horizontal, rng).to(x_BCHW.device, non_blocking=True)
    padded = F.pad(x_BCHW, (padding,) * 4)
    # two passes of gather take a third of the time of one indexing by row and column
    cut = padded.gather(2, row_BH[:, None, :, None].expand(rows, channels, height, padded.shape[3]))
    return cut.gather(3, column_BW[:, None, None, :].expand(rows, channels, height, width))


def _source_indices(rows: int, size: int, padding: int, flip: bool, rng: torch.Generator) -> Tensor:
    """Return the indices of a padded side that are taken, in their order: int64 [B, size]."""
    index_BS = torch.arange(size, device=rng.device).expand(rows, size)
    if padding:
        index_BS = index_BS + torch.randint(2 * padding + 1, (rows, 1), generator=rng, device=rng.device)
    if flip:
        flipped_B1 = torch.rand((rows, 1), generator=rng, device=rng.device) < 0.5
        index_BS = torch.where(flipped_B1, index_BS.flip(1), index_BS)
    return index_BS
