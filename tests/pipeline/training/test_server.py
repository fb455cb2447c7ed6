"""The server: it validates on the validation split, which is what gates and selection go by; the grid of its sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Update
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import scaffold
from anchorfl.pipeline.methods.fedrep import RepUpdate
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training import evaluation
from anchorfl.pipeline.training.errors import RejectedError
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest import prepared
from tests.runs import nobody, quiet


def test_the_gate_goes_by_the_validation_split_and_never_by_the_test_split(experiment):
    e = experiment("fedalign", "toy-multi", options={"positive_f1_gate": 0.1})
    server = Server(make_run_spec(replace(e, task=replace(e.task, validation=0.3)), quiet))
    scores = server.scores(["validation", "test"])
    sent_C = server.broadcast(1).score_C
    expected = {split: torch.from_numpy(s.per_class["f1"]) for split, s in scores.items()}
    assert torch.allclose(sent_C, expected["validation"].to(sent_C))
    assert not torch.allclose(sent_C, expected["test"].to(sent_C)), "the two splits must differ to tell"


def updates_of(server, large=()):
    """Updates of clients, a step of 1 in every weight; of some of them by far too large."""
    sent = server.broadcast(1).weights
    return {c: Update({n: v + (1e9 if c in large else 1.0) for n, v in sent.items()}) for c in range(4)}


def private_server(experiment, **more):
    federation = {"clip_norm": 1.0, "dp_noise": 1.0, "clients_per_round": 0, **more}
    return Server(make_run_spec(experiment("fedavg", options={"weighting": "uniform"}, federation=federation), quiet))


def merged_after_faults(server, updates):
    """Return the clients that are merged, once the server has refused those that it refuses."""
    for client, update in updates.items():
        server.collect(1, client, update)
    left = [*updates]
    try:
        server.aggregate(1, left)
    except RejectedError as error:
        left = [client for client in left if client not in error.reasons]
        server.aggregate(1, left)
    return left


def test_with_privacy_a_client_is_judged_by_itself(experiment):
    """By the median of the others one client decided whether others were in the sum, and epsilon counts one alone."""
    got = [merged_after_faults(s := private_server(experiment), updates_of(s, large)) for large in ((0, 1, 2), (0, 1))]
    assert got == [[3], [2, 3]]


def test_noise_is_drawn_anew_for_another_mean(experiment):
    """Of a round that is computed again, with other answers, the models would differ by these alone."""
    weights = []
    for clients in (range(4), range(4), range(3)):
        server = private_server(experiment)
        sent, updates = server.broadcast(1).weights, updates_of(server)
        merged_after_faults(server, {client: updates[client] for client in clients})
        weights.append({name: value - sent[name] for name, value in server.state.weights.items()})
    assert messages.checksum(weights[0]) == messages.checksum(weights[1])
    name = next(iter(weights[0]))
    apart = (weights[0][name] - weights[2][name]).std()
    assert apart > 0.05  # the steps are the same everywhere


def test_the_head_of_a_client_takes_no_tensor_of_the_body(experiment):
    """The body is held against what was sent, and its step is cut: a head of its names passed."""
    server = Server(make_run_spec(experiment("fedrep", federation={"clip_norm": 0.1}), quiet))
    sent = server.broadcast(1).weights
    head = {name: value.clone() for name, value in server.state.weights.items() if name not in sent}
    for client in range(4):
        more = {next(iter(sent)): torch.full_like(next(iter(sent.values())), 1e6)} if client == 3 else {}
        server.collect(1, client, RepUpdate({n: v.clone() for n, v in sent.items()}, head | more))
    server.aggregate(1, range(4))
    assert all(torch.equal(server.state.weights[name], value) for name, value in sent.items())


def test_the_gate_and_the_scores_of_a_round_share_one_pass(experiment, monkeypatch):
    """And a server that did not score the weights, as after a restart, gives the same bits by a pass of its own."""
    passes = []
    real = evaluation.logits_of
    monkeypatch.setattr(evaluation, "logits_of", lambda model, data: passes.append(len(data)) or real(model, data))
    e = experiment("fedalign", "toy-multi", options={"positive_f1_gate": 0.1})
    run_spec = make_run_spec(replace(e, task=replace(e.task, validation=0.3)), quiet)
    server, restarted = Server(run_spec), Server(run_spec)
    server.scores(["validation"])
    shared_C = server.broadcast(1).score_C
    assert len(passes) == 1
    restarted.restore(server.snapshot())
    assert torch.equal(restarted.broadcast(1).score_C, shared_C)
    assert len(passes) == 2
    server.restore(server.snapshot())
    assert torch.equal(server.broadcast(1).score_C, shared_C)
    assert len(passes) == 3


def test_a_run_reads_its_manifest_once(experiment, tmp_path, monkeypatch):
    """Driver, server, clients and records share one reading in a process."""
    reads = []
    real = prepared.read_summary
    monkeypatch.setattr(prepared, "read_summary", lambda folder: reads.append(folder) or real(folder))
    run(replace(experiment("fedavg", "toy-single"), output=str(tmp_path / "run")), tmp_path / "run", quiet)
    assert len(set(reads)) == 1
    assert len(reads) <= 2  # the ingest's own, which has just written it, and one for all others


def test_a_state_that_the_servers_own_step_broke_ends_the_run_in_the_round_that_broke_it(experiment, monkeypatch):
    """No client is blamed, and no checkpoint has it: the weights alone would be fine."""
    real = scaffold.control_after

    def broken(*arguments):
        return {name: torch.full_like(value, torch.inf) for name, value in real(*arguments).items()}

    monkeypatch.setattr(scaffold, "control_after", broken)
    executor = SerialExecutor(make_run_spec(experiment("scaffold"), quiet))
    with pytest.raises(InputError, match=r"round 1: the server's own step, not a client, .* 'control/.* non-finite"):
        executor.round(1, [0, 1, 2], nobody)
    assert not messages.not_finite(executor.snapshot())


@pytest.mark.parametrize(("selection", "most"), [("fixed", 10), ("poisson", 20)])
def test_the_grid_is_for_all_clients_that_a_round_may_have(experiment, selection, most):
    """Ten of twenty in every round; or each by a draw of its own, so perhaps all."""
    e = experiment("fedavg", options={"weighting": "uniform"})
    drawn = replace(e.federation, selection=selection, clip_norm=1.0, dp_noise=1.0, dp_delta=0.01, clients_per_round=10)
    e = replace(e, task=replace(e.task, clients=20), federation=drawn)
    assert Server(make_run_spec(e, quiet)).largest_weights == {"": most}


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_the_grid_is_for_the_largest_clients_that_may_be_selected(experiment, clients):
    """Which stand anywhere among the others; in a mean by samples."""
    e = experiment("fedavg", options={"weighting": "samples"}, federation={"clients_per_round": clients})
    e = replace(e, task=replace(e.task, partition="dirichlet"))
    server = Server(make_run_spec(e, quiet))
    rows = list(server.cards.rows)
    assert rows not in (sorted(rows), sorted(rows, reverse=True))
    assert server.largest_weights == {"": sum(sorted(rows)[-clients:])}
