"""The promise of every parser about any input: it reads it, or says in one line what is wrong; soon, in bounded memory,
and with nothing left behind.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings

from anchorfl.models.errors import NamesError
from anchorfl.tasks.errors import InputError

CASES = os.environ.get("ANCHORFL_CASES", "")
FEW = 12
QUICK = settings(
    max_examples=int(CASES or FEW), deadline=None, derandomize=not CASES, database=None, report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example,
                           HealthCheck.function_scoped_fixture],
)  # fmt: skip
"""Cases of a parser: the same few each time, or with ANCHORFL_CASES so many new ones."""
SECONDS, WAIT = 10, 900
"""No case may take longer: seconds of computing, and by the clock (on a machine with other work)."""
HEADROOM = 3 << 29
"""Bytes of address space that a case may take beyond what the process has."""
LINE = 2000
"""Characters of the longest message."""
IGNORED = ("raw-digests", ".lock")
"""Files that are no output: what saves a second reading, and who holds a folder."""


class HangError(BaseException):
    """A case that took too long; no Exception, so that no parser can catch it."""


@dataclass
class Tally:
    """The cases of a parser by outcome; seconds of computing."""

    cases: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


TALLIES: dict[str, Tally] = {}
"""By parser, for the closing summary (conftest.py)."""


def keep(parser: str, read: Callable[[], object], watched: Path | None = None, names: tuple[str, ...] = ()) -> str:
    """Check the promise for one input: the line that refused it, or "" where it was read.

    watched: a folder in which a refused input may leave nothing new; names: one of them stands in the line.
    """
    before, ignored = listing(watched), list[object]()
    tally, began = TALLIES.setdefault(parser, Tally()), time.process_time()
    tally.cases += 1
    said = ""
    try:
        with limits(), unraisable(ignored):
            read()
        tally.read += 1
    except (InputError, NamesError) as error:
        said = str(InputError(str(error)))
        tally.refused += 1
    finally:
        took = time.process_time() - began
        tally.seconds += took
        tally.slowest = max(tally.slowest, took)
    assert not ignored, f"an exception in a callback was ignored: {ignored[0]}"
    if said:
        assert said.isprintable(), f"not one line of text: {said[:300]!r}"
        assert len(said) < LINE, f"a line of {len(said)} characters: {said[:300]}"
        assert not names or any(name in said for name in names), f"no file is named: {said[:300]!r}"
        assert listing(watched) == before, f"left behind: {listing(watched) - before}"
    return said


def listing(folder: Path | None) -> set[tuple[str, int]]:
    """Return every file below a folder with its size, but those that are no output."""
    if folder is None:
        return set()
    found = (path for path in folder.rglob("*") if path.is_file() and not set(path.parts) & {*IGNORED})
    return {(str(path), path.stat().st_size) for path in found}


@contextmanager
def limits() -> Iterator[None]:
    """End the block after some time and beyond some memory."""

    def late(number: int, frame: object) -> None:
        raise HangError(f"no answer within {SECONDS} s of computing" if number == signal.SIGPROF else "no answer")

    clocks = ((signal.SIGPROF, signal.ITIMER_PROF, SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, WAIT))
    old = {number: signal.signal(number, late) for number, _, _ in clocks}
    for _, clock, seconds in clocks:
        signal.setitimer(clock, seconds)
    faulthandler.dump_traceback_later(2 * WAIT, exit=True, file=sys.__stderr__)  # stuck where no signal arrives
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        faulthandler.cancel_dump_traceback_later()
        for number, clock, _ in clocks:
            signal.setitimer(clock, 0)
            signal.signal(number, old[number])


@contextmanager
def unraisable(found: list[object]) -> Iterator[None]:
    """Collect the block's exceptions in callbacks, which C code can only print."""
    old = sys.unraisablehook
    sys.unraisablehook = lambda what: found.append(f"{what.exc_type.__name__}: {what.exc_value}")
    try:
        yield
    finally:
        sys.unraisablehook = old


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
