"""The account of prepared data beside their rows, and the name that makes a folder complete."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.arrays.ragged import IntLists
from anchorfl.tasks.files.folders import sync_folder
from anchorfl.tasks.ingest.cache_folder import data_digest
from anchorfl.tasks.ingest.class_histogram import ClassHistogram
from anchorfl.tasks.ingest.destination import Destination
from anchorfl.tasks.ingest.manifest import CLIENTS, EXTENTS_FILE, MANIFEST, Manifest, Summary, manifest_bytes
from anchorfl.tasks.ingest.prepared import CLASS_COUNTS, PARTITION, table_bytes
from anchorfl.tasks.ingest.rows_files import EXTENTS, owner_name, rows_file
from anchorfl.tasks.partition.plan import PartitionPlan, plan_table


def make_manifest(summary: Summary, classes: IntLists, histogram: ClassHistogram, written: Table) -> Manifest:
    """Return the manifest; what it says of files is still empty. classes: identified by every client."""
    clients, row_O, content_O = len(classes), written["rows"].to_pylist(), written["content"].to_pylist()
    # each was a file of its own once: kept as a name, so that the same data have the same digest as they had then
    content = {f"{owner_name(owner, clients)}.parquet": digest for owner, digest in enumerate(content_O)}
    known = {f.name: getattr(summary, f.name) for f in fields(Summary)}
    known |= {"data_digest": data_digest(content), "test": row_O[clients], "validation": row_O[clients + 1]}
    return Manifest(
        **known,
        examples=tuple(row_O[:clients]),
        counts=histogram.known_to(classes, len(summary.class_names)),
        classes=classes,
        client_test=tuple(row_O[clients + 2 :]),
        extents=written.select(EXTENTS.names),
    )


def write_account(
    destination: Destination, manifest: Manifest, plan: PartitionPlan, histogram: ClassHistogram, written: Table
) -> None:
    """Write what is beside the rows, the manifest last, as it makes the folder complete."""
    tables = {
        EXTENTS_FILE: manifest.extents,
        CLIENTS: manifest.clients_table(),
        CLASS_COUNTS: histogram.table(),
        PARTITION: plan_table(plan),
    }
    numbers, digests = (written[name].to_pylist() for name in ("file", "footer"))
    footers = {rows_file(number): digest for number, digest in zip(numbers, digests, strict=True)}
    files = footers | {name: destination.write(name, table_bytes(table)) for name, table in tables.items()}
    destination.close(MANIFEST, manifest_bytes(replace(manifest, files=files)))


def publish(building: str, folder: Path) -> None:
    """Give the finished folder its name at once; if another process was faster, its equal folder stays."""
    try:
        os.replace(building, folder)
    except OSError:
        if not (folder / "manifest.json").is_file():
            raise
        return
    sync_folder(str(folder.parent))
