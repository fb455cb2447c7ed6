"""The page of a table: Markdown with figures, CSV with every number, learning curves, and the rows as
REPRODUCIBILITY.md has them. Written anew from the run folders at any time; the same runs give the same bytes.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from anchorfl.pipeline import terminal
from anchorfl.pipeline.results.mean_sd import mean_sd
from anchorfl.pipeline.run.provenance import MOST_FREQUENT
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.tasks.metrics.scores import SUM
from anchorfl.tuning.sweep.html import Block, markdown, to_csv
from anchorfl.tuning.tables.plots import (
    curves,
    curves_csv,
    plot_dots,
    rank_diagram,
    sensitivity,
    sensitivity_csv,
    split_of_curves,
)
from anchorfl.tuning.tables.published import Row, metrics_of, published_traffic, quoted_lines
from anchorfl.tuning.tables.ranks import ALPHA, DIGITS, FEWEST, Duel, Ranking, duels_of, ranking_of, whole_rows
from anchorfl.tuning.tables.statistics import Table, TableEntry, counted_traffic_of

FIGURES = "figures"
HOW = (
    "Scores: percent, test split, {reported}. Ours: mean ± sd (ddof 1) over the seeds. Verdicts: reproduced (mean equal"
    " to the published figure, to two digits, or above it by at most one sd), within noise (below it by at most one"
    " sd), above or below (by more than one sd: something differs). Above or below, one seed: a single seed has no sd;"
    " other settings: some options are not the preset's, so there is no verdict.",
    "Paired tests: {reference} less the row, score by score on the seeds that both have (n). p: two-sided paired"
    " t-test, from three pairs on; Holm: corrected for all {family}; Wilcoxon: signed-rank test, uncorrected, from six"
    " pairs on. -: not tested.",
    "MB (10^6 bytes): tensors that one client got (down) and sent (up) in a round, mean over the clients that answered."
    " CPU hours: seconds in which clients trained, updates were merged or models were scored, one thread each;"
    " without the start of processes, preparation of data and waiting.",
)
MOST_FREQUENT_MEANING = (
    "Most frequent labels: every test row gets the labels with most training rows, and nobody trains. A network that"
    " has collapsed scores about as much."
)
CONVENTION = (
    "Run, Table IV: megabytes of one client over a whole run as FedALC's Table IV counts them: a byte for a weight of"
    " the network, eight for a value of a class row, and all rows sent to everybody in every round; once where they are"
    " fixed."
)
SCORED = {
    ("fedrep", "server"): "FedRep: the scores are those of the mean body with the mean of the participants' heads"
    " (method.evaluate_on = 'server').",
    ("fedrep", "clients"): "FedRep: the scores are means over the clients' heads on the mean body, each on all rows"
    " (method.evaluate_on = 'clients').",
    ("fedproto", "clients"): "FedProto trains no global model: its scores are means over the clients' own models, each"
    " on all rows.",
    ("feddyn", "server"): "FedDyn: the scores are those of the mean of the participants' weights, not of what clients"
    " are sent.",
}
"""(Method, ``evaluate_on``) -> whose scores a row shows, where it is not plain."""
RANKS = (
    "Rank of each row by its mean on a data set's first metric, 1 the best, over the rows that all {n} data sets have"
    " with all seeds. Friedman's test that all are alike (Iman and Davenport, not corrected for ties): p = {p}. Mean"
    " ranks that differ by {cd} or more differ at {alpha} (Nemenyi); a bar in the figure joins those that do not. Data"
    " sets that are cut from the same rows are no independent ones, which both tests assume."
)
UNRANKED = "Left out of the ranks, since fewer than {fewest} rows have all their seeds there: {data}."
DUELS = (
    "The best row less each other one in points, its mean over the data sets that have both, and the probability that"
    " the best is the better one on another data set like these: Bayesian signed-rank test (Benavoli et al., 2014; s ="
    " 1/2, no region of practical equivalence)."
)
ALL_SCORES = "Mean ± sd of each data set's first metric, and in brackets the rank among the rows that have a run there."
ALL_COSTS = "MB that one client gets and sends in a round, and CPU seconds of a run."
VARIED = "A published figure, and with it a verdict, stands at the preset's own value alone."
REPORTED = {
    "last": "last round",
    "best": "round with the best validation {primary}",
    "best_sum": f"round with the best validation {SUM.shown}",
    "last5": "mean of the last five scored rounds",
}


def write_page(table: Table, out: Path) -> list[Path]:
    """Write ``table.md``, ``figures/``, ``table.csv`` and ``reproducibility.md`` into ``out``; return their paths."""
    figures = out / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    for _, rows in table.data:
        if split_of_curves(table, rows):
            write_atomically(figures / f"{_curves_of(rows)}.csv", curves_csv(table, rows).encode())
    if table.varied:
        write_atomically(figures / f"{_sensitivity_of(table)}.csv", sensitivity_csv(table).encode())
    title = f"{table.paper.title}: {_named(table.paper.tables, 'table')}" if table.paper.tables else table.paper.title
    write_atomically(out / "table.csv", table_csv(table).encode())
    write_atomically(out / "table.md", markdown(title, list(_blocks(table)), figures).encode())
    write_atomically(out / "reproducibility.md", reproducibility(table).encode())
    return [out / name for name in ("table.md", "table.csv", "reproducibility.md", FIGURES)]


def _blocks(table: Table) -> Iterator[Block]:
    yield Block(paragraphs=[f"Made by `{table.command}`.", *_changed(table), *table.notes])
    if not table.rows:
        yield Block(paragraphs=["There is no finished run of this table yet."])
        return
    if table.varied:
        yield _picture(f"Scores against {table.varied}", _sensitivity_of(table), partial(sensitivity, table))
    yield Block("Published beside ours", picture=partial(plot_dots, table), file="table.png")
    for data, rows in table.data:
        entries = [e for e in table.entries if e.row in rows]
        floor = most_frequent_rows(table, rows)
        paragraphs = [*([MOST_FREQUENT_MEANING] if floor else []), *quoted_lines(table.paper, data)]
        name = table.paper.proposed_method
        if not table.varied and table.reference(rows[0]) is None and any(r.label.startswith(f"{name}(") for r in rows):
            paragraphs.append(f"No validation score chooses among the rows of {name}, so that nothing is tested.")
        yield Block(data, rows=[*verdicts(entries, table.seeds), *floor], paragraphs=paragraphs)
        if any(e.against for e in entries):
            yield Block(f"{data}: {_against(table, rows)}", rows=_tests(entries))
        yield Block(f"{data}: cost", rows=_costs(table, rows))
        if split_of_curves(table, rows):
            yield _picture(f"{data}: learning curves", _curves_of(rows), partial(curves, table, rows))
    if len(table.data) >= FEWEST and not table.varied:
        few = [data for data, whole in whole_rows(table).items() if len(whole) < FEWEST]
        unranked = [UNRANKED.format(fewest=FEWEST, data=", ".join(few))] if few else []
        yield Block("All data sets", rows=scores_across(table), paragraphs=[ALL_SCORES, *unranked])
        yield Block("All data sets: cost", rows=costs_across(table), paragraphs=[ALL_COSTS])
    if (ranking := ranking_of(table)) is not None:
        words = {"p": _p(ranking.p), "alpha": ALPHA, "cd": f"{ranking.critical_difference:.2f}"}
        paragraphs = [RANKS.format(**words, n=len(ranking.settings))]
        picture = partial(rank_diagram, ranking)
        yield Block("Ranks over the data sets", ranks(ranking), picture, "ranks.png", paragraphs)
        yield Block(f"{ranking.methods[0]} against each", against_best(duels_of(table)), paragraphs=[DUELS])
    yield Block("Total", paragraphs=[total(table)])
    varied = "the same preset at its own value", "values of that preset"
    reference, family = varied if table.varied else (table.paper.proposed_method, "rows of the data set")
    reported = REPORTED[table.paper.reported].format(primary=table.paper.primary)
    words = {"reported": reported, "reference": reference, "family": family}
    how = [*HOW, CONVENTION] if table.paper.traffic_table else HOW
    methods = [run.experiment.method for run in table.runs if run.digest in table.finished]
    scored = [text for whose, text in SCORED.items() if whose in {(m.name, m.evaluate_on) for m in methods}]
    yield Block("How to read it", paragraphs=[*(text.format(**words) for text in how), *scored])


def _picture(title: str, name: str, picture: Callable[[], Figure]) -> Block:
    return Block(title, picture=picture, file=f"{name}.png", paragraphs=[f"Numbers: `{FIGURES}/{name}.csv`."])


def _against(table: Table, rows: Sequence[Row]) -> str:
    """Return the title of a data set's paired tests."""
    if table.varied:
        return "the preset's own value against the others"
    reference = table.reference(rows[0])
    if reference is None or reference.label == table.paper.proposed_method:
        return f"{table.paper.proposed_method} against each row"
    return f"{reference.label}, its best on validation, against each row"


def _sensitivity_of(table: Table) -> str:
    """Return the name of the files with the scores against the option that is varied."""
    return f"vary-{table.varied.rpartition('.')[2]}"


def _curves_of(rows: Sequence[Row]) -> str:
    """Return the name of the files with the learning curves of a data set."""
    return f"curves-{rows[0].folder}"


def _changed(table: Table) -> list[str]:
    """Return a line for every change that the command line makes of the presets."""
    out = []
    if table.varied:
        out.append(f"Every row is run with each value of `{table.varied}`. {VARIED}")
    if own := {row.label: row for row in table.rows if row.own}:
        listed = "; ".join(f"{row.label}: {row.name} with `{shlex.join(row.own)}`" for row in own.values())
        out.append(
            f"Own rows, which are not the paper's: {listed}. They have its data, partition and seeds. Holm's correction"
            " of the paper's rows is without them, theirs is with all rows."
        )
    if changed := {run.row.key: run.row for run in table.runs if not run.has_preset_options}:
        rows: dict[str, list[str]] = {}
        for row in changed.values():
            rows.setdefault(shlex.join(table.options_of(row)), []).append(row.preset)
        every = len(rows) == 1 and len(changed) == len({run.row.key for run in table.runs})
        who = [(text, "every run" if every else ", ".join(dict.fromkeys(names))) for text, names in rows.items()]
        listed = "; ".join(f"{names} {'has' if every else 'with'} `{text}`" for text, names in who)
        out.append(f"**Not the paper's settings**: {listed}. These figures say nothing about the published ones.")
    return out


def _named(tables: Sequence[str], word: str) -> str:
    """Return Table 2; Tables 2 and 3; Tables I, II and III."""
    *most, last = tables
    return f"{word}s {', '.join(most)} and {last}" if most else f"{word} {last}"


def total(table: Table) -> str:
    """Return the number of runs and what they cost together, in a line."""
    wanted = len({run.digest for run in table.runs})
    return f"{len(table.finished)} of {wanted} runs, {_number(table.hours)} CPU hours in all."


def verdicts(entries: Sequence[TableEntry], seeds: Sequence[int]) -> list[list[str]]:
    """Return the table of a data set, its head first."""
    head = ["row", "preset", "metric", "published", "ours", "difference", f"seeds {_list(seeds)}", "n", "verdict"]
    out = [head]
    for e in entries:
        difference = "-" if e.difference is None else _signed(e.difference)
        n = f"{len(e.scores)} of {len(e.seeds)}"
        scores = [_score(e, seed) for seed in seeds]
        out.append(
            [
                e.row.shown, e.row.key, e.metric.shown, _published(e), ours(e), difference, _list(scores), n,
                e.verdict or "-",
            ]
        )  # fmt: skip
    return out


def most_frequent_rows(table: Table, rows: Sequence[Row]) -> list[list[str]]:
    """Return a row for each metric of what the most frequent labels score, as the first run of a data set has it."""
    runs = [run for row in rows for run in table.of(row).values()]
    tag = next((run.tags[MOST_FREQUENT] for run in runs if MOST_FREQUENT in run.tags), "{}")
    scores = {f"test/{name}": score for name, score in json.loads(tag).items()}
    return [
        ["most frequent labels", "-", m.shown, "-", f"{100 * scores[m.record]:.2f}", "-", "-", "-", "-"]
        for m in metrics_of(table.paper, rows[0].data)
        if m.record in scores
    ]


def _tests(entries: Sequence[TableEntry]) -> list[list[str]]:
    rows = [["row", "metric", "difference", "n", "p", "Holm", "Wilcoxon"]]
    for e in entries:
        if (a := e.against) is not None:
            difference = "-" if math.isnan(a.difference) else _signed(100 * a.difference)
            tests = [_p(value) for value in (a.p, a.holm, a.wilcoxon)]
            rows.append([e.row.shown, e.metric.shown, difference, str(a.n), *tests])
    return rows


def scores_across(table: Table) -> list[list[str]]:
    """Return rows against data sets: mean and sd of the first metric, and the rank among the rows of that data set."""
    cells: dict[str, dict[str, str]] = {row.shown: {} for row in table.rows}
    for data, rows in table.data:
        metric = metrics_of(table.paper, data)[0]
        entries = [e for e in table.entries if e.row in rows and e.metric == metric]
        mean = {e.row.key: round(e.mean, DIGITS) for e in entries if e.mean is not None}
        for e in entries:
            if e.row.key in mean:
                rank = 1 + sum(other > mean[e.row.key] for other in mean.values())
                cells[e.row.shown][data] = f"{ours(e)} ({rank})"
    return _across(table, cells)


def costs_across(table: Table) -> list[list[str]]:
    """Return rows against data sets: megabytes of one client in a round, both ways, and CPU seconds of a run."""
    cells: dict[str, dict[str, str]] = {row.shown: {} for row in table.rows}
    for row in table.rows:
        cost = table.cost(row)
        if cost.down is not None and cost.up is not None and cost.hours is not None:
            cells[row.shown][row.data] = f"{_number(cost.down + cost.up)}, {3600 * cost.hours:.0f}"
    return _across(table, cells)


def _across(table: Table, cells: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    names = [data for data, _ in table.data]
    return [["row", *names], *([row, *(of.get(name, "-") for name in names)] for row, of in cells.items() if of)]


def ranks(ranking: Ranking) -> list[list[str]]:
    """Return mean ranks and the rank on every data set, the best row first."""
    out = [["row", "mean rank", *ranking.settings]]
    for (name, mean), rank_S in zip(ranking.mean_ranks.items(), ranking.rank_SM.T, strict=True):
        out.append([name, f"{mean:.2f}", *(f"{rank:g}" for rank in rank_S)])
    return out


def against_best(duels: Sequence[Duel]) -> list[list[str]]:
    """Return the best row against each other one."""
    head = ["row", "data sets", "mean difference", "probability"]
    lines = [[d.other, str(d.settings), f"{d.difference:+.2f}", f"{d.probability:.3f}"] for d in duels]
    return [head, *lines]


def _costs(table: Table, rows: Sequence[Row]) -> list[list[str]]:
    convention = ["run, Table IV: down", "up", "published: down", "up"] if table.paper.traffic_table else []
    out = [["row", "runs", "MB down", "MB up", "CPU hours per run", *convention]]
    for row in rows:
        cost = table.cost(row)
        line = [row.shown, str(cost.runs), *(_number(v) for v in (cost.down, cost.up, cost.hours))]
        if convention:
            run = next(iter(table.of(row).values()), None)
            both: tuple[float | None, float | None] = None, None
            if run is not None and cost.up is not None and "class_embedding_lr" in run.params:  # not of an own row
                both = counted_traffic_of(run, cost.up)
            published = published_traffic(table.paper, row.data, row.label) or (None, None)
            line += [_number(value) for value in (*both, *published)]
        out.append(line)
    return out


def reproducibility(table: Table) -> str:
    """Return the rows that have a published figure and a run, as the first table of REPRODUCIBILITY.md.

    Beside a preset stand the options that may change a result, and not those that name places on this machine.
    """
    out = [f"| Row | Preset | Metric | Published | Ours, mean ± sd | Seeds {_list(table.seeds)} | Verdict |"]
    out.append("|---" * 7 + "|")
    previous = ""
    for e in table.entries:
        if not e.verdict:
            continue
        title, preset = "", ""
        if e.row.key != previous:
            title = f"{table.paper.title}, {_named(e.row.tables, 'Table')}, {e.row.data}, {e.row.label}"
            preset = f"`{' '.join([e.row.preset, *table.options_of(e.row)])}`"
        scores = _list([_score(e, seed) for seed in table.seeds])
        out.append(f"| {' | '.join([title, preset, e.metric.shown, _published(e), ours(e), scores, e.verdict])} |")
        previous = e.row.key
    return "\n".join(out) + f"\n\n{total(table)} Command: `{table.command}`.\n"


def table_csv(table: Table) -> str:
    """Return every number: a line per row and metric. Scores, means and differences in percent."""
    lines = ([_cell(value) for value in _line(table, entry)] for entry in table.entries)
    return to_csv([_columns(table), *lines])


def table_dicts(table: Table) -> list[dict[str, object]]:
    """Return what ``table_csv`` does as a mapping for each row and metric; None where there is no number."""
    lines = ([None if _is_nan(value) else value for value in _line(table, entry)] for entry in table.entries)
    return [dict(zip(_columns(table), line, strict=True)) for line in lines]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _columns(table: Table) -> list[str]:
    names = ["paper", "tables", "data", "row", "preset", "metric", "published", "published_sd", "n", "seeds", "mean"]
    names += ["sd", "difference", "verdict", *(f"seed_{seed}" for seed in table.seeds), "own_less_row", "pairs"]
    return [*names, "p", "p_holm", "p_wilcoxon", "mb_down", "mb_up", "cpu_hours_per_run", "runs"]


def _line(table: Table, e: TableEntry) -> list[object]:
    a, cost = e.against, table.cost(e.row)
    difference = None if a is None or math.isnan(a.difference) else 100 * a.difference
    tests = [difference, a and a.n, a and a.p, a and a.holm, a and a.wilcoxon]
    published = e.published
    return [
        table.paper.title, " ".join(e.row.tables), e.row.data, e.row.shown, e.row.key, e.metric.published,
        published and published.mean, published and published.sd, len(e.scores), len(e.seeds), e.mean, e.sd,
        e.difference, e.verdict, *(100 * e.scores[s] if s in e.scores else None for s in table.seeds), *tests,
        cost.down, cost.up, cost.hours, " ".join(str(run.folder) for run in table.of(e.row).values()),
    ]  # fmt: skip


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _published(e: TableEntry) -> str:
    return "-" if e.published is None else mean_sd(e.published.mean, e.published.sd)


def ours(e: TableEntry) -> str:
    """Return our mean and sd as text."""
    return "-" if e.mean is None else mean_sd(e.mean, e.sd)


def _score(e: TableEntry, seed: int) -> str:
    return f"{100 * e.scores[seed]:.2f}" if seed in e.scores else "-"


def _signed(points: float) -> str:
    """Return percentage points as text, never -0.00."""
    return f"{round(points, 2) + 0.0:+.2f}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.1e}"


def _number(value: float | None) -> str:
    """Return a number with two decimals, or three digits where it is below 1."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _list(words: Sequence[object]) -> str:
    return ", ".join(map(str, words))


def text(table: Table, width: int | None = None) -> str:
    """Return the verdicts as text for a terminal of so many columns, a block per data set."""
    blocks = []
    for data, rows in table.data:
        lines = verdicts([e for e in table.entries if e.row in rows], table.seeds)
        shown = [[line[0], *line[2:6], line[7], line[8]] for line in lines]
        blocks.append(f"{data}\n{terminal.table(shown, width)}")
    return "\n\n".join(blocks)
