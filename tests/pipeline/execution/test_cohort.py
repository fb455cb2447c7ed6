"""Faults of clients in one process: who is asked again, is left out or stands in, and that nothing else changes."""

from __future__ import annotations

import dataclasses
import json
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import OutOfMemoryError

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import LARGEST_RATIO, norm_of, out_of_scale
from anchorfl.pipeline.execution.cohort import Cohort, Failure, FitMetrics
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.ray_errors import is_lost
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.errors import QuorumError, RejectedError
from anchorfl.pipeline.training.row_cache import RowCache
from anchorfl.pipeline.training.sampling import backup_clients, select
from tests.faulty import KINDS, Faulty
from tests.runs import nobody, quiet


def experiment_with(experiment, tmp_path, clients, kind, times, round_=1, **federation):
    """Make the toy experiment, all four clients in every round, with faults."""
    folder = tmp_path / "failures"
    folder.mkdir(exist_ok=True)
    e = experiment("fedavg", federation={"rounds": 2, "clients_per_round": 4, "epochs": 1} | federation)
    return dataclasses.replace(e, method=Faulty(clients=clients, kind=kind, times=times, folder=str(folder)))


def rounds(e, selected=(0, 1, 2, 3), reserve=()):
    """Outcomes of two rounds, and the checksum after them."""
    executor = SerialExecutor(make_run_spec(e, quiet))
    outcomes = [executor.round(r, list(selected), nobody, list(reserve)) for r in (1, 2)]
    return outcomes, messages.checksum(executor.snapshot())


@pytest.mark.parametrize(("kind", "failure"), KINDS.items())
def test_a_fault_that_a_retry_mends_changes_no_bit(experiment, tmp_path, kind, failure):
    outcomes, got = rounds(experiment_with(experiment, tmp_path, (2,), kind, 1))
    _, expected = rounds(experiment_with(experiment, tmp_path, (), kind, 0))
    assert got == expected
    assert [o.answered for o in outcomes] == [(0, 1, 2, 3)] * 2
    (retried,) = outcomes[0].retried
    assert (retried.client, retried.kind) == (2, failure[0])
    assert failure[1] in retried.reason
    assert not any(o.failed for o in outcomes)


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_client_that_keeps_failing_is_left_out_of_that_round_alone(experiment, tmp_path, kind, retries):
    """And the mean is that of the others: the same bits as a round that had not selected it."""
    e = experiment_with(experiment, tmp_path, (1,), kind, retries + 1, retries=retries)
    outcomes, got = rounds(e)
    assert [o.answered for o in outcomes] == [(0, 2, 3), (0, 1, 2, 3)]
    assert [f.client for f in outcomes[0].failed] == [1]
    assert len(outcomes[0].retried) == retries
    assert outcomes[0].kinds.total() == retries + 1
    without = SerialExecutor(make_run_spec(experiment_with(experiment, tmp_path, (), kind, 0), quiet))
    without.round(1, [0, 2, 3], nobody)
    without.round(2, [0, 1, 2, 3], nobody)
    assert got == messages.checksum(without.snapshot())


def test_stand_ins_take_the_places_in_the_order_that_they_were_drawn(experiment, tmp_path):
    """Two of three fail for good, the first stand-in does, too: the next two train, and nobody else."""
    e = experiment_with(experiment, tmp_path, (0, 1, 3), "raise", 2)
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, clients=6), federation=dataclasses.replace(
        e.federation, clients_per_round=3))  # fmt: skip
    outcomes, _ = rounds(e, (0, 1, 2), (3, 5, 4))
    assert outcomes[0].answered == (2, 4, 5)
    assert outcomes[0].backups == (4, 5)
    assert [f.client for f in outcomes[0].failed] == [0, 1, 3]
    assert outcomes[1].answered == (0, 1, 2)
    assert outcomes[1].backups == ()


def test_stand_ins_are_drawn_by_seed_and_round_from_the_others():
    drawn = {}
    for round_ in range(1, 200):
        chosen = select(20, 5, round_, 7)
        reserve = drawn[round_] = backup_clients(20, chosen, 0.3, round_, 7)
        assert len(set(reserve)) == 2  # 0.3 x 5, rounded up
        assert not set(reserve) & set(chosen)
    assert drawn[1] == backup_clients(20, select(20, 5, 1, 7), 0.3, 1, 7)
    assert drawn[1] != backup_clients(20, select(20, 5, 1, 8), 0.3, 1, 8)
    counts = np.bincount([c for reserve in drawn.values() for c in reserve], minlength=20)
    assert counts.min() > 0
    assert backup_clients(20, range(20), 0.3, 1, 7) == []
    assert backup_clients(20, range(18), 0.5, 1, 7) in ([18, 19], [19, 18])
    assert len(backup_clients(30, range(10), 0.3, 1, 7)) == 3
    assert backup_clients(20, [1, 2], 0.0, 1, 7) == []


def asked(cohort):
    """Take those who wait out of a cohort, as an executor does, and return them."""
    waiting = list(cohort.waiting)
    cohort.waiting.clear()
    return waiting


def test_the_quorum_counts_those_who_stood_in():
    cohort = Cohort([0, 1], [2], 0, 1.0)
    assert asked(cohort) == [0, 1]
    cohort.metrics[0] = FitMetrics(1.0, 1.0, 1, 0)
    cohort.fail(Failure(1, "away"))
    with pytest.raises(QuorumError, match=r"1 of 2 selected clients answered, quorum 1: client 1: away"):
        cohort.check_quorum()
    assert asked(cohort) == [2]
    cohort.metrics[2] = FitMetrics(1.0, 1.0, 1, 0)
    cohort.check_quorum()
    assert cohort.outcome(0, {}).backups == (2,)


def test_an_update_that_is_harmed_on_its_way_is_refused_and_asked_for_again(experiment, tmp_path, monkeypatch):
    """Between client and server: the server looks at every update itself."""
    e = experiment_with(experiment, tmp_path, (), "nan", 0)
    _, expected = rounds(e)
    executor = SerialExecutor(make_run_spec(e, quiet))
    collect, harms = executor.server.collect, []

    def on_the_way(round_, client, update):
        if client == 1 and not harms:
            harms.append(client)
            harmed = update.weights | {next(iter(update.weights)): torch.zeros(1)}
            update = dataclasses.replace(update, weights=harmed)
        collect(round_, client, update)

    monkeypatch.setattr(executor.server, "collect", on_the_way)
    outcomes = [executor.round(r, [0, 1, 2, 3], nobody) for r in (1, 2)]
    assert messages.checksum(executor.snapshot()) == expected
    assert [(f.client, f.kind) for f in outcomes[0].retried] == [(1, "rejected")]
    assert outcomes[0].answered == (0, 1, 2, 3)


def aggregate(server, updates):
    """Merge these updates, by client, in round 1."""
    for client, update in updates.items():
        server.collect(1, client, update)
    server.aggregate(1, updates)


def test_a_refusal_merges_nothing(experiment):
    server = SerialExecutor(make_run_spec(experiment("fedavg"), quiet)).server
    before, sent = messages.checksum(server.snapshot()), server.broadcast(1)
    bad = dataclasses.replace(sent, weights={k: v + float("inf") for k, v in sent.weights.items()})
    with pytest.raises(RejectedError, match=r"client 2: tensor .* holds \d+ non-finite values") as refusal:
        aggregate(server, {0: sent, 2: bad})
    assert list(refusal.value.reasons) == [2]
    assert messages.checksum(server.snapshot()) == before


def test_one_finite_update_does_not_break_the_model(experiment, tmp_path):
    """It is named in the round in which it comes, and those who trained well are not."""
    for kind in ("huge", "scaled"):
        (tmp_path / kind).mkdir()
        outcomes, _ = rounds(experiment_with(experiment, tmp_path / kind, (1,), kind, 9))
        assert [(f.client, f.kind) for f in outcomes[0].failed] == [(1, "rejected")]
        assert not outcomes[1].failed


def test_what_explains_large_weights_is_not_refused():
    """A growth that all share, weights that were large when they were sent, and a start from zero."""
    assert out_of_scale([2e4, 3e4, 2.5e4], 1.0) == [False] * 3
    assert out_of_scale([5e6], 1e4) == [False]
    assert out_of_scale([9e3], 0.0) == [False]
    assert out_of_scale([2e4], 0.0) == [True]
    assert out_of_scale([1.0, 2e4], 1.0) == [False, True]
    assert out_of_scale([1.0, 2e4, 3e30, 1.0, 1.0], 1.0) == [False, True, True, False, False]
    assert norm_of({"a": torch.tensor([3e38, 3e38]), "n": torch.tensor([7])}) == pytest.approx(2**0.5 * 3e38)


def test_weights_that_overflow_in_the_merge_are_not_kept(experiment, monkeypatch):
    server = SerialExecutor(make_run_spec(experiment("fedavg"), quiet)).server
    before, sent = messages.checksum(server.snapshot()), server.broadcast(1)
    larger = dataclasses.replace(sent, weights={k: 2 * v for k, v in sent.weights.items()})
    broken = dataclasses.replace(sent, weights={k: v + float("inf") for k, v in sent.weights.items()})
    monkeypatch.setattr(type(server.method), "aggregate", lambda self, state, results, ctx: broken)
    with pytest.raises(RejectedError) as refusal:
        aggregate(server, {0: sent, 2: larger})
    assert list(refusal.value.reasons) == [2]
    assert messages.checksum(server.snapshot()) == before


@pytest.mark.parametrize("kind", ["nan", "huge"])
def test_a_client_whose_update_was_refused_keeps_the_memory_of_its_last_round(experiment, tmp_path, kind):
    """Whether the update could not be merged, or was out of scale; the others' memories are those of the round."""
    e = experiment_with(experiment, tmp_path, (1,), kind, 9)
    e = dataclasses.replace(
        e, method=dataclasses.replace(e.method, round=2), optimizer=dataclasses.replace(e.optimizer, state="keep")
    )
    executor, before, after = SerialExecutor(make_run_spec(e, quiet)), {}, {}
    for number, sums in ((1, before), (2, after)):
        outcome = executor.round(number, [0, 1, 2, 3], nobody)
        sums |= {client: messages.checksum(executor.memory(client)) for client in range(4)}
    assert [(f.client, f.kind) for f in outcome.failed] == [(1, "rejected")]
    assert [before[client] == after[client] for client in range(4)] == [False, True, False, False]


def test_a_client_without_rows_is_rejected(experiment):
    """A mean over no rows would be NaN."""
    executor = SerialExecutor(make_run_spec(experiment("fedavg"), quiet))
    card, rows = executor.runner._client(1)
    none = rows.rows(torch.arange(0), 1)
    empty = dataclasses.replace(rows, **{n: getattr(rows, n)[:0] for n in ("x", "y_NC", "known_NC", "weight_NC")})
    assert len(none.x) == len(empty) == 0
    executor.runner.rows = RowCache(1000)
    executor.runner.rows.get(1, lambda: (card, empty))
    outcome = executor.round(1, [0, 1, 2], nobody)
    assert outcome.answered == (0, 2)
    assert (outcome.failed[0].kind, outcome.failed[0].reason) == (
        "rejected", "UpdateError: client 1 has no training rows",
    )  # fmt: skip
    assert not messages.not_finite(executor.server.state)


def test_what_went_wrong_is_counted_and_named_everywhere(experiment, tmp_path, capsys):
    """In the log, in the records that MLflow gets, in the result and in a closing line."""
    e = experiment_with(experiment, tmp_path, (1, 2), "raise", 2, backup_fraction=0.25)
    e = dataclasses.replace(e, federation=dataclasses.replace(e.federation, clients_per_round=3), seed=3)
    run(e, tmp_path / "run")
    chosen = [c for c in (1, 2) if c in select(4, 3, 1, 3)]
    said = capsys.readouterr().out
    for client in chosen:
        assert (
            f"client {client} tried again in round 1 (exception): RuntimeError: the disk of the client is full" in said
        )
        assert f"client {client} left out of round 1 (exception): RuntimeError: the disk" in said
    records = read_records(tmp_path / "run")[0]
    first, second = records[1].metrics, records[2].metrics
    assert (first["failures/retries"], first["failures/exception"]) == (
        first["failures/dropped_clients"],
        2 * first["failures/dropped_clients"],
    )
    assert second["failures/dropped_clients"] == second["failures/retries"] == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["faults"] == {"exception": int(first["failures/exception"])}
    assert (
        f"faults: {int(first['failures/exception'])} attempts of clients ({result['faults']['exception']} exception)"
        in said
    )


def test_faults_add_up_over_rounds(experiment, tmp_path, monkeypatch, capsys):
    """One client fails twice in round 1 and once in round 3, where a retry mends it."""
    plain, failing = ClientRunner._fit, [1, 1, 3]

    def fit(self, round_, call, lane):
        if call.client == select(4, 3, round_, 1)[0] and round_ in failing:
            failing.remove(round_)
            raise RuntimeError("the disk of the client is full")
        return (yield from plain(self, round_, call, lane))

    monkeypatch.setattr(ClientRunner, "_fit", fit)
    result = run(experiment(federation={"retries": 1}), tmp_path / "run", quiet)
    assert json.loads((result.folder / "result.json").read_text())["faults"] == {"exception": 3}
    assert "3 exception), 2 of them made again, clients left out of a round: 1\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("federation", {"retries": -1}, "federation.retries = -1: must be at least 0"),
        ("federation", {"deadline": float("inf")}, "federation.deadline = inf: must be at least 0"),
        ("federation", {"backup_fraction": -0.5}, "federation.backup_fraction = -0.5: must be at least 0"),
        ("federation", {"deadline": 5.0}, "federation.deadline needs processes that can be ended"),
        ("cluster", {"checkpoint_every": 0}, "cluster.checkpoint_every = 0: must be at least 1"),
        ("cluster", {"keep_checkpoints": 0}, "cluster.keep_checkpoints = 0: must be at least 1"),
    ],
)
def test_options_out_of_range(experiment, section, values, message):
    e = experiment("fedavg")
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(e, **{section: dataclasses.replace(getattr(e, section), **values)})


def test_progress_names_stand_ins(capsys):
    outcome = Cohort([0], [5], 0, 0.5)
    outcome.fail(Failure(0, "no answer within 5 s", "deadline"))
    outcome.metrics[5] = FitMetrics(1.0, 1.0, 1, 0)
    Progress(1).round(1, outcome.outcome(1, {}), {}, 1.0)
    said = capsys.readouterr().out
    assert "client 0 left out of round 1 (deadline): no answer within 5 s" in said
    assert "client 5 stood in" in said


def test_an_attempt_that_is_lost_with_its_node_does_not_count():
    cohort = Cohort([0, 1], [], 1, 0.5)
    assert asked(cohort) == [0, 1]
    for counted in (False, True, False):
        cohort.fail(Failure(0, "gone", "crash"), counted)
        assert asked(cohort) == [0]
    cohort.fail(Failure(0, "gone again", "crash"))
    assert [f.reason for f in cohort.failed] == ["gone again"]
    assert len(cohort.retried) == 3
    assert not cohort.waiting


@given(st.lists(st.floats(0, 1e30), min_size=1, max_size=9), st.floats(0, 10))
def test_the_scale_is_the_median_of_the_others(norms, sent):
    """With equal norms among them, too."""
    others = [[*norms[:i], *norms[i + 1 :]] for i in range(len(norms))]
    scales = [max(1.0, sent, statistics.median(rest or [0.0])) for rest in others]
    assert out_of_scale(norms, sent) == [n > LARGEST_RATIO * s for n, s in zip(norms, scales, strict=True)]


def test_a_server_that_rays_memory_monitor_ended_is_lost():
    """And replaced; a client that it ended is tried again, out of memory."""
    error = OutOfMemoryError("4.0 GB of 4.0 GB used")
    assert is_lost(error)
    assert not is_lost(error, actor=object())


def test_a_model_that_diverged_needs_other_rates():
    """A resumed run has the same bits, from whatever checkpoint."""
    cohort = Cohort([0, 1], [], retries=0, quorum=0.5)
    for client in (0, 1):
        cohort.fail(Failure(client, "not finite", "rejected"))
    with pytest.raises(QuorumError, match=r"the model has diverged: lower optimizer\.lr, or the rates in \[method\]"):
        cohort.check_quorum()
