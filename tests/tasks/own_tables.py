"""Made-up tables for the tests of tasks/own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.ingest.raw_table import validate_table
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of

KINDS = ("ash", "beech", "elm")


def trees(rows=60):
    """Columns of a made-up table: two numbers with gaps, a class, a site, lists, a text."""
    rng = np.random.default_rng(0)
    kind = [KINDS[i % 3] for i in range(rows)]
    return {
        "id": list(range(rows)),
        "height": [float(KINDS.index(k) + rng.normal()) for k in kind],
        "girth": [None if i % 7 == 0 else i for i in range(rows)],
        "kind": [None if i % 9 == 0 else k for i, k in enumerate(kind)],
        "site": [f"h{i % 4}" for i in range(rows)],
        "spectrum": [[1.0, 2.5, float(i)] for i in range(rows)],
        "steps": [[[1.0, 2.0], [3.0, float(i)]] for i in range(rows)],
        "note": [f"the {k} tree w{i}" for i, k in enumerate(kind)],
    }


def parquet(folder, columns, name="t.parquet"):
    pq.write_table(pa.table(columns), folder / name)
    return str(folder / name)


def csv(folder, text, name="t.csv"):
    (folder / name).write_text(text)
    return str(folder / name)


def table(path, **options):
    options = TaskOptions(file=str(path), **{"label_columns": "kind", **options})
    task = task_of(options)
    return task, validate_table(task.read(raw_folder(task, options), options), task), options
