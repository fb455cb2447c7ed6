"""Clients' rows that a worker keeps: bounded, the last used first, and without an effect on results."""

from __future__ import annotations

from dataclasses import replace

import torch

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.training.client import RowCache
from anchorfl.tasks.contract import Card, ClientData
from tests.runs import quiet


def rows(client, count=100):
    """About 100 x 4 x 4 x 4 bytes."""
    y = torch.zeros(count, 4)
    return Card(client, count, torch.zeros(4).long(), torch.ones(4).bool()), ClientData(torch.zeros(count, 4), y, y, y)


def test_what_was_used_longest_ago_leaves_first():
    read = []

    def asked(cache, *clients):
        read.clear()
        for client in clients:
            assert cache.get(client, lambda c=client: read.append(c) or rows(c))[0].client == client
        return list(read)

    cache = RowCache(2.5 * 6436e-6)
    assert asked(cache, 0, 1, 0, 1) == [0, 1]
    assert cache.cached_bytes == 2 * 6436
    assert asked(cache, 2) == [2]  # 0 leaves
    assert asked(cache, 1, 2) == []
    assert asked(cache, 0, 2, 1) == [0, 1]  # 1 left for 0, 0 or 2 for 1
    assert len(cache) == 2


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
