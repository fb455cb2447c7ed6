"""The encoder of sparse rows against the dense product in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorfl.models.build import build
from anchorfl.models.options import ModelOptions

FEATURES, WIDTH, HIDDEN = 11, 6, 8


def small(dropout=0.0, seed=1, **more):
    options = ModelOptions(width=WIDTH, feedforward=HIDDEN, dropout=dropout, **more)
    return build(
        options, input_kind="sparse", shape=(FEATURES,), vocabulary=0, classes=4, head="linear", unit=False,
        vectors_CP=None, seed=seed,
    )  # fmt: skip


def rows(lengths, seed=0):
    """Pairs [B, L, 2], zero behind the last of a row, and the dense rows [B, FEATURES]."""
    rng = np.random.default_rng(seed)
    x_BL2 = np.zeros((len(lengths), max(lengths), 2), dtype=np.float32)
    dense_BF = np.zeros((len(lengths), FEATURES))
    for row, length in enumerate(lengths):
        feature = rng.permutation(FEATURES)[:length]
        value = rng.standard_normal(length).astype(np.float32)
        x_BL2[row, :length, 0], x_BL2[row, :length, 1] = feature + 1, value
        dense_BF[row, feature] = value
    return torch.from_numpy(x_BL2), dense_BF


def by_hand(encoder, dense_BF):
    weights = {name: p.detach().double().numpy() for name, p in encoder.named_parameters()}
    z = dense_BF @ weights["embedding.weight"][1:]
    for layer in (0, 3, 6):
        z = z @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
        z = np.maximum(z, 0) if layer < 6 else z
    return z


@pytest.mark.parametrize("lengths", [[3, 11, 1, 0], [0], [5]])
def test_it_is_the_dense_product(lengths):
    encoder = small().encoder
    x, dense_BF = rows(lengths)
    z = encoder(x) if max(lengths) else encoder(torch.zeros(1, 1, 2))
    assert z.shape == (len(lengths), WIDTH)
    assert z.detach().numpy() == pytest.approx(by_hand(encoder, dense_BF), abs=1e-5)


def test_gradients_are_those_of_the_dense_product():
    encoder = small().encoder
    x, dense_BF = rows([3, 11, 2])
    encoder(x).pow(2).sum().backward()
    found = encoder.embedding.weight.grad.clone()
    assert not found.is_sparse
    assert (found[0] == 0).all()
    encoder.zero_grad()
    encoder.layers(torch.from_numpy(dense_BF).float() @ encoder.embedding.weight[1:]).pow(2).sum().backward()
    assert found.numpy() == pytest.approx(encoder.embedding.weight.grad.numpy(), abs=1e-4)


def test_padding_the_order_of_pairs_and_the_other_rows_change_nothing():
    encoder = small().encoder
    x, _ = rows([4, 6])
    z = encoder(x)
    longer = torch.cat([x, torch.zeros(2, 3, 2)], dim=1)
    assert torch.allclose(encoder(longer), z, atol=1e-6)
    assert torch.allclose(encoder(x.flip(1)), z, atol=1e-5)
    assert torch.allclose(encoder(x[:1, :4]), z[:1], atol=1e-6)


def test_a_large_number_of_a_feature_stays_exact():
    assert int(torch.tensor(2**24 - 1, dtype=torch.float32).long()) == 2**24 - 1


def test_dropout_is_drawn_in_training_only_and_from_the_given_generator():
    model = small(dropout=0.5)
    x, _ = rows([5, 5])
    drawn = []
    for _ in range(2):
        model.reseed(torch.Generator().manual_seed(3))
        drawn.append(model(x))
    assert torch.equal(*drawn)
    assert not torch.equal(model(x), drawn[0])
    model.eval()
    assert torch.equal(model(x), model(x))


def test_equal_seeds_give_equal_weights():
    for one, same, other in zip(*(small(seed=s).parameters() for s in (1, 1, 2)), strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, other) or one.eq(0).all()


def test_the_embedding_starts_with_the_given_deviation_and_all_else_as_it_did():
    plain, scaled = small().state_dict(), small(embedding_std=0.125).state_dict()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        drawn = torch.nn.EmbeddingBag(FEATURES + 1, WIDTH, mode="sum", padding_idx=0).weight
    assert torch.equal(plain["encoder.embedding.weight"], drawn)
    for name, value in plain.items():
        assert torch.equal(scaled[name], value * 0.125 if "embedding" in name else value), name


@pytest.mark.parametrize("std", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deviation_that_is_none_is_refused(std):
    with pytest.raises(ValueError, match=r"^model.embedding_std = \S+: must be above 0$"):
        ModelOptions(embedding_std=std)
