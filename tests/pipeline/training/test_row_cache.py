"""Clients' rows that a worker keeps: bounded, the last used first, and without an effect on results."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.training.row_cache import RowCache
from anchorfl.tasks.contract import Card, ClientData
from tests.runs import quiet


def rows(client, count=100):
    """About 100 x 4 x 4 x 4 bytes."""
    y = torch.zeros(count, 4)
    return Card(client, count, torch.zeros(4).long(), torch.ones(4).bool()), ClientData(torch.zeros(count, 4), y, y, y)


def drawn(client):
    """A client of two rows and about a kilobyte."""
    generator = torch.Generator().manual_seed(client)
    y = torch.rand(2, 4, generator=generator)
    x = torch.rand(2, 50, generator=generator)
    return Card(client, 2, torch.arange(4), torch.ones(4).bool()), ClientData(x, y, y.clone(), y.clone())


def test_what_was_used_longest_ago_leaves_first():
    read = []

    def asked(cache, *clients):
        read.clear()
        for client in clients:
            assert cache.get(client, lambda c=client: read.append(c) or rows(c))[0].client == client
        return list(read)

    cache = RowCache(2.5 * 6528e-6)
    assert asked(cache, 0, 1, 0, 1) == [0, 1]
    assert cache.cached_bytes == 2 * 6528
    assert asked(cache, 2) == [2]  # 0 leaves
    assert asked(cache, 1, 2) == []
    assert asked(cache, 0, 2, 1) == [0, 1]  # 1 left for 0, 0 or 2 for 1
    assert len(cache) == 2


def test_small_clients_share_slabs_and_keep_their_values():
    """Each tensor is equal to what was read, on a line of its own; none lies in memory of its own."""
    cache = RowCache(1.0)
    kept = {client: cache.get(client, lambda c=client: drawn(c))[1] for client in range(300)}
    assert len(cache) == 300
    assert len({data.x.untyped_storage().data_ptr() for data in kept.values()}) == 1
    for client, data in kept.items():
        want = drawn(client)[1]
        assert torch.equal(data.x, want.x)
        assert torch.equal(data.y_NC, want.y_NC)
        assert data.x.data_ptr() % 64 == 0
    places = sorted((data.x.data_ptr(), data.x.data_ptr() + data.x.nbytes) for data in kept.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def test_a_slab_leaves_as_a_whole_and_the_bound_holds():
    cache = RowCache(0.2)
    for client in range(2000):
        assert torch.equal(cache.get(client, lambda c=client: drawn(c))[1].x, drawn(client)[1].x)
        assert cache.cached_bytes <= 200_000
    assert 0 < len(cache) < 2000
    big = rows(5000, count=20_000)
    assert cache.get(5000, lambda: big) is big  # larger than all that may be kept
    assert 5000 not in cache._rows


def test_a_large_client_keeps_its_own_memory_and_leaves_the_open_slab_open():
    cache = RowCache(1.0)
    first = cache.get(0, lambda: drawn(0))[1]
    large = rows(1, count=5000)
    assert cache.get(1, lambda: large)[1].x is large[1].x
    second = cache.get(2, lambda: drawn(2))[1]
    assert first.x.untyped_storage().data_ptr() == second.x.untyped_storage().data_ptr()


def test_nothing_is_kept_where_nothing_may_be():
    cache = RowCache(0)
    for _ in range(2):
        assert cache.get(3, lambda: rows(3))[0].client == 3
        assert len(cache) == cache.cached_bytes == 0


def test_a_run_that_reads_its_rows_every_time_has_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    e = read_preset("digits/fedalign")
    e = replace(
        e,
        federation=replace(e.federation, rounds=2, epochs=1),
        tracking=replace(e.tracking, uri="none"),
        cluster=replace(e.cluster, executor="serial"),
    )
    sums = [
        run(replace(e, cluster=replace(e.cluster, client_cache_mb=mb)), tmp_path / f"{mb}", quiet).checksum
        for mb in (0, 1e3)
    ]
    assert sums[0] == sums[1]
