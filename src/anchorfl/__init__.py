"""AnchorFL from Python. Importing it is cheap: what a name needs is loaded when the name is used.

    import anchorfl

    run = anchorfl.run("digits/fedalign", {"federation.rounds": 5}, folder="runs/mine")
    print(run.scores["test"])
    run.to_pandas()        # a row per round
    run.per_class()        # F1 of every class, those that few clients identify first

    run = anchorfl.run(data=frame, options={"task.label_columns": "kind"})   # a table of your own
    run.predict(frame.head())

Nothing is printed unless ``quiet=False`` says so. The command line (``anchorfl --help``) does the same;
``docs/python.md`` shows every name with an example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from os import PathLike, fspath
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from anchorfl.models.options import EncoderSpec as EncoderSpec
    from anchorfl.pipeline.algorithm.contract import ClientTrainer as ClientTrainer
    from anchorfl.pipeline.algorithm.contract import Method as Method
    from anchorfl.pipeline.config.experiment import Experiment as Experiment
    from anchorfl.pipeline.results.compare import Comparison as Comparison
    from anchorfl.pipeline.results.in_memory import Model as Model
    from anchorfl.pipeline.results.run_view import Run as Run
    from anchorfl.pipeline.run.callbacks import Callback as Callback
    from anchorfl.pipeline.run.callbacks import CallbackError as CallbackError
    from anchorfl.pipeline.run.callbacks import RoundReport as RoundReport
    from anchorfl.pipeline.terminal import Log
    from anchorfl.tasks.contract import Task as Task
    from anchorfl.tasks.errors import InputError as InputError
    from anchorfl.tuning.search.results import Sweep as Sweep

__all__ = [
    "Callback",
    "CallbackError",
    "ClientTrainer",
    "Comparison",
    "EncoderSpec",
    "Experiment",
    "InputError",
    "Method",
    "Model",
    "RoundReport",
    "Run",
    "Sweep",
    "Task",
    "__version__",
    "compare",
    "load_model",
    "read_preset",
    "resume",
    "run",
    "sweep",
]

_HOME = {
    "Callback": "anchorfl.pipeline.run.callbacks",
    "CallbackError": "anchorfl.pipeline.run.callbacks",
    "ClientTrainer": "anchorfl.pipeline.algorithm.contract",
    "Comparison": "anchorfl.pipeline.results.compare",
    "EncoderSpec": "anchorfl.models.options",
    "Experiment": "anchorfl.pipeline.config.experiment",
    "InputError": "anchorfl.tasks.errors",
    "Method": "anchorfl.pipeline.algorithm.contract",
    "Model": "anchorfl.pipeline.results.in_memory",
    "RoundReport": "anchorfl.pipeline.run.callbacks",
    "Run": "anchorfl.pipeline.results.run_view",
    "Sweep": "anchorfl.tuning.search.results",
    "Task": "anchorfl.tasks.contract",
}
"""Module of every public name that is not defined here."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("anchorfl")
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'anchorfl' has no attribute {name!r}")


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _said_in_one_line(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function, with InputError also where class names or a place on disk cannot be used."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        from anchorfl.models.errors import NamesError
        from anchorfl.tasks.errors import FULL, InputError, place_line

        try:
            return function(*args, **kwargs)
        except NamesError as error:
            raise InputError(str(error)) from error
        except OSError as error:
            if error.filename is None or error.errno in FULL:  # a connection, or a disk that is full
                raise
            raise InputError(place_line(error)) from error

    return call


@_said_in_one_line
def read_preset(
    name: str | PathLike[str] = "", options: Mapping[str, Any] | None = None, *, data: Any = None, quiet: bool = True
) -> Experiment:
    """Return the experiment of a preset, or of a TOML file, with options replaced by their dotted names.

    name: not needed where there is a table. data: a table of your own: a pandas DataFrame, an Arrow table, or the path
    of a CSV or Parquet file; ``task.label_columns`` names its labels. Errors: InputError where there is no such preset
    or option, or a value is refused.
    """
    from anchorfl.pipeline.run.assemble import from_values
    from anchorfl.tasks.errors import InputError

    if not isinstance(name, (str, PathLike)):
        raise InputError(f"{name!r}: give the name of a preset, a TOML file or an anchorfl.Experiment")
    if not isinstance(options, (Mapping, NoneType)) or not all(isinstance(key, str) for key in options or ()):
        raise InputError("options: give a dict by dotted names, such as {'federation.rounds': 5}")
    values = dict(options or {})
    if data is not None:
        from anchorfl.tasks.tabular.in_memory import table_file

        cache = str(values.get("task.cache", ""))
        values["task.file"] = str(data if isinstance(data, (str, PathLike)) else table_file(data, cache))
    return from_values(fspath(name), values, _log(quiet)).experiment


@_said_in_one_line
def run(
    preset: str | PathLike[str] | Experiment = "",
    options: Mapping[str, Any] | None = None,
    *,
    data: Any = None,
    folder: str | Path = "",
    callbacks: Sequence[Callback] = (),
    quiet: bool = True,
) -> Run:
    """Train, and return the finished run; in ``folder``, or in a new one below ``runs/``.

    preset, options, data: as ``read_preset``; or an experiment alone. callbacks: each is called with a ``RoundReport``
    after every round, and ends the run by returning True. quiet: print nothing. Errors: InputError on bad options or
    data; CallbackError where a callback fails. A run that was interrupted goes on where it stood.
    """
    from anchorfl.pipeline.results.run_view import Run
    from anchorfl.pipeline.run import lifecycle
    from anchorfl.pipeline.storage.run_folder import new_folder, read_experiment

    _check_callbacks(callbacks)
    experiment = _experiment(preset, options, data, quiet)
    place = Path(folder) if folder else new_folder(experiment)
    result = lifecycle.run(experiment, place, _log(quiet), callbacks=callbacks, quiet=quiet)
    return Run(result.folder, experiment=read_experiment(result.folder))


@_said_in_one_line
def resume(
    folder: str | Path,
    *,
    callbacks: Sequence[Callback] = (),
    quiet: bool = True,
    places: Mapping[str, str] | None = None,
) -> Run:
    """Go on with an interrupted run; a finished one returns its result again.

    callbacks, quiet: as ``run``. places: such as ``{"tracking.uri": ...}``, for a folder that this user's commands did
    not write. Errors: InputError where it names places that are not among them.
    """
    from anchorfl.pipeline.results.run_view import Run
    from anchorfl.pipeline.run import lifecycle
    from anchorfl.pipeline.storage.run_folder import read_experiment

    _check_callbacks(callbacks)
    result = lifecycle.resume(Path(folder), _log(quiet), places, callbacks=callbacks, quiet=quiet)
    return Run(result.folder, experiment=read_experiment(result.folder, places), places=places)


@_said_in_one_line
def compare(runs: Run | str | Path | Iterable[Run | str | Path], folder: str | Path = "") -> Comparison:
    """Compare runs in a table, which ``print`` shows; runs that differ only in their seed are one line.

    folder: where comparison.md, comparison.csv and curves.png are written; empty: nowhere. Errors: InputError where
    one is no run, or has no round yet.
    """
    from anchorfl.pipeline.results import compare
    from anchorfl.pipeline.results.run_view import Run

    given = [runs] if isinstance(runs, (str, Path, Run)) else runs
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in given]
    return compare.compare(folders, Path(folder) if folder else None)


@_said_in_one_line
def load_model(folder: str | Path, network: str = "", task: str = "") -> Model:
    """Read the model of a run folder, or of the folder of a model; ``model.predict(frame)`` gives probabilities.

    network, task: ``package.module:Name`` of a model by others whose network or task is a plug-in's. Errors: InputError
    where it is missing or damaged, or names a module that is not that one.
    """
    from anchorfl.pipeline.results.in_memory import open_model

    return open_model(Path(folder), network, task)


@_said_in_one_line
def sweep(
    preset: str | PathLike[str] | Experiment = "",
    options: Mapping[str, Any] | None = None,
    space: Sequence[str] = (),
    *,
    data: Any = None,
    folder: str | Path = "",
    quiet: bool = True,
    **search: Any,
) -> Sweep:
    """Search hyper-parameters on the validation split, and return the trials and what was chosen.

    preset, options, data: as ``run``. space: ``"q1=tail:90:99.9"`` and the like, as for ``anchorfl sweep``; empty: the
    method's own space. search: options of ``anchorfl.tuning.search.options.SweepOptions``, such as ``trials=20``.
    Errors: InputError on bad ones.
    """
    from anchorfl.pipeline.config.experiment import data_and_method
    from anchorfl.pipeline.config.schema import section_from, to_toml
    from anchorfl.tasks.errors import InputError
    from anchorfl.tuning.search.options import SweepOptions
    from anchorfl.tuning.search.search_space import space_of
    from anchorfl.tuning.sweep.plan import (
        SweepPlan,
        check_searched,
        check_typed,
        new_sweep_folder,
        on_one_split,
        on_whole_grid,
    )
    from anchorfl.tuning.sweep.sweep import run_sweep

    check_typed(options or {})
    if isinstance(space, str):
        raise InputError(f"space = {space!r}: give a list of such texts")
    experiment = on_one_split(_experiment(preset, options, data, quiet))
    how: SweepOptions = section_from(SweepOptions, search, "sweep")
    name = data_and_method(experiment)
    plan = SweepPlan(name, experiment, space_of(experiment, space), how, to_toml(experiment))
    if how.searcher == "grid" and "trials" not in search:
        plan = on_whole_grid(plan)
    check_searched(plan)
    return run_sweep(plan, new_sweep_folder(name, str(folder)), _log(quiet))


def _check_callbacks(callbacks: Any) -> None:
    """Raise InputError where callbacks are no list of functions, before anything is trained."""
    from anchorfl.tasks.errors import InputError

    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(f"callbacks = {callbacks!r}: give a list of functions, such as [stop_when_flat]")


def _experiment(
    preset: str | PathLike[str] | Experiment, options: Mapping[str, Any] | None, data: Any, quiet: bool
) -> Experiment:
    """Return the experiment that ``run`` and ``sweep`` are for."""
    from anchorfl.pipeline.config.experiment import Experiment
    from anchorfl.tasks.errors import InputError

    if not isinstance(preset, Experiment):
        return read_preset(preset, options, data=data, quiet=quiet)
    if options is not None or data is not None:
        raise InputError("give an experiment alone: options and data belong to read_preset, which makes one")
    return preset


def _log(quiet: bool) -> Log:
    from anchorfl.pipeline.terminal import say

    return (lambda line: None) if quiet else say
