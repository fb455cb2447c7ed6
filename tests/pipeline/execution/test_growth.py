"""What a run computes grows in straight lines: function calls are counted at several sizes, as seconds depend on the
machine.
"""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc

import numpy as np
import pytest

from anchorfl.pipeline.algorithm.aggregation import out_of_scale
from anchorfl.pipeline.execution.cohort import Cohort, FitMetrics
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.assemble import from_words
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.sampling import select
from tests.runs import nobody, quiet


def calls_of(work) -> int:
    """Return the number of calls, of Python and of C, that this thread makes in ``work``."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def straight(small: int, middle: int, large: int, tolerance: float = 0.1) -> bool:
    """Return whether counts at sizes n, 2n and 4n lie on a line, or bend down."""
    return large - middle <= (1 + tolerance) * 2 * (middle - small) + 0.02 * large


def peak_bytes(clients: int) -> int:
    """Return the memory that the end of a round of so many clients takes at most, their updates aside."""
    cohort = Cohort(range(clients), (), 0, 1.0, metrics={c: FitMetrics(0.5, 0.1, 10, 0) for c in range(clients)})
    norms = [float(c) for c in range(clients)]
    tracemalloc.start()
    try:
        assert len(cohort.outcome(10, {}).answered) == clients
        assert not any(out_of_scale(norms, 1.0)[1:])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_end_of_a_round_takes_memory_in_a_straight_line():
    """10,000 clients took 800 MB: a list of all others for each."""
    assert peak_bytes(4_000) <= 2.2 * peak_bytes(2_000) < 4_000_000


@pytest.fixture(scope="module")
def digits(experiment):
    """Return a maker of an executor for so many clients of the digits, and the calls of a round of some of them."""

    def make(population, selected, method="fedavg"):
        e = experiment(method, "digits", federation={"epochs": 1})
        e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid", clients=population))
        executor = SerialExecutor(make_run_spec(e, quiet))
        executor.round(1, range(selected), nobody)

        def round_():
            select(population, selected, 2, e.seed)
            executor.round(2, range(selected), nobody)

        return calls_of(round_)

    return make


def test_a_round_does_not_grow_with_the_population(digits):
    """Every client has as much data as before: the first 8 of the larger federation have fewer rows, in one batch."""
    assert digits(320, 8) <= 1.02 * digits(80, 8)


@pytest.mark.parametrize(
    "method",
    [n for n, m in METHODS.items() if "single" in m.supports.kinds and n != "fedbm" and m().head.kind != "cosine"],
)
def test_a_round_grows_in_a_straight_line_with_its_clients(digits, method):
    assert straight(*(digits(80, selected, method) for selected in (8, 16, 32)))


def test_a_run_grows_in_a_straight_line_with_its_rounds(experiment, tmp_path):
    """Records, checkpoints and pictures included; so do the bytes of its folder."""

    def of(rounds):
        e = experiment("fedalign", federation={"rounds": rounds, "epochs": 1})
        calls = calls_of(lambda: run(e, tmp_path / str(rounds), quiet))
        size = sum(path.stat().st_size for path in (tmp_path / str(rounds)).rglob("*") if path.is_file())
        return calls, size

    of(1)  # what is imported and made once
    calls, sizes = zip(*(of(rounds) for rounds in (8, 16, 32)), strict=True)
    assert straight(*calls)
    assert straight(*sizes)


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "fedpu", "fednh", "fedproto"])
def test_a_round_and_its_scores_grow_in_a_straight_line_with_the_classes(tmp_path, method):
    """Of a table of 960 rows, whatever the classes; records and memory have a number for each."""

    def of(classes):
        path, value = tmp_path / f"{classes}.csv", np.random.default_rng(0).standard_normal((960, 2))
        rows = [f"{a:.3f},{b:.3f},c{i % classes}" for i, (a, b) in enumerate(value)]
        path.write_text("\n".join(["a,b,kind", *rows]) + "\n")
        words = f"""--task.file {path} --task.label_columns kind --task.clients 4 --task.partition iid
            --task.min_count 1 --method.name {method} --federation.epochs 1 --cluster.executor serial""".split()
        executor = SerialExecutor(make_run_spec(from_words("", words, "anchorfl run", quiet).experiment, quiet))
        executor.round(1, range(4), nobody)

        def work():
            executor.round(2, range(4), nobody)
            executor.scores(["validation", "test"])

        return calls_of(work)

    assert straight(*(of(classes) for classes in (16, 32, 64)))
