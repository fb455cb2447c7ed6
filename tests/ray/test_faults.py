"""Faults under Ray: of clients, their processes, the server actor, messages; the bits of a serial run without any."""

from __future__ import annotations

import dataclasses
import os
import sys
import time

import psutil
import pytest
import ray
from ray import cloudpickle

import tests.faulty
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.actor_pool import ActorPool
from anchorfl.pipeline.execution.cohort import FitMetrics
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.errors import LostError, QuorumError
from anchorfl.tasks.errors import PreparedDataError
from tests.faulty import DEADLY, KINDS, Faulty, with_a_damaged_client
from tests.runs import nobody, on_ray, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
for module in (tests.faulty, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)  # actors cannot import a test module

ALL = [0, 1, 2, 3]


@pytest.fixture
def faulty(experiment, tmp_path):
    """Makes the setup of a run on two actors whose clients fail as told."""
    folder = tmp_path / "failures"
    folder.mkdir()

    def make(clients=(), kind="raise", times=0, **federation):
        options = {"rounds": 2, "clients_per_round": 4, "epochs": 1} | federation
        run_spec = make_run_spec(experiment("fedavg"), quiet)
        e = on_ray(experiment("fedavg", federation={k: v for k, v in options.items() if k != "deadline"}),
                   clients_per_actor=2)  # fmt: skip
        e = dataclasses.replace(e, federation=dataclasses.replace(e.federation, **options))
        method = Faulty(clients=clients, kind=kind, times=times, folder=str(folder))
        return dataclasses.replace(run_spec, experiment=dataclasses.replace(e, method=method))

    return make


def serial(run_spec, absent=(), second=ALL):
    """Checksum after two rounds in one process without a fault; ``absent``: not selected in the first."""
    e = run_spec.experiment
    plain = dataclasses.replace(
        e, method=dataclasses.replace(e.method, clients=()),
        cluster=dataclasses.replace(e.cluster, executor="serial"),
        federation=dataclasses.replace(e.federation, deadline=0.0),
    )  # fmt: skip
    executor = SerialExecutor(dataclasses.replace(run_spec, experiment=plain))
    executor.round(1, [c for c in ALL if c not in absent], nobody)
    executor.round(2, second, nobody)
    return messages.checksum(executor.snapshot())


def deadline_for(kind):
    return {"deadline": 40.0} if kind == "hang" else {}  # a fresh process has to start within it, on any machine


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        *DEADLY.items(), ("raise", KINDS["raise"]),
        *(pytest.param(k, KINDS[k], marks=pytest.mark.slow) for k in ("memory", "nan")),
    ],
)  # fmt: skip
def test_a_fault_that_a_retry_mends_changes_no_bit(faulty, kind, failure):
    run_spec = faulty((2,), kind, 1, **deadline_for(kind))
    executor = RayExecutor(run_spec)
    outcomes = [executor.round(r, ALL, nobody) for r in (1, 2)]
    assert messages.checksum(executor.snapshot()) == serial(run_spec)
    executor.close()
    assert [o.answered for o in outcomes] == [(0, 1, 2, 3)] * 2
    (retried,) = outcomes[0].retried
    assert (retried.client, retried.kind) == (2, failure[0])
    assert failure[1] in retried.reason


@pytest.mark.parametrize("kind", ["exit", *(pytest.param(k, marks=pytest.mark.slow) for k in ("nan", "empty"))])
def test_a_client_that_keeps_failing_is_left_out_and_the_others_are_averaged(faulty, kind):
    """Out of that round, back in the next; both actors answer in it. One peer's simulator loses a slot for good."""
    run_spec = faulty((1,), kind, 2)
    executor = RayExecutor(run_spec)
    first, second = (executor.round(r, ALL, nobody) for r in (1, 2))
    assert messages.checksum(executor.snapshot()) == serial(run_spec, absent=(1,))
    executor.close()
    assert (first.answered, [f.client for f in first.failed], second.answered) == ((0, 2, 3), [1], (0, 1, 2, 3))


def test_a_stand_in_trains_in_place_of_a_client_that_died(faulty):
    run_spec = faulty((1,), "exit", 2)
    executor = RayExecutor(run_spec)
    outcome = executor.round(1, [0, 1], nobody, [3, 2])
    got = messages.checksum(executor.snapshot())
    executor.close()
    assert (outcome.answered, outcome.backups) == ((0, 3), (3,))
    reference = SerialExecutor(dataclasses.replace(run_spec, experiment=dataclasses.replace(
        run_spec.experiment, cluster=dataclasses.replace(run_spec.experiment.cluster, executor="serial"))))  # fmt: skip
    reference.round(1, [0, 3], nobody)
    assert got == messages.checksum(reference.snapshot())


def kill_clients(executor):
    """Kill the processes of all client actors at one instant, as a memory cgroup does."""
    actors = [member.actor for member in executor.actor_pool._clients.values()]
    processes = [psutil.Process(pid) for pid in ray.get([actor.__ray_call__.remote(pid_of) for actor in actors])]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=30)
    return len(processes)


def pid_of(_):
    return os.getpid()


@pytest.mark.parametrize("retries", [1, 0])
def test_client_processes_that_died_while_idle_cost_no_client_and_no_attempt(faulty, retries):
    """All of them, and nobody has noticed: a call to a dead one is no attempt of its client."""
    run_spec = faulty(retries=retries)
    executor = RayExecutor(run_spec)
    executor.round(1, ALL, nobody)
    assert kill_clients(executor) == 2
    outcome = executor.round(2, [0], nobody)
    got = messages.checksum(executor.snapshot())
    executor.close()
    assert (outcome.answered, outcome.failed) == ((0,), ())
    assert got == serial(run_spec, second=[0])


def test_all_client_processes_killed_in_a_round_at_one_instant(faulty, monkeypatch):
    """Calls in flight are tried again, each in a process started for it: same bits."""
    run_spec, killed, plain = faulty(), [], RayExecutor._submit

    def submit(self, waiting, running, *more):
        plain(self, waiting, running, *more)
        if not killed and len(running) == 2 and self.memories:
            killed.append(kill_clients(self))

    monkeypatch.setattr(RayExecutor, "_submit", submit)
    executor = RayExecutor(run_spec)
    outcomes = [executor.round(r, ALL, nobody) for r in (1, 2)]
    assert messages.checksum(executor.snapshot()) == serial(run_spec)
    executor.close()
    assert killed == [2]
    assert [o.answered for o in outcomes] == [(0, 1, 2, 3)] * 2


def test_a_retry_gets_a_process_started_for_it(faulty, monkeypatch):
    """Not an idle one of before, whatever that may have seen."""
    run_spec, calls, plain = faulty((2,), "raise", 1), [], ActorPool.client

    def client(self, slot, run):
        calls.append((slot, slot not in self.started_slots))
        return plain(self, slot, run)

    executor = RayExecutor(run_spec)
    executor.warm_up(ALL)
    monkeypatch.setattr(ActorPool, "client", client)
    executor.round(1, [2], nobody)
    executor.close()
    first, *retries = [fresh for _, fresh in calls]  # more than one where the idle process had died meanwhile
    assert not first
    assert retries in ([True], [True, True])


def test_below_the_quorum_the_state_stays(faulty):
    executor = RayExecutor(faulty((1,), "raise", 2))
    before = messages.checksum(executor.snapshot())
    with pytest.raises(QuorumError, match=r"0 of 1 selected clients answered.*client 1: RuntimeError: the disk"):
        executor.round(1, [1], nobody)
    assert messages.checksum(executor.snapshot()) == before
    executor.close()


def test_a_server_actor_that_dies_in_a_round_is_named(faulty):
    executor = RayExecutor(faulty())
    executor.round(1, ALL, nobody)
    ray.kill(executor.server)
    with pytest.raises(
        LostError,
        match="the server actor, a client whose initial message it holds, or an object on a node that left, is gone",
    ):
        executor.round(2, ALL, nobody)
    executor.close()


@pytest.mark.parametrize(
    ("when", "method"),
    [
        *((when, "fedalign") for when in ("clients", "memory")),
        *(pytest.param(when, "fedalign", marks=pytest.mark.slow) for when in ("start", "scores", "snapshot")),
        ("merge", "scaffold"),
    ],
)
def test_a_run_goes_on_with_a_new_server_and_the_same_bits(
    experiment, finished_run, tmp_path, monkeypatch, when, method
):
    """Killed before round 1 is done, while clients train, or after the merge: as if nothing had been."""
    e = experiment(method, federation={"rounds": 3, "clients_per_round": 3, "epochs": 1})
    expected = finished_run(e)
    killed = []

    def kills(name):
        real = getattr(RayExecutor, name)

        def wrapped(self, *given):
            if not killed and (when == "start" or self.memories):
                killed.append(when)
                ray.kill(self.server)
                time.sleep(0.2)
            return real(self, *given)

        monkeypatch.setattr(RayExecutor, name, wrapped)

    kills({"start": "round", "clients": "_submit", "merge": "round", "memory": "memory_later"}.get(when, when))
    got = run(on_ray(e, clients_per_actor=2), tmp_path / "ray", quiet)
    assert killed == [when]
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    records = read_records(tmp_path / "ray")[0]
    assert [r.round for r in records] == [0, 1, 2, 3]
    assert sum(r.metrics["failures/server_restarts"] for r in records) == 1


@pytest.mark.parametrize(
    "kind", ["exit", *(pytest.param(k, marks=pytest.mark.slow) for k in ("raise", "nan", "memory"))]
)
def test_a_fault_in_a_call_of_several_clients_costs_the_one_who_has_it(faulty, kind):
    """Each has a call of its own then, which shows whose fault a dead process was."""
    run_spec = faulty((2,), kind, 1)
    executor = RayExecutor(run_spec)
    executor.dispatch.update_timings([FitMetrics(0.0, 1e-4, 1000, 0)] * 4)
    outcomes = [executor.round(r, ALL, nobody) for r in (1, 2)]
    assert messages.checksum(executor.snapshot()) == serial(run_spec)
    executor.close()
    assert [o.answered for o in outcomes] == [(0, 1, 2, 3)] * 2
    (retried,) = outcomes[0].retried
    order = list(executor.dispatch.ordered(ALL))
    first = next(call[0] for call in (order[:2], order[2:]) if 2 in call)
    assert retried.client == (first if kind == "exit" else 2)
    assert (retried.kind, "or a fault of clients" in retried.reason) == ((DEADLY | KINDS)[kind][0], kind == "exit")


def test_a_client_that_ends_its_process_again_and_again_is_left_out_and_nobody_beside_it(faulty):
    run_spec = faulty((2,), "exit", 3)
    executor = RayExecutor(run_spec)
    executor.dispatch.update_timings([FitMetrics(0.0, 1e-4, 1000, 0)] * 4)
    first, second = (executor.round(r, ALL, nobody) for r in (1, 2))
    assert messages.checksum(executor.snapshot()) == serial(run_spec, absent=(2,))
    executor.close()
    assert (first.answered, [f.client for f in first.failed], second.answered) == ((0, 1, 3), [2], (0, 1, 2, 3))


def test_damaged_prepared_data_end_a_run_and_are_no_clients_fault(faulty, tmp_path):
    """As soon as an actor reads the file, whatever retries and quorum allow."""
    run_spec = faulty(quorum=0.25, retries=3)
    executor = RayExecutor(with_a_damaged_client(run_spec, tmp_path))
    with pytest.raises(PreparedDataError, match=r"is damaged: the rows of client-00002 do not"):
        executor.round(1, ALL, nobody)
    executor.close()
