"""Placement: actors that each need one node, and GPU shares that each need one device."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.cluster.placement import Node, count_groups, fits_wherever, largest_share, place

TWO = [Node(2.0, (1.0,)), Node(2.0, (1.0,))]


def share(nodes, actors, gpus=0.0):
    """CPU share of ``actors`` clients and a server without GPU."""
    return largest_share(nodes, actors + 1, lambda s: fits_wherever(nodes, (s, 0.0), [(s, gpus)] * actors))


@pytest.mark.parametrize(
    ("nodes", "actors", "gpus", "expected"),
    [
        ([Node(2.0)], 2, 0.0, 0.6666),  # one node: its CPUs over actors and server
        ([Node(64.0)], 4, 0.0, 1.0),  # never more than one
        (TWO, 4, 0.1, 0.6666),  # 4/5 would fit two to a node, and the fifth nowhere
        (TWO, 10, 0.1, 0.3333),  # 4/11 would fit five to a node
        ([Node(0.0), *TWO], 10, 0.1, 0.3333),  # a head without CPUs changes nothing
        ([Node(16.0), *TWO], 10, 0.1, 0.3333),  # nor CPUs where there is no GPU: the server may go to a worker
        (TWO, 4, 0.6, 0.0),  # 2.4 of 2 GPUs
        ([Node(8.0, (1.0, 1.0))], 3, 0.6, 0.0),  # 1.8 of 2 GPUs, but one to a device
        ([Node(8.0, (1.0, 1.0))], 2, 0.6, 1.0),
        ([], 1, 0.0, 0.0),
    ],
)
def test_the_largest_share_with_which_all_find_a_place(nodes, actors, gpus, expected):
    assert share(nodes, actors, gpus) == expected


def test_a_gpu_share_fills_a_device_before_it_opens_another():
    left = place([Node(8.0, (1.0, 1.0))], [(1.0, 0.5), (1.0, 0.5), (1.0, 1.0)])
    assert left == [Node(5.0, (0.0,))]
    assert place([Node(8.0, (1.0, 1.0))], [(1.0, 0.5), (1.0, 2.0)]) is None


def test_a_group_that_fits_the_sum_but_no_nodes_fits_no_time():
    trial = [(0.0, 0.0), (0.1, 0.0), *[(0.9666, 0.0)] * 3]  # 3 CPUs: the server finds 0.03 on each of three nodes
    assert count_groups([Node(1.0)] * 3, trial, most=9) == 0
    assert count_groups([Node(3.0)] * 3, trial, most=9) == 3
    assert count_groups([Node(3.0)] * 3, trial, most=2) == 2


def test_the_first_actor_may_go_to_any_node():
    """A server that Ray puts on the node of the one large client would keep it out."""
    nodes = [Node(1.0), Node(2.0)]
    assert not fits_wherever(nodes, (1.0, 0.0), [(2.0, 0.0)])
    assert fits_wherever(nodes, (0.0, 0.0), [(2.0, 0.0)])
    assert not fits_wherever(nodes, (0.0, 1.0), [])
