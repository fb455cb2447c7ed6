"""Steps of local training as CUDA graphs: what a step launches is recorded once, and from then on launched as one.

A step of a small network is some hundred kernels of a few microseconds each; a processor takes longer to launch them
than a GPU to run them. The same kernels run in the same order on the same numbers, so the weights are the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import ClientTrainer
from anchorfl.tasks.contract import Batch

PLAIN_STEPS = 2
"""Steps of one shape before it is recorded: the first ones make the optimizer's state and choose algorithms. Recording
takes about as long as two more."""
Step = Callable[[Sequence[Batch]], Tensor]


@cache
def _stream_and_pool(device: torch.device, lane: int) -> tuple[torch.cuda.Stream, Any, torch.cuda.CUDAGraph]:
    """Return a lane's stream for recording, and the memory of what is recorded. A graph of one kernel holds that
    memory, which else would be given back and asked for again with every client.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool, holder = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        holder.capture_begin(pool=pool)
        torch.zeros(1, device=device)
        holder.capture_end()
    return stream, pool, holder


@contextmanager
def side_stream(device: torch.device, lane: int) -> Iterator[torch.cuda.Stream]:
    """Give a lane's stream, which waits for what was launched before the block, and is waited for behind it: what runs
    on the default stream cannot be recorded, nor run beside what other lanes do.
    """
    stream, outside = _stream_and_pool(device, lane)[0], torch.cuda.current_stream(device)
    stream.wait_stream(outside)
    try:
        yield stream
    finally:
        outside.wait_stream(stream)


@dataclass(frozen=True)
class _Recorded:
    """A step that was recorded, to be taken with other batches of its shapes."""

    graph: torch.cuda.CUDAGraph
    micro_batches: Sequence[Batch]
    """Those that the graph reads."""
    loss: Tensor

    def __call__(self, micro_batches: Sequence[Batch]) -> Tensor:
        for mine, other in zip(self.micro_batches, micro_batches, strict=True):
            for to, of in zip(_tensors(mine), _tensors(other), strict=True):
                to.copy_(of)
        self.graph.replay()
        return self.loss.clone()


class Replay:
    """A trainer's ``step`` that records itself where its batches come in the same shapes again."""

    def __init__(self, trainer: ClientTrainer[Any, Any], lane: int = 0) -> None:
        self.trainer, self.lane = trainer, lane
        self.seen = Counter[Hashable]()
        self.recorded: dict[Hashable, _Recorded] = {}

    def __call__(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Take one step, as ``ClientTrainer.step``."""
        key = self.trainer.phase, *((*(t.shape for t in _tensors(b)), b.denominator) for b in micro_batches)
        if key not in self.recorded:
            self.seen[key] += 1
            if self.seen[key] <= PLAIN_STEPS or not micro_batches:
                return self.trainer.step(micro_batches)
            self.recorded[key] = self._record(micro_batches)
        return self.recorded[key](micro_batches)

    def _record(self, micro_batches: Sequence[Batch]) -> _Recorded:
        copies = [replace(b, **{n: getattr(b, n).clone() for n in _FIELDS}) for b in micro_batches]
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.trainer.model.masks.generator)
        # torch.cuda.graph also collects garbage and frees cached memory, which takes longer than the recording
        graph.capture_begin(pool=_stream_and_pool(copies[0].x.device, self.lane)[1])
        try:
            loss = self.trainer.step(copies)
        except BaseException:
            with suppress(RuntimeError):  # what broke the recording matters, not that it was broken
                graph.capture_end()
            raise
        graph.capture_end()
        return _Recorded(graph, copies, loss)


_FIELDS = ("x", "y_BC", "known_BC", "weight_BC", "index_B")


def _tensors(batch: Batch) -> Iterator[Tensor]:
    return (getattr(batch, name) for name in _FIELDS)
