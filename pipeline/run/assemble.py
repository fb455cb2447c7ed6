"""The experiment of a command: a preset, or the default of a user's own table, with the options that are given.

A preset whose data set a table replaces lends method, network and rounds alone (``preset_files.lend``). What nobody
gave then follows from the table and the method: the partition, and how many clients take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from anchorfl.pipeline.config.experiment import Experiment, data_and_method
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.idle_options import check_idle
from anchorfl.pipeline.config.overrides import keep_options, override, typed_options
from anchorfl.pipeline.config.preset_files import Tree, drop, lend, merge_sections, table_file
from anchorfl.pipeline.config.presets import build, preset_names, preset_tree, some_presets
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.methods import method_name
from anchorfl.pipeline.run.prepare import check_method, count_clients, resolve_options, with_sections
from anchorfl.pipeline.terminal import Log, say
from anchorfl.tasks.contract import LabelKind
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular.table import resolve_options as resolve_task_options

TABLE_PRESET = "digits/fedavg"
"""Preset whose network and rounds a table takes where none is named, with the options of the method's row in the same
federation, if it has one, else the method's own defaults."""
TABLE_METHODS: Mapping[LabelKind, str] = {"single": "anchor", "multi": "fedavg"}
"""Method of a table where none is named: single-label the suite's first, multi-label the plain one, from which the
others are not far (docs/which-method.md)."""
TABLE_TASK = {"min_count": 2, "max_tokens": 256}
"""Options of [task] with another default for tables, whose texts may be few and short."""
FILE, METHOD = "task.file", "method.name"
OF_IMAGES = (
    "model.network", "model.stem", "model.norm", "model.init", "model.weights", "optimizer.crop", "optimizer.flip",
)  # fmt: skip
"""Options that a preset for images cannot lend to a table of anything else."""

Apply = Callable[[Experiment], Experiment]
"""Returns an experiment with the options that are given, but for ``method.name``, which no option of a method is."""


class Assembled(NamedTuple):
    """An experiment, settled by its data."""

    name: str
    """Name of its runs: the preset's, or data and method where one of them is another."""
    experiment: Experiment


def from_words(preset: str, words: Sequence[str], command: str, log: Log = say) -> Assembled:
    """Return the experiment of a preset with the options of a command line; ``--help`` prints all and exits.

    preset: ``""`` where the words name a table. Raises InputError on a bad option, preset or table.
    """
    words = ["--help" if word == "-h" else word for word in words]
    given, command = typed_options(words), f"{command} {preset}".rstrip()

    words = keep_options(words, lambda name: name != METHOD)

    def apply(experiment: Experiment) -> Experiment:
        return override(experiment, words, command)

    if not {"help", "help_verbose"}.isdisjoint(given):  # before any data are looked at
        return Assembled("", apply(build(preset, _start(preset, given).tree)))
    return _assemble(preset, given, apply, log)


def from_values(preset: str, values: Mapping[str, Any], log: Log = say) -> Assembled:
    """Return the experiment of a preset with options by dotted name, as ``from_words`` does."""

    def apply(experiment: Experiment) -> Experiment:
        return with_options(experiment, {name: value for name, value in values.items() if name != METHOD})

    assembled = _assemble(preset, values, apply, log)
    check_idle(values, [assembled.experiment])
    return assembled


def names_table(words: Sequence[str]) -> bool:
    """Return whether options on the command line name a table, so that no preset is needed."""
    return bool(typed_options(words).get(FILE))


class _Start(NamedTuple):
    """The options before those that are given, as nested tables."""

    tree: Tree
    lent: bool
    """True where a table takes the place of the preset's data set."""
    left: list[str]
    """Options of the preset that stay behind with its data set."""


def _assemble(preset: str, given: Mapping[str, Any], apply: Apply, log: Log) -> Assembled:
    if not preset and not given.get(FILE):
        raise InputError(f"which data: give a preset, such as {some_presets()}, or a table of your own as {FILE}")
    start = _start(preset, given)
    if given.get(FILE) or table_file(start.tree):
        experiment = count_clients(_on_table(preset, start, given, apply, log), log)
    else:
        experiment = resolve_options(apply(build(preset, start.tree)), log)
    return Assembled(_name(preset, experiment), experiment)


def _start(preset: str, given: Mapping[str, Any]) -> _Start:
    """Return what the preset says, or lends to a table.

    Another method has options of its own: those of the preset's do not carry over, as in a file that ``extends`` it.
    """
    source, method = preset, given.get(METHOD)
    if not preset:
        method = method or TABLE_METHODS["single"]
        row = f"{TABLE_PRESET.partition('/')[0]}/{method}"
        source = row if row in preset_names() else TABLE_PRESET
    tree, left = preset_tree(source), list[str]()
    lent = bool(given.get(FILE)) and not table_file(tree)
    if lent:
        tree, left = lend(tree)
    if method is not None:
        tree = merge_sections(tree, {"method": {"name": method}})
    return _Start(tree, lent, left)


def _on_table(preset: str, start: _Start, given: Mapping[str, Any], apply: Apply, log: Log) -> Experiment:
    """Return the experiment on a table, with what follows from the table where nobody said it.

    That is the partition of a method with one client per class, how many classes a client identifies, and how many
    clients take part: 5, or all where there are no more, or where each has a class of its own.
    """
    said = {f"{name}.{key}" for name, part in start.tree.items() if isinstance(part, dict) for key in part}
    tree, left = merge_sections({"task": TABLE_TASK}, start.tree), start.left
    cohort = ("federation.clients_per_round", "federation.client_fraction")
    if said.isdisjoint(cohort):
        tree = merge_sections({"federation": {"clients_per_round": 0}}, tree)  # fits any number of clients
    experiment = apply(build(preset, tree))
    of_file = {} if start.lent else start.tree.get("task", {})
    _check_of_column(experiment.task, given, of_file)
    if not preset and METHOD not in given:
        kind = task_of(experiment.task).kind
        log(f"{kind}-label: method {TABLE_METHODS[kind]}; --method.name takes another")
        if experiment.method.name != TABLE_METHODS[kind]:
            given = {**given, METHOD: TABLE_METHODS[kind]}
            return _on_table(preset, _start(preset, given), given, apply, log)
    options = resolve_task_options(experiment.task, log)
    if options.client_column and of_file.get("clients", 0) not in (0, options.clients):
        raise _beside(options, "task.clients", of_file["clients"])
    task, one_class, said = task_of(options), experiment.method.supports.one_class, said | given.keys()
    if start.lent and task.payload != "image" and (of_images := drop(tree, OF_IMAGES)):
        experiment, left = apply(build(preset, tree)), [*left, *of_images]
    if preset and start.lent:
        log(f"{preset} lends method, network and rounds; left out with its data: {', '.join(left) or 'nothing'}")
    if one_class and not options.client_column and "task.partition" not in said:
        options = replace(options, partition="one_class")
    if options.partition == "one_class" and "task.clients" not in said:
        options = replace(options, clients=0)  # as many as there are classes
    if options.partition == "k_classes" and "task.classes_per_client" not in said:
        options = replace(options, classes_per_client=min(options.classes_per_client, len(task.class_names)))
    federation = experiment.federation
    if said.isdisjoint(cohort) and options.partition != "one_class":
        federation = replace(federation, clients_per_round=min(FederationOptions().clients_per_round, options.clients))
    check_method(experiment.method, options, task.kind)
    return with_sections(experiment, task=options, federation=federation)


def _check_of_column(task: TaskOptions, given: Mapping[str, Any], of_file: Mapping[str, Any]) -> None:
    """Raise InputError where options were given that say otherwise than the column of clients.

    of_file: those of [task] in the file that has the table; how many clients there are, it may say.
    """
    if not task.client_column:
        return
    if task.partition != "subjects" and ("task.partition" in given or "partition" in of_file):
        raise _beside(task, "task.partition", task.partition)
    if "task.clients" in given:
        raise _beside(task, "task.clients", task.clients)


def _beside(task: TaskOptions, option: str, value: object) -> InputError:
    return InputError(
        f"--{option} {value} beside --task.client_column {task.client_column}: the column says whose row it is, so that"
        " nothing is left to partition; leave one of them out"
    )


def _name(preset: str, experiment: Experiment) -> str:
    """Return the name of runs: the preset's, or data and method where one of them is not the preset's."""
    if not preset:
        return data_and_method(experiment)
    tree = preset_tree(preset)
    data = table_file(tree) or tree.get("task", {}).get("name", TaskOptions().name)
    method = method_name(type(experiment.method))
    same = data == (experiment.task.file or experiment.task.name) and tree["method"]["name"] == method
    return preset if same else data_and_method(experiment)
