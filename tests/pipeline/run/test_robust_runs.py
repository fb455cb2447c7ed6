"""Runs with robust merges: one poisoned client, what is counted, which methods and options are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import ROBUST, clip_step, krum, mean_of, median_of, trimmed_mean_of
from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState, Update
from anchorfl.pipeline.config.experiment import digest, to_tree
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.schema import from_tree
from anchorfl.pipeline.execution.executor import SerialExecutor, server_of
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from tests.conftest import SMALL
from tests.runs import nobody, quiet

ALL = {"rounds": 6, "clients_per_round": 0, "quorum": 1.0}
MERGES = [
    {"aggregation": "median"},
    {"aggregation": "trimmed_mean", "trim_fraction": 0.2},
    {"aggregation": "krum"},
    {"aggregation": "krum", "krum_num_selected": 2},
    {"clip_norm": 1.0},
]
"""Each withstands one client of five."""
METHODS_THAT_ALLOW = {
    (): (NONE := {"anchor", "feddyn", "fedmlp", "fedproto", "fedtsp", "scaffold"}),
    ("median", "trimmed_mean"): {"fednh"},
    ROBUST: set(METHODS) - NONE - {"fednh"},
}


@dataclass(frozen=True, kw_only=True)
class Poisoned(Averaging):
    """FedAvg whose client 2 sends 1000 in every coordinate."""

    name = "fedavg"

    def trainer(self, ctx: ClientContext[ServerState]) -> PoisonedTrainer:
        return PoisonedTrainer(ctx)


class PoisonedTrainer(AveragingTrainer):
    def update(self):
        sent = super().update()
        if self.ctx.card.client != 2:
            return sent
        return Update({name: torch.full_like(value, 1e3) for name, value in sent.weights.items()})


@pytest.fixture
def five(experiment):
    """Five clients that know every class, all in every round."""

    def make(method="fedavg", options=None, **federation):
        e = experiment(method, options=options)
        task = e.task if e.task.partition == "one_class" else replace(e.task, clients=5, partition="iid")
        return replace(e, task=task, federation=replace(e.federation, **(ALL | federation)))

    return make


def scored(e, method=None):
    """Test accuracy after the last round, and what the last round counted."""
    run_spec = make_run_spec(e, quiet)
    executor = SerialExecutor(replace(run_spec, experiment=replace(e, method=method)) if method else run_spec)
    for round_ in range(1, e.federation.rounds + 1):
        outcome = executor.round(round_, range(e.task.clients), nobody)
        assert outcome.answered == tuple(range(e.task.clients)), "who is clipped or not chosen has answered"
    return executor.scores(["test"])["test"].values["accuracy"], faults(dict(outcome.counts))


def faults(counts):
    """Return the counts of an aggregation, without its seconds."""
    assert counts.pop("time/aggregate") > 0
    return counts


def test_one_poisoned_client_ruins_the_mean(five):
    good, counts = scored(five())
    bad, _ = scored(five(), Poisoned())
    assert good > 0.9
    assert bad < 0.4  # four classes
    assert counts == {}


@pytest.mark.parametrize("options", MERGES, ids=str)
def test_one_poisoned_client_does_not_ruin_a_robust_merge(five, options):
    accuracy, counts = scored(five(**options), Poisoned())
    assert accuracy > 0.9
    unchosen = {"krum": 5.0 - options.get("krum_num_selected", 1)}.get(options.get("aggregation"))
    assert counts.get("aggregation/rejected_by_krum") == unchosen
    assert (counts.get("aggregation/clipped", 0) >= 1) == ("clip_norm" in options)


def test_counts_stand_in_the_records_where_the_option_is_on(five, tmp_path):
    e = five(aggregation="krum", clip_norm=0.5, rounds=2)
    run(e, tmp_path / "krum", quiet)
    records = read_records(tmp_path / "krum")[0]
    assert [r.metrics.get("aggregation/rejected_by_krum") for r in records] == [None, 4.0, 4.0]
    assert all(0 <= r.metrics["aggregation/clipped"] <= 5 for r in records[1:])
    run(five(rounds=1), tmp_path / "mean", quiet)
    assert (
        not {"aggregation/clipped", "aggregation/rejected_by_krum"}
        & read_records(tmp_path / "mean")[0][1].metrics.keys()
    )


def test_options_of_before_merge_by_the_function_of_before(experiment):
    """``mean_of`` itself, on the updates themselves."""
    run_spec = make_run_spec(experiment(), quiet)
    assert server_of(run_spec)._context(1).average is mean_of
    robust = replace(run_spec, experiment=experiment(federation={"aggregation": "median", "quorum": 1.0}))
    assert server_of(robust)._context(1).average is not mean_of


def test_a_clip_that_nothing_reaches_and_a_mean_give_one_checksum(five, tmp_path):
    plain = run(five(rounds=2), tmp_path / "plain", quiet)
    wide = run(five(rounds=2, clip_norm=1e6), tmp_path / "wide", quiet)
    assert wide.checksum == plain.checksum
    assert read_records(tmp_path / "wide")[0][2].metrics["aggregation/clipped"] == 0


def test_a_clip_bounds_the_step_of_the_server(five):
    executor = SerialExecutor(make_run_spec(five(clip_norm=0.3, rounds=1), quiet))
    before = executor.snapshot()
    executor.round(1, range(5), nobody)
    after = executor.snapshot()
    step2 = sum(float((after[n].double() - before[n].double()).square().sum()) for n in before)
    assert 0 < step2**0.5 <= 0.3 * (1 + 1e-6)


def test_the_median_of_a_round_is_that_of_the_clients(five):
    """By the updates themselves, trained apart."""
    e = five(aggregation="median", rounds=1)
    executor = SerialExecutor(make_run_spec(e, quiet))
    sent = executor.server.broadcast(1)
    updates = [executor.runner.fit(c, 1, sent, {}).update.weights for c in range(5)]
    executor.round(1, range(5), nobody)
    want = median_of(updates)
    assert messages.checksum(executor.server.state.weights) == messages.checksum(want)
    assert messages.checksum(want) != messages.checksum(mean_of(updates, [1] * 5))


# ----------------------------------------------------------------------------------------------------- method by method

ROWS = {"fedalign": {"head.table"}, "fednh": {"head.rows"}, "fedaws": {"head.rows"}}
"""What is merged class by class, over the clients that hold the class."""


OWN_MERGES = ["fedavg", "fedalign", "fedaws", "fedbm", "fednh", "fedrep"]
"""Methods with a merge of their own, and FedAvg, whose merge the others have."""


@pytest.fixture
def answered(request, five):
    """(options, setup, updates of all clients in round 1) of a method."""
    e = five(request.param, {"head_epochs": 1} if request.param == "fedrep" else None, epochs=1)
    run_spec = make_run_spec(e, quiet)
    executor = SerialExecutor(run_spec)
    sent, clients = executor.server.broadcast(1), range(e.task.clients)
    return e, run_spec, [executor.runner.fit(c, 1, sent, {}, executor.server.client_message(c)).update for c in clients]


def merged(run_spec, e, updates, clients=None, **options):
    """(weights, counts) after these updates were merged with these options."""
    server = server_of(replace(run_spec, experiment=replace(e, federation=replace(e.federation, **options))))
    clients = list(range(len(updates))) if clients is None else clients
    for client in clients:
        server.collect(1, client, updates[client])
    counts = server.aggregate(1, clients)
    return server.state.weights, faults(counts)


@pytest.mark.parametrize("merge", ["median", "trimmed_mean"])
@pytest.mark.parametrize("answered", OWN_MERGES, indirect=True)
def test_what_is_sent_whole_is_merged_robustly_and_rows_by_their_holders(answered, merge):
    e, run_spec, updates = answered
    plain, _ = merged(run_spec, e, updates)
    got, counts = merged(run_spec, e, updates, aggregation=merge, trim_fraction=0.3)
    sent = [u.weights | getattr(u, "head", {}) for u in updates]
    want = median_of(sent) if merge == "median" else trimmed_mean_of(sent, 0.3)
    rows = ROWS.get(e.method.name, set())
    assert counts == {}
    assert got.keys() == plain.keys()
    for name, value in got.items():
        assert torch.equal(value, want[name] if name in want.keys() - rows else plain[name]), name
    assert any(not torch.equal(value, plain[name]) for name, value in got.items())


@pytest.mark.parametrize("answered", ["fedavg", "fedalign", "fedbm", "fedrep"], indirect=True)
def test_krum_merges_those_that_it_chose(answered):
    """The toy has four one-class clients, fewer than Krum needs."""
    e, run_spec, updates = answered
    chosen = krum([u.weights for u in updates], 1, 2)
    got, counts = merged(run_spec, e, updates, aggregation="krum", krum_num_selected=2)
    want, _ = merged(run_spec, e, updates, chosen)
    assert counts == {"aggregation/rejected_by_krum": 3.0}
    assert messages.checksum(got) == messages.checksum(want)


@pytest.mark.parametrize("answered", ["fedavg", "fedalign", "fedaws", "fedbm", "fedrep"], indirect=True)
def test_a_clip_cuts_what_is_merged(answered):
    e, run_spec, updates = answered
    sent = server_of(run_spec).broadcast(1).weights
    short = [replace(u, weights=clip_step(u.weights, sent, 0.05)[0]) for u in updates]
    got, counts = merged(run_spec, e, updates, clip_norm=0.05)
    assert counts == {"aggregation/clipped": float(len(updates))}
    assert messages.checksum(got) == messages.checksum(merged(run_spec, e, short)[0])


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_methods_allow():
    for allowed, names in METHODS_THAT_ALLOW.items():
        assert {n for n, method in METHODS.items() if method(**SMALL.get(n, {})).robust == allowed} == names


def test_anchor_without_control_variates_allows_what_fedavg_does(experiment, tmp_path):
    e = experiment(
        "anchor", options={"control_variates": False}, federation={"clients_per_round": 4, "quorum": 1.0, "rounds": 2}
    )
    robust = replace(e, federation=replace(e.federation, aggregation="median"))
    assert run(robust, tmp_path / "robust", quiet).checksum != run(e, tmp_path / "mean", quiet).checksum


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (
            "scaffold", {"aggregation": "median"},
            "federation.aggregation = 'median': method 'scaffold' does not allow it; set federation.aggregation to"
            " 'mean', or"
            " choose another method (docs/robust-aggregation.md says why)",
        ),
        (
            "anchor", {"aggregation": "median"},
            "federation.aggregation = 'median': method 'anchor' does not allow it; set federation.aggregation to"
            " 'mean', or"
            " choose other options of [method] (docs/robust-aggregation.md says why)",
        ),
        (
            "feddyn", {"clip_norm": 2.0},
            "federation.clip_norm = 2: method 'feddyn' does not allow it; set federation.clip_norm to 0, or choose"
            " another method (docs/robust-aggregation.md says why)",
        ),
        (
            "fednh", {"aggregation": "krum"},
            "federation.aggregation = 'krum': method 'fednh' does not allow it (it allows median, trimmed_mean); set"
            " federation.aggregation to 'mean', or choose another method (docs/robust-aggregation.md says why)",
        ),
    ],
)  # fmt: skip
def test_a_method_that_does_not_allow_a_merge_says_so(five, tmp_path, name, options, text):
    with pytest.raises(InputError) as caught:
        run(five(name, **options), tmp_path / "run", quiet)
    assert str(caught.value) == text
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trim_fraction": 0.5},
         r"^federation.trim_fraction = 0.5: must be in \[0, 0.5\), the share cut at each side$"),
        ({"trim_fraction": float("nan")}, r"^federation.trim_fraction = nan: must be in"),
        ({"krum_num_malicious": 0}, "^federation.krum_num_malicious = 0: must be at least 1$"),
        ({"krum_num_selected": 0}, "^federation.krum_num_selected = 0: must be at least 1$"),
        ({"clip_norm": -1.0}, "^federation.clip_norm = -1.0: must be above 0 and finite, or 0 for no clip$"),
        ({"clip_norm": float("inf")}, "^federation.clip_norm = inf: must be above 0"),
        ({"batched_clients": True, "aggregation": "median"},
         "^federation.aggregation = 'median': federation.batched_clients computes the mean"),
        ({"batched_clients": True, "clip_norm": 1.0},
         "^federation.clip_norm = 1: federation.batched_clients computes the mean"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        FederationOptions(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"aggregation": "median", "quorum": 0.4},
            "federation.aggregation = 'median': the median of 2 withstands no faulty client, that of 3 does;"
            " federation.quorum = 0.4 of 5 selected clients lets a round have 2: raise quorum or clients_per_round, or"
            " change the aggregation",
        ),
        ({"aggregation": "trimmed_mean", "trim_fraction": 0.1},
         "trim_fraction = 0.1 of 5 answers cuts nobody; federation.quorum = 1 of 5"),
        ({"aggregation": "krum", "quorum": 0.8},
         "krum_num_malicious = 1 needs 5 answers, not 4; federation.quorum = 0.8 of 5"),
        ({"aggregation": "krum", "krum_num_selected": 3},
         "krum_num_selected = 3 is more than answers - krum_num_malicious - 2, which is 2; fed"),
    ],
)  # fmt: skip
def test_a_merge_that_could_withstand_nobody_is_refused(five, options, text):
    with pytest.raises(ValueError, match=r"^federation\.aggregation") as caught:
        five(**options)
    assert text in str(caught.value)


def test_a_preset_with_such_options_ends_in_one_line():
    e = to_tree(read_preset("digits/fedavg"))
    e["federation"] |= {"aggregation": "krum"}
    with pytest.raises(
        InputError, match=r"^federation.aggregation = 'krum': krum_num_malicious = 1 needs 5 answers, not 3; "
    ):
        from_tree(e)
    e["federation"] |= {"aggregation": "medain"}
    with pytest.raises(InputError, match=r"federation.aggregation = 'medain' \(did you mean 'median'\?\)"):
        from_tree(e)


def test_digests_know_the_options():
    e = read_preset("digits/fedavg")
    others = [
        replace(e, federation=replace(e.federation, **o)) for o in ({"aggregation": "median"}, {"clip_norm": 1.0})
    ]
    assert len({digest(one) for one in (e, *others)}) == 3
