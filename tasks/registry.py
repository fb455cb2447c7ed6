"""The tasks by name, and the one that options ask for."""

from __future__ import annotations

from collections.abc import Callable

from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.images.coco import coco2014
from anchorfl.tasks.images.digits import digits
from anchorfl.tasks.images.femnist import femnist
from anchorfl.tasks.images.flair import flair
from anchorfl.tasks.images.ham10000 import ham10000
from anchorfl.tasks.images.kvasir import kvasir_v2
from anchorfl.tasks.images.medmnist import bloodmnist, dermamnist
from anchorfl.tasks.images.oct_c8 import oct_c8
from anchorfl.tasks.images.pbc import pbc
from anchorfl.tasks.images.voc import voc2007, voc2007_difficult_unknown, voc2012, voc2012_difficult_unknown
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.signals.extrasensory import extrasensory
from anchorfl.tasks.signals.pamap2 import pamap2, pamap2_optional
from anchorfl.tasks.sparse.extreme import (
    amazon_670k,
    amazoncat_13k,
    amazontitles_670k,
    bibtex,
    eurlex_4k,
    wikilshtc_325k,
)
from anchorfl.tasks.sparse.mulan import birds, cal500, corel5k, delicious, emotions, enron, medical, scene, yeast
from anchorfl.tasks.tabular.table import table_task
from anchorfl.tasks.text.mimic3 import mimic3_50
from anchorfl.tasks.text.r8 import r8
from anchorfl.tasks.toy.multi import toy_multi
from anchorfl.tasks.toy.single import toy_single

TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    # FedAlign (KDD 2023)
    "extrasensory": extrasensory,
    "mimic3-50": mimic3_50,
    "pamap2": pamap2,
    "pamap2-optional": pamap2_optional,
    "r8": r8,
    # FedBM (2025)
    "oct-c8": oct_c8,
    "kvasir-v2": kvasir_v2,
    "ham10000": ham10000,
    "pbc": pbc,
    "bloodmnist": bloodmnist,
    "dermamnist": dermamnist,
    "femnist": femnist,
    # FedALC (2025)
    "voc2007": voc2007,
    "voc2007-difficult-unknown": voc2007_difficult_unknown,
    "voc2012": voc2012,
    "voc2012-difficult-unknown": voc2012_difficult_unknown,
    "coco2014": coco2014,
    "flair": flair,
    "bibtex": bibtex,
    "eurlex-4k": eurlex_4k,
    "amazoncat-13k": amazoncat_13k,
    "amazon-670k": amazon_670k,
    "amazontitles-670k": amazontitles_670k,
    "wikilshtc-325k": wikilshtc_325k,
    # further sets of Mulan
    "birds": birds,
    "cal500": cal500,
    "corel5k": corel5k,
    "delicious": delicious,
    "emotions": emotions,
    "enron": enron,
    "medical": medical,
    "scene": scene,
    "yeast": yeast,
    # for tests
    "toy-multi": toy_multi,
    "toy-single": toy_single,
}


def find_task(name: str) -> Task:
    """Return the task of that name. Raises InputError with the nearest name."""
    if name not in TASKS:
        raise InputError(f"[task] name = {name!r} is no task{nearest(name, TASKS)}; 'anchorfl data' lists them")
    return TASKS[name]()


def task_of(options: TaskOptions) -> Task:
    """Return the task that options ask for: a table of the user's own (``options.file``), else the one of that name."""
    if options.file:
        return table_task(options)
    return find_task(options.name)
