"""The runs of a table, found by the digest of their options wherever they were started from; and what the missing ones
need before they can start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from anchorfl.models.errors import NamesError
from anchorfl.pipeline.config.experiment import EPOCH, SAME_TO_ROUNDING, Experiment, digest
from anchorfl.pipeline.config.idle_options import check_idle, idle_options
from anchorfl.pipeline.config.overrides import option_name, override, typed_options
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.schema import options_of
from anchorfl.pipeline.results.compare import is_free
from anchorfl.pipeline.run.prepare import make_run_spec, resolve_options, with_sections
from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.storage.restore import backup_uri, restore_if_ahead
from anchorfl.pipeline.storage.run_folder import CONFIG, RESULT, SERVER_STATES, new_folder, read_result
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.metrics.scores import FAMILIES
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular.table import resolve_options as resolve_task_options
from anchorfl.tuning.tables.options import (
    Vary,
    drop_options,
    options_of_one_method,
    sort_by_value,
    with_change,
)
from anchorfl.tuning.tables.own_rows import base_experiment
from anchorfl.tuning.tables.published import Paper, Row

ENCODERS = ("fedbm-bert", "fedbm-roberta", "fedbm-biomedclip")
"""Rows that compare text encoders (Table XII of FedBM)."""
SELECTED = {"last": "last", "best": "best_validation", "best_sum": "best_validation_sum"}
"""A paper's ``reported`` -> the rule by which that round is the selected one, and tested even where no other is."""
SAVINGS = {f"optimizer.{name}" for name in ("onednn", "skip_zero_rows", "microbatch_tokens", "lookup_dropout")}
"""The same mathematics by another way: they do not make other settings than the paper's."""
TESTED = "evaluation.test"
"""Option of the rounds whose test split is scored; it changes no figure of a table."""
TAKEN = {"seed": "--seeds 4321,4322", "output": "--runs FOLDER and --out FOLDER"}
"""Options of a run that a table sets itself -> what to write in their place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRun:
    """A row with a seed: one run, finished or not."""

    row: Row
    seed: int
    experiment: Experiment
    """All options, resolved."""
    digest: str
    """Digest of the options: by it a finished run is found."""
    has_preset_options: bool
    """True where the options are the preset's, but for the row's change and for savings."""
    words: tuple[str, ...] = ()
    """Words of the command line that it takes."""
    folder: Path | None = None
    """Folder of the finished run; None: there is none."""

    @property
    def name(self) -> str:
        """Name in lines about it."""
        return f"{self.row.key} seed {self.seed}"


def _serial(experiment: Experiment) -> Experiment:
    """Return an experiment that trains in one process, as those of tables. InputError where its options need more."""
    try:
        return replace(experiment, cluster=replace(experiment.cluster, executor="serial"))
    except ValueError as error:
        raise InputError(f"{error}; or choose the processes of all runs with --cluster.executor") from error


def table_runs_of(
    rows: Sequence[Row], seeds: Sequence[int], overrides: Sequence[str], vary: Vary | None = None, reported: str = ""
) -> list[TableRun]:
    """Return every row, with every value of what is varied, with every seed.

    Their order is data set by data set and seed by seed, so that a whole comparison is there early. An option that one
    method alone has goes to its rows. Runs are serial unless the overrides say otherwise: one process each is the
    cheapest way through many runs. They score the test split once, for the selected model, where that is the round that
    the paper reports (``Paper.reported``) and the overrides do not say otherwise: the table shows nothing else of it.
    An own row's options are its own, whatever all rows are given. InputError on an override that a row's preset
    refuses, or that a table sets itself.
    """
    named = {name for word in overrides if (name := option_name(word))}
    if vary is not None and vary.option in named:
        raise InputError(f"--{vary.option}: --vary sets it for its runs; give one of them")
    encoders = sorted({row.name for row in rows if row.name in ENCODERS})
    if "class_embeddings.encoder" in named and encoders:
        raise InputError(
            f"--class_embeddings.encoder: rows {', '.join(encoders)} are named after the text encoder that is"
            " published; leave them out with --rows"
        )
    for option in (named | {vary.option} if vary else named) & TAKEN.keys():
        raise InputError(f"--{option}: a table sets it for its runs; give {TAKEN[option]}")
    for row in rows:
        if vary is not None and vary.option in typed_options(row.own):
            raise InputError(f"--row {row.label}: --vary sets {vary.option} for all rows; leave it out of one of them")
    presets = {row.base: base_experiment(row) for row in rows}
    methods = options_of_one_method(overrides, presets)
    out = []
    for row in rows:
        preset = presets[row.base]
        others = [option for option, method in methods.items() if method != preset.method.name]
        words = drop_options(overrides, [*others, *typed_options(row.own)])
        for changed, experiment in _experiments(row, preset, words, vary):
            if "cluster.executor" not in named:
                experiment = _serial(experiment)
            if TESTED not in named and SELECTED.get(reported) == experiment.evaluation.model_selection:
                experiment = replace(experiment, evaluation=replace(experiment.evaluation, test="last"))
            has_preset_options = _has_preset_options(experiment, preset, changed)
            for seed in seeds:
                seeded = with_sections(experiment, seed=seed)
                out.append(
                    TableRun(
                        row=changed, seed=seed, experiment=seeded, digest=digest(seeded),
                        has_preset_options=has_preset_options, words=tuple(words),
                    )
                )  # fmt: skip
    order = list(dict.fromkeys(row.folder for row in rows))
    return sorted(out, key=lambda run: (order.index(run.row.folder), seeds.index(run.seed)))


def _experiments(
    row: Row, preset: Experiment, overrides: Sequence[str], vary: Vary | None
) -> list[tuple[Row, Experiment]]:
    """Return the row, or one row for each value, with the experiment that the command line makes of the preset."""
    out = []
    for value in vary.values if vary else (None,):
        words = [*overrides, vary.override(value)] if vary and value is not None else overrides
        try:
            experiment = resolve_options(override(preset, words, f"anchorfl run {row.base}"), count=False)
        except InputError as error:
            raise InputError(f"{row.base}: {error} (--rows leaves rows out)") from error
        out.append((with_change(row, vary.option, experiment, preset) if vary else row, experiment))
    return sort_by_value(out)


def check_options_work(options: Iterable[str], table_runs: Sequence[TableRun], rows: Sequence[Row]) -> None:
    """Raise InputError where an option changes nothing in any row of the table but the digest.

    rows: all of the table, those that ``--rows`` leaves out included: its options are the same in every call, such as
    the text encoder that one row reads.
    """
    for option in options:
        with_option = [e for run in table_runs if option in options_of(e := run.experiment)]
        if with_option and all(option in idle_options(e) for e in with_option):
            with_option += [e for row in rows if option in options_of(e := read_preset(row.preset))]
            check_idle([option], with_option)


def check_has_scores(paper: Paper, table_runs: Sequence[TableRun]) -> None:
    """Raise InputError where a run would lack a score that the table shows."""
    for run in table_runs:
        experiment = run.experiment
        values = {measure.value for measure in FAMILIES[experiment.evaluation.metrics].measures}
        lacking = [metric.shown for metric in paper.metrics if metric.value not in values]
        if lacking:
            raise InputError(
                f"--evaluation.metrics {experiment.evaluation.metrics}: a table of this paper shows"
                f" {', '.join(lacking)}, which such runs have not: leave the option out"
            )
        if experiment.tested == "never":
            raise InputError("--evaluation.test never: a table shows scores of the test split")
        if experiment.tested == "last" and SELECTED.get(paper.reported) != experiment.evaluation.model_selection:
            raise InputError(
                f"--evaluation.test last with evaluation.model_selection {experiment.evaluation.model_selection}:"
                f" {run.row.preset} is reported otherwise ({paper.reported}), and would have no score: leave"
                " --evaluation.test out"
            )


def _has_preset_options(experiment: Experiment, preset: Experiment, row: Row) -> bool:
    """Return whether all that makes another experiment is as in the preset, but for the row's change.

    Savings, which give other last bits or other draws of the same dropout, make no other experiment.
    """
    preset_options, free = options_of(preset), {row.change.option if row.change else "", TESTED, *SAVINGS}
    return all(
        value == preset_options[name] or is_free(name) or name in free for name, value in options_of(experiment).items()
    )


@dataclass(slots=True)
class RunIndex:
    """The runs below a folder, by the digest of their options."""

    finished: dict[str, list[Path]] = field(default_factory=dict)
    """Digest -> folders of finished runs, by name."""
    begun: dict[str, Path] = field(default_factory=dict)
    """Digest -> folder of the run that was begun."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Folder that is left out -> what is wrong with it."""

    def check(self, table_runs: Sequence[TableRun]) -> None:
        """Raise InputError where a folder that cannot be read is a run of the table: it would be trained again."""
        wanted = {run.digest for run in table_runs}
        for folder, fault in self.unreadable.items():
            if _digest_of(folder) in wanted:
                raise InputError(fault)

    def notes(self, table_runs: Sequence[TableRun]) -> list[str]:
        """Return a line for each run beside another of the same options and seed that ended with other weights."""
        out = [f"left out: {fault}" for fault in self.unreadable.values()]
        for run in {run.digest: run for run in table_runs}.values():
            folders = self.finished.get(run.digest, [])
            if len({read_result(f).get("checksum") for f in folders}) > 1:
                rest = ", ".join(map(str, folders[1:]))
                out.append(f"{run.name}: {folders[0]} is shown; {rest}: the same options and seed, other weights")
        return out


def _digest_of(folder: Path) -> object:
    """Return the digest of a folder's options; None where they cannot be read."""
    try:
        return read_json(folder / CONFIG).get("digest")
    except InputError:
        return None


def index_runs(runs: Path) -> RunIndex:
    """Return every run below ``runs``, at any depth.

    A folder without a run.json is no run: artifacts have a config.json, too. An unfinished run that has a parent is its
    sweep's to go on with.
    """
    index = RunIndex()
    for path in sorted(runs.rglob("run.json")):
        folder = path.parent
        try:
            result = read_result(folder)
            if result:
                index.finished.setdefault(str(result.get("digest")), []).append(folder)
            elif (folder / CONFIG).exists() and not read_metadata(folder).get("parent"):
                index.begun.setdefault(str(read_json(folder / CONFIG).get("digest")), folder)
        except InputError as error:
            index.unreadable[folder] = str(error)
    return index


def attach_folders(table_runs: Sequence[TableRun], index: RunIndex) -> list[TableRun]:
    """Return the runs with the folders of those that are finished. One that is to be tested once is also found where it
    was tested in every round, or was begun so.
    """
    return [_attached(run, index) for run in table_runs]


def _attached(run: TableRun, index: RunIndex) -> TableRun:
    candidates = [run]
    if run.experiment.evaluation.test == "last":
        always = replace(run.experiment, evaluation=replace(run.experiment.evaluation, test="always"))
        candidates.insert(0, replace(run, experiment=always, digest=digest(always)))
    for epoch in (EPOCH, *SAME_TO_ROUNDING):
        for candidate in candidates:
            if folders := index.finished.get(digest(candidate.experiment, epoch)):
                return replace(candidate, folder=folders[0])
    return next((candidate for candidate in candidates if candidate.digest in index.begun), run)


def notes_on_earlier_epochs(table_runs: Sequence[TableRun]) -> list[str]:
    """Return a line where some of the runs are of an earlier epoch, whose results are the same to rounding."""
    runs = [(run, run.folder) for run in {run.digest: run for run in table_runs}.values() if run.folder is not None]
    earlier = sum(read_result(folder).get("digest") != run.digest for run, folder in runs)
    return (
        [f"{earlier} of {len(runs)} runs are of an earlier version, whose last bits differ (epoch)."] if earlier else []
    )


def notes_without_states(table_runs: Sequence[TableRun]) -> list[str]:
    """Return a line where runs are asked to save states of the server, and some had finished without."""
    asked = {run.folder for run in table_runs if run.folder and run.experiment.evaluation.save_state_every}
    lacking = sorted(folder for folder in asked if not (folder / SERVER_STATES).is_dir())
    if not lacking:
        return []
    return [
        f"--evaluation.save_state_every: {len(lacking)} of {len(asked)} runs had finished without it and have no states"
        f" ({lacking[0]}{', ...' if len(lacking) > 1 else ''}): move them away and call again, and they are run anew"
    ]


def notes_on_other_data(table_runs: Sequence[TableRun]) -> list[str]:
    """Return a line for each data set and seed whose runs were given data that were prepared in several ways.

    One may be by an older version. The options are the same, but such scores cannot stand beside each other.
    """
    groups: dict[tuple[str, str, int], dict[str, list[Path]]] = {}
    for run in table_runs:
        if run.folder is not None:
            data_digest = read_metadata(run.folder).get("tags", {}).get("data_digest", "")
            key = (run.row.data, repr(run.experiment.task), run.seed)
            groups.setdefault(key, {}).setdefault(data_digest, []).append(run.folder)
    out = []
    for (data, _, seed), folders in groups.items():
        if len(folders) > 1:
            parts = "; against ".join(", ".join(map(str, dict.fromkeys(same))) for same in folders.values())
            out.append(
                f"{data} seed {seed}: the data were prepared in {len(folders)} ways: {parts}. Move the older runs away"
                " and call again: they are run anew"
            )
    return out


class Job(NamedTuple):
    """A run to make or to go on with."""

    run: TableRun
    folder: Path
    """Run folder, absolute; it may not exist yet."""


def jobs_of(table_runs: Sequence[TableRun], index: RunIndex, runs: Path, log: Log) -> list[Job]:
    """Return the missing runs, each with the folder in which it was begun, or a new one.

    Rows that are one experiment are one job. A finished copy in object storage is fetched: index the runs again.
    """
    out: dict[str, Job] = {}
    for run in table_runs:
        if run.folder is not None or run.digest in out:
            continue
        label = "" if run.row.own else run.row.preset  # a run of an own row is named after data and method
        folder = index.begun.get(run.digest) or new_folder(run.experiment, label, runs)
        backup = run.experiment.cluster.backup
        if backup:
            restore_if_ahead(backup_uri(backup, folder), folder, log, finished=True)
        if not (folder / RESULT).exists():
            out[run.digest] = Job(run, folder.resolve())
    return list(out.values())


def missing_data(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the data sets of which files are missing: folder of presets -> where to get the files, in a line."""
    out: dict[str, str] = {}
    for folder, options in dict.fromkeys((job.run.row.folder, job.run.experiment.task) for job in jobs):
        try:
            raw_folder(task_of(options), options)
        except InputError as error:
            out.setdefault(folder, str(error))
    return out


@dataclass(slots=True)
class Preparation:
    """The data of runs, as far as they could be prepared."""

    run_specs: dict[str, RunSpec] = field(default_factory=dict)
    """Digest -> data and class-name vectors of the run."""
    failures: dict[str, str] = field(default_factory=dict)
    """Digest -> why the run cannot start, in a line."""


def prepare_all(jobs: Sequence[Job], log: Log) -> Preparation:
    """Prepare data and class-name vectors of all jobs; bad input stops the runs that need it and no other.

    It is done here and once: a run that prepared data would wait for CPUs that runs hold.
    """
    out = Preparation()
    data: dict[tuple[TaskOptions, int], tuple[TaskOptions, Prepared] | InputError] = {}
    log_once = cache(log)
    for run, _ in jobs:
        experiment = run.experiment
        key = (experiment.task, experiment.seed)
        try:
            if key not in data:
                data[key] = _prepare(experiment.task, experiment.seed, experiment.cluster.uses_ray, log_once)
            result = data[key]
            if isinstance(result, InputError):
                raise result
            task, prepared = result
            out.run_specs[run.digest] = make_run_spec(with_sections(experiment, task=task), log_once, prepared)
        except (InputError, NamesError) as error:
            out.failures[run.digest] = str(error)
    return out


def _prepare(task: TaskOptions, seed: int, uses_ray: bool, log: Log) -> tuple[TaskOptions, Prepared] | InputError:
    """Prepare data; return them after their options, with what they settle.

    An error is returned, so that data are read once for all runs that need them; what other options of a run do not fit
    is none.
    """
    try:
        task = resolve_task_options(task, log)
        prepared = prepare(task_of(task), task, seed, engine="ray" if uses_ray else "local", log=log)
    except InputError as error:
        return error
    return replace(task, clients=task.clients or len(prepared.manifest.examples)), prepared


def failure_lines(table_runs: Sequence[TableRun], reasons: Mapping[str, str]) -> list[str]:
    """Return failures by digest as lines: one for each row and reason, with its seeds."""
    groups: dict[tuple[str, str], list[int]] = {}
    for run in table_runs:
        if run.digest in reasons:
            groups.setdefault((run.row.key, reasons[run.digest]), []).append(run.seed)
    return [
        f"{row} seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} failed: {reason}"
        for (row, reason), seeds in groups.items()
    ]
