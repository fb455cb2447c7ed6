"""Synthetic COCO 2014 (``tasks/images/coco.py``): annotation files with polygons, boxes and crowds, painted JPEGs.

As in COCO, a few images have no annotation, category ids have gaps, and annotations stand in no order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools
from anchorfl.tasks.images.coco import CLASSES, GROUPS, PARTS
from anchorfl.tasks.synthetic.painting import label_sets, save

CATEGORY_IDS = tuple(n for n in range(1, 91) if n not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
"""COCO's, in the order of CLASSES."""
UNLABELLED = 0.02
CROWDS = 0.05


def write(folder: Path, rows: int, seed: int) -> None:
    """Write annotations/instances_{train,val}2014.json and their images.

    ``rows`` images have annotations, two thirds of them for training; about 2 % more have none.
    """
    rng = np.random.default_rng(seed)
    group = [i for i, names in enumerate(GROUPS.values()) for _ in names]
    y_NC = label_sets(rows, np.array(group), rng)
    for part, y in zip(PARTS, np.split(y_NC, [round(rows * 2 / 3)]), strict=True):
        y = np.concatenate([y, np.zeros((max(1, round(len(y) * UNLABELLED)), len(CLASSES)), dtype=np.bool_)])
        _write_part(folder, part, y[rng.permutation(len(y))], rng)


def _write_part(folder: Path, part: str, y_NC: Bools, rng: np.random.Generator) -> None:
    first = 9 if part.startswith("train") else 42_000_000
    ids = (first + np.cumsum(rng.integers(1, 20, len(y_NC)))).tolist()
    images = [_image(part, id_) for id_ in ids]
    for image, y_C in zip(images, y_NC, strict=True):
        save(folder / part / image["file_name"], np.flatnonzero(y_C).tolist(), rng)
    row_P, class_P = np.nonzero(y_NC)
    again = rng.random(len(row_P)) < 0.3  # several objects of a class
    row_P, class_P = (np.concatenate([values, values[again]]) for values in (row_P, class_P))
    order = rng.permutation(len(row_P)).tolist()
    annotations = [_annotation(n, ids[row_P[p]], CATEGORY_IDS[class_P[p]], rng) for n, p in enumerate(order, start=156)]
    names = [(group, name) for group, members in GROUPS.items() for name in members]
    content = {
        "info": {"description": "made up, not COCO", "version": "1.0", "year": 2014, "contributor": "", "url": ""},
        "images": images,
        "licenses": [{"url": "http://localhost/", "id": 1, "name": "made up"}],
        "annotations": annotations,
        "categories": [
            {"supercategory": group, "id": id_, "name": name}
            for id_, (group, name) in zip(CATEGORY_IDS, names, strict=True)
        ],
    }
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))


def _image(part: str, id_: int) -> dict[str, Any]:
    return {
        "license": 1,
        "file_name": f"COCO_{part}_{id_:012d}.jpg",
        "coco_url": f"http://localhost/{id_}",
        "height": 48,
        "width": 64,
        "date_captured": "2013-11-14 11:18:45",
        "flickr_url": f"http://localhost/{id_}_z.jpg",
        "id": id_,
    }


def _annotation(id_: int, image: int, category: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return a region: a polygon, or a crowd's run lengths."""
    crowd = bool(rng.random() < CROWDS)
    polygon = rng.uniform(0, 48, 12).round(2).tolist()
    counts = {"counts": rng.integers(1, 50, 8).tolist(), "size": [48, 64]}
    return {
        "segmentation": counts if crowd else [polygon],
        "area": round(rng.uniform(10, 500), 4),
        "iscrowd": int(crowd),
        "image_id": image,
        "bbox": rng.uniform(0, 40, 4).round(2).tolist(),
        "category_id": category,
        "id": id_,
    }
