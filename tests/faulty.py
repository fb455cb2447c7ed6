"""A method whose clients fail on purpose, for the tests of faults."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.ingest.rows_files import Extent, rows_file


@dataclass(frozen=True, kw_only=True)
class Faulty(Averaging):
    """FedAvg whose clients ``clients`` fail in their own way ``kind``, each ``times`` times in round ``round``; every
    failure leaves a file in ``folder``, so that it is known across processes.
    """

    name = "fedavg"
    clients: tuple[int, ...]
    kind: str
    times: int
    folder: str
    round: int = 1

    def trainer(self, ctx: ClientContext[ServerState]) -> FaultyTrainer:
        return FaultyTrainer(ctx, self)


class FaultyTrainer(AveragingTrainer):
    def __init__(self, ctx, method):
        super().__init__(ctx)
        self.method = method

    def update(self):
        m, client = self.method, self.ctx.card.client
        sent, folder = super().update(), Path(m.folder)
        failed = len(list(folder.glob(f"{client}-*")))
        if client not in m.clients or self.ctx.round != m.round or failed >= m.times:
            return sent
        (folder / f"{client}-{failed}").touch()
        return dataclasses.replace(sent, weights=harmed(sent.weights, m.kind))


def harmed(weights, kind):
    """Return the weights as a faulty client sends them; or do not return at all."""
    name, first = next(iter(weights.items()))
    match kind:
        case "exit":
            os._exit(1)
        case "raise":
            raise RuntimeError("the disk of the client is full")
        case "memory":
            raise MemoryError("cannot allocate 1 TiB")
        case "hang":
            time.sleep(3600)
        case "nan" | "inf":
            return {k: torch.full_like(v, float(kind)) for k, v in weights.items()}
        case "huge":
            return {k: torch.full_like(v, 3e38) for k, v in weights.items()}
        case "scaled":
            return {k: 1e6 * v for k, v in weights.items()}
        case "shape":
            return weights | {name: torch.zeros(2, 3)}
        case "dtype":
            return weights | {name: first.double()}
        case "missing":
            return {k: v for k, v in weights.items() if k != name}
        case "extra":
            return weights | {"more": torch.zeros(1)}
        case "empty":
            return {}
    raise ValueError(kind)


KINDS = {
    "raise": ("exception", "RuntimeError: the disk of the client is full"),
    "memory": ("memory", "MemoryError: cannot allocate 1 TiB"),
    "nan": ("rejected", "non-finite values"),
    "inf": ("rejected", "non-finite values"),
    "huge": ("rejected", "its weights have the norm"),
    "scaled": ("rejected", "its weights have the norm"),
    "shape": ("rejected", "expected torch.float32"),
    "dtype": ("rejected", "torch.float64"),
    "missing": ("rejected", "is missing"),
    "extra": ("rejected", "is not expected"),
    "empty": ("rejected", "the update is empty"),
}
"""Faults that a process survives: how -> (kind of the failure, part of its reason)."""
DEADLY = {"exit": ("crash", "actor died"), "hang": ("deadline", "no answer within")}
"""Those that it does not, so that they need client actors."""


def damage(folder, owner):
    """Change a bit in the rows of an owner of prepared data."""
    extent = Extent.of(Prepared.load(folder).manifest.extents, owner)
    path = Path(folder) / rows_file(extent.file)
    data = bytearray(path.read_bytes())
    data[extent.offset + extent.size // 2] ^= 1
    path.write_bytes(data)


def with_a_damaged_client(run_spec, folder):
    """Return the run on a copy of its prepared data in which one bit of client 2's rows is another."""
    copy = Path(shutil.copytree(run_spec.prepared, folder / "copy"))
    damage(copy, 2)
    return dataclasses.replace(run_spec, prepared=str(copy))
