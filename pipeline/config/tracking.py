"""Options of [tracking]: the record of a run in MLflow."""

from __future__ import annotations

from dataclasses import dataclass

from anchorfl.tasks.errors import has_controls


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingOptions:
    """Options of the record of a run besides its own folder."""

    uri: str = ""
    """MLflow store: empty: ``$MLFLOW_TRACKING_URI``, or where that is not set the SQLite file ``mlflow.db`` in the
    folder that holds the runs; ``none``: no MLflow; ``http://...``: a server; ``sqlite:///...``: another file;
    ``postgresql://...``: a database server. A password is left out of every record, so that a resumed run has none:
    leave it to ``~/.pgpass``, ``PGPASSWORD`` or ``MLFLOW_TRACKING_PASSWORD``."""
    experiment: str = ""
    """MLflow experiment; empty: name of the task."""
    run_name: str = ""
    """Name of the run in MLflow; empty: name of the run folder."""
    log_model: bool = True
    """Log the trained model as an MLflow model (weights as safetensors, no pickle); false: only its files."""
    trackers: str = ""
    """Further trackers, with commas between: ``tensorboard`` and ``wandb``, each in the folder of its name in the run
    folder (``wandb`` sends nothing unless ``$WANDB_MODE`` is ``online``), or a plug-in's, by its name or
    ``package.module:Name`` (docs/plug-ins.md). One that fails costs the run nothing."""
    register: str = ""
    """Name in MLflow's registry under which the trained model becomes a version, alias ``champion``; empty: none."""

    def __post_init__(self) -> None:
        for name in ("experiment", "run_name", "register"):
            if has_controls(getattr(self, name)):
                raise ValueError(f"tracking.{name} = {getattr(self, name)!r}: holds control characters; leave them out")
        if set(self.register) & set("/:'\"`"):
            raise ValueError(f"tracking.register = {self.register!r}: MLflow takes no / : or quotes in a model's name")
        if self.register and not self.log_model:
            raise ValueError("tracking.register needs the model in MLflow: leave tracking.log_model true")
