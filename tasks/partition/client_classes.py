"""Class sets that a user gives: ``task.client_classes``, a file or its JSON.

Shape suffixes: C classes, M clients.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tasks.options import JsonText, TaskOptions, json_text
from anchorfl.tasks.partition.stratify import TrainingRows

FORMS = (
    '[["a", "b"], ["c"]], a list for each client; {"client": ["a"]}, by its number or name; or {"seed": ...} of either'
)
COLUMNS = {"client", "class"}
DIGITS = 18
"""Digits of a number, at most; Python converts no more than 4300."""


def read_client_classes(value: str, folder: Path) -> JsonText:
    """Return ``task.client_classes`` as JSON, from the file that it names if it names one.

    So a run's record says which classes its clients identified, wherever the file is later. folder: below which the
    file lies. Raises InputError where there is no such file, or neither JSON nor CSV in it.
    """
    if not value.strip():
        return JsonText("")
    if value.lstrip()[0] in "[{":
        return json_text(_parsed(value, "[task] client_classes"))
    path = folder / Path(value).expanduser()
    if path.suffix not in (".json", ".csv"):
        raise InputError(f"[task] client_classes = {value!r}: a .json or .csv file, or JSON: {FORMS}")
    try:
        text = read_text_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"[task] client_classes: {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error})") from error
    content = _parsed(text, str(path)) if path.suffix == ".json" else _from_csv(text, path)
    return json_text(content)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=partial(_once, where))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: no JSON ({error}); it takes {FORMS}") from error


def _once(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises InputError where a key stands in it twice, of which one would be lost."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{where}: {key!r} stands there twice; give each client, or seed, once")
    return content


def _from_csv(text: str, path: Path) -> Any:
    """Return the lines of a table as {client: classes}, or {seed: {client: classes}} where it has a column of seeds."""
    try:
        return _of_lines(csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True), path)
    except csv.Error as error:
        raise InputError(f"{path}: no CSV ({error}); mend the line, a quotation mark perhaps") from error


def _of_lines(reader: csv.DictReader[str], path: Path) -> Any:
    heads = [head.strip() for head in reader.fieldnames or []]
    reader.fieldnames = heads
    if not set(heads) >= COLUMNS or not set(heads) <= COLUMNS | {"seed"} or len(set(heads)) < len(heads):
        raise InputError(f"{path}: columns {', '.join(heads) or 'none'}; it needs client and class, and may have seed")
    sets: dict[str, dict[str, list[str]]] = {}
    for line in reader:
        if None in line or not all((line[head] or "").strip() for head in heads):
            raise InputError(f"{path}:{reader.line_num}: must have one value for each of {', '.join(heads)}")
        of_seed = sets.setdefault(_plain(line.get("seed", "").strip()), {})
        of_seed.setdefault(line["client"].strip(), []).append(line["class"].strip())
    if not sets:
        raise InputError(f"{path}: no line below the heads; a line for each class of each client")
    return sets if "seed" in heads else sets[""]


def sets_of_seed(text: str, seed: int) -> list[Any] | dict[str, Any] | None:
    """Return the class sets that ``task.client_classes`` has for a seed: a list for each client, or lists by client.

    None where it is empty, or has sets for other seeds only. Raises InputError where it is of no known form.
    """
    if not text:
        return None
    if text[0] not in "[{":
        raise InputError(f"[task] client_classes = {text[:60]!r}: a file is read when a run begins; give its JSON here")
    content = _parsed(text, "[task] client_classes")
    if isinstance(content, dict) and content and all(_is_sets(value) for value in content.values()):
        for key in content:
            if not key.isdecimal() or len(key) > DIGITS:
                raise InputError(f"[task] client_classes: {key!r} is no seed; it takes {FORMS}")
        content = {_plain(key): value for key, value in content.items()}.get(str(seed))
        if content is None:
            return None
    if not content or not _is_sets(content):
        raise InputError(f"[task] client_classes: it takes {FORMS}; names or numbers of classes, at least one a client")
    return content  # type: ignore[no-any-return]


def _plain(seed: str) -> str:
    """Return a seed without zeros in front."""
    return str(int(seed)) if seed.isdecimal() and len(seed) <= DIGITS else seed


def _is_sets(value: Any) -> bool:
    """Tell whether a value gives each client a list of classes."""
    sets = value.values() if isinstance(value, dict) else value
    return (
        isinstance(value, (list, dict))
        and bool(value)
        and all(
            isinstance(part, list) and part and all(isinstance(c, (str, int)) and not isinstance(c, bool) for c in part)
            for part in sets
        )
    )


def given_sets(rows: TrainingRows, task: Task, options: TaskOptions, seed: int) -> Bools | None:
    """Return the class sets that ``client_classes`` gives for a seed, bool [M, C]; None where it gives none.

    Classes that ``min_positives`` left out may be named. Raises InputError where the sets do not fit clients and
    classes.
    """
    sets = sets_of_seed(options.client_classes, seed)
    if sets is None:
        return None
    known_MC = np.zeros((options.clients, len(task.class_names)), dtype=np.bool_)
    for client, part in enumerate(_by_client(sets, rows, options)):
        for entry in part:
            if entry in task.dropped:
                continue
            class_ = _class_number(entry, task.class_names, client)
            if known_MC[client, class_]:
                raise InputError(f"[task] client_classes: client {client} has {entry!r} twice; leave one out")
            known_MC[client, class_] = True
        if not known_MC[client].any():
            raise InputError(
                f"[task] client_classes: client {client} would identify nothing, since min_positives leaves out"
                f" {_few(part)}; give it another class, or set client_classes = '', so that they are drawn"
            )
    return known_MC


def _by_client(given: list[Any] | dict[str, Any], rows: TrainingRows, options: TaskOptions) -> list[list[Any]]:
    """Return the sets in the order of the clients, which a dict names by number, or as ``subjects`` does."""
    keys = [str(client) for client in range(options.clients)]
    if options.partition == "subjects" and rows.subject_N is not None and isinstance(given, dict):
        names = np.unique(rows.subject_N).tolist()
        if len(names) == options.clients and not set(given).isdisjoint(names):
            keys = names
    if isinstance(given, dict):
        for key in given:
            if key not in keys:
                raise InputError(
                    f"[task] client_classes: no client {key!r}{nearest(key, keys)}; there are {_few(keys)}"
                )
        if lacking := [key for key in keys if key not in given]:
            raise InputError(f"[task] client_classes: no classes for client {_few(lacking)}; give each at least one")
        return [given[key] for key in keys]
    if len(given) != options.clients:
        raise InputError(
            f"[task] client_classes has {len(given)} lists, and there are {options.clients} clients: give each its"
            " own, or set client_classes to '', so that they are drawn"
        )
    return given


def _class_number(entry: str | int, class_names: Sequence[str], client: int) -> int:
    """Return the number of a class that is named, or given by its number."""
    named = class_names.index(str(entry)) if str(entry) in class_names else None
    if isinstance(entry, str) and named is not None:
        return named
    if str(entry).isdecimal() and len(str(entry)) <= DIGITS and int(entry) < len(class_names):
        if named not in (None, int(entry)):
            raise InputError(
                f"[task] client_classes: client {client}: {entry} is the number of the class {class_names[int(entry)]},"
                f' and the name of another: write "{entry}" for the name, with quotation marks, and so for all'
            )
        return int(entry)
    raise InputError(
        f"[task] client_classes: client {client}: no class {entry!r}{nearest(str(entry), class_names)}; there are"
        f" {_few(class_names)}"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
