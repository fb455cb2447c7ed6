"""Forked workers: the bits of one process, whatever fails in them or ends them, and nothing left of them."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution import scheduler
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.execution.forked_executor import ForkedExecutor, worker_count
from anchorfl.pipeline.execution.worker_host import WorkerHost
from anchorfl.pipeline.methods.fedalc import FedALC
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.errors import QuorumError
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.testing import stopped_before
from tests.faulty import KINDS, Faulty, with_a_damaged_client
from tests.runs import nobody, quiet

ALL = [0, 1, 2, 3]


def forked(e, **cluster):
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="forked", **cluster))


def summary(executor, clients):
    """Return all that a checkpoint would hold, as checksums, and the scores."""
    scores = executor.scores(["validation", "test"])
    return (
        messages.checksum(executor.snapshot()),
        [messages.checksum(executor.memory(c)) for c in clients],
        {split: {name: float(value) for name, value in s.values.items()} for split, s in scores.items()},
    )


@pytest.fixture
def opened():
    """Return a maker of executors, which are closed."""
    made = []

    def make(run_spec):
        made.append(executor_for(run_spec))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.mark.parametrize("method", ["fedalc", "fedalign", "fedproto", "fedrep", "scaffold"])
def test_methods_give_the_bits_of_one_process(experiment, opened, method):
    """Weights, the memories of all clients and scores, after two rounds, while the next one is on its way; with a
    memory that a client keeps. All methods: tests/product/test_contract.py.
    """
    e = experiment(method, optimizer={"state": "keep"})
    alone, workers = SerialExecutor(make_run_spec(e, quiet)), opened(make_run_spec(forked(e), quiet))
    assert isinstance(workers, ForkedExecutor)
    for number in (1, 2):
        a, b = (executor.round(number, range(3), nobody) for executor in (alone, workers))
        assert (a.answered, a.loss, a.bytes_up, a.bytes_down) == (b.answered, b.loss, b.bytes_up, b.bytes_down)
        workers.start_next_round(number + 1, range(3))  # what is asked for now is still of this round
        assert summary(alone, range(4)) == summary(workers, range(4))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_one_result_also_after_an_interruption(experiment, finished_run, tmp_path, workers):
    e = experiment("fedalign")
    expected = finished_run(e)
    e = forked(e, max_concurrent_clients=workers)
    with stopped_before(2):
        run(e, tmp_path / "forked", quiet)
    got = run(e, tmp_path / "forked", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    metrics = read_records(tmp_path / "forked")[0][-1].metrics
    assert {"system/server_memory_megabytes", "system/worker_000_memory_megabytes"} <= metrics.keys()


# ---- Faults.


@pytest.fixture
def faulty(experiment, tmp_path):
    """Return a maker of the run of two workers whose clients fail on purpose."""
    folder = tmp_path / "failures"
    folder.mkdir()

    def make(clients=(), kind="raise", times=0, **federation):
        options = {"rounds": 2, "clients_per_round": 4, "epochs": 1} | federation
        e = forked(experiment("fedavg"), max_concurrent_clients=2)
        e = dataclasses.replace(e, federation=dataclasses.replace(e.federation, **options))
        method = Faulty(clients=clients, kind=kind, times=times, folder=str(folder))
        return dataclasses.replace(
            make_run_spec(experiment("fedavg"), quiet), experiment=dataclasses.replace(e, method=method)
        )

    return make


def serial(run_spec, *selected):
    """Return the checksum after rounds of these clients in one process, without a fault."""
    return messages.checksum(in_one_process(run_spec, *selected).snapshot())


def in_one_process(run_spec, *selected):
    """Return the executor after rounds of these clients, or two of all, in one process and without a fault."""
    e = run_spec.experiment
    plain = dataclasses.replace(
        e, method=dataclasses.replace(e.method, clients=()), cluster=dataclasses.replace(e.cluster, executor="serial"),
        federation=dataclasses.replace(e.federation, deadline=0.0),
    )  # fmt: skip
    executor = SerialExecutor(dataclasses.replace(run_spec, experiment=plain))
    for number, clients in enumerate(selected or (ALL, ALL), 1):
        executor.round(number, clients, nobody)
    return executor


DEADLY = {"exit": ("crash", "its worker died (exit code 1)"), "hang": ("deadline", "no answer within")}


@pytest.mark.parametrize(("kind", "failure"), [*DEADLY.items(), *((k, KINDS[k]) for k in ("raise", "memory", "nan"))])
def test_a_fault_that_a_retry_mends_changes_no_bit(faulty, opened, kind, failure):
    run_spec = faulty((2,), kind, 1, **({"deadline": 15.0} if kind == "hang" else {}))
    executor = opened(run_spec)
    outcomes = [executor.round(r, ALL, nobody) for r in (1, 2)]
    assert messages.checksum(executor.snapshot()) == serial(run_spec, ALL, ALL)
    assert [o.answered for o in outcomes] == [(0, 1, 2, 3)] * 2
    (retried,) = outcomes[0].retried
    assert (retried.client, retried.kind) == (2, failure[0])
    assert failure[1] in retried.reason


@pytest.mark.parametrize("kind", ["exit", "raise", "nan"])
def test_a_client_that_keeps_failing_is_left_out_and_is_back_in_the_next_round(faulty, opened, kind):
    run_spec = faulty((1,), kind, 2)
    executor = opened(run_spec)
    first, second = (executor.round(r, ALL, nobody) for r in (1, 2))
    assert messages.checksum(executor.snapshot()) == serial(run_spec, [0, 2, 3], ALL)
    assert (first.answered, [f.client for f in first.failed], second.answered) == ((0, 2, 3), [1], (0, 1, 2, 3))


@pytest.fixture
def shared_calls(monkeypatch):
    """Let calls after the first round be for as many clients as wait."""
    monkeypatch.setattr(scheduler, "CALL_SECONDS", 1e6)


def in_round_2(run_spec, **method):
    """Return the run with its faults in round 2, one worker, and memories that clients keep."""
    e = run_spec.experiment
    changed = dataclasses.replace(
        e,
        method=dataclasses.replace(e.method, round=2, **method),
        optimizer=dataclasses.replace(e.optimizer, state="keep"),
        cluster=dataclasses.replace(e.cluster, max_concurrent_clients=1),
    )
    return dataclasses.replace(run_spec, experiment=changed)


def requests_of(executor, monkeypatch):
    """Return the list in which the clients of every call are noted."""
    real, asked = executor._fit_request, []

    def noting(pending):
        request = real(pending)
        return lambda worker, clients: asked.append(tuple(clients)) or request(worker, clients)

    monkeypatch.setattr(executor, "_fit_request", noting)
    return asked


@pytest.mark.parametrize(("kind", "times", "place"), [("raise", 1, 1), ("nan", 1, 1), ("exit", 2, 0)])
def test_a_fault_in_a_call_of_several_clients_costs_the_others_nothing(
    faulty, opened, shared_calls, monkeypatch, kind, times, place
):
    """Bits, answers and memories are those of one process. A process that ended may be any of its clients' doing, so
    that this is no attempt of anybody: client ``place`` of the call, which may try twice, ends three of them.
    """
    run_spec = in_round_2(faulty())
    rows = run_spec.data().cards().rows
    order = tuple(sorted(ALL, key=lambda client: (-rows[client], client)))
    run_spec = in_round_2(run_spec, clients=(order[place],), kind=kind, times=times)
    executor = opened(run_spec)
    executor.round(1, ALL, nobody)
    asked = requests_of(executor, monkeypatch)
    outcome = executor.round(2, ALL, nobody)
    assert asked[0] == order
    assert (outcome.answered, outcome.failed) == ((0, 1, 2, 3), ())
    one = in_one_process(run_spec)
    assert messages.checksum(executor.snapshot()) == messages.checksum(one.snapshot())
    assert [messages.checksum(executor.memory(c)) for c in ALL] == [messages.checksum(one.memory(c)) for c in ALL]
    if kind == "raise":
        assert [failure.client for failure in outcome.retried] == [order[place]]
        assert sorted(asked[1:]) == sorted([(order[place],), order[place + 1 :]])
    if kind == "exit":
        assert f"(or a fault of clients {', '.join(map(str, order[1:]))}, of the same call)" in str(outcome.retried)


def test_under_a_deadline_every_call_is_of_one_client(faulty, opened, shared_calls, monkeypatch):
    """It is a client's own; in any round."""
    executor = opened(in_round_2(faulty(deadline=60.0)))
    asked = requests_of(executor, monkeypatch)
    for number in (1, 2):
        executor.round(number, ALL, nobody)
    assert sorted(asked) == sorted([(client,) for client in ALL] * 2)


def test_a_client_whose_update_was_refused_keeps_the_memory_of_its_last_round(faulty, opened):
    executor = opened(in_round_2(faulty((1,), "nan", 9)))
    sums = []
    for number in (1, 2):
        outcome = executor.round(number, ALL, nobody)
        sums.append([messages.checksum(executor.memory(client)) for client in ALL])
    assert [(failure.client, failure.kind) for failure in outcome.failed] == [(1, "rejected")]
    assert [before == after for before, after in zip(*sums, strict=True)] == [False, True, False, False]


def test_a_backup_client_trains_in_place_of_one_that_died(faulty, opened):
    run_spec = faulty((1,), "exit", 2)
    executor = opened(run_spec)
    outcome = executor.round(1, [0, 1], nobody, [3, 2])
    assert (outcome.answered, outcome.backups) == ((0, 3), (3,))
    assert messages.checksum(executor.snapshot()) == serial(run_spec, [0, 3])


def test_a_client_that_answered_in_time_is_heard_however_long_the_driver_took(faulty, opened, monkeypatch):
    """The driver spends more than the deadline on the first answer; the second has come in meanwhile."""
    executor = opened(faulty(deadline=6.0))
    executor.round(1, [0, 1], nobody)  # workers have started
    real, slept = Server.collect_part, []

    def slow(self, *arguments):
        if not slept:
            slept.append(time.sleep(7.0))
        return real(self, *arguments)

    monkeypatch.setattr(Server, "collect_part", slow)
    outcome = executor.round(2, [0, 1], nobody)
    assert slept
    assert outcome.answered == (0, 1)
    assert not outcome.retried


@dataclass(frozen=True, kw_only=True)
class Dying(FedALC):
    """Client 1 ends its process once; ``mark``: the file that says it did."""

    mark: str = ""

    def initial_message(self, card, parts, key):
        if card.client == 1 and not Path(self.mark).exists():
            Path(self.mark).touch()
            os._exit(1)
        return super().initial_message(card, parts, key)


@pytest.mark.parametrize("retries", [1, 0])
def test_a_client_that_dies_before_round_1_sends_again_as_often_as_it_may(experiment, finished_run, tmp_path, retries):
    e = experiment("fedalc", federation={"rounds": 2, "epochs": 1, "retries": retries})
    dying = dataclasses.replace(forked(e, max_concurrent_clients=2), method=Dying(mark=str(tmp_path / "died")))
    if not retries:
        with pytest.raises(InputError, match=r"client 1 gave no message before round 1: its worker died"):
            run(dying, tmp_path / "run", quiet)
        return
    assert run(dying, tmp_path / "run", quiet).checksum == finished_run(e).checksum
    assert (tmp_path / "died").exists()


def test_below_the_quorum_the_state_is_as_it_was(faulty, opened):
    executor = opened(faulty((0, 1, 2), "exit", 2, quorum=0.5))
    before = messages.checksum(executor.snapshot())
    with pytest.raises(QuorumError, match=r"1 of 4 selected clients answered"):
        executor.round(1, ALL, nobody)
    assert messages.checksum(executor.snapshot()) == before


def workers_of(executor):
    """Return the processes of an executor's workers, which its host has forked."""
    return psutil.Process(WorkerHost.of_process()._process.pid).children()


def test_workers_that_are_killed_between_rounds_are_no_clients_fault(faulty, opened):
    run_spec = faulty()
    executor = opened(run_spec)
    executor.round(1, ALL, nobody)
    for worker in workers_of(executor):
        worker.kill()
    assert all(worker.connection.poll(60) for worker in executor.workers.values()), "their ends are seen"
    outcome = executor.round(2, ALL, nobody)
    assert (outcome.failed, outcome.retried) == ((), ())
    assert messages.checksum(executor.snapshot()) == serial(run_spec, ALL, ALL)


def test_the_host_and_all_its_workers_are_replaced(faulty, opened):
    """A worker ends with the host; each client of a call that was in flight has one attempt less."""
    run_spec = faulty()
    executor = opened(run_spec)
    executor.round(1, ALL, nobody)
    os.kill(WorkerHost.of_process()._process.pid, signal.SIGKILL)
    time.sleep(0.1)
    executor.round(2, ALL, nobody)
    assert messages.checksum(executor.snapshot()) == serial(run_spec, ALL, ALL)


def test_a_host_whose_end_is_not_seen_yet_is_replaced(monkeypatch):
    """Its socket is closed, and its process was not there to be waited for when it was asked."""
    gone = WorkerHost.of_process()
    os.kill(gone._process.pid, signal.SIGKILL)
    gone._process.wait()
    monkeypatch.setattr(gone._process, "poll", Mock(side_effect=[None, *[0] * 9]))
    host, number, connection = WorkerHost.forked([])
    with connection:
        assert host is WorkerHost.of_process() is not gone
        host.kill(number)
        host.reap(number)


def test_damaged_prepared_data_end_a_run_and_are_no_clients_fault(faulty, opened, tmp_path):
    """As soon as a worker reads the file, whatever retries and quorum allow; no call is left."""
    run_spec = faulty(quorum=0.25, retries=3)
    executor = opened(with_a_damaged_client(run_spec, tmp_path))
    with pytest.raises(PreparedDataError, match=r"is damaged: the rows of client-00002 do not"):
        executor.round(1, ALL, nobody)
    assert not any(worker.connection.poll() for worker in executor.workers.values())


def test_what_goes_wrong_before_a_client_trains_is_said_in_its_words(faulty, opened, monkeypatch):
    """A method whose options a worker cannot use: the reason and the kind, without a wrapper's name."""
    executor = opened(faulty(retries=0, quorum=1.0))
    monkeypatch.setattr(executor, "_fit_request", lambda pending: lambda worker, clients: "no request")
    with pytest.raises(QuorumError, match=r"clients 0, 1, 2, 3: KeyError: <class 'str'>$"):
        executor.round(1, ALL, nobody)


def test_closing_ends_the_workers(faulty):
    executor = executor_for(faulty())
    executor.round(1, ALL, nobody)
    executor.start_next_round(2, ALL)
    assert len(workers_of(executor)) == 2
    executor.close()
    assert not workers_of(executor)


KILLED = """
import sys, os, signal, psutil
from anchorfl import read_preset
from dataclasses import replace
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.execution.worker_host import WorkerHost
from anchorfl.pipeline.run.prepare import make_run_spec
e = read_preset("digits/fedavg")
e = replace(e, cluster=replace(e.cluster, executor="forked"))
executor = executor_for(make_run_spec(e, lambda line: None))
executor.round(1, range(2), lambda *counts: None)
host = psutil.Process(WorkerHost.of_process()._process.pid)
print(host.pid, *(child.pid for child in host.children()), flush=True)
executor.start_next_round(2, range(2))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_that_is_killed_leaves_no_process():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [int(word) for word in done.stdout.split()]
    assert len(left) >= 2
    until = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in left) and time.monotonic() < until:
        time.sleep(0.05)
    assert [pid for pid in left if psutil.pid_exists(pid)] == []


# ---- Options.


def test_auto_is_forked_without_an_address_and_ray_with_one(experiment, opened):
    assert not ClusterOptions(executor="auto").uses_ray
    assert ClusterOptions(executor="auto", address="auto").uses_ray
    assert isinstance(opened(make_run_spec(forked(experiment("fedavg")), quiet)), ForkedExecutor)


@pytest.mark.parametrize(
    ("options", "clients", "count"),
    [
        ({"max_concurrent_clients": 3}, 10, 3),
        ({"max_concurrent_clients": 3}, 2, 2),
        ({"max_concurrent_clients": 8, "clients_per_actor": 5}, 10, 2),
    ],
)
def test_as_many_workers_as_clients_train_at_a_time(options, clients, count):
    assert worker_count(ClusterOptions(**options), clients) == count


def test_a_share_of_a_gpu_that_is_not_there_is_refused(experiment):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this torch sees a GPU")
    with pytest.raises(InputError, match="of a GPU is asked for"):
        executor_for(make_run_spec(forked(experiment("fedavg"), client_gpus=0.5), quiet))
