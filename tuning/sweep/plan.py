"""What a sweep was asked for, as a value and as ``sweep.json`` in its folder: what a resumed sweep starts from."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from anchorfl.pipeline.config.experiment import Experiment, recorded_tree, to_tree
from anchorfl.pipeline.config.presets import own_file, shipped_toml
from anchorfl.pipeline.config.schema import from_tree, options_of, to_toml
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.run_folder import RUNS
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import converted, parsed
from anchorfl.tuning.search.options import Rounds, SweepOptions, resolve_metric, resolve_rounds
from anchorfl.tuning.search.search_space import SPACES, Choice, Dimension, Range, Space, Value, none_as_text, resolve

Log = Callable[[str], None]
FILE = "sweep.json"


class Saved(TypedDict):
    """What ``sweep.json`` holds."""

    preset: str
    options: dict[str, Any]
    space: dict[str, dict[str, Any]]
    experiment: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep before its first trial. options: the metric by its name; text: the preset as TOML, overrides included."""

    preset: str
    experiment: Experiment
    space: Space
    options: SweepOptions
    text: str

    def __post_init__(self) -> None:
        if self.experiment.task.validation == 0:
            raise InputError("a sweep chooses on the validation split: set task.validation above 0")
        try:
            metric = resolve_metric(self.options, self.experiment.evaluation.metrics)
        except ValueError as error:
            raise InputError(str(error)) from error
        object.__setattr__(self, "options", replace(self.options, metric=metric))
        _ = self.rounds, self.names  # say here what does not fit

    @property
    def names(self) -> dict[str, str]:
        """Searched name -> option."""
        return {name: resolve(self.experiment, name) for name in self.space}

    @property
    def own(self) -> dict[str, Value]:
        """The preset's own point."""
        known = options_of(self.experiment)
        return {name: none_as_text(known[option]) for name, option in self.names.items()}

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the search: the preset's and the next ones."""
        return tuple(range(self.experiment.seed, self.experiment.seed + self.options.seeds))

    @property
    def fresh(self) -> tuple[int, ...]:
        """Seeds of the final runs: those after the search's."""
        first = self.experiment.seed + self.options.seeds
        return tuple(range(first, first + self.options.finals))

    @property
    def rounds(self) -> Rounds:
        """Lengths of a trial. InputError where they do not fit each other."""
        warm_up = SPACES[self.experiment.method.name].warm_up
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
            "experiment": recorded_tree(self.experiment),
            "text": self.text,
        }
        write_atomically(folder / FILE, json.dumps(content, indent=1).encode())


def load_plan(folder: Path, changes: Mapping[str, Any]) -> Plan:
    """The plan of a sweep's folder; ``changes``: options that a resumption may change. InputError: there is none."""
    try:
        text = (folder / FILE).read_bytes()
    except FileNotFoundError as error:
        known = sorted(p.parent.name for p in RUNS.glob(f"*/{FILE}"))
        raise InputError(f"{folder} holds no sweep; sweeps in {RUNS}/: {', '.join(known) or 'none'}") from error
    content: Saved = parsed(text, Saved, folder / FILE, "restore it from a copy")
    fixed = {f.name for f in fields(SweepOptions)} - {"trials", "hours", "cost", "cpu_price", "gpu_price", "finals",
                                                      "reference", "concurrent", "register"}  # fmt: skip
    try:
        old: SweepOptions = converted(content["options"], SweepOptions, "options")
    except ValueError as error:
        raise InputError(f"{folder / FILE} is damaged ({error}); restore it from a copy") from error
    for name in fixed & set(changes):
        if changes[name] != (was := getattr(old, name)):
            raise InputError(f"--{name} {changes[name]}: the sweep was started with {was}, which a resumed one keeps")
    try:
        options = replace(old, **changes)
        space = {name: _dimension(dict(entry)) for name, entry in content["space"].items()}
        return Plan(content["preset"], from_tree(content["experiment"]), space, options, content["text"])
    except ValueError as error:  # an InputError too: these say which option, and not where it stands
        raise InputError(f"{folder / FILE}: {error}") from error


def preset_text(preset: str, experiment: Experiment, overridden: bool) -> str:
    """The preset as TOML: its own text, or the resolved options where it extends another, holds a password, which no
    record has, or options were overridden.
    """
    path = own_file(preset)
    text = shipped_toml(preset) if path is None else path.read_text(encoding="utf-8")
    secret = to_tree(experiment) != recorded_tree(experiment)
    if not (overridden or secret or "extends" in tomllib.loads(text)):
        return text
    return f"# {preset}, with options from the command line.\n{to_toml(experiment)}"


def new_sweep_folder(preset: str, output: str) -> Path:
    """A folder for a new sweep: ``output``, or the first free one below ``runs/``. InputError where it holds one."""
    if output:
        folder = Path(output)
        if (folder / FILE).exists():
            raise InputError(f"{folder} holds a sweep already: anchorfl sweep --resume {folder}, or another --output")
        return folder
    stem = f"sweep-{Path(preset).stem if preset.endswith('.toml') else preset.replace('/', '-')}"
    return next(f for n in range(1, 10_000) if not (f := RUNS / f"{stem}-{n}").exists())


def _dimension(entry: dict[str, Any]) -> Dimension:
    kind: Any = {"Choice": Choice, "Range": Range}.get(str(entry.pop("kind", "")))
    if kind is None:
        raise ValueError("space: its kind must be Choice or Range")
    found: Dimension = converted(entry, kind, "space")
    return found
