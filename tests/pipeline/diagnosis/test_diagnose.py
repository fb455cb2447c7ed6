"""``anchorfl diagnose`` on runs: tables and figures, what is refused, and a run that is as it was."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.diagnosis import diagnose as command
from anchorfl.pipeline.diagnosis import pseudo_labels
from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions, diagnose
from anchorfl.pipeline.methods.fedalign import AlignTrainer
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_folder import lock_run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.contract import ClientData
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.toy.single import TOPICS
from tests.pipeline.diagnosed import QUICK, table
from tests.runs import quiet

TABLE = """label,engine,fruit,music,river
engine,,0.5,,2
fruit,0.5,,1.5,
music,,1.5,,
river,2,,,
"""


def content(folder):
    found = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Made once for all tests that only read: (method, options) -> run folder."""
    return {}, tmp_path_factory.mktemp("runs")


@pytest.fixture
def run_of(experiment, trained):
    known, base = trained

    def make(method, task="toy-single", **changes):
        key = repr((method, task, changes))
        if key not in known:
            known[key] = base / str(len(known))
            run(experiment(method, task, evaluation={"save_state_every": 2}, **changes), known[key], quiet)
        return known[key]

    return make


def test_fedalign_with_a_table_of_names(run_of, trained):
    """Everything at once: every table has what it says, and the numbers in them belong together."""
    path = trained[1] / "names.csv"
    path.write_text(TABLE)
    folder = run_of("fedalign", class_embeddings={"init": "cooccurrence", "table": str(path)})
    before = content(folder)
    lines = diagnose(folder, QUICK, quiet)
    out = folder / "diagnosis"
    pictures = {"divergence", "theory", "pseudo_labels", "representations", "class_embeddings"}
    tables = {"divergence", "theory", "pseudo_labels", "agreement", "representations", "class_cosine", "class_names"}
    expected = (
        {f"{n}.{kind}" for n in pictures | {"confusion"} for kind in ("png", "svg")}
        | {f"{n}.csv" for n in tables}
        | {"metrics.jsonl", "diagnosis.json", "confusion.csv"}
    )
    assert {p.name for p in out.iterdir()} == expected
    for name in pictures:
        with Image.open(out / f"{name}.png") as picture:
            assert len(np.unique(np.asarray(picture.convert("L")))) > 20
    assert {r["round"] for r in table(out / "divergence.csv")} == {"2", "3"}
    assert {(r["round"], r["class"]) for r in table(out / "pseudo_labels.csv")} == {
        (t, c) for t in ("2", "3") for c in ("", *TOPICS)
    }
    points = table(out / "representations.csv")
    assert len(points) == 3 * 40
    assert {r["model"] for r in points} == {"global", "a", "b"}
    order = [r["class"] for r in table(out / "class_cosine.csv")]
    assert sorted(order) == sorted(TOPICS)
    names = {r["class"]: r for r in table(out / "class_names.csv")}
    assert list(names) == order
    assert (names["engine"]["river"], names["fruit"]["music"], names["music"]["river"]) == ("2", "1.5", "0")
    records = {r.round: r.metrics for r in read_records(out)[0]}
    assert list(records) == [2, 3]
    assert {"diagnosis/a_distance/pair", "diagnosis/a_distance/local", "diagnosis/pseudo/chance"} <= records[2].keys()
    assert {"diagnosis/agreement/cosine/a_b", "diagnosis/classes/spearman_names"} <= records[3].keys()
    assert sum("rank correlation" in line for line in lines) == 1
    after = content(folder)
    changed = {n for n in before if before[n] != after.get(n)}
    assert changed == {"run.json"}  # which names the new folder
    assert json.loads(after["run.json"])["artifacts"][-1] == "diagnosis"
    noted = json.loads((out / "diagnosis.json").read_text())
    assert (noted["rounds"], noted["last"]) == ([2, 3], 3)
    diagnose(folder, QUICK, quiet)
    assert {n for n in after if after[n] != content(folder)[n]} == {"diagnosis/metrics.jsonl"}  # the time of day


def test_pseudo_labels_are_those_that_training_would_use(run_of, monkeypatch):
    """The annotation of every client is, bit for bit, what its next round trains on; precision is counted from it."""
    folder = run_of("fedalign")
    seen: dict[int, ClientData] = {}
    plain = pseudo_labels.annotate

    def annotate(analysis, round_, client, card, sent):
        rows = plain(analysis, round_, client, card, sent)
        if round_ == 3:
            seen[client] = rows
            runner, caught = analysis.runner, []
            data = AlignTrainer.data
            monkeypatch.setattr(AlignTrainer, "data", lambda self: caught.append(data(self)) or caught[-1])
            runner.fit(client, 4, sent, {})
            monkeypatch.setattr(AlignTrainer, "data", data)
            assert torch.equal(caught[0].y_NC, rows.y_NC)
            assert torch.equal(caught[0].known_NC, rows.known_NC)
        return rows

    monkeypatch.setattr(pseudo_labels, "annotate", annotate)
    diagnose(folder, dataclasses.replace(QUICK, parts=("pseudo",)), quiet)
    assert len(seen) == 4
    whole = next(r for r in table(folder / "diagnosis/pseudo_labels.csv") if r["round"] == "3" and not r["class"])
    analysis = open_analysis(folder, quiet)
    new = sum(int(((rows.known_NC > analysis.rows(c).known_NC) & (rows.y_NC > 0)).sum()) for c, rows in seen.items())
    assert int(whole["positive"]) == new > 0
    assert float(whole["precision"]) == pytest.approx(int(whole["right"]) / new, abs=1e-5)


def test_multi_label_with_a_gate(run_of):
    folder = run_of("fedalign", "toy-multi", options={"positive_f1_gate": 0.01, "anchor_score": "dot", "q2": 40.0})
    diagnose(folder, QUICK, quiet)
    rows = table(folder / "diagnosis/pseudo_labels.csv")
    assert all(int(r["right"]) <= int(r["positive"]) and int(r["hidden"]) <= int(r["open"]) for r in rows)
    assert sum(int(r["negative"]) for r in rows) > 0
    assert sum(int(r["positive"]) for r in rows) > 0  # the gate looks at the server's scores of that round


def test_class_rows_stand_beside_the_pmi_of_the_labels(run_of, experiment):
    """Multi-label: PMI over the training rows, from counts of the true labels; of chosen classes the same numbers."""
    folder = run_of("fedalc", "toy-multi", optimizer={"name": "sgd", "lr": 0.1, "batch_size": 0})
    lines = diagnose(folder, DiagnoseOptions(parts=("embeddings",)), quiet)
    assert any("rank correlation of cosine and PMI of the labels" in line for line in lines)
    out = folder / "diagnosis"
    pmi, cosine = ({r["class"]: r for r in table(out / f"class_{n}.csv")} for n in ("pmi", "cosine"))
    assert list(pmi) == list(cosine)
    task = find_task("toy-multi")
    raw = task.read(None, TaskOptions())
    plan = open_analysis(folder, quiet).prepared.plan()
    held = sorted({row for client in plan.clients for row in client.rows.tolist()})
    y_NC = np.zeros((len(held), 5))
    for i, row in enumerate(held):
        y_NC[i, raw["labels"][row].as_py()] = 1
    for a, one in enumerate(task.class_names):
        for b, other in enumerate(task.class_names):
            both = (y_NC[:, a] * y_NC[:, b]).mean()
            want = np.log(both / (y_NC[:, a].mean() * y_NC[:, b].mean())) if both else -np.inf
            assert float(pmi[one][other]) == pytest.approx(want, abs=1e-5)
    with Image.open(out / "class_embeddings.png") as picture:
        assert picture.size[0] > 1.5 * picture.size[1]
    some = (task.class_names[3], "0")
    diagnose(folder, DiagnoseOptions(parts=("embeddings",), classes=some), quiet)
    chosen = {r["class"]: r for r in table(out / "class_pmi.csv")}
    assert chosen.keys() == {task.class_names[0], task.class_names[3]}
    assert all(chosen[c][other] == pmi[c][other] for c in chosen for other in chosen)
    said = []
    with pytest.raises(InputError, match="--classes bicycle: no class of that name"):
        diagnose(folder, DiagnoseOptions(classes=("bicycle",)), said.append)
    assert not [line for line in said if " done in " in line]  # no part was measured for nothing


def test_a_method_without_pseudo_labels_and_class_embeddings(run_of):
    folder = run_of("fedavg")
    lines = diagnose(folder, QUICK, quiet)
    assert "pseudo-labels: fedavg makes none here" in lines
    assert "class embeddings: fedavg has none" in lines
    assert {p.name for p in (folder / "diagnosis").iterdir()} == {
        "confusion.csv", "confusion.png", "confusion.svg", "divergence.csv", "divergence.png", "divergence.svg",
        "agreement.csv", "representations.csv", "representations.png", "representations.svg",
        "metrics.jsonl", "diagnosis.json", "theory.csv", "theory.png", "theory.svg",
    }  # fmt: skip


def test_nothing_is_drawn_against_a_single_round(experiment, tmp_path):
    """Its numbers are in the tables and lines; a picture of them would be empty."""
    run(experiment("fedalign"), tmp_path / "run", quiet)
    lines = diagnose(tmp_path / "run", dataclasses.replace(QUICK, parts=("divergence", "pseudo")), quiet)
    assert {p.suffix for p in (tmp_path / "run/diagnosis").iterdir()} == {".csv", ".json", ".jsonl"}
    assert [line.split(" after ")[0] for line in lines] == ["proxy A-distance", "pseudo-positives"]


def test_without_alignment_there_are_none_either(run_of):
    folder = run_of("fedalign", options={"alignment": False})
    lines = diagnose(folder, dataclasses.replace(QUICK, parts=("pseudo",)), quiet)
    assert lines == ["pseudo-labels: fedalign makes none here"]


def test_what_is_refused(run_of, tmp_path, capsys):
    folder = run_of("fedavg")

    def fails(arguments, message):
        assert main(["diagnose", *arguments]) == 2
        said = capsys.readouterr().err.strip()
        assert message in said
        assert "\n" not in said

    fails([str(tmp_path / "no")], "holds no run (config.json is missing)")
    assert not (tmp_path / "no").exists()
    fails([str(folder), "--parts", "divergence,pseudos"], "--parts divergence,pseudos: name some of divergence, theory")
    fails([str(folder), "--clients", "1"], "--clients 1: give two clients as numbers, such as 0,3")
    fails([str(folder), "--clients", "1,1"], "--clients 1,1: name two different clients")
    fails([str(folder), "--clients", "1,7", "--parts", "agreement"], "no client 7 with rows; the clients are 0..3")
    fails([str(folder), "--rows", "3"], "--rows 3: must be at least 20")
    with lock_run(folder):
        fails([str(folder)], "is in use by process")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_bytes((folder / "config.json").read_bytes())
    fails([str(begun)], f"{begun} holds no completed round: go on with: anchorfl resume {begun}")
    assert not list(folder.glob(".diagnosis"))


def test_other_data_than_those_of_the_run_are_refused(run_of):
    folder = run_of("fedavg")
    metadata = (folder / "run.json").read_text()
    digest = json.loads(metadata)["tags"]["data_digest"]
    (folder / "run.json").write_text(metadata.replace(digest, "0" * 64))
    try:
        with pytest.raises(InputError, match=r"prepared otherwise now \(data_digest differs\): name the same"):
            diagnose(folder, QUICK, quiet)
    finally:
        (folder / "run.json").write_text(metadata)


def test_a_deadline_is_of_no_matter_here(experiment, tmp_path):
    e = experiment("fedavg", cluster={"executor": "forked"}, federation={"deadline": 600.0})
    run(e, tmp_path / "run", quiet)
    diagnose(tmp_path / "run", dataclasses.replace(QUICK, parts=("agreement",)), quiet)
    assert (tmp_path / "run/diagnosis/agreement.csv").exists()


def test_a_dead_store_loses_nothing(run_of, monkeypatch):
    folder = run_of("fedavg")

    def dead(folder, uri):
        raise InputError("MLflow at http://x took 0 rounds, then: no answer")

    monkeypatch.setattr(command, "store_uri", lambda uri, folder: "http://x")
    monkeypatch.setattr(command, "send", dead)
    lines = diagnose(folder, dataclasses.replace(QUICK, parts=("agreement",)), quiet)
    assert lines[-1].endswith(f"send it later with: anchorfl sync {folder} --uri http://x")
    assert (folder / "diagnosis/agreement.csv").exists()


def test_parts_that_are_not_measured_again_stay(run_of):
    folder = run_of("fedavg")
    shutil.rmtree(folder / "diagnosis", ignore_errors=True)
    for parts in (("confusion", "embeddings"), ("theory",), ("confusion",)):
        diagnose(folder, DiagnoseOptions(parts=parts, cap=50), quiet)
    content = json.loads((folder / "diagnosis/diagnosis.json").read_text())
    assert set(content["parts"]) == {"confusion", "embeddings", "theory"}
    assert (folder / "diagnosis/theory.csv").exists()
    measured = read_records(folder / "diagnosis")[0][-1].metrics
    assert {f"diagnosis/{name}" for name in content["parts"]["theory"]["metrics"]} <= measured.keys()
    lines = []
    for damaged in (
        "{",
        '{"parts": [], "last": 4}',
        json.dumps(content | {"parts": {"theory": 1, "embeddings": {"files": [1], "metrics": [], "said": []}}}),
    ):
        (folder / "diagnosis/diagnosis.json").write_text(damaged)
        diagnose(folder, DiagnoseOptions(parts=("confusion",)), lines.append)
        assert set(json.loads((folder / "diagnosis/diagnosis.json").read_text())["parts"]) == {"confusion"}
    assert sum("this diagnosis takes its place" in line for line in lines) == 1
    shutil.rmtree(folder / "diagnosis")


def test_the_command(run_of, capsys):
    folder = run_of("fedavg")
    assert main(["diagnose", str(folder), "--parts", "agreement", "--clients", "2, 0", "--rows", "30"]) == 0
    shown = capsys.readouterr().out
    assert "local models of clients 2 and 0 after round 4, 30 test rows" in shown
    cards, found = open_analysis(folder, quiet).server.cards, table(folder / "diagnosis/agreement.csv")
    for name, client in (("known_to_a", 2), ("known_to_b", 0)):
        assert [row[name] == "1" for row in found] == cards[client].identified_C.tolist()
    assert cards[2].identified_C.tolist() != cards[0].identified_C.tolist()
    facts = json.loads((folder / "diagnosis/diagnosis.json").read_text())["parts"]["agreement"]
    assert (
        facts["a_distance/a_b"]
        == read_records(folder / "diagnosis")[0][-1].metrics["diagnosis/agreement/a_distance/a_b"]
    )
    assert f"Tables and figures: {folder / 'diagnosis'}" in shown
