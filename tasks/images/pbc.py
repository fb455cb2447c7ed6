"""PBC: 17,092 microscopic images of normal peripheral blood cells, 8 classes, single-label (FedBM; BloodMNIST).

Rows per class: basophil 1218, eosinophil 3117, erythroblast 1551, immature granulocyte 2895, lymphocyte 1214,
monocyte 1420, neutrophil 3329, platelet 2348. Variants: ``jpg``, the original photographs (about 360 x 363 pixels) in
``PBC_dataset_normal_DIB``; ``npz28``, all of them, and ``npz64``, 50 of every class, cut and reduced to 28 x 28 and
64 x 64 (arrays images, labels, filenames, class_names). Origin: Acevedo et al., Data in Brief 30:105474 (2020),
Mendeley Data snkd93bnjr; terms: CC BY 4.0.

Chosen by us: the split, 7:1:2 in every class, drawn with a seed of the task's own (MedMNIST's is not reproduced).
17 images occur twice byte for byte, and one of them under two classes (EO_225902, eosinophil, is BNE_191112,
neutrophil): both copies are kept, always on the same side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import file_names, find_file, variant
from anchorfl.tasks.images.arrays import load_arrays
from anchorfl.tasks.images.folders import image_table, list_folders, same_content, split_7_1_2, table_of
from anchorfl.tasks.images.pixels import Pixels, encode_images, image_spec, pixel_column
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.prompts import Wording

FOLDERS = {
    "basophil": "basophil",
    "eosinophil": "eosinophil",
    "erythroblast": "erythroblast",
    "ig": "immature granulocyte",
    "lymphocyte": "lymphocyte",
    "monocyte": "monocyte",
    "neutrophil": "neutrophil",
    "platelet": "platelet",
}
CLASSES = tuple(FOLDERS.values())
ARCHIVE = "PBC_dataset_normal_DIB"
SIZES = {"jpg": 128, "npz28": 28, "npz64": 64}
"""Default height and width of every variant."""
SPLIT_SEED = 8


def pbc() -> Task:
    """Return the PBC task."""
    return Task(
        name="pbc",
        title="PBC, microscopic images of blood cells",
        class_names=CLASSES,
        kind="single",
        payload="image",
        source=Source(
            files=(
                *(f"{{jpg={ARCHIVE}/{folder}/*.jpg}}" for folder in FOLDERS),
                "{npz28=pbc_28.npz|npz64=pbc_64_subset400.npz}",
            ),
            url="https://data.mendeley.com/datasets/snkd93bnjr/1",
            licence="CC BY 4.0",
        ),
        folder="pbc_bloodcells",
        read=read,
        fit=fit,
        encode=encode_images,
        wording=Wording(("microscopic image", "microscopic photo", "blood smear image")),
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return one row per image, by class folder and name. Raises InputError with the path, or row of an array."""
    if folder is None:
        raise ValueError("pbc needs the folder of its images")
    bad = BadRows.of(options)
    if variant(pbc(), options) != "jpg":
        return _read_arrays(find_file(folder, *file_names(pbc(), options)), bad, options.seed_of_split(SPLIT_SEED))
    listing = list_folders(folder / ARCHIVE, tuple(FOLDERS), bad)
    split_N = split_7_1_2(listing.class_N, same_content(listing.paths), options.seed_of_split(SPLIT_SEED))
    return image_table(listing, split_N, "image", bad)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB of 128 x 128, or of the size of the arrays; nothing is learnt from the rows."""
    return image_spec(options, SIZES[variant(pbc(), options)])


def _read_arrays(path: Path, bad: BadRows, split_seed: int) -> Table:
    arrays = load_arrays(path, {"images": 4, "labels": 1, "filenames": 1, "class_names": 1})
    images, names = _checked_images(arrays["images"], path), arrays["filenames"].tolist()
    folder_C = _checked_names(arrays["class_names"].tolist(), path)
    code_N = arrays["labels"].astype(np.int64)
    good_N = np.ones(len(images), dtype=np.bool_)
    first_row = dict[str, int]()
    for row, (name, code) in enumerate(zip(names, code_N.tolist(), strict=True)):
        fault = ""
        if not 0 <= code < len(folder_C):
            fault = f"label {code} is no place in class_names (0..{len(folder_C) - 1})"
        elif str(name).split("/")[0] != folder_C[code]:
            fault = f"label {code} is {folder_C[code]}, but the file name is {name!r}"
        elif first_row.setdefault(name, row) != row:
            fault = f"{name!r} stands in row {first_row[name]} already"
        if fault:
            bad.meet(f"{path}: row {row}: {fault}; get the file again")
            good_N[row] = False
    class_N = _classes(code_N, folder_C)
    split_N = split_7_1_2(class_N, same_content(images), split_seed)
    row_N = np.flatnonzero(good_N)
    pixels = pixel_column(images[row_N])
    return bad.noted(table_of(row_N, class_N[row_N], split_N[row_N], {"image": pixels}))


def _checked_images(images: Any, path: Path) -> Pixels:
    if images.dtype != np.uint8 or images.shape[1] != images.shape[2] or images.shape[3] != 3 or not images.size:
        msg = f"{path}: images has shape {images.shape} of {images.dtype}, not (rows, side, side, 3) of uint8"
        raise InputError(f"{msg}; get the file again")
    square: Pixels = images
    return square


def _checked_names(names: list[str], path: Path) -> list[str]:
    for name in names:
        if name not in FOLDERS:
            msg = f"{path}: unknown class {name!r} in class_names{nearest(str(name), FOLDERS)}"
            raise InputError(f"{msg}; the classes are {', '.join(FOLDERS)}")
    return names


def _classes(code_N: Ints, folder_C: list[str]) -> Ints:
    """Return the class of every row; of a row with a bad label some class, as that row is left out."""
    class_C = np.array([list(FOLDERS).index(name) for name in folder_C], dtype=np.int64)
    return class_C[np.clip(code_N, 0, len(class_C) - 1)]
