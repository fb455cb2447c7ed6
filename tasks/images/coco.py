"""COCO 2014: photographs with any of 80 kinds of objects, multi-label (FedALC).

82,783 training images (train2014), of which 82,081 have an annotation, and 40,504 test images (val2014), of which
40,137 have one. As in FedALC, whose 73,873 + 8,208 and 40,137 images are these, images without any annotation are left
out: FedALC's validation rows are a tenth of the training images (``task.validation = 0.1``). A class is positive where
the image has an annotation of it; regions that hold a crowd (iscrowd) count like single objects, as in the usual
multi-label COCO.

Chosen by us: images are resized to 112 pixels, as the 40,137 test images of 224 pixels would take 24 GB as numbers
(``task.image_size = 224`` where there is the memory). Origin: Lin et al., ECCV 2014; terms: annotations CC BY 4.0,
images under flickr's terms of use.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Bools, Ints, Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_file
from anchorfl.tasks.images.json_file import listed, parsed, whole
from anchorfl.tasks.images.listed import present
from anchorfl.tasks.images.pixels import encode_paths, image_spec, path_column
from anchorfl.tasks.options import TaskOptions

GROUPS = {
    "person": ("person",),
    "vehicle": ("bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat"),
    "outdoor": ("traffic light", "fire hydrant", "stop sign", "parking meter", "bench"),
    "animal": ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    "accessory": ("backpack", "umbrella", "handbag", "tie", "suitcase"),
    "sports": (
        *("frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove"),
        *("skateboard", "surfboard", "tennis racket"),
    ),
    "kitchen": ("bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl"),
    "food": (*("banana", "apple", "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake"),),
    "furniture": ("chair", "couch", "potted plant", "bed", "dining table", "toilet"),
    "electronic": ("tv", "laptop", "mouse", "remote", "keyboard", "cell phone"),
    "appliance": ("microwave", "oven", "toaster", "sink", "refrigerator"),
    "indoor": ("book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush"),
}
"""COCO's supercategories."""
CLASSES = tuple(name for names in GROUPS.values() for name in names)
"""Classes in the order of COCO's category ids, which are 1..90 with gaps; the files say which id is which name."""
PARTS = {"train2014": "train", "val2014": "test"}
"""Folder of images -> split."""
SIZE = 112


class Annotation(NamedTuple):
    """The part of one annotated region that is kept; -1 where a field is missing or no whole number."""

    id: int
    image_id: int
    category_id: int


class Image(NamedTuple):
    """The part of one image's entry that is kept."""

    id: int
    file_name: str


@dataclass(frozen=True, slots=True)
class AnnotatedImages:
    """The images of one file that have an annotation."""

    image_N: Ints
    """Ids of the images."""
    names: list[str]
    """Names of their files."""
    locations: list[str]
    """Location of each in the annotation file."""
    y_NC: Bools
    """Classes of the images."""


def coco2014() -> Task:
    """Return the COCO 2014 task."""
    return Task(
        name="coco2014",
        title="COCO 2014, objects in photographs",
        class_names=CLASSES,
        kind="multi",
        payload="path",
        source=Source(
            files=(*(f"annotations/instances_{part}.json" for part in PARTS), *(f"{part}/*.jpg" for part in PARTS)),
            url="https://cocodataset.org/#download",
            licence="annotations CC BY 4.0; images under flickr's terms of use",
        ),
        folder="coco2014",
        read=read,
        fit=fit,
        encode=encode_paths,
        groups=GROUPS,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows, training images first, in the order of the files; ``row`` is COCO's image id.

    Raises InputError with file and entry, and where images are missing.
    """
    if folder is None:
        raise ValueError("coco2014 needs the folder of its files")
    bad = BadRows.of(options)
    parts = []
    for part, split in PARTS.items():
        rows = images_of(find_file(folder, f"annotations/instances_{part}.json"), bad)
        found_N = present(folder / part, rows.names, rows.locations, bad)
        columns = {
            "row": rows.image_N,
            "split": pa.array([split] * len(rows.names), pa.string()),
            "labels": Labels.of_matrix(rows.y_NC).lists(),
            "path": path_column([folder / part / name for name in rows.names]),
        }
        parts.append(pa.table(columns).filter(pa.array(found_N)))
    twice = np.intersect1d(*(part["row"].to_numpy() for part in parts))
    if len(twice):
        raise InputError(f"{folder}: image {twice[0]} stands in both annotation files; get them again")
    return bad.noted(pa.concat_tables(parts))


def images_of(path: Path, bad: BadRows) -> AnnotatedImages:
    """Return the images of one annotation file that have an annotation, without a look at the images themselves.

    The peak of memory is the text of the file and 150 bytes for each of its annotations (measured on a made-up file of
    this size, 462 MB and 604,907 annotations: 880 MB, of which 460 are the mapped file). Raises InputError with the
    entry that is wrong.
    """
    content = parsed(path, _kept)
    class_of = _classes(listed(content, "categories", path), path)
    images = _images(listed(content, "images", path), path, bad)
    annotations = listed(content, "annotations", path)
    wrong = next((i for i, entry in enumerate(annotations) if not isinstance(entry, Annotation)), -1)
    if wrong >= 0:
        raise InputError(f"{path}: annotations[{wrong}] has no category_id; get the file again")
    entry_A3 = np.array(annotations, dtype=np.int64).reshape(-1, 3)
    image_I = np.sort(np.fromiter(images, dtype=np.int64, count=len(images)))
    known_A = np.isin(entry_A3[:, 1], image_I)
    code_A = _codes(entry_A3[:, 2], class_of)
    faulty = _faults(path, entry_A3, known_A, code_A, bad)
    good_A = known_A & (code_A >= 0)
    y_IC = np.zeros((len(image_I), len(CLASSES)), dtype=np.bool_)
    y_IC[np.searchsorted(image_I, entry_A3[good_A, 1]), code_A[good_A]] = True
    y_IC[np.searchsorted(image_I, np.array(sorted(faulty & images.keys()), dtype=np.int64))] = False
    order = np.fromiter(images, dtype=np.int64, count=len(images))
    y_IC = y_IC[np.searchsorted(image_I, order)]
    image_N = order[y_IC.any(1)]
    names = [images[image][0] for image in image_N.tolist()]
    locations = [f"{path}: images[{images[image][1]}]" for image in image_N.tolist()]
    return AnnotatedImages(image_N, names, locations, y_IC[y_IC.any(1)])


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB images of 112 x 112 or ``image_size``, scaled with ImageNet's mean and deviation."""
    return image_spec(options, SIZE)


def _kept(entry: dict[str, Any]) -> Any:
    """Return the part of a JSON object of an annotation file that stays: polygons and addresses go at once."""
    if "category_id" in entry:
        return Annotation(*(whole(entry.get(field)) for field in Annotation._fields))
    if "file_name" in entry:
        return Image(whole(entry.get("id")), str(entry["file_name"]))
    return {} if "counts" in entry else entry


def _classes(categories: list[Any], path: Path) -> dict[int, int]:
    """Return the category id -> number in CLASSES. Raises InputError unless the file has exactly these 80 names."""
    class_of = dict[int, int]()
    for number, category in enumerate(categories):
        name, id_ = (category.get("name"), whole(category.get("id"))) if isinstance(category, dict) else ("", -1)
        if name not in CLASSES:
            msg = f"{path}: categories[{number}]: {name!r} is no category of COCO 2014{nearest(str(name), CLASSES)}"
            raise InputError(f"{msg}; correct the name")
        if id_ < 0 or id_ in class_of or CLASSES.index(name) in class_of.values():
            raise InputError(
                f"{path}: categories[{number}]: {name!r} has no id, or name or id stand twice; get the file again"
            )
        class_of[id_] = CLASSES.index(name)
    if len(class_of) != len(CLASSES):
        lacking = next(name for i, name in enumerate(CLASSES) if i not in class_of.values())
        raise InputError(
            f"{path}: {len(class_of)} of {len(CLASSES)} categories, {lacking!r} is missing; get the file again"
        )
    return class_of


def _images(entries: list[Any], path: Path, bad: BadRows) -> dict[int, tuple[str, int]]:
    """Return the image id -> name of its file and number of its entry."""
    images = dict[int, tuple[str, int]]()
    for number, entry in enumerate(entries):
        if not isinstance(entry, Image) or entry.id < 0 or not entry.file_name or "/" in entry.file_name:
            bad.meet(f"{path}: images[{number}] needs a whole number as id and a file_name without folder; correct it")
        elif entry.id in images:
            bad.meet(f"{path}: images[{number}]: id {entry.id} is that of images[{images[entry.id][1]}]; correct one")
        else:
            images[entry.id] = (entry.file_name, number)
    return images


def _codes(category_A: Ints, class_of: dict[int, int]) -> Ints:
    """Return the number in CLASSES of every annotation, -1 where its category is unknown."""
    known_K = np.array(sorted(class_of), dtype=np.int64)
    code_K = np.array([class_of[id_] for id_ in known_K.tolist()], dtype=np.int64)
    index_A = np.minimum(np.searchsorted(known_K, category_A), len(known_K) - 1)
    found_A: Ints = np.where(known_K[index_A] == category_A, code_K[index_A], -1)
    return found_A


def _faults(path: Path, entry_A3: Ints, known_A: Bools, code_A: Ints, bad: BadRows) -> set[int]:
    """Return the images of which an annotation is unusable: without it their labels would be wrong."""
    faulty = set[int]()
    for number in np.flatnonzero(~known_A | (code_A < 0)).tolist():
        id_, image, category = entry_A3[number].tolist()
        where = f"{path}: annotations[{number}] (id {id_})"
        if not known_A[number]:
            bad.meet(f"{where}: image_id {image} is no image of the file; correct it")
        elif image not in faulty:
            faulty.add(image)
            bad.meet(f"{where}: category_id {category} of image {image} is no category of the file; correct it")
    return faulty
