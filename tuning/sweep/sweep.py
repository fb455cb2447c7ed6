"""A sweep from preset to report: search on validation, choose by a named rule, run the choice on fresh seeds.

The folder: ``sweep.json`` (what was asked), ``ledger.jsonl`` (what happened), ``trials/0000/seed-0/`` and so on (runs
in short), ``final/trial-0007-seed-2/`` (the choice in full), ``report/``. MLflow gets it all from there, and Optuna a
copy of the trials (``optuna.log``).
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from anchorfl.pipeline import terminal
from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.pipeline.cluster import ray_cluster, ray_watch
from anchorfl.pipeline.cluster.layout import driver_has_no_cpus, in_fresh_worker
from anchorfl.pipeline.config.experiment import Experiment, digest, plugins_of
from anchorfl.pipeline.run.prepare import check_options, make_run_spec
from anchorfl.pipeline.storage.run_folder import lock_run
from anchorfl.pipeline.storage.run_record import Status
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.tracking.mlflow_store import store_uri
from anchorfl.pipeline.tracking.other_trackers import find_trackers
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import check_as_imported, version_of
from anchorfl.tuning.search.backup import RESUME, SweepBackup
from anchorfl.tuning.search.ledger import Event, Ledger
from anchorfl.tuning.search.results import Sweep
from anchorfl.tuning.search.search_space import Value, describe
from anchorfl.tuning.search.searchers import HyperParams, make_scheduler, make_searcher, most_trials
from anchorfl.tuning.search.study import Observer, Study, read_trials
from anchorfl.tuning.search.trial import TrialContext, bundles, final_experiment, point_experiment, train_trial
from anchorfl.tuning.search.tune_adapter import Budget, max_concurrent_trials, search
from anchorfl.tuning.sweep.final_runs import read_final_runs, run_final_runs
from anchorfl.tuning.sweep.optuna_file import OptunaFile
from anchorfl.tuning.sweep.plan import PLAN_FILE, SweepPlan, check_points
from anchorfl.tuning.sweep.progress import SweepProgress
from anchorfl.tuning.sweep.records import SweepRecords, as_trial
from anchorfl.tuning.sweep.report import write_report

LEDGER = "ledger.jsonl"


def run_sweep(plan: SweepPlan, folder: Path, log: Log = terminal.say) -> Sweep:
    """Run a sweep in ``folder``, or what is left of it. InputError on bad options or data.

    KeyboardInterrupt where Ctrl-C ended it early; everything that had finished is kept.
    """
    folder = folder.resolve()
    for experiment in plan.experiments.values():  # refused before anything is written
        store_uri(experiment.tracking.uri, folder)
        find_trackers(experiment.tracking.trackers)
        for plugin in plugins_of(experiment).values():
            check_as_imported(plugin)
    with ExitStack() as stack:
        stack.enter_context(lock_run(folder))
        sweep_backup = SweepBackup(plan.experiment.cluster.backup, folder, LEDGER, log)
        command = f"{RESUME} {shlex.quote(str(folder))}"
        stack.enter_context(ray_watch.if_ray_dies(command, folder / PLAN_FILE))
        stack.enter_context(ray_cluster.session(plan.experiment.cluster))
        at_once = max_concurrent_trials(_shares(plan), plan.options.concurrent)
        _check_folder(plan, folder)
        # Here and once: a trial that prepared data would wait for CPUs that the trials themselves hold.
        every = (*plan.seeds, *plan.fresh_seeds)
        everywhere = {
            name: {seed: make_run_spec(replace(experiment, seed=seed), log) for seed in every}
            for name, experiment in plan.experiments.items()
        }
        for name, of_seed in everywhere.items():
            if any(not run_spec.data().size("validation") for run_spec in of_seed.values()):
                raise InputError(
                    f"{name}: a sweep chooses by validation rows, and there are none: raise task.validation"
                )
        started = _SweepRun(plan, folder, everywhere, at_once, sweep_backup, log)
        started.records().check()
        plan.save(folder)
        return started.go()


def _shares(plan: SweepPlan) -> list[dict[str, float]]:
    """Return the resources of a trial. InputError where those of the presets differ."""
    first, *others = ((name, bundles(e, plan.options)) for name, e in plan.experiments.items())
    for name, shares in others:
        if shares != first[1]:
            raise InputError(f"trials of {first[0]} need {first[1]}, and those of {name} {shares}: sweep them apart")
    return first[1]


def _check_folder(plan: SweepPlan, folder: Path) -> None:
    """Raise InputError where final runs would be lost: they train on nodes that do not see the sweep's folder."""
    kept = plan.experiment.cluster.backup or not plan.options.finals or not driver_has_no_cpus()
    if not kept and not in_fresh_worker(os.path.isdir, str(folder)):
        raise InputError(
            f"final runs train on other nodes, which do not see {folder}, and would be lost: give --cluster.backup"
            " s3://BUCKET/runs, an --output on a disk that all nodes share, or --finals 0"
        )


@dataclass
class _SweepRun:
    """A start of a sweep."""

    plan: SweepPlan
    folder: Path
    """The sweep's folder, absolute."""
    run_specs: Mapping[str, Mapping[int, RunSpec]]
    """Preset -> seed -> data and class-name vectors, of the trials and the final runs."""
    at_once: int
    """Trials at a time."""
    sweep_backup: SweepBackup
    log: Log
    refused: list[str] = field(default_factory=list)
    """Errors of points that were drawn and that the options refused."""

    def go(self) -> Sweep:
        ledger = Ledger(self.folder / LEDGER)
        check_points(self.plan, ledger.path, ledger.events)
        count = most_trials(self.plan.options, self.plan.space, self.plan.preset_point)
        progress = SweepProgress(count, self.at_once, self.plan.options.rule, self.log, terminal.say_live)
        records = self.records()
        before = wall_seconds(ledger.events)
        versions = {name: version_of(name) for name in ("anchorfl", "optuna", "ray", "torch")}
        ledger.write({"event": "start", "time": time.time(), "versions": versions})
        began = time.time()
        records.begin()
        status: Status = "FAILED"
        try:
            plan = self.plan
            for_optuna = OptunaFile(
                self.folder,
                plan.space,
                plan.preset_point,
                plan.options.rule,
                ledger.events,
                self.log,
                two=bool(plan.options.against),
            )
            study = self._make_study(ledger, [records, progress, for_optuna, self.sweep_backup])
            study.replay()
            progress.start()
            budget = self._budget(study, lambda: before + time.time() - began)
            self._search(study, budget)
            view = self._conclude(records)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            records.end(status)
            self.sweep_backup.close()
        return view

    def _search(self, study: Study, budget: Budget) -> None:
        if not study.done and not budget.stop_all():
            context = self._trial_context(self.plan.seeds, self.folder / "trials")
            search(study, train_trial, context, _shares(self.plan), self.at_once, budget)
        if study.exhausted and self.refused:
            count, wanted = len(study.trials), self.plan.options.trials
            self.log(
                f"{count} trials in place of {wanted}: the options refused {len(self.refused)} points that were drawn,"
                f" the last with: {self.refused[-1]}"
            )
        if not study.done:
            if not budget.stop_all():
                raise KeyboardInterrupt
            self.log("the budget is spent: --resume with a larger one goes on where the search stands")

    def _conclude(self, records: SweepRecords) -> Sweep:
        """Make the final runs and the report; return the sweep with both."""
        plan, view, notes = self.plan, read_sweep(self.plan, self.folder), list[str]()
        if view.best is not None and plan.fresh_seeds:
            points = {_trial_name(view.best.number): dict(view.best.point)}
            if plan.options.reference:
                points[_trial_name(0)] = dict(plan.preset_point)
            count = len(points) * len(plan.fresh_seeds)
            self.log(
                f"trial {view.best.number} is chosen: {count} run{'s' if count > 1 else ''} in full on fresh seeds"
            )
            context = self._trial_context(plan.fresh_seeds, self.folder / "final")
            shares, register = _shares(plan), plan.options.register
            notes = run_final_runs(points, plan.fresh_seeds, context, shares, self.at_once, records, register)
            view = read_sweep(plan, self.folder)
        for path in (
            self.folder / "sweep.json",
            self.folder / LEDGER,
            *write_report(view, self.folder / "report", plan.text_of),
        ):
            records.artifact(path)
        for note in notes:
            self.log(note)
        return view

    def _trial_context(self, seeds: Sequence[int], folder: Path) -> TrialContext:
        plan = self.plan
        run_specs = {name: {seed: of[seed] for seed in seeds} for name, of in self.run_specs.items()}
        metric = f"validation/{plan.options.metric}"
        options = plan.options
        return TrialContext(
            run_specs, plan.names, str(folder), plan.rounds.whole, metric, options.slots, options.against
        )

    def _make_study(self, ledger: Ledger, observers: list[Observer]) -> Study:
        plan = self.plan
        known = all(d.holds(plan.preset_point[n]) for n, d in plan.space.items()) and plan.options.searcher != "grid"
        seed = seed_for(plan.experiment.seed, "sweep") % 2**32
        return Study(
            plan.space, dict(plan.preset_point), known, self._allowed, plan.options.trials, plan.rounds.whole,
            make_searcher(plan.options, plan.space, seed, plan.preset_point if known else None),
            make_scheduler(plan.options, plan.rounds), ledger, observers,
        )  # fmt: skip

    def _allowed(self, point: HyperParams) -> bool:
        """Return whether a run would take a point: FedAlign refuses q2 above q1, for example."""
        try:
            self._check(point)
        except InputError as error:
            self.refused.append(str(error))
            return False
        return True

    def _check(self, point: HyperParams) -> None:
        """Raise InputError where a run would not take a point, or it needs more than was made before the sweep."""
        experiment, run_spec = (
            self._experiment_of(point),
            self.run_specs[self.plan.preset_of(point)][self.plan.seeds[0]],
        )
        check_options(experiment, run_spec.data())
        head, of = experiment.method.head, run_spec.experiment.method.head
        if (head.concepts, head.named, head.prompt_length) != (of.concepts, of.named, of.prompt_length):
            raise InputError("it needs other vectors of the class names than its preset: sweep that preset apart")

    def _experiment_of(self, point: Mapping[str, object]) -> Experiment:
        experiment = self.plan.experiment_of(point)  # type: ignore[arg-type]  # an observer knows no values
        return point_experiment(experiment, self.plan.names, dict(point), experiment.seed)  # type: ignore[arg-type]

    def records(self) -> SweepRecords:
        """Return the records of the sweep and its trials, not begun."""
        plan, options = self.plan, self.plan.options
        params = {
            **{f"sweep.{k}": v for k, v in asdict(options).items()},
            **{f"space.{n}": describe(d) for n, d in plan.space.items()},
            "preset": ",".join(plan.experiments), "seeds": ",".join(map(str, plan.seeds)),
            "sweep.rounds": plan.rounds.whole, "sweep.grace": plan.rounds.grace,
        }  # fmt: skip
        run_specs = {name: {seed: of[seed] for seed in plan.seeds} for name, of in self.run_specs.items()}
        metric = f"validation/{options.metric}"
        return SweepRecords(self.folder, plan.experiment, run_specs, self._experiment_of, params, metric, self.log)

    def _budget(self, study: Study, seconds: object) -> Budget:
        options = self.plan.options
        shares = _shares(self.plan)
        price = sum(b.get("CPU", 0) * options.cpu_price + b.get("GPU", 0) * options.gpu_price for b in shares)

        def spent() -> tuple[float, float]:
            busy = sum(trial.records[trial.rounds]["seconds"] for trial in study.trials if trial.records)
            return seconds() / 3600, busy / 3600 * price  # type: ignore[operator]

        return Budget(options.hours, options.cost, spent)


def read_sweep(plan: SweepPlan, folder: Path) -> Sweep:
    """Read a sweep's folder as the report takes it; it can be read at any time, also while the sweep runs."""
    ledger = Ledger(folder / LEDGER)
    check_points(plan, ledger.path, ledger.events)
    options = plan.options
    view = Sweep(
        name=folder.name, preset=", ".join(plan.experiments), task=plan.experiment.task.name,
        method=", ".join(dict.fromkeys(experiment.method.name for experiment in plan.experiments.values())),
        space=plan.space, searcher=options.searcher, scheduler=options.scheduler, metric=options.metric,
        rule=options.rule, seeds=plan.seeds, against=options.against, rounds=plan.rounds.whole,
        trials=tuple(as_trial(trial) for trial in read_trials(ledger.events)),
        seconds=wall_seconds(ledger.events), notes=_notes(plan), fresh_seeds=plan.fresh_seeds,
        reference_wanted=plan.options.reference, final_runs_begun=(folder / "final").exists(),
    )  # fmt: skip
    if view.best is None:
        return view
    final = folder / "final"
    final_runs = read_final_runs(final, _trial_name(view.best.number), _digests(plan, view.best.point))
    if view.best.number == 0:  # the preset's own point was chosen
        return replace(view, final_runs=final_runs)
    reference_runs = read_final_runs(final, _trial_name(0), _digests(plan, plan.preset_point))
    return replace(view, final_runs=final_runs, reference_runs=reference_runs)


def _digests(plan: SweepPlan, point: Mapping[str, Value]) -> dict[int, str]:
    """Return the digests of a point's final runs: seed -> digest."""
    experiment = plan.experiment_of(point)
    return {s: digest(final_experiment(experiment, plan.names, dict(point), s)) for s in plan.fresh_seeds}


def wall_seconds(events: list[Event]) -> float:
    """Return the wall time of a sweep over all its starts, each up to its last event, in seconds."""
    total, began, last = 0.0, 0.0, 0.0
    for event in events:
        if event["event"] == "start":
            total += last - began
            began = event["time"]
        last = event["time"]
    return total + last - began


def _notes(plan: SweepPlan) -> tuple[str, ...]:
    full, short = plan.experiment.federation.rounds, plan.rounds.whole
    shortened = (f"Trials ran {short} rounds, the preset and the final runs {full}.",) if short != full else ()
    stops = plan.options.scheduler != "none"
    return (*shortened, *([f"No trial was stopped before round {plan.rounds.grace}."] if stops else []))


def _trial_name(number: int) -> str:
    return f"trial-{number:04d}"
