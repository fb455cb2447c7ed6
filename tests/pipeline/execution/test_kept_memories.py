"""What clients write themselves: the memory that a number stands for, and no more files than a resumed run may need."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution.kept_memories import ROUND, KeptMemories
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.files import object_store
from tests.runs import quiet


@pytest.fixture
def kept(experiment):
    def make(location, seed=1, **cluster):
        e = experiment("fedavg", seed=seed)
        spec = make_run_spec(e, quiet)
        return KeptMemories(location, replace(spec, experiment=replace(e, cluster=replace(e.cluster, **cluster))))

    return make


def memory(value):
    return {"c.weight": torch.full((2, 3), float(value)), "c.n": torch.tensor(value)}


@pytest.mark.parametrize("remote", [False, True], ids=["folder", "s3"])
def test_a_number_stands_for_a_memory(kept, tmp_path, request, remote):
    place = kept(request.getfixturevalue("s3") + "/runs" if remote else str(tmp_path / "kept"))
    tokens = {client: place.put(client, 3, memory(client), {}) for client in (0, 12)}
    assert {name: int(value) for name, value in tokens[12].items()} == {ROUND: 3}
    for client, token in tokens.items():
        back = place.get(client, token)
        assert {name: value.tolist() for name, value in back.items()} == {
            name: value.tolist() for name, value in memory(client).items()
        }
    assert place.put(1, 3, {}, {}) == {} == place.get(1, {})
    assert place.get(5, memory(5)).keys() == memory(5).keys(), "what a checkpoint of before holds itself"
    with pytest.raises(InputError, match=r"client 12: what it kept is gone: .*00000004.safetensors is missing"):
        place.get(12, {ROUND: torch.tensor(4)})


def test_runs_of_other_options_do_not_meet(kept, tmp_path):
    one, other = kept(str(tmp_path)), kept(str(tmp_path), seed=2)
    token = one.put(0, 1, memory(1), {})
    with pytest.raises(InputError, match="what it kept is gone"):
        other.get(0, token)


@pytest.mark.parametrize(("every", "keep"), [(1, 2), (5, 1)])
def test_what_a_resumed_run_may_ask_for_is_there(kept, tmp_path, every, keep):
    """A client that takes part in all rounds, and one that did once: at any kept checkpoint, theirs is there."""
    place = kept(str(tmp_path), checkpoint_every=every, keep_checkpoints=keep)
    rare, token = place.put(1, 2, memory(2), {}), {}
    for round_ in range(1, 41):
        token = place.put(0, round_, memory(round_), token)
        for back in range(max(1, round_ - every * (1 + keep)), round_):
            assert int(place.get(0, {ROUND: torch.tensor(back)})["c.n"]) == back
    assert int(place.get(1, rare)["c.n"]) == 2
    files = object_store.sizes(place.location)
    assert len(files) <= every * (1 + keep) + 3
    place.put(1, 40, memory(40), rare)
    assert int(place.get(1, rare)["c.n"]) == 2, "a checkpoint of before round 40 has this one"


def test_what_an_attempt_that_was_dropped_wrote_costs_no_memory_of_before(kept, tmp_path):
    """The round that is over may be far back: its file went, and that of the dropped attempt stayed."""
    place = kept(str(tmp_path), checkpoint_every=1, keep_checkpoints=2)
    merged = place.put(0, 2, memory(2), {})
    place.put(0, 5, memory(5), merged)  # too late, or refused
    place.put(0, 20, memory(20), merged)  # killed before its checkpoint
    assert int(place.get(0, merged)["c.n"]) == 2
    assert int(place.get(0, place.put(0, 21, memory(21), merged))["c.n"]) == 21
    assert int(place.get(0, merged)["c.n"]) == 2
    assert len(object_store.sizes(place.location)) == 2


def test_a_memory_that_is_gone_is_no_fault_of_a_client(kept, tmp_path):
    with pytest.raises(PreparedDataError, match="what it kept is gone"):
        kept(str(tmp_path)).get(0, {ROUND: torch.tensor(4)})


def test_it_is_for_actors():
    with pytest.raises(ValueError, match=r"cluster\.memories is for client actors: set cluster\.executor to 'ray'"):
        ClusterOptions(executor="serial", memories="/tmp/x")
    with pytest.raises(InputError, match=r"cluster\.memories = 'x': give s3://bucket/folder"):
        ClusterOptions(memories="x")
