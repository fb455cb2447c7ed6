"""Kvasir-v2: 8,000 endoscopic images of the digestive tract, 8 classes of 1,000, single-label (FedBM).

Origin: Pogorelov et al., MMSys 2017, ``kvasir-dataset-v2.zip``, whose eight class folders belong into the data folder;
terms: free for research and education, with citation.

Chosen by us: the split. None is published, and the authors of FedBM drew 7:1:2 with an unknown seed. Ours is 7:1:2 in
every class (5,600/800/1,600), drawn with a seed of the task's own; files that are equal byte for byte stay on one side.
"""

from __future__ import annotations

from pathlib import Path

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.images.folders import image_table, list_folders, same_content, split_7_1_2
from anchorfl.tasks.images.pixels import encode_paths, image_spec
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.prompts import Wording

FOLDERS = {
    "dyed-lifted-polyps": "dyed lifted polyp",
    "dyed-resection-margins": "dyed resection margin",
    "esophagitis": "esophagitis",
    "normal-cecum": "cecum",
    "normal-pylorus": "pylorus",
    "normal-z-line": "Z-line",
    "polyps": "polyps",
    "ulcerative-colitis": "ulcerative colitis",
}
CLASSES = tuple(FOLDERS.values())
SPLIT_SEED = 8
SIZE = 128


def kvasir_v2() -> Task:
    """Return the Kvasir-v2 task."""
    return Task(
        name="kvasir-v2",
        title="Kvasir-v2, endoscopic images",
        class_names=CLASSES,
        kind="single",
        payload="path",
        source=Source(
            files=tuple(f"{folder}/*.jpg" for folder in FOLDERS),
            url="https://datasets.simula.no/kvasir/",
            licence="free for research and education, citation required",
        ),
        folder="kvasir-dataset-v2",
        read=read,
        fit=fit,
        encode=encode_paths,
        wording=Wording(("endoscopic image", "endoscopic photo")),
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return one row per image, in the order of class folders and names. Raises InputError with the path."""
    if folder is None:
        raise ValueError("kvasir-v2 needs the folder of its images")
    bad = BadRows.of(options)
    listing = list_folders(folder, tuple(FOLDERS), bad)
    split_N = split_7_1_2(listing.class_N, same_content(listing.paths), options.seed_of_split(SPLIT_SEED))
    return image_table(listing, split_N, "path", bad)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB of 128 x 128 unless asked otherwise; nothing is learnt from the rows."""
    return image_spec(options, SIZE)
