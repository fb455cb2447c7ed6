"""Write deploy/requirements.lock: the lines of requirements.lock that running needs, without tools and documentation.

    python deploy/lock.py       # after requirements.lock was renewed, in the environment that it describes

It follows what the installed packages say that they need, from anchorfl with ``EXTRAS`` on, on Linux with any Python
that the project runs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
EXTRAS = ("aws", "dp", "hf", "plm", "postgres")
"""What presets, `ray up` and a shared MLflow need; the trackers are left out."""
PYTHONS = ("3.11", "3.12", "3.13")
HEAD = """\
# Exact versions of what running AnchorFL needs: the lines of ../requirements.lock without tools and documentation.
# Written by `python deploy/lock.py`; not to be edited.
"""


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of packages that a package with extras needs, directly or not. seen: (name, extra) so far."""
    new = {extra for extra in {"", *extras} if (name, extra) not in seen}
    seen |= {(name, extra) for extra in new}
    try:
        lines = requires(name) or []
    except PackageNotFoundError:  # not on this Python
        return
    for requirement in map(Requirement, lines):
        if _wanted(requirement, new):
            inner = canonicalize_name(requirement.name)
            yield inner
            yield from needed(inner, frozenset(requirement.extras), seen) if _unseen(inner, requirement, seen) else ()


def _wanted(requirement: Requirement, extras: set[str]) -> bool:
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}
    return requirement.marker is None or any(
        requirement.marker.evaluate(
            {**linux, "python_version": python, "python_full_version": f"{python}.9", "extra": extra}
        )
        for python in PYTHONS
        for extra in extras
    )


def _unseen(name: str, requirement: Requirement, seen: set[tuple[str, str]]) -> bool:
    return any((name, extra) not in seen for extra in {"", *requirement.extras})


def runtime_lines(lock: str) -> list[str]:
    """Return the lines of a lock that running needs, in its order."""
    names = set(needed("anchorfl", frozenset(EXTRAS), set()))
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    return [line for line in pins if canonicalize_name(line.partition("==")[0]) in names]


def text(lock: str) -> str:
    """Return the file for a lock."""
    return HEAD + "\n".join(runtime_lines(lock)) + "\n"


if __name__ == "__main__":
    (HERE / "requirements.lock").write_text(text((HERE.parent / "requirements.lock").read_text()))
