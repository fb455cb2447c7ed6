"""Prepared data that machines without a common disk share through object storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.ingest.manifest import MANIFEST, manifest_bytes
from anchorfl.tasks.ingest.prepared import Prepared, file_list

UPLOADS = 8
"""Files on their way at one time."""


def find(location: str) -> Prepared | None:
    """Return the prepared data at a location; None: there are none. Raises InputError: the store or a file fails."""
    if not object_store.exists(object_store.join(location, MANIFEST)):
        return None
    prepared = Prepared.load(location)
    lost = set(file_list(prepared.manifest)) - object_store.sizes(location).keys()
    if lost:
        folder = object_store.shown(location)
        raise PreparedDataError(
            f"{folder}: {min(lost)} is missing; delete the folder and start again, which prepares the data"
        )
    return prepared


def upload(prepared: Prepared, location: str) -> None:
    """Copy a prepared folder, the manifest last: it makes it complete. Raises InputError where the store fails."""

    def send(name: str, data: bytes) -> None:
        object_store.write_bytes(object_store.join(location, name), data)

    with ThreadPoolExecutor(UPLOADS) as pool:
        list(pool.map(lambda name: send(name, prepared.content(name)), file_list(prepared.manifest)))
    send(MANIFEST, manifest_bytes(prepared.manifest))
