"""SLEEC on made-up labels of low rank, and its parts against plain linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.sleec import Sleec, SleecOptions, embed


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def grouped(rows=240, features=30, groups=6, seed=0):
    """Make rows of a few groups: labels are those of the group, features its centre and noise."""
    draw = np.random.default_rng(seed)
    labels_GC = draw.permutation(np.repeat(np.eye(groups), 2, axis=1).T).T  # two labels of its own for each group
    group_N = draw.integers(groups, size=rows)
    x_NF = draw.standard_normal((groups, features))[group_N] + 0.3 * draw.standard_normal((rows, features))
    return torch.from_numpy(x_NF), torch.from_numpy(labels_GC[group_N]), group_N


def masked(y_NC, near):
    """G and the entries that count: of every row the ``near`` largest, of equals the first, either way round."""
    gram = (y_NC @ y_NC.T).numpy()
    seen = np.zeros(gram.shape, bool)
    for row, values in enumerate(gram):
        seen[row, sorted(range(len(values)), key=lambda j: (-values[j], j))[:near]] = True
    return gram, seen | seen.T


def by_eigenvectors(y_NC, options):
    """Singular value projection with whole eigenvalue decompositions: the product of the embeddings."""
    gram, seen = masked(y_NC, options.near)
    product = np.zeros_like(gram)
    for _ in range(options.iterations):
        value, vector = np.linalg.eigh(np.where(seen, gram, product))
        top = np.argsort(-value)[: options.width]
        product = (vector[:, top] * np.maximum(value[top], 0)) @ vector[:, top].T
    return product


def test_all_inner_products_of_low_rank_labels_are_met():
    _, y_NC, _ = grouped()
    z_NR = embed(y_NC, SleecOptions(width=6, near=len(y_NC)), rng())
    assert z_NR.shape == (240, 6)
    assert torch.allclose(z_NR @ z_NR.T, y_NC @ y_NC.T, atol=1e-8)


def test_it_is_the_projection_by_whole_decompositions():
    draw = np.random.default_rng(3)
    y_NC = torch.from_numpy((draw.random((80, 12)) < 0.25).astype(float))
    options = SleecOptions(width=8, near=20, iterations=40)
    z_NR = embed(y_NC, options, rng())
    expected = by_eigenvectors(y_NC, options)
    assert (z_NR @ z_NR.T).numpy() == pytest.approx(expected, abs=0.02 * np.abs(expected).max())
    gram, seen = masked(y_NC, options.near)
    error, least = (np.square(gram - m)[seen].sum() for m in ((z_NR @ z_NR.T).numpy(), expected))
    assert error == pytest.approx(least, rel=0.02)


def test_every_step_lowers_the_error_on_the_entries_that_count():
    draw = np.random.default_rng(4)
    y_NC = torch.from_numpy((draw.random((80, 12)) < 0.25).astype(float))
    gram, seen = masked(y_NC, 20)
    errors = []
    for iterations in (1, 2, 4, 8, 16, 32):
        z_NR = embed(y_NC, SleecOptions(width=8, near=20, iterations=iterations), rng())
        errors.append(np.square(gram - (z_NR @ z_NR.T).numpy())[seen].sum())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.25 * errors[0]


def test_the_map_is_ridge_regression():
    x_NF, y_NC, _ = grouped()
    z_NR = embed(y_NC, SleecOptions(width=6), rng())
    model = Sleec.fit(x_NF, y_NC, z_NR, SleecOptions(width=6, ridge=2.5, unit_rows=False))
    slope_FR = -2 * x_NF.T @ (z_NR - x_NF @ model.map_FR) + 2 * 2.5 * model.map_FR
    assert float(slope_FR.abs().max()) < 1e-9
    unit = Sleec.fit(x_NF, y_NC, z_NR, SleecOptions(width=6, ridge=2.5))
    scaled = Sleec.fit(3 * x_NF, y_NC, z_NR, SleecOptions(width=6, ridge=2.5))
    assert torch.allclose(unit.map_FR, scaled.map_FR)
    assert torch.equal(unit(x_NF), unit(5 * x_NF))


def test_scores_are_the_labels_of_the_nearest_training_rows():
    x_NF, y_NC, _ = grouped(rows=60)
    options = SleecOptions(width=6, near=60, voters=7)
    model = Sleec.fit(x_NF, y_NC, embed(y_NC, options, rng()), options)
    new_BF = grouped(rows=60, seed=9)[0]
    scores_BC = model(new_BF)
    unit_BF = new_BF / new_BF.norm(dim=1, keepdim=True)
    for row, z_R in enumerate((unit_BF @ model.map_FR).numpy()):
        near = np.argsort(np.square(model.mapped_NR.numpy() - z_R).sum(1), kind="stable")[:7]
        assert scores_BC[row].tolist() == y_NC.numpy()[near].sum(0).tolist()
    assert (scores_BC.sum(1) == 14).all()  # two labels from each of seven rows


def test_it_learns_the_groups():
    x_NF, y_NC, group_N = grouped(rows=400)
    options = SleecOptions(width=6, near=80, voters=15, ridge=0.1)
    train, test = np.arange(300), np.arange(300, 400)
    model = Sleec.fit(x_NF[train], y_NC[train], embed(y_NC[train], options, rng()), options)
    first_B = model(x_NF[test]).argmax(1)
    right = float(y_NC[test][torch.arange(100), first_B].mean())
    most_frequent = float(y_NC[test][:, int(y_NC[train].sum(0).argmax())].mean())
    assert right > 0.95
    assert most_frequent < 0.4
    assert len(set(group_N[test])) == 6


def test_equal_seeds_give_equal_embeddings_and_few_rows_are_enough():
    _, y_NC, _ = grouped(rows=5)
    one, same = (embed(y_NC, SleecOptions(), rng(1)) for _ in range(2))
    assert torch.equal(one, same)
    assert one.shape == (5, 5)
    assert torch.allclose(one @ one.T, y_NC @ y_NC.T, atol=1e-8)


@pytest.mark.parametrize("values", [{"width": 0}, {"near": 0}, {"voters": 0}, {"iterations": 0}, {"ridge": 0.0}])
def test_options_that_fit_nothing_are_refused(values):
    with pytest.raises(ValueError, match="must be"):
        SleecOptions(**values)
