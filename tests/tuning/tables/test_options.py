"""An option varied over the rows of a table: which runs these are, and what its page says of them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.cli import main
from anchorfl.tuning.tables.command import TableCommand, parse_args
from anchorfl.tuning.tables.options import Vary, notes_without_preset_value, parse_vary
from anchorfl.tuning.tables.page import reproducibility, table_csv, write_page
from anchorfl.tuning.tables.plots import curves_csv, plot_dots, sensitivity, sensitivity_csv
from anchorfl.tuning.tables.published import rows_of
from anchorfl.tuning.tables.record import TableRecord
from anchorfl.tuning.tables.runs import failure_lines, table_runs_of
from anchorfl.tuning.tables.significance import holm
from anchorfl.tuning.tables.statistics import Table, table_of
from tests.tuning.made_tables import made_run

SEEDS = (1, 2, 3)
TOPS = {  # FedAlign's own q1 on digits is 95
    "90": (0.20, 0.26, 0.23),
    "95": (0.30, 0.31, 0.29),
    "99.5": (0.25, 0.24, 0.29),
}


def varied(paper, text: str, rows: str = "", overrides: tuple[str, ...] = (), seeds=SEEDS):
    """Return the runs of some rows with an option varied."""
    return table_runs_of([r for r in rows_of(paper) if rows in r.name], seeds, overrides, parse_vary([text]))


def made(paper, text: str = "method.q1=99.5,90,95", lacking: tuple = ()) -> Table:
    """FedAlign with the scores above, accuracy 0.1 more; without the (value, seed) in lacking."""
    table_runs = []
    for table_run in varied(paper, text, "fedalign"):
        value = table_run.row.shown.rpartition(" ")[2]
        if (value, table_run.seed) not in lacking:
            top = TOPS[value][table_run.seed - 1]
            scores = {"test/f1_macro": [0.05, 0.1, top], "test/accuracy": [0.1, 0.2, top + 0.1]}
            table_run = made_run(table_run, Path("runs"), scores)
        table_runs.append(table_run)
    return table_of(paper, table_runs, command="anchorfl table toy")


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_cells_of_an_option(paper):
    """By value within a seed, each the run that ``anchorfl run`` makes of the same options; the preset's own value is
    the preset's own run, and alone has the published figures.
    """
    table_runs = varied(paper, "federation.clients_per_round=8,5,2", "fedavg", seeds=[7, 6])
    assert [(c.seed, c.row.change.value) for c in table_runs] == [(7, 2), (7, 5), (7, 8), (6, 2), (6, 5), (6, 8)]
    preset = replace(read_preset("digits/fedavg"), seed=7)
    by_hand = [digest(override(preset, ["--federation.clients_per_round", n])) for n in ("2", "5", "8")]
    assert [c.digest for c in table_runs[:3]] == by_hand
    assert table_runs[1].digest == digest(preset)
    assert [c.row.change.is_preset_value for c in table_runs[:3]] == [False, True, False]
    assert [bool(c.row.figures) for c in table_runs[:3]] == [False, True, False]
    assert all(c.has_preset_options for c in table_runs)
    assert table_runs[0].row.key == "digits/fedavg --federation.clients_per_round 2"
    assert table_runs[0].row.shown == "FedAvg, clients_per_round = 2"
    assert table_runs[0].name == f"{table_runs[0].row.key} seed 7"
    assert not any(
        c.has_preset_options for c in varied(paper, "federation.epochs=1,5", overrides=("--federation.rounds", "2"))
    )
    rest = override(preset, ["--federation.rounds", "2"])
    assert varied(paper, "federation.epochs=1,5", "fedavg", ("--federation.rounds", "2"), [7])[1].digest == digest(rest)


def test_switches_and_words_keep_their_order(paper):
    """Only numbers have an order of their own."""
    for text, values in (
        ("method.aggregate_pseudo=True,False", [True, False]),
        ("method.refresh=round,epoch", ["round", "epoch"]),
        ("method.positive_f1_gate=0.75,None,0.5", [0.75, None, 0.5]),
        ("method.q1=99.0,95", [95.0, 99.0]),
    ):
        table_runs = varied(paper, text, "fedalign", seeds=[1])
        assert [c.row.change.value for c in table_runs] == values
    assert [c.row.key for c in table_runs] == ["digits/fedalign --method.q1 95", "digits/fedalign --method.q1 99"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "method.q1"], "must be an option and its values, such as --vary method.q1=95,97,99"),
        (["--vary", "=1,2"], "must be an option and its values"),
        (["--vary", "method.q1=95,,99"], "must be an option and its values"),
        (["--vary", "method.q1=95"], "one value varies nothing; write --method.q1 95 for every run"),
        (["--vary", "a.b=1,2", "--vary", "a.c=1,2"], "--vary a.b=1,2 and --vary a.c=1,2: one option per table"),
        (["--vary", "cluster.threads=1,2"], "cluster.threads changes no result"),
        (["--vary", "seed=1,2"], "--seed: a table sets it for its runs; give --seeds"),
        (["--vary", "federation.round=1,2"], r"no option --federation.round \(did you mean 'federation.rounds'\?\)"),
        (["--vary", "method.q1=1,2"], r"digits/fedavg: .*no option --method.q1.*\(--rows leaves rows out\)"),
        (["--vary", "method.q1=95,200", "--rows", "fedalign"], "method.q1 = 200.0"),
        (["--vary", "federation.epochs=5,x"], "federation.epochs = 'x': must be a whole number"),
        (["--vary", "federation.epochs=5,1,05"], "--vary federation.epochs: 5 is there twice"),
        (["--vary", "federation.epochs=1,5", "--federation.epochs", "3"], "give one of them"),
    ],
)
def test_what_cannot_be_varied_is_one_line(paper, words, message):
    with pytest.raises(InputError, match=message) as error:
        TableCommand(parse_args(["toy", *words]))
    assert "\n" not in str(error.value)


def test_arguments(paper):
    """A page of its own; the runs are shared."""
    got = parse_args(["toy", "--vary", "federation.clients-per-round=2,5", "--federation.rounds", "2"])
    assert got.vary == Vary("federation.clients_per_round", ("2", "5"))
    assert (got.out, got.overrides) == (Path("runs/table-toy-clients_per_round"), ["--federation.rounds", "2"])
    assert got.command == "anchorfl table toy --vary federation.clients-per-round=2,5 --federation.rounds 2"
    assert parse_args(["toy", "--vary", "method.q1=1,2", "--out", "here"]).out == Path("here")
    assert parse_args(["toy"]).vary is None


def test_every_number_by_hand(paper):
    """Tested against the own value, 95: .30 .31 .29 less .20 .26 .23 is .10 .05 .06, and less .25 .24 .29 is .05 .07
    .00; Holm's family is these two.
    """
    table = made(paper)
    f1 = [line for line in lines(table_csv(table)) if line["metric"] == "macro_f1"]
    assert [line["row"] for line in f1] == [f"FedAlign, q1 = {q}" for q in TOPS]
    assert [line["preset"] for line in f1] == [f"digits/fedalign --method.q1 {q}" for q in TOPS]
    assert [float(line["mean"]) for line in f1] == pytest.approx([23, 30, 26])
    assert [(line["published"], line["verdict"]) for line in f1] == [("", ""), ("30", "reproduced"), ("", "")]
    assert [line["own_less_row"] for line in f1] == ["7", "", "4"]

    def p(a: float, b: float, c: float) -> float:
        mean = (a + b + c) / 3
        t = mean / (sum((x - mean) ** 2 for x in (a, b, c)) / 2 / 3) ** 0.5
        return 1 - t / (2 + t * t) ** 0.5

    by_hand = [p(0.10, 0.05, 0.06), p(0.05, 0.07, 0.00)]
    assert [float(f1[i]["p"]) for i in (0, 2)] == pytest.approx(by_hand, rel=1e-5)
    assert [float(f1[i]["p_holm"]) for i in (0, 2)] == pytest.approx(holm(by_hand), rel=1e-5)


def test_families_are_the_values_of_one_preset(paper):
    """Each of two rows is tested against its own value, and corrected for its own values alone."""
    table_runs = []
    for i, table_run in enumerate(varied(paper, "federation.epochs=1,3,5")):
        top = 0.2 + 0.1 * (table_run.row.name == "fedalign") + 0.01 * ((5 * i) % 7)
        table_runs.append(made_run(table_run, Path("runs"), {"test/f1_macro": [0, top], "test/accuracy": [0, top]}))
    table = table_of(paper, table_runs)
    assert {row.key: table.reference(row).key for row in table.rows} == {
        f"digits/{name} --federation.epochs {n}": f"digits/{name} --federation.epochs 5"
        for name in ("fedavg", "fedalign")
        for n in (1, 3, 5)
    }
    for name in ("fedavg", "fedalign"):
        tests = [e.against for e in table.entries if e.row.name == name and e.metric is paper.metrics[0] and e.against]
        assert [t.holm for t in tests] == pytest.approx(holm([t.p for t in tests]))
        assert len(tests) == 2


def test_the_numbers_behind_the_figure(paper):
    """A line per metric and value, in order; a value without a run is a line without a mean."""
    table = made(paper, lacking=(("90", 1), ("90", 2), ("90", 3), ("99.5", 2)))
    got = lines(sensitivity_csv(table))
    assert [(r["metric"], r["value"], r["own"], r["n"]) for r in got] == [
        (metric, value, own, n)
        for metric in ("macro_f1", "macro_accuracy")
        for value, own, n in (("90", "0", "0"), ("95", "1", "3"), ("99.5", "0", "2"))
    ]
    assert got[0]["mean"] == got[0]["sd"] == got[2]["seed_2"] == ""
    assert (got[1]["row"], got[1]["preset"], got[1]["option"]) == ("FedAlign", "digits/fedalign", "method.q1")
    assert [float(got[1][k]) for k in ("published", "mean", "sd", "seed_2")] == pytest.approx([30, 30, 1, 31])


def test_the_figure(paper):
    """Values stand at even distances with their texts; the line breaks where a value has no run; the own value wears a
    ring.
    """
    ax = sensitivity(made(paper, lacking=tuple(("90", seed) for seed in SEEDS))).axes[0]
    assert [(tick.get_text(), x) for tick, x in zip(ax.get_xticklabels(), ax.get_xticks(), strict=True)] == [
        ("90", 0),
        ("95", 1),
        ("99.5", 2),
    ]
    (line,) = [drawn for drawn in ax.lines if drawn.get_linestyle() == "-" and len(drawn.get_xdata()) == 3]
    assert list(line.get_ydata())[1:] == pytest.approx([30, 26])
    assert line.get_ydata()[0] != line.get_ydata()[0]
    rings = [drawn for drawn in ax.lines if drawn.get_markersize() == 13]
    assert [(r.get_xdata()[0], r.get_ydata()[0]) for r in rings] == [(1, pytest.approx(30))]
    bold = {x.get_text(): x.get_fontweight() for x in plot_dots(made(paper)).axes[0].get_yticklabels()}
    assert bold == {"FedAlign, q1 = 90": "normal", "FedAlign, q1 = 95": "bold", "FedAlign, q1 = 99.5": "normal"}


def test_the_page(paper):
    """The page names the option, the tests and the figure; the row of REPRODUCIBILITY.md is the preset's."""
    table = made(paper)
    write_page(table, Path("page"))
    page = Path("page/table.md").read_text()
    assert "Every row is run with each value of `method.q1`. A published figure, and with it a verdict, stands" in page
    assert "Not the paper's settings" not in page
    assert "## Digits: the preset's own value against the others" in page
    assert "Paired tests: the same preset at its own value less the row" in page
    assert "corrected for all values of that preset" in page
    assert "| FedAlign, q1 = 90 | macro F1 | +7.00 | 3 |" in page
    assert "![Scores against method.q1](figures/vary-q1.png)\n\nNumbers: `figures/vary-q1.csv`." in page
    assert Path("page/figures/vary-q1.png").stat().st_size > 10_000
    assert Path("page/figures/vary-q1.csv").read_text() == sensitivity_csv(table)
    assert len({line["row"] for line in lines(curves_csv(table, table.rows))}) == 3
    rows = reproducibility(table).splitlines()
    assert len(rows) == 5  # head, rule, one row, a space, the total
    assert rows[2].startswith("| Toy (2023), Tables 1 and 2, Digits, FedAlign | `digits/fedalign` | macro F1 | 30.00 ±")


def test_without_the_own_value_nothing_is_tested(paper):
    table = made(paper, "method.q1=90,99.5")
    assert not any(e.against or e.published for e in table.entries)
    (note,) = notes_without_preset_value(table.rows)
    assert note.startswith("method.q1 = 95, the preset's own value of digits/fedalign, is not among the values: there,")
    assert notes_without_preset_value(made(paper).rows) == []
    write_page(table, Path("page"))
    assert "against the others" not in Path("page/table.md").read_text()


def test_runs_are_shared_and_shown(paper, capsys):
    """The runs of a table without --vary stand at the own value of one with it, and the other way round."""
    (plain,) = table_runs_of([rows_of(paper)[1]], [1], [])
    folder = made_run(plain, Path("runs"), {"test/f1_macro": [0, 0.3], "test/accuracy": [0, 0.4]}).folder
    words = ["table", "toy", "--rows", "fedalign", "--seeds", "1", "--show"]
    assert main([*words, "--vary", "method.q1=90,95"]) == 0
    said = capsys.readouterr().out
    assert "FedAlign, q1 = 95  macro F1  30.00 ± 1.50  30.00  +0.00       1 of 1  reproduced" in said
    assert "FedAlign, q1 = 90  macro F1  -             -      -           0 of 1  -" in said
    assert "1 of 2 runs" in said
    assert str(folder) in Path("runs/table-toy-q1/table.csv").read_text()
    assert main([*words, "--vary", "method.q1=90,99"]) == 0
    assert "method.q1 = 95, the preset's own value of digits/fedalign, is not" in capsys.readouterr().out
    assert main(words) == 0
    assert {p.name for p in Path("runs/table-toy/figures").iterdir()} == {
        "table.png", "table.svg", "curves-digits.png", "curves-digits.svg", "curves-digits.csv",
    }  # fmt: skip


def test_values_are_told_apart(paper):
    """In the record of the table, and where runs fail."""
    table = made(paper)
    record = TableRecord(Path("page"), Path("runs"), "none", {"table": "toy"}, print)
    record.keep_page(table, [])
    record.end("FINISHED")
    metrics = read_records(Path("page"))[0][-1].metrics
    means = {name: value for name, value in metrics.items() if name.endswith("/macro_f1")}
    assert means == pytest.approx(
        {f"digits/fedalign --method.q1 {q}/macro_f1": m for q, m in (("90", 23), ("95", 30), ("99.5", 26))}
    )
    better = {
        key: replace(run, values=run.values | {"f1_last": run.values["f1_last"] + 0.1})
        for key, run in table.finished.items()
    }
    for again, steps in ((table, 1), (replace(table, finished=better), 2)):  # as many runs, other scores
        record = TableRecord(Path("page"), Path("runs"), "none", {"table": "toy"}, print)
        record.keep_page(again, [])
        record.end("FINISHED")
        rows = read_records(Path("page"))[0]
        assert len(rows) == steps
    assert rows[-1].metrics["digits/fedalign --method.q1 90/macro_f1"] == pytest.approx(33)
    table_runs = table.runs
    assert failure_lines(
        table_runs, {table_runs[0].digest: "why", table_runs[1].digest: "why", table_runs[3].digest: "why"}
    ) == ["digits/fedalign --method.q1 90 seeds 1, 2 failed: why", "digits/fedalign --method.q1 95 seed 1 failed: why"]
