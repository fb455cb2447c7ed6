"""A function in a fresh Python process. No torch here: the process imports this file, and what its function needs."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from anchorfl.tasks.errors import first_line

T = TypeVar("T")


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """Run ``function`` in a fresh Python process and return what it gives.

    Raises RuntimeError with one line where it gives nothing.
    """
    spawn = multiprocessing.get_context("spawn")
    reader, writer = spawn.Pipe(duplex=False)
    # As bytes: left to multiprocessing, torch would move tensors into shared memory, which counts as resident.
    call = pickle.dumps((function, arguments))
    process = spawn.Process(target=_answer, args=(writer, call), daemon=True)
    process.start()
    writer.close()
    try:
        good, content = pickle.loads(reader.recv_bytes())
    except EOFError:
        process.join()
        raise RuntimeError(exit_reason(process.exitcode or 0)) from None
    finally:
        process.kill()  # on an interrupt; one that has answered has nothing left to do
        process.join()
    if not good:
        raise RuntimeError(content)
    return content  # type: ignore[no-any-return]  # what ``function`` returned there


def _answer(pipe: Any, call: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both: the other end reports it, and ends this one
    function, arguments = pickle.loads(call)
    try:
        answer = (True, function(*arguments))
    except Exception as error:  # any fault of the measured code is the answer
        answer = (False, first_line(error, "no message"))
    pipe.send_bytes(pickle.dumps(answer))


def exit_reason(code: int) -> str:
    """Return the meaning of the exit code of a process that gave no answer."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    why = ", most often because memory ran out" if code == -signal.SIGKILL else ""
    return f"the process was ended by signal {signal.Signals(-code).name}{why}"
