"""A run folder opened for analysis: its options, data, kept states and memories. Nothing here writes into the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.algorithm.optimizers import without_moments
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution.executor import server_of
from anchorfl.pipeline.execution.kept_memories import KeptMemories
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.round_loop import MEMORY, STATE
from anchorfl.pipeline.storage.checkpoint import Checkpoint, Checkpoints
from anchorfl.pipeline.storage.run_folder import read_own_experiment
from anchorfl.pipeline.storage.run_record import check_same_data
from anchorfl.pipeline.storage.saved_model import NO_MODEL
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.local_training import infer
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.contract import ClientData
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.ingest.prepared import Prepared


@dataclass(frozen=True)
class Analysis:
    """A run folder opened for analysis."""

    folder: Path
    run_spec: RunSpec
    last: Checkpoint
    """The last completed round."""
    kept: KeptMemories | None = None
    """Where clients' memories are; None: in the checkpoint."""
    _rows: dict[int, ClientData] = field(default_factory=dict)

    @cached_property
    def prepared(self) -> Prepared:
        """The data of the run."""
        return self.run_spec.data()

    @cached_property
    def server(self) -> Server:
        """A server of the analysis alone, whose state is that of the round that ``at`` named last."""
        return server_of(self.run_spec)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of all classes."""
        return self.prepared.manifest.class_names

    @property
    def seed(self) -> int:
        """The run's seed, from which every draw of the analysis is derived."""
        return self.run_spec.experiment.seed

    def rounds(self) -> list[int]:
        """Return the rounds whose state is there, ascending: those that were kept, and the last completed one."""
        return sorted({*Checkpoints(self.folder).kept(), self.last.round})

    def at(self, round_: int) -> Server:
        """Return the server as it was after a round."""
        state = self.last.parts[STATE] if round_ == self.last.round else Checkpoints(self.folder).read_kept(round_)
        self.server.restore(state)
        return self.server

    def rows(self, client: int) -> ClientData:
        """Return a client's data as it has them, read once."""
        if client not in self._rows:
            self._rows[client] = self.prepared.client(client, self.server.objective)
        return self._rows[client]

    def memory(self, client: int) -> Tensors:
        """Return the client's memory after the last completed round; empty where it was never selected."""
        kept = self.last.parts.get(f"{MEMORY}{client:05d}", {})
        return kept if self.kept is None else self.kept.get(client, kept)

    def lasting(self, client: int) -> Tensors:
        """Return ``memory`` without the moments of optimizers: what the method keeps at the client (FedRep's head)."""
        return without_moments(self.memory(client)) or self.runner.first_memory

    def trainable(self) -> list[int]:
        """Return the rounds from which local training can be repeated.

        Memories are there of the last one alone, so earlier ones are out where clients keep more than moments.
        """
        alone = any(self.lasting(card.client) for card in self.server.cards)
        return [self.last.round] if alone else self.rounds()

    @cached_property
    def runner(self) -> ClientRunner:
        """A runner that trains clients in a work-space of its own."""
        return ClientRunner(self.run_spec)

    def local_weights(self, round_: int, client: int, memory: Tensors) -> Tensors:
        """Return one client's weights after local training from the state of a round, as in the round after it."""
        server = self.at(round_)
        try:
            self.runner.fit(client, round_ + 1, server.broadcast(round_ + 1), memory, server.client_message(client))
        except (InputError, PreparedDataError):
            raise
        except Exception as error:  # the run went on without it
            raise InputError(
                f"client {client} cannot be compared in round {round_ + 1} ({error}): name others with --clients"
            ) from error
        return weights_of(self.runner.model)

    def represent(self, weights: Tensors, data: ClientData, index_B: Tensor | None = None) -> Tensor:
        """Return representations [B, D] of some rows (None: all) by the encoder with these weights."""
        self.server.model.load_state_dict(weights)
        return infer(self.server.model, data if index_B is None else part_of(data, index_B))


def part_of(data: ClientData, index_B: Tensor) -> ClientData:
    """Return some rows, in that order."""
    length_N = None if data.length_N is None else data.length_N[index_B]
    taken = {name: getattr(data, name)[index_B] for name in ("x", "y_NC", "known_NC", "weight_NC")}
    return replace(data, length_N=length_N, **taken)


def open_analysis(folder: Path, log: Log, places: Mapping[str, str] | None = None) -> Analysis:
    """Open a run folder, in this process and on the CPU, whatever it ran on.

    places: as the user types them now, option -> value. Raises InputError where it holds no completed round, names
    places that this user has not named, its method trains no global model, or the data on this machine are not those of
    the run.
    """
    one_thread()
    experiment = read_own_experiment(folder, places or {})
    if experiment.method.evaluate_on == "clients":
        raise InputError(f"{folder}: {experiment.method.name} {NO_MODEL}: there is none to diagnose")
    if experiment.task.sites:
        raise InputError(f"{folder}: its clients' rows are at their sites, and a diagnosis reads them")
    last = Checkpoints(folder).load()
    if last is None:
        raise InputError(
            f"{folder} holds no completed round: go on with: {shlex.join(['anchorfl', 'resume', str(folder)])}"
        )
    here = ClusterOptions(executor="serial" if experiment.federation.stack != 1 else "forked")  # serial: no deadline
    run_spec = make_run_spec(replace(experiment, cluster=here), log)
    check_same_data(folder, run_spec.data().manifest.digests, "name the same raw files with $ANCHORFL_DATA")
    memories = experiment.cluster.memories
    return Analysis(folder, run_spec, last, kept=KeptMemories(memories, run_spec) if memories else None)
