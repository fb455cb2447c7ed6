"""Upload a sweep to MLflow: the folder of the parent run and those of its child runs, one after the other."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.pipeline.tracking.mlflow_upload import MlflowUploader


class MlflowTreeUploader:
    """The uploader of a parent folder and any number of child folders into one store, with the steps of a
    ``MlflowUploader``.

    One thread sends; any thread may ``add``. Like a ``MlflowUploader`` it may be made anew at any time, for example
    after a kill: what stands in MLflow already is not sent again.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri
        self._parent = MlflowUploader(folder, uri)
        self._children: dict[Path, MlflowUploader] = {}  # those that are not finished, in the order of sending
        self._done: dict[Path, dict[str, Any]] = {}  # run.json of the others as it was then
        self._added: set[Path] = set()
        self._lock = threading.Lock()

    @property
    def last(self) -> int:
        """Last round of the parent that stands in MLflow."""
        return self._parent.last

    def add(self, folder: Path) -> None:
        """Make a child known, or one that ended and goes on; again and again does no harm.

        It may come before the child has written its run.json.
        """
        with self._lock:
            self._added.add(folder.resolve())

    def lock(self) -> AbstractContextManager[object]:
        """Return the lock to hold while sending."""
        return self._parent.lock()

    def upload_new(self) -> int:
        """Send what MLflow lacks of the parent, then of each child; return the number of rounds.

        A child that ended is finished here and then left alone. After an error the child that caused it comes last,
        so that it does not hold up the others.
        """
        self._take_in()
        count = self._parent.upload_new()
        for folder in list(self._children):
            try:
                count += self._upload_child(folder)
            except Exception:
                self._children[folder] = self._children.pop(folder)
                raise
        return count

    def upload_final(self) -> list[str]:
        """End the children that are left, then the parent; return the artifacts that are gone.

        Raises the first error, after all have had their turn.
        """
        missing: list[str] = []
        errors: list[Exception] = []
        for folder, child in [*self._children.items(), (self.folder, self._parent)]:
            try:
                names = child.upload_final() if child.run_id else []  # else it never began
                missing += names if child is self._parent else [str(folder / name) for name in names]
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return missing

    def _take_in(self) -> None:
        """Make an uploader for each child that was added since the last call."""
        with self._lock:
            added, self._added = self._added, set()
        for folder in sorted(added):
            self._children.setdefault(folder, MlflowUploader(folder, self.uri))

    def _upload_child(self, folder: Path) -> int:
        """Send what MLflow lacks of a child, and end it where it has ended; return the number of rounds."""
        child, metadata = self._children[folder], read_metadata(folder)
        if not metadata:  # not begun yet
            return 0
        if metadata == self._done.get(folder):  # named again, and nothing happened since
            del self._children[folder]
            return 0
        count = child.upload_new()
        # As it stood before its rounds were sent: one that ended since then may have written more of them.
        if metadata["status"] != "RUNNING":
            child.upload_final()
            del self._children[folder]
            self._done[folder] = metadata
        return count


def child_runs(folder: Path) -> list[Path]:
    """Return the run folders below ``folder`` that name it as their parent."""
    folders = []
    for path in sorted(folder.rglob("run.json")):
        parent = read_metadata(path.parent).get("parent")
        if parent and (path.parent / parent).resolve() == folder.resolve():
            folders.append(path.parent)
    return folders
