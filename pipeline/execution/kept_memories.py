"""What clients keep between rounds, where they write it themselves: at their site, or in a place that all nodes see
(``cluster.memories``). The run has a number for each.

A file holds a client's memory after a round. The same round writes the same bytes, so a retry may write it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.files import object_store

ROUND = "kept in round"
"""The one tensor that the run has in place of a memory."""


class KeptMemories:
    """The memories of a run's clients. What a resumed run may ask for again is there, and no more."""

    def __init__(self, location: str, run_spec: RunSpec) -> None:
        """location: of several runs, each of which has a folder there by its digest."""
        experiment = run_spec.experiment
        self.location = object_store.join(location, digest(experiment))
        self.rounds = experiment.cluster.checkpoint_every * (1 + experiment.cluster.keep_checkpoints)

    @classmethod
    def of(cls, run_spec: RunSpec) -> KeptMemories | None:
        """Return those of a run; None where its checkpoints hold them."""
        if run_spec.experiment.task.sites:
            return cls(str(Path(run_spec.prepared).parent / "memories"), run_spec)
        location = run_spec.experiment.cluster.memories
        return cls(location, run_spec) if location else None

    def put(
        self, client: int, round_: int, memory: Mapping[str, Tensor], before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Keep a memory, and return what stands for it. before: what stood for the one that the client began with."""
        if not memory:
            return {}
        folder = object_store.join(self.location, f"{client:05d}")
        if not object_store.is_remote(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        object_store.write_bytes(
            object_store.join(folder, _name(round_)), save({k: v.contiguous() for k, v in memory.items()})
        )
        there = sorted(object_store.sizes(folder))
        began = _name(int(before[ROUND]) if ROUND in before else -1)
        dropped = [name for name in there if began < name < _name(round_)]  # of attempts that were not merged
        old = [name for name in there if name < _name(round_ - self.rounds) and name not in dropped]
        for name in (*dropped, *old[:-1]):  # the last of them is still the client's at the oldest checkpoint
            object_store.delete(object_store.join(folder, name))
        return {ROUND: torch.tensor(round_)}

    def get(self, client: int, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the memory that ``kept`` stands for. PreparedDataError, which ends the run, where it is gone."""
        if ROUND not in kept:
            return dict(kept)
        place = object_store.join(self.location, f"{client:05d}", _name(int(kept[ROUND])))
        try:
            return load(object_store.read_bytes(place))
        except FileNotFoundError as error:
            where = object_store.shown(place)
            raise PreparedDataError(
                f"client {client}: what it kept is gone: {where} is missing; start the run anew"
            ) from error


def _name(round_: int) -> str:
    return f"{max(0, round_):08d}.safetensors"
