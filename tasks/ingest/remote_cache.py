"""Prepared data that machines without a common disk share through object storage."""

from __future__ import annotations

from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.ingest.manifest import MANIFEST
from anchorfl.tasks.ingest.prepared import Prepared


def find(location: str) -> Prepared | None:
    """Return the prepared data at a location; None: there are none. Raises InputError: the store or a file fails."""
    if not object_store.exists(object_store.join(location, MANIFEST)):
        return None
    prepared = Prepared.load(location)
    lost = set(prepared.manifest.files) - object_store.sizes(location).keys()
    if lost:
        folder = object_store.shown(location)
        raise PreparedDataError(
            f"{folder}: {min(lost)} is missing; delete the folder and start again, which prepares the data"
        )
    return prepared
