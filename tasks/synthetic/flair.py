"""Synthetic FLAIR (``tasks/images/flair.py``): its annotation file and painted JPEGs of made-up users.

The names of the labels are real words in FLAIR's spelling, fewer than its 1,628. A user takes pictures of two or three
coarse categories.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.images.flair import ANNOTATIONS, IMAGES
from anchorfl.tasks.synthetic.painting import save

FINE = {
    "animal": ("bird", "cat", "dog", "fish", "horse", "insect"),
    "equipment": ("bag", "bicycle", "camera", "clock", "computer", "motorcycle"),
    "food": ("bread", "cake", "cheese", "coffee_bean", "fruit", "waffle"),
    "outdoor": ("blue_sky", "cloudy", "land", "rocks", "sand", "snow"),
    "plant": ("flower", "foliage", "grass", "moss", "plant", "tree"),
    "structure": ("arch", "bridge_road", "building", "fence", "stairs", "tower"),
}
PER_USER = 5
"""Images of a user on average."""
SHARES = (0.8, 0.1, 0.1)
"""Shares of the users: train, val, test."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write labels_and_metadata.json and small_images with so many images.

    There must be at least 30 (ValueError), so that every partition has users.
    """
    users = rows // PER_USER
    if users < 6:
        raise ValueError(f"{rows} rows are too few for users in every partition, ask for 30 or more")
    rng = np.random.default_rng(seed)
    user_N = rng.permutation(np.concatenate([np.arange(users), rng.integers(0, users, rows - users)]))
    held_out = [max(1, round(share * users)) for share in SHARES[1:]]
    partitions = [*["train"] * (users - sum(held_out)), *["val"] * held_out[0], *["test"] * held_out[1]]
    nsids = [f"{n}@N0{n % 9}" for n in (10_000_000 + np.cumsum(rng.integers(1, 9_999, users))).tolist()]
    tastes = [rng.choice(list(FINE), size=int(rng.integers(2, 4)), replace=False).tolist() for _ in range(users)]
    photos = (14_000_000_000 + np.cumsum(rng.integers(1, 9_999, rows))).tolist()
    number = {name: n for n, name in enumerate(name for names in FINE.values() for name in names)}
    records = []
    for row, (photo, user) in enumerate(zip(photos, user_N.tolist(), strict=True)):
        fine = _labels(row, tastes[user], rng)
        coarse = sorted(group for group, names in FINE.items() if set(names) & set(fine))
        records.append(_record(nsids[user], str(photo), partitions[user], fine, coarse))
        save(folder / IMAGES / f"{photo}.jpg", [number[name] for name in fine], rng)
    (folder / ANNOTATIONS).write_text(json.dumps(records, indent=4))


def _labels(row: int, tastes: list[str], rng: np.random.Generator) -> list[str]:
    """Return a label that all rows take in turn, so that each occurs, and some of the user's own."""
    every = [name for names in FINE.values() for name in names]
    liked = [name for group in tastes for name in FINE[group]]
    chosen = {every[row % len(every)], *rng.choice(liked, size=int(rng.integers(1, 4)), replace=False).tolist()}
    return sorted(chosen)


def _record(user: str, photo: str, partition: str, fine: list[str], coarse: list[str]) -> dict[str, Any]:
    return {"user_id": user, "image_id": photo, "labels": coarse, "partition": partition, "fine_grained_labels": fine}
