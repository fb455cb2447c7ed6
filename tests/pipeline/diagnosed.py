"""A quick ``anchorfl diagnose``, and a table that it wrote."""

from __future__ import annotations

import csv

from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions

QUICK = DiagnoseOptions(pairs=2, cap=60, rows=40)


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))
