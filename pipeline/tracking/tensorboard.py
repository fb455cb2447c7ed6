"""TensorBoard's tracker: every metric of every round as a scalar, in ``tensorboard/`` of the run folder."""

from __future__ import annotations

import math
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from anchorfl.pipeline.storage.run_record import FINAL_SCORES, RoundRecord, RunInfo, Status, read_records


class TensorBoard:
    """Writes event files. Rounds that a resumed run computes again take the place of those that it had."""

    def __init__(self, folder: Path, resume_at: int) -> None:
        """resume_at: the round that is computed next; 0: the run is new."""
        place = folder / "tensorboard"
        again = resume_at or (0 if place.is_dir() and any(place.iterdir()) else None)
        self.writer = SummaryWriter(str(place), purge_step=again)

    def begin(self, info: RunInfo) -> None:
        """Write the options as a table."""
        lines = [f"| {name} | {value} |" for name, value in info.params.items()]
        table = "\n".join(["| option | value |", "|---|---|", *lines])
        self.writer.add_text("options", table, 0)

    def round(self, record: RoundRecord) -> None:
        """Write a round's metrics, and its scores by class as ``test/f1/<class>``."""
        scores = {f"{name}/{c}": value for name, values in record.per_class.items() for c, value in values.items()}
        for name, value in (record.metrics | scores).items():
            if math.isfinite(value):
                self.writer.add_scalar(name, value, record.round, walltime=record.time)
        self.writer.flush()

    def artifact(self, path: Path) -> None:
        """Write what was measured of a round after the last one; leave other files where they are."""
        for record in read_records(path)[0] if path.name == FINAL_SCORES else ():
            self.round(record)

    def end(self, status: Status) -> None:
        """Close the files."""
        self.writer.close()
