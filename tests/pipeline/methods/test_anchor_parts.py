"""The parts that the ablation adds to Anchor (benchmarks/anchor_parts.py), by the limits in which they are something
known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from anchorfl.models.label_encoder import LanguageHead
from anchorfl.pipeline.algorithm.contract import ClientResult, HeadSpec
from anchorfl.pipeline.algorithm.control_variates import ControlUpdate
from anchorfl.pipeline.algorithm.label_collection import label_digest, message_of
from anchorfl.pipeline.methods.anchor import Anchor
from anchorfl.pipeline.methods.feddyn import FedDyn
from anchorfl.pipeline.methods.fedmlp import TAGS, new_tags
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.tasks.contract import Card
from benchmarks.anchor_parts import (
    Adapted,
    Adjusted,
    AgreeingOnly,
    Bent,
    ByShare,
    OwnMean,
    Pseudo,
    Pulled,
    RowsOfKnowing,
    Slow,
    Spread,
    SpreadApart,
    Sure,
    Tagged,
)
from tests.pipeline import compared
from tests.pipeline.compared import AWARE, C, D, N
from tests.pipeline.methods.test_anchor import ALONE, named
from tests.runs import quiet
from tests.tiny_bert import saved_bert

TABLE = "weights/head.table"


@dataclass(frozen=True, kw_only=True)
class DynOnItsNetwork(FedDyn):
    """FedDyn on the network of Anchor."""

    name = "dyn-on-its-network"
    head = HeadSpec(kind="biased")


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_labels_alone_that_are_bent_are_feddyn_bit_for_bit(experiment, task):
    e = experiment("anchor", task)
    bent = compared.history(replace(e, method=Bent(**ALONE, alpha=0.1)))
    dyn = compared.history(replace(e, method=DynOnItsNetwork(alpha=0.1, weighting="samples")))
    compared.assert_same_bits(bent, dyn)
    for one, other in zip(bent, dyn, strict=True):
        drift = {name: value for name, value in other[3].items() if name.startswith("drift/")}
        assert drift
        assert all(torch.equal(one[3][name], value) for name, value in drift.items())


def test_class_embeddings_that_are_not_pulled_are_anchors_and_wholly_pulled_stay(experiment):
    e = experiment("anchor")
    compared.assert_same_bits(compared.history(replace(e, method=Pulled(pull=0.0))), compared.history(e))
    states = [state for *_, state in compared.history(replace(e, method=Pulled(pull=1.0)))]
    assert all(torch.equal(state[TABLE], state["first_CD"]) for state in states)
    half = compared.history(replace(e, method=Pulled()))[0][3]
    after = compared.history(e)[0][3][TABLE]
    assert torch.equal(half[TABLE], torch.lerp(after, half["first_CD"], 0.5))


def test_slow_class_embeddings_go_a_part_of_the_way(experiment):
    e = experiment("anchor")
    compared.assert_same_bits(compared.history(replace(e, method=Slow(share=1.0))), compared.history(e))
    first_CD = make_run_spec(e, quiet).model().state_dict()["head.table"]
    whole, tenth = (compared.history(replace(e, method=m))[0][3] for m in (Anchor(), Slow()))
    torch.testing.assert_close(tenth[TABLE], torch.lerp(first_CD, whole[TABLE], 0.1))
    others = [name for name in whole if name.startswith("weights/") and name != TABLE]
    assert all(torch.equal(tenth[name], whole[name]) for name in others)


def test_before_the_first_tags_it_is_anchor_bit_for_bit(experiment):
    e = experiment("anchor", "toy-multi")
    compared.assert_same_bits(compared.history(replace(e, method=Tagged(warm_up=99))), compared.history(e))


def test_tags_and_prototypes_are_fedmlps(experiment):
    """The same tags in the place of labels, and means of the same rows; what is not tagged stays expected."""
    method = Tagged(positive_share=0.5, negative_share=0.4, warm_up=1)
    local, _ = compared.started(method, "multi", model=named())
    state = replace(
        local.ctx.state,
        rows_PD=torch.randn(2 * C, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
        held_P=torch.ones(2 * C, dtype=torch.bool),
    )
    tagged = method.trainer(replace(local.ctx, state=state, round=2))
    given = compared.rows_of("multi")[1]
    z_ND = local.ctx.infer(tagged.model, given)
    open_NC = given.known_NC == 0
    want_NC = new_tags(z_ND, state, open_NC, 0.5, 0.4)
    assert {-1, 0, 1} == set(want_NC[open_NC].tolist())
    assert torch.equal(tagged.memory()[TAGS], want_NC)
    rows = tagged.data()
    assert torch.equal(rows.known_NC, (~open_NC | (want_NC != 0)).double())
    assert torch.equal(rows.y_NC[open_NC], (want_NC[open_NC] == 1).double())
    assert torch.equal(tagged.open_NC, (open_NC & (want_NC == 0)).double())
    update = tagged.update()
    for c in range(C):
        for half, side_N in enumerate((1 - given.y_NC[:, c], given.y_NC[:, c])):
            rows_N = (given.known_NC[:, c] * side_N).bool()
            assert update.held_P[half * C + c] == rows_N.any()
            if rows_N.any():
                torch.testing.assert_close(update.rows_PD[half * C + c], z_ND[rows_N].mean(0))
    e = experiment("anchor", "toy-multi")
    *_, memories, last = compared.history(replace(e, method=method))[-1]
    assert not torch.equal(last[TABLE], compared.history(e)[-1][3][TABLE])
    assert last["held_P"].any()
    assert any(memory[TAGS].any() for memory in memories.values() if TAGS in memory)


def test_logits_are_adjusted_by_what_is_known(experiment):
    """By the odds of every class among its known labels; where the power is 0, it is Anchor."""
    data = compared.rows_of("multi")[1]
    adjusted = compared.started(Adjusted(tau=0.7), "multi", model=named())[0]
    positive_C, negative_C = ((data.known_NC * side_NC).sum(0) for side_NC in (data.y_NC, 1 - data.y_NC))
    assert positive_C[:2].all()
    want_C = 0.7 * torch.log(positive_C.clamp(min=1) / negative_C.clamp(min=1))
    torch.testing.assert_close(adjusted.prior_C, want_C)
    e = experiment("anchor", "toy-multi")
    compared.assert_same_bits(compared.history(replace(e, method=Adjusted(tau=0.0))), compared.history(e))


def test_names_by_adapters_are_encoded_in_every_step(experiment, tmp_path):
    names = {"init": "language_model", "encoder": str(saved_bert(tmp_path / "bert")), "lora_rank": 2}
    e = replace(experiment("fedalign", class_embeddings=names), method=Adapted())
    model = make_run_spec(e, quiet).model()
    assert isinstance(model.head, LanguageHead)
    sent, after = (state for *_, state in compared.history(e)[:2])
    adapters = [name for name in after if name.startswith("weights/head") and name.endswith((".a", ".b"))]
    assert adapters
    assert any(not torch.equal(sent[name], after[name]) for name in adapters)


@pytest.mark.parametrize(("aware", "times"), [(1, 3.0), (2, 1.0)])
def test_the_full_weight_of_several_labels_is_as_if_half_were_known(monkeypatch, aware, times):
    monkeypatch.setattr(compared, "AWARE", torch.arange(C) < aware)
    full, ours = (compared.started(method, "multi", model=named())[0].weight_NC for method in (Sure(), Anchor()))
    assert ours.any()
    torch.testing.assert_close(full, times * ours)


def test_rows_of_who_knows_a_class_are_their_mean_and_stay_where_nobody_does():
    """Of two clients with 10 and 30 rows, the first alone identifies class 0, both class 1, nobody the others."""
    cards = [
        Card(0, 10, torch.tensor([4, 2, 0, 0]), torch.tensor([True, True, False, False])),
        Card(1, 30, torch.tensor([0, 6, 0, 0]), torch.tensor([False, True, False, False])),
    ]
    method, ctx = RowsOfKnowing(), compared.server(named(), cards)
    state = method.begin(ctx)
    updates = [ControlUpdate(compared.elsewhere(state.weights, seed), state.control) for seed in (1, 2)]
    got = method.aggregate(state, [ClientResult(c, u) for c, u in zip(cards, updates, strict=True)], ctx).weights
    for name, value in got.items():
        one, other = (update.weights[name] for update in updates)
        want = (10 * one + 30 * other) / 40
        if name.startswith("head."):
            want = torch.cat([one[:1], want[1:2], state.weights[name][2:]])
        torch.testing.assert_close(value, want, rtol=0, atol=1e-12)


def test_corrections_as_far_as_they_agree_are_anchors_where_nothing_is_expected(experiment):
    e = experiment("anchor", options=ALONE | {"control_variates": True})
    agreeing = AgreeingOnly(**ALONE | {"control_variates": True})
    compared.assert_same_bits(compared.history(replace(e, method=agreeing)), compared.history(e))
    e = experiment("anchor")
    ours, others = compared.history(e), compared.history(replace(e, method=AgreeingOnly()))
    assert any(not torch.equal(others[-1][0][name], value) for name, value in ours[-1][0].items())


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_a_mean_over_pseudo_labels_alone_weighs_them_more(kind):
    rows, own = (compared.started(method, kind, model=named())[0].data() for method in (Pseudo(), OwnMean()))
    pseudo_NC = (rows.known_NC != compared.rows_of(kind)[1].known_NC) & (rows.weight_NC != 0)
    counted = int(pseudo_NC.any(-1).sum())
    assert 0 < counted < N or kind == "multi"
    factor_NC = torch.where(pseudo_NC, N / max(1, counted), 1.0)
    torch.testing.assert_close(own.weight_NC, factor_NC * rows.weight_NC)


def test_by_shares_as_many_rows_are_positive_as_a_class_has():
    """Of 12 rows, a percentile of 100 (1 - share) leaves 6 above it with a share of 1/2, 3 with 1/4, 1 with 0."""
    method = ByShare()
    for share, rows in ((0.5, 6), (0.25, 3), (0.0, 1)):
        state = method.begin(compared.server(named(), [compared.rows_of("multi")[0]]))
        state = replace(state, share_C=torch.full((C,), share))
        data = compared.started(method, "multi", model=named(), state=state)[0].data()
        assert data.y_NC[:, ~AWARE].sum(0).tolist() == [rows] * int((~AWARE).sum())
    # with a share of none it is FedAlign's rule
    fedaligns = compared.started(Pseudo(), "multi", model=named())[0].data()
    assert torch.equal(data.y_NC, fedaligns.y_NC)
    assert torch.equal(data.known_NC, fedaligns.known_NC)
    assert torch.equal(data.weight_NC, fedaligns.weight_NC)


def test_the_share_of_a_class_is_that_among_those_who_identify_it():
    cards = [
        Card(0, 10, torch.tensor([4, 2, 0, 0]), torch.tensor([True, True, False, False])),
        Card(1, 30, torch.tensor([6, 0, 3, 0]), torch.tensor([True, False, True, False])),
    ]
    share_C = ByShare().begin(compared.server(named(), cards)).share_C
    assert share_C.tolist() == [10 / 40, 2 / 10, 3 / 30, 0.0]


def of_class(class_, rows):
    """Return the card and the message of a client of one class. rows: numbers of its instances."""
    count_C = torch.zeros(C, dtype=torch.int64)
    count_C[class_] = len(rows)
    digest_P = torch.tensor([[row] * 32 for row in rows], dtype=torch.uint8).numpy()
    key = b"k" * 32
    card = Card(class_, len(rows), count_C, torch.eye(C)[class_].bool())
    return card, message_of(label_digest(class_, "hmac", key), digest_P)


@pytest.mark.parametrize("together", [False, True])
def test_classes_that_come_together_are_not_pushed_apart(together):
    """Where all classes come alone and alike often, every pair has a weight of 1, as without their correlation."""
    rows_of = [(1, 2), (1, 2) if together else (3, 4), (5, 6), (7, 8)]
    cards, sent = zip(*(of_class(class_, rows) for class_, rows in enumerate(rows_of)), strict=True)
    ctx = replace(compared.server(named(), list(cards)), initial_messages=sent)
    state = SpreadApart().begin(ctx)
    want_CC = 1 - torch.eye(C)
    if together:
        want_CC[0] = torch.tensor([0, 0, 1.5, 1.5])
        want_CC[1] = torch.tensor([0, 0, 1.5, 1.5])
    torch.testing.assert_close(state.apart_CC, want_CC)
    index_CK = torch.tensor([[3, 1, 2], [0, 2, 3], [0, 1, 3], [2, 1, 0]])
    torch.testing.assert_close(SpreadApart().pair_weights(index_CK, state), want_CC.gather(1, index_CK))
    assert Spread().pair_weights(index_CK, state).eq(1).all()


def test_no_part_is_anchor(experiment):
    """A part that changed nothing would say nothing."""
    e = experiment("anchor", "toy-multi")
    want = compared.history(e)[-1][3][TABLE]
    for method in (Bent(), Pulled(), Pseudo(), OwnMean(), ByShare(), Spread(), Slow()):
        assert isinstance(method, Anchor)
        assert not torch.equal(compared.history(replace(e, method=method))[-1][3][TABLE], want)
