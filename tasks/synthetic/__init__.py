"""Synthetic data: generators that write made-up files in the exact raw format of a data set, for tests and for
``anchorfl data demo``. No result of synthetic data is a result of the data set.

Each is a function ``(folder, rows, seed)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from anchorfl.tasks.synthetic import (
    coco,
    extrasensory,
    femnist,
    flair,
    ham10000,
    kvasir,
    medmnist,
    mimic3,
    mulan,
    oct_c8,
    pamap2,
    pbc,
    r8,
    voc,
    xc,
)

MEDMNIST = ("bloodmnist", "dermamnist")
XC = ("bibtex", "eurlex-4k", "amazoncat-13k", "amazon-670k", "amazontitles-670k", "wikilshtc-325k")
MULAN = ("birds", "cal500", "corel5k", "delicious", "emotions", "enron", "medical", "scene", "yeast")
SYNTHETIC: dict[str, Callable[[Path, int, int], None]] = {
    "extrasensory": extrasensory.write,
    "mimic3-50": mimic3.write,
    "pamap2": pamap2.write,
    "pamap2-optional": pamap2.write,
    "r8": r8.write,
    "oct-c8": oct_c8.write,
    "kvasir-v2": kvasir.write,
    "ham10000": ham10000.write,
    "pbc": pbc.write,
    **{name: partial(medmnist.write, task=name) for name in MEDMNIST},
    "femnist": femnist.write,
    "voc2007": voc.write,
    "voc2007-difficult-unknown": voc.write,
    "voc2012": voc.write_2012,
    "voc2012-difficult-unknown": voc.write_2012,
    "coco2014": coco.write,
    "flair": flair.write,
    **{name: partial(xc.write, task=name) for name in XC},
    **{name: partial(mulan.write, task=name) for name in MULAN},
}
"""Name of the task -> its generator."""
