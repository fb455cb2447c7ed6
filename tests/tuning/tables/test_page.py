"""The page of a table against numbers worked out by hand, from made-up runs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from anchorfl.pipeline.methods.feddyn import FedDyn
from anchorfl.pipeline.methods.fedproto import FedProto
from anchorfl.pipeline.methods.fedrep import FedRep
from anchorfl.tuning.tables.ours import figures_of
from anchorfl.tuning.tables.page import _blocks, reproducibility, table_csv, table_dicts, text, write_page
from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.plots import curves_csv, plot_dots, split_of_curves
from anchorfl.tuning.tables.published import MACRO_ACCURACY, MACRO_F1, Figure, rows_of, select_rows
from anchorfl.tuning.tables.runs import table_runs_of
from anchorfl.tuning.tables.statistics import (
    ABOVE,
    BELOW,
    OTHER_SETTINGS,
    REPRODUCED,
    WITHIN_NOISE,
    TableEntry,
    figures_text,
    table_of,
)
from tests.tuning.made_tables import made_run, rising, toy

AVG, ALIGN = {1: 0.10, 2: 0.20, 3: 0.24}, {1: 0.30, 2: 0.31, 3: 0.29}


def made(folder: Path, *, lacking: tuple = (), options: tuple = (), seeds: tuple = (1, 2, 3), **about):
    """FedAvg and FedAlign on digits with the scores above, accuracy 0.1 more; without the (row, seed) in lacking."""
    paper = toy(folder, seeds=seeds)
    table_runs = []
    for table_run in table_runs_of(rows_of(paper), seeds, options):
        if (table_run.row.name, table_run.seed) in lacking:
            table_runs.append(table_run)
            continue
        top = {"fedavg": AVG, "fedalign": ALIGN}[table_run.row.name][table_run.seed]
        scores = {"test/f1_macro": [0.05, 0.1, top], "test/accuracy": [0.1, 0.2, top + 0.1]}
        table_runs.append(made_run(table_run, folder / "runs", scores))
    return table_of(paper, table_runs, command="anchorfl table toy", **about)


def lines(table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_csv(table))))


def test_every_number_by_hand(tmp_path):
    """Means .18 and .30; sds (ddof 1) sqrt(.0104 / 2) and .01; differences .2 .11 .05, t = .12 / (.07550 / sqrt 3) =
    2.7530; with 2 degrees of freedom p = 1 - t / sqrt(2 + t^2). A round costs 100 s, so two are 200 s.
    """
    avg, _, align, _ = lines(made(tmp_path))
    assert (avg["row"], avg["metric"], avg["n"], avg["seeds"]) == ("FedAvg", "macro_f1", "3", "3")
    assert float(avg["mean"]) == pytest.approx(18.0)
    assert float(avg["sd"]) == pytest.approx(100 * (0.0104 / 2) ** 0.5, rel=1e-5)
    assert float(avg["difference"]) == pytest.approx(-2.0)
    assert avg["verdict"] == WITHIN_NOISE
    assert [float(avg[f"seed_{s}"]) for s in (1, 2, 3)] == pytest.approx([10, 20, 24])
    assert float(avg["own_less_row"]) == pytest.approx(12.0)
    assert (avg["pairs"], avg["p_wilcoxon"]) == ("3", "")
    t = 0.12 / ((0.0114 / 2) ** 0.5 / 3**0.5)
    assert float(avg["p"]) == pytest.approx(1 - t / (2 + t * t) ** 0.5, rel=1e-5)
    assert avg["p_holm"] == avg["p"]  # the only other row
    assert (float(avg["mb_down"]), float(avg["mb_up"])) == (2.0, 1.0)
    assert float(avg["cpu_hours_per_run"]) == pytest.approx(200 / 3600, rel=1e-5)
    assert len(avg["runs"].split()) == 3
    assert (align["published"], align["published_sd"], align["tables"]) == ("30", "1.5", "1 2")
    assert float(align["sd"]) == pytest.approx(1.0)
    assert (align["verdict"], align["p"]) == (REPRODUCED, "")


def test_the_line_of_a_finished_run_has_the_figure_that_the_table_has(tmp_path):
    """Of the last round where that is what the paper reports; the mean of the last five where it is that."""
    table = made(tmp_path)
    folder = next(run.folder for run in table.runs if (run.row.name, run.seed) == ("fedavg", 3))
    assert figures_text(table.paper, folder) == "macro F1 24.00  accuracy 34.00"
    # round 0 trained nothing and is no scored round: (10 + 24) / 2 and (20 + 34) / 2
    assert figures_text(replace(table.paper, reported="last5"), folder) == "macro F1 17.00  accuracy 27.00"


def test_json_has_the_numbers_of_the_csv(tmp_path):
    table = made(tmp_path, lacking=(("fedavg", 2),))
    found = json.loads(json.dumps(table_dicts(table), allow_nan=False))
    assert [list(row) for row in found] == [list(line) for line in lines(table)]
    for row, line in zip(found, lines(table), strict=True):
        cells = {name: "" if v is None else f"{v:.6g}" if isinstance(v, float) else str(v) for name, v in row.items()}
        assert cells == line
    assert found[0]["seed_2"] is None


def test_a_client_that_failed_moved_nothing(tmp_path):
    """Megabytes are per client that answered; and the page says that some are missing from the means."""
    paper = toy(tmp_path)
    table_run, other = table_runs_of(rows_of(paper), [1], [])
    scores = {"test/f1_macro": [0, 0.2, 0.3], "test/accuracy": [0, 0.2, 0.3]}
    run = made_run(table_run, tmp_path / "runs", scores, failed=2)
    table = table_of(paper, [run, made_run(other, tmp_path / "runs", scores)], notes=["A note."])
    cost = table.cost(table_run.row)
    assert (cost.down, cost.up, cost.runs) == (2.0, 1.0, 1)
    assert table.notes == [
        "A note.",
        "digits/fedavg seed 1: clients failed 6 times, in 3 rounds, which went on without them (failures/* in its"
        " metrics.jsonl)",
    ]


@pytest.mark.parametrize(
    ("scores", "published", "verdict"),
    [
        ([0.30, 0.31], 30.5, REPRODUCED),  # sd 0.7071
        ([0.30, 0.31], 30.503, REPRODUCED),  # to the digits that the paper has
        ([0.30, 0.31], 30.51, WITHIN_NOISE),
        ([0.30, 0.31], 31.2, WITHIN_NOISE),
        ([0.30, 0.31], 31.21, BELOW),
        ([0.30, 0.31], 29.8, REPRODUCED),
        ([0.30, 0.31], 29.79, ABOVE),
        ([0.79, 0.84, 0.86], 75.98, ABOVE),
        ([0.30, 0.30], 30.0, REPRODUCED),  # sd 0
        ([0.30, 0.30], 29.99, ABOVE),
        ([0.30], 30.0, REPRODUCED),
        ([0.30], 30.1, "below, one seed"),
        ([0.30], 29.9, "above, one seed"),
        ([], 30.0, ""),
        ([0.30], None, ""),
    ],
)
def test_verdicts(tmp_path, scores, published, verdict):
    row = rows_of(toy(tmp_path))[0]
    figure = None if published is None else Figure(published)
    assert TableEntry(row, MACRO_F1, dict(enumerate(scores)), (0, 1), figure).verdict == verdict


def test_the_page(tmp_path):
    """A reader sees verdicts, tests, cost, figures that exist, what is missing, and how to make it again."""
    table = made(tmp_path, lacking=(("fedavg", 3),), notes=("A note.",))
    out = tmp_path / "page"
    assert {path.name for path in write_page(table, out)} == {"table.md", "table.csv", "reproducibility.md", "figures"}
    page = (out / "table.md").read_text()
    assert page.startswith("# Toy (2023): tables 1 and 2\n\nMade by `anchorfl table toy`.\n\nA note.")
    assert (
        "| FedAvg | digits/fedavg | macro F1 | 20.00 | 15.00 ± 7.07 | -5.00 | 10.00, 20.00, - | 2 of 3 | within noise |"
        in page
    )
    assert "| FedAlign | digits/fedalign | accuracy | - | 40.00 ± 1.00 | - | 40.00, 41.00, 39.00 | 3 of 3 | - |" in page
    assert "| FedAvg | macro F1 | +15.50 | 2 | - | - | - |" in page  # two pairs: no test
    assert "| FedAlign | 3 | 2.00 | 1.00 | 0.0556 |" in page
    assert "5 of 6 runs, 0.278 CPU hours in all." in page
    assert "Not the paper's settings" not in page
    for name in ("figures/table.png", "figures/curves-digits.png"):
        assert f"]({name})" in page
        assert (out / name).stat().st_size > 10_000
    assert "FedAvg    macro F1  20.00" in text(table)
    first = {p: (out / p).read_bytes() for p in ("table.md", "table.csv", "figures/table.png")}
    write_page(table, out)
    assert {p: (out / p).read_bytes() for p in first} == first


def test_rows_for_reproducibility(tmp_path):
    """In the form of the first table of REPRODUCIBILITY.md; what has no published figure is no row of it."""
    rows = reproducibility(made(tmp_path)).splitlines()
    assert rows[0] == "| Row | Preset | Metric | Published | Ours, mean ± sd | Seeds 1, 2, 3 | Verdict |"
    assert rows[2:5] == [
        "| Toy (2023), Table 1, Digits, FedAvg | `digits/fedavg` | macro F1 | 20.00 | 18.00 ± 7.21 | 10.00, 20.00,"
        " 24.00 | within noise |",
        "|  |  | accuracy | 90.00 | 28.00 ± 7.21 | 20.00, 30.00, 34.00 | below |",
        "| Toy (2023), Tables 1 and 2, Digits, FedAlign | `digits/fedalign` | macro F1 | 30.00 ± 1.50 | 30.00 ± 1.00 |"
        " 30.00, 31.00, 29.00 | reproduced |",
    ]
    assert rows[5:] == ["", "6 of 6 runs, 0.333 CPU hours in all. Command: `anchorfl table toy`."]


def test_rows_for_reproducibility_name_no_place(tmp_path):
    """A row has the options of the command line that may change its result: where runs go is the machine's."""
    table = made(tmp_path)
    words = ("--tracking.uri", "none", "--optimizer.lr", "0.1", "--task.cache=/a/folder", "--cluster.backup", "s3://a")
    rows = reproducibility(replace(table, runs=[replace(c, words=words) for c in table.runs])).splitlines()
    assert [row.split("|")[2].strip() for row in rows[2:5]] == [
        "`digits/fedavg --optimizer.lr 0.1`", "", "`digits/fedalign --optimizer.lr 0.1`",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (FedProto(), "FedProto trains no global model: its scores are means over the clients' own models"),
        (FedRep(), "the mean body with the mean of the participants' heads"),
        (FedRep(evaluate_on="clients"), "means over the clients' heads on the mean body"),
        (FedDyn(), "FedDyn: the scores are those of the mean of the participants' weights"),
    ],
)
def test_whose_scores_stand_in_a_row(tmp_path, method, words):
    """The page says it where it has a row that trains no global model, as FedProto's."""
    table = made(tmp_path)
    assert words not in str(list(_blocks(table))[-1].paragraphs)
    first, *others = table.runs
    row = replace(first, experiment=replace(first.experiment, method=method))
    (line,) = [p for p in list(_blocks(replace(table, runs=(row, *others))))[-1].paragraphs if words in p]
    unrun = replace(row, digest="of no run")
    assert line not in list(_blocks(replace(table, runs=(unrun, *others))))[-1].paragraphs


def test_the_option_of_one_method_is_said_of_its_rows_alone(tmp_path):
    table = made(tmp_path, options=("--method.q1", "93"))
    write_page(table, tmp_path / "page")
    page = (tmp_path / "page" / "table.md").read_text()
    assert "**Not the paper's settings**: digits/fedalign with `--method.q1 93`" in page
    verdicts = {e.row.name: e.verdict for e in table.entries if e.published}
    assert verdicts["fedalign"] == OTHER_SETTINGS
    assert verdicts["fedavg"] != OTHER_SETTINGS
    assert {f.preset: f.options for f in figures_of(table, "a")} == {
        "digits/fedavg": "", "digits/fedalign": "--method.q1 93",
    }  # fmt: skip


def test_other_options_are_said(tmp_path):
    table = made(tmp_path, options=("--federation.rounds", "2"))
    write_page(table, tmp_path / "page")
    page = (tmp_path / "page" / "table.md").read_text()
    assert "**Not the paper's settings**: every run has `--federation.rounds 2`" in page
    assert "`digits/fedavg --federation.rounds 2`" in reproducibility(table)
    assert {e.verdict for e in table.entries if e.published} == {OTHER_SETTINGS}
    assert "| 18.00 ± 7.21 | -2.00 | 10.00, 20.00, 24.00 | 3 of 3 | other settings |" in page


def test_savings_are_no_other_settings_and_each_row_names_its_own_options(tmp_path):
    """oneDNN computes the same; q1 is FedAlign's alone, so FedAvg's row is the preset's, and its command has no q1."""
    table = made(tmp_path, options=("--optimizer.onednn", "True", "--method.q1", "90"))
    assert [e.verdict for e in table.entries if e.published] == [WITHIN_NOISE, BELOW, OTHER_SETTINGS]
    rows = reproducibility(table)
    assert "`digits/fedavg --optimizer.onednn True`" in rows
    assert "`digits/fedalign --optimizer.onednn True --method.q1 90`" in rows


def test_nothing_yet(tmp_path):
    everything = tuple((row, seed) for row in ("fedavg", "fedalign") for seed in (1, 2, 3))
    table = made(tmp_path, lacking=everything)
    write_page(table, tmp_path / "page")
    assert "There is no finished run of this table yet." in (tmp_path / "page" / "table.md").read_text()
    assert lines(table) == []


def test_curves_by_hand(tmp_path):
    """Mean, sd, lowest and highest of every round."""
    table = made(tmp_path)
    got = list(csv.DictReader(io.StringIO(curves_csv(table, table.rows))))
    assert len(got) == 2 * 2 * 3  # rows, metrics, rounds
    (last,) = (r for r in got if (r["row"], r["metric"], r["round"]) == ("FedAvg", "macro_f1", "2"))
    assert (last["runs"], float(last["mean"]), float(last["lowest"]), float(last["highest"])) == ("3", 18.0, 10.0, 24.0)
    assert float(last["sd"]) == pytest.approx(7.2111, abs=1e-4)


@pytest.mark.parametrize("validated", [True, False])
def test_curves_are_of_the_validation_split_where_the_test_split_was_scored_once(tmp_path, validated):
    """And there are none where neither was scored in every round."""
    paper = toy(tmp_path)
    scores = {"validation/f1_macro": [0.05, 0.1, 0.3], "validation/accuracy": [0.1, 0.2, 0.4]} if validated else {}
    table_runs = [
        made_run(run, tmp_path / "runs", scores | {"time/round": [1.0, 1.0, 1.0]})
        for run in table_runs_of(rows_of(paper), [1], [], reported="last")
    ]
    table = table_of(paper, table_runs, command="anchorfl table toy")
    assert split_of_curves(table, table.rows) == ("validation" if validated else "")
    write_page(table, tmp_path / "page")
    assert (tmp_path / "page" / "figures" / "curves-digits.csv").exists() == validated
    assert ("learning curves" in (tmp_path / "page" / "table.md").read_text()) == validated
    if validated:
        got = list(csv.DictReader(io.StringIO(curves_csv(table, table.rows))))
        assert {line["split"] for line in got} == {"validation"}
        assert [float(line["mean"]) for line in got[:3]] == [5.0, 10.0, 30.0]


def test_rows_are_named_where_a_metric_is_not_published(tmp_path):
    """COCO has no P@1 in the paper: the names stand at the next panel, and the empty one is gone."""
    paper = PAPERS["fedalc"]
    table_runs = [
        made_run(table_run, tmp_path / "runs", {metric.record: [0.1, 0.5] for metric in paper.metrics})
        for table_run in table_runs_of(select_rows(rows_of(paper), ["coco14"], ["fedavg", "fedaws"]), [1], [])
    ]
    panels = plot_dots(table_of(paper, table_runs)).axes
    shown = [ax for ax in panels if ax.get_visible()]
    assert 0 < len(shown) < len(panels)
    names = [[label.get_text() for label in ax.get_yticklabels() if label.get_visible()] for ax in shown]
    assert names[0] == [row.shown for row in (table_run.row for table_run in table_runs)]
    assert [ax.yaxis.get_tick_params()["labelleft"] for ax in shown] == [True] + [False] * (len(shown) - 1)
    drawn = {round(float(x), 6) for ax in shown for line in ax.lines for x in line.get_xdata()}
    published = {
        table_run.row.figures[m.published].mean
        for table_run in table_runs
        for m in paper.metrics
        if m.published in table_run.row.figures
    }
    assert published
    assert drawn >= {50.0} | published


def test_rows_of_one_set_of_options_are_one_comparison(tmp_path):
    """As FedAvg and the baseline of an ablation are."""
    table = made(tmp_path)
    twin = replace(table.rows[0], name="twin", label="Baseline")
    table_runs = [*table.runs, *(replace(c, row=twin) for c in table.runs if c.row == table.rows[0])]
    both = replace(table, runs=table_runs)
    own = {e.row.name: e.against for e in both.entries if e.metric is MACRO_F1}
    assert own["twin"] == own["fedavg"] == next(e.against for e in table.entries if e.row.name == "fedavg")
    assert own["twin"].holm == own["twin"].p


def test_a_whole_data_set_is_drawn(tmp_path):
    """Twelve rows; Holm's family is the eleven others, also in a metric that the paper has for eight of them."""
    paper = PAPERS["fedalign"]
    table_runs = table_runs_of(select_rows(rows_of(paper), ["r8-8"], []), (4321, 4322, 4323), [])
    made_cells = []
    for n, table_run in enumerate(table_runs):
        top = 0.9 if table_run.row.name == "fedalign" else 0.5 + 0.01 * ((7 * n) % 11)
        scores = {"test/f1_macro": rising(top, 5), "test/accuracy": rising(top, 5)}
        made_cells.append(made_run(table_run, tmp_path / "runs", scores))
    table = table_of(paper, made_cells)
    tested = [e.against for e in table.entries if e.metric is MACRO_ACCURACY and e.against]
    assert len(tested) == 11
    smallest = min(tested, key=lambda a: a.p)
    assert smallest.holm == pytest.approx(min(1, 11 * smallest.p))
    write_page(table, tmp_path / "page")
    assert (tmp_path / "page" / "figures" / "curves-r8-8.png").stat().st_size > 50_000
