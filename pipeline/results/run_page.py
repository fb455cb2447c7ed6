"""The page of one or several runs: scores, curves, classes, partition, faults, costs, options and the command that
repeats them, as one HTML file made from the run folders alone. The same records give the same bytes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.config.repetition import Repetition, repetition_of, with_defaults
from anchorfl.pipeline.config.schema import options_of
from anchorfl.pipeline.results import page_parts as parts
from anchorfl.pipeline.results.client_scores import (
    CLIENT_SCORES,
    PARTS,
    ClientScore,
    read_client_scores,
    spread,
    worst_first,
)
from anchorfl.pipeline.results.compare import Group, RunSummary, groups_of, load_begun, notes_of
from anchorfl.pipeline.results.mean_sd import mean_sd_percent
from anchorfl.pipeline.results.run_view import Run, identifying_clients, last_class_scores
from anchorfl.pipeline.storage.run_folder import RunState, read_result, state_of
from anchorfl.pipeline.storage.run_record import COMMUNICATION
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.prepared import Prepared

PAGE = "run.html"
"""Its name in ``report/`` of a run folder."""
SPLITS = "test", "validation"
CELLS, CLASSES, CLIENTS = 20_000, 100, 100
"""Cells of a partition, classes of a confusion matrix, clients with scores, that are drawn at most."""
LONGEST = 120
"""Characters of an option's value that are shown, at most."""
NUMBERS = 30
"""Rounds with a fault that are listed, at most."""
BAND = "; band: lowest to highest run"


@dataclass(frozen=True)
class _Shown:
    """A run as the page takes it."""

    summary: RunSummary
    view: Run
    state: RunState

    @property
    def result(self) -> Mapping[str, Any]:
        """result.json; {} where the run has none."""
        return self.summary.result

    @property
    def name(self) -> str:
        return self.summary.name

    @property
    def rounds(self) -> int:
        """Rounds that are done."""
        return self.summary.records[-1].round if self.summary.records else 0

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Split -> metric -> score: of the selected round, or the last so far."""
        if self.result:
            return dict(self.result["scores"])
        out: dict[str, dict[str, float]] = {}
        for record in self.summary.records:
            for split in SPLITS:
                found = {k.partition("/")[2]: v for k, v in record.metrics.items() if k.startswith(f"{split}/")}
                out |= {split: found} if found else {}
        return out

    @cached_property
    def repetition(self) -> Repetition:
        return repetition_of(self.view.experiment)

    @cached_property
    def data(self) -> Prepared | str:
        """The prepared data; where there are none, or not those of the run, why."""
        try:
            return self.view.data
        except InputError as error:
            return f"The data of the run are not here, so nothing is shown of the partition: {error}"

    def total(self, metric: str) -> float:
        """Return the sum of a metric over the rounds."""
        return sum(record.metrics.get(metric, 0.0) for record in self.summary.records)


def run_page(folders: Sequence[Path | Run], *, ended: Mapping[str, Any] | None = None, refresh_s: int = 0) -> str:
    """Return the page of runs as HTML.

    folders: run folders, or runs, whose data are then read once for many pages of them.
    ended: content of the ``result.json`` that the one run is about to get; its confusion matrix, which costs a pass
    over the test split, is left out. refresh_s: seconds after which a browser asks again while a run is not finished.
    Raises InputError where a folder holds no run.
    """
    views = [folder if isinstance(folder, Run) else Run(folder) for folder in folders]
    runs = [_read(view, ended) for view in {view.folder.resolve(): view for view in views}.values()]
    groups = groups_of([run.summary for run in runs])
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    waiting = any(run.state != "finished" for run in runs)
    body = [f"<h1>{parts.text(title)}</h1>", *_glance(runs, groups)]
    body += ["<h2>Curves</h2>", *_curves(groups)]
    body += ["<h2>Classes</h2>", *_classes(runs, groups)]
    body += _clients(runs)
    for run in runs:
        inner = [*_partition(run), *_confusion(run, count=ended is None), *_faults(run), *_costs(run), *_options(run)]
        inner += _record(run)
        if len(runs) > 1:
            inner = [f"<details><summary>{parts.text(run.name)}</summary>", *inner, "</details>"]
        body += inner
    return parts.page(title, body, refresh_s if waiting else 0)


def _read(view: Run, ended: Mapping[str, Any] | None) -> _Shown:
    summary = load_begun(view.folder)
    summary = replace(summary, result=read_result(view.folder, "scores", "round") if ended is None else dict(ended))
    return _Shown(summary, view, state_of(view.folder, summary.status, finished=bool(summary.result)))


def _state(run: _Shown) -> str:
    whole = run.view.experiment.federation.rounds
    words = {
        "finished": f"finished, {run.rounds} of {whole} rounds",
        "running": f"running, round {run.rounds} of {whole} is done",
        "interrupted": f"interrupted after round {run.rounds} of {whole}",
        "failed": f"failed after round {run.rounds} of {whole}",
    }
    stopped = f", stopped {run.result['stopped']}" if "stopped" in run.result else ""
    return words[run.state] + stopped


def _glance(runs: Sequence[_Shown], groups: Sequence[Group]) -> Iterator[str]:
    if len(runs) == 1:
        run = runs[0]
        experiment = run.view.experiment
        what = f"{run.summary.task}, {experiment.method.name}, seed {experiment.seed}"
        yield f"<p>{parts.text(what)}: <strong>{parts.text(_state(run))}</strong></p>"
        scored = {f"{split} {m}": f"{100 * value:.2f}" for (split, m), value in _measured(run).items()}
        yield parts.cards(scored | _cost_words(run))
        yield f'<p class="note">Scores in percent, {parts.text(_of_round(run))}. MB: moved, s: median of a round.</p>'
        yield from _command(run)
        return
    heads = list(dict.fromkeys(key for run in runs for key in _measured(run)))
    rows = []
    for run in runs:
        found = _measured(run)
        scores = [f"{100 * found[key]:.2f}" if key in found else "-" for key in heads]
        rows.append([run.name, _state(run), str(run.summary.seed), *scores, *_cost_words(run).values()])
    for group in groups:
        members = [run for run in runs if any(run.summary is member for member in group.runs)]
        if len(members) < 2:
            continue
        measured = [_measured(run) for run in members]
        means = [
            mean_sd_percent([m[key] for m in measured]) if all(key in m for m in measured) else "-" for key in heads
        ]
        rows.append([f"mean ± sd: {group.label}", f"{len(members)} runs", "", *means, "", "", ""])
    head = ["run", "state", "seed", *(f"{split} {m}" for split, m in heads), *_cost_words(runs[0])]
    yield parts.table("Scores in percent, of the selected round, or of the last so far", head, rows, words=2)
    for note in notes_of(groups):
        yield f'<p class="note">{parts.text(note)}</p>'
    for run in runs:
        yield from _command(run)


def _measured(run: _Shown) -> dict[tuple[str, str], float]:
    """Return (split, name of a measure) -> score at a glance."""
    return {
        (split, measure.shown): run.scores[split][measure.name]
        for split in SPLITS
        for measure in run.summary.family.compared
        if measure.name in run.scores.get(split, {})
    }


def _cost_words(run: _Shown) -> dict[str, str]:
    seconds = run.summary.values["seconds"]
    down, up = (f"{run.total(name) / 1e6:.2f}" for name in COMMUNICATION)
    return {"MB down": down, "MB up": up, "s per round": "-" if seconds is None else f"{seconds:.2f}"}


def _of_round(run: _Shown) -> str:
    if run.result:
        return f"of round {run.result['round']}, which is the selected one"
    return "of the last round that has them"


def _command(run: _Shown) -> Iterator[str]:
    yield f"<h3>Repeat {parts.text(run.name)}</h3><pre>{parts.text(run.repetition.command)}</pre>"
    commit, version = run.summary.tags.get("git_commit", "unknown"), run.summary.tags.get("anchorfl", "?")
    yield (
        f'<p class="note">With anchorfl {parts.text(version)}, commit {parts.text(commit)}. Options that say where'
        " records go are left out: they change no result.</p>"
    )


def _curves(groups: Sequence[Group]) -> Iterator[str]:
    several = len(groups) > 1
    measures = dict.fromkeys(m for group in groups for m in group.runs[0].family.compared)
    panels, keys = [], dict[str, parts.Line]()
    for measure in measures:
        lines = []
        for number, group in enumerate(groups):
            for split in SPLITS:
                line = _line(group, f"{split}/{measure.name}", number, several=several)
                if line:
                    lines.append(line)
                    keys.setdefault(line.label, line)
        if lines:
            panels.append(parts.chart(measure.shown, " ".join(map(_in_words, lines)), lines))
    if not panels:
        yield "<p>No round has a score yet.</p>"
        return
    yield f'<figure><div class="panels">{"".join(panels)}</div>{parts.legend(keys.values())}'
    yield f"<figcaption>Scores by round{BAND if any(len(g.runs) > 1 for g in groups) else ''}.</figcaption></figure>"


def _line(group: Group, metric: str, number: int, *, several: bool) -> parts.Line | None:
    """Return a group's curve over the rounds that all its runs have; None where they share none."""
    curves = [
        {r.round: r.metrics[metric] for r in run.records if math.isfinite(r.metrics.get(metric, math.nan))}
        for run in group.runs
    ]
    rounds = sorted(set.intersection(*map(set, curves)))
    if not rounds:
        return None
    split = metric.partition("/")[0]
    words = f", mean of {len(curves)} runs" if len(curves) > 1 else ""
    mark = _mark(number) if several else ""
    label = f"{mark}: {group.label}, {split}{words}" if several else f"{split}{words}"
    band = {r: (min(c[r] for c in curves), max(c[r] for c in curves)) for r in rounds} if len(curves) > 1 else {}
    points = {r: statistics.fmean(c[r] for c in curves) for r in rounds}
    color = number if several else SPLITS.index(split)
    return parts.Line(label, color, SPLITS.index(split) + number // parts.COLORS, points, band, mark)


def _in_words(line: parts.Line) -> str:
    rounds = list(line.points)
    best = max(rounds, key=lambda r: line.points[r])
    ends = (
        f"round {rounds[0]} {100 * line.points[rounds[0]]:.2f}, round {rounds[-1]} {100 * line.points[rounds[-1]]:.2f}"
    )
    return f"{line.label}: {ends}, best {100 * line.points[best]:.2f} in round {best}."


def _classes(runs: Sequence[_Shown], groups: Sequence[Group]) -> Iterator[str]:
    for task in dict.fromkeys(run.summary.task for run in runs):
        own = [run for run in runs if run.summary.task == task]
        columns = {}
        for number, group in enumerate(groups):
            scores = [last_class_scores(run.records, run.result.get("round")) for run in group.runs if run.task == task]
            for name in (f"{split}/f1" for split in SPLITS):
                if scores and all(name in found for found in scores):
                    mark = f"{_mark(number)}: " if len(groups) > 1 else ""
                    columns[f"{mark}{name.replace('/f1', ' F1')}"] = [found[name] for found in scores]
        if not columns:
            yield f"<p>{parts.text(task)}: no round has scores by class.</p>"
            continue
        tables = [table for tables in columns.values() for table in tables]
        names = [name for name in tables[0] if all(name in table for table in tables)]
        counts = [identifying_clients(run.data) for run in own if not isinstance(run.data, str)]
        clients = {name: statistics.fmean(count.get(name, 0) for count in counts) if counts else 0.0 for name in names}
        rows = [
            ([name, f"{clients[name]:g}" if counts else "?"], [_bar([t[name] for t in ts]) for ts in columns.values()])
            for name in sorted(names, key=lambda name: clients[name])
        ]
        mean = ", mean over runs" if len(own) > 1 else ""
        caption = (
            f"{task}: F1 of each class in percent, selected round, or the last so far; clients: that identify the class"
            f"{mean}"
        )
        yield f"<figure>{parts.bars(caption, ['class', 'clients', *columns], rows)}</figure>"
        for why in dict.fromkeys(run.data for run in own if isinstance(run.data, str)):
            yield f'<p class="note">{parts.text(why)}</p>'


def _clients(runs: Sequence[_Shown]) -> Iterator[str]:
    """Yield the scores on clients' own test rows, of the runs that have them."""
    scored = [(run, scores) for run in runs if (scores := read_client_scores(run.view.folder))]
    if not scored:
        return
    yield "<h2>Clients</h2>"
    rows = [
        [f"{run.name}, {m.shown}" if len(scored) > 1 else m.shown, f"{figures[m.name]['clients']:.0f}",
         *(f"{100 * figures[m.name][part]:.2f}" for part in PARTS)]
        for run, scores in scored
        for figures in [spread(scores)]
        for m in run.summary.family.compared
        if m.name in figures
    ]  # fmt: skip
    yield parts.table("Scores of clients, each on its own test rows", ["score", "clients", *PARTS.values()], rows)
    for run, scores in scored:
        measures = [m for m in run.summary.family.compared if any(m.name in score.values for score in scores)]
        shown = worst_first(scores, run.summary.family.primary.name)[:CLIENTS]
        lines = [
            ([score.name or f"client {score.client}", str(score.rows)], [_client_bar(score, m.name) for m in measures])
            for score in shown
        ]
        caption = f"{run.name}: each client on its own test rows, in percent, the worst first"
        more = f"; {len(scores) - CLIENTS} more are in {CLIENT_SCORES}" if len(scores) > CLIENTS else ""
        yield f"<figure>{parts.bars(caption + more, ['client', 'rows', *(m.shown for m in measures)], lines)}</figure>"


def _client_bar(score: ClientScore, measure: str) -> tuple[float, str]:
    value = score.values.get(measure)
    return (0.0, "-") if value is None else (value, f"{100 * value:.2f}")


def _mark(number: int) -> str:
    """Return the letter of a group of runs, in the curves and at the head of its columns."""
    more, last = divmod(number, 26)
    return (_mark(more - 1) if more else "") + chr(ord("a") + last)


def _bar(scores: Sequence[float]) -> tuple[float, str]:
    return min(1.0, max(0.0, statistics.fmean(scores))), mean_sd_percent(scores)


def _partition(run: _Shown) -> Iterator[str]:
    yield "<h2>Partition</h2>"
    if isinstance(run.data, str):
        yield f'<p class="note">{parts.text(run.data)}</p>'
        return
    manifest = run.data.manifest
    clients, classes = len(manifest.examples), len(manifest.class_names)
    per_client = [len(known) for known in manifest.classes]
    facts = (
        f"{clients} clients, {classes} classes; a client holds {min(manifest.examples)} to {max(manifest.examples)}"
        f" rows and identifies {min(per_client)} to {max(per_client)} classes; {manifest.validation} validation rows,"
        f" {manifest.test} test rows."
    )
    if clients * classes > CELLS:
        yield f"<p>{facts} Too many cells for a heat map of this page.</p>"
        return
    known_MC = np.zeros((clients, classes), dtype=np.bool_)
    for client, known in enumerate(manifest.classes):
        known_MC[client, list(known)] = True
    names = manifest.client_names or [f"client {number}" for number in range(clients)]
    rows_MC = run.data.class_histogram().matrix(clients, classes)
    drawn = parts.heat_map("Rows by client and class", facts, rows_MC, known_MC, names, manifest.class_names)
    yield f"<figure>{drawn}<figcaption>{facts} Darker: more rows. Blue with a frame: the client identifies the class;"
    without = ", without the labels that task.hidden_labels took away" if manifest.options.hidden_labels else ""
    yield f"gray: it holds rows of it, hidden labels included{without}, and does not.</figcaption></figure>"


def _confusion(run: _Shown, *, count: bool) -> Iterator[str]:
    if isinstance(run.data, str) or run.data.manifest.kind != "single" or not (run.view.folder / "model").is_dir():
        return
    names = run.data.manifest.class_names
    yield "<h2>Confusion</h2>"
    if run.view.experiment.tested == "never":
        yield '<p class="note">The test split of this run is not scored (evaluation.test = never).</p>'
        return
    if not count:
        yield '<p class="note">It costs a pass over the test split: <code>anchorfl report</code> adds it.</p>'
        return
    if len(names) > CLASSES:
        yield f"<p>{len(names)} classes: too many for a table of this page.</p>"
        return
    caption = (
        "Test rows by true class (rows) and decision (columns) of the saved model; darker: share of the true class"
    )
    yield f"<figure>{parts.shaded(caption, 'true class', names, run.view.confusion_counts())}</figure>"


def _faults(run: _Shown) -> Iterator[str]:
    yield "<h2>Faults</h2>"
    names = dict.fromkeys(name for r in run.summary.records for name in r.metrics if name.startswith("failures/"))
    rows = [
        [name.removeprefix("failures/").replace("_", " "), f"{run.total(name):g}",
         _numbers([r.round for r in run.summary.records if r.metrics.get(name)])]
        for name in names
    ]  # fmt: skip
    if not any(run.total(name) for name in names):
        yield "<p>No client was dropped, none was tried again, and the server never started anew.</p>"
        return
    yield parts.table("Faults by kind, over all rounds", ["kind", "number", "in rounds"], rows, words=1)


def _numbers(rounds: Sequence[int]) -> str:
    """Return numbers with commas between, and how many more there are."""
    shown = ", ".join(map(str, rounds[:NUMBERS])) or "-"
    return f"{shown} and {len(rounds) - NUMBERS} more" if len(rounds) > NUMBERS else shown


def _costs(run: _Shown) -> Iterator[str]:
    down, up = COMMUNICATION
    kinds = (
        (down, "MB to clients", 1e6),
        (up, "MB from clients", 1e6),
        ("time/round", "seconds", 1.0),
        ("time/clients", "seconds in which clients train", 1.0),
        ("time/evaluate", "seconds for scores", 1.0),
    )
    rows = []
    for metric, word, unit in kinds:
        values = [r.metrics[metric] / unit for r in run.summary.records if r.round and metric in r.metrics]
        if values:
            rows.append([word, f"{statistics.median(values):.3f}", f"{sum(values):.2f}"])
    if rows:
        yield "<h2>Bytes and seconds</h2>"
        yield parts.table("Traffic and time", ["what", "median of a round", "all rounds"], rows)


def _options(run: _Shown) -> Iterator[str]:
    experiment, base = run.view.experiment, run.repetition.base
    values, preset = options_of(experiment), options_of(base)
    plain = options_of(with_defaults(experiment))
    rows = [
        [name, *(_value(options.get(name, "-")) for options in (values, preset, plain))]
        for name in values
        if (values[name] != plain[name] or values[name] != preset.get(name)) and name != "output"
    ]
    yield "<h2>Options</h2>"
    caption = "Options that differ from the preset or from their defaults"
    yield parts.table(caption, ["option", "value", run.repetition.preset or "own table", "default"], rows, words=4)


def _value(value: object) -> str:
    shown = redact(str(value))
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}\u2026"


def _record(run: _Shown) -> Iterator[str]:
    tags = {name: value for name, value in run.summary.tags.items() if name != "method"}
    rows = [["folder", run.view.folder.name], ["state", _state(run)]]
    if run.summary.records:
        when = datetime.fromtimestamp(run.summary.records[-1].time, UTC)
        rows.append(["last round", f"{when:%Y-%m-%d %H:%M:%S} UTC"])
    if "checksum" in run.result:
        rows.append(["weights, SHA-256", run.result["checksum"]])
    rows += [[name.replace("_", " "), _value(value)] for name, value in tags.items()]
    yield "<h2>Record</h2>"
    yield parts.table("What identifies the run", ["what", "value"], rows, words=2)
