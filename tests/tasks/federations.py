"""Made-up rows and tasks for the tests of partitions."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Source, Task
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import plan_of_table, plan_table
from anchorfl.tasks.partition.stratify import TrainingRows

CASES = os.environ.get("ANCHORFL_CASES", "")
QUICK = settings(max_examples=int(CASES or 60), deadline=None, derandomize=not CASES, database=None)
"""Cases of a property test: the same 60 each time, or with ANCHORFL_CASES so many new ones."""


def stored(plan):
    """Return a plan as it comes back from its table."""
    classes = [client.classes for client in plan.clients]
    return plan_of_table(plan_table(plan), classes, plan.seed, bool(plan.client_test))


def names(classes):
    return tuple(f"class{c}" for c in range(classes))


def task_of(classes, groups=None, subjects="", kind="multi"):
    """Make a task that is only partitioned, never read. groups: category -> class numbers."""
    members = {group: tuple(f"class{c}" for c in numbers) for group, numbers in (groups or {}).items()}
    return Task(
        name="made",
        title="made up",
        class_names=names(classes),
        kind=kind,
        payload="pixels",
        source=Source((), "", ""),
        folder="",
        read=None,
        fit=None,
        encode=None,
        groups=members,
        subjects=subjects,
    )


def rows_of(y_NC, row_N=None, subject_N=None, whole_N=None):
    row_N = np.arange(len(y_NC)) if row_N is None else row_N
    return TrainingRows(Labels.of_matrix(np.asarray(y_NC, dtype=bool)), row_N, subject_N, whole_N)


def shuffled(rows, seed):
    """Return the same rows in another order."""
    return rows.take(np.random.default_rng(seed).permutation(len(rows.row_N)))


def plan_of(y_NC, options, seed, row_N=None):
    """Make the plan of a task without categories and subjects."""
    return make_plan(rows_of(y_NC, row_N), task_of(np.shape(y_NC)[1]), options, seed)


def owner_of(plan, rows):
    """Return the client of every row, -1 for validation rows; fail where a row has not exactly one owner."""
    every = np.concatenate([*(c.rows for c in plan.clients), plan.validation])
    assert np.array_equal(np.sort(every), np.sort(rows.row_N))
    owner_N = np.full(len(rows.row_N), -1)
    for client, own in enumerate(plan.clients):
        assert own.rows.dtype == np.int64
        assert (np.diff(own.rows) > 0).all()
        owner_N[np.isin(rows.row_N, own.rows)] = client
    return owner_N


@st.composite
def multi_labels(draw, least=1):
    """Bool [N, C]: random labels of uneven classes, rows without any among them; every class has ``least`` rows."""
    classes = draw(st.integers(1, 8))
    size = draw(st.integers(classes * least, 60))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    y_NC = rng.random((size, classes)) < rng.random(classes) * draw(st.sampled_from([0.3, 0.6, 1.0]))
    if draw(st.booleans()):  # at most one class per row
        y_NC &= np.cumsum(y_NC, axis=1) == 1
    y_NC[rng.permutation(size)[: classes * least], np.tile(np.arange(classes), least)] = True
    return y_NC
