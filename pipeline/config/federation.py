"""Options of [federation]: rounds, selection, faults and aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from anchorfl.pipeline.algorithm.options import LEAST_NOISE, Aggregation

if TYPE_CHECKING:
    from anchorfl.pipeline.algorithm.aggregation import Aggregator
    from anchorfl.pipeline.algorithm.client_privacy import ClientPrivacy


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationOptions:
    """Options of the rounds: selection, faults and aggregation."""

    rounds: int = 50
    """Communication rounds T."""
    clients_per_round: int = 5
    """Selected clients |S_t|, uniform without replacement; 0: all."""
    selection: Literal["fixed", "poisson"] = "fixed"
    """``fixed``: that number of clients in every round; ``poisson``: each client by a draw of its own, so that many on
    average, and one at least."""
    client_fraction: float = 0.0
    """Share of the clients that are selected, rounded down, at least one, in place of ``clients_per_round``; 0:
    ``clients_per_round`` says."""
    epochs: int = 5
    """Local epochs E."""
    steps: int = 0
    """Local steps K of every client, in as many epochs as they take, whatever its number of rows; 0: ``epochs`` says.
    """
    batched_clients: bool = False
    """Compute a round of clients with one class each as one pass over their rows
    (pipeline/execution/batched_executor.py): the same update up to float rounding, for methods that have it."""
    stack: int = 1
    """Clients of a round that one program trains at once (pipeline/training/stacked_training.py): the same updates up
    to float rounding, in less time where networks are small; 1: one by one; 0: as many as pay for this network on
    this processor. Needs ``cluster.executor = "serial"``."""
    batch_rows: int = 1024
    """Rows of one piece of such a pass; the pieces add up."""
    quorum: float = 0.5
    """Share of the selected clients that must answer, in (0, 1]; below it the run stops, its checkpoint kept."""
    retries: int = 1
    """Further attempts of a client that failed, in the same round, each time in a fresh process; then it is left
    out of the round."""
    deadline: float = 0.0
    """Seconds that a client's actor may take for its answer, the start of a fresh process included; then it is ended
    and counts as failed; 0: as long as it likes."""
    backup_fraction: float = 0.0
    """Stand-ins that are drawn beside the selected clients, as a share of these: where a client is left out, the next
    stand-in trains in its place."""
    aggregation: Aggregation = "mean"
    """Average of what clients send: ``mean``; or, so that a few faulty clients cannot steer it,
    ``median`` or ``trimmed_mean`` of every coordinate, or ``krum``, the mean of the ``krum_num_selected`` updates that
    are nearest to others (docs/robust-aggregation.md). Median and trimmed mean take no notice of numbers of samples."""
    trim_fraction: float = 0.2
    """``trimmed_mean``: share of the answers cut at each side of every coordinate, rounded down, in [0, 0.5)."""
    krum_num_malicious: int = 1
    """``krum``: number of faulty clients f in a round that it withstands; 2 f + 3 must answer."""
    krum_num_selected: int = 1
    """``krum``: updates that are kept; more than 1: Multi-Krum, up to answers - f - 2."""
    clip_norm: float = 0.0
    """Longest step of a client, the L2 norm of what it sends minus what it was sent; a longer one is cut to it before
    any merge; 0: off."""
    secure_aggregation: bool = False
    """The server learns the sum of the clients' updates and none of them (docs/secure-aggregation.md): each comes under
    masks that cancel in the sum, with the same bits. More than half of a round's clients must answer."""
    dp_noise: float = 0.0
    """Differential privacy of clients (docs/client-privacy.md): deviation of the Gaussian noise on the sum of their
    steps, in units of ``clip_norm``, which bounds them; 0: none."""
    dp_delta: float = 1e-5
    """Probability that is left out of its guarantee, in (0, 1); well below 1 / clients."""

    def __post_init__(self) -> None:
        for name in ("rounds", "epochs", "batch_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"federation.{name} = {getattr(self, name)}: must be at least 1")
        if self.clients_per_round < 0:
            raise ValueError(
                f"federation.clients_per_round = {self.clients_per_round}: must be at least 1, or 0 for all"
            )
        if not 0 <= self.client_fraction <= 1:
            raise ValueError(f"federation.client_fraction = {self.client_fraction}: must be in [0, 1]")
        if not 0 < self.quorum <= 1:
            raise ValueError(f"federation.quorum = {self.quorum}: must be in (0, 1]")
        for name in ("steps", "retries", "deadline", "backup_fraction", "stack"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"federation.{name} = {getattr(self, name)}: must be at least 0")
        if not 0 <= self.dp_noise < math.inf:
            raise ValueError(f"federation.dp_noise = {self.dp_noise}: must be 0 (off) or above, and finite")
        if 0 < self.dp_noise < LEAST_NOISE:
            raise ValueError(f"federation.dp_noise = {self.dp_noise:g}: must be 0 (off) or at least {LEAST_NOISE}")
        if not 0 < self.dp_delta < 1:
            raise ValueError(f"federation.dp_delta = {self.dp_delta}: must be in (0, 1)")
        if self.dp_noise:
            for name, bad, hint in (
                ("clip_norm", not self.clip_norm, "above 0, the longest step of a client"),
                ("aggregation", self.aggregation != "mean", "to 'mean'"),
                ("backup_fraction", bool(self.backup_fraction), "to 0: stand-ins are no random draw"),
            ):
                if bad:
                    raise ValueError(f"federation.dp_noise = {self.dp_noise:g}: set federation.{name} {hint}")
        if self.batched_clients and self.stack != 1:
            raise ValueError("federation.batched_clients trains all clients in one pass: leave federation.stack out")
        if self.steps and (self.batched_clients or self.stack != 1):
            option = "batched_clients" if self.batched_clients else "stack"
            raise ValueError(f"federation.{option} trains clients by whole epochs: leave federation.steps out")
        if self.secure_aggregation:
            for name, bad, hint in (
                ("aggregation", self.aggregation != "mean", "to 'mean': any other looks at single updates"),
                ("batched_clients", self.batched_clients, "to False: it makes no updates"),
                ("backup_fraction", bool(self.backup_fraction), "to 0: stand-ins that are not asked count as lost"),
            ):
                if bad:
                    raise ValueError(f"federation.secure_aggregation: set federation.{name} {hint}")
        if self.selection == "poisson" and (self.aggregation != "mean" or self.secure_aggregation):
            option = "secure_aggregation" if self.secure_aggregation else f"aggregation = {self.aggregation!r}"
            raise ValueError(
                f"federation.{option}: a round of selection = 'poisson' may have too few clients for it: set"
                " federation.selection to 'fixed'"
            )
        uses = self.aggregator.uses
        if self.batched_clients and uses:
            raise ValueError(
                f"{uses[0][1]}: federation.batched_clients computes the mean of a round at once, without the clients'"
                " updates: set it to False, or aggregation to 'mean' and clip_norm to 0"
            )

    def selected(self, clients: int) -> int:
        """Return the number of clients that take part in a round, of so many."""
        if self.client_fraction:  # 0.29 * 100 is a little below 29
            return max(1, math.floor(round(self.client_fraction * clients, 9)))
        return self.clients_per_round or clients

    @property
    def aggregator(self) -> Aggregator:
        """The aggregation of updates; ValueError on bad options."""
        from anchorfl.pipeline.algorithm.aggregation import Aggregator  # torch, which reading options does without

        return Aggregator(
            aggregation=self.aggregation,
            trim_fraction=self.trim_fraction,
            num_malicious=self.krum_num_malicious,
            num_selected=self.krum_num_selected,
            clip_norm=self.clip_norm,
        )

    def client_privacy(self, clients: int) -> ClientPrivacy | None:
        """Return the noise on the mean of so many clients' federation; None for none."""
        if not self.dp_noise:
            return None
        from anchorfl.pipeline.algorithm.client_privacy import ClientPrivacy  # torch

        return ClientPrivacy(
            noise=self.dp_noise,
            clip=self.clip_norm,
            delta=self.dp_delta,
            population=clients,
            clients=self.selected(clients),
            poisson=self.selection == "poisson",
        )


def quorum_size(quorum: float, selected: int) -> int:
    """Return how many of the selected clients must answer: their share rounded up, at least one."""
    return max(1, math.ceil(quorum * selected - 1e-9))  # 0.28 of 25 are 7, though 0.28 * 25 is a little more
