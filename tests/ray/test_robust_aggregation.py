"""Robust merges, noise on the mean and masked updates on Ray: the serial run's bits and counts."""

from __future__ import annotations

import dataclasses

import pytest

from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
KEYS = "communication/key_exchange_bytes"
COUNTS = ("aggregation/clipped", "aggregation/rejected_by_krum", "privacy/epsilon", KEYS)


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": "median"},
        {"aggregation": "trimmed_mean", "trim_fraction": 0.25, "clip_norm": 0.2},
        {"aggregation": "krum", "krum_num_selected": 2, "clip_norm": 0.2},
        {"clip_norm": 0.2, "dp_noise": 1.0},
        {"clip_norm": 0.2, "dp_noise": 1.0, "secure_aggregation": True},
    ],
    ids=str,
)
def test_serial_and_ray_give_one_checksum(experiment, tmp_path, options):
    given = {"weighting": "uniform"}
    e = experiment(
        "fedavg", options=given, federation={"rounds": 2, "clients_per_round": 0, "epochs": 1, "quorum": 1.0}
    )
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, clients=5))
    e = dataclasses.replace(e, federation=dataclasses.replace(e.federation, **options))
    on_ray = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray", clients_per_actor=3))
    results = [run(one, tmp_path / name, quiet) for name, one in (("serial", e), ("ray", on_ray))]
    assert results[0].checksum == results[1].checksum
    assert results[0].scores == results[1].scores
    counts = [
        [{name: r.metrics[name] for name in COUNTS if name in r.metrics} for r in read_records(tmp_path / where)[0]]
        for where in ("serial", "ray")
    ]
    assert counts[0] == counts[1]
    wanted = {KEYS} if "secure_aggregation" in options else {"aggregation/clipped"} if "clip_norm" in options else set()
    assert counts[0][2].keys() == wanted | (
        {"aggregation/rejected_by_krum"} if options.get("aggregation") == "krum" else set()
    ) | ({"privacy/epsilon"} if "dp_noise" in options else set())
