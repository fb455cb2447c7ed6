"""Images that a list of rows names: which of them are in the folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.images.pixels import faults


def present(folder: Path, names: Sequence[str], locations: Sequence[str], bad: BadRows) -> Bools:
    """Return bool [N], true where the folder holds a file of that name; one look into the folder, not one per file.

    locations: where each name stands, ``<file>:<line>`` or the like. Missing images are bad rows; stopping at them, one
    message counts them all. Where bad rows are to be left out, so are images that do not decode; else ``encode`` stops
    at the first. Raises InputError also where not one image is there.
    """
    names_there = set(os.listdir(folder)) if folder.is_dir() else set[str]()
    found_N = np.fromiter((name in names_there for name in names), dtype=np.bool_, count=len(names))
    lacking = np.flatnonzero(~found_N).tolist()
    if not lacking:
        return _check_decoding(folder, names, locations, found_N, bad)
    first = f"{names[lacking[0]]} of {locations[lacking[0]]}"
    if len(lacking) == len(names):
        raise InputError(f"{folder}: none of {len(names)} images is there, the first is {first}; get the images too")
    if bad.skip:
        for row in lacking:
            bad.meet(f"{locations[row]}: no image {folder / names[row]}; get it again")
    else:
        bad.meet(f"{folder}: {len(lacking)} of {len(names)} images are missing, the first is {first}; get them again")
    return _check_decoding(folder, names, locations, found_N, bad)


def _check_decoding(
    folder: Path, names: Sequence[str], locations: Sequence[str], found_N: Bools, bad: BadRows
) -> Bools:
    """Return ``found_N`` without the images that do not decode, where bad rows are to be left out."""
    if not bad.skip:
        return found_N
    there = np.flatnonzero(found_N).tolist()
    for row, fault in zip(there, faults([folder / names[row] for row in there], whole=True), strict=True):
        if fault:
            bad.meet(f"{locations[row]}: image {folder / names[row]} cannot be read: {fault}; get it again")
            found_N[row] = False
    return found_N
