"""The copy of a sweep in object storage: what is copied, by which process, and how it comes back (``cluster.backup``).

Every run folder below ``trials/`` and ``final/`` is copied by the process that trains it, on whatever node; all else by
the driver. So no node needs another node's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfl.pipeline.config.experiment import Experiment, digest
from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.storage.backup import Backup
from anchorfl.pipeline.storage.restore import backup_uri, check_backup_owner, digest_at, fetch_run, restore_if_ahead
from anchorfl.pipeline.storage.run_folder import CONFIG, LOCK, RESULT
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store

if TYPE_CHECKING:  # it imports Ray, which the command line does without
    from anchorfl.tuning.search.study import TrialState

LEAVE = ("trials/*/seed-*", "final/*")
"""Paths that the driver leaves to others."""
RESUME = "anchorfl sweep --resume"
PAUSE_S = 5.0
"""Rest between two copies of the sweep's own files, which change with every round of every trial."""


def backup_of(backup: str, sweep: Path, folder: Path) -> str:
    """Return ``cluster.backup`` for a run folder of a sweep: with it, its copy lies within the sweep's copy."""
    return object_store.join(backup, folder.parent.relative_to(sweep.parent).as_posix()) if backup else ""


def bring(backup: str, sweep: Path, folder: Path, log: Callable[[str], None]) -> None:
    """Fetch a run that another node has finished, where it is not here."""
    if backup and not (folder / RESULT).exists():
        restore_if_ahead(backup_uri(backup_of(backup, sweep, folder), folder), folder, log, finished=True)


def move_aside(folder: Path, names: Iterable[str]) -> Path:
    """Move what there is of ``names`` from a folder to a new one beside it, in this order; return the new one."""
    aside = next(p for n in range(1, 10_000) if not (p := folder.with_name(f"{folder.name}-other-{n}")).exists())
    aside.mkdir()
    for name in names:
        if (folder / name).exists():
            (folder / name).rename(aside / name)
    return aside


def set_aside(folder: Path, experiment: Experiment, uri: str, log: Callable[[str], None]) -> None:
    """Make room for a run of ``experiment`` where ``folder``, which this process holds, has one of other options.

    After the end of a ledger was lost, a trial may be another point. uri: of the folder's copy, "" for none.
    """
    wanted = digest(experiment)
    if read_json(folder / CONFIG).get("digest", wanted) == wanted:
        return
    here = [path.name for path in folder.iterdir() if path.name != LOCK]
    aside = move_aside(folder, sorted(here, key=lambda name: name == CONFIG))  # what says whose it is goes last
    log(f"{folder} held a run of other options: moved to {aside}")
    if not uri:
        return
    try:
        if digest_at(uri) == wanted:  # another node has begun it
            fetch_run(uri, folder)
        else:
            for name in sorted(object_store.sizes(uri), key=lambda name: name == CONFIG):
                object_store.delete(object_store.join(uri, name))
    except InputError as error:
        log(f"backup: {error}; the run begins anew")


class SweepBackup:
    """The driver's part: an observer of the search that has the sweep's own files copied.

    backup: ``cluster.backup`` of the sweep, empty for none. InputError where the copy cannot be made: as
    ``check_backup_owner`` says.
    """

    def __init__(self, backup: str, folder: Path, last: str, log: Callable[[str], None]) -> None:
        self.backup: Backup | None = None
        if backup:
            uri = backup_uri(backup, folder)
            check_backup_owner(uri, folder, log, RESUME)
            self.backup = Backup(folder, uri, log, last=(last,), leave=LEAVE, pause_s=PAUSE_S)

    def push(self) -> None:
        """Wake the copying: there is news."""
        if self.backup is not None:
            self.backup.push()

    def on_suggest(self, trial: TrialState) -> None:
        """Copy a new trial's event."""
        self.push()

    def on_report(self, trial: TrialState, round_: int) -> None:
        """Copy a round's event."""
        self.push()

    def on_end(self, trial: TrialState) -> None:
        """Copy a trial's end."""
        self.push()

    def close(self) -> None:
        """Copy what is left, and wait for it."""
        if self.backup is not None:
            self.backup.close()
