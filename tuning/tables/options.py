"""The options that a call of ``anchorfl table`` gives to its runs: which may change a result, which rows get them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.overrides import keep_options, option_name
from anchorfl.pipeline.config.schema import options_of
from anchorfl.pipeline.results.compare import is_free
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.tables.published import Change, Row, value_text


def drop_free_options(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that may change a result: not where runs go, or what is kept of them."""
    return keep_options(overrides, lambda name: not is_free(name))


def drop_options(overrides: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the overrides, with their values, but for those of ``options``."""
    return keep_options(overrides, lambda name: name not in options)


def options_of_one_method(overrides: Sequence[str], presets: Mapping[str, Experiment]) -> dict[str, str]:
    """Return option -> method for the overrides that one method of the presets alone has; its rows alone get them.

    InputError where several have an option that another lacks: of the same name, it may be another thing in each.
    """
    known = {name: set(options_of(experiment)) for name, experiment in presets.items()}
    out = {}
    for option in filter(None, map(option_name, overrides)):
        methods = dict.fromkeys(presets[name].method.name for name, options in known.items() if option in options)
        if not methods or all(option in options for options in known.values()):
            continue
        if len(methods) > 1:
            raise InputError(
                f"--{option}: {', '.join(methods)} each have an option of that name, other rows have none: say with"
                " --rows which rows it is for"
            )
        out[option] = next(iter(methods))
    return out


FORM = "--vary method.q1=95,97,99"


class Vary(NamedTuple):
    """An option, by its dotted name, and its values as typed."""

    option: str
    values: tuple[str, ...]

    @property
    def word(self) -> str:
        """Option without its section."""
        return self.option.rpartition(".")[2]

    @property
    def text(self) -> str:
        """Option and values as typed."""
        return f"{self.option}={','.join(self.values)}"

    def override(self, value: str) -> str:
        """Return a value as ``anchorfl run`` takes it: one word, so that it may begin with a minus sign."""
        return f"--{self.option}={value}"


def parse_vary(words: Sequence[str]) -> Vary | None:
    """Return the ``--vary`` of a command line; None without one.

    InputError on a second one, on one that is not of the form, and on an option that changes no result.
    """
    if not words:
        return None
    if len(words) > 1:
        raise InputError(f"--vary {' and --vary '.join(words)}: one option per table; make a table of each")
    name, _, text = words[0].partition("=")
    option = name.removeprefix("--").strip().replace("-", "_")
    values = tuple(value.strip() for value in text.split(","))
    if not option or not all(values):
        raise InputError(f"--vary {words[0]}: must be an option and its values, such as {FORM}")
    if len(values) < 2:
        raise InputError(f"--vary {words[0]}: one value varies nothing; write --{option} {values[0]} for every run")
    if option not in ("seed", "output") and is_free(option):  # a table says what to write for these two
        raise InputError(f"--vary {words[0]}: {option} changes no result")
    return Vary(option, values)


def with_change(row: Row, option: str, experiment: Experiment, preset: Experiment) -> Row:
    """Return the row with its experiment's value. Published figures stand at the preset's own value alone."""
    change = Change(option, options_of(experiment)[option], options_of(preset)[option])
    return replace(row, change=change, figures=row.figures if change.is_preset_value else {})


def sort_by_value(rows: Sequence[tuple[Row, Experiment]]) -> list[tuple[Row, Experiment]]:
    """Return the rows of one preset, by value where all values are numbers. InputError where one is there twice."""
    seen = set[str]()
    for row, _ in rows:
        if row.change is not None and row.key in seen:
            raise InputError(f"--vary {row.change.option}: {value_text(row.change.value)} is there twice")
        seen.add(row.key)
    values = {row.key: row.change.value for row, _ in rows if row.change}
    if not values or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values.values()):
        return list(rows)
    return sorted(rows, key=lambda pair: values[pair[0].key])


def notes_without_preset_value(rows: Iterable[Row]) -> list[str]:
    """Return a line for each preset's own value that is not among those of its rows."""
    changes: dict[str, list[Change]] = {}
    for row in rows:
        if row.change is not None:
            changes.setdefault(row.base, []).append(row.change)
    missing: dict[tuple[str, str], list[str]] = {}
    for preset, varied in changes.items():
        if not any(change.is_preset_value for change in varied):
            missing.setdefault((varied[0].option, value_text(varied[0].preset)), []).append(preset)
    return [
        f"{option} = {value}, the preset's own value of {', '.join(presets)}, is not among the values: there,"
        " nothing is tested and no published figure stands."
        for (option, value), presets in missing.items()
    ]
