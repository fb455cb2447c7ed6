"""A parser under test: how to write valid input for it, how to read that, and the check of changed input."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.mutations import changed, changes
from tests.fuzz.promise import keep
from tests.fuzz.runs import settle


@dataclass(frozen=True)
class Parser:
    """write: valid files into a folder; read: what is in a folder, with another folder for what is made of it; files:
    patterns of those that are changed; mend: brings other files in line with a changed one (a checksum).
    """

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path, Path], object]
    files: tuple[str, ...] = ("*",)
    hint: Callable[[Path, Path], None] | None = None
    leaves: bool = False
    """What was good of a refused input may stay: a copy that is fetched part by part goes on where it stopped."""


class Bench:
    """Valid files of a parser in a folder of their own, one of which is replaced at a time."""

    def __init__(self, parser: Parser, folder: Path) -> None:
        self.parser, self.inputs, self.made = parser, folder / "inputs", folder / "made"
        self.inputs.mkdir()
        self.made.mkdir()
        parser.write(self.inputs)
        settle(self.inputs)
        self.valid = {path: path.read_bytes() for path in sorted(self.inputs.rglob("*")) if path.is_file()}
        named = [path for path in self.valid if any(fnmatch(path.name, pattern) for pattern in parser.files)]
        # one or two files of a kind: hundreds of images are not more than one
        kinds: dict[tuple[str, str], list[Path]] = {}
        for path in named:
            kinds.setdefault((path.parent.name if path.suffix != ".jpg" else "", path.suffix), []).append(path)
        self.targets = [path for some in kinds.values() for path in some[:3]]
        assert self.targets
        for _ in range(2):  # without limits: libraries are imported and data prepared that later cases find
            parser.read(self.inputs, self.made)
            self.restore()

    def case(self) -> st.SearchStrategy[tuple[Path, list[Callable[[bytes], bytes]]]]:
        """Draw a file and what is done to it."""
        return st.sampled_from(self.targets).flatmap(lambda path: st.tuples(st.just(path), changes(path.name)))

    def check(self, path: Path, data: bytes | None) -> str:
        """Check the promise with ``data`` in place of a file (None: without it); return the refusal, or ""."""
        try:
            path.unlink() if data is None else path.write_bytes(data)
            if self.parser.hint is not None:
                self.parser.hint(self.inputs, path)
            made = None if self.parser.leaves else self.made
            names = (path.name, str(self.inputs), self.parser.name, "[task]", "task.")
            return keep(self.parser.name, lambda: self.parser.read(self.inputs, self.made), made, names)
        except BaseException as error:
            error.add_note(f"{path.name}: {self._kept(path, data)}")
            raise
        finally:
            self.restore()

    def _kept(self, path: Path, data: bytes | None) -> str:
        """Keep a failing input where that is asked for; return how it begins."""
        folder = os.environ.get("ANCHORFL_FINDINGS", "")
        if folder and data is not None:
            place = Path(folder) / self.parser.name
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{hashlib.sha256(data).hexdigest()[:8]}-{path.name}").write_bytes(data)
        return f"{data[:200]!r} ({len(data)} bytes)" if data is not None else "missing"

    def restore(self) -> None:
        """Restore all valid files, and nothing else."""
        for path in self.inputs.rglob("*"):
            if path.is_file() and path not in self.valid:
                path.unlink()
        for path, data in self.valid.items():
            if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        shutil.rmtree(self.made)
        self.made.mkdir()

    def check_changed(self, drawn: tuple[Path, list[Callable[[bytes], bytes]]]) -> None:
        """Check the promise for a case of ``case``."""
        path, some = drawn
        self.check(path, changed(self.valid[path], some))
