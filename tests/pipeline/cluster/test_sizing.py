"""The number of safe actors: never more than memory, CPUs and GPUs hold, wherever Ray puts them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.pipeline.cli.probe import overrides_of
from anchorfl.pipeline.cluster import layout as cluster
from anchorfl.pipeline.cluster.placement import Node
from anchorfl.pipeline.cluster.sizing import (
    GPU_MARGIN,
    MEMORY_MARGIN,
    GpuNeed,
    Need,
    Sizing,
    actors_per_gpu,
    gpu_fraction,
    number,
    share_out,
    size,
    slots,
)
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.errors import InputError

QUICK = settings(max_examples=200, deadline=None, derandomize=True, database=None)
GB = 10**9

gpu_needs = st.builds(
    GpuNeed,
    total=st.integers(4 * GB, 100 * GB),
    taken=st.integers(0, 20 * GB),
    reserved=st.integers(0, 30 * GB),
    context=st.integers(0, GB),
)
needs = st.builds(
    Need,
    client=st.integers(GB // 10, 4 * GB),
    more=st.integers(0, GB // 10),
    server=st.integers(GB // 10, 4 * GB),
    gpu=st.none() | gpu_needs,
)
clusters = st.lists(
    st.builds(
        Node,
        st.sampled_from([0.0, 1.0, 1.5, 2.0, 7.0, 16.0, 64.0]),
        st.sampled_from([(), (1.0,), (1.0,) * 4]),
        st.integers(0, 64 * GB),
    ),
    min_size=1,
    max_size=4,
)


@QUICK
@given(gpu_needs, st.integers(0, GB))
def test_the_actors_of_a_gpu_never_ask_for_more_than_it_has(need, more):
    count = actors_per_gpu(need, more)
    each = need.reserved + more + need.context
    assert need.taken + count * each <= GPU_MARGIN * need.total or not count
    if count:
        share = gpu_fraction(count)
        assert round(share * 10_000) * count <= 10_000
        assert share == round(share, 4)
        assert share * need.total >= need.reserved + more  # the allocator of an actor is held to its share


@QUICK
@given(st.integers(1, 10_000))
def test_a_gpu_share_is_the_largest_that_ray_can_count(actors):
    units = round(gpu_fraction(actors) * 10_000)
    assert units * actors <= 10_000 < (units + 1) * actors


@QUICK
@given(clusters, needs, st.integers(1, 40), st.sampled_from([0.0, 0.5]))
def test_what_is_written_is_safe_wherever_ray_puts_it_and_accepted_by_the_layout(nodes, need, clients, server_gpus):
    try:
        shares = share_out(nodes, need, clients, server_gpus)
    except InputError:
        return
    assert 1 <= shares.actors <= clients
    assert shares.actors <= shares.by_cpus
    assert (shares.client_gpus > 0) == (need.gpu is not None)
    further = shares.clients_per_actor - 1
    per_gpu = math.floor(1 / shares.client_gpus + 1e-9) if shares.client_gpus else 0
    for node in nodes:
        takes = math.floor(node.cpus / shares.client_cpus + 1e-9)
        if need.gpu is not None:
            takes = min(takes, len(node.devices) * per_gpu)
        most = min(takes, shares.actors)
        if most:
            taken = need.server + most * (need.client + further * need.more)
            assert taken <= MEMORY_MARGIN * node.memory
    if need.gpu is not None:
        each = need.gpu.reserved + further * need.more + need.gpu.context
        assert need.gpu.taken + min(per_gpu, shares.actors) * each <= need.gpu.total
    words = overrides_of(shares).split()
    values = dict(zip((w.removeprefix("--cluster.") for w in words[::2]), map(float, words[1::2]), strict=True))
    values["clients_per_actor"] = int(values["clients_per_actor"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "nodes", lambda: nodes)
        layout = cluster.layout(ClusterOptions(server_gpus=server_gpus, **values), clients)
    assert layout.actors == shares.actors


def asked(nodes, clients=10, *, gpu=None, server_gpus=0.0):
    """(actors, clients per actor, CPU share, GPU share) for a client and a server of 1 GB each."""
    shares = share_out(nodes, Need(GB, 0, GB, gpu), clients, server_gpus)
    return shares.actors, shares.clients_per_actor, shares.client_cpus, shares.client_gpus


GPU = GpuNeed(total=10 * GB, taken=0, reserved=2 * GB, context=GB)


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        ([Node(4.0, (), 100 * GB)], {}, (4, 3, 1.0, 0.0)),  # CPUs limit
        ([Node(64.0, (), 100 * GB)], {}, (10, 1, 1.0, 0.0)),  # clients limit
        ([Node(64.0, (), 5 * GB)], {}, (3, 4, 1.0, 0.0)),  # 0.8 x 5 GB less the server: memory limits
        # Ray would put all on the node with many CPUs and little memory, so a share of more than a CPU keeps them off
        ([Node(16.0, (), 4 * GB), Node(16.0, (), 4 * GB)], {}, (4, 3, 5.3334, 0.0)),
        ([Node(8.0, (1.0,), 100 * GB)], {"gpu": GPU}, (3, 4, 1.0, 0.3333)),  # 9 GB hold three of 3 GB
        ([Node(8.0, (1.0, 1.0), 100 * GB)], {"gpu": GPU, "clients": 4}, (4, 1, 1.0, 0.5)),  # two on each
        ([Node(8.0, (1.0,), 100 * GB)], {"gpu": GPU, "server_gpus": 0.5}, (1, 10, 1.0, 0.5)),
        ([Node(64.0, (), 100 * GB), Node(2.0, (1.0,), 100 * GB)], {"gpu": GPU}, (2, 5, 1.0, 0.5)),
    ],
)
def test_what_limits(nodes, options, expected):
    assert asked(nodes, **options) == expected


def test_a_head_node_without_cpus_takes_no_actors():
    shares = share_out([Node(0.0, (1.0,), 99 * GB), Node(2.0, (1.0,), 5 * GB)], Need(GB, 0, GB, GPU), 9)
    assert (shares.actors, shares.by_cpus, shares.by_memory, shares.by_gpus) == (2, 2, 3, 3)
    assert shares.client_gpus == 0.5


def test_memory_of_further_clients_counts():
    """An actor keeps the rows of every client that it serves: two actors of five clients do not fit, one of ten may."""
    node = Node(2.0, (), 10 * GB)
    assert slots(node, Need(GB, GB // 2, GB), 4) == 2
    assert share_out([node], Need(GB, GB // 2, GB), 10).actors == 2
    assert share_out([node], Need(2 * GB, GB // 2, GB), 10).actors == 1
    with pytest.raises(
        InputError, match=r"no number of actors from 1 to 2 is safe: .* 3 GB for each further one of 10"
    ):
        share_out([node], Need(2 * GB, 3 * GB, GB), 10)


@pytest.mark.parametrize(
    ("node", "need", "message"),
    [
        (Node(0.5, (), 9 * GB), Need(1, 0, 1), "no node has a whole CPU"),
        (Node(2.0, (), 2 * GB), Need(GB, 0, GB), "one client needs 1 GB of memory and the server 1 GB, and 80%"),
        (
            Node(2.0, (1.0,), 9 * GB),
            Need(1, 0, 1, GpuNeed(2 * GB, GB, GB // 2, GB // 2)),
            "one client needs 1 GB of GPU memory, and 90% of the 2 GB of the GPU less 1 GB that others use are 800 MB",
        ),
    ],
)
def test_what_does_not_fit_at_all_is_said(node, need, message):
    with pytest.raises(InputError, match=message):
        share_out([node], need, 4)


def test_numbers_for_the_command_line_and_the_eye():
    assert [number(v) for v in (1.0, 100.0, 0.3333, 5.3334, 0.0)] == ["1", "100", "0.3333", "5.3334", "0"]
    assert [size(v) for v in (0, 5, 48_504, 462_000_000, 17_470_000_000)] == [
        "0 B",
        "5 B",
        "48.5 kB",
        "462 MB",
        "17.5 GB",
    ]


def test_the_written_overrides_are_read_as_they_were_meant():
    text = overrides_of(Sizing(3, 4, 5.3334, 0.3333, 16, 4, 3, 3))
    read = override(read_preset("digits/fedalign"), text.split()).cluster
    assert (read.clients_per_actor, read.client_cpus, read.client_gpus) == (4, 5.3334, 0.3333)
