"""Ranks over data sets: Demšar's own example, ties, groups, and what is too little to rank."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from anchorfl.tuning.cli import main
from anchorfl.tuning.tables.page import write_page
from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.plots import rank_diagram
from anchorfl.tuning.tables.published import Change, metrics_of, rows_of
from anchorfl.tuning.tables.ranks import (
    FEWEST,
    Ranking,
    critical_difference,
    duels,
    duels_of,
    probability_better,
    rank,
    ranking_of,
    whole_rows,
)
from anchorfl.tuning.tables.runs import table_runs_of
from anchorfl.tuning.tables.statistics import table_of
from tests.tuning.made_tables import HEAD, made_run, toy

# Table 6 of the paper: AUC of C4.5 and three variants on fourteen UCI sets
DEMSAR = """
0.763 0.768 0.771 0.798
0.599 0.591 0.590 0.569
0.954 0.971 0.968 0.967
0.628 0.661 0.654 0.657
0.882 0.888 0.886 0.898
0.936 0.931 0.916 0.931
0.661 0.668 0.609 0.685
0.583 0.583 0.563 0.625
0.775 0.838 0.866 0.875
1.000 1.000 1.000 1.000
0.940 0.962 0.965 0.962
0.619 0.666 0.614 0.669
0.972 0.981 0.9751 0.975
0.957 0.978 0.946 0.970
"""
METHODS = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def demsar():
    lines = [list(map(float, line.split())) for line in DEMSAR.split("\n") if line]
    return {f"set {i}": dict(zip(METHODS, line, strict=True)) for i, line in enumerate(lines)}


def test_the_example_of_the_paper():
    """Mean ranks 3.143, 2.000, 2.893, 1.964; F = 3.69 with 3 and 39 degrees of freedom; CD = 1.25."""
    ranking = rank(demsar())
    assert ranking.methods == ("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")
    assert list(ranking.mean_ranks.values()) == pytest.approx([1.964, 2.000, 2.893, 3.143], abs=5e-4)
    assert ranking.critical_difference == pytest.approx(1.25, abs=5e-3)
    assert ranking.p == pytest.approx(0.0196, abs=5e-4)  # of F(3, 39) = 3.69
    assert ranking.alike == [ranking.methods]  # 3.143 - 1.964 is below 1.25


def test_the_test_is_scipys_in_the_form_of_iman_and_davenport():
    """Without ties, for which SciPy corrects."""
    score_SM = np.random.default_rng(5).random((5, 4))
    ranking = rank({f"d{s}": dict(zip("abcd", row, strict=True)) for s, row in enumerate(score_SM.tolist())})
    chi = stats.friedmanchisquare(*score_SM.T).statistic
    assert 0.001 < ranking.p < 0.9
    assert ranking.p == pytest.approx(stats.f.sf(4 * chi / (5 * 3 - chi), 3, 12), rel=1e-9)


def test_methods_of_one_mean_rank_stand_in_the_order_of_their_names():
    scores = {s: dict(zip("zma", values, strict=True)) for s, values in (("x", (3, 1, 2)), ("y", (1, 2, 3)))}
    scores["w"] = {"z": 3.0, "m": 2.0, "a": 1.0}
    assert rank(scores).mean_ranks == pytest.approx({"z": 5 / 3, "a": 2.0, "m": 7 / 3})
    scores["v"] = {"z": 1.0, "m": 3.0, "a": 2.0}
    assert list(rank(scores).mean_ranks.items()) == [("a", 2.0), ("m", 2.0), ("z", 2.0)]


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_values_of_the_paper(methods, q):
    """Table 5 (a), q at 0.05."""
    assert critical_difference(methods, 6) == pytest.approx(q * np.sqrt(methods * (methods + 1) / 36), abs=2e-3)


@pytest.mark.parametrize("differences", [(2.0, -1.0), (0.5, 3.0, -2.0), (1.0, -1.5)])
def test_the_probability_is_that_of_the_integral(differences):
    """The posterior is a Dirichlet distribution (1/2, 1, 1, ...): here by a grid over its weights, of which the first,
    at 0, is a square, so that its density becomes even.
    """
    z_S = np.array([0.0, *differences])
    steps = 400 if len(differences) == 2 else 90
    axis = (np.arange(steps) + 0.5) / steps
    *rest, root = np.meshgrid(*[axis] * len(differences), indexing="ij")
    first = root**2
    others = np.stack([*rest, np.zeros_like(first)])
    others[-1] = 1 - first - others[:-1].sum(0)
    inside = others[-1] > 0
    w = np.stack([first, *others])
    total = sum(np.sign(a + b) * w[i] * w[j] for (i, a), (j, b) in itertools.product(enumerate(z_S), enumerate(z_S)))
    expected = (total[inside] > 0).mean()
    assert probability_better(differences) == pytest.approx(expected, abs=6e-3)
    assert probability_better([-d for d in differences]) == pytest.approx(1 - expected, abs=6e-3)


def test_certain_and_even_differences():
    assert probability_better([0.1, 2.0, 3.0]) == 1.0
    assert probability_better([-0.1, -2.0]) == 0.0
    assert probability_better([1.0, -1.0]) == pytest.approx(0.5, abs=5e-3)
    assert probability_better([0.0, 0.0, 0.0]) == 0.5  # neither is ever higher
    assert probability_better([1.0, -1.0]) == probability_better([2.0, -2.0]), "the same draws at every call"


def test_scores_that_are_equal_up_to_rounding_are_ties():
    """Means of as many right rows differ in last bits, by their order."""
    scores = {f"d{k}": {"a": 0.1 * k + 3e-16, "b": 0.1 * k, "c": 0.0} for k in range(1, 6)}
    assert rank(scores).mean_ranks == {"a": 1.5, "b": 1.5, "c": 3.0}
    assert probability_better([4e-16] * 5) == 0.5
    assert probability_better([2.0, -2.0, 0.1]) == probability_better([2.0 + 4e-16, -2.0, 0.1])


def test_the_best_is_held_against_all_that_share_enough_data_sets():
    scores = {s: {"a": 3.0 + i, "b": 1.0} for i, s in enumerate("wxyz")}
    scores["w"]["c"] = scores["x"]["c"] = scores["y"]["c"] = 9.0
    scores["z"]["d"] = 1.0
    got = duels(scores, "a")
    assert [(duel.other, duel.settings, duel.difference, duel.probability) for duel in got] == [
        ("b", 4, 3.5, 1.0), ("c", 3, -5.0, 0.0),
    ]  # fmt: skip


def test_the_difference_of_a_duel_is_the_mean():
    scores = {f"d{i}": {"a": 0.5 + d, "b": 0.5} for i, d in enumerate((0.01, 0.02, 0.3))}
    (duel,) = duels(scores, "a")
    assert (duel.other, duel.settings, duel.difference) == ("b", 3, pytest.approx(0.11))


def test_groups_are_as_large_as_can_be_and_none_lies_within_another():
    ranking = Ranking(("a", "b", "c", "d", "e"), ("x",), np.array([[1.0, 1.9, 2.5, 3.1, 6.0]]), 0.01, 1.5)
    assert ranking.alike == [("a", "b"), ("b", "c", "d")]
    far = Ranking(("a", "b"), ("x",), np.array([[1.0, 3.0]]), 0.01, 1.5)
    assert far.alike == []


def test_one_order_everywhere_is_no_division_by_zero():
    scores = {s: {"a": 0.3, "b": 0.2, "c": 0.1} for s in "xyz"}
    ranking = rank(scores)
    assert (ranking.methods, ranking.p) == (("a", "b", "c"), 0.0)


def test_methods_that_lack_a_data_set_are_left_out():
    scores = {s: {"a": 0.3, "b": 0.2, "c": 0.1, "d": 0.9} for s in "xyz"}
    del scores["y"]["d"]
    assert rank(scores).methods == ("a", "b", "c")


@pytest.mark.parametrize(
    "scores", [{}, {"x": {"a": 1.0, "b": 0.5, "c": 0.1}}, {s: {"a": 1.0, "b": 0.5} for s in "xyz"}]
)
def test_too_little_to_rank(scores):
    assert FEWEST == 3
    assert rank(scores) is None


@settings(deadline=None, max_examples=50)
@given(st.integers(3, 6), st.integers(3, 6), st.randoms(use_true_random=False))
def test_ranks_add_up_whatever_the_order(count, methods, random):
    names = [f"m{i}" for i in range(methods)]
    scores = {f"s{i}": {n: random.randint(0, 5) / 5 for n in names} for i in range(count)}
    ranking = rank(scores)
    assert ranking.rank_SM.sum(1) == pytest.approx([methods * (methods + 1) / 2] * count)
    means = list(ranking.mean_ranks.values())
    assert means == sorted(means)
    assert 0 <= ranking.p <= 1
    mixed = {s: dict(random.sample(list(of.items()), methods)) for s, of in scores.items()}
    assert rank(mixed).mean_ranks == pytest.approx(ranking.mean_ranks)


# ------------------------------------------------------------------------------------------------------- in a table


F1 = {  # data set -> row -> score in each of two seeds
    "A": {"FedAvg": 0.2, "FedPU": 0.3, "FedAlign": 0.4},
    "B": {"FedAvg": 0.5, "FedPU": 0.5, "FedAlign": 0.6},
    "C": {"FedAvg": 0.3, "FedPU": 0.2, "FedAlign": 0.1},
}
FOLDERS = {"A": "r8-8", "B": "es-15", "C": "es-25"}


def made(folder, lacking=(), **about):
    """A table of three rows on three data sets, without the (data, row) in ``lacking`` for the second seed."""
    figures = HEAD + "".join(
        f"Toy,1,{data},,{row},{metric},20.00,\n"
        for data in F1
        for row in F1[data]
        for metric in ("macro_f1", "macro_accuracy")
    )
    methods = {"FedAvg": "fedavg", "FedPU": "fedpu", "FedAlign": "fedalign"}
    paper = toy(folder, figures, data=FOLDERS, methods=methods, seeds=(4321, 4322))
    runs = []
    for run in table_runs_of(rows_of(paper), paper.seeds, ()):
        if (run.row.data, run.row.label) in lacking and run.seed == 4322:
            runs.append(run)
            continue
        top = F1[run.row.data][run.row.label]
        runs.append(made_run(run, folder / "runs", {"test/f1_macro": [0.0, top], "test/accuracy": [0.0, 1 - top]}))
    return table_of(paper, runs, **about)


def test_rows_of_a_table_are_ranked_by_the_first_metric(tmp_path):
    """And the best one, FedAlign, is held against the others: .2 .1 -.2 less FedAvg, .1 .1 -.1 less FedPU."""
    table = made(tmp_path)
    ranking = ranking_of(table)
    assert ranking.settings == ("A", "B", "C")
    assert ranking.mean_ranks == pytest.approx({"FedAlign": 5 / 3, "FedPU": 6.5 / 3, "FedAvg": 6.5 / 3})
    assert ranking.methods[0] == "FedAlign"
    got = {duel.other: (duel.settings, duel.difference) for duel in duels_of(table)}
    assert got == {"FedAvg": (3, pytest.approx(10 / 3)), "FedPU": (3, pytest.approx(10 / 3))}  # in percent


def test_values_of_an_option_are_not_ranked(tmp_path):
    """They are no methods, although there are three of them on three data sets."""
    methods, runs = made(tmp_path), []
    for run in methods.runs:
        if run.row.label == "FedAvg":
            changes = [Change(option="optimizer.lr", value=value, preset=0.1) for value in (0.1, 0.2, 0.3)]
            runs += [replace(run, row=replace(run.row, change=change)) for change in changes]
    table = table_of(methods.paper, runs)
    assert {data: len(whole) for data, whole in whole_rows(table).items()} == {"A": 3, "B": 3, "C": 3}
    assert table.varied == "optimizer.lr"
    assert ranking_of(table) is None
    assert duels_of(table) == []


def test_a_row_that_lacks_a_seed_is_not_ranked(tmp_path):
    """Two rows are left, which are too few."""
    assert ranking_of(made(tmp_path, lacking=[("B", "FedPU")])) is None


def test_a_data_set_that_is_not_done_leaves_the_ranks_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setitem(F1, "D", dict.fromkeys(F1["A"], 0.5))
    monkeypatch.setitem(FOLDERS, "D", "es-5")
    table = made(tmp_path, lacking=[("D", "FedPU"), ("D", "FedAvg")])
    assert ranking_of(table).settings == ("A", "B", "C")
    write_page(table, tmp_path / "out")
    page = " ".join((tmp_path / "out" / "table.md").read_text().split())
    assert "Left out of the ranks, since fewer than 3 rows have all their seeds there: D." in page
    assert "over the rows that all 3 data sets have" in page


def test_a_row_may_have_any_name(tmp_path):
    """Matplotlib would take what is between two dollar signs for a formula."""
    name = r"a $\foo$ = b $_$"
    scores = {s: {name: 0.5, "x": 0.4, "y": 0.3} for s in "abc"}
    ranking = rank(scores)
    figure = rank_diagram(ranking)
    figure.canvas.draw()
    assert any(r"\$\foo\$" in text.get_text() for text in figure.axes[0].texts)


def test_the_page_has_ranks_and_the_diagram(tmp_path):
    table = made(tmp_path)
    write_page(table, tmp_path / "out")
    page = (tmp_path / "out" / "table.md").read_text()
    part = page.partition("## Ranks over the data sets")[2].partition("## Total")[0]
    assert "| FedAlign | 1.67 | 1 | 1 | 3 |" in part
    assert "figures/ranks.png" in part
    assert f"differ by {critical_difference(3, 3):.2f} or more" in " ".join(part.split())
    words = {text.get_text() for ax in rank_diagram(ranking_of(table)).axes for text in ax.texts}
    assert {" FedAlign  1.67 ", "1", "2", "3"} <= words
    assert (tmp_path / "out" / "figures" / "ranks.svg").exists()


def test_many_methods_are_drawn_with_their_groups():
    names = [f"method-{i}" for i in range(15)]
    scores = {f"s{s}": {n: (i * 7 + s) % 15 / 15 for i, n in enumerate(names)} for s in range(5)}
    ranking = rank(scores)
    figure = rank_diagram(ranking)
    figure.canvas.draw()
    words = [text.get_text() for text in figure.axes[0].texts]
    assert all(any(name in word.split() for word in words) for name in names)


def test_the_page_has_all_data_sets_beside_each_other(tmp_path):
    """B's rows share the first rank among equals; costs: 2 MB to a client and 1 MB back, one round of 100 s."""
    table = made(tmp_path)
    write_page(table, tmp_path / "out")
    page = (tmp_path / "out" / "table.md").read_text()
    scores, costs = (
        part.partition("\n## ")[0] for part in page.partition("## All data sets\n")[2].split(": cost\n", 1)
    )
    assert "| row | A | B | C |" in scores
    assert "| FedPU | 30.00 ± 0.00 (2) | 50.00 ± 0.00 (2) | 20.00 ± 0.00 (2) |" in scores
    assert "| FedAvg | 20.00 ± 0.00 (3) | 50.00 ± 0.00 (2) | 30.00 ± 0.00 (1) |" in scores
    assert "| FedAvg | 3.00, 100 | 3.00, 100 | 3.00, 100 |" in costs


def test_the_suite_is_a_table_of_no_paper(tmp_path, capsys):
    """It has both metrics everywhere, no published figure, and a page."""
    assert (
        main(["benchmark", "--show", "--runs", str(tmp_path), "--rows", "anchor", "--data", "suite-pbc-skew-0.05"]) == 0
    )
    assert "no finished run of this table yet" in capsys.readouterr().out
    page = (tmp_path / "table-suite" / "table.md").read_text()
    assert page.startswith("# AnchorFL's suite\n")
    assert "anchorfl table suite" in page
    paper = PAPERS["suite"]
    assert [m.shown for m in metrics_of(paper, "scene, 2 of 6 classes")] == ["macro F1", "accuracy"]
    assert not any(row.figures for row in rows_of(paper))
    assert {row.data for row in rows_of(paper) if row.name == "anchor"} == set(paper.data)
