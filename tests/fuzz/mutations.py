"""Hostile versions of valid files, as hypothesis strategies: bytes, lines, fields, JSON values, wrong encodings and
wrong compression. Every change is a pure function of the file and of what was drawn, so that a failing case can be
written down.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

PLACE = st.integers(0, 2**31)
"""A place in a file, whatever its size: taken modulo the number of places."""
DEEP = 100_000
"""Brackets within brackets: far more than any parser that calls itself can follow."""
TOKENS = (
    "", "0", "-1", "nan", "NaN", "inf", "-Infinity", "1e400", "-0.0", "1e-320", "0x10", "1_000", "9" * 19, "9" * 400,
    "-" + "9" * 5000, "2147483648", "4294967297", "true", "null", "?", "%", "{0,1}", "'", '"', '""', "''", "\\", ",",
    ";", ":", "\t", " ", "\x00", "\x1b[2J", "\ufeff", "\u2028", "\u0661", "é", "\U0001f4a9", "../../../etc/passwd",
    "a" * 70_000, "[" * 2000, "{" * 2000, "<!DOCTYPE a [<!ENTITY b 'b'>]>", "&b;", "@data", "=", "#", "%s%n", "\r",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "x",
    "nan", "0", "../../x", "\x00", "\x1b[2J", "\ud800", "a\nb", "y" * 5000, [], {}, [[]], [None], [1.5, "x"],
    {"": None}, {"a": {"a": {}}}, [[[[[[]]]]]],
)  # fmt: skip
"""What no field expects, as JSON has it."""
_FIELD = re.compile(rb"[A-Za-z0-9_.+-]+")
Change = Callable[[bytes], bytes]


def _at(place: int, size: int) -> int:
    return place % max(1, size)


def flip(place: int, byte: int) -> Change:
    def change(data: bytes) -> bytes:
        at = _at(place, len(data))
        return data[:at] + bytes([data[at] ^ (byte or 1)]) + data[at + 1 :] if data else bytes([byte])

    return change


def cut(place: int) -> Change:
    return lambda data: data[: _at(place, len(data))]


def drop(place: int, length: int) -> Change:
    return lambda data: data[: _at(place, len(data))] + data[_at(place, len(data)) + length :]


def repeat(place: int, length: int) -> Change:
    def change(data: bytes) -> bytes:
        at = _at(place, len(data))
        return data[: at + length] + data[at:]

    return change


def insert(place: int, what: bytes) -> Change:
    return lambda data: data[: _at(place, len(data))] + what + data[_at(place, len(data)) :]


def field(place: int, token: str) -> Change:
    """Replace a word or number."""

    def change(data: bytes) -> bytes:
        found = list(_FIELD.finditer(data[: 1 << 20]))
        if not found:
            return data + token.encode()
        here = found[_at(place, len(found))]
        return data[: here.start()] + token.encode() + data[here.end() :]

    return change


def line(place: int, how: str) -> Change:
    """Leave out a line, repeat it, move it to the end, empty it, or drop its last field."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True) or [b""]
        at = _at(place, len(lines))
        own = lines[at]
        new = {
            "drop": [], "twice": [own, own], "empty": [b"\n"], "join": [own.rstrip(b"\r\n")],
            "short": [re.sub(rb"[^,\s:]*(\r?\n?)$", rb"\1", own)], "move": [],
        }[how]  # fmt: skip
        return b"".join([*lines[:at], *new, *lines[at + 1 :], *([own] if how == "move" else [])])

    return change


def whole(how: str) -> Change:
    """Change the encoding or packing of the whole file."""

    def change(data: bytes) -> bytes:
        return {
            "empty": lambda: b"",
            "newline": lambda: b"\n",
            "bom": lambda: b"\xef\xbb\xbf" + data,
            "crlf": lambda: data.replace(b"\n", b"\r\n"),
            "cr": lambda: data.replace(b"\n", b"\r"),
            "utf16": lambda: data.decode("latin-1").encode("utf-16"),
            "latin": lambda: data.replace(b"e", b"\xe9"),
            "gzip": lambda: gzip.compress(data, 1, mtime=0),
            "zlib": lambda: zlib.compress(data, 1),
            "zeros": lambda: bytes(len(data)),
            "nul end": lambda: data + bytes(100),
            "twice": lambda: data + data,
            "one line": lambda: data.replace(b"\n", b" "),
            "no newline": lambda: data.rstrip(b"\n"),
            "deep list": lambda: b"[" * DEEP,
            "deep object": lambda: b'{"a":' * DEEP,
        }[how]()

    return change


WHOLE = ("empty", "newline", "bom", "crlf", "cr", "utf16", "latin", "gzip", "zlib", "zeros", "nul end", "twice",
         "one line", "no newline", "deep list", "deep object")  # fmt: skip


def bytewise() -> st.SearchStrategy[Change]:
    """Any one change that knows nothing of a format."""
    length = st.sampled_from((1, 2, 7, 64, 1000))
    return st.one_of(
        st.builds(flip, PLACE, st.integers(0, 255)),
        st.builds(cut, PLACE),
        st.builds(drop, PLACE, length),
        st.builds(repeat, PLACE, length),
        st.builds(insert, PLACE, st.binary(max_size=9)),
        st.builds(insert, PLACE, st.sampled_from(TOKENS).map(str.encode)),
        st.builds(field, PLACE, st.sampled_from(TOKENS)),
        st.builds(field, PLACE, st.sampled_from(TOKENS)),
        st.builds(field, PLACE, st.text(max_size=8)),
        st.builds(line, PLACE, st.sampled_from(("drop", "twice", "empty", "join", "short", "move"))),
        st.builds(whole, st.sampled_from(WHOLE)),
    )


def _replaced(tree: Any, places: list[int], value: Any, how: str) -> Any:
    """``tree`` with a node on the way that ``places`` says replaced, left out, or there under another name."""
    if not places or not isinstance(tree, dict | list) or not tree:
        return value
    if isinstance(tree, list):
        at, out = _at(places[0], len(tree)), list(tree)
        if len(places) > 1 or how == "replace":
            out[at] = _replaced(tree[at], places[1:], value, how)
        elif how == "drop":
            del out[at]
        else:
            out.insert(at, value)
        return out
    key = list(tree)[_at(places[0], len(tree))]
    if len(places) > 1 or how == "replace":
        return tree | {key: _replaced(tree[key], places[1:], value, how)}
    rest = {k: v for k, v in tree.items() if k != key}
    return rest if how == "drop" else rest | {f"{key}x": value}


def jsonwise() -> st.SearchStrategy[Change]:
    """Change a value inside a JSON text, or inside a JSON line of several."""

    def make(place: int, places: list[int], value: Any, how: str) -> Change:
        def change(data: bytes) -> bytes:
            lines = data.splitlines()
            try:
                return json.dumps(_replaced(json.loads(data), places, value, how)).encode()
            except ValueError:
                if not lines:
                    return json.dumps(value).encode()
            at = _at(place, len(lines))
            try:
                lines[at] = json.dumps(_replaced(json.loads(lines[at]), places, value, how)).encode()
            except ValueError:
                lines[at] = json.dumps(value).encode()
            return b"\n".join(lines) + b"\n"

        return change

    places = st.lists(PLACE, min_size=1, max_size=6)
    return st.builds(make, PLACE, places, st.sampled_from(VALUES), st.sampled_from(("replace", "drop", "add")))


def headwise() -> st.SearchStrategy[Change]:
    """Change a value in the header of a safetensors file, or the length before it."""

    def make(inner: Change, length: int | None) -> Change:
        def change(data: bytes) -> bytes:
            size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
            head = inner(data[8 : 8 + size])
            return struct.pack("<Q", len(head) if length is None else length) + head + data[8 + size :]

        return change

    lengths = st.sampled_from((None, None, None, 0, 1, 2**40, 2**63, 2**64 - 1))
    return st.builds(make, st.one_of(jsonwise(), bytewise()), lengths)


def within_gzip(inner: st.SearchStrategy[Change]) -> st.SearchStrategy[Change]:
    """Do the same to what a gzip file holds."""
    return inner.map(lambda change: lambda data: gzip.compress(change(gzip.decompress(data)), 1, mtime=0))


def changes(name: str) -> st.SearchStrategy[list[Change]]:
    """Draw one change or a few to a file of that name."""
    one = bytewise()
    if name.endswith((".json", ".jsonl", ".json.gz")):
        one = st.one_of(jsonwise(), jsonwise(), one)
    if name.endswith(".safetensors"):
        one = st.one_of(headwise(), one)
    if name.endswith(".gz"):
        one = st.one_of(within_gzip(one), within_gzip(one), bytewise())
    return st.lists(one, min_size=1, max_size=3)


def changed(data: bytes, some: list[Change]) -> bytes:
    """Apply all changes in order; leave out one that no longer fits (a gzip file that is none any more)."""
    for change in some:
        try:
            data = change(data)
        except (OSError, EOFError, ValueError, zlib.error, struct.error, RecursionError):
            continue
    return data
