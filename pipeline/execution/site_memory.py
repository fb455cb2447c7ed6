"""What a client that is pinned to its site keeps between rounds: in a file there, for which the run has a number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store

ROUND = "kept in round"
"""The one tensor that leaves the site in place of a memory."""


class SiteMemory:
    """The memories of a site's clients in one run. What a resumed run may ask for again is there, and no more."""

    def __init__(self, run_spec: RunSpec) -> None:
        experiment = run_spec.experiment
        self.folder = Path(run_spec.prepared).parent / "memories" / digest(experiment)
        self.rounds = experiment.cluster.checkpoint_every * (1 + experiment.cluster.keep_checkpoints)

    def put(self, client: int, round_: int, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Keep a memory, and return what stands for it."""
        if not memory:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        object_store.write_bytes(str(self._path(client, round_)), save({k: v.contiguous() for k, v in memory.items()}))
        kept = sorted(self.folder.glob(f"{client:05d}-*"))
        old = [path for path in kept if path < self._path(client, round_ - self.rounds)]
        for path in old[:-1]:  # the last of them is still the client's at the oldest checkpoint
            path.unlink()
        return {ROUND: torch.tensor(round_)}

    def get(self, client: int, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the memory that ``kept`` stands for. InputError where it is gone."""
        if ROUND not in kept:
            return dict(kept)
        path = self._path(client, int(kept[ROUND]))
        try:
            return load(path.read_bytes())
        except FileNotFoundError as error:
            raise InputError(f"client {client}: what it kept is gone: {path} is missing; start the run anew") from error

    def _path(self, client: int, round_: int) -> Path:
        return self.folder / f"{client:05d}-{max(0, round_):08d}.safetensors"
