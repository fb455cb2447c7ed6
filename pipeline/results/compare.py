"""Several runs side by side: a table, mean and sd over seeds, and curves; all from the run folders, without MLflow.

Scores are those of ``evaluation.metrics`` on the test split, in percent; on the validation split where no run was
tested (``evaluation.test = "never"``), so that runs can be chosen by them. A round is only ever chosen by validation.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.pipeline import terminal
from anchorfl.pipeline.results.client_scores import PARTS
from anchorfl.pipeline.results.curves import draw
from anchorfl.pipeline.results.markdown import markdown_table, plain_markdown
from anchorfl.pipeline.storage.atomic_files import write_atomically, write_csv
from anchorfl.pipeline.storage.run_folder import check_is_one_run, check_stays_inside, read_result
from anchorfl.pipeline.storage.run_record import COMMUNICATION, RoundRecord, read_metadata, with_final_scores
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import FAMILIES, Family, Measure

if TYPE_CHECKING:  # torch, which tables of finished runs do without
    from anchorfl.tasks.ingest.prepared import Split

SPLITS = ("validation/", "test/")
FREE = ("seed", "output", "task.root", "task.cache", "tracking.", "cluster.", "evaluation.save_state_every")
"""Params, or how they begin, in which the runs of one group may differ: none but the seed changes a result."""
ROUNDS = {"last": "last", "best": "best", "last5": "mean5"}
"""Rounds of which a score is: end of its name in ``RunSummary.values`` -> head of its column."""
COSTS = {"megabytes": "MB", "seconds": "s/round"}
"""Name in ``RunSummary.values`` -> head of its column."""
FILES = ("comparison.md", "comparison.csv", "curves.png", "curves.svg")
IN_FILES = "last5"
"""Of ``ROUNDS``, what stands in comparison.md and comparison.csv alone: a terminal is narrow."""
LEGEND = (
    "Scores: {split} split, percent. last: last evaluated round; best: that with the best validation {primary}{also}"
)
LEGEND_CLIENTS = (
    "Clients: mean, worst, 10th percentile (p10) and sd over the clients of the score on each one's own test rows."
)
LEGEND_IN_FILES = "; mean5: mean of the last five evaluated rounds"
LEGEND_COSTS = "MB: moved both ways; s/round: median."
TEXT_COLUMNS = ("run", "task", "method", "mean and sd")
"""Heads of the columns that hold no numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run in numbers."""

    folder: Path
    name: str
    task: str
    method: str
    seed: int | str
    status: str
    params: dict[str, Any]
    records: tuple[RoundRecord, ...]
    values: dict[str, float | None]
    """Figures of every measure of its family and every one of ``rounds_of`` it (``f1_last``, 0 to 1), and ``COSTS``;
    with clients' own test rows also their ``PARTS`` (``f1_clients_worst``). None where the run has no such number."""
    split: Split
    """The one that these are of."""
    result: dict[str, Any]
    """result.json, {} where the run has none."""
    tags: dict[str, str] = field(default_factory=dict)
    """Facts of the run, by name (pipeline/run/provenance.py)."""
    raw_digest: str = ""
    """Digest of the raw files; empty in records without one."""

    @property
    def family(self) -> Family:
        """The figures by which the run was scored."""
        return _family(self.params)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: tuple[RunSummary, ...]
    mean: dict[str, float | None]
    """Means of ``RunSummary.values``; None where some run lacks one."""
    sd: dict[str, float | None]
    """Standard deviation (ddof 1) as ``RunSummary.values``; None for a single run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Runs and groups, and their tables."""

    runs: tuple[RunSummary, ...]
    groups: tuple[Group, ...]
    text: str
    """The tables as text."""
    markdown: str
    """The tables as Markdown."""
    notes: tuple[str, ...]
    """Notes that a reader needs on the runs."""
    files: tuple[Path, ...] = ()
    """Files that were written."""

    def __str__(self) -> str:
        return self.text

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return each run with its numbers, by the names of ``RunSummary.values``; scores are 0 to 1."""
        names = ("name", "task", "method", "seed", "status", "split")
        return [
            {name: getattr(run, name) for name in names}
            | {"folder": str(run.folder), "rounds": run.records[-1].round, "checksum": run.result.get("checksum")}
            | run.values
            for run in self.runs
        ]


def load_run(folder: Path, split: Split = "test") -> RunSummary:
    """Read a run folder in numbers, those of a split. Raise InputError where there is no run or no finished round."""
    run = load_begun(folder, split)
    if not run.records:
        command = shlex.join(["anchorfl", "resume", str(folder)])
        raise InputError(f"{folder} holds no finished round (metrics.jsonl); go on with: {command}")
    return run


def load_begun(folder: Path, split: Split = "test") -> RunSummary:
    """Read a run folder as ``load_run`` does, also one without a finished round."""
    metadata = read_metadata(folder)
    if not metadata:
        raise InputError(
            f"{folder} is no run folder (run.json is not there); name folders such as runs/<name of the run>"
        )
    check_is_one_run(folder, metadata, ("sweep", "table"))
    check_stays_inside(folder)
    records, result = tuple(with_final_scores(folder)), read_result(folder)
    params: dict[str, Any] = metadata["params"]
    if str(family := params.get("evaluation.metrics", "threshold")) not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InputError(f"{folder / 'run.json'}: evaluation.metrics = {family!r}, which is none of {known}")
    return RunSummary(
        folder=folder,
        name=metadata["name"],
        task=str(_first(params, "task.name", "task", default=metadata["experiment"])),
        method=str(_first(params, "method.name", "method", default="?")),
        seed=_first(params, "seed", default="?"),
        status=metadata["status"],
        params=params,
        records=records,
        values=_values(records, _family(params), split) | _client_values(params, result),
        split=split,
        result=result,
        tags=metadata.get("tags", {}),
        raw_digest=next((digest for *_, digest in metadata.get("datasets", [])), ""),
    )


def compare(
    folders: Iterable[Path], out: Path | None, width: int | None = None, *, ended: Mapping[str, Any] | None = None
) -> Comparison:
    """Compare runs in a table; with ``out`` also write comparison.md, comparison.csv, curves.png and curves.svg there.

    width: columns that the text may take; None: any number. ended: content of the ``result.json`` that the one run is
    about to get. Raises InputError where a folder holds no run, or no folder is given.
    """
    named = list(dict.fromkeys(folder.resolve() for folder in folders))
    runs = tuple(map(load_run, named))
    if not runs:
        raise InputError("no run to compare; name at least one run folder")
    if not any(name.startswith("test/") for run in runs for record in run.records for name in record.metrics):
        runs = tuple(load_run(folder, "validation") for folder in named)
    if ended is not None:
        more = _client_values(runs[0].params, ended)
        runs = (replace(runs[0], status="FINISHED", result=dict(ended), values=runs[0].values | more),)
    groups = groups_of(runs)
    families = _families(runs)
    notes = notes_of(groups)
    also = "".join(f", best {m.short}: that with the best validation {m.shown}" for f in families for m in f.also)
    legend = LEGEND.format(
        split=runs[0].split, primary=" or ".join(dict.fromkeys(f.primary.shown for f in families)), also=also
    )
    text = _text(runs, groups, [f"{legend}.", LEGEND_COSTS, *notes], width)
    markdown = _markdown(runs, groups, [f"{legend}{LEGEND_IN_FILES}.", LEGEND_COSTS, *notes], curves=bool(out))
    files = _write(out, runs, groups, markdown) if out else ()
    return Comparison(runs=runs, groups=groups, text=text, markdown=markdown, notes=notes, files=files)


def _first(params: dict[str, Any], *names: str, default: Any) -> Any:
    return next((params[name] for name in names if name in params), default)


def _family(params: dict[str, Any]) -> Family:
    return FAMILIES[params.get("evaluation.metrics", "threshold")]  # runs of earlier versions had no choice


def _families(runs: Sequence[RunSummary]) -> list[Family]:
    """Return the families that some run has, in a fixed order."""
    return [family for family in FAMILIES.values() if any(run.family is family for run in runs)]


def rounds_of(family: Family) -> dict[str, str]:
    """Return ``ROUNDS`` with those that are chosen by another figure of the family (``best_sum``)."""
    return ROUNDS | {f"best_{measure.value}": f"best {measure.short}" for measure in family.also}


def _heads(families: Sequence[Family], *, every: bool = False, in_files: bool = True) -> dict[str, str]:
    """Return name among ``RunSummary.values`` -> head of its column.

    every: of all measures, not of those in tables alone; in_files: with the scores that stand in files alone.
    """
    ends = {end: head for family in families for end, head in rounds_of(family).items() if in_files or end != IN_FILES}
    return {
        f"{m.value}_{end}": f"{m.short} {head}"
        for end, head in ends.items()
        for family in families
        if end in rounds_of(family)
        for m in (family.measures if every else family.compared)
    }


def _values(records: Sequence[RoundRecord], family: Family, split: Split) -> dict[str, float | None]:
    """Return the numbers of a run. The median second leaves out the pause before a resume."""
    records = [record for record in records if record.round] or records  # round 0: the initial weights
    scored = [record for record in records if any(name.startswith(SPLITS) for name in record.metrics)]
    values: dict[str, float | None] = {}
    best = {"best": _best(records, family.primary), **{f"best_{m.value}": _best(records, m) for m in family.also}}
    for measure in family.measures:
        key = f"{split}/{measure.name}"
        last5 = [score for r in scored[-5:] if (score := r.metrics.get(key)) is not None]
        values[f"{measure.value}_last"] = scored[-1].metrics.get(key) if scored else None
        values |= {
            f"{measure.value}_{end}": record.metrics.get(key) if record else None for end, record in best.items()
        }
        values[f"{measure.value}_last5"] = statistics.fmean(last5) if last5 and len(last5) == len(scored[-5:]) else None
    moved = [record.metrics[key] for record in records for key in COMMUNICATION if key in record.metrics]
    values["megabytes"] = sum(moved) / 1e6 if moved else None
    steps = [after.time - before.time for before, after in pairwise(records)]
    values["seconds"] = statistics.median(steps) if steps else None
    return values


def _client_values(params: dict[str, Any], result: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures over the clients, each on its own test rows; {} where the run's clients have none."""
    if params.get("task.client_test", "none") == "none":
        return {}
    found = result.get("client_test", {})
    return {
        f"{measure.value}_clients_{part}": found.get(measure.name, {}).get(part)
        for measure in _family(params).measures
        for part in PARTS
    }


def _client_heads(runs: Sequence[RunSummary], *, every: bool = False) -> dict[str, str]:
    """Return as ``_heads``, for the figures over the clients, as far as some run has them."""
    heads = {
        f"{m.value}_clients_{part}": f"{m.short} {part}"
        for family in _families(runs)
        for m in (family.measures if every else family.compared)
        for part in PARTS
    }
    return {name: head for name, head in heads.items() if any(run.values.get(name) is not None for run in runs)}


def _best(records: Sequence[RoundRecord], by: Measure) -> RoundRecord | None:
    """Return the first round with the best validation figure; its test scores are missing where it was not tested."""
    select = f"validation/{by.name}"
    scored = [record for record in records if select in record.metrics]
    return max(scored, key=lambda record: (record.metrics[select], -record.round), default=None)


def is_free(param: str) -> bool:
    """Return whether an option is the seed, or changes no result, only where a run goes or what is kept of it."""
    return any(param.startswith(name) if name.endswith(".") else param == name for name in FREE)


def _key(run: RunSummary) -> tuple[Any, ...]:
    fixed = {key: value for key, value in run.params.items() if not is_free(key)}
    fixed |= {key: value for key, value in run.tags.items() if key.endswith("_plugin")}  # the digest of its source
    return run.task, run.method, tuple(sorted((key, str(value)) for key, value in fixed.items()))


def groups_of(runs: Sequence[RunSummary]) -> tuple[Group, ...]:
    """Return the runs in groups that differ in their seed alone, in the order of the runs."""
    members: dict[tuple[Any, ...], list[RunSummary]] = {}
    for run in runs:
        members.setdefault(_key(run), []).append(run)
    groups = []
    for key, same in members.items():
        rivals = [other for other in members if other[:2] == key[:2]]
        shared = set.intersection(*(set(other[2]) for other in rivals))  # what tells groups of one method apart
        apart = ", ".join(f"{name}={value}" for name, value in key[2] if (name, value) not in shared)
        mean: dict[str, float | None] = {}
        sd: dict[str, float | None] = {}
        for name in same[0].values:
            known = [value for run in same if (value := run.values[name]) is not None]
            mean[name] = statistics.fmean(known) if len(known) == len(same) else None
            sd[name] = statistics.stdev(known) if len(known) == len(same) > 1 else None
        label = f"{key[0]} {key[1]}" + (f" ({apart})" if apart else "")
        groups.append(Group(label=label, runs=tuple(same), mean=mean, sd=sd))
    return tuple(groups)


def raw_data_notes(runs: Iterable[tuple[str, RunSummary]]) -> list[str]:
    """Return a line for each name whose runs were trained on different raw files, such as made-up ones and real ones.

    runs: what a run belongs to, and the run.
    """
    names = dict[str, dict[str, str]]()
    for name, run in runs:
        if run.raw_digest:
            names.setdefault(name, {}).setdefault(run.raw_digest, run.name)
    return [
        f"{name}: its runs were trained on different raw files, as {' and '.join(list(of)[:2])} were: their mean says"
        " nothing"
        for name, of in ((name, list(of.values())) for name, of in names.items())
        if len(of) > 1
    ]


def notes_of(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return a line for each thing that a reader of groups' means must know."""
    notes = [f"Note: {n}." for n in raw_data_notes((group.label, run) for group in groups for run in group.runs)]
    for group in groups:
        seeds = [str(run.seed) for run in group.runs]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            notes.append(f"Note: {group.label} holds seed {', '.join(twice)} more than once; its sd is too small.")
        ends = [run.records[-1].round if run.records else 0 for run in group.runs]
        notes += [
            f"Note: {run.name} stops at round {end}, others of its group at {max(ends)}."
            for run, end in zip(group.runs, ends, strict=True)
            if end < max(ends)
        ]
    return tuple(notes)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if name in COSTS else f"{100 * value:.2f}"


def _text(runs: Sequence[RunSummary], groups: Sequence[Group], tail: Sequence[str], width: int | None) -> str:
    heads = _heads(_families(runs), in_files=False)
    tables = [_rows(runs, heads), _grouped_rows(groups, heads), *_client_tables(runs, groups)]
    blocks = [
        terminal.table(rows, width, right=[head for head in rows[0] if head not in TEXT_COLUMNS], ruled=True)
        for rows in tables
        if rows
    ]
    tail = [*tail, LEGEND_CLIENTS] if _client_heads(runs) else tail
    return "\n\n".join([*blocks, "\n".join(terminal.paragraph(line, width) for line in tail)]) + "\n"


def _markdown(runs: Sequence[RunSummary], groups: Sequence[Group], tail: Sequence[str], *, curves: bool) -> str:
    heads = _heads(_families(runs))
    grouped = _grouped_rows(groups, heads)
    blocks = ["# Comparison", markdown_table(_rows(runs, heads))]
    blocks += ["## Mean and sd over seeds", markdown_table(grouped)] if grouped else []
    if tables := _client_tables(runs, groups):
        blocks += [
            "## Clients, each on its own test rows",
            *map(markdown_table, tables),
            plain_markdown(LEGEND_CLIENTS),
        ]
    return "\n\n".join([*blocks, *map(plain_markdown, tail), *(["![curves](curves.png)"] if curves else [])]) + "\n"


def _client_tables(runs: Sequence[RunSummary], groups: Sequence[Group]) -> list[list[list[str]]]:
    """Return the rows of the runs with clients' own test rows, and of groups of these; [] where there are none."""
    heads = _client_heads(runs)
    having = [run for run in runs if any(run.values.get(name) is not None for name in heads)]
    if not having:
        return []
    rows = [["run", "seed", *heads.values()]]
    rows += [[run.name, str(run.seed), *(_shown(name, run.values.get(name)) for name in heads)] for run in having]
    several = [group for group in groups if len(group.runs) > 1 and group.runs[0] in having]
    return [rows, *([_means(several, heads)] if several else [])]


def _rows(runs: Sequence[RunSummary], heads: dict[str, str]) -> list[list[str]]:
    """Return a row for each run, those of the heads first. heads: of the scores."""
    heads = heads | COSTS
    rows = [["run", "seed", *heads.values(), "rounds", "task", "method"]]
    for run in runs:
        cells = [_shown(name, run.values.get(name)) for name in heads]
        rows.append([run.name, str(run.seed), *cells, str(run.records[-1].round), run.task, run.method])
    return rows


def _grouped_rows(groups: Sequence[Group], heads: dict[str, str]) -> list[list[str]]:
    """Return the rows of the groups with several runs; [] where there are none. heads: of the scores."""
    several = [group for group in groups if len(group.runs) > 1]
    return _means(several, heads | COSTS) if several else []


def _means(groups: Sequence[Group], heads: dict[str, str]) -> list[list[str]]:
    """Return the rows of groups, those of the heads first."""
    rows = [["mean and sd", "runs", *heads.values()]]
    for group in groups:
        cells = [f"{_shown(name, group.mean.get(name))} ± {_shown(name, group.sd.get(name))}" for name in heads]
        rows.append([group.label, str(len(group.runs)), *("-" if cell == "- ± -" else cell for cell in cells)])
    return rows


def _write(out: Path, runs: Sequence[RunSummary], groups: Sequence[Group], markdown: str) -> tuple[Path, ...]:
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "comparison.md", markdown.encode())
    names = [*_heads(_families(runs), every=True), *_client_heads(runs, every=True)]
    units = [*(f"{name}_percent" for name in names), *COSTS]
    rows: list[list[object]] = [["run", "folder", "task", "method", "seed", "status", "last_round", *units]]
    for run in runs:
        known = [run.values.get(name) for name in (*names, *COSTS)]
        cells = ["" if v is None else _shown(n, v) for n, v in zip((*names, *COSTS), known, strict=True)]
        facts = [run.name, run.folder, run.task, run.method, run.seed, run.status, run.records[-1].round]
        rows.append([*facts, *cells])
    write_csv(out / "comparison.csv", rows)
    split = runs[0].split
    panels = {f"{split}/{m.name}": f"{split} {m.shown} (%)" for family in _families(runs) for m in family.compared}
    curves = {
        group.label: [
            {key: {r.round: r.metrics[key] for r in run.records if key in r.metrics} for key in panels}
            for run in group.runs
        ]
        for group in groups
    }
    draw(curves, panels, out / "curves.png")
    return tuple(out / name for name in FILES)
