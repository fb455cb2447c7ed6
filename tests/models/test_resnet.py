"""Residual networks against torch.nn.functional, by the layout of table 1 of the paper, and the laws of their
normalisations.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from anchorfl.models.build import build
from anchorfl.models.encoders.resnet import BasicBlock, Bottleneck, FrozenBatchNorm, ResNet, norm_of
from anchorfl.models.options import ModelOptions

TRUNK = {"resnet8": 64, "resnet20": 64, "resnet18": 512, "resnet34": 512, "resnet50": 2048}
BLOCKS = {
    "resnet8": (1, 1, 1),
    "resnet20": (3, 3, 3),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
}
NORMS = ("group", "batch", "frozen")


def made(network="resnet18", shape=(3, 16, 16), *, classes=5, seed=1, start=None, **options):
    options = {"width": TRUNK[network], **options}
    return build(
        ModelOptions(network=network, **options), input_kind="image", shape=shape, vocabulary=0, classes=classes,
        head="linear", unit=True, vectors_CP=None, seed=seed, start=start,
    )  # fmt: skip


def images(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def stirred(module, seed=0):
    """Move every weight and statistic of a module away from its first value, in float64."""
    rng = torch.Generator().manual_seed(seed)
    module = module.double()
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=rng, dtype=value.dtype)
            value.copy_(1 + 0.3 * noise.abs() if "norm" in name or "running_var" in name else value + 0.1 * noise)
    return module


def by_hand(weights, x, kind, training):
    """Compute the normalization with these weights, written out."""
    if kind == "group":
        g = x.reshape(len(x), min(32, x.shape[1] // 2), -1)
        g = (g - g.mean(2, keepdim=True)) / (g.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
        y = g.reshape(x.shape)
    else:
        mean, var = weights["running_mean"], weights["running_var"]
        if kind == "batch" and training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        y = (x - mean[:, None, None]) / (var + 1e-5).sqrt()[:, None, None]
    return y * weights["weight"][:, None, None] + weights["bias"][:, None, None]


def part(weights, prefix):
    return {name.removeprefix(prefix + "."): v for name, v in weights.items() if name.startswith(prefix + ".")}


def block_by_hand(weights, x, stride, kind, training):
    """Compute one block. Its stride is in the 3x3 of a bottleneck, in the first 3x3 of a basic block."""
    convs = sum(name.startswith("conv") for name in weights)
    h = x
    for i, (padding, step) in enumerate([(1, stride), (1, 1)] if convs == 2 else [(0, 1), (1, stride), (0, 1)], 1):
        h = F.conv2d(h, weights[f"conv{i}.weight"], stride=step, padding=padding)
        h = by_hand(part(weights, f"norm{i}"), h, kind, training)
        h = h.clamp(min=0) if i < convs else h
    if "downsample.0.weight" in weights:
        x = F.conv2d(x, weights["downsample.0.weight"], stride=stride)
        x = by_hand(part(weights, "downsample.1"), x, kind, training)
    return (h + x).clamp(min=0)


@pytest.mark.parametrize(("network", "count"), [("resnet18", 11_689_512), ("resnet34", 21_797_672)])
def test_parameters_are_as_many_as_published(network, count):
    """With 1000 classes, three channels and the ImageNet stem, whatever the normalization."""
    for norm in NORMS:
        model = made(network, (3, 224, 224), classes=1000, norm=norm)
        assert sum(p.numel() for p in model.parameters()) == count


def test_parameters_of_resnet50_and_of_its_linear_layer():
    model = made("resnet50", (3, 224, 224), classes=1000)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    narrow = made("resnet50", (3, 224, 224), classes=20, width=512).encoder
    trunk = sum(p.numel() for p in model.encoder.parameters())
    assert trunk == 23_508_032
    assert sum(p.numel() for p in narrow.parameters()) == trunk + 2048 * 512 + 512


@pytest.mark.parametrize(("network", "n"), [("resnet8", 1), ("resnet20", 3)])
def test_the_small_networks_have_6n_plus_2_layers(network, n):
    """Section 4.2: a 3x3 convolution, 2n in each of three stages of 16, 32 and 64 filters, and the linear layer; 0.27
    million weights with ten classes and n = 3 (table 6), which the two shortcuts add 0.9 % to.
    """
    model = made(network, (3, 28, 28), classes=10)
    convs = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convs) + 1 == 6 * n + 2
    whole = sum(p.numel() for p in model.parameters())
    shortcuts = sum(p.numel() for name, p in model.named_parameters() if "downsample" in name)
    assert shortcuts == 16 * 32 + 32 * 64 + 2 * (32 + 64)
    if n == 3:
        assert round((whole - shortcuts) / 1e6, 2) == 0.27
    z_BD = model.encoder(images(2, 3, 28, 28))
    assert z_BD.shape == (2, 64)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "entry", "channels", "stride"),
    [
        (BasicBlock, 16, 32, 2), (BasicBlock, 64, 64, 1), (BasicBlock, 64, 128, 2), (Bottleneck, 64, 64, 1),
        (Bottleneck, 256, 64, 1), (Bottleneck, 256, 128, 2),
    ],
)  # fmt: skip
def test_a_block_is_its_formula(kind, entry, channels, stride, training, norm):
    block = stirred(kind(entry, channels, stride, norm_of(norm))).train(training)
    weights = {name: value.clone() for name, value in block.state_dict().items()}
    x = images(3, entry, 5, 7, dtype=torch.float64)
    got = block(x)
    assert got.shape[1:] == (channels * kind.expansion, 5 if stride == 1 else 3, 7 if stride == 1 else 4)
    torch.testing.assert_close(got, block_by_hand(weights, x, stride, norm, training), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("network", TRUNK)
@pytest.mark.parametrize(("stem", "size"), [("imagenet", 33), ("small", 9)])
def test_a_network_is_stem_stages_mean_and_linear_layer(network, stem, size):
    encoder = stirred(made(network, (1, size, size), width=7, stem=stem, norm="batch").encoder).eval()
    weights = dict(encoder.state_dict())
    x = images(2, 1, size, size, dtype=torch.float64)
    wide = stem == "imagenet"
    h = F.conv2d(x, weights["conv1.weight"], stride=2 if wide else 1, padding=3 if wide else 1)
    h = by_hand(part(weights, "norm1"), h, "batch", training=False).clamp(min=0)
    h = F.max_pool2d(h, 3, 2, 1) if wide else h
    for stage, depth in enumerate(BLOCKS[network], 1):
        for i in range(depth):
            own = part(weights, f"layer{stage}.{i}")
            h = block_by_hand(own, h, 2 if stage > 1 and i == 0 else 1, "batch", training=False)
    want = h.flatten(2).mean(2) @ weights["linear.weight"].T + weights["linear.bias"]
    torch.testing.assert_close(encoder(x), want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("network", ["resnet8", "resnet20"])
@pytest.mark.parametrize(("norm", "stem"), [("batch", "small"), ("batch", "imagenet"), ("frozen", "small")])
def test_the_order_of_numbers_in_memory_changes_no_sum(network, norm, stem):
    encoder = stirred(made(network, (3, 12, 12), width=64, stem=stem, norm=norm).encoder).train()
    assert encoder.channels_last
    x, got = images(4, 3, 12, 12, dtype=torch.float64), []
    for order in (True, False):
        one = copy.deepcopy(encoder)
        one.channels_last = order
        z_BD = one(x)
        z_BD.square().sum().backward()
        got.append([z_BD, *one.buffers(), *(p.grad for p in one.parameters())])
    torch.testing.assert_close(*got, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("network", "norm"), [("resnet18", "batch"), ("resnet8", "group")])
def test_where_that_order_costs_time_it_stays(network, norm):
    assert not made(network, norm=norm).encoder.channels_last


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "stem"), [(28, "small"), (64, "small"), (65, "imagenet"), (112, "imagenet")])
def test_any_size_gives_one_vector_a_row(size, stem, channels):
    model = made(shape=(channels, size, size)).eval()
    assert model.encoder.stem == stem
    with torch.no_grad():
        assert model.encoder(images(2, channels, size, size)).shape == (2, 512)
        assert model(images(1, channels, size, size)).shape == (1, 5)


@pytest.mark.parametrize("network", ["resnet18", "resnet50"])
def test_an_image_of_imagenet_size_and_one_that_is_not_square(network):
    model = made(network, (3, 224, 224), width=512).eval()
    with torch.no_grad():
        assert model.encoder(images(1, 3, 224, 224)).shape == (1, 512)
        assert model.encoder(images(1, 3, 96, 50)).shape == (1, 512)


@pytest.mark.parametrize(("norm", "alone"), [("group", True), ("frozen", True), ("batch", False)])
def test_in_training_a_row_depends_on_the_others_with_batch_norm_alone(norm, alone):
    model = made(norm=norm).train()
    assert model.couples_rows is not alone
    assert copy.deepcopy(model).eval().couples_rows is not alone  # of its training, whatever its mode
    x = images(4, 3, 16, 16)
    with torch.no_grad():
        together = model(x)
        for i in range(4):
            assert torch.allclose(model(x[i : i + 1])[0], together[i], rtol=1e-4, atol=1e-4) is alone


def test_frozen_statistics_stay_and_its_weights_are_trained():
    model = made(norm="frozen")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for _ in range(2):
        model(images(4, 3, 16, 16)).square().mean().backward()
        optimizer.step()
    buffers = {name for name, _ in model.named_buffers()}
    assert sum("running_mean" in name for name in buffers) == 20
    for name, value in model.state_dict().items():
        assert torch.equal(value, start[name]) is (name in buffers), name


def test_batch_norm_counts_and_moves_its_statistics():
    model = made(norm="batch").train()
    model(images(4, 3, 16, 16))
    buffers = dict(model.named_buffers())
    assert buffers["encoder.norm1.num_batches_tracked"].dtype == torch.int64
    assert int(buffers["encoder.norm1.num_batches_tracked"]) == 1
    assert not torch.equal(buffers["encoder.norm1.running_var"], torch.ones(64))


def test_frozen_is_batch_norm_in_evaluation_mode():
    frozen = FrozenBatchNorm(8)
    plain = stirred(torch.nn.BatchNorm2d(8)).float().eval()
    assert frozen.state_dict().keys() == plain.state_dict().keys()
    frozen.load_state_dict(plain.state_dict())
    x = images(3, 8, 4, 4)
    assert torch.equal(frozen.train()(x), plain(x))


def test_first_values_depend_on_the_seed_alone():
    one, other = made(seed=1, width=6), made(seed=2, width=6)
    before = torch.random.get_rng_state()
    torch.rand(3)  # the global generator stands elsewhere now
    after = torch.random.get_rng_state()
    same = made(seed=1, width=6)
    assert torch.equal(torch.random.get_rng_state(), after)
    torch.random.set_rng_state(before)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
        if "conv" in name or "linear" in name:
            assert not torch.equal(value, other.state_dict()[name]), name


def test_convolutions_start_he_normal_by_fan_out_and_norms_as_the_identity():
    model = made("resnet50", (3, 64, 64))
    for name, value in model.encoder.state_dict().items():
        if value.dim() == 4:
            out, _, height, width = value.shape
            want = (2 / (out * height * width)) ** 0.5
            assert float(value.std()) == pytest.approx(want, rel=0.1), name
            assert abs(float(value.mean())) < 4 * want / value.numel() ** 0.5, name
        else:
            assert float(value.min()) == float(value.max()) == name.endswith("weight"), name


def test_convolutions_start_as_torchs_own_where_asked_for():
    """Uniform within 1 / sqrt(fan-in), as FedBM's reference leaves them; all else starts as with the other way."""
    model, other = made("resnet18", (3, 64, 64), init="torch"), made("resnet18", (3, 64, 64))
    for (name, value), he in zip(model.encoder.state_dict().items(), other.encoder.state_dict().values(), strict=True):
        if value.dim() == 4:
            bound = (value.shape[1] * value.shape[2] * value.shape[3]) ** -0.5
            assert 1.0001 * bound > float(value.abs().max()) > 0.95 * bound, name
            assert float(value.std()) == pytest.approx(bound / 3**0.5, rel=0.1), name
        else:
            assert torch.equal(value, he), name


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"network": "resnet18"}, "tokens",
         "model.network = 'resnet18' is for images, the input is of kind 'tokens': set it to 'auto'"),
        ({"network": "resnet50"}, "sparse",
         "model.network = 'resnet50' is for images, the input is of kind 'sparse': set it to 'auto'"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_the_input_is_refused(options, kind, text):
    with pytest.raises(ValueError, match="is for images") as caught:
        build(
            ModelOptions(**options), input_kind=kind, shape=(7,), vocabulary=5, classes=2, head="linear", unit=True,
            vectors_CP=None, seed=0,
        )  # fmt: skip
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("options", "have", "back"),
    [
        ({"stem": "small"}, "model.stem = 'small'", "--model.stem auto"),
        ({"norm": "frozen"}, "model.norm = 'frozen'", "--model.norm group"),
        (
            {"stem": "imagenet", "norm": "batch", "init": "torch"},
            "model.stem = 'imagenet', model.norm = 'batch', model.init = 'torch'",
            "--model.stem auto --model.norm group --model.init he",
        ),
    ],
)
def test_options_of_residual_networks_need_one(options, have, back):
    with pytest.raises(ValueError, match="residual") as caught:
        ModelOptions(network="own:Net", **options)
    assert str(caught.value) == (
        f"{have}: for residual networks alone, and model.network is 'own:Net': set {back}, or model.network, for"
        " example to 'resnet18'"
    )


@pytest.mark.parametrize(("network", "count"), [("resnet18", 11_176_512), ("resnet34", 21_284_672)])
def test_trunks_of_two_layer_blocks_have_the_weights_of_torchvisions(network, count):
    """11,689,512 and 21,797,672, less the 513,000 of its classifier for ImageNet."""
    trunk = ResNet(network, 3, 512, stem="imagenet", norm="batch")
    assert sum(p.numel() for p in trunk.parameters()) == count
