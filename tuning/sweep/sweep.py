"""A sweep from preset to report: search on validation, choose by a named rule, run the choice on fresh seeds.

The folder: ``sweep.json`` (what was asked), ``ledger.jsonl`` (what happened), ``trials/0000/seed-0/`` and so on (runs
in short), ``final/trial-0007-seed-2/`` (the choice in full), ``report/``. MLflow gets it all from there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from anchorfl.pipeline.algorithm.seeds import seed_for
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.experiment import Experiment, digest
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.provenance import version_of
from anchorfl.pipeline.storage.run_folder import lock_run
from anchorfl.pipeline.storage.run_record import Status
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.backup import SweepBackup
from anchorfl.tuning.search.ledger import Event, Ledger
from anchorfl.tuning.search.results import Sweep
from anchorfl.tuning.search.search_space import Value, describe
from anchorfl.tuning.search.searchers import Point, make_scheduler, make_searcher, most_trials
from anchorfl.tuning.search.study import Conductor, Observer, read_entries
from anchorfl.tuning.search.trial import Work, bundles, final_experiment, point_experiment, train_trial
from anchorfl.tuning.search.tune_adapter import Budget, room, search
from anchorfl.tuning.sweep.final_runs import read_finals, run_finals
from anchorfl.tuning.sweep.plan import Log, Plan
from anchorfl.tuning.sweep.progress import Watch
from anchorfl.tuning.sweep.records import Records, as_trial
from anchorfl.tuning.sweep.report import write_report

LEDGER = "ledger.jsonl"


def run_sweep(plan: Plan, folder: Path, log: Log = print) -> Sweep:
    """Run a sweep in ``folder``, or what is left of it. InputError on bad options or data.

    KeyboardInterrupt where Ctrl-C ended it early; everything that had finished is kept.
    """
    folder = folder.resolve()
    with ExitStack() as stack:
        stack.enter_context(lock_run(folder))
        sweep_backup = SweepBackup(plan.experiment.cluster.backup, folder, LEDGER, log)
        if ray_cluster.start(plan.experiment.cluster):
            stack.callback(ray_cluster.stop)
        at_once = room(bundles(plan.experiment.cluster, plan.options), plan.options.concurrent)
        # Here and once: a trial that prepared data would wait for CPUs that the trials themselves hold.
        everywhere = {s: make_run_spec(replace(plan.experiment, seed=s), log) for s in (*plan.seeds, *plan.fresh)}
        started = _Run(plan, folder, everywhere, at_once, sweep_backup, log)
        started.records().check()
        plan.save(folder)
        return started.go()


@dataclass
class _Run:
    """One start of a sweep."""

    plan: Plan
    folder: Path
    run_specs: Mapping[int, RunSpec]
    at_once: int
    sweep_backup: SweepBackup
    log: Log
    refused: list[str] = field(default_factory=list)
    """Why the options refused points that were drawn."""

    def go(self) -> Sweep:
        ledger = Ledger(self.folder / LEDGER)
        count = most_trials(self.plan.options, self.plan.space, self.plan.own)
        watch = Watch(count, self.at_once, self.log, live if sys.stdout.isatty() else None)
        records = self.records()
        before = seconds_of(ledger.events)
        ledger.write({"event": "start", "time": time.time(), "versions": _versions()})
        began = time.time()
        records.begin()
        status: Status = "FAILED"
        try:
            conductor = self._conductor(ledger, [records, watch, self.sweep_backup])
            conductor.replay()
            watch.start()
            budget = self._budget(conductor, lambda: before + time.time() - began)
            self._search(conductor, budget)
            view = self._conclude(records)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            records.end(status)
            self.sweep_backup.close()
        return view

    def _search(self, conductor: Conductor, budget: Budget) -> None:
        o, cluster_options = self.plan.options, self.plan.experiment.cluster
        if not conductor.done and not budget.stop_all():
            run_specs = {seed: self.run_specs[seed] for seed in self.plan.seeds}
            work = self._work(run_specs, self.folder / "trials")
            search(conductor, train_trial, work, bundles(cluster_options, o), self.at_once, budget)
        if conductor.exhausted and self.refused:
            count, wanted = len(conductor.entries), self.plan.options.trials
            self.log(
                f"{count} trials in place of {wanted}: the options refused {len(self.refused)} points that were drawn,"
                f" the last with: {self.refused[-1]}"
            )
        if not conductor.done:
            if not budget.stop_all():
                raise KeyboardInterrupt
            self.log("the budget is spent: --resume with a larger one goes on where the search stands")

    def _conclude(self, records: Records) -> Sweep:
        """Final runs and report."""
        plan, view, notes = self.plan, view_of(self.plan, self.folder), list[str]()
        if view.best is not None and plan.fresh:
            points = {_word(view.best.number): dict(view.best.point)}
            if plan.options.reference:
                points[_word(0)] = dict(plan.own)
            self.log(f"trial {view.best.number} is chosen: {len(points) * len(plan.fresh)} runs in full on fresh seeds")
            run_specs = {seed: self.run_specs[seed] for seed in plan.fresh}
            work, shares = self._work(run_specs, self.folder / "final"), bundles(plan.experiment.cluster, plan.options)
            notes = run_finals(points, plan.fresh, work, shares, self.at_once, records, plan.options.register)
            view = view_of(plan, self.folder)
        for path in (
            self.folder / "sweep.json",
            self.folder / LEDGER,
            *write_report(view, self.folder / "report", plan.text),
        ):
            records.artifact(path)
        for note in notes:
            self.log(note)
        return view

    def _work(self, run_specs: Mapping[int, RunSpec], folder: Path) -> Work:
        plan = self.plan
        metric = f"validation/{plan.options.metric}"
        return Work(run_specs, plan.names, str(folder), plan.rounds.whole, metric, plan.options.slots)

    def _conductor(self, ledger: Ledger, observers: list[Observer]) -> Conductor:
        plan = self.plan
        known = all(d.holds(plan.own[n]) for n, d in plan.space.items()) and plan.options.searcher != "grid"
        seed = seed_for(plan.experiment.seed, "sweep") % 2**32
        return Conductor(
            plan.space, dict(plan.own), known, self._allowed, plan.options.trials, plan.rounds.whole,
            make_searcher(plan.options, plan.space, seed, plan.own if known else None),
            make_scheduler(plan.options, plan.rounds), ledger, observers,
        )  # fmt: skip

    def _allowed(self, point: Point) -> bool:
        """Whether the options take a point: FedAlign refuses q2 above q1, for example."""
        try:
            self._experiment_of(point)
        except InputError as error:
            self.refused.append(str(error))
            return False
        return True

    def _experiment_of(self, point: Mapping[str, object]) -> Experiment:
        return point_experiment(self.plan.experiment, self.plan.names, dict(point), self.plan.experiment.seed)  # type: ignore[arg-type]

    def records(self) -> Records:
        """The records of the sweep and its trials."""
        plan, o = self.plan, self.plan.options
        about = {
            **{f"sweep.{k}": v for k, v in asdict(o).items()},
            **{f"space.{n}": describe(d) for n, d in plan.space.items()},
            "preset": plan.preset, "seeds": ",".join(map(str, plan.seeds)), "sweep.rounds": plan.rounds.whole,
            "sweep.grace": plan.rounds.grace,
        }  # fmt: skip
        run_specs = {seed: self.run_specs[seed] for seed in plan.seeds}
        metric = f"validation/{o.metric}"
        return Records(self.folder, plan.experiment, run_specs, self._experiment_of, about, metric, self.log)

    def _budget(self, conductor: Conductor, seconds: object) -> Budget:
        o = self.plan.options
        shares = bundles(self.plan.experiment.cluster, o)
        price = sum(b.get("CPU", 0) * o.cpu_price + b.get("GPU", 0) * o.gpu_price for b in shares)

        def spent() -> tuple[float, float]:
            busy = sum(e.records[e.rounds]["seconds"] for e in conductor.entries if e.records)
            return seconds() / 3600, busy / 3600 * price  # type: ignore[operator]

        return Budget(o.hours, o.cost, spent)


def view_of(plan: Plan, folder: Path) -> Sweep:
    """What a sweep's folder holds, as the report takes it; readable at any time, also while the sweep runs."""
    ledger = Ledger(folder / LEDGER)
    o = plan.options
    view = Sweep(
        name=folder.name, preset=plan.preset, task=plan.experiment.task.name, method=plan.experiment.method.name,
        space=plan.space, searcher=o.searcher, scheduler=o.scheduler, metric=o.metric, rule=o.rule, seeds=plan.seeds,
        rounds=plan.rounds.whole, trials=tuple(as_trial(e) for e in read_entries(ledger.events)),
        seconds=seconds_of(ledger.events), notes=_notes(plan), fresh=plan.fresh,
        compared=plan.options.reference, tested=(folder / "final").exists(),
    )  # fmt: skip
    if view.best is None:
        return view
    finals = read_finals(folder / "final", _word(view.best.number), _digests(plan, view.best.point))
    references = read_finals(folder / "final", _word(0), _digests(plan, plan.own)) if view.best.number else ()
    return replace(view, finals=finals, references=references)


def _digests(plan: Plan, point: Mapping[str, Value]) -> dict[int, str]:
    """Of the final runs of a point, by seed."""
    return {s: digest(final_experiment(plan.experiment, plan.names, dict(point), s)) for s in plan.fresh}


def seconds_of(events: list[Event]) -> float:
    """Wall time of a sweep over all its starts, each up to its last event."""
    total, began, last = 0.0, 0.0, 0.0
    for event in events:
        if event["event"] == "start":
            total += last - began
            began = event["time"]
        last = event["time"]
    return total + last - began


def _notes(plan: Plan) -> tuple[str, ...]:
    full, short = plan.experiment.federation.rounds, plan.rounds.whole
    shortened = (f"Trials ran {short} rounds, the preset and the final runs {full}.",) if short != full else ()
    return (*shortened, f"No trial was stopped before round {plan.rounds.grace}.")


def _word(number: int) -> str:
    return f"trial-{number:04d}"


def _versions() -> dict[str, str]:
    return {name: version_of(name) for name in ("anchorfl", "optuna", "ray", "torch")}


def live(line: str) -> None:
    """Rewrite the terminal's last line."""
    print(f"\r\x1b[2K{line}", end="", flush=True)
