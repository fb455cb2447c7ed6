"""The options that a call of ``anchorfl table`` gives to its runs: which may change a result, which rows get them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from pipeline.config.experiment import Experiment
from pipeline.config.schema import options_of
from tasks.errors import InputError
from tuning.table_vary import free


def name_of(word: str) -> str:
    """The option that a word names: ``--method.q1=95`` -> ``method.q1``; empty where it is a value."""
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def changing(overrides: Sequence[str]) -> list[str]:
    """Of overrides, those that may change a result: not where runs go, or what is kept of them."""
    return _kept(overrides, lambda name: not free(name))


def without(overrides: Sequence[str], options: Collection[str]) -> list[str]:
    """The overrides but for those of ``options``, with their values."""
    return _kept(overrides, lambda name: name not in options)


def _kept(overrides: Sequence[str], wanted: Callable[[str], bool]) -> list[str]:
    out, keep = list[str](), True
    for word in overrides:
        keep = wanted(name) if (name := name_of(word)) else keep
        if keep:
            out.append(word)
    return out


def of_one_method(overrides: Sequence[str], presets: Mapping[str, Experiment]) -> dict[str, str]:
    """Options of overrides that one of the presets' methods alone has, where others lack it: option -> method. Rows of
    that method alone get it.

    InputError where several have an option that another lacks: of the same name, it may be another thing in each.
    """
    known = {name: set(options_of(e)) for name, e in presets.items()}
    out = {}
    for option in filter(None, map(name_of, overrides)):
        having = dict.fromkeys(presets[name].method.name for name, options in known.items() if option in options)
        if len(having) > 1 and not all(option in options for options in known.values()):
            raise InputError(
                f"--{option}: {', '.join(having)} each have an option of that name, other rows have none: say with"
                " --rows which rows it is for"
            )
        if having and not all(option in options for options in known.values()):
            out[option] = next(iter(having))
    return out
