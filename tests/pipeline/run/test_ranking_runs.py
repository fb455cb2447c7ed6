"""Runs that are scored by their rankings: what is recorded, shown, chosen by, compared and given for new samples."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.execution.executor import RoundOutcome, SerialExecutor
from anchorfl.pipeline.results.compare import compare, load_run
from anchorfl.pipeline.results.predict import predict
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.storage.run_record import read_metadata, read_records
from anchorfl.pipeline.training.evaluation import RankedSplits, logits_of, ranking_scores
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import training_counts
from anchorfl.tasks.metrics.ranking import Ranking, propensities
from anchorfl.tasks.metrics.scores import FAMILIES
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import quiet

NAMES = [measure.name for measure in FAMILIES["ranking"].measures]
SPLITS = ("validation", "test")


@pytest.fixture
def ranking(experiment):
    """Return a maker of small experiments on the toy multi-label task that are scored by rankings."""

    def make(method="fedavg", task="toy-multi", *, evaluation=None, **sections):
        return experiment(method, task, evaluation={"metrics": "ranking"} | (evaluation or {}), **sections)

    return make


def whole(executor, name):
    """Return the figures of a split from matrices of all its rows, computed at once."""
    server = executor.server
    rows = server.splits[name]
    server.model.load_state_dict(server.state.weights)
    score_NC = ranking_scores(server.objective, logits_of(server.model, rows)).numpy()
    held, count_C = training_counts(server.data)
    got = Ranking(*score_NC.shape, propensities(count_C, held))
    got.add(score_NC, Labels.of_matrix(rows.y_NC.numpy() == 1), rows.known_NC.numpy() == 1)
    return got.scores()


@pytest.mark.parametrize("task", ["toy-multi", "toy-single"])
@pytest.mark.parametrize("validation_from", ["server", "clients"])
def test_scores_are_those_of_the_logits(ranking, task, validation_from):
    """Part by part with sparse labels gives what whole matrices give; no matrix of labels is made for it."""
    e = ranking(task=task)
    e = replace(e, task=replace(e.task, validation_from=validation_from))
    executor = SerialExecutor(make_run_spec(e, quiet))
    executor.round(1, [0, 1, 2], lambda *_: None)
    got = executor.scores(SPLITS)
    assert dict(executor.server.splits) == {}
    for name in SPLITS:
        want = whole(executor, name)
        assert list(got[name].values) == NAMES
        assert got[name].values == pytest.approx(want.values, abs=1e-9)
        assert got[name].counts == want.counts
        for rows in (1, 7):
            parts = RankedSplits(executor.server.data, executor.server.objective, rows)
            executor.server.model.load_state_dict(executor.server.state.weights)
            again = parts.of(executor.server.model, name)
            assert again.values == pytest.approx(want.values, abs=1e-9)


def test_records_result_and_what_is_shown(ranking, tmp_path, capsys):
    """Validation rows know what their client knows, so some have no known label: that is said once and counted."""
    e = ranking(federation={"rounds": 2})
    e = replace(e, task=replace(e.task, validation_from="clients"))
    result = run(e, tmp_path / "run", quiet)
    records = read_records(tmp_path / "run")[0]
    for record in records:
        figures = [n for n in record.metrics if n.startswith(SPLITS)]
        assert figures == [f"{split}/{name}" for split in SPLITS for name in (*NAMES, "rows_without_label")]
        assert set(record.per_class) == {f"{split}/average_precision" for split in SPLITS}
        assert all(0 <= record.metrics[f"{split}/{name}"] <= 1 for split in SPLITS for name in NAMES)
        each = [v for v in record.per_class["test/average_precision"].values()]
        assert record.metrics["test/map"] == pytest.approx(np.mean(each))  # the toy task has rows of every class
    assert result.scores == {s: {n: records[-1].metrics[f"{s}/{n}"] for n in NAMES} for s in SPLITS}
    last = result.scores["test"]
    shown = "  ".join(f"P@{k} {100 * last[f'p_at_{k}']:5.2f}" for k in (1, 3, 5))
    said = capsys.readouterr().out
    assert f"round 2/2  test {shown}  0:00 left  loss" in said
    unlabeled = int(records[0].metrics["validation/rows_without_label"])
    assert unlabeled > 0
    assert said.count(f"  validation: {unlabeled} of ") == said.count("rows have no known label; each counts 0") == 1


def test_a_run_says_what_the_most_frequent_classes_score(ranking, tmp_path):
    """One list for every row: hits counted by hand; in the run's tags, but where the test split is not looked at."""
    e = ranking(federation={"rounds": 1})
    run(e, tmp_path / "run", quiet)
    data = make_run_spec(e, quiet).data()
    y_NC = data.split("test", Objective("multi")).y_NC.numpy()
    hidden = training_counts(data)[1]  # with the labels that clients do not see, as PSP@k has them
    order_C = np.argsort(-hidden, kind="stable")
    want = {f"p_at_{k}": y_NC[:, order_C[:k]].sum() / (k * len(y_NC)) for k in (1, 3, 5)}
    tags = read_metadata(tmp_path / "run")["tags"]
    assert json.loads(tags["most_frequent"]) == pytest.approx(want, abs=1e-6)
    never = ranking(federation={"rounds": 1}, evaluation={"test": "never"})
    run(never, tmp_path / "never", quiet)
    assert "most_frequent" not in read_metadata(tmp_path / "never")["tags"]


def test_the_option_is_part_of_the_digest_and_changes_no_weight(ranking, experiment, finished_run):
    decisions, ranked_ = experiment(task="toy-multi"), ranking()
    assert digest(decisions) != digest(ranked_)
    assert finished_run(decisions).checksum == finished_run(ranked_).checksum


@pytest.mark.parametrize("method", ["fedavg", "fedalign"])
def test_best_validation_by_p_at_1_and_resume(ranking, tmp_path, method):
    """Stopped after two rounds and resumed; FedAlign's gate, which asks for F1 on the validation rows, works too."""
    e = ranking(method, evaluation={"model_selection": "best_validation"}, federation={"rounds": 5})
    uninterrupted = run(e, tmp_path / "whole", quiet)
    records = [r for r in read_records(tmp_path / "whole")[0] if r.round]
    best = max(records, key=lambda r: (r.metrics["validation/p_at_1"], -r.round))
    content = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert content["round"] == best.round
    assert uninterrupted.scores["test"] == {n: best.metrics[f"test/{n}"] for n in NAMES}
    with stopped_before(3):
        run(e, tmp_path / "parts", quiet)
    parts = resume(tmp_path / "parts", quiet)
    assert (parts.checksum, parts.scores) == (uninterrupted.checksum, uninterrupted.scores)


def test_compare_names_the_figures(ranking, experiment, tmp_path):
    for seed in (1, 2):
        run(ranking(seed=seed, federation={"rounds": 2}), tmp_path / f"rank{seed}", quiet)
    run(experiment(task="toy-multi", federation={"rounds": 2}), tmp_path / "decide", quiet)
    folders = [tmp_path / name for name in ("rank1", "rank2", "decide")]
    result = compare(folders, tmp_path / "out")
    for text, separator, ends in ((result.text, "  ", "last best"), (result.markdown, "|", "last best mean5")):
        head = next(line for line in text.splitlines() if "seed" in line).split(separator)
        heads = [f"{m} {end}" for end in ends.split() for m in ("F1", "acc", "P@1", "P@3", "P@5", "mAP")]
        assert [cell.strip() for cell in head if cell.strip()] == [
            "run", "seed", *heads, "MB", "s/round", "rounds", "task", "method",
        ]  # fmt: skip
        assert "best validation macro F1 or P@1" in text
    one = load_run(tmp_path / "rank1")
    last = read_records(tmp_path / "rank1")[0][-1].metrics
    assert one.values["psp_at_5_last"] == last["test/psp_at_5"]
    assert {group.label: len(group.runs) for group in result.groups} == {
        "toy-multi fedavg (evaluation.metrics=ranking)": 2,
        "toy-multi fedavg (evaluation.metrics=threshold)": 1,
    }
    with (tmp_path / "out" / "comparison.csv").open() as stream:
        rows = {row["run"]: row for row in csv.DictReader(stream)}
    assert rows["rank1"]["ndcg_at_3_last_percent"] == f"{100 * last['test/ndcg_at_3']:.2f}"
    assert (rows["rank1"]["f1_last_percent"], rows["decide"]["p_at_1_last_percent"]) == ("", "")
    alone = compare(folders[:2], None)
    assert "F1" not in alone.text
    assert "best validation P@1.\n" in alone.text
    assert f"{100 * alone.groups[0].mean['map_last']:.2f} ± {100 * alone.groups[0].sd['map_last']:.2f}" in alone.text


def test_a_label_of_several_classes_is_all_of_them(tmp_path):
    """The others counted as labels that the sample has not."""
    e, task = small_experiment("fedavg", "toy-multi"), find_task("toy-multi")
    want = run(e, tmp_path / "run", quiet).scores["test"]["f1_macro"]
    rows = task.read(None, e.task)
    rows = rows.filter(pc.equal(rows["split"], "test"))
    head = ",".join([*(f"v{k}" for k in range(16)), "label"])
    for several in (True, False):
        lines = [head]
        for x, classes in zip(rows["pixels"].to_pylist(), rows["labels"].to_pylist(), strict=True):
            names = [task.class_names[c] for c in classes]
            lines.append(",".join([*map(str, x), "|".join(names) if several else names[0]]))
        (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
        got = predict(tmp_path / "run" / "model", tmp_path / "new.csv")
        assert (got.truth.values["f1_macro"] == pytest.approx(want)) == several
        assert got.labeled == len(rows)
    (tmp_path / "new.csv").write_text("\n".join([*lines[:2], lines[2] + "|snw"]) + "\n")
    with pytest.raises(InputError, match=r"new.csv:3: unknown class 'snw' \(did you mean 'snow'\?\)"):
        predict(tmp_path / "run" / "model", tmp_path / "new.csv")


def test_predict_gives_the_figures_of_the_run(ranking, tmp_path, capsys):
    """All but PSP@k, for which a saved model has no counts; the note says so."""
    e = ranking(task="toy-single", federation={"rounds": 2})
    result = run(e, tmp_path / "run", quiet)
    task = find_task("toy-single")
    table = task.read(None, e.task)
    test = table.filter(np.array(table["split"]) == "test").to_pylist()
    lines = [f"{task.class_names[row['labels'][0]]}\t{row[task.payload]}" for row in test]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    truth = predict(tmp_path / "run" / "model", tmp_path / "texts.txt").truth
    assert truth.values == pytest.approx({n: v for n, v in result.scores["test"].items() if n[:3] != "psp"}, abs=1e-9)
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "texts.txt"), "--out", str(tmp_path / "o.csv")]) == 0
    said = capsys.readouterr().err
    figures = ", ".join(f"P@{k} {100 * truth.values[f'p_at_{k}']:.2f}" for k in (1, 3))
    assert f"{len(test)} samples with labels, percent: {figures}, " in said
    with (tmp_path / "o.csv").open(newline="") as stream:
        for line in csv.DictReader(stream):
            best = sorted(task.class_names, key=lambda name: -float(line[name]))
            assert line["predicted"].split("|")[:5] == best[:5], "the five best, best first"
    assert (
        f"mAP {100 * truth.values['map']:.2f}\n  PSP@k is left out: it needs the class counts of the training rows"
        in said
    )


def test_a_note_is_said_once(ranking):
    out = io.StringIO()
    progress = Progress(2, out=out)
    scores = {"test": Ranking(0, 2).scores()}
    for round_ in (0, 1, 2):
        progress.round(round_, RoundOutcome((0,) if round_ else ()), scores, 1.0)
    assert out.getvalue().count("  test: PSP@k is left out") == 1
    assert out.getvalue().count("P@1  0.00  P@3  0.00  P@5  0.00") == 3


@pytest.mark.parametrize("task", ["toy-multi", "toy-single"])
@pytest.mark.parametrize("partition", ["k_classes", "iid", "one_class"])
def test_training_counts_are_those_of_the_raw_rows(task, partition):
    """Also where a row sits with several clients, or a client does not know a class that it holds."""
    task = find_task(task)
    classes = len(task.class_names)
    options = TaskOptions(name=task.name, clients=classes, partition=partition, classes_per_client=2)
    data = prepare(task, options, 3, engine="local")
    table = task.read(None, options)
    held = np.array(table["split"]) == "train"
    held &= ~np.isin(table["row"].to_numpy(), data.plan().validation)
    y_NC = Labels.of_lists(table["labels"], classes).matrix()[held]
    if partition == "one_class":  # a row without a label sits with nobody
        y_NC = y_NC[y_NC.any(1)]
    rows, count_C = training_counts(data)
    assert rows == len(y_NC)
    assert count_C.tolist() == y_NC.sum(0).tolist()


def test_parts_of_a_split_are_the_rows_of_the_whole():
    task = find_task("toy-multi")
    options = TaskOptions(name=task.name, clients=4, classes_per_client=2, validation_from="clients")
    data = prepare(task, options, 3, engine="local")
    objective = Objective(task.kind)
    for name in SPLITS:
        dense, sparse = data.split(name, objective), data.sparse_split(name)
        assert len(sparse) == len(dense) == data.size(name)
        parts = [sparse.part(start, start + 7) for start in range(0, len(sparse), 7)]
        assert all(part.data.y_NC.shape == (len(part.data), 0) for part in parts)
        assert np.array_equal(np.concatenate([p.labels.matrix() for p in parts]), dense.y_NC.numpy() == 1)
        known = [np.ones((len(p.data), 1), bool) if p.known_BC is None else p.known_BC for p in parts]
        known = [np.broadcast_to(k, (len(k), dense.y_NC.shape[1])) for k in known]
        assert np.array_equal(np.concatenate(known), dense.known_NC.numpy() == 1)
        for start, part in zip(range(0, len(dense), 7), parts, strict=True):
            index = torch.arange(start, start + len(part.data))
            want, got = dense.rows(index).x, part.data.rows(torch.arange(len(index))).x
            assert torch.equal(got, want)
    assert parts[0].known_BC is None


def test_nothing_saturates_before_it_is_ranked():
    """Sigmoid and softmax in float32 make large logits equal; what ranks keeps their order, over rows too."""
    logits = torch.tensor([[40.0, 41.0, -200.0], [39.0, 60.0, 0.0]])
    multi = Objective("multi")
    assert multi.scores(logits)[0, 0] == multi.scores(logits)[0, 1]
    assert ranking_scores(multi, logits).argsort(-1)[:, -1].tolist() == [1, 1]
    rows = ranking_scores(Objective("single"), torch.tensor([[100.0, 100.0], [1.0, -1.0]]))
    assert rows[0, 0] == pytest.approx(math.log(0.5))
    assert rows[1, 0] > rows[0, 0]
