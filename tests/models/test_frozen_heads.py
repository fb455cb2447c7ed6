"""Heads whose classes are not trained: against NumPy, and against the inequalities that they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anchorfl.models.heads import ConceptHead, FrameHead, PrototypeHead

B, C, W, D = 6, 4, 5, 7
TAU = 3.0


@pytest.fixture
def head():
    rng = torch.Generator().manual_seed(3)
    made = ConceptHead(C, W, D).double()
    made.mean.copy_(torch.randn(C, D, generator=rng, dtype=torch.float64) / 3)
    made.variance.copy_(torch.rand(C, D, generator=rng, dtype=torch.float64) / 5)
    made.tau.fill_(TAU)
    return made


def inputs():
    rng = torch.Generator().manual_seed(4)
    return torch.randn(B, W, generator=rng, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 2])


def by_hand(head, z_BD):
    """h and the logits, row by row and class by class."""
    weight, bias = head.project.weight.detach().numpy(), head.project.bias.detach().numpy()
    h_BE = z_BD.numpy() @ weight.T + bias
    h_BE /= np.sqrt((h_BE**2).sum(1, keepdims=True))
    mean, variance = head.mean.numpy(), head.variance.numpy()
    logits = [[TAU * h @ mean[k] + TAU**2 / 2 * (h**2) @ variance[k] for k in range(C)] for h in h_BE]
    return h_BE, np.array(logits)


def test_concept_logits_and_bound(head):
    z_BD, y_B = inputs()
    h_BE, logits_BC = by_hand(head, z_BD)
    # atol: a logit near 0 is a sum of terms of size 1, each rounded
    np.testing.assert_allclose(head(z_BD).detach().numpy(), logits_BC, rtol=1e-12, atol=2e-15)
    top_B1 = logits_BC.max(1, keepdims=True)
    entropy_B = np.log(np.exp(logits_BC - top_B1).sum(1)) + top_B1[:, 0] - logits_BC[np.arange(B), y_B]
    extra_B = TAU**2 / 2 * np.array([(h**2) @ head.variance.numpy()[y] for h, y in zip(h_BE, y_B, strict=True)])
    np.testing.assert_allclose(head.bound(z_BD, y_B).detach().numpy(), entropy_B + extra_B, rtol=1e-12)


def test_without_variance_it_is_cross_entropy(head):
    z_BD, y_B = inputs()
    head.variance.zero_()
    torch.testing.assert_close(head.bound(z_BD, y_B), F.cross_entropy(head(z_BD), y_B, reduction="none"))


def test_the_bound_holds_for_sampled_concepts(head):
    """Eq. 3 <= eq. 4: the mean cross-entropy over classifiers drawn from the distributions is below the bound, by at
    most what Jensen's inequality loses, and above the cross-entropy of the means less that.
    """
    z_BD, y_B = inputs()
    rng = torch.Generator().manual_seed(5)
    h_BE, draws = head.directions(z_BD).detach(), 40_000
    total_B = torch.zeros(B, dtype=torch.float64)
    for _ in range(draws // 4000):
        noise = torch.randn(4000, C, D, generator=rng, dtype=torch.float64)
        concept_SCD = head.mean + noise * head.variance.sqrt()
        logits_SBC = TAU * torch.einsum("be,sce->sbc", h_BE, concept_SCD)
        right_SB = logits_SBC.gather(2, y_B.expand(4000, B)[..., None])[..., 0]
        total_B += (logits_SBC.logsumexp(-1) - right_SB).sum(0)
    sampled_B = total_B / draws
    bound_B = head.bound(z_BD, y_B).detach()
    assert (sampled_B < bound_B).all()
    assert (bound_B - sampled_B).max() < 1.0  # and it is no empty bound


def test_nothing_but_the_projection_of_a_concept_head_is_trained(head):
    assert [name for name, _ in head.named_parameters()] == ["project.weight", "project.bias"]
    assert set(head.state_dict()) == {"project.weight", "project.bias", "mean", "variance", "tau"}


@pytest.mark.parametrize(("classes", "width"), [(4, 9), (9, 4)])
def test_prototypes_start_spread_out_at_length_1(classes, width):
    head = PrototypeHead(classes, width, 20.0)
    torch.testing.assert_close(head.rows.norm(dim=1), torch.ones(classes))
    if classes <= width:
        torch.testing.assert_close(head.rows @ head.rows.T, torch.eye(classes), atol=1e-6, rtol=0)
    z_BD = torch.randn(3, width)
    cosine_BC = F.cosine_similarity(z_BD[:, None], head.rows[None], dim=-1)
    torch.testing.assert_close(head(z_BD), 20 * cosine_BC)
    assert [name for name, _ in head.named_parameters()] == ["scale"]


def test_the_frame_is_a_simplex():
    """Unit columns, every two of them with the cosine -1 / (C - 1); not in the state, so never sent."""
    head = FrameHead(C, W, 1.0)
    gram_CC = head.frame.T @ head.frame
    want_CC = C / (C - 1) * (torch.eye(C) - 1 / C)
    torch.testing.assert_close(gram_CC, want_CC)
    assert gram_CC.diag().allclose(torch.ones(C))
    assert "frame" not in head.state_dict()
    z_BD = torch.randn(3, W)
    g_BC = F.normalize(head.project(z_BD), dim=-1)
    torch.testing.assert_close(head(z_BD), g_BC @ head.frame)
