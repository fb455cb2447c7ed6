"""The digest of the code that reads a task's raw data: whoever edits a reader gets data prepared by the new one."""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from anchorfl.tasks.contract import Task


def reader_digest(task: Task) -> str:
    """Return the sha256 over the source files of a task's functions, and those beside them in their package.

    Not covered: code elsewhere, whose version is ``FORMAT`` in tasks/ingest/manifest.py, and functions without a file,
    such as those typed into an interpreter.
    """
    functions = (task.read, task.fit, task.encode, task.named_files)
    files = sorted({path for function in functions if function is not None for path in _sources(function)})
    digest = hashlib.sha256()
    for path in files:
        digest.update(repr((path.name, hashlib.sha256(path.read_bytes()).hexdigest())).encode())
    return digest.hexdigest()


def _sources(function: Any) -> list[Path]:
    """Return the source files of the package that holds a function, or of its module where that is in none."""
    while isinstance(function, partial):
        function = function.func
    module = sys.modules.get(function.__module__)
    if module is None or not getattr(module, "__file__", None):
        return []
    path = Path(str(module.__file__))
    return list(path.parent.glob("*.py")) if module.__package__ else [path]
