"""PASCAL VOC 2007 and 2012: photographs with any of 20 kinds of objects, multi-label (FedALC).

VOC2007: 2501 training, 2510 validation and 4952 test images, the official sets. Images with a class, not difficult +
only as difficult objects (train/validation/test): aeroplane 112+1/126+1/204+1, bicycle 116+6/127+6/239+11, bird
180+2/150+1/282+7, boat 81+6/100+1/172+4, bottle 139+14/105+4/212+28, bus 97+3/89+8/174+9, car 376+26/337+22/721+54,
cat 163+3/174+4/322+10, chair 224+58/221+69/417+128, cow 69+2/72+3/127+0, dining table 97+33/103+30/190+57, dog
203+7/218+2/418+15, horse 139+5/148+2/274+5, motorbike 120+3/125+1/222+11, person 1025+45/983+42/2007+90, potted plant
133+20/112+8/224+30, sheep 48+1/48+0/97+1, sofa 111+77/118+66/223+132, train 127+1/134+1/259+0, tv monitor
128+16/128+7/229+26. Variant ``trainval`` is FedALC's: all 5011 for training, of which ``task.validation = 0.05`` holds
out a twentieth (251; the paper has 4761/250), and the same test images.
VOC2012: 5717 training images; the labels of its test set are not public, so its 5823 validation images are the test
set here. FedALC trains on both and tests on the second, so every test image of its VOC 2012 was trained on; there is
no variant that does so.

Chosen by us: a class of which an image shows only difficult objects is present (the papers do not say); the tasks
``voc2007-difficult-unknown`` and ``voc2012-difficult-unknown`` make it unknown, as in VOC's own evaluation. Images are
resized to 224 pixels. Names are written as words (file ``diningtable_train.txt``: dining table). Origin: Everingham et
al., IJCV 2010; terms: flickr's for the images, which are for research.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_file, open_text, variant
from anchorfl.tasks.images.listed import present
from anchorfl.tasks.images.pixels import encode_paths, image_spec, path_column
from anchorfl.tasks.options import TaskOptions

GROUPS = {
    "person": ("person",),
    "animal": ("bird", "cat", "cow", "dog", "horse", "sheep"),
    "vehicle": ("aeroplane", "bicycle", "boat", "bus", "car", "motorbike", "train"),
    "indoor": ("bottle", "chair", "dining table", "potted plant", "sofa", "tv monitor"),
}
"""VOC's own categories."""
CLASSES = tuple(sorted(name for names in GROUPS.values() for name in names))
SETS = {
    (2007, "train"): {"train": "train", "val": "validation", "test": "test"},
    (2007, "trainval"): {"trainval": "train", "test": "test"},
    (2012, ""): {"train": "train", "val": "test"},
}
"""Year and variant -> the image sets of the development kit and what they are here."""
SIZE = 224
PRESENT, DIFFICULT, ABSENT = 1, 0, -1
_VALUES = {"1": PRESENT, "0": DIFFICULT, "-1": ABSENT}
_IMAGE = re.compile(r"\d{6}|\d{4}_\d{6}")


def voc2007() -> Task:
    """Return the task of VOC 2007, difficult objects present."""
    return _task(2007, difficult_known=True)


def voc2007_difficult_unknown() -> Task:
    """Return the task of VOC 2007 in which a class is unknown where all its objects are difficult."""
    return _task(2007, difficult_known=False)


def voc2012() -> Task:
    """Return the task of VOC 2012, difficult objects present."""
    return _task(2012, difficult_known=True)


def voc2012_difficult_unknown() -> Task:
    """Return the task of VOC 2012 in which a class is unknown where all its objects are difficult."""
    return _task(2012, difficult_known=False)


def read(folder: Path | None, options: TaskOptions, *, year: int, difficult_known: bool) -> Table:
    """Return the raw rows, set by set in the order of the lists; ``row`` is the number of the image.

    Raises InputError with file and line, and where images are missing.
    """
    if folder is None:
        raise ValueError(f"voc{year} needs the folder of its files")
    bad = BadRows.of(options)
    table = labels_of(folder, SETS[year, variant(_task(year, difficult_known), options)], year, bad)
    images = folder / f"VOC{year}" / "JPEGImages"
    names = [f"{image}.jpg" for image in table["image"].to_pylist()]
    found_N = present(images, names, table["location"].to_pylist(), bad)
    value_NC = np.stack(table["value"].to_numpy())
    columns = {
        "row": pa.array([int(name[:-4].replace("_", "")) for name in names], pa.int64()),
        "split": table["split"],
        "labels": Labels.of_matrix(value_NC == PRESENT if not difficult_known else value_NC != ABSENT).lists(),
        "path": path_column([images / name for name in names]),
    }
    if not difficult_known:
        known_NC = value_NC != DIFFICULT
        columns["known"] = pc.if_else(pa.array(known_NC.all(1)), None, Labels.of_matrix(known_NC).lists())
    return bad.noted(pa.table(columns).filter(pa.array(found_N)))


def labels_of(folder: Path, sets: dict[str, str], year: int, bad: BadRows) -> Table:
    """Return the image lists alone, without a look at the images: columns ``image`` (its name without .jpg), ``split``,
    ``location`` (``<file>:<line>`` of its first list) and ``value``, 20 int8 in the order of CLASSES: 1 present, 0 only
    difficult objects, -1 absent.

    sets: image set -> split. Raises InputError with file and line, and on an image in two sets.
    """
    location_of, value_of, split_of = dict[str, str](), dict[str, npt.NDArray[np.int8]](), dict[str, str]()
    for part, split in sets.items():
        locations, values = _read_set(folder / f"VOC{year}" / "ImageSets" / "Main", part, bad)
        twice = next((image for image in locations if image in location_of), "")
        if twice:
            first = location_of[twice]
            raise InputError(
                f"{locations[twice]}: image {twice} stands also at {first}, in another set; correct the lists"
            )
        location_of.update(locations)
        value_of.update(values)
        split_of.update(dict.fromkeys(locations, split))
    columns = {
        "image": pa.array(list(location_of), pa.string()),
        "split": pa.array(list(split_of.values()), pa.string()),
        "location": pa.array(list(location_of.values()), pa.string()),
        "value": pa.array(list(value_of.values()), pa.list_(pa.int8())),
    }
    return pa.table(columns)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB images of 224 x 224 or ``image_size``, scaled with ImageNet's mean and deviation."""
    return image_spec(options, SIZE)


def _task(year: int, difficult_known: bool) -> Task:
    lists, sets = f"VOC{year}/ImageSets/Main", ("{train|trainval}", "val", "test") if year == 2007 else ("train", "val")
    suffix, words = ("", "") if difficult_known else ("-difficult-unknown", ", difficult objects unknown")
    return Task(
        name=f"voc{year}{suffix}",
        title=f"PASCAL VOC {year}, objects in photographs{words}",
        class_names=CLASSES,
        kind="multi",
        payload="path",
        source=Source(
            files=(*(f"{lists}/*_{part}.txt" for part in sets), f"VOC{year}/JPEGImages/*.jpg"),
            url=f"http://host.robots.ox.ac.uk/pascal/VOC/voc{year}/",
            licence="flickr's terms of use for the images; for research",
        ),
        folder="VOCdevkit",
        read=partial(read, year=year, difficult_known=difficult_known),
        fit=fit,
        encode=encode_paths,
        groups=GROUPS,
    )


def _read_set(lists: Path, part: str, bad: BadRows) -> tuple[dict[str, str], dict[str, npt.NDArray[np.int8]]]:
    """Return the location in the first list, and the 20 values, of every image of one set that all 20 lists label."""
    paths = [find_file(lists, f"{name.replace(' ', '')}_{part}.txt") for name in CLASSES]
    faulty = set[str]()
    lines, values = zip(*(_read_list(path, faulty, bad) for path in paths), strict=True)
    order = dict.fromkeys(image for numbers in lines for image in numbers)
    if not order:
        raise InputError(f"{paths[0]}: the file is empty; get it again")
    for image in order:
        if image not in faulty:
            _check_all_lists(image, paths, lines, faulty, bad)
    good = [image for image in order if image not in faulty]
    locations = {image: f"{paths[0]}:{lines[0][image]}" for image in good}
    return locations, {image: np.array([value[image] for value in values], dtype=np.int8) for image in good}


def _read_list(path: Path, faulty: set[str], bad: BadRows) -> tuple[dict[str, int], dict[str, int]]:
    """Return the line and value of every image of one list of lines ``<image> <1, 0 or -1>``; images with a bad line
    are added to ``faulty``.
    """
    lines, values = dict[str, int](), dict[str, int]()
    for number, line in open_text(path):
        image, value = [*line.split(), "", ""][:2]
        if not _IMAGE.fullmatch(image) or len(line.split()) != 2:
            bad.meet(f"{path}:{number}: {line!r} is not '<image> <1, 0 or -1>'; correct the line")
        elif image in lines:
            faulty.add(image)
            bad.meet(f"{path}:{number}: image {image} stands also in line {lines[image]}; remove one")
        elif value not in _VALUES:
            faulty.add(image)
            bad.meet(f"{path}:{number}: label {value!r} of image {image} is not 1, 0 or -1; correct it")
        else:
            lines[image], values[image] = number, _VALUES[value]
    return lines, values


def _check_all_lists(
    image: str, paths: Sequence[Path], lines: Sequence[dict[str, int]], faulty: set[str], bad: BadRows
) -> None:
    """Meet a bad row where one list lacks an image that another has."""
    lacking = [i for i, numbers in enumerate(lines) if image not in numbers]
    if lacking:
        faulty.add(image)
        other = next(i for i, numbers in enumerate(lines) if image in numbers)
        bad.meet(
            f"{paths[lacking[0]]}: no line for image {image}, which {paths[other]}:{lines[other][image]} has; add it"
        )
