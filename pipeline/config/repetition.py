"""The command that repeats a run: the shipped preset that is nearest to its options, and the options that differ."""

from __future__ import annotations

import shlex
from dataclasses import MISSING, dataclass, fields
from typing import Any

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.idle_options import idle_options
from anchorfl.pipeline.config.preset_files import Tree, lend, merge_sections
from anchorfl.pipeline.config.presets import build, preset_names, preset_tree
from anchorfl.pipeline.config.schema import options_of
from anchorfl.pipeline.methods import method_name
from anchorfl.tasks.options import TaskOptions

LEFT_OUT = ("output", "cluster.backup", "tracking.")
"""Options, or how they begin, that a repetition leaves out: they say where records go, and change no result."""
SETTLED = (
    "task.clients", "task.partition", "task.classes_per_client", "task.min_count", "task.max_tokens",
    "federation.clients_per_round", "federation.client_fraction",
)  # fmt: skip
"""Options that a table of the user's own settles where nobody gives them."""
OF_COLUMN = "task.partition", "task.clients"
"""Options that a column of clients settles, so that a command may not give them."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """A preset, and the options that make it the options of a run."""

    preset: str
    """Empty: the run was on a table of the user's own, which needs none."""
    base: Experiment
    """The preset with the run's method."""
    options: dict[str, Any]
    """Options in which the run differs, by dotted name."""
    lost: frozenset[str] = frozenset()
    """Those in which it differs besides, and which do nothing, so that no command may give them: same bits, another
    digest."""

    @property
    def command(self) -> str:
        """The command line, quoted for a POSIX shell."""
        words = list[str]()
        for name, value in self.options.items():
            words += [f"--{name}={value}"] if str(value).startswith("-") else [f"--{name}", str(value)]
        return shlex.join(["anchorfl", "run", *([self.preset] if self.preset else []), *words])


def repetition_of(experiment: Experiment) -> Repetition:
    """Return the shortest command of ``anchorfl run`` that gives an experiment's options, apart from ``LEFT_OUT``."""
    method = method_name(type(experiment.method))
    if experiment.task.file:
        row = f"digits/{method}"
        tree, _ = lend(preset_tree(row if row in preset_names() else "digits/fedalign"))
        return _differing("", tree, experiment)
    names = [name for name in preset_names() if _task(name) in (experiment.task.name, TaskOptions().name)]
    names = [name for name in names if _task(name) == experiment.task.name] or names
    names = [name for name in names if preset_tree(name)["method"]["name"] == method] or names[:1]
    found = [_differing(name, preset_tree(name), experiment) for name in names]
    return min(found, key=lambda repetition: (len(repetition.lost), len(repetition.command)))


def with_defaults(experiment: Experiment) -> Experiment:
    """Return an experiment of the same method in which all other options have their defaults."""
    return build("", {"method": _method(experiment)})


def _task(preset: str) -> str:
    return str(preset_tree(preset).get("task", {}).get("name", ""))


def _method(experiment: Experiment) -> Tree:
    """Return the name of an experiment's method, and its options that have no default."""
    kind: Any = type(experiment.method)
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING and f.init]
    return {"name": method_name(kind), **{name: getattr(experiment.method, name) for name in needed}}


def _differing(preset: str, tree: Tree, experiment: Experiment) -> Repetition:
    method = _method(experiment)
    base = build(preset, merge_sections(tree, {"method": method}))
    before, values = options_of(base), options_of(experiment)
    if preset and tree["method"]["name"] == method["name"]:
        method.pop("name")
    options = {f"method.{name}": value for name, value in method.items()}
    # what a table settles for itself, and what it does not take over from a preset for images, is said in any case
    plain = before if preset else options_of(with_defaults(experiment))
    idle = idle_options(experiment)
    of_table = {"task.name", *(OF_COLUMN if experiment.task.client_column else ())} if not preset else set[str]()
    for name, value in values.items():
        own = not preset and name in SETTLED
        if (value != before[name] or value != plain[name] or own) and not name.startswith(LEFT_OUT):
            options[name] = value
    given = {name: value for name, value in options.items() if name not in idle and name not in of_table}
    return Repetition(preset, base, given, frozenset(options) & frozenset(idle))
