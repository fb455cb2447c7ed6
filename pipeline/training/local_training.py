"""Local training: one client, one round, as a pure function of (broadcast, memory, round, seed). Plain torch, no Ray.

Three savings with the same mathematics (docs/adr/0006): rows whose loss and gradient are zero are not computed, a
mini-batch is sorted by length and cut into pieces whose gradients add up, dropout masks come from a table.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import torch
from torch import Tensor

from anchorfl.models.augment import augment
from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientTrainer, Method, S, Tensors, U, Update, given
from anchorfl.pipeline.algorithm.options import OptimizerOptions, in_round
from anchorfl.pipeline.algorithm.parameters import load_sent, parts_of, set_training
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.training.cuda_graphs import Replay, Step, side_stream
from anchorfl.pipeline.training.errors import UpdateError
from anchorfl.pipeline.training.side_by_side import returned
from anchorfl.tasks.contract import Batch, Card, ClientData, Objective
from anchorfl.tasks.errors import InputError

INFERENCE_POSITIONS = 1024
SPARSE_FACTOR = 64
"""So many times more positions in one pass where they are features of sparse rows: the time is in the layers behind."""
GPU_FACTOR = 64
"""So many times more positions in one pass on a GPU, which a pass of 1,024 leaves idle: it has no cache to stay in."""
INFERENCE_ROWS, INFERENCE_VALUES = 512, 512 * 3 * 28 * 28
"""Rows without a length, and values of images, in one pass at most. ResNet-18 takes half a gigabyte for 512 images of
28 pixels a side, and would take 2.6 for 512 of 64."""
Augmentation = Callable[[Tensor], Tensor]
"""A change of a batch's stored inputs."""


@dataclass(frozen=True)
class TrainingSpec:
    """The part of a run that is the same for every client and round."""

    method: Method[Any, Any]
    objective: Objective
    optimizer: OptimizerOptions
    epochs: int
    seed: int
    steps: int = 0
    """In place of epochs; 0: ``epochs`` says."""


@dataclass(frozen=True)
class FitResult(Generic[U]):
    """Result of one client's local training in one round."""

    update: U
    memory: Tensors
    """State that the client keeps for the next round; {} where the method keeps nothing."""
    loss: float
    """Mean over the mini-batches of the last epoch."""
    seconds: float
    """Wall time."""


def fit(
    training: TrainingSpec,
    model: Classifier,
    card: Card,
    data: ClientData,
    broadcast: S,
    memory: Tensors,
    round_: int,
    client_message: Tensors | None = None,
) -> FitResult[Any]:
    """Train client ``card.client`` in round ``round_``. Pure: of the arguments only ``model`` changes, a work-space.

    Raises UpdateError where the update cannot be merged.
    """
    began = time.perf_counter()
    fitting = begin_fit(training, model, card, data, broadcast, memory, round_, client_message)
    return end_fit(fitting.trainer, returned(local_steps(training, fitting)), began)


@dataclass(frozen=True)
class Fitting:
    """A client that is ready for its first local step."""

    trainer: ClientTrainer[Any, Any]
    order_rng: torch.Generator
    """Draws the order of the rows, epoch by epoch."""
    mask_rng: torch.Generator
    """Draws dropout masks, on the device of the weights."""
    change: Augmentation | None


def begin_fit(
    training: TrainingSpec,
    model: Classifier,
    card: Card,
    data: ClientData,
    broadcast: S,
    memory: Tensors,
    round_: int,
    client_message: Tensors | None = None,
) -> Fitting:
    """Return a client that has loaded what it was sent. Arguments and errors as ``fit``."""
    client, seed = card.client, training.seed
    if not len(data):
        raise UpdateError(f"client {client} has no training rows")
    load_sent(model, broadcast.weights)
    set_training(model)
    device = parts_of(model)[1][0].device
    ctx = ClientContext(
        model, broadcast, card, data, memory, training.objective, in_round(training.optimizer, round_), infer,
        torch_rng(seed, "client", client, "round", round_, "method"), client_message or {}, round_,
    )  # fmt: skip
    trainer = training.method.trainer(ctx)
    given(trainer, ClientTrainer, "trainer", training.method)
    return Fitting(
        trainer,
        torch_rng(seed, "client", client, "round", round_, "order"),
        torch_rng(seed, "client", client, "round", round_, "dropout", device=device),
        augmentation(training.optimizer, torch_rng(seed, "client", client, "round", round_, "augment")),
    )


def local_steps(training: TrainingSpec, fitting: Fitting, lane: int = 0) -> Generator[None, None, float]:
    """Take all local steps of a client, and give way after each; return the mean loss of the last epoch.

    lane: of a GPU, where its steps run beside those of other lanes, on networks of their own.
    """
    trainer, device = fitting.trainer, fitting.mask_rng.device
    trainer.model.reseed(fitting.mask_rng)
    if device.type != "cuda":
        return (yield from _epochs(trainer, trainer.step, training, fitting))
    if not (trainer.replayable and trainer.model.replayable):  # all on one stream, where nothing would overlap
        return returned(_epochs(trainer, trainer.step, training, fitting))
    epochs = _epochs(trainer, Replay(trainer, lane), training, fitting)
    with side_stream(device, lane) as stream:
        while True:
            with torch.cuda.stream(stream):
                try:
                    next(epochs)
                except StopIteration as end:
                    loss: float = end.value
                    return loss
            yield


def end_fit(trainer: ClientTrainer[Any, Any], loss: float, began: float) -> FitResult[Any]:
    """Return the result of a client that has trained. loss, began: of the last epoch; of the clock.

    Raises UpdateError where the update cannot be merged, TypeError where the client would keep anything but tensors.
    """
    ctx, update = trainer.ctx, trainer.update()
    given(update, Update, "update", trainer)
    if fault := messages.shape_mismatch(update.weights, ctx.state.weights) or messages.not_finite(update):
        raise UpdateError(f"client {ctx.card.client}, round {ctx.round}: {fault}")
    memory = trainer.memory()
    for name, value in memory.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"memory() of {type(trainer).__name__}: {name!r} is of the type {type(value).__name__}, and no tensor"
            )
    return FitResult(update, memory, loss, time.perf_counter() - began)


def augmentation(options: OptimizerOptions, rng: torch.Generator) -> Augmentation | None:
    """Return the change of a mini-batch's images before they are trained on; None where there is none."""
    if not options.augments:
        return None
    horizontal, vertical = (options.flip in (way, "both") for way in ("horizontal", "vertical"))
    return partial(augment, rng=rng, padding=options.crop, horizontal=horizontal, vertical=vertical)


def _epochs(
    trainer: ClientTrainer[Any, Any], step: Step, training: TrainingSpec, fitting: Fitting
) -> Generator[None, None, float]:
    rows = trainer.data()
    losses, size, active_N = list[Tensor](), training.optimizer.batch_size or len(rows), None
    for epoch, _ in enumerate(trainer.epochs(training.steps or training.epochs)):  # an epoch has a step at least
        if epoch and trainer.refresh == "epoch":
            rows, active_N = trainer.data(), None
        if active_N is None:  # asked once: a GPU is waited for
            active_N = active_rows(trainer, rows)
        losses = []
        order_N = torch.randperm(len(rows), generator=fitting.order_rng)
        for index_B in batches(order_N, size, trainer.model.couples_rows):
            micro = micro_batches(rows, index_B, active_N, training.optimizer, trainer.model, fitting.change)
            losses.append(step(micro))
            trainer.steps += 1
            yield
            if trainer.steps == training.steps:
                return float(torch.stack(losses).mean())
    return float(torch.stack(losses).mean()) if losses else 0.0


def active_rows(trainer: ClientTrainer[Any, Any], rows: ClientData) -> Tensor:
    """Return which rows a trainer takes steps for, bool [N], on the CPU. InputError where it says anything else."""
    active_N = trainer.active(rows).cpu()
    if active_N.dtype != torch.bool or active_N.shape != (len(rows),):
        raise InputError(
            f"active() of {type(trainer).__name__} gives {active_N.dtype} of the shape {tuple(active_N.shape)}, and"
            f" has to give a bool for each of the {len(rows)} rows: mend the method"
        )
    return active_N


def batches(order_N: Tensor, size: int, couples_rows: bool) -> list[Tensor]:
    """Return mini-batches of ``size``, the last one smaller. A last one of a single row joins the one before it where
    the model couples rows: BatchNorm has no variance of one value.
    """
    parts = list(torch.split(order_N, size))
    if couples_rows and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def micro_batches(
    data: ClientData,
    index_B: Tensor,
    active_N: Tensor,
    options: OptimizerOptions,
    model: Classifier,
    change: Augmentation | None = None,
) -> list[Batch]:
    """Return a mini-batch as micro-batches whose losses, over the denominator of the whole, add up to its mean; maybe
    none. change: of its stored inputs.

    A model that couples rows (BatchNorm) needs them all at once: the savings would change its mathematics.
    """
    denominator = len(index_B)
    if (options.skip_zero_rows or options.microbatch_tokens) and model.couples_rows:
        raise ValueError(
            "this model normalizes over the batch, so rows may not be left out or cut apart:"
            " set --optimizer.skip_zero_rows False --optimizer.microbatch_tokens 0"
        )
    if options.skip_zero_rows:
        index_B = index_B[active_N[index_B]]
    if not len(index_B):
        return []
    if not options.microbatch_tokens or data.length_N is None:
        return [data.rows(index_B, denominator, change)]
    positions = options.microbatch_tokens * pass_factor(model, data.x.device)
    return [data.rows(part, denominator, change) for part in by_length(index_B, data.length_N, positions)]


def pass_factor(model: Classifier, device: torch.device) -> int:
    """Return how many times more positions than of a text on a CPU go into one pass."""
    return (SPARSE_FACTOR if model.looks_up else 1) * (1 if device.type == "cpu" else GPU_FACTOR)


def by_length(index_B: Tensor, length_N: Tensor, positions: int) -> Iterator[Tensor]:
    """Yield ``index_B`` sorted by length, cut so that rows x longest stays within ``positions``; at least one row."""
    length_B = length_N[index_B]
    order = torch.argsort(length_B, stable=True)
    index, lengths = index_B[order], length_B[order].tolist()
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or (end + 1 - start) * max(1, lengths[end]) > positions:
            yield index[start:end]
            start = end


@torch.no_grad()
def infer(model: Classifier, data: ClientData) -> Tensor:
    """Return representations z_ND of all rows by the encoder in evaluation mode, in the order of the rows."""
    was_training = model.training
    model.eval()
    index_N, device = torch.arange(len(data)), next(model.parameters()).device
    if data.length_N is None:
        rows = INFERENCE_VALUES // math.prod(data.x.shape[1:]) if data.x.dim() == 4 else INFERENCE_ROWS
        parts: list[Tensor] = list(torch.split(index_N, min(INFERENCE_ROWS, max(1, rows))))
    else:
        parts = list(by_length(index_N, data.length_N, INFERENCE_POSITIONS * pass_factor(model, device)))
    scaling = data.scaling.to(device)  # which the server's rows are not on
    z = torch.cat([model.encoder(scaling(data.stored(part).to(device))) for part in parts])
    model.train(was_training)
    out = torch.empty_like(z)
    out[torch.cat(parts).to(device, non_blocking=True)] = z
    return out
