"""Search the hyper-parameters of every method in every setting of the suite, by the same number of trials each.

    python -m benchmarks.suite_search suite-search              # what is missing there; hours on two cores
    python -m benchmarks.suite_search suite-search --show       # the chosen values, as the presets' files take them
    python -m benchmarks.suite_search suite-search --show --keep benchmarks/results/searches-suite.tar.xz

    mkdir kept && tar -xf benchmarks/results/searches-suite.tar.xz -C kept
    python -m benchmarks.suite_search kept --show               # those of the searches whose records are kept

A preset of ``tuning/presets/suite.toml`` is one sweep over its method's own space (``tuning/search/search_space.py``):
``TRIALS`` points, the method's defaults first, the others random (TPE models from its eleventh on), stopped early by
ASHA, and chosen by the mean validation score of the last five rounds. Its seed is none of the suite's. The test split
is not scored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.presets import read_preset, shipped
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import Value, space_of
from anchorfl.tuning.search.searchers import most_trials
from anchorfl.tuning.sweep.plan import SweepPlan
from anchorfl.tuning.sweep.sweep import LEDGER, read_sweep, run_sweep
from benchmarks import keep_records

SEED = 4320
TRIALS = 8
DEFAULTS = ("anchor",)
"""Rows that have one set of options in all settings."""
SECONDS = "time/round"


def plans(data: list[str], rows: list[str]) -> Iterator[SweepPlan]:
    """Yield the sweep of every preset of the suite. data, rows: of these federations and rows alone; empty: all."""
    for name, preset in shipped().presets.items():
        in_suite = preset.paper is not None and preset.paper.name == "suite" and preset.row not in DEFAULTS
        if not in_suite or (data and preset.federation.name not in data) or (rows and preset.row not in rows):
            continue
        row = read_preset(name)
        defaults = type(row.method)()  # of what is searched, whatever was found before; the rest as the preset has it
        searched = {option: getattr(defaults, option) for option in space_of(row) if hasattr(defaults, option)}
        method = replace(row.method, **searched)
        setting = read_preset(f"{preset.federation.name}/{DEFAULTS[0]}")
        experiment = replace(setting, method=method, seed=SEED, tracking=TrackingOptions(uri="none"))
        rounds = experiment.federation.rounds
        options = SweepOptions(
            trials=TRIALS, seeds=1, finals=0, rule="mean5", grace=max(5, rounds // 3), reduction=3, slots=1
        )
        yield SweepPlan(name, experiment, space_of(experiment, []), options, to_toml(experiment))


def folder_of(out: Path, plan: SweepPlan) -> Path:
    """Return the folder of a sweep."""
    return out / plan.preset.replace("/", "-")


def best(out: Path, plan: SweepPlan) -> Mapping[str, Value] | None:
    """Return the best point of a sweep, searched name -> value; None where not all of its trials have ended."""
    sweep = read_sweep(plan, folder_of(out, plan))
    ended = [trial for trial in sweep.trials if trial.status != "running"]
    wanted = most_trials(plan.options, plan.space, plan.preset_point)
    return sweep.best.point if len(ended) >= wanted and sweep.best is not None else None


def lines_of(plan: SweepPlan, point: Mapping[str, Value]) -> list[str]:
    """Return the values of a point that are not the defaults, as lines of the federation's file."""
    preset = shipped().presets[plan.preset]
    variant = preset.federation.name.removeprefix(f"{preset.federation.file}-")
    lines = []
    for name, value in point.items():
        if value != plan.preset_point[name]:
            text = f'"{value}"' if isinstance(value, str) else f"{value}".lower()
            lines.append(f"{plan.names[name]} = {text}")
    return ["", f'[variants."{variant}".rows.{preset.row}]', *lines] if lines else []


def slim(ledger: Path) -> bytes:
    """Return a sweep's ledger with the scores of its trials, and the seconds of their rounds alone."""
    lines = []
    for event in events_of(ledger):
        if event["event"] == "result":
            record = event["record"]
            spent = {SECONDS: round(record["metrics"][SECONDS], 2)}
            event |= {"record": {"score": record["score"], "scores": record["scores"], "metrics": spent}}
        lines.append(json.dumps(event | {"time": round(event["time"], 1)}))
    return ("\n".join(lines) + "\n").encode()


def seconds(ledger: Path) -> float:
    """Return the seconds of all rounds of a sweep."""
    return sum(e["record"]["metrics"][SECONDS] for e in events_of(ledger) if e["event"] == "result")


def events_of(ledger: Path) -> list[dict[str, Any]]:
    """Return the events of a ledger."""
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the sweeps")
    parser.add_argument("--data", nargs="+", default=[], help="federations")
    parser.add_argument("--rows", nargs="+", default=[])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--keep", type=Path, help="archive that takes what the choice was made by, .tar.xz")
    options = parser.parse_args()
    every = list(plans(options.data, options.rows))
    missing = [] if options.show else [plan for plan in every if best(options.out, plan) is None]
    if missing:
        with ray_cluster.session(missing[0].experiment.cluster):
            for number, plan in enumerate(missing):
                print(f"{number + 1} of {len(missing)}: {plan.preset}", flush=True)
                run_sweep(plan, folder_of(options.out, plan))
    found = {plan.preset: (plan, point) for plan in every if (point := best(options.out, plan)) is not None}
    for plan, point in found.values():
        print("\n".join(lines_of(plan, point)))
    ledgers = [folder_of(options.out, plan) / LEDGER for plan, _ in found.values()]
    print(f"# {len(ledgers)} sweeps, {sum(map(seconds, ledgers)) / 3600:.2f} hours of rounds")
    if options.keep is not None and found:
        kept = {ledger.parent.name: {LEDGER: slim(ledger)} for ledger in ledgers}
        keep_records.write(options.keep, keep_records.read(options.keep) | kept)


if __name__ == "__main__":
    main()
