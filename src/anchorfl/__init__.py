"""AnchorFL from Python. Importing it is cheap: what a name needs is loaded when the name is used.

    import anchorfl

    experiment = anchorfl.read_preset("digits/fedalign", {"federation.rounds": 5})
    result = anchorfl.run(experiment, "runs/mine")
    print(result.scores["test"])

The command line (``anchorfl --help``) does the same; ``docs/architecture.md`` shows where everything lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.pipeline.terminal import say as _say

if TYPE_CHECKING:
    from anchorfl.models.options import EncoderSpec as EncoderSpec
    from anchorfl.pipeline.algorithm.contract import ClientTrainer as ClientTrainer
    from anchorfl.pipeline.algorithm.contract import Method as Method
    from anchorfl.pipeline.config.experiment import Experiment as Experiment
    from anchorfl.pipeline.run.lifecycle import Result as Result
    from anchorfl.pipeline.storage.saved_model import SavedModel as SavedModel
    from anchorfl.tasks.contract import Task as Task
    from anchorfl.tasks.errors import InputError as InputError
    from anchorfl.tuning.search.results import Sweep as Sweep

__all__ = [
    "ClientTrainer",
    "EncoderSpec",
    "Experiment",
    "InputError",
    "Method",
    "Result",
    "SavedModel",
    "Sweep",
    "Task",
    "__version__",
    "load_model",
    "read_preset",
    "resume",
    "run",
    "sweep",
]

_HOME = {
    "Experiment": "anchorfl.pipeline.config.experiment",
    "InputError": "anchorfl.tasks.errors",
    "ClientTrainer": "anchorfl.pipeline.algorithm.contract",
    "EncoderSpec": "anchorfl.models.options",
    "Method": "anchorfl.pipeline.algorithm.contract",
    "Result": "anchorfl.pipeline.run.lifecycle",
    "Sweep": "anchorfl.tuning.search.results",
    "Task": "anchorfl.tasks.contract",
    "SavedModel": "anchorfl.pipeline.storage.saved_model",
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


def read_preset(name: str = "", options: Mapping[str, Any] | None = None) -> Experiment:
    """Return the experiment of a preset, or of a TOML file, with options replaced by their dotted names.

    name: not needed where the options name a table, ``task.file``. Errors: InputError where there is no such preset or
    option, or a value is refused.
    """
    from anchorfl.pipeline.run.assemble import from_values

    return from_values(name, options or {}).experiment


def run(experiment: Experiment, folder: str | Path = "", *, log: Callable[[str], None] = _say) -> Result:
    """Train, and return checksum and scores; in ``folder``, or in a new one below ``runs/``.

    Errors: InputError on bad options or data. A run that was interrupted goes on where it stood.
    """
    from anchorfl.pipeline.run import lifecycle
    from anchorfl.pipeline.storage.run_folder import new_folder

    return lifecycle.run(experiment, Path(folder) if folder else new_folder(experiment), log)


def resume(folder: str | Path, *, log: Callable[[str], None] = _say, places: Mapping[str, str] | None = None) -> Result:
    """Go on with an interrupted run; a finished one returns its result again.

    places: such as ``{"tracking.uri": ...}``, for a folder that this user's commands did not write. Errors: InputError
    where it names places that are not among them.
    """
    from anchorfl.pipeline.run import lifecycle

    return lifecycle.resume(Path(folder), log, places)


def load_model(folder: str | Path, network: str = "") -> SavedModel:
    """Read the model of a run, ``result.folder / "model"``.

    network: ``package.module:Name`` of a model by others whose network is a plug-in's. Errors: InputError where it is
    missing or damaged, or names a module that is not that one.
    """
    from anchorfl.pipeline.storage import saved_model

    return saved_model.load_model(Path(folder), network)


def sweep(
    experiment: Experiment,
    space: Sequence[str] = (),
    folder: str | Path = "",
    *,
    log: Callable[[str], None] = _say,
    **options: Any,
) -> Sweep:
    """Search hyper-parameters on the validation split, and return the trials and what was chosen.

    space: ``"q1=tail:90:99.9"`` and the like, as for ``anchorfl sweep``; empty: the method's own space. options: of
    ``anchorfl.tuning.search.options.SweepOptions``, such as ``trials=20``. Errors: InputError on bad ones.
    """
    from anchorfl.pipeline.config.experiment import data_and_method
    from anchorfl.pipeline.config.schema import to_toml
    from anchorfl.tuning.search.options import SweepOptions
    from anchorfl.tuning.search.search_space import space_of
    from anchorfl.tuning.sweep.plan import SweepPlan, new_sweep_folder
    from anchorfl.tuning.sweep.sweep import run_sweep

    name = data_and_method(experiment)
    plan = SweepPlan(name, experiment, space_of(experiment, space), SweepOptions(**options), to_toml(experiment))
    return run_sweep(plan, new_sweep_folder(name, str(folder)), log)
