"""What a site says for secure aggregation, and what it does not say twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anchorfl.pipeline.algorithm.exact_sums import Grid
from anchorfl.pipeline.export.secure_exchange import Kept, Request, answer, decoded, encoded, masked_round, text_of
from anchorfl.pipeline.training.secure_round import SecureRound
from anchorfl.tasks.errors import InputError

SENT = {"sent": torch.zeros(2), "memory": {}}
GRID = Grid({"weights": {"w": 2.0}}, {"": 30.0}, 1e4)


@pytest.fixture
def site():
    """Return a maker of the first of three sites: (ask it, its texts between calls)."""
    kept = {client: "" for client in range(3)}

    def ask(kind, client=0, **request):
        said, kept[client] = answer(client, kind, encoded(Request(**request)), kept[client])
        return said

    keys = {client: decoded(ask("keys", client, round=1), bytes) for client in kept}
    shares = {client: decoded(ask("shares", client, round=1, keys=keys), dict[int, bytes]) for client in kept}
    received = {client: sent[0] for client, sent in shares.items()}
    return ask, kept, keys, received


def test_a_secret_is_drawn_once_and_at_random(site):
    _, kept, _, _ = site
    assert len({decoded(text, Kept).secret for text in kept.values()}) == 3
    again, text = answer(0, "keys", encoded(Request(1)), kept[0])
    assert (again, text) == (encoded(site[2][0]), kept[0])


def test_a_round_crosses_as_text():
    secure = SecureRound(GRID, {0: bytes(64), 7: b"x" * 64})
    received, secret, kept = masked_round(text_of(3, secure), 3, "", SENT)
    assert received == secure
    assert (decoded(kept, Kept).secret, decoded(kept, Kept).round) == (secret, 3)
    assert text_of(3, None) == ""


def test_a_site_trains_under_one_set_of_keys_in_a_round(site):
    """Two updates under the keys of more and of fewer clients differ by an update of one."""
    _, kept, keys, _ = site
    _, _, after = masked_round(text_of(1, SecureRound(GRID, keys)), 1, kept[0], SENT)
    again = masked_round(text_of(1, SecureRound(GRID, keys)), 1, after, SENT)
    assert again[2] == after, "a message that was lost is sent again"
    fewer = {client: keys[client] for client in (0, 1)}
    for round_ in (0, 1):
        with pytest.raises(InputError, match=f"round {round_}: asked again, under other keys"):
            masked_round(text_of(round_, SecureRound(GRID, fewer)), round_, after, SENT)
    assert decoded(masked_round(text_of(2, SecureRound(GRID, fewer)), 2, after, SENT)[2], Kept).round == 2


def test_a_site_trains_on_one_thing_in_a_round(site):
    """Two updates under the same masks differ by the difference of the updates, in the clear."""
    ask, kept, keys, received = site
    text, other = text_of(1, SecureRound(GRID, keys)), {"sent": torch.ones(2), "memory": {}}
    _, _, kept[0] = masked_round(text, 1, kept[0], SENT)
    for given in (other, SENT | {"memory": {"control": torch.zeros(1)}}):
        with pytest.raises(InputError, match="round 1: asked again, to train on something else"):
            masked_round(text, 1, kept[0], given)
    ask("reveal", round=1, keys=keys, received=received, answered=(0, 1))
    with pytest.raises(InputError, match="to train on something else"):
        masked_round(text, 1, kept[0], other)
    assert masked_round(text_of(2, SecureRound(GRID, keys)), 2, kept[0], other)[0].keys == keys


def test_a_site_answers_on_one_grid_in_a_round(site):
    """The same values in other steps under the same masks: the difference has no mask, and gives every value."""
    _, kept, keys, _ = site
    _, _, kept[0] = masked_round(text_of(1, SecureRound(GRID, keys)), 1, kept[0], SENT)
    finer = replace(GRID, bounds={"weights": {"w": 4.0}})
    with pytest.raises(InputError, match="round 1: asked again, to train on something else"):
        masked_round(text_of(1, SecureRound(finer, keys)), 1, kept[0], SENT)


def test_the_round_of_the_keys_is_the_round_of_the_masks(site):
    """A site forgot what it had sent in a round, and masked anew under its masks."""
    _, kept, keys, _ = site
    with pytest.raises(InputError, match="round 1: asked under the keys of round 2"):
        masked_round(text_of(2, SecureRound(GRID, keys)), 1, kept[0], SENT)


def test_a_site_sends_nothing_in_the_clear():
    with pytest.raises(InputError, match=r"round 4: asked for an update without masks, and federation\.secure_aggr"):
        masked_round("", 4, "", SENT)


def test_a_site_opens_one_sum_in_a_round(site):
    ask, _, keys, received = site
    first = ask("reveal", round=1, keys=keys, received=received, answered=(0, 1))
    assert ask("reveal", round=1, keys=keys, received=received, answered=(0, 1)) == first
    with pytest.raises(InputError, match="round 1: asked again, for a sum of others, which would give an update away"):
        ask("reveal", round=1, keys=keys, received=received, answered=(0, 1, 2))
    with pytest.raises(InputError, match="round 1: asked again, under other keys"):
        ask("reveal", round=1, keys={0: keys[0], 1: keys[1]}, received=received, answered=(0, 1))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"round": "one"}', '{"round": 1, "keys": {"a": ""}}'])
def test_what_is_no_request_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        answer(0, "shares", text, "")
