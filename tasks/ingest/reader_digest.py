"""The digest of the code that reads a task's raw data: whoever edits a reader gets data prepared by the new one."""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from anchorfl.tasks.contract import Task
from anchorfl.tasks.plugins import typed_source


def reader_digest(task: Task) -> str:
    """Return the sha256 over the source files of a task's functions, and those beside them in their package; of a
    plug-in all files of its package, or its module and those that this imports from its folder.

    Of functions typed into a notebook: ``typed_source``. Not covered: code elsewhere, whose version is ``FORMAT`` in
    tasks/ingest/manifest.py.
    """
    functions = (task.read, task.fit, task.encode, task.named_files)
    given = [_unwrapped(function) for function in functions if function is not None]
    files = sorted({path for function in given for path in _sources(function)})
    digest = hashlib.sha256()
    for path in files:
        digest.update(repr((path.name, hashlib.sha256(path.read_bytes()).hexdigest())).encode())
    for function in given:
        if function.__module__ == "__main__" and not getattr(sys.modules["__main__"], "__file__", None):
            digest.update(typed_source(function).encode())
    return digest.hexdigest()


def _unwrapped(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _sources(function: Any) -> list[Path]:
    """Return the source files that a function's module is held to go by."""
    module = sys.modules.get(function.__module__)
    if module is None or not getattr(module, "__file__", None):
        return []
    path = Path(str(module.__file__))
    if not module.__package__:
        return [*_imported(path)]
    top = module.__package__.partition(".")[0]
    own = top == __package__.partition(".")[0] or not getattr(sys.modules.get(top), "__path__", None)
    folders = [path.parent] if own else [Path(folder) for folder in sys.modules[top].__path__]
    return [found for folder in folders for found in (folder.glob("*.py") if own else folder.rglob("*.py"))]


def _imported(path: Path) -> set[Path]:
    """Return a module's file, and the files in its folder that it imports, and these, and so on."""
    found, left = set[Path](), [path]
    while left:
        here = left.pop()
        if here in found or not here.is_file():
            continue
        found.add(here)
        try:
            tree = ast.parse(here.read_bytes())
        except (SyntaxError, ValueError):  # only named, and never imported: it imports nothing
            continue
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            left += [path.parent / f"{name.partition('.')[0]}.py" for name in names]
    return found
