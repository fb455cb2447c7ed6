"""The runs of a table by what they need: a row may train on actors, another in a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tuning.tables.launch import alike
from anchorfl.tuning.tables.runs import Job


def job_of(name, **options):
    e = read_preset(name)
    return Job(
        SimpleNamespace(experiment=replace(e, cluster=replace(e.cluster, executor="ray", **options))), Path(name)
    )


def test_runs_with_the_same_resources_go_together():
    """Rounds of clients with a class each are one pass, without actors."""
    on_actors, batched, with_gpus = (
        job_of("digits/fedavg"),
        job_of("voc07/fedalc"),
        job_of("digits/fedavg", client_gpus=0.5),
    )
    other = job_of("digits/fedalign")
    (actors, first), (process, second), (gpus, third) = alike([on_actors, batched, other, with_gpus, batched])
    assert (first, second, third) == ([on_actors, other], [batched, batched], [with_gpus])
    assert process == [{"CPU": 1.0}]
    assert gpus[:2] == actors[:2]
    assert [slot | {"GPU": 0.5} for slot in actors[2:]] == gpus[2:]
