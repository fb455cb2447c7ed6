"""The head of ARFF files, and Mulan's XML list of labels.

Understood: ``@attribute`` with plain or quoted names, which may hold an escaped apostrophe, numeric or nominal; not
text and date attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.raw_files import open_text

BINARY = ("0", "1")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|\S+)\s+(\{{.*\}}|\w+)", re.IGNORECASE)
_VALUE = re.compile(rf"{_QUOTED}|[^,\s][^,]*")
Line = tuple[int, str]
"""Number of a line from 1, and the text."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column."""

    name: str
    values: tuple[str, ...] = ()
    """Values of a nominal one, in the order of the file; empty where it is numeric."""

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers that the nominal values stand for."""
        if all(NUMBER.fullmatch(value) for value in self.values):
            return tuple(float(value) for value in self.values)
        return tuple(float(index) for index in range(len(self.values)))


def read_labels(path: Path, attributes: Sequence[Attribute]) -> list[int]:
    """Return the columns of the labels that Mulan's XML file names, in its order.

    Raises InputError where it is no XML, or a label is no attribute with the values 0 and 1, or stands twice.
    """
    labels = list[Line]()
    parser = expat.ParserCreate()

    def begin(tag: str, fields: dict[str, str]) -> None:
        if tag.rpartition(":")[2] == "label":
            labels.append((parser.CurrentLineNumber, fields.get("name", "")))

    parser.StartElementHandler = begin
    try:
        parser.Parse("\n".join(text for _, text in open_text(path)).encode(), True)
    except expat.ExpatError as error:
        raise InputError(f"{path}: this is no XML ({error}); get the file again") from error
    known, columns = {attribute.name: column for column, attribute in enumerate(attributes)}, dict[int, str]()
    for line, name in labels:
        if name not in known:
            raise InputError(
                f"{path}:{line}: label {name!r} is no attribute of the data{nearest(name, known)}; correct the name"
            )
        column = known[name]
        if column in columns or sum(attribute.name == name for attribute in attributes) > 1:
            raise InputError(
                f"{path}:{line}: label {name!r} stands twice, here or among the attributes; give each its own name"
            )
        if sorted(attributes[column].values) != list(BINARY):
            raise InputError(
                f"{path}:{line}: the attribute of label {name!r} must have the values {{0,1}}; correct the data"
            )
        columns[column] = name
    if not columns:
        raise InputError(f"{path}: it names no label; write <labels><label name='...'></label>...</labels>")
    return list(columns)


def read_attributes(path: Path, lines: Iterator[Line]) -> tuple[Attribute, ...]:
    """Return the attributes; the lines are read up to ``@data``."""
    attributes = list[Attribute]()
    for number, line in lines:
        word = line.strip().partition(" ")[0].partition("\t")[0].lower()
        if not word or word.startswith("%") or word == "@relation":
            continue
        if word == "@data":
            if attributes:
                return tuple(attributes)
            break
        match = _ATTRIBUTE.fullmatch(line.strip())
        if not match:
            raise InputError(
                f"{path}:{number}: write '@attribute name numeric' or '@attribute name {{a,b}}', then @data"
            )
        name, kind = _plain(match[1]), match[2]
        if kind.startswith("{"):
            values = tuple(_plain(value.strip()) for value in _VALUE.findall(kind[1:-1]))
            kind = "numeric" if values else "empty"
        else:
            values = ()
        if kind.lower() not in {"numeric", "real", "integer"}:
            raise InputError(
                f"{path}:{number}: attribute {name!r} is {kind}; it must be numeric or nominal with values"
            )
        attributes.append(Attribute(name, values))
    raise InputError(f"{path}: there is no @attribute, or no @data below them; get the file again")


def _plain(name: str) -> str:
    """Return a name without its quotes and escapes."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return name
