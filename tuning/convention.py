"""Communication as FedALC's Table IV counts it, which differs from the bytes that travel.

Its figures follow from three rules (found by decoding them; the text states none): a weight of theta is one byte, a
value of a class row eight, and theta is counted in 10^6 bytes, rows in MiB. The server is charged for all class rows
in every round, though a client needs and gets its own alone; where rows are fixed, for all of them once.
"""

from __future__ import annotations

from pipeline.results.compare import RunSummary

MIB = 2**20
VALUE = 8
"""Bytes of a value of a class row."""
FLOAT = 4
"""Bytes of a weight that really travels."""


def counted(theta: int, classes: int, width: int, rounds: int, *, fixed: bool) -> tuple[float, float]:
    """Megabytes to and from one client over a whole run. theta: its weights; width: values of a class row."""
    row = VALUE * width / MIB
    model, all_rows = theta / 1e6, classes * row
    if fixed:
        return rounds * model + all_rows, rounds * model
    return rounds * (model + all_rows), rounds * (model + row)


def counted_of(run: RunSummary, up: float) -> tuple[float, float]:
    """The same of a run with one client per class. up: megabytes (10^6 bytes) that a client sent in a round."""
    p = run.params
    width = int(p["model.width"]) * int(p.get("parts", 1))
    fixed = not float(p["row_lr"])
    theta = round(up * 1e6 / FLOAT) - (0 if fixed else width)
    return counted(theta, int(p["task.clients"]), width, int(p["federation.rounds"]), fixed=fixed)
