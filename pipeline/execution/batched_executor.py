"""Thousands of clients with one class each as a few batched passes: the third executor.

Let client i have n_i rows, weight p_i in the mean and loss R_i = mean of l(g_theta(x), w_i). One plain SGD step of
every client from the same theta, averaged, is ``theta - eta grad sum_i p_i R_i``: the gradient of one weighted sum over
the distinct rows, in which a pair (x, y) has weight p_y / n_y. Row w_i is touched by client i alone and is not
averaged, so its step is ``eta / p_i`` times the gradient of that sum. The gradients of several passes add up.

This equals explicit clients, up to the order of float additions, where each takes exactly one step on all its rows with
plain SGD and keeps nothing, and no row of data influences another (no BatchNorm in training mode). With dropout the
draw differs: a row that several clients hold has one mask, not one per client, with the same expectation.

Shape suffixes: N distinct rows, B rows of a pass, P pairs (row, class) of it, C classes, I clients.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.class_embeddings import CLASS_ROWS, class_of, theta_of
from anchorfl.pipeline.algorithm.contract import BatchedRound, Tensors
from anchorfl.pipeline.algorithm.options import in_round
from anchorfl.pipeline.algorithm.parameters import load_sent
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import RoundOutcome
from anchorfl.pipeline.execution.executor import InProcess, OnProgress, runner_of, server_of
from anchorfl.pipeline.training.client import CPU, ClientRunner
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.distinct_rows import DistinctRows, collect_distinct_rows


@dataclass(frozen=True)
class BatchedStep:
    """The one step that every client takes."""

    batched_round: BatchedRound[Any]
    weight_C: Tensor
    """Weight of a class's client in the mean, 0 for those that do not take part."""
    rows_C: Tensor
    """Rows of data of a class's client, at least 1."""
    lr: float
    """Rate of theta."""
    weight_decay: float
    """Weight decay of theta."""
    class_embedding_lr: float
    """Rate of the class embeddings; 0: they stay."""
    rows_per_pass: int
    """Rows of data that go through the network at a time."""


def batched_step(model: Classifier, weights: Tensors, pool: DistinctRows, step: BatchedStep) -> tuple[Tensors, Tensor]:
    """Return the clients' weights after one step from ``weights``, and each client's loss before it.

    Weights: the mean of the clients' theta, and all their class embeddings. Losses: float64 [C] in order of classes.
    pool: its holders are classes. ``model`` is a work-space.
    """
    load_sent(model, weights)
    model.train().requires_grad_(True).zero_grad(set_to_none=True)
    rows_CD = model.get_parameter(CLASS_ROWS)
    pair_C = (step.weight_C / step.rows_C).to(rows_CD)
    device = rows_CD.device
    loss_C = torch.zeros(len(rows_CD), dtype=torch.float64)
    taking_C = (step.weight_C > 0).numpy()
    active_N = np.flatnonzero(np.bincount(pool.holders.row_P[taking_C[pool.holders.class_P]], minlength=len(pool)))
    for start in range(0, len(active_N), step.rows_per_pass):
        index_B = active_N[start : start + step.rows_per_pass]
        holders = pool.holders.take(index_B)
        holders = holders.where(taking_C[holders.class_P])
        index_P, class_P = (torch.from_numpy(a).long().to(device) for a in (holders.row_P, holders.class_P))
        x = pool.inputs(index_B, device)
        z_BD = model.encoder(x.to(rows_CD) if x.is_floating_point() else x)  # token ids stay numbers of rows
        loss_P = step.batched_round.loss(z_BD[index_P], rows_CD[class_P])
        (pair_C[class_P] * loss_P).sum().backward()  # type: ignore[no-untyped-call]
        loss_C.index_add_(0, class_P.cpu(), loss_P.detach().double().cpu())
    return messages.to(_take_step(model, weights, step), CPU), loss_C / step.rows_C


@torch.no_grad()
def _take_step(model: Classifier, weights: Tensors, step: BatchedStep) -> Tensors:
    """Return theta and class embeddings after the step, from the gradients that the model holds."""
    out = dict(weights)
    for name, p in model.named_parameters():
        gradient = torch.zeros_like(p) if p.grad is None else p.grad  # it has no part in the loss
        if name != CLASS_ROWS:
            out[name] = p - step.lr * (gradient + step.weight_decay * p)
        elif step.class_embedding_lr:
            took_C = (step.weight_C > 0).to(p.device)
            rate_C1 = (step.class_embedding_lr / step.weight_C[step.weight_C > 0]).to(p)[:, None]
            out[name] = p.clone()
            out[name][took_C] = step.batched_round.unit(p[took_C] - rate_C1 * gradient[took_C])
    return out


class BatchedExecutor(InProcess):
    """Server and all clients in this process, a round at a time; clients keep nothing."""

    def __init__(self, run_spec: RunSpec, device: torch.device | None = None) -> None:
        """device: None for that of ``runner_of``. Raise InputError where a round is not one batched pass."""
        one_thread()
        runner = runner_of(run_spec) if device is None else ClientRunner(run_spec, device)
        self.batched_round = batched_round_of(run_spec, runner)
        self.server = server_of(run_spec, runner)
        self.run_spec, self.model, self.device, self.memories = run_spec, runner.model, runner.device, {}
        self.class_I = [class_of(card) for card in self.server.cards]
        classes = len(self.server.cards[0].identified_C)
        self.rows_C = torch.ones(classes, dtype=torch.int64)  # one that nobody has weighs 0, whatever stands here
        self.rows_C[self.class_I] = torch.tensor([card.num_examples for card in self.server.cards])
        self.pool = collect_distinct_rows(runner.prepared, self.class_I, classes)

    def round(
        self, round_: int, selected: Sequence[int], on_progress: OnProgress, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        began, experiment = time.perf_counter(), self.run_spec.experiment
        on_progress(len(selected), 0, 0)
        classes = [self.class_I[client] for client in selected]
        broadcast, state = self.server.broadcast(round_), self.server.state
        sent_alone = self.batched_round.client_message_bytes(state, torch.tensor(classes))
        self.model.reseed(torch_rng(experiment.seed, "pool", "round", round_, "dropout", device=self.device))
        optimizer = in_round(experiment.optimizer, round_)
        class_embedding_lr = self.batched_round.class_embedding_lr(round_)
        step = BatchedStep(
            self.batched_round, self._weights(classes), self.rows_C, optimizer.lr, optimizer.weight_decay,
            class_embedding_lr, experiment.federation.batch_rows,
        )  # fmt: skip
        weights, loss_C = batched_step(self.model, state.weights, self.pool, step)
        if wrong := messages.not_finite(weights):
            raise InputError(f"round {round_}: {wrong}; lower optimizer.lr or method.class_embedding_lr")
        answered_C = torch.zeros(len(self.rows_C), dtype=torch.bool)
        answered_C[classes] = True
        self.server.finish_round(round_, weights, answered_C)
        row_bytes = messages.nbytes(weights[CLASS_ROWS][0]) if class_embedding_lr else 0
        return RoundOutcome(
            tuple(selected),
            bytes_down=messages.nbytes(broadcast) * len(selected) + sent_alone,
            bytes_up=(messages.nbytes(theta_of(weights)) + row_bytes) * len(selected),
            loss=float(loss_C[classes].mean()),
            busy_seconds=time.perf_counter() - began,
            memory=system_metrics.peak("process"),
        )

    def _weights(self, classes: Sequence[int]) -> Tensor:
        """Return the weight of every class's client in the mean, float64 [C]."""
        weight_C = torch.zeros(len(self.rows_C), dtype=torch.float64)
        weight_C[classes] = self.batched_round.client_weights(self.rows_C[classes])
        return weight_C / weight_C.sum()


def batched_round_of(run_spec: RunSpec, runner: ClientRunner) -> BatchedRound[Any]:
    """Return the method's batched round. Raise InputError where its round, or the options, are not one pass."""
    experiment = run_spec.experiment
    batched_round = experiment.method.batched_round()
    if batched_round is None:
        raise InputError(
            f"federation.batched_clients: a round of {experiment.method.name} is not one pass over all rows: set it to"
            " False"
        )
    optimizer = experiment.optimizer
    largest = max(runner.prepared.manifest.examples)
    wrong = {
        "optimizer.name = 'sgd' (the mean of adaptive steps is not an adaptive step)": optimizer.name != "sgd",
        "optimizer.momentum = 0": optimizer.momentum != 0,
        "federation.epochs = 1 (one step from the same weights)": experiment.federation.epochs != 1,
        "optimizer.batch_size = 0 (a client's rows in one step)": 0 < optimizer.batch_size < largest,
        "a network without BatchNorm in training (model.norm = 'group' or 'frozen')": runner.model.couples_rows,
        "optimizer.crop = 0 and optimizer.flip = 'none' (a row is seen once by all its clients)": optimizer.augments,
    }
    needs = [what for what, is_wrong in wrong.items() if is_wrong]
    if needs:
        raise InputError(
            f"federation.batched_clients needs {'; '.join(needs)}; or set it to False, for explicit clients"
        )
    return batched_round
