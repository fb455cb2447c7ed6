"""Weights & Biases' tracker: files in ``wandb/`` of the run folder, and offline unless ``WANDB_MODE`` says otherwise.

Code, console output, command line and the address of the repository stay out of them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb reads it when it is imported, and would report its use
import wandb

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.run_record import FINAL_SCORES, RoundRecord, RunInfo, Status, read_metadata, read_records


class WeightsAndBiases:
    """Writes a run of Weights & Biases with the id of run.json, so that a resumed run goes on in the same one."""

    def __init__(self, folder: Path, resume_at: int) -> None:
        """resume_at: the round that is computed next; 0: the run is new."""
        self.folder = folder

    def begin(self, info: RunInfo) -> None:
        """Open the run: options as its config; name and project where the environment names none."""
        settings = wandb.Settings(
            mode=os.environ.get("WANDB_MODE") or "offline",  # type: ignore[arg-type]  # wandb refuses other words
            console="off",
            disable_code=True,
            disable_git=True,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        self.run = wandb.init(
            dir=self.folder,
            id=read_metadata(self.folder)["id"],
            resume="allow",
            reinit="create_new",
            project=os.environ.get("WANDB_PROJECT") or info.experiment,
            name=os.environ.get("WANDB_NAME") or info.name,
            config={name: redact(v) if isinstance(v, str) else v for name, v in info.params.items()},
            settings=settings,
        )

    def round(self, record: RoundRecord) -> None:
        """Log a round's metrics, and its scores by class as ``test/f1/<class>``; the step is the round."""
        self.run.log(_finite(record), step=record.round, commit=True)

    def artifact(self, path: Path) -> None:
        """Put what was measured of a round after the last one into the summary, as steps only grow; leave other files
        where they are: the run folder has them.
        """
        for record in read_records(path)[0] if path.name == FINAL_SCORES else ():
            self.run.summary.update(_finite(record))

    def end(self, status: Status) -> None:
        """Close the run; where it is online, wait until all is sent."""
        self.run.finish(exit_code=0 if status == "FINISHED" else 1)


def _finite(record: RoundRecord) -> dict[str, float]:
    """Return a round's metrics, and its scores by class as ``test/f1/<class>``, that are finite."""
    scores = {f"{name}/{c}": value for name, values in record.per_class.items() for c, value in values.items()}
    return {name: value for name, value in (record.metrics | scores).items() if math.isfinite(value)}
