"""The definitions of the papers' tables against published.csv and the presets."""

from __future__ import annotations

import csv
import dataclasses
import re

import pytest

from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.pipeline.results.compare import load_run, rounds_of
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import FAMILIES
from anchorfl.tuning.tables.page import REPORTED, write_page
from anchorfl.tuning.tables.papers import PAPERS, paper_of
from anchorfl.tuning.tables.published import (
    MACRO_ACCURACY,
    MACRO_F1,
    MAP,
    P_AT_1,
    P_AT_3,
    P_AT_5,
    PUBLISHED,
    Figure,
    quoted_lines,
    rows_of,
    select_rows,
)
from anchorfl.tuning.tables.runs import TableRun
from anchorfl.tuning.tables.statistics import Table
from tests.tuning.made_tables import DIGITS, HEAD, toy

ROWS = [(paper, row) for paper in PAPERS.values() for row in rows_of(paper)]
OTHERWISE = {
    "Central": "fedavg", "Baseline": "fedavg", "LKCC": "fedbm", "Random": "fedbm", "Embedding": "fedbm",
}  # fmt: skip
"""What FedBM's tables call otherwise -> its method."""
ABLATIONS = {"AL": "alignment", "SE": "semantic", "AT": "alternating"}


def labelled(line):
    """Return the name of a line's method with its lambda."""
    found = re.search(r"lambda=\d+", line["setting"])
    return line["method"] + (f"({found[0]})" if found else "")


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_row_has_its_preset(name):
    """Every method and data set of the file is a row, with the file's figures and a preset that is shipped; a further
    row has none.
    """
    paper, rows = PAPERS[name], rows_of(PAPERS[name])
    with PUBLISHED.open(newline="") as stream:
        lines = [r for r in csv.DictReader(stream) if r["paper"] == paper.published and r["table"] in paper.tables]
    lines = [r for r in lines if r["method"] not in paper.quoted]
    lines += [r | {"dataset": other} for other, of in paper.beside.items() for r in lines if r["dataset"] == of]
    assert bool(lines) == bool(paper.tables)
    by_name = {(row.data, row.label): row for row in rows}
    named = [
        (r["dataset"], r["method"] + "".join(re.findall(r"(?<=K=\d\d )l.*|(?<=K=\d )l.*", r["setting"]))) for r in lines
    ]
    settings = name == "fedbm"  # which are parts of the data set there
    named = [(r["dataset"] + (f", {r['setting']}" if settings else ""), labelled(r)) for r in lines]
    further = {(data, label) for data, labels in paper.presets.items() for label in labels} - set(named)
    assert set(by_name) == set(named) | further
    for key, r in zip(named, lines, strict=True):
        row = by_name[key]
        assert row.figures[r["metric"]].mean == float(r["mean_percent"])
        assert r["table"] in row.tables
    assert all(not by_name[key].figures and not by_name[key].tables for key in further)
    presets = [row.preset for row in rows]
    assert len(set(presets)) == len(presets)
    assert set(presets) <= set(preset_names())


@pytest.mark.parametrize(("paper", "row"), ROWS, ids=[row.preset for _, row in ROWS])
def test_a_preset_is_what_its_row_says(paper, row):
    """Its options are those in the row's label; its seed is the authors'."""
    e = read_preset(row.preset)
    assert e.seed == paper.seeds[0]
    name = e.method.name.removesuffix("-positive")
    assert row.label.lower().startswith(name) or OTHERWISE.get(row.label.split("(")[0].strip()) == name
    for option, value in re.findall(r"(\w+)=([\d.]+)", row.label):
        assert getattr(e.method, {"lambda": "lambda_"}.get(option, option)) == float(value)
    if e.method.name == "fedalign":
        off = re.findall(r"w/o (\w+)", row.label)
        assert [n for n, option in ABLATIONS.items() if not getattr(e.method, option)] == off


def test_fedalcs_grid_is_whole():
    """Tables V and VI: six lambdas each of FedAwS and FedALC, and what only we run beside them."""
    rows = [row for row in rows_of(PAPERS["fedalc"]) if row.folder == "bibtex"]
    grid = [f"{method}-{v}" for method in ("fedaws", "fedalc") for v in (1, 10, 100, 150, 200, 500)]
    assert [row.name for row in rows] == ["flag", "fedmlh", "fedavg", "fedavg-fixed", *grid, "fedalc-fixed"]
    by_name = {row.name: row for row in rows}
    assert by_name["fedalc-10"].figures["p@1"] == Figure(59.67)
    assert by_name["fedalc-10"].tables == ("VI",)
    assert quoted_lines(PAPERS["fedalc"], "Bibtex") == [
        "SLEEC, published and not run here: P@1 65.08, P@3 39.64, P@5 28.87."
    ]
    assert quoted_lines(PAPERS["fedalc"], "VOC07") == []


def test_figures_of_the_preprint_are_quoted_where_they_differ():
    assert quoted_lines(PAPERS["fedalign"], "R8-8") == [
        "FedPU, in the preprint, Table 2: macro F1 83.17, accuracy 94.23.",
        "FedAvg, in the preprint, Table 3: macro F1 77.27, accuracy 90.59.",
    ]
    assert quoted_lines(PAPERS["fedalign"], "ES-15") == []


def test_a_row_of_two_tables_is_one_row():
    rows = {row.preset: row for row in rows_of(PAPERS["fedalign"])}
    assert len(rows) == 99
    assert rows["r8-8/fedalign"].tables == ("2", "3")
    assert rows["r8-8/fedalign"].figures == {"macro_f1": Figure(83.76), "macro_accuracy": Figure(94.92)}
    assert rows["r8-8/fedalign-no-al"].tables == ("3",)
    assert rows["r8-8/fedalign-no-al"].figures == {"macro_f1": Figure(79.67)}
    assert "es-5/fedalign-no-al" not in rows


def test_what_a_definition_must_not_lack(tmp_path):
    assert [row.figures for row in rows_of(toy(tmp_path))][1] == {"macro_f1": Figure(30.0, 1.5)}
    with pytest.raises(ValueError, match=r"Digits, FedNew, macro_f1 is not in the definition of Toy \(2023\)"):
        rows_of(toy(tmp_path, DIGITS + "Toy,1,Digits,,FedNew,macro_f1,1.00,\n"))
    with pytest.raises(ValueError, match="two figures for Digits, FedAlign, macro_f1"):
        rows_of(toy(tmp_path, DIGITS + "Toy,2,Digits,,FedAlign,macro_f1,31.00,\n"))
    with pytest.raises(ValueError, match=r"published\.csv: Digits, FedAlign is published and has no preset"):
        rows_of(toy(tmp_path, presets={"Digits": ("FedAvg",)}))


def test_a_setting_is_part_of_the_data_set(tmp_path):
    """FedBM and FedALC publish one data set in several settings."""
    figures = HEAD + "Toy,1,Digits,beta=0.1,FedAvg,macro_f1,20.00,\nToy,1,Digits,beta=1,FedAvg,macro_f1,40.00,\n"
    paper = toy(tmp_path, figures, data={"Digits, beta=0.1": "digits-01", "Digits, beta=1": "digits-1"})
    assert [(row.data, row.preset) for row in rows_of(paper)] == [
        ("Digits, beta=0.1", "digits-01/fedavg"),
        ("Digits, beta=1", "digits-1/fedavg"),
    ]


def test_choosing():
    rows = rows_of(paper_of("fedalign"))
    got = select_rows(rows, ["r8-8", "es-5"], ["fedavg", "fedalign"])
    assert [row.preset for row in got] == ["es-5/fedavg", "es-5/fedalign", "r8-8/fedavg", "r8-8/fedalign"]
    assert select_rows(rows, [], []) == rows
    with pytest.raises(InputError, match=r"--data r8: not in this table \(did you mean 'r8-8'\?\); it has es-5, es-15"):
        select_rows(rows, ["r8"], [])
    with pytest.raises(InputError, match=r"--rows fedavgg: not in this table \(did you mean 'fedavg'\?\)"):
        select_rows(rows, [], ["fedavgg"])
    with pytest.raises(InputError, match="the paper has no such row"):
        select_rows(rows, ["es-5"], ["fedalign-no-al"])
    with pytest.raises(InputError, match=r"no table 'fedalgn' \(did you mean 'fedalign'\?\); there are: fedalign"):
        paper_of("fedalgn")


@pytest.mark.parametrize(("paper", "row"), ROWS, ids=lambda value: getattr(value, "preset", ""))
def test_presets_compute_the_metrics_of_their_table(paper, row):
    computed = {f"test/{m.name}" for m in FAMILIES[read_preset(row.preset).evaluation.metrics].measures}
    assert {metric.record for metric in paper.metrics} <= computed


@pytest.mark.parametrize(("paper", "row"), ROWS, ids=lambda value: getattr(value, "preset", ""))
def test_runs_of_presets_have_the_round_that_is_reported(paper, row):
    assert paper.reported in rounds_of(FAMILIES[read_preset(row.preset).evaluation.metrics])
    assert paper.reported in REPORTED


def test_the_round_with_the_best_sum(tmp_path):
    """Ours is the test figure of the round with the largest validation sum, and the page says so."""
    paper = toy(tmp_path, reported="best_sum")
    runs = {}
    for seed in paper.seeds:
        folder = tmp_path / f"run-{seed}"
        params = {
            "evaluation.metrics": "classification",
            "seed": seed,
            "federation.clients_per_round": 1,
            "task.clients": 2,
        }
        record = JsonLines(folder)
        record.begin(RunInfo(name=folder.name, experiment="digits", params=params, folder=folder))
        for round_, (f1, total, test) in enumerate([(0.9, 0.5, 0.1), (0.3, 0.8, 0.25), (0.2, 0.8, 0.4)], 1):
            metrics = {
                "validation/f1_macro": f1,
                "validation/sum": total,
                "communication/download_bytes": 1,
                "communication/upload_bytes": 1,
            }
            metrics |= {f"test/{m.name}": test for m in FAMILIES["classification"].measures}
            metrics |= {"failures/dropped_clients": 0, "time/clients": 1.0, "time/evaluate": 1.0}
            record.round(RoundRecord(round_, 100.0, metrics))
        record.end("FINISHED")
        runs[str(seed)] = load_run(folder)
    row = rows_of(paper)[0]
    e = read_preset("digits/fedavg")
    cells = [
        TableRun(row=row, seed=s, experiment=e, digest=str(s), has_preset_options=True, folder=runs[str(s)].folder)
        for s in paper.seeds
    ]
    table = Table(paper, cells, runs)
    assert table.entries[0].scores == {seed: 0.25 for seed in paper.seeds}
    assert dataclasses.replace(table, paper=toy(tmp_path, reported="best")).entries[0].scores == {1: 0.1, 2: 0.1}
    write_page(table, tmp_path / "out")
    assert (
        "test split, round with the best validation sum of five scores. Ours" in (tmp_path / "out/table.md").read_text()
    )


def test_metrics_are_called_what_runs_call_them():
    """Records, numbers of comparisons, and what FedALC's tables are published by."""
    got = {m.published: (m.value, m.record, m.shown) for m in (MACRO_F1, MACRO_ACCURACY, P_AT_1, P_AT_3, P_AT_5, MAP)}
    assert got == {
        "macro_f1": ("f1", "test/f1_macro", "macro F1"),
        "macro_accuracy": ("accuracy", "test/accuracy", "accuracy"),
        "p@1": ("p_at_1", "test/p_at_1", "P@1"),
        "p@3": ("p_at_3", "test/p_at_3", "P@3"),
        "p@5": ("p_at_5", "test/p_at_5", "P@5"),
        "map": ("map", "test/map", "mAP"),
    }
    assert PAPERS["fedalign"].primary == "macro F1"
    assert dataclasses.replace(PAPERS["fedalign"], metrics=(MAP, P_AT_3)).primary == "P@1"
