"""A table of one-class federations: their clients are counted from the data, which a page does without."""

from __future__ import annotations

import dataclasses
import json

import pytest

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import resolve_options
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.tuning.tables.page import write_page
from anchorfl.tuning.tables.papers import paper_of
from anchorfl.tuning.tables.published import rows_of, select_rows
from anchorfl.tuning.tables.runs import attach_folders, index_runs, jobs_of, missing_data, prepare_all, table_runs_of
from anchorfl.tuning.tables.statistics import counted_traffic, counted_traffic_of, table_of
from tests.runs import quiet
from tests.tuning.made_tables import made_run

TINY = [
    "--task.name",
    "toy-multi",
    "--federation.rounds",
    "1",
    "--model.width",
    "8",
    "--model.feedforward",
    "8",
    "--tracking.uri",
    "none",
]
CLASSES = 5


@pytest.fixture
def table_runs(tmp_path, monkeypatch):
    """FedALC with two lambdas, FedAwS and FedALC-fixed of the Bibtex table, on the toy task."""
    monkeypatch.chdir(tmp_path)
    names = ["fedaws-10", "fedalc-10", "fedalc-100", "fedalc-fixed"]
    return table_runs_of(select_rows(rows_of(paper_of("fedalc")), ["bibtex"], names), [0, 1], TINY)


def test_what_was_asked_for_and_what_was_counted_are_one_experiment(table_runs):
    e = table_runs[0].experiment
    counted = resolve_options(e, quiet)
    assert (e.task.clients, counted.task.clients) == (0, CLASSES)
    assert digest(e) == digest(counted)


def test_rows_without_their_files_are_left_out(tmp_path, monkeypatch):
    """Nothing is read before that is known."""
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    table_runs = table_runs_of(select_rows(rows_of(paper_of("fedalc")), ["voc07", "eurlex"], ["fedavg"]), [0], [])
    absent = missing_data(
        jobs_of(attach_folders(table_runs, index_runs(tmp_path)), index_runs(tmp_path), tmp_path, quiet)
    )
    assert set(absent) == {"voc07", "eurlex"}


def _without_validation(run):
    """As of a run with ``task.validation = 0``."""
    scores = {split: values for split, values in run.result["scores"].items() if split != "validation"}
    return dataclasses.replace(run, result=run.result | {"scores": scores})


def test_runs_are_found_and_the_best_lambda_is_what_rows_are_tested_against(table_runs, tmp_path, monkeypatch):
    jobs = jobs_of(table_runs, index_runs(tmp_path), tmp_path, quiet)
    ready = prepare_all(jobs, quiet)
    assert not ready.failures
    for job in jobs:
        run_spec = ready.run_specs[job.run.digest]
        assert run_spec.experiment.task.clients == CLASSES
        run(run_spec.experiment, job.folder, quiet)
        if job.run.row.name == "fedalc-100":  # so that the best one is not the first
            file = job.folder / "result.json"
            result = json.loads(file.read_text())
            result["scores"]["validation"]["p_at_1"] = 0.99
            file.write_text(json.dumps(result))
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "none"))  # a page needs no data
    again = attach_folders(table_runs, index_runs(tmp_path))
    assert all(table_run.folder for table_run in again)
    table = table_of(paper_of("fedalc"), again)
    own = table.reference(again[0].row)
    assert validation(table, "fedalc-10") < validation(table, "fedalc-100") == 2 * 0.99
    assert (own.name, own.label) == ("fedalc-100", "FedALC(lambda=100)")
    assert {e.metric.published for e in table.entries} == {"p@1", "p@3", "p@5"}  # Table VI has no mAP
    assert all(table.cost(row).down > 0 for row in table.rows)
    page = write_page(table, tmp_path / "page")[0].read_text()
    assert f"Bibtex: {own.label}, its best on validation, against each row" in page
    assert "run, Table IV: down" in page
    tag = json.loads(read_metadata(again[0].folder)["tags"]["most_frequent"])
    for k in (1, 3, 5):
        assert f"| most frequent labels | - | P@{k} | - | {100 * tag[f'p_at_{k}']:.2f} | - | - | - | - |" in page
    assert page.count("Most frequent labels: every test row gets") == 1
    run_json = again[0].folder / "run.json"  # as of a row of one's own, whose method has no class rows
    about = json.loads(run_json.read_text())
    del about["params"]["class_embedding_lr"]
    written = run_json.read_text()
    run_json.write_text(json.dumps(about))
    assert write_page(
        table_of(paper_of("fedalc"), attach_folders(table_runs, index_runs(tmp_path))), tmp_path / "other"
    )
    run_json.write_text(written)
    e = jobs[0].run.experiment
    sent = table.cost(again[0].row).up * 1e6 / 4  # theta and a row
    theta = round(sent) - e.model.width
    assert counted_traffic_of(next(iter(table.of(again[0].row).values())), sent * 4 / 1e6) == counted_traffic(
        theta, CLASSES, e.model.width, 1, fixed=False
    )
    assert "SLEEC, published and not run here: P@1 65.08, P@3 39.64, P@5 28.87." in page


VALIDATION = {
    "fedaws-10": (0.9, 0.9),
    "fedalc-fixed": (0.8, 0.8),
    "fedalc-10": (0.7, 0.1),
    "fedalc-100": (0.5, 0.6),
    "fedalc-150": (0.5, 0.5),
}
"""Row -> validation score of each seed."""


def test_the_best_lambda_is_the_one_with_the_best_mean_on_validation(tmp_path, monkeypatch):
    """Not the first or the last, nor that of the best seed or the best test score; one without a run is none, and
    another method of the paper is not its own.
    """
    monkeypatch.chdir(tmp_path)
    rows = select_rows(rows_of(paper_of("fedalc")), ["bibtex"], [*VALIDATION, "fedalc-200"])
    made = []
    for table_run in table_runs_of(rows, [0, 1], []):
        if table_run.row.name in VALIDATION:
            score = VALIDATION[table_run.row.name][table_run.seed]
            scores = {f"{split}/p_at_{k}": [0.0, score] for split in ("validation", "test") for k in (1, 3, 5)}
            scores["test/p_at_1"] = [0.0, 1 - score]
            table_run = made_run(table_run, tmp_path / "runs", scores)
        made.append(table_run)
    table = table_of(paper_of("fedalc"), made)
    assert [row.name for row in table.rows if row.name.startswith("fedalc-1")] == [
        "fedalc-10", "fedalc-100", "fedalc-150",
    ]  # fmt: skip
    assert {table.reference(row).name for row in table.rows} == {"fedalc-100"}
    unscored = dataclasses.replace(table, finished={d: _without_validation(run) for d, run in table.finished.items()})
    assert {unscored.reference(row) for row in unscored.rows} == {None}
    assert not any(e.against for e in unscored.entries)
    (against,) = (e.against for e in table.entries if (e.row.name, e.metric.published) == ("fedalc-10", "p@3"))
    assert against.difference == pytest.approx((0.5 + 0.6 - 0.7 - 0.1) / 2)


def validation(table, name):
    """Mean validation P@1 of a row."""
    runs = table.of(next(row for row in table.rows if row.name == name)).values()
    return sum(run.result["scores"]["validation"]["p_at_1"] for run in runs)
