"""The tasks by name, and the one that options ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

from anchorfl.tasks.contract import LabelKind, Task
from anchorfl.tasks.errors import InputError, first_line, nearest
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
from anchorfl.tasks.plugins import NAME, TASK, check_name_is_free, find_plugin, names_code, plugin_names
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


WHERE = "[task] name"


def task_names() -> list[str]:
    """Return the names of all tasks: AnchorFL's, and those that installed packages offer."""
    return list(dict.fromkeys([*TASKS, *plugin_names(TASK)]))


def find_maker(name: str) -> Callable[[], Task]:
    """Return the function that makes the task of a name, or of ``package.module:function``. InputError where there is
    none.
    """
    if name in TASKS:
        check_name_is_free(TASK, name, f"{WHERE} = {name!r}", TASKS)
        return TASKS[name]
    if not names_code(name) and name not in plugin_names(TASK):
        raise InputError(
            f"no task {name!r} in {WHERE}{nearest(name, task_names())}; 'anchorfl data' lists them; or"
            " package.module:function for one of your own"
        )
    found: Any = find_plugin(TASK, name, WHERE, TASKS)
    if not callable(found) or not hasattr(found, "__qualname__"):
        raise InputError(f"{WHERE} = {name!r}: a {type(found).__name__}, and no function that returns a task")
    return cast("Callable[[], Task]", found)


def find_task(name: str) -> Task:
    """Return the task of a name, or of ``package.module:function``. InputError where there is none, or it is no task
    that runs can record.
    """
    maker = find_maker(name)
    if name in TASKS:
        return maker()
    where = f"{WHERE} = {name!r}"
    try:
        task = maker()
    except Exception as error:  # it is anybody's code
        raise InputError(f"{where}: it failed ({first_line(error)})") from error
    if not isinstance(task, Task):
        raise InputError(f"{where}: returns a {type(task).__name__}, and no anchorfl.Task (docs/adding-a-data-set.md)")
    if not NAME.fullmatch(task.name) or task.name in TASKS or (":" not in name and task.name != name):
        why = "AnchorFL has a task of that name" if task.name in TASKS else "letters, digits, '.', '_' and '-' make one"
        why = f"its entry point is {name!r}" if ":" not in name else why
        raise InputError(f"{where}: it calls itself {task.name!r}, and {why}: give it another name")
    if task.kind not in get_args(LabelKind) or len(set(task.class_names)) < len(task.class_names):
        raise InputError(f"{where}: a task is 'single' or 'multi', and its class names differ from each other")
    return task


def task_of(options: TaskOptions) -> Task:
    """Return the task that options ask for: a table of the user's own (``options.file``), else the one of that name."""
    if options.file:
        return table_task(options)
    return find_task(options.name)
