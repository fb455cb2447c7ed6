"""FedBM's generator: its shape, the law of its conditions, and its losses against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from anchorfl.models.encoders.resnet import ResNet
from anchorfl.models.generator import (
    DoublingConv,
    Generator,
    batch_norm_layers,
    conditions,
    diversity,
    noise,
    watch_batch_norm,
)

C, M, D = 3, 5, 6


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def concepts():
    found = torch.randn(C, M, D, generator=rng(1), dtype=torch.float64)
    return found / found.norm(dim=2, keepdim=True)


def test_the_papers_size_has_the_papers_weights():
    """Architecture of the reference: 4,758,211 for 128 pixels and concepts of 512 numbers."""
    made = Generator(512, (3, 128, 128))
    assert sum(p.numel() for p in made.parameters()) == 4_758_211
    assert made.first == 8


@pytest.mark.parametrize(
    ("side", "first"), [(8, 4), (16, 4), (25, 7), (28, 7), (32, 4), (64, 4), (99, 7), (200, 13), (224, 14)]
)
def test_any_square_size(side, first):
    made = Generator(D, (1, side, side))
    x = made(torch.randn(2, D, generator=rng())).detach()
    assert x.shape == (2, 1, side, side)
    assert made.first == first
    assert 0 < float(x.min()) <= float(x.max()) < 1


def test_a_size_in_between_is_cut_out_of_the_middle():
    made = Generator(D, (1, 99, 99)).eval()
    seen: list[torch.Tensor] = []
    made.layers.register_forward_hook(lambda _, given, out: seen.append(out))
    x = made(torch.randn(2, D, generator=rng()))
    assert seen[0].shape[-2:] == (112, 112)
    assert torch.equal(x, seen[0][..., 6:105, 6:105])


@pytest.mark.parametrize("size", [(1, 1), (4, 7), (14, 14)])
def test_a_doubling_convolution_is_doubling_and_convolution(size):
    layer = DoublingConv(3, 5, 3, padding=1, bias=False).double()
    x = torch.randn(2, 3, *size, generator=rng(), dtype=torch.float64, requires_grad=True)
    two_steps = nn.functional.conv2d(nn.Upsample(scale_factor=2)(x), layer.weight, padding=1)
    weighing = torch.randn(two_steps.shape, generator=rng(2), dtype=torch.float64)
    torch.testing.assert_close(layer(x), two_steps, rtol=0, atol=1e-12)
    ours, plain = (torch.autograd.grad((y * weighing).sum(), [x, layer.weight]) for y in (layer(x), two_steps))
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", [(3, 28, 32), (3, 7, 7), (3, 28)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"square ones of at least 8 pixels"):
        Generator(D, shape)


def test_conditions_have_the_mean_and_covariance_of_the_prompts():
    """The law, drawn without a D x D matrix: sample moments of 200,000 draws within 5 of their errors."""
    e_CMD, count = concepts(), 200_000
    z_BD = conditions(e_CMD, torch.full((count,), 1), rng(2)).numpy()
    mean_D, cov_DD = e_CMD[1].numpy().mean(0), np.cov(e_CMD[1].numpy(), rowvar=False) + 1e-4 * np.eye(D)
    deviation_D = np.sqrt(np.diag(cov_DD))
    assert (np.abs(z_BD.mean(0) - mean_D) < 5 * deviation_D / count**0.5).all()
    error_DD = np.outer(deviation_D, deviation_D) * (2 / count) ** 0.5
    assert (np.abs(np.cov(z_BD, rowvar=False) - cov_DD) < 5 * error_DD).all()


def test_one_prompt_leaves_the_jitter():
    e_CMD = concepts()[:, :1]
    z_BD = conditions(e_CMD, torch.arange(C), rng())
    assert 0 < float((z_BD - e_CMD[:, 0]).abs().max()) < 0.06


def test_noise_says_nothing_of_the_class():
    zeros, ones = (noise(D, torch.full((4,), c), rng(3), concepts()) for c in (0, 1))
    assert torch.equal(zeros, ones)


def test_diversity_against_loops():
    z_BD, x_B = torch.randn(7, D, generator=rng(4)).double(), torch.rand(7, 1, 3, 3, generator=rng(5)).double()
    class_B = torch.tensor([0, 0, 0, 1, 1, 2, 0])  # class 2 has one image: it counts 0
    total = 0.0
    for c in range(C):
        mine = [i for i in range(7) if class_B[i] == c]
        pairs = [(i, j) for k, i in enumerate(mine) for j in mine[k + 1 :]]
        ratios = []
        for i, j in pairs:
            dz, dx = float((z_BD[i] - z_BD[j]).abs().sum()), float((x_B[i] - x_B[j]).abs().sum())
            ratios.append(1 / (dx / dz + 1e-5))
        total += np.mean(ratios) if ratios else 0.0
    assert float(diversity(z_BD, x_B, class_B, C)) == pytest.approx(total / C, rel=1e-12)


def test_equal_images_are_punished_and_nothing_is_infinite():
    z_BD = torch.randn(4, D, generator=rng(6))
    x_B = torch.zeros(4, 1, 2, 2, requires_grad=True)
    loss = diversity(z_BD, x_B, torch.zeros(4, dtype=torch.int64), C)
    assert float(loss.detach()) == pytest.approx(1e5 / C, rel=1e-3)
    loss.backward()
    assert x_B.grad.isfinite().all()


@pytest.fixture
def encoder():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return ResNet("resnet18", 3, 16, stem="small", norm="batch").eval()


def test_every_normalisation_is_measured_against_numpy(encoder):
    """20 layers of a ResNet-18 with shortcuts; the first one by hand; nothing stays on the network."""
    x_B = torch.randn(4, 3, 12, 12, generator=rng(7))
    inputs: dict[nn.Module, np.ndarray] = {}
    layers = batch_norm_layers(encoder)
    hooks = [m.register_forward_pre_hook(lambda layer, args: inputs.update({layer: args[0].numpy()})) for m in layers]
    with torch.no_grad(), watch_batch_norm(encoder) as seen:
        encoder(x_B)
        encoder(x_B)  # the last pass counts
    for hook in hooks:
        hook.remove()
    assert len(layers) == len(seen.distance) == 20
    total = 0.0
    for layer in layers:
        v = inputs[layer]
        mean, variance = v.mean((0, 2, 3)), v.var((0, 2, 3))
        total += np.linalg.norm(mean - layer.running_mean.numpy()) + np.linalg.norm(
            variance - layer.running_var.numpy()
        )
    assert float(seen.total()) == pytest.approx(float(total), rel=1e-4)
    assert not any(m._forward_pre_hooks for m in encoder.modules())


def test_images_with_the_running_statistics_are_at_no_distance(encoder):
    x_B = torch.randn(4, 3, 12, 12, generator=rng(8))
    for layer in batch_norm_layers(encoder):
        layer.momentum = 1.0
    encoder.train()(x_B)  # every layer's statistics become those of this batch
    encoder.eval()
    first = batch_norm_layers(encoder)[0]
    with torch.no_grad(), watch_batch_norm(encoder) as seen:
        encoder(x_B)
    count = x_B.shape[0] * 12 * 12
    unbiased = float((first.running_var / count).norm())  # torch keeps the unbiased variance, the loss has the biased
    assert float(seen.distance[0]) == pytest.approx(unbiased, rel=1e-3)


def test_hooks_go_even_where_the_block_fails(encoder):
    with pytest.raises(RuntimeError, match="stop"), watch_batch_norm(encoder):
        raise RuntimeError("stop")
    assert not any(m._forward_pre_hooks for m in encoder.modules())
