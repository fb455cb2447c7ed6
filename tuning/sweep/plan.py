"""The plan of a sweep, as a value and as ``sweep.json`` in its folder: a resumed sweep starts from it."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from anchorfl.pipeline.config.experiment import Experiment, plugins_of, redacted_tree, to_tree
from anchorfl.pipeline.config.idle_options import idle_options
from anchorfl.pipeline.config.presets import own_file, shipped_toml
from anchorfl.pipeline.config.schema import from_tree, options_of, to_toml, with_options
from anchorfl.pipeline.run.prepare import with_sections
from anchorfl.pipeline.storage.atomic_files import read_json, write_atomically
from anchorfl.pipeline.storage.places import (
    CODE,
    ENCODER,
    check_own_code,
    check_own_names,
    places_of,
    seal_of,
    seal_of_names,
    with_own_places,
)
from anchorfl.pipeline.storage.run_folder import CONFIG, RUNS, check_no_record
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import converted, parsed
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tasks.plugins import code_digest, names_code
from anchorfl.tasks.registry import task_of
from anchorfl.tuning.search.options import SweepOptions, TrialRounds, resolve_metric, resolve_rounds
from anchorfl.tuning.search.search_space import (
    PRESET,
    Choice,
    Dimension,
    MethodSpace,
    Range,
    Space,
    Value,
    declared_space,
    grid_points,
    none_as_text,
    resolve,
)

PLAN_FILE = "sweep.json"
TAKEN = {
    "output": "leave it out: the sweep has a folder of its own",
    "tracking.register": "give --register: the model of the first final run",
    "tracking.run_name": "leave it out: they are named after their points",
    "evaluation.test": "leave it out: trials never score the test split, final runs do once",
}
"""Options of runs that a sweep sets itself -> what to do."""
SHARED = "task.", "evaluation.", "cluster.", "tracking.", "federation.rounds"
"""Options, or how they begin, that all presets of a sweep have in common."""


class SavedPlan(TypedDict):
    """The content of ``sweep.json``."""

    preset: str
    options: dict[str, Any]
    """Fields of ``SweepOptions``."""
    space: dict[str, dict[str, Any]]
    """Searched name -> the fields of its dimension, and ``kind``: Choice or Range."""
    experiment: dict[str, Any]
    others: NotRequired[dict[str, dict[str, Any]]]
    """Further presets: name -> ``experiment`` and ``seal``, as here."""
    text: str
    seal: NotRequired[str]
    """Seal of the places that the experiment names (``pipeline/storage/places.py``)."""
    code: NotRequired[dict[str, str]]
    """Digests of plug-ins, by what they are."""
    space_seal: NotRequired[str]
    """Seal of the modules that the space names."""
    space_code: NotRequired[dict[str, str]]
    """Digests of plug-ins that are values of the space."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep before its first trial."""

    preset: str
    """Name or path of the first preset; data and method where these are not a preset's."""
    experiment: Experiment
    """The first preset with its overrides."""
    space: Space
    """Searched name -> dimension."""
    options: SweepOptions
    """Options as given, the metric by its name."""
    text: str
    """The first preset as TOML, overrides included."""
    others: Mapping[str, Experiment] = field(default_factory=dict)
    """Further presets with the overrides, on the same data: their names are a dimension of the space."""

    def __post_init__(self) -> None:
        if self.experiment.task.validation == 0:
            raise InputError("a sweep chooses on the validation split: set task.validation above 0")
        if self.experiment.evaluation.patience:
            raise InputError("a sweep ends trials by its scheduler: set evaluation.patience to 0")
        try:
            self.options.check_together()
            for experiment in self.experiments.values():
                replace(experiment, tracking=replace(experiment.tracking, register=self.options.register))
            metric = resolve_metric(self.options, self.experiment.evaluation.metrics)
        except ValueError as error:
            raise InputError(str(error)) from error
        object.__setattr__(self, "options", replace(self.options, metric=metric))
        for name, other in self.others.items():
            _check_alike(self.preset, self.experiment, name, other)
        with_sections(self.experiment, seed=self.experiment.seed + self.options.seeds + self.options.finals - 1)
        _ = self.rounds, self.names  # say here what does not fit

    @property
    def experiments(self) -> dict[str, Experiment]:
        """Preset -> experiment, the first one first."""
        return {self.preset: self.experiment, **self.others}

    def preset_of(self, point: Mapping[str, object]) -> str:
        """Return the name of a point's preset."""
        return str(point.get(PRESET, self.preset))

    def experiment_of(self, point: Mapping[str, Value]) -> Experiment:
        """Return the experiment of a point's preset."""
        return self.experiments[self.preset_of(point)]

    def text_of(self, point: Mapping[str, Value]) -> str:
        """Return a point's preset as TOML."""
        name = self.preset_of(point)
        return self.text if name == self.preset else preset_text(name, self.others[name], overridden=True)

    @property
    def names(self) -> dict[str, str]:
        """Searched name -> option; presets, which are no option, have their own name."""
        first, *others = (
            {name: resolve(experiment, name) for name in self.space if name != PRESET}
            for experiment in self.experiments.values()
        )
        if len({*first.values()}) < len(first):
            raise InputError("--space: two of its names are one option; take one out")
        if any(other != first for other in others):
            raise InputError("--space: names an option that means another one in one of the presets; write it in full")
        return first | ({PRESET: PRESET} if PRESET in self.space else {})

    @property
    def preset_point(self) -> dict[str, Value]:
        """The preset's own point: searched name -> value."""
        known = options_of(self.experiment)
        return {
            name: self.preset if name == PRESET else none_as_text(known[option]) for name, option in self.names.items()
        }

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the search: the preset's and the next ones."""
        return tuple(range(self.experiment.seed, self.experiment.seed + self.options.seeds))

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """Seeds of the final runs: those after the search's."""
        first = self.experiment.seed + self.options.seeds
        return tuple(range(first, first + self.options.finals))

    @property
    def rounds(self) -> TrialRounds:
        """Lengths of a trial. InputError where they do not fit each other."""
        declared = [declared_space(type(experiment.method)) for experiment in self.experiments.values()]
        warm_up = max((space or MethodSpace({})).warm_up for space in declared)
        try:
            return resolve_rounds(self.options, self.experiment.federation.rounds, warm_up)
        except ValueError as error:
            raise InputError(str(error)) from error

    def save(self, folder: Path) -> None:
        """Write ``sweep.json``."""
        content = {
            "preset": self.preset,
            "options": asdict(self.options),
            "space": {n: {"kind": type(d).__name__, **asdict(d)} for n, d in self.space.items()},
            "space_seal": seal_of_names(_named_in(self.space)),
            "space_code": _code_in_space(self),
            "experiment": redacted_tree(self.experiment),
            "seal": seal_of(self.experiment),
            "code": _code_of(self.experiment),
            **({"others": {n: _sealed(e) for n, e in self.others.items()}} if self.others else {}),
            "text": self.text,
        }
        write_atomically(folder / PLAN_FILE, json.dumps(content, indent=1).encode())


def on_one_split(experiment: Experiment) -> Experiment:
    """Return the experiment with the test rows of its own seed in runs of all seeds: those of another seed's final run
    would be rows that the search had trained on, or chosen by.
    """
    task, seed = experiment.task, experiment.seed
    folds = 0 if task.file else task_of(task).folds  # a user's table has none
    fold = seed % folds if folds and task.fold == -1 else task.fold
    split_seed = seed if task.split_seed is None else task.split_seed
    return replace(experiment, task=replace(task, fold=fold, split_seed=split_seed))


def check_searched(plan: SweepPlan) -> None:
    """Raise InputError where a searched option does nothing, whatever the others are: its trials would be equal."""
    every = list[Experiment]()
    for experiment in plan.experiments.values():
        every.append(experiment)
        for name, option in plan.names.items():
            for value in plan.space[name].grid() if name != PRESET else ():
                with suppress(ValueError):  # a point that the options refuse is left out
                    every.append(with_options(experiment, {option: value}))
    for name, option in plan.names.items():
        idle = [idle_options(experiment).get(option, "") for experiment in every]
        if all(idle):
            raise InputError(f"--space {name}: {option} does nothing here, it belongs to {idle[0]}: leave it out")


def check_typed(options: Collection[str]) -> None:
    """Raise InputError where an option is given that a sweep sets for its runs."""
    for option in TAKEN.keys() & set(options):
        raise InputError(f"--{option}: a sweep sets it for its runs; {TAKEN[option]}")


def on_whole_grid(plan: SweepPlan) -> SweepPlan:
    """Return the plan with as many trials as its grid has points."""
    trials = grid_points(plan.space, plan.preset_point)
    return replace(plan, options=replace(plan.options, trials=trials))


def _sealed(experiment: Experiment) -> dict[str, Any]:
    return {"experiment": redacted_tree(experiment), "seal": seal_of(experiment), "code": _code_of(experiment)}


def _code_of(experiment: Experiment) -> dict[str, str]:
    """Return the digest of each plug-in's source, by what it is (``plugins_of``)."""
    return {word: code_digest(of) for word, of in plugins_of(experiment).items()}


def _named_in(space: Space) -> dict[str, str]:
    """Return the values of a space that name modules, by searched name."""
    named = {
        name: [value for value in d.values if isinstance(value, str) and names_code(value)]
        for name, d in space.items()
        if isinstance(d, Choice)
    }
    return {name: ",".join(values) for name, values in named.items() if values}


def _code_in_space(plan: SweepPlan) -> dict[str, str]:
    """Return the digest of each plug-in that is a value of the space, by its option and name."""
    out = dict[str, str]()
    for name, values in _named_in(plan.space).items():
        for value in values.split(","):
            with suppress(ValueError):  # a point that the options refuse is left out
                code = _code_of(with_options(plan.experiment, {plan.names[name]: value}))
                out |= {f"{word} {value}": digest for word, digest in code.items()}
    return out


def check_points(plan: SweepPlan, ledger: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Raise InputError where the point of a trial lies outside of the space: it may name anything."""
    known = {
        name: [*(none_as_text(options_of(e)[option]) for e in plan.experiments.values()), plan.preset_point[name]]
        for name, option in plan.names.items()
        if name != PRESET
    }
    seeds = {str(seed) for seed in plan.seeds}
    for event in events:
        if event["event"] == "result" and event["record"]["scores"].keys() != seeds:
            raise InputError(f"{ledger}: trial {event['trial']} has scores of other seeds: restore it from a copy")
        point = event["point"] if event["event"] == "suggest" else {}
        if event["event"] == "suggest" and (lacking := sorted(plan.space.keys() - point.keys())):
            raise InputError(f"{ledger}: trial {event['trial']} has no {lacking[0]}: restore it from a copy")
        for name, value in point.items():
            if name not in plan.space or not (plan.space[name].holds(value) or value in known.get(name, ())):
                raise InputError(
                    f"{ledger}: trial {event['trial']} has {name} = {value!r}, which is no point of the sweep's space:"
                    " restore it from a copy"
                )


def resumed_plan(folder: Path, changes: Mapping[str, Any], places: Mapping[str, str], copy: str = "") -> SweepPlan:
    """Read the plan of a sweep to go on with, with the places that the user types now.

    copy: where the folder was fetched from. InputError as ``load_plan``, where the plan names places that this user
    has not named, and where a plug-in is another one than its trials were made with.
    """
    plan, path = load_plan(folder, changes, places), folder / PLAN_FILE
    saved = read_json(path)

    def own(experiment: Experiment, part: Mapping[str, Any]) -> Experiment:
        now = _code_of(experiment)
        if edited := [word for word, digest in part.get("code", {}).items() if now.get(word) != digest]:
            raise InputError(
                f"{path}: the source or files of its {edited[0].replace('_', ' ')} were edited since it began:"
                " put them back, or search anew in another --output"
            )
        return with_own_places(experiment, str(part.get("seal", "")), path, places, copy)

    now = _code_in_space(plan)
    if edited := [word for word, digest in saved.get("space_code", {}).items() if now.get(word) != digest]:
        raise InputError(
            f"{path}: the source or files of its {edited[0].replace('_', ' ')} were edited since it began: put them"
            " back, or search anew in another --output"
        )
    others = {name: own(e, saved["others"][name]) for name, e in plan.others.items()}
    return replace(plan, experiment=own(plan.experiment, saved), others=others)


def load_plan(folder: Path, changes: Mapping[str, Any], typed: Mapping[str, str] | None = None) -> SweepPlan:
    """Read the plan of a sweep's folder. changes: options that a resumption may change; typed: places, as in
    ``check_own_code``. InputError: there is none, or it names code of others.
    """
    try:
        text = read_text_bytes(folder / PLAN_FILE)
    except FileNotFoundError as error:
        known = sorted(p.parent.name for p in RUNS.glob(f"*/{PLAN_FILE}"))
        raise InputError(f"{folder} holds no sweep; sweeps in {RUNS}/: {', '.join(known) or 'none'}") from error
    content: SavedPlan = parsed(text, SavedPlan, folder / PLAN_FILE, "restore it from a copy")
    fixed = {f.name for f in fields(SweepOptions)} - {"trials", "hours", "cost", "cpu_price", "gpu_price", "finals",
                                                      "reference", "concurrent", "register"}  # fmt: skip
    try:
        old: SweepOptions = converted(content["options"], SweepOptions, "options")
    except ValueError as error:
        raise InputError(f"{folder / PLAN_FILE} is damaged ({error}); restore it from a copy") from error
    for name in fixed & set(changes):
        if changes[name] != (was := getattr(old, name)):
            raise InputError(f"--{name} {changes[name]}: the sweep was started with {was}, which a resumed one keeps")
    others = {} if (found := content.get("others")) is None else found
    for entry in ({"experiment": content["experiment"], "seal": content.get("seal", "")}, *others.values()):
        tree, seal = entry.get("experiment"), str(entry.get("seal", ""))
        if not isinstance(tree, dict):
            raise InputError(f"{folder / PLAN_FILE} is damaged (others); restore it from a copy")
        check_own_code(tree, seal, folder / PLAN_FILE, typed or {})
    try:
        options = replace(old, **changes)
        space = {name: _dimension(dict(entry)) for name, entry in content["space"].items()}
    except ValueError as error:
        raise InputError(f"{folder / PLAN_FILE}: {error}") from error
    check_own_names(_named_in(space), str(content.get("space_seal", "")), folder / PLAN_FILE)
    _check_text(content, folder / PLAN_FILE)
    try:
        more = {name: from_tree(entry["experiment"]) for name, entry in others.items()}
        return SweepPlan(content["preset"], from_tree(content["experiment"]), space, options, content["text"], more)
    except ValueError as error:  # an InputError too: these say which option, and not where it stands
        raise InputError(f"{folder / PLAN_FILE}: {error}") from error


def _check_text(content: SavedPlan, path: Path) -> None:
    """Raise InputError where the text of the preset, of which a report makes others, is none, or names other code."""
    try:
        tree = tomllib.loads(content["text"])
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is damaged (text: {error}); restore it from a copy") from error
    tables = [name for name, part in content["experiment"].items() if isinstance(part, dict)]
    if odd := [name for name in tables if not isinstance(tree.get(name, {}), dict)]:
        raise InputError(f"{path} is damaged (text: {odd[0]} is no table); restore it from a copy")
    own, named = places_of(content["experiment"]), places_of(tree)
    for name in (*CODE, ENCODER):
        if named.get(name) not in (None, own.get(name)):
            raise InputError(f"{path}: its text has {name} = {named[name]!r}, and its options have another")


def _check_alike(first: str, experiment: Experiment, name: str, other: Experiment) -> None:
    """Raise InputError where two presets cannot stand in one sweep, whose trials have the same data and rounds."""
    sides = [options_of(experiment), options_of(other)]
    for option in sorted(sides[0].keys() & sides[1].keys()):
        mine, its = (side[option] for side in sides)
        if mine != its and (option.startswith(SHARED) or option == "seed"):
            raise InputError(
                f"{first} has {option} = {mine!r} and {name} {its!r}: presets of one sweep have the same data, rounds"
                f" and scores; give --{option} VALUE"
            )


def preset_text(preset: str, experiment: Experiment, overridden: bool) -> str:
    """Return the preset as TOML.

    It is the preset's own text, or the resolved options where it extends another, holds a password, which no record
    has, or options were overridden.
    """
    secret = to_tree(experiment) != redacted_tree(experiment)
    if not (overridden or secret):
        path = own_file(preset)
        text = shipped_toml(preset) if path is None else path.read_text(encoding="utf-8")
        if "extends" not in tomllib.loads(text):
            return text
    return f"# {preset}, with options from the command line.\n{to_toml(experiment)}"


def new_sweep_folder(preset: str, output: str) -> Path:
    """Return the folder of a new sweep: ``output``, or the first free one below ``runs/``. InputError: it holds one."""
    if output:
        folder = Path(output)
        if (folder / PLAN_FILE).exists():
            command = shlex.join(["anchorfl", "sweep", "--resume", output])
            raise InputError(f"{folder} holds a sweep already: {command}, or another --output")
        if (folder / CONFIG).exists():
            raise InputError(f"{folder} holds a run: give another --output")
        check_no_record(folder, ("table", "trial"))
        return folder
    stem = f"sweep-{Path(preset).stem if preset.endswith('.toml') else preset.replace('/', '-')}"
    return next(f for n in range(1, 10_000) if not (f := RUNS / f"{stem}-{n}").exists())


def _dimension(entry: dict[str, Any]) -> Dimension:
    kind: Any = {"Choice": Choice, "Range": Range}.get(str(entry.pop("kind", "")))
    if kind is None:
        raise ValueError("space: its kind must be Choice or Range")
    dimension: Dimension = converted(entry, kind, "space")
    return dimension
