"""Raw files and tables of data sets in tests: folders of made-up files, columns, and single values to spoil."""

from __future__ import annotations

import re

import numpy as np
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.options import TaskOptions

GONE = object()
"""In place of a value: it is deleted."""


def options(variant, **more):
    return TaskOptions(variant=variant, **more)


def columns(table, *names):
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def classes(table):
    return table["labels"].combine_chunks().flatten().to_numpy()


def put_arrays(path, **arrays):
    """Replace arrays of an .npz file; None removes one."""
    with np.load(path) as content:
        kept = {name: content[name] for name in content.files}
    np.savez(path, **{name: array for name, array in (kept | arrays).items() if array is not None})


def left_out(read, message, count=1):
    """Assert that a fault is named, and left out and counted with ``on_bad_row = "skip"``; return that table."""
    with pytest.raises(InputError, match=re.escape(message)):
        read()
    table = read(on_bad_row="skip")
    found, listed = skipped(table)
    assert found == count
    assert listed[0].startswith(message)
    return table


def put(content, place, value):
    """Set the value at a place inside of JSON content, or delete it."""
    *above, last = place
    for step in above:
        content = content[step]
    if value is GONE:
        del content[last]
    else:
        content[last] = value
