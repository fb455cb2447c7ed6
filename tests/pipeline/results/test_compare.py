"""Tables and curves from run folders, against numbers worked out by hand."""

import csv
import json
import math

import pytest

from anchorfl.pipeline.results import curves
from anchorfl.pipeline.results.compare import _values, compare, load_run
from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import FAMILIES


def make_run(folder, scores, *, validation=None, method="fedavg", seed=0, raw="r", **params):
    """Write a finished run: one round per score, 2 s apart, 1.5 MB each; accuracy is the score + 0.1."""
    params = {"task": "digits", "method": method, "seed": seed, "output": str(folder)} | params
    tracker = JsonLines(folder)
    sets = [(f"digits/{split}", "d" * 32, split, raw) for split in ("train", "test")]
    tracker.begin(RunInfo(name=folder.name, experiment="digits", params=params, datasets=sets, folder=folder))
    for number, score in enumerate(scores, 1):
        metrics = {"communication/download_bytes": 1e6, "communication/upload_bytes": 5e5}
        if score is not None:
            metrics |= {"test/f1_macro": score, "test/accuracy": score + 0.1}
        if validation is not None:
            metrics["validation/f1_macro"] = validation[number - 1]
        tracker.round(RoundRecord(number, 100.0 + 2 * number, metrics))
    tracker.end("FINISHED")
    return folder


def test_numbers_of_a_run(tmp_path):
    folder = make_run(
        tmp_path / "a", [0.1, 0.5, 0.2, 0.3, 0.4, 0.6, 0.55], validation=[0.1, 0.9, 0.3, 0.9, 0.2, 0.1, 0.8]
    )
    write_json(folder / "result.json", {"checksum": "abc"})
    run = load_run(folder)
    assert (run.task, run.method, run.seed, run.status, run.result) == (
        "digits",
        "fedavg",
        0,
        "FINISHED",
        {"checksum": "abc"},
    )
    wanted = {"f1_last": 0.55, "accuracy_last": 0.65, "f1_best": 0.5, "accuracy_best": 0.6, "f1_last5": 0.41}
    wanted |= {"accuracy_last5": 0.51, "megabytes": 10.5, "seconds": 2.0}
    assert run.values == pytest.approx(wanted)


def test_rounds_without_scores_and_runs_without_validation(tmp_path):
    values = load_run(make_run(tmp_path / "a", [0.2, None, 0.4, None])).values
    assert values["f1_last"] == 0.4
    assert values["f1_last5"] == pytest.approx(0.3)
    assert values["f1_best"] is None
    assert load_run(make_run(tmp_path / "b", [None])).values["seconds"] is None


def test_runs_that_were_never_tested_are_compared_by_validation(tmp_path):
    """As to choose a method is: then, and only then, the table shows that split, and says so."""
    runs = [make_run(tmp_path / str(s), [None, None], validation=[0.2 + s / 10, 0.3], seed=s) for s in (0, 1)]
    found = compare(runs, tmp_path / "out")
    assert [run.values["f1_last"] for run in found.runs] == [0.3, 0.3]
    assert "Scores: validation split, percent" in found.text
    tested = make_run(tmp_path / "tested", [0.7], validation=[0.9])
    found = compare([*runs, tested], None)
    assert [run.values["f1_last"] for run in found.runs] == [None, None, 0.7]
    assert "Scores: test split, percent" in found.text


def test_a_selected_round_that_alone_was_tested_is_not_the_last_one(tmp_path):
    """As the final runs of a sweep are, and any with ``evaluation.test last`` and a selected round."""
    values = load_run(make_run(tmp_path / "a", [0.7, None, None], validation=[0.9, 0.3, 0.2])).values
    assert (values["f1_best"], values["f1_last"], values["f1_last5"]) == (0.7, None, None)
    last = load_run(make_run(tmp_path / "b", [None, None, 0.7], validation=[0.2, 0.3, 0.9])).values
    assert (last["f1_best"], last["f1_last"], last["f1_last5"]) == (0.7, 0.7, None)


def test_mean_and_sd_over_seeds(tmp_path):
    last = [0.70, 0.74, 0.81]
    folders = [
        make_run(tmp_path / f"avg{s}", [0.1, f], seed=s, **{"cluster.max_concurrent_clients": s})
        for s, f in enumerate(last)
    ]
    folders += [make_run(tmp_path / f"prox{mu}", [0.2, 0.3], method="fedprox", mu=mu) for mu in (0.1, 1.0)]
    result = compare(folders, tmp_path / "out")
    assert [group.label for group in result.groups] == [
        "digits fedavg",
        "digits fedprox (mu=0.1)",
        "digits fedprox (mu=1.0)",
    ]
    mean, sd = result.groups[0].mean["f1_last"], result.groups[0].sd["f1_last"]
    assert mean == pytest.approx(0.75)
    assert sd == pytest.approx(math.sqrt((0.05**2 + 0.01**2 + 0.06**2) / 2))
    assert result.groups[1].sd["f1_last"] is None
    assert "75.00 ± 5.57" in result.text
    assert "| 75.00 ± 5.57 |" in result.markdown
    assert str(result) == result.text
    assert max(map(len, result.markdown.splitlines())) < 400
    with (tmp_path / "out" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["f1_last_percent"] for row in rows] == ["70.00", "74.00", "81.00", "30.00", "30.00"]
    assert rows[0]["f1_best_percent"] == ""
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "curves.png" in (tmp_path / "out" / "comparison.md").read_text()
    vector = (tmp_path / "out" / "curves.svg").read_text()
    assert "<!-- test macro F1 (%) -->" in vector  # which split the scores are of
    assert vector.count("stroke-dasharray") >= 2  # lines differ in more than their color
    assert {path.name for path in result.files} == {"comparison.md", "comparison.csv", "curves.png", "curves.svg"}


def test_a_group_has_a_mean_of_what_all_its_runs_have(tmp_path):
    """One of three seeds was not validated, so that it has no best round."""
    folders = [
        make_run(tmp_path / str(s), [0.2, 0.3 + s / 10], validation=[0.1, 0.2] if s else None, seed=s) for s in range(3)
    ]
    (group,) = compare(folders, None).groups
    assert (group.mean["f1_best"], group.sd["f1_best"]) == (None, None)
    assert group.mean["f1_last"] == pytest.approx(0.4)
    assert group.sd["f1_last"] == pytest.approx(0.1)


def test_runs_of_edited_code_are_no_seeds_of_one_another(tmp_path):
    """A plug-in that was edited between two seeds is another method."""
    folders = [make_run(tmp_path / str(seed), [0.1 * seed], seed=seed) for seed in (1, 2, 3)]
    for folder, source in zip(folders, ("111", "222", "222"), strict=True):
        about = json.loads((folder / "run.json").read_text())
        about["tags"]["method_plugin"] = f"mine.Mine, sha256 {source}"
        (folder / "run.json").write_text(json.dumps(about))
    groups = compare(folders, None).groups
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("digits fedavg (method_plugin=mine.Mine, sha256 111)", 1),
        ("digits fedavg (method_plugin=mine.Mine, sha256 222)", 2),
    ]


def test_a_label_has_the_options_in_which_groups_of_its_task_and_method_differ(tmp_path):
    folders = [
        make_run(tmp_path / "a", [0.1], rate=0.1),
        make_run(tmp_path / "b", [0.1], rate=0.2, task="r8"),
        make_run(tmp_path / "c", [0.1], rate=0.3, method="fedprox"),
        make_run(tmp_path / "d", [0.1], rate=0.4, method="fedprox", same=1),
        make_run(tmp_path / "e", [0.1], rate=0.4, method="fedprox", same=2),
    ]
    assert [group.label for group in compare(folders, None).groups] == [
        "digits fedavg",
        "r8 fedavg",
        "digits fedprox (rate=0.3)",
        "digits fedprox (rate=0.4, same=1)",
        "digits fedprox (rate=0.4, same=2)",
    ]


def test_a_round_is_chosen_by_the_sum_where_a_family_has_one(tmp_path):
    """Macro F1 on validation is best in round 2, the sum in rounds 3 and 4, of which the first counts."""
    tracker, params = JsonLines(tmp_path), {"task": "digits", "method": "fedbm", "evaluation.metrics": "classification"}
    tracker.begin(RunInfo(name="a", experiment="digits", params=params, datasets=[], folder=tmp_path))
    for number, (f1, total) in enumerate([(0.5, 0.3), (0.9, 0.4), (0.1, 0.8), (0.2, 0.8)], 1):
        metrics = {"validation/f1_macro": f1, "validation/sum": total}
        metrics |= {"test/f1_macro": number / 10, "test/sum": number / 100}
        tracker.round(RoundRecord(number, 100.0 + number, metrics))
    tracker.end("FINISHED")
    values = load_run(tmp_path).values
    assert (values["f1_best"], values["f1_best_sum"], values["f1_last"]) == (0.2, 0.3, 0.4)
    assert (values["sum_best"], values["sum_best_sum"], values["sum_last"]) == (0.02, 0.03, 0.04)
    assert values["auc_best"] is None


def test_a_long_name_stays_inside_its_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "save", lambda figure, path: (drawn.append(figure), (path,))[1])
    names = [f"digits method (optimizer.lr=0.00{i}, federation.rounds=5{i}, method.mu=0.1)" for i in range(4)]
    curves.draw(
        {name: [{"f1": {0: 0.1, 5: 0.5}}] * 2 for name in names}, {"f1": "test macro F1 (%)"}, tmp_path / "c.png"
    )
    figure = drawn[0]
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 < figure.axes[0].get_window_extent().y0


def test_no_group_table_and_no_files_unless_asked(tmp_path):
    result = compare([make_run(tmp_path / "a", [0.5]), tmp_path / "a"], None)
    assert len(result.runs) == 1
    assert "mean and sd" not in result.text
    assert result.files == ()


def test_what_the_reader_must_know(tmp_path):
    folders = [
        make_run(tmp_path / "a", [0.1] * 3),
        make_run(tmp_path / "b", [0.1] * 3),
        make_run(tmp_path / "c", [0.2], seed=1, raw="other"),
        make_run(tmp_path / "d", [0.2], method="fedpu"),
    ]
    result = compare(folders, tmp_path / "out")
    assert any("seed 0 more than once" in note for note in result.notes)
    assert any("c stops at round 1" in note for note in result.notes)
    assert result.notes[0] == (
        "Note: digits fedavg: its runs were trained on different raw files, as a and c were: their mean says nothing."
    )
    assert all(note in result.text and note in result.markdown for note in result.notes)


def test_bad_folders(tmp_path):
    with pytest.raises(InputError, match="no run folder"):
        compare([tmp_path], None)
    with pytest.raises(InputError, match="anchorfl resume"):
        load_run(make_run(tmp_path / "empty", []))
    with pytest.raises(InputError, match="at least one"):
        compare([], None)


def test_a_pause_before_a_resumption_is_no_time_of_a_round():
    records = [RoundRecord(r, t, {}) for r, t in ((1, 0.0), (2, 2.0), (3, 4.0), (4, 3600.0))]
    assert _values(records, FAMILIES["threshold"], "test")["seconds"] == 2.0
