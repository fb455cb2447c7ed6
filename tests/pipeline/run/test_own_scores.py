"""Scores of clients' own models: what is scored and averaged, and how a run without a global model ends."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.execution.executor import SerialExecutor, scored_as
from anchorfl.pipeline.execution.memory_probe import measure_client, measure_server
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.evaluation import evaluate, mean_of_models
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.metrics.scores import Scores
from anchorfl.testing import stopped_before
from tests.runs import figures, nobody, quiet

OWN = (
    ("fedproto", {}),
    ("fedproto", {"inference": "prototype"}),
    ("fedrep", {"evaluate_on": "clients", "head_epochs": 1}),
)
FEW = {"federation": {"clients_per_round": 2, "rounds": 4, "epochs": 1}}


def scores(values, per_class=(0.0,), notes=()):
    return Scores("threshold", values, {"f1": np.array(per_class)}, {"rows": 7.0}, notes)


def test_the_mean_over_models_is_that_of_every_figure():
    one = {"test": scores({"f1_macro": 0.25, "accuracy": 1.0}, (0.0, 1.0), ("a", "b"))}
    two = {"test": scores({"f1_macro": 0.75, "accuracy": 0.5}, (0.5, 0.5), ("b", "c"))}
    three = {"test": scores({"f1_macro": 0.5}, (1.0, 0.0))}
    got = mean_of_models([one, two, three])["test"]
    assert got.values == {"f1_macro": 0.5}  # a figure that one of them lacks has no mean
    assert got.per_class["f1"].tolist() == [0.5, 0.5]
    assert (got.counts, got.notes) == ({"rows": 7.0}, ("a", "b", "c"))
    assert mean_of_models([one, two])["test"].values == {"f1_macro": 0.5, "accuracy": 0.75}
    assert mean_of_models([{}, {}]) == {}


def test_those_that_have_not_been_trained_are_scored_once():
    assert scored_as(4, {}) == [0, 0, 0, 0]
    assert scored_as(4, {0: 1, 2: 1}) == [0, 1, 2, 1]
    assert scored_as(2, {0: 1, 1: 1}) == [0, 1]


def test_the_score_is_the_mean_over_all_clients_of_their_networks(experiment):
    """After two rounds with clients 1 and 3 alone: the others have the first weights."""
    e = experiment("fedproto")
    run_spec = make_run_spec(e, quiet)
    executor, model = SerialExecutor(run_spec), run_spec.model()
    first = {k: v.clone() for k, v in model.state_dict().items()}
    rows = run_spec.data().split("test", Objective("single"))
    before = executor.scores(["test"])["test"]
    assert before.values == evaluate(model, first, rows, Objective("single")).scores().values
    for round_ in (1, 2):
        executor.round(round_, [1, 3], nobody)
    own = {
        c: {k.removeprefix("personal."): v for k, v in executor.memory(c).items() if k.startswith("personal.")}
        for c in (1, 3)
    }
    each = [evaluate(model, own.get(c) or first, rows, Objective("single")) for c in range(4)]
    got = executor.scores(["validation", "test"])
    assert list(got) == ["validation", "test"]
    assert got["test"].values["f1_macro"] == pytest.approx(np.mean([d.macro_f1 for d in each]), abs=1e-15)
    assert got["test"].values["accuracy"] == pytest.approx(np.mean([d.accuracy for d in each]), abs=1e-15)
    assert np.allclose(got["test"].per_class["f1"], np.mean([d.f1_C for d in each], axis=0), atol=1e-15)
    assert len({d.accuracy for d in each}) > 1
    assert executor.scores(["test"])["test"].values == got["test"].values  # scoring changes nothing


@pytest.mark.parametrize(("inference", "passes"), [("classifier", [3, 1, 0]), ("prototype", [3, 3, 3])])
def test_a_model_that_has_not_changed_is_scored_once(experiment, monkeypatch, inference, passes):
    """With the nearest prototype every model may have other scores after a round."""
    e = experiment("fedproto", options={"inference": inference})
    executor, asked = SerialExecutor(make_run_spec(e, quiet)), []
    score = executor.runner.scoring.scores
    monkeypatch.setattr(executor.runner.scoring, "scores", lambda *given: asked.append(given) or score(*given))
    for number, (clients, expected) in enumerate(zip(([1, 3], [3], []), passes, strict=True), 1):
        if clients:
            executor.round(number, clients, nobody)
        asked.clear()
        got = executor.scores(["test"])["test"]
        assert len(asked) == expected
        assert len(executor.runner.cached_scores) <= e.task.clients
        executor.runner.cached_scores, kept = {}, executor.runner.cached_scores
        plain = executor.scores(["test"])["test"]
        executor.runner.cached_scores = kept
        assert got.values == plain.values


def test_fedreps_own_models_are_the_mean_body_with_own_heads(experiment):
    e = experiment("fedrep", options={"evaluate_on": "clients", "head_epochs": 2})
    run_spec = make_run_spec(e, quiet)
    executor, model = SerialExecutor(run_spec), run_spec.model()
    first = {k: v.clone() for k, v in model.state_dict().items() if k.startswith("head.")}
    executor.round(1, [1, 3], nobody)
    body = {k.removeprefix("weights/"): v for k, v in executor.snapshot().items()}
    rows, each = run_spec.data().split("test", Objective("single")), []
    for client in range(4):
        head = {
            k.removeprefix("personal."): v for k, v in executor.memory(client).items() if k.startswith("personal.")
        } or first
        each.append(evaluate(model, body | head, rows, Objective("single")).macro_f1)
    assert executor.scores(["test"])["test"].values["f1_macro"] == pytest.approx(np.mean(each), abs=1e-15)


@pytest.mark.parametrize(("method", "options"), OWN, ids=str)
def test_scoring_in_between_changes_no_training(experiment, method, options):
    e = experiment(method, options=options, **FEW)
    ends = []
    for scored in (True, False):
        executor = SerialExecutor(make_run_spec(e, quiet))
        for round_ in (1, 2):
            executor.round(round_, [0, round_], nobody)
            if scored:
                executor.scores(["validation", "test"])
        ends.append(
            [messages.checksum(executor.snapshot()), *(messages.checksum(executor.memory(c)) for c in range(3))]
        )
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("method", "options"), OWN, ids=str)
def test_a_run_ends_without_a_model_and_says_so(experiment, tmp_path, capsys, method, options):
    said, folder = [], tmp_path / "run"
    e = experiment(method, options=options, **FEW)
    result = run(e, folder, said.append)
    assert "scores are means over all clients of what their own models score" in said
    assert f"{method} trains no global model: none is saved" in capsys.readouterr().out
    assert not (folder / "model").exists()
    content = json.loads((folder / "result.json").read_text())
    last = read_records(folder)[0][-1].metrics
    assert content["scores"] == result.scores
    assert {f"{s}/{m}": v for s, values in result.scores.items() for m, v in values.items()}.items() <= last.items()
    assert {"metrics.jsonl", "per_class.csv", "report"} <= {p.name for p in folder.iterdir()}
    assert resume(folder, quiet).scores == result.scores
    (tmp_path / "samples.txt").write_text("one text\n")
    for command, end in ((["predict", str(folder), str(tmp_path / "samples.txt")], "predict with"),
                         (["diagnose", str(folder)], "diagnose")):  # fmt: skip
        assert main(command) == 2
        assert (
            capsys.readouterr()
            .err.strip()
            .endswith(f"{folder}: {method} trains no global model: there is none to {end}")
        )


def test_an_unfinished_run_of_another_method_is_told_so_as_before(experiment, tmp_path, capsys):
    run(experiment("fedavg"), tmp_path / "run", quiet)
    (tmp_path / "run" / "model" / "model.json").unlink()
    (tmp_path / "samples.txt").write_text("one text\n")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "samples.txt")]) == 2
    assert "holds no trained model" in capsys.readouterr().err


@pytest.mark.parametrize("test", ["always", "last", "never"])
@pytest.mark.parametrize(("method", "options"), OWN[1:], ids=str)
def test_the_selected_round_counts_by_its_scores(experiment, tmp_path, method, options, test):
    """``last`` cannot wait for the end, when the models of an earlier round are gone: it scores with validation."""
    e = experiment(
        method, options=options, seed=4, evaluation={"model_selection": "best_validation", "test": test},
        federation={"clients_per_round": 2, "rounds": 6, "epochs": 1}, optimizer={"lr": 0.05, "microbatch_tokens": 64},
    )  # fmt: skip
    result = run(e, tmp_path / "run", quiet)
    records = read_records(tmp_path / "run")[0]
    best = max(records[1:], key=lambda r: (r.metrics["validation/f1_macro"], -r.round))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["round"] == best.round < 6
    assert list(result.scores) == (["validation"] if test == "never" else ["validation", "test"])
    for split, values in result.scores.items():
        assert values == {name: best.metrics[f"{split}/{name}"] for name in values}
    tested = [r.round for r in records if "test/f1_macro" in r.metrics]
    assert tested == ([] if test == "never" else list(range(7)))


def test_last_of_the_last_round_is_scored_once(experiment, tmp_path):
    e = experiment("fedproto", evaluation={"test": "last"}, **FEW)
    assert e.tested == "last"
    assert replace(e, evaluation=replace(e.evaluation, model_selection="best_validation")).tested == "always"
    assert experiment("fedrep", evaluation={"test": "last", "model_selection": "best_validation"}).tested == "last"
    result = run(e, tmp_path / "run", quiet)
    assert [r.round for r in read_records(tmp_path / "run")[0] if "test/f1_macro" in r.metrics] == [4]
    assert list(result.scores) == ["validation", "test"]


@pytest.mark.parametrize(
    ("method", "options", "select"), [*((*m, "last") for m in OWN), ("fedproto", {}, "best_validation")], ids=str
)
def test_stopped_and_resumed(experiment, tmp_path, method, options, select):
    """Memories come back from the checkpoint, those of clients that never took part as none."""
    e = experiment(method, options=options, evaluation={"model_selection": select, "test": "last"}, **FEW)
    whole = run(e, tmp_path / "whole", quiet)
    with stopped_before(3):
        run(e, tmp_path / "parts", quiet)
    parts = resume(tmp_path / "parts", quiet)
    assert (parts.checksum, parts.scores) == (whole.checksum, whole.scores)
    for one, other in zip(*(read_records(tmp_path / name)[0] for name in ("whole", "parts")), strict=True):
        assert figures(one.metrics) == figures(other.metrics)
        assert one.per_class == other.per_class


def test_the_checksum_is_that_of_what_the_server_has(experiment, finished_run, tmp_path):
    """FedProto's server has no weights: prototypes tell one run from another."""
    one, two = (finished_run(experiment("fedproto", seed=s)).checksum for s in (1, 2))
    assert one != two
    assert one == run(experiment("fedproto"), tmp_path / "again", quiet).checksum


def test_a_model_to_register_is_refused_before_anything_starts(experiment):
    with pytest.raises(ValueError, match=r"\Atracking\.register: fedproto trains no global model to register: leave"):
        experiment("fedproto", tracking={"uri": "", "register": "mine"})


@pytest.mark.parametrize(
    ("metrics", "select"), [("ranking", "best_validation"), ("classification", "best_validation_sum")]
)
def test_other_figures_are_averaged_too(experiment, tmp_path, metrics, select):
    """Before there are prototypes all classes are equal, and no figure is NaN."""
    e = experiment(
        "fedproto",
        options={"inference": "prototype"},
        evaluation={"metrics": metrics, "model_selection": select},
        **FEW,
    )
    result = run(e, tmp_path / "run", quiet)
    records, by = read_records(tmp_path / "run")[0], e.evaluation.chosen_by.name
    assert result.scores["validation"][by] == max(r.metrics[f"validation/{by}"] for r in records[1:]) < 1
    assert all(np.isfinite(v) for r in records for v in r.metrics.values())


def test_the_probe_scores_where_the_run_does(experiment):
    """In this process: a client trains and scores, and the server merges and does not."""
    for method, options in (("fedproto", {}), ("fedrep", {}), ("fedrep", {"evaluate_on": "clients"})):
        run_spec = make_run_spec(experiment(method, options=options), quiet)
        server = SerialExecutor(run_spec).server
        sent = messages.pack({"broadcast": server.broadcast(1), "client_message": {}})
        client, update = measure_client(run_spec, 0, sent, 1, on_gpu=False)
        assert client.kept > 0
        assert client.update == messages.nbytes(messages.unpack(update))
        assert measure_server(run_spec, 0, update).seconds > 0


@pytest.mark.parametrize(
    ("method", "federation"),
    [
        ("fedmlp", {}),
        ("fedavg", {"aggregation": "krum", "quorum": 1.0, "clients_per_round": 5}),
        ("fedavg", {"aggregation": "krum", "quorum": 1.0, "clients_per_round": 6, "krum_num_selected": 3}),
    ],
)
def test_the_probe_measures_the_round_and_the_updates_that_a_run_has(experiment, method, federation):
    """FedMLP sends prototypes from its warm-up's end on; Krum compares several updates."""
    e = experiment(method)
    e = replace(e, task=replace(e.task, clients=6), federation=replace(e.federation, **federation))
    run_spec = make_run_spec(e, quiet)
    server = SerialExecutor(run_spec).server
    server.state, last = run_spec.experiment.method.peak_state(server.state, 20)
    sent = messages.pack({"broadcast": server.broadcast(last), "client_message": server.client_message(0)})
    _, update = measure_client(run_spec, 0, sent, last, on_gpu=False)
    assert measure_server(run_spec, 0, update).updates == federation.get("clients_per_round", 1)


def test_mlflow_gets_such_a_run_whole(experiment, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'anchorfl[tracking]'")
    store, said = f"sqlite:///{tmp_path / 'mlflow.db'}", []
    run(experiment("fedproto", tracking={"uri": store}, **FEW), tmp_path / "run", said.append)
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment_,) = [x for x in client.search_experiments() if x.name != "Default"]
    (found,) = client.search_runs([experiment_.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["notice"] == "scores are means over all clients of what their own models score"
    assert not client.search_logged_models([experiment_.experiment_id])
    names = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert {"config.json", "per_class.csv", "report"} <= names
    assert "model" not in names
    assert not any("cannot be reached" in line for line in said)


def test_methods_that_are_scored_at_their_clients():
    """All others have a model to save."""
    assert {name for name, method in METHODS.items() if method().evaluate_on == "clients"} == {"fedproto"}
