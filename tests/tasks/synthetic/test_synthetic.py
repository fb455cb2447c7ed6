"""Every data set that needs files has synthetic ones, which go to prepared data."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.raw_files import status
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import TASKS, find_task
from anchorfl.tasks.synthetic import SYNTHETIC

OPTIONS = {"mimic3-50": {"variant": "own", "min_count": 1}, "r8": {"min_count": 1}, "extrasensory": {"validation": 0.0}}
ROWS = {"extrasensory": 600, "mimic3-50": 300, "flair": 60, "femnist": 200}


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        total.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return total.hexdigest()


def test_every_data_set_that_needs_files_has_a_twin():
    assert {name for name in TASKS if find_task(name).source.files} == SYNTHETIC.keys()


@pytest.mark.parametrize("name", SYNTHETIC)
def test_from_made_up_files_to_prepared_data(name, tmp_path):
    folders = [tmp_path / n for n in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        SYNTHETIC[name](folder, ROWS.get(name, 120), 3)
    assert digest(folders[0]) == digest(folders[1])
    task = find_task(name)
    options = TaskOptions(
        name=name, root=str(folders[0]), cache=str(tmp_path / "cache"), clients=2, partition="iid", min_positives=1,
        **{"image_size": 16, "validation": 0.0, **OPTIONS.get(name, {})},
    )  # fmt: skip
    assert status(task, options).found
    prepared = prepare(task, options, 1, engine="local")
    m = prepared.manifest
    assert min(m.examples) > 0
    assert m.test > 0
    assert len(set(m.class_names)) == len(m.class_names) > 1
    data = prepared.client(0, Objective(m.kind))
    assert np.isfinite(data.x.numpy()).all()
    assert data.x.numpy().std() > 0
    assert len(data) == m.examples[0]
    with pytest.raises(InputError, match="looked in"):
        prepare(task, TaskOptions(name=name, root=str(tmp_path / "none"), cache=options.cache), 1, engine="local")
