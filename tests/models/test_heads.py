"""Heads against NumPy, and what ``build`` refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorfl.models.build import build
from anchorfl.models.classifier import Classifier
from anchorfl.models.encoders.cnn import SmallCNN
from anchorfl.models.heads import CosineHead, LabelHead, LinearHead
from anchorfl.models.options import ModelOptions

C, D, B = 5, 6, 4


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def made(options=None, **changes):
    arguments = {
        "input_kind": "tokens", "shape": (7,), "vocabulary": 11, "classes": C, "head": "linear", "unit": True,
        "vectors_CP": None, "seed": 3,
    }  # fmt: skip
    return build(options or ModelOptions(width=8, heads=2, feedforward=4), **(arguments | changes))


def test_linear_head_is_z_times_weight_plus_bias():
    head, z = LinearHead(D, C), normal(B, D)
    weight, bias = (p.detach().numpy() for p in (head.weight, head.bias))
    want = [[sum(z[b, d] * weight[c, d] for d in range(D)) + bias[c] for c in range(C)] for b in range(B)]
    assert np.allclose(head(z).detach(), want, atol=1e-5)


@pytest.mark.parametrize("width_of_vectors", [D, 3, 9])
@pytest.mark.parametrize("unit", [True, False])
def test_label_head_is_a_dot_product_with_the_class_rows(unit, width_of_vectors):
    """rows = vectors (times weight.T plus bias where the widths differ); unit: each divided by its length, z is not."""
    vectors, z = normal(C, width_of_vectors, seed=1), normal(B, D, seed=2)
    head = LabelHead(vectors, D, unit=unit)
    rows = vectors.numpy().astype(np.float64)
    if width_of_vectors != D:
        rows = rows @ head.project.weight.detach().numpy().T + head.project.bias.detach().numpy()
    assert np.allclose(head.classes().detach(), rows, atol=1e-5)
    if unit:
        rows = rows / np.sqrt((rows**2).sum(1, keepdims=True))
    assert np.allclose(head(z).detach(), z.numpy() @ rows.T, atol=1e-5)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_cosine_head_is_the_mean_of_the_parts_cosines(parts):
    head, z = CosineHead(C, D, parts), normal(B, D)
    z_BRP, rows_CRP = (x.reshape(len(x), parts, -1) for x in (z.numpy(), head.classes().detach().numpy()))
    cosine_BCR = np.einsum("brp,crp->bcr", z_BRP, rows_CRP) / np.linalg.norm(z_BRP, axis=2)[:, None]
    assert np.allclose(np.linalg.norm(rows_CRP, axis=2), 1, atol=1e-6)
    assert np.allclose(head(z).detach(), cosine_BCR.mean(2), atol=1e-6)
    assert torch.allclose(head(head.classes()).diagonal(), torch.ones(C))


@pytest.mark.parametrize(
    ("width_of_vectors", "names"), [(D, ["table"]), (3, ["table", "project.weight", "project.bias"])]
)
def test_label_head_projects_only_where_widths_differ(width_of_vectors, names):
    head = LabelHead(normal(C, width_of_vectors), D, unit=False)
    assert [name for name, _ in head.named_parameters()] == names
    assert all(p.requires_grad for p in head.parameters())


def test_label_head_leaves_the_given_vectors_alone():
    vectors = normal(C, D)
    before = vectors.clone()
    head = LabelHead(vectors, D, unit=True)
    with torch.no_grad():
        head.table.zero_()
    assert torch.equal(vectors, before)


def test_a_class_row_of_zeros_gives_zero_logits_not_nan():
    head = LabelHead(torch.zeros(C, D), D, unit=True)
    assert torch.equal(head(normal(B, D)), torch.zeros(B, C))


@pytest.mark.parametrize(("width_of_vectors", "unit"), [(8, True), (3, False)])
def test_build_puts_the_label_head_on_the_encoder(width_of_vectors, unit):
    vectors = normal(C, width_of_vectors)
    model = made(head="label", vectors_CP=vectors, unit=unit)
    assert isinstance(model.head, LabelHead)
    assert model.head.unit is unit
    assert torch.equal(model.head.table, vectors)
    x = torch.tensor([[1, 2, 3], [4, 0, 0]])
    model.eval()
    assert torch.equal(model(x), model.head(model.encoder(x)))
    assert model(x).shape == (2, C)


def test_both_heads_stand_on_the_same_initial_encoder():
    linear, label = made(), made(head="label", vectors_CP=normal(C, 8))
    for name, value in linear.encoder.state_dict().items():
        assert torch.equal(value, label.encoder.state_dict()[name]), name


def test_the_cnn_needs_two_pixels_a_side():
    with pytest.raises(ValueError, match=r"images of 1 x 8: the network needs 2 a side; set task\.image_size"):
        made(ModelOptions(width=8), input_kind="image", shape=(1, 1, 8))


def test_the_cnn_computes_each_row_alone():
    model = made(ModelOptions(width=8, dropout=0.0), input_kind="image", shape=(1, 8, 8))
    assert isinstance(model.encoder, SmallCNN)
    assert not model.couples_rows
    x = normal(B, 1, 8, 8)
    assert model(x).shape == (B, C)
    for i in range(B):
        assert torch.allclose(model(x[i : i + 1])[0], model(x)[i], atol=1e-5)


def test_a_batch_norm_anywhere_couples_rows():
    model = made()
    assert Classifier(torch.nn.Sequential(torch.nn.BatchNorm1d(8)), LinearHead(8, C), model.masks).couples_rows


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"input_kind": "smell"}, "no encoder for inputs of kind 'smell'; known: tokens, series, image, sparse"),
        ({"head": "label"}, "a label head needs the class-name vectors"),
        ({"options": ModelOptions(width=10, heads=4)}, "model.width = 10 is not a multiple of model.heads = 4"),
    ],
)
def test_build_refuses_in_one_line(changes, text):
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        made(**changes)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"width": 0}, "model.width = 0: must be at least 1"),
        ({"heads": 0}, "model.heads = 0: must be at least 1"),
        ({"feedforward": -1}, "model.feedforward = -1: must be at least 1"),
        ({"dropout": 1.0}, "model.dropout = 1.0: must be in [0, 1)"),
        ({"dropout": -0.1}, "model.dropout = -0.1: must be in [0, 1)"),
    ],
)
def test_options_out_of_range_are_refused(option, text):
    with pytest.raises(ValueError, match="model") as caught:
        ModelOptions(**option)
    assert str(caught.value) == text
