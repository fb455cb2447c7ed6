"""HAM10000: 10,015 dermatoscopic images of 7,470 skin lesions, 7 diagnoses, single-label (FedBM; DermaMNIST).

Rows per class: akiec 327, bcc 514, bkl 1099, df 115, mel 1113, nv 6705, vasc 142. All variants need
``HAM10000_metadata.csv``: ``jpg``, the photographs (600 x 450 pixels) in the published folders
``HAM10000_images_part_1`` and ``_2``, or in any folders below the data folder; ``hmnist_8_8_L``, Kaggle's table of all
images in 8 x 8 grey pixels, in the row order of the metadata, with class numbers of its own; ``thumbs64``, 201 images
in color, 64 x 64. Origin: Tschandl et al., Scientific Data 5:180161 (2018), Harvard Dataverse doi:10.7910/DVN/DBW86T;
terms: not for commercial use, with attribution (CC BY-NC 4.0 according to MedMNIST, CC BY-NC-SA 4.0 on Kaggle).

Chosen by us: the split, 7:1:2 of the images in every class, drawn with a seed of the task's own over the metadata, so
that it is the same in all variants. A lesion with all its images is on one side. The paper speaks of 8 classes and
names these 7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import file_names, find_file, find_files, variant
from anchorfl.tasks.images.folders import split_7_1_2, table_of
from anchorfl.tasks.images.ham10000_rows import (
    DIAGNOSES,
    MetadataRows,
    photographs,
    read_metadata,
    read_pixels,
    thumbnails,
)
from anchorfl.tasks.images.pixels import encode_images, image_spec
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.prompts import Wording

CLASSES = tuple(DIAGNOSES.values())
SIZES = {"jpg": 128, "hmnist_8_8_L": 8, "thumbs64": 64}
"""Default height and width of every variant."""
SPLIT_SEED = 8


def ham10000() -> Task:
    """Return the HAM10000 task."""
    return Task(
        name="ham10000",
        title="HAM10000, dermatoscopic images of skin lesions",
        class_names=CLASSES,
        kind="single",
        payload="image",
        source=Source(
            files=(
                "HAM10000_metadata.csv",
                "{jpg=**/ISIC_*.jpg|hmnist_8_8_L=hmnist_8_8_L.csv|thumbs64=ham10000_thumbs_64.npz}",
            ),
            url="https://doi.org/10.7910/DVN/DBW86T",
            licence="CC BY-NC(-SA) 4.0, not for commercial use",
        ),
        folder="ham10000",
        read=read,
        fit=fit,
        encode=encode_images,
        subjects="lesion",
        wording=Wording(("dermatoscopic image", "dermatoscopic photo", "skin lesion photo")),
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return one row per image that the variant has, numbered and ordered as in the metadata; ``subject`` is the
    lesion.

    Raises InputError with file and line.
    """
    if folder is None:
        raise ValueError("ham10000 needs the folder of its images")
    bad, chosen = BadRows.of(options), variant(ham10000(), options)
    metadata, name = file_names(ham10000(), options)
    rows = read_metadata(find_file(folder, metadata), bad)
    if chosen == "jpg":
        index_N, images = photographs(find_files(folder, name), rows, bad)
    elif chosen == "thumbs64":
        index_N, images = thumbnails(find_file(folder, name), rows, bad)
    else:
        index_N, images = read_pixels(find_file(folder, name), rows, bad)
    if not len(index_N):
        raise InputError(f"{folder}: no image of {name} has a good row in {metadata}; get the files again")
    columns = {"image": images, "subject": pa.array([rows.lesions[index] for index in index_N.tolist()])}
    split_N = _split(rows, options.seed_of_split(SPLIT_SEED))
    return bad.noted(table_of(rows.row_N[index_N], rows.class_N[index_N], split_N[index_N], columns))


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB of 128 x 128 (thumbs64: 64 x 64) or grey of 8 x 8; nothing is learnt from the rows."""
    chosen = variant(ham10000(), options)
    return image_spec(options, SIZES[chosen], 1 if chosen == "hmnist_8_8_L" else 3)


def _split(rows: MetadataRows, seed: int) -> Any:
    lesion_N = np.unique(np.array(rows.lesions), return_inverse=True)[1]
    return split_7_1_2(rows.class_N, lesion_N, seed)
