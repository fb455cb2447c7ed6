"""A CSV file that ends within quotes: everything after the quote that is not closed would be one cell, unnoticed."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.decompression import CheckedStream

QUOTE = b'"'


class QuoteCheckedStream(CheckedStream):
    """A stream that follows quotes as Arrow does: one opens at the beginning of a cell only, two within a quoted cell
    are a mark (``5" pipe`` is a cell as any other).
    """

    def __init__(self, path: Path, stream: Any, delimiter: str) -> None:
        super().__init__(path, stream)
        ends = rf"\r\n{re.escape(delimiter)}".encode()
        self._opens = re.compile(b"[" + ends + b']"')
        self._ends = tuple(bytes([end]) for end in b"\r\n" + delimiter.encode())
        self._inside = self._closing = False
        self._begins, self._line = True, 1

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises InputError, at the end also where a quote is open."""
        before = self.lines
        data = super().read(size)
        if data:
            self._follow(data.removeprefix(codecs.BOM_UTF8) if self.size == len(data) else data, before + 1)
        elif self._inside:
            msg = f"{self._path}: the quote that opens a cell in line {self._line} is never closed, so that the rest of"
            raise InputError(f"{msg} the file would be that cell; close it, or get the file again if it is cut short")
        return data

    def _follow(self, data: bytes, line: int) -> None:
        """Follow the quotes of ``data``. line: the number of the line in which it begins."""
        at, opened = 0, -1
        if self._closing and data.startswith(QUOTE):  # two marks, one at the end of what was read before
            self._inside, at = True, 1
        self._closing = False
        while at < len(data):
            if self._inside:
                end = data.find(QUOTE, at)
                if end < 0:
                    break
                if data.startswith(QUOTE, end + 1):
                    at = end + 2
                    continue
                self._inside, self._begins, at = False, False, end + 1
                self._closing = at == len(data)
            elif self._begins and data.startswith(QUOTE, at):
                opened, self._inside, at = at, True, at + 1
            else:
                match = self._opens.search(data, at)
                if match is None:
                    break
                self._begins, at = True, match.end() - 1
        if opened >= 0:
            self._line = line + data.count(b"\n", 0, opened)
        self._begins = not self._inside and data.endswith(self._ends)
