"""Encoders that start from a file: what is taken, what is refused, and that nothing is drawn otherwise."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anchorfl.models.build import build
from anchorfl.models.options import ModelOptions
from anchorfl.models.start import StartError, read_start, start_from

HINT = "give weights of the same network, stem, norm and width, under the names of docs/networks.md"


def made(*, seed=1, start=None, kind="image", shape=(1, 8, 8), **options):
    options = {"network": "resnet18", "width": 512, "weights": "w.safetensors"} | options
    return build(
        ModelOptions(**options), input_kind=kind, shape=shape, vocabulary=9, classes=3, head="linear", unit=True,
        vectors_CP=None, seed=seed, start=start,
    )  # fmt: skip


def same(one, other, but=()):
    return {n for n, v in one.state_dict().items() if not torch.equal(v, other.state_dict()[n])} == set(but)


@pytest.mark.parametrize("norm", ["group", "batch", "frozen"])
def test_a_saved_encoder_or_classifier_comes_back_bit_for_bit(norm, tmp_path):
    trained = made(seed=5, norm=norm)
    save_file(trained.encoder.state_dict(), tmp_path / "encoder.safetensors")
    save_file(trained.state_dict(), tmp_path / "whole.safetensors")
    for name in ("encoder", "whole"):
        got = made(seed=6, norm=norm, start=read_start(tmp_path / f"{name}.safetensors"))
        assert same(got.encoder, trained.encoder)
        assert same(got.head, made(seed=6).head)  # what is drawn after the encoder is drawn as without a file


@pytest.mark.parametrize(
    ("name", "what"),
    [("net.parametrizations.weight.original", "adapters"), ("encoders.0.weight", "several encoders")],
)
def test_weights_of_other_forms_are_said(name, what):
    with pytest.raises(StartError, match=rf"f: weights of a network with {what}.*, which start no other"):
        start_from(nn.Linear(1, 1), {name: torch.ones(1)}, "f")


@pytest.mark.parametrize("parts", [("proj", "encoder"), ("encoder",)], ids="+".join)
def test_a_network_with_a_part_called_encoder_starts_from_its_own_file(parts, tmp_path):
    """That prefix is a classifier's only where all tensors are below it, or the head's."""
    trained, fresh = (nn.ModuleDict({name: nn.Linear(3, 3) for name in parts}) for _ in range(2))
    save_file(trained.state_dict(), tmp_path / "own.safetensors")
    start_from(fresh, read_start(tmp_path / "own.safetensors"), "own.safetensors")
    assert same(fresh, trained)


def test_statistics_of_batch_norm_go_on_frozen():
    trained = made(norm="batch").train()
    trained(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    frozen = made(seed=2, norm="frozen", start=trained.encoder.state_dict())
    assert same(frozen.encoder, trained.encoder)


def test_a_trunk_starts_an_encoder_of_another_width_whose_linear_layer_stays_drawn():
    trunk, other = made(seed=5).encoder.state_dict(), made(seed=6, width=7)
    got = made(seed=6, width=7, start=trunk)
    assert torch.equal(got.encoder.linear.weight, other.encoder.linear.weight)
    assert all(torch.equal(value, got.encoder.state_dict()[name]) for name, value in trunk.items())
    half = trunk | {"linear.weight": other.encoder.linear.weight}
    with pytest.raises(StartError) as caught:
        made(width=7, start=half)
    assert str(caught.value) == f"w.safetensors: tensor 'linear.bias' is missing; {HINT}"


def test_other_encoders_start_from_a_file_too():
    sparse = {"kind": "sparse", "shape": (11,), "network": "auto", "width": 6, "feedforward": 4}
    trained = made(seed=5, **sparse)
    assert same(made(seed=6, start=trained.encoder.state_dict(), **sparse).encoder, trained.encoder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda w: w.pop("conv1.weight"), "tensor 'conv1.weight' is missing"),
        (lambda w: w.update({"fc.bias": torch.zeros(2)}), "tensor 'fc.bias' is not part of this encoder"),
        (lambda w: w.update({"conv1.weight": torch.zeros(64, 3, 7, 7)}),
         "tensor 'conv1.weight' is torch.float32 (64, 3, 7, 7), this encoder's is torch.float32 (64, 1, 3, 3)"),
        (lambda w: w.update({"norm1.bias": w["norm1.bias"].half()}),
         "tensor 'norm1.bias' is torch.float16 (64,), this encoder's is torch.float32 (64,)"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_named_in_one_line_and_change_nothing(change, text):
    model = made()
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    values = dict(made(seed=2).encoder.state_dict())
    change(values)
    with pytest.raises(StartError) as caught:
        start_from(model.encoder, values, "w.safetensors", ("linear.",))
    assert str(caught.value) == f"w.safetensors: {text}; {HINT}"
    assert all(torch.equal(value, before[name]) for name, value in model.encoder.state_dict().items())


def test_values_that_are_not_finite_are_refused():
    values = {name: value.clone() for name, value in made().encoder.state_dict().items()}
    values["conv1.weight"][0] = float("nan")
    with pytest.raises(StartError, match=r"^w: tensor 'conv1.weight' holds values that are not finite; make the file"):
        start_from(made().encoder, values, "w")


def test_batch_norm_weights_are_not_those_of_group_norm():
    with pytest.raises(StartError, match=r"num_batches_tracked' is not part of this encoder"):
        made(norm="group", start=made(norm="batch").encoder.state_dict())


@pytest.mark.parametrize(("content", "text"), [(None, "No such file"), (b"no", "no safetensors file")])
def test_a_file_that_cannot_be_read_is_named(content, text, tmp_path):
    path = tmp_path / "w.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartError, match=r"\A[^\n]+\Z") as caught:
        read_start(path)
    assert str(caught.value).startswith(f"{path}: {text}")
