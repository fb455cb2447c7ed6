"""Work that gives way now and then, some of it at a time: clients of a round whose steps overlap on one GPU.

One small network leaves most of a GPU idle. Here several clients train in turn, a step each, every one on a network and
a stream of its own (a lane), so what they launch runs at once. No client's numbers depend on the others: the bits are
those that it has alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")
Work = Callable[[int], Generator[None, None, T]]
"""(lane) -> the work in that lane, which yields where other work may go on, and returns its result."""


def returned(steps: Generator[None, None, T]) -> T:
    """Do a work without others; return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            out: T = end.value
            return out


class Lanes:
    """Lanes for so many works at a time; fewer once their memory was too small."""

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, works: Iterable[Work[T]]) -> Iterator[T | Exception]:
        """Do works; yield what each returns or raises, in their order. A work is asked for, and begins, when a lane is
        free. One that is out of memory beside others begins anew without them.
        """
        waiting, alone = enumerate(works), deque[tuple[int, Work[T]]]()
        running = dict[int, tuple[int, Work[T], Generator[None, None, T]]]()
        done, yielded = dict[int, T | Exception](), 0
        while True:
            if alone and not running:
                place, work = alone.popleft()
                try:
                    done[place] = returned(work(0))
                except Exception as error:  # as below
                    done[place] = error
            for lane in range(self.count):
                if not alone and lane not in running and (following := next(waiting, None)) is not None:
                    place, work = following
                    running[lane] = place, work, work(lane)
            if not (running or done):
                return
            others = len(running) > 1
            for lane, (place, work, steps) in list(running.items()):
                try:
                    next(steps)
                    continue
                except StopIteration as end:
                    done[place] = end.value
                except Exception as error:  # whose fault it is, the caller knows
                    if others and isinstance(error, torch.OutOfMemoryError):
                        alone.append((place, work))
                        self.count = max(1, self.count // 2)
                    else:
                        done[place] = error
                del running[lane]
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1
