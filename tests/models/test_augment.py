"""Crops and flips of a batch against slices of every image alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorfl.models.augment import augment


def image(rows=40, channels=3, height=6, width=5, dtype=torch.uint8):
    """Images in which every pixel is another one, and none is black."""
    x = torch.arange(1, 1 + channels * height * width, dtype=torch.int64).view(1, channels, height, width) % 255 + 1
    return x.repeat(rows, 1, 1, 1).to(dtype)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def cuts(x_CHW, padding, vertical, horizontal):
    """Return every image that a crop and the flips can give, by slices: bytes -> (top, left, turned over, mirrored)."""
    _, height, width = x_CHW.shape
    padded = np.pad(x_CHW, ((0, 0), (padding, padding), (padding, padding)))
    out = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            cut = padded[:, top : top + height, left : left + width]
            for over in (False, True)[: 1 + vertical]:
                for mirrored in (False, True)[: 1 + horizontal]:
                    turned = cut[:, :: -1 if over else 1, :: -1 if mirrored else 1]
                    out[turned.tobytes()] = (top, left, over, mirrored)
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("vertical", "horizontal"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("padding", [0, 2])
def test_every_image_is_one_of_its_cuts(dtype, vertical, horizontal, padding):
    x = image(400, dtype=dtype)
    got = augment(x, rng(), padding, horizontal=horizontal, vertical=vertical)
    assert (got.shape, got.dtype) == (x.shape, dtype)
    possible = cuts(x[0].numpy(), padding, vertical, horizontal)
    seen = {possible[g.tobytes()] for g in got.numpy()}
    assert len(seen) > 0.9 * len(possible)  # each image by itself, and all of them come up
    assert x.equal(image(400, dtype=dtype))


def test_draws_are_even():
    """Each of the 9 places of a side and each side of a flip has its share of 20,000 draws."""
    x = torch.arange(1, 101, dtype=torch.uint8).view(1, 1, 10, 10).expand(20_000, 1, 10, 10)
    got = augment(x, rng(), 4, vertical=False)
    middle = got[:, 0, 4:6, 4:6].long()  # inside the image whatever the crop
    mirrored = middle[:, 0, 0] > middle[:, 0, 1]
    top = (middle[:, 0].min(1).values - 1) // 10
    assert float(mirrored.float().mean()) == pytest.approx(0.5, abs=0.02)
    assert top.bincount().sort().values.tolist()[-9:] == pytest.approx([20_000 / 9] * 9, abs=200)


def test_the_seed_alone_decides():
    x = image(dtype=torch.float32)
    assert augment(x, rng(1)).equal(augment(x, rng(1)))
    assert not augment(x, rng(1)).equal(augment(x, rng(2)))
    assert augment(x.to(torch.uint8), rng(1)).equal(augment(x, rng(1)).to(torch.uint8))


def test_gradients_go_to_the_pixels_that_are_left():
    x = image(4, dtype=torch.float32).requires_grad_()
    got = augment(x, rng(), 2)
    (gradient,) = torch.autograd.grad((got * 3).sum(), x)
    for before, after, g in zip(x.detach(), got.detach(), gradient, strict=True):
        assert torch.equal(g, 3 * torch.isin(before, after).float())
