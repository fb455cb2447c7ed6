"""OCT-C8: 24,000 grey optical coherence tomography scans of the retina, 8 classes, single-label (FedBM).

Published split: 18,400 training, 2,800 validation and 2,800 test images in ``train``, ``val`` and ``test``, each with
one folder per class: AMD, CNV, CSR, DME, DR, DRUSEN, MH, NORMAL. Put these three into the data folder. Origin: Kaggle
"Retinal OCT-C8" (O. S. Naren, 2021), collected from several older sets; see its page for the terms.

Class names are bound to folders by name: FedBM's code lists the concepts in another order than the folders, so that
its macular hole and diabetic retinopathy are swapped. Chosen by us: nothing; 128 x 128 RGB is FedBM's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.images.folders import Listing, image_table, list_folders
from anchorfl.tasks.images.pixels import encode_paths, image_spec
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.prompts import Wording

FOLDERS = {
    "AMD": "age-related macular degeneration",
    "CNV": "choroidal neovascularization",
    "CSR": "central serous retinopathy",
    "DME": "diabetic macular edema",
    "DR": "diabetic retinopathy",
    "DRUSEN": "choroidal drusen",
    "MH": "macular hole",
    "NORMAL": "normal retina",
}
CLASSES = tuple(FOLDERS.values())
SPLIT_OF = {"train": "train", "val": "validation", "test": "test"}
SIZE = 128


def oct_c8() -> Task:
    """Return the OCT-C8 task."""
    return Task(
        name="oct-c8",
        title="Retinal OCT-C8, scans of the retina",
        class_names=CLASSES,
        kind="single",
        payload="path",
        source=Source(
            files=tuple(f"{part}/{folder}/*.jpg" for part in SPLIT_OF for folder in FOLDERS),
            url="https://www.kaggle.com/datasets/obulisainaren/retinal-oct-c8",
            licence="see its page",
        ),
        folder="oct_c8",
        read=read,
        fit=fit,
        encode=encode_paths,
        wording=Wording(("OCT image", "OCT photo", "OCT scan")),
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return one row per image, training folders first. Raises InputError with the path."""
    if folder is None:
        raise ValueError("oct-c8 needs the folder of its images")
    bad = BadRows.of(options)
    parts = [list_folders(folder / part, tuple(FOLDERS), bad) for part in SPLIT_OF]
    split_N = np.repeat(np.array(list(SPLIT_OF.values())), [len(part.paths) for part in parts])
    paths = tuple(path for part in parts for path in part.paths)
    listing = Listing(paths, np.concatenate([part.class_N for part in parts]))
    return image_table(listing, split_N, "path", bad)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB of 128 x 128 unless asked otherwise; nothing is learnt from the rows."""
    return image_spec(options, SIZE)
