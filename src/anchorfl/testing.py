"""Tests for methods and tasks of one's own: the promises that every run relies on, checked in a few seconds.

    from anchorfl.testing import check_limit, check_method
    from fancy_fl.method import Fancy


    def test_contract(tmp_path):
        check_method(Fancy(), tmp_path)


    def test_without_its_pull_it_is_fedavg(tmp_path):
        check_limit(Fancy(mu=0.0), "fedavg", tmp_path)

Each check raises AssertionError with one line that says what does not hold. The methods that are shipped pass them, too
(``tests/product/test_contract.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Method
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment, to_tree
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.schema import from_tree, options_of
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution.executor import server_of
from anchorfl.pipeline.methods import check_class, find_method
from anchorfl.pipeline.run import lifecycle
from anchorfl.pipeline.run.lifecycle import Result
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.round_loop import RoundLoop
from anchorfl.pipeline.storage.run_folder import read_result
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.storage.saved_model import load_model
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.errors import RejectedError
from anchorfl.tasks.arrays.arrow import list_parts
from anchorfl.tasks.contract import InputSpec, Task
from anchorfl.tasks.errors import InputError, first_line
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_table import canonicalize_options, read_rows
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task

ANY = {"partition": "iid"}
"""Options of a partition that does for any number of classes."""
MACHINE = "time/", "system/"
"""How the names of metrics begin that depend on the machine."""


def small_experiment(
    method: str | Method[Any, Any] = "fedavg", data: str = "", *, seed: int = 1, **sections: Any
) -> Experiment:
    """Return an experiment that trains in a second: a toy task, 4 clients, 3 of them in each of 3 rounds, no Ray.

    method: a name, or an instance with its options. data: ``task.name``; empty: ``toy-single``, or ``toy-multi`` for a
    method that is for multi-label tasks alone. sections: options by table, such as ``optimizer={"lr": 0.1}``.
    """
    made: Method[Any, Any] = find_method(method)() if isinstance(method, str) else method
    name = data or f"toy-{made.supports.kinds[0]}"
    options = TaskOptions(name=name, clients=4, classes_per_client=2, min_count=1, max_tokens=32, validation=0.1)
    if made.supports.one_class:
        options = replace(options, partition="one_class", clients=len(find_task(name).class_names))
    experiment = Experiment(
        task=options,
        method=made,
        model=ModelOptions(width=16, heads=2, feedforward=8, dropout=0.1),
        class_embeddings=ClassEmbeddingOptions(width=16),
        federation=FederationOptions(rounds=3, clients_per_round=3, epochs=2),
        optimizer=OptimizerOptions(lr=0.01, batch_size=16, microbatch_tokens=128),
        cluster=ClusterOptions(executor="serial"),
        tracking=TrackingOptions(uri="none"),
        seed=seed,
    )
    changed = {section: replace(getattr(experiment, section), **values) for section, values in sections.items()}
    return replace(experiment, **changed)


def check_method(method: Method[Any, Any], folder: Path, *, ray: bool = True, **sections: Any) -> None:
    """Check a method on a toy task of every kind that it supports, as ``check_experiment`` does.

    folder: an empty one for runs (pytest's ``tmp_path``). sections: as of ``small_experiment``. Errors: AssertionError.
    """
    try:
        check_class(type(method), type(method).__module__)
    except InputError as error:
        raise AssertionError(str(error)) from error
    for number, kind in enumerate(method.supports.kinds):  # Ray does not know them
        experiment = small_experiment(method, f"toy-{kind}", **sections)
        check_experiment(experiment, folder / kind, ray=ray and number == 0)


def check_experiment(experiment: Experiment, folder: Path, *, ray: bool = True) -> None:
    """Check what every run relies on; it takes some ten runs. Errors: AssertionError, in one line.

    - a preset can name the method, and say all its options
    - messages and memories hold tensors alone and arrive as they were sent
    - server's hooks are pure, clients do not write into what they are sent, and the order of answers is no matter
    - two runs of one seed give the same bits, and another seed gives others
    - so do a run that was stopped between rounds and went on, forked workers, and Ray actors

    ray: also on Ray, which takes some seconds to start, and wants the method's module to be importable.
    """
    name = experiment.method.name
    _check_options(experiment)
    _check_messages(experiment)
    whole = _run(experiment, folder / "whole")
    _check_equal(whole, _run(experiment, folder / "again"), f"{name}: a second run of the same seed")
    other = _run(replace(experiment, seed=experiment.seed + 1), folder / "other_seed")
    assert other.checksum != whole.checksum, f"{name}: another seed gives the same weights: nothing was trained"
    for round_ in range(2, experiment.federation.rounds + 1):
        with stopped_before(round_):
            _run(experiment, folder / "stopped")
    resumed = _run(experiment, folder / "stopped")
    _check_equal(whole, resumed, f"{name}: a run that was stopped between rounds and went on")
    for executor in ("forked", "ray") if ray else ("forked",):
        cluster = replace(experiment.cluster, executor=executor, clients_per_actor=2, max_concurrent_clients=2)
        got = _run(replace(experiment, cluster=cluster), folder / executor)
        _check_equal(whole, got, f"{name}: clients {'on Ray actors' if executor == 'ray' else 'in forked workers'}")


def check_limit(method: Method[Any, Any], same_as: str | Method[Any, Any], folder: Path, **sections: Any) -> None:
    """Check that a method whose options switch it off trains the very bits of the method that it extends.

    same_as: that method, by name or with options of its own. sections: as of ``small_experiment``. Errors:
    AssertionError where the two differ, or are for no common kind of task.
    """
    other = find_method(same_as)() if isinstance(same_as, str) else same_as
    kinds = [kind for kind in method.supports.kinds if kind in other.supports.kinds]
    assert kinds, f"{method.name} and {other.name} are for no common kind of task"
    for kind in kinds:
        got, want = (
            _run(small_experiment(m, f"toy-{kind}", **sections), folder / kind / place)
            for place, m in (("limit", method), ("other", other))
        )
        assert got.checksum == want.checksum, (
            f"{method.name} with these options is not {other.name} bit for bit ({kind}-label task)"
        )


def check_task(name: str, folder: Path, **options: Any) -> None:
    """Check that a task can be prepared, gives the same data twice, encodes a row whatever stands beside it, and that
    FedAvg trains on it.

    name: as ``task.name`` takes it. folder: an empty one for runs. options: of ``TaskOptions``, such as ``root="..."``.
    Errors: AssertionError; InputError where the raw files are missing or wrong.
    """
    experiment = small_experiment("fedavg", name, task=ANY | options, federation={"rounds": 2})
    task, seed = find_task(name), experiment.seed
    caches = [replace(experiment.task, cache=str(folder / cache)) for cache in ("one", "two")]
    data = [prepare(task, options, seed, engine="local") for options in caches]
    digests = [(d.manifest.data_digest, d.manifest.partition_digest) for d in data]
    assert digests[0] == digests[1], f"{name}: prepared twice, its data differ: draw from a fixed seed in read()"
    assert data[0].size("test"), f"{name}: has no test rows"
    _check_encode(task, canonicalize_options(task, caches[0], seed), data[0].manifest.spec)
    result = _run(replace(experiment, task=caches[0]), folder / "run")
    scores = [record.metrics for record in read_records(result.folder)[0]]
    assert len(scores) == 3, f"{name}: {len(scores)} rounds are recorded, not 3"


def _check_encode(task: Task, options: TaskOptions, spec: InputSpec) -> None:
    """Encode some rows at once and in pieces, as files and workers have them, one without a row among them."""
    rows = read_rows(task, options, raw_folder(task, options), _quiet)[0].slice(0, 100)
    cuts = 0, 0, rows.num_rows // 2, rows.num_rows
    try:
        pieces = [task.encode(rows.slice(start, end - start), spec) for start, end in pairwise(cuts)]
    except Exception as error:
        raise AssertionError(f"{task.name}: encode fails on a piece of its rows: {first_line(error)}") from error
    whole, pieced = (list_parts(table["x"]) for table in (task.encode(rows, spec), pa.concat_tables(pieces)))
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(whole, pieced, strict=True)), (
        f"{task.name}: encode gives a row another x where other rows stand beside it: what all rows say is for fit"
    )


def check_network(name: str, data: str, folder: Path, **model: Any) -> None:
    """Check a network of a plug-in as ``check_experiment`` does, with FedAvg and without Ray, which does not know the
    network, and that its model is read again.

    name: as ``model.network`` takes it. data: ``task.name`` of a task with inputs that it is for. folder: an empty one
    for runs. model: options of ``ModelOptions``, such as ``width=32``. Errors: AssertionError; InputError where it
    fails, or gives another shape than it has to.
    """
    whole = {"skip_zero_rows": False, "microbatch_tokens": 0, "batch_size": 64}  # BatchNorm needs a mini-batch at once
    options = {"network": name, "width": 16, "dropout": 0.2} | model
    experiment = small_experiment("fedavg", data, model=options, optimizer=whole, task=ANY)
    check_experiment(experiment, folder, ray=False)
    saved = load_model(folder / "whole" / "model", name).model
    weights = messages.checksum(saved.state_dict())
    assert weights == read_result(folder / "whole")["checksum"], f"{name}: its saved model has other weights"


@contextmanager
def stopped_before(round_: int) -> Iterator[None]:
    """Have the run of the block interrupted before a round is computed, as by Ctrl-C, and go on behind the block.

    Errors: AssertionError where the run ended before.
    """
    plain, stopped = RoundLoop._run_round, list[int]()

    def stopping(self: RoundLoop, number: int) -> None:
        if number == round_:
            stopped.append(number)
            raise KeyboardInterrupt
        plain(self, number)

    with patch.object(RoundLoop, "_run_round", stopping):
        try:
            yield
        except KeyboardInterrupt:
            if not stopped:
                raise
    assert stopped, f"the run ended before round {round_}"


def _quiet(line: str) -> None:
    """Ignore a line of a run's log."""


@contextmanager
def without_pictures() -> Iterator[None]:
    """Have runs within the block draw no pictures at their end, which would take most of the time of a small one."""
    with patch.object(lifecycle, "_draw", lambda run_spec, folder, result: (folder / "report").mkdir(exist_ok=True)):
        yield


def _run(experiment: Experiment, folder: Path) -> Result:
    with without_pictures():
        return lifecycle.run(experiment, folder, _quiet, quiet=True)


def _check_equal(whole: Result, got: Result, what: str) -> None:
    assert got.checksum == whole.checksum, f"{what}: ends with other weights than one in one process"
    assert got.scores == whole.scores, f"{what}: has other scores than one in one process"
    for expected, record in zip(_records(whole), _records(got), strict=True):
        differing = sorted(name for name in expected.keys() | record.keys() if expected.get(name) != record.get(name))
        assert not differing, f"{what}: round {expected['round']:g} has other records: {', '.join(differing[:5])}"


def _records(result: Result) -> list[dict[str, float]]:
    """Return the recorded rounds of a run, without what depends on the machine."""
    return [
        {name: value for name, value in record.metrics.items() if not name.startswith(MACHINE)}
        | {"round": record.round}
        for record in read_records(result.folder)[0]
    ]


def _check_options(experiment: Experiment) -> None:
    method = experiment.method
    again = from_tree(to_tree(experiment)).method
    assert again == method, f"{method.name}: its options, read from a preset, are {again} and not {method}"
    unread = sorted(method.unused.keys() - options_of(experiment).keys())
    assert not unread, f"{method.name}: unused names {', '.join(unread)}, which are no options"


def _check_messages(experiment: Experiment) -> None:
    """Play two rounds by hand, and look at all that travels and at what must not change."""
    name = experiment.method.name
    run_spec = make_run_spec(experiment, _quiet)
    runner = ClientRunner(run_spec)
    server, backwards = (server_of(run_spec, runner) for _ in range(2))
    memories: dict[int, Any] = {}
    clients = range(min(3, experiment.task.clients))
    for round_ in (1, 2):
        state, before = server.state, messages.checksum(server.state)
        sent = server.broadcast(round_)
        backwards.broadcast(round_)
        _check_wire(sent, f"{name}: what broadcast returns")
        as_sent, updates = messages.checksum(sent), {}
        for client in clients:
            alone = server.client_message(client)
            _check_wire(alone, f"{name}: what client_message returns")
            try:
                result = runner.fit(client, round_, sent, memories.get(client, {}), alone)
            except Exception as error:
                raise AssertionError(f"{name}: a client fails: {first_line(error)}") from error
            assert messages.checksum(sent) == as_sent, f"{name}: a client writes into what it was sent: copy it first"
            _check_wire(result.update, f"{name}: what update returns")
            _check_wire(result.memory, f"{name}: what memory returns")
            updates[client], memories[client] = messages.unpack(messages.pack(result.update)), result.memory
        for some, order in ((server, clients), (backwards, reversed(clients))):
            for client in order:
                some.collect(round_, client, messages.unpack(messages.pack(updates[client])))
        same = messages.checksum(state) == before
        assert same, f"{name}: broadcast or client_message changes the server's state: return a new one"
        try:
            server.aggregate(round_, clients)
        except RejectedError as error:
            raise AssertionError(f"{name}: {error}") from error
        same = messages.checksum(state) == before
        assert same, f"{name}: merge or aggregate changes the state that it is given: return a new one"
        backwards.aggregate(round_, clients)
        equal = messages.checksum(server.state) == messages.checksum(backwards.state)
        assert equal, (
            f"{name}: the state after a round depends on the order in which clients answer, or contribution, merge or"
            " aggregate on something else than their arguments"
        )


def _check_wire(message: object, what: str) -> None:
    try:
        arrived = messages.unpack(messages.pack(message))
    except TypeError as error:
        raise AssertionError(f"{what}: {error}") from error
    assert messages.checksum(arrived) == messages.checksum(message), f"{what} arrives otherwise than it was sent"
