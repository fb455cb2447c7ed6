"""The report of a sweep: one HTML file with everything in it, the same as Markdown, a table as CSV, and the chosen
point as a preset. Written anew at any time from what the sweep's folder holds; the same sweep gives the same bytes.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import combinations
from pathlib import Path

from matplotlib.figure import Figure

from anchorfl.pipeline.results.mean_sd import mean_sd_percent
from anchorfl.pipeline.run.progress import format_duration
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.tuning.search.results import Sweep, Trial, seeds_text, tie_text
from anchorfl.tuning.search.search_space import Range, Value, describe
from anchorfl.tuning.sweep import plots
from anchorfl.tuning.sweep.best_preset import best_preset
from anchorfl.tuning.sweep.html import Block, html, markdown, to_csv
from anchorfl.tuning.sweep.importance import importances
from anchorfl.tuning.sweep.progress import format_point

RULES = {
    "last": "the score of its last round",
    "mean5": "the mean over its last five scored rounds",
    "best": "the score of its best round",
}


EXPENSES = {"megabytes": "megabytes that a run moved", "seconds": "seconds in which a run trained and was scored"}
FRONT = (
    "Trials that no other beats in both, cheapest first. The chosen one has the best score; each is a preset in front/."
)


def write_report(sweep: Sweep, out: Path, text_of: Callable[[Mapping[str, Value]], str] | None = None) -> list[Path]:
    """Write ``report.html``, ``report.md`` with ``figures/``, ``trials.csv`` and, given what returns a point's preset
    as TOML, ``best.toml`` and ``front/`` into ``out``; return what was written, folders as such.
    """
    (out / "figures").mkdir(parents=True, exist_ok=True)
    blocks = list(_blocks(sweep))
    title = f"Sweep {sweep.name}"
    write_atomically(out / "report.html", html(title, blocks).encode())
    write_atomically(out / "report.md", markdown(title, blocks, out / "figures").encode())
    write_atomically(out / "trials.csv", _csv(sweep).encode())
    files = [out / "report.html", out / "report.md", out / "figures", out / "trials.csv"]
    if text_of is not None and sweep.best is not None:
        write_atomically(out / "best.toml", best_preset(sweep, sweep.best, text_of(sweep.best.point)).encode())
        files.append(out / "best.toml")
        if (out / "front").exists():  # of an earlier report, with trials that are beaten by now
            shutil.rmtree(out / "front")
        for trial in sweep.front:
            (out / "front").mkdir(exist_ok=True)
            preset = best_preset(sweep, trial, text_of(trial.point))
            write_atomically(out / "front" / f"trial-{trial.number}.toml", preset.encode())
        files += [out / "front"] if sweep.front else []
    return files


def _blocks(sweep: Sweep) -> Iterator[Block]:
    yield Block(rows=_facts(sweep))
    yield Block("What was chosen", paragraphs=_verdict(sweep))
    if sweep.front:
        yield Block(f"Score against {sweep.against}", rows=_front(sweep), paragraphs=[FRONT])
        yield _picture(
            "The front", "front", partial(plots.front, sweep), "Line: the front; outlined: the chosen trial."
        )
    if sweep.final_runs_begun:
        yield Block("On fresh seeds, tested once", rows=_final_runs(sweep))
    yield from _pictures(sweep)
    yield Block("Trials", rows=_table(sweep), paragraphs=[_how_to_read(sweep), *sweep.notes])
    failed = [[str(trial.number), trial.error] for trial in sweep.trials if trial.status == "failed"]
    if failed:
        yield Block("Failures", rows=[["trial", "error"], *failed])


def _facts(sweep: Sweep) -> list[list[str]]:
    counts = {s: sum(trial.status == s for trial in sweep.trials) for s in ("finished", "stopped", "failed", "running")}
    several = len(sweep.seeds) > 1
    rows = [
        ["preset", f"{sweep.preset} (task {sweep.task}, method {sweep.method})"],
        ["search", f"{sweep.searcher}, scheduler {sweep.scheduler}"],
        ["trials", ", ".join(f"{n} {s}" for s, n in counts.items() if n) or "none"],
        ["rounds of a trial", str(sweep.rounds)],
        seeds_text(sweep.seeds).split(" ", 1),
        ["score", f"validation {sweep.metric}, {sweep.rule}{', mean over seeds' if several else ''}"],
        ["wall time of the search", format_duration(sweep.seconds)],
        *([["second objective", f"{EXPENSES[sweep.against]}, to be small"]] if sweep.against else []),
    ]
    for name, dimension in sweep.space.items():
        spec = describe(dimension).rpartition(":")[0] if isinstance(dimension, Range) else describe(dimension)
        rows.append([f"searched: {name}", spec + (f" ({dimension.reason})" if dimension.reason else "")])
    return [["", ""], *rows]


def _verdict(sweep: Sweep) -> list[str]:
    best = sweep.best
    if best is None:
        return ["No trial has a score yet."]
    scores = best.scores(sweep.rule)
    score = mean_sd_percent(scores)
    lines = [f"Trial {best.number}: {format_point(best.point)}. Validation score {score} at round {best.rounds}."]
    if len(sweep.tied) > 1:
        numbers = ", ".join(str(trial.number) for trial in sweep.tied)
        lines.append(f"{tie_text(sweep)} (trials {numbers}).")
    first = sweep.trials[0]
    first_scores = first.scores(sweep.rule)
    if best.number == first.number:
        return [*lines, "This is the preset's own point: no other did better."]
    if not first_scores or first.rounds != best.rounds:
        return [
            *lines,
            f"The preset's own point (trial 0) ended at round {first.rounds}, so the two cannot be compared.",
        ]
    lines.append(f"The preset's own point (trial 0, {format_point(first.point)}): {mean_sd_percent(first_scores)}.")
    gains = [100 * (a - b) for a, b in zip(scores, first_scores, strict=True)]
    gain = statistics.fmean(gains)
    if len(gains) < 2:
        return [*lines, f"Gain {gain:+.2f} on one seed, which says nothing about its spread."]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    word = "Within noise: " if abs(gain) < error else ""
    return [*lines, f"{word}gain {gain:+.2f}, standard error over {len(gains)} paired seeds {error:.2f}."]


def _front(sweep: Sweep) -> list[list[str]]:
    rows = [
        [str(t.number), format_point(t.point), mean_sd_percent(t.scores(sweep.rule)), f"{t.expense:,.4g}"]
        for t in sweep.front
    ]
    return [["trial", "point", "score", sweep.against], *rows]


def _final_runs(sweep: Sweep) -> list[list[str]]:
    metrics = next((list(run.scores["test"]) for run in (*sweep.final_runs, *sweep.reference_runs)), [sweep.metric])
    head = ["point", "seed", "rounds", *(f"test {m}" for m in metrics)]
    rows: list[list[str]] = []
    for word, runs in (("chosen", sweep.final_runs), ("preset's own", sweep.reference_runs)):
        rows += [
            [word, str(r.seed), str(r.rounds), *(f"{100 * r.scores['test'][m]:.2f}" for m in metrics)] for r in runs
        ]
        missing = sweep.missing_seeds(runs) if word == "chosen" or sweep.needs_reference_runs else []
        rows += [[word, str(seed), "-", *("no result" for _ in metrics)] for seed in missing]
        if len(runs) > 1:
            of = f", {len(runs)} of {len(sweep.fresh_seeds)}" if missing else ""
            means = [mean_sd_percent([run.scores["test"][metric] for run in runs]) for metric in metrics]
            rows.append([f"{word}, mean ± sd{of}", "", "", *means])
    return [head, *rows]


def _pictures(sweep: Sweep) -> Iterator[Block]:
    scored = [trial for trial in sweep.trials if trial.status != "failed" and trial.scores(sweep.rule)]
    if not scored:
        yield Block("Figures", paragraphs=["No trial has a score, so there is nothing to draw."])
        return
    several, hollow = len(sweep.seeds) > 1, "Hollow: stopped early."
    planes = list(combinations(sweep.space, 2))
    named_planes = [p for p in planes if set(p) == {"q1", "q2"}] or planes[:3]
    for x, y in named_planes:
        yield _picture(f"{x} x {y}", f"map-{x}-{y}", partial(plots.heat_map, sweep, x, y),
                       "Solid outline: the chosen point; dashed: the preset's own; hollow: stopped early.")  # fmt: skip
    for name in sweep.space:
        caption = f"Mean over seeds; bars from the lowest to the highest seed; {hollow.lower()}" if several else hollow
        yield _picture(f"{name}", f"curve-{name}", partial(plots.against, sweep, name), caption)
    yield _picture("All trials", "parallel", partial(plots.parallel, sweep),
                   "One line per trial; grey: stopped early; thick: the chosen one.")  # fmt: skip
    shares = importances(sweep)
    if isinstance(shares, str):
        yield Block("Importance", paragraphs=[shares])
    else:
        yield _picture("Importance", "importance", partial(plots.importance, shares),
                       "fANOVA over the whole trials (Optuna); shares of the variance of the score.")  # fmt: skip
    yield _picture(
        "Learning curves",
        "learning",
        partial(plots.curves, sweep),
        f"Mean over seeds; {hollow.lower()}" if several else hollow,
    )


def _picture(title: str, file: str, draw: Callable[[], Figure], caption: str) -> Block:
    # drawn once, for the page and for its own file
    return Block(title, picture=cache(draw), file=f"{file.replace('.', '-')}.png", paragraphs=[caption])


def _table(sweep: Sweep) -> list[list[str]]:
    seeds = [f"seed {seed}" for seed in sweep.seeds] if len(sweep.seeds) > 1 else []
    moved = ["MB"] if sweep.against == "megabytes" else []
    head = ["trial", *sweep.space, "status", "round", "score", *seeds, *moved, "s", "overhead s", "%"]
    ranked = sweep.ranked()
    rest = [trial for trial in sweep.trials if trial not in ranked]
    return [head, *(_row(sweep, trial) for trial in [*ranked, *rest])]


def _row(sweep: Sweep, trial: Trial) -> list[str]:
    scores = trial.scores(sweep.rule)
    each = ([f"{100 * s:.2f}" for s in scores] or ["-"] * len(sweep.seeds)) if len(sweep.seeds) > 1 else []
    overhead = trial.seconds - trial.training_seconds
    share = f"{100 * overhead / trial.seconds:.1f}" if trial.seconds else "-"
    point = [f"{v:g}" if isinstance(v, float) else str(v) for v in (trial.point[n] for n in sweep.space)]
    times = [f"{trial.seconds:.0f}", f"{overhead:.1f}", share] if scores else ["-"] * 3
    mean = mean_sd_percent(scores) if scores else "-"
    moved = [f"{trial.expense:,.4g}"] if sweep.against == "megabytes" else []
    return [str(trial.number), *point, trial.status, str(trial.rounds), mean, *each, *moved, *times]


def _how_to_read(sweep: Sweep) -> str:
    mean = ", as a mean over seeds ± sd" if len(sweep.seeds) > 1 else ""
    return (
        "Scores are in percent, on the validation split, which alone chooses; no trial computed a test score. A"
        f" trial's score is {RULES[sweep.rule]}{mean}. Trials with more rounds come first, so one"
        " that was stopped early is never chosen over a whole one. Overhead: seconds of a trial in which neither a"
        " client trained nor a model was scored, such as the start of its actors."
    )


def _csv(sweep: Sweep) -> str:
    seeds = [f"score_seed_{seed}" for seed in sweep.seeds]
    head = ["trial", "status", "rounds", *sweep.space, "score_mean", "score_sd", *seeds, "seconds", "overhead_seconds"]
    head += [f"expense_{sweep.against}"] if sweep.against else []
    rows: list[list[object]] = [[*head]]
    for trial in sweep.trials:
        scores = trial.scores(sweep.rule)
        mean = f"{statistics.fmean(scores):.6f}" if scores else ""
        sd = f"{statistics.stdev(scores):.6f}" if len(scores) > 1 else ""
        each = [f"{s:.6f}" for s in scores] or [""] * len(sweep.seeds)
        point = [trial.point[name] for name in sweep.space]
        times = [f"{trial.seconds:.3f}", f"{trial.seconds - trial.training_seconds:.3f}"]
        expense = [f"{trial.expense:.6f}"] if sweep.against else []
        rows.append([trial.number, trial.status, trial.rounds, *point, mean, sd, *each, *times, *expense])
    return to_csv(rows)
