"""Seconds and peak memory of a plan, for every partition at the sizes that it must bear.

    python -m benchmarks.partitions [--rows 1000000] [--repeat 3]

Made-up rows: in the multi-label ones every row has 3 classes of uneven frequency on average. Every case runs in a
process of its own. Time is that of make_plan alone: from labels to plan, with the validation rows drawn; CPU seconds
tell how much of it is the plan's where other work shares the machine. Memory is the most that make_plan held at a time
beside the labels that it was given, the plan included (tracemalloc, in one more plan that is not timed).
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import time
import tracemalloc

import numpy as np

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Source, Task
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.stratify import TrainingRows


def made(size, classes, subjects, single=False):
    """Return made-up rows, and a task with five categories and so many subjects."""
    rng = np.random.default_rng(0)
    if single:
        row_P, class_P = np.arange(size), rng.permutation(size) % classes
    else:
        share_C = 1 / np.arange(1, classes + 1) ** 0.8
        length_N = 1 + rng.poisson(2, size)
        drawn_P = rng.choice(classes, length_N.sum(), p=share_C / share_C.sum())
        drawn_P[: min(classes, size)] = np.arange(min(classes, size))  # every class occurs
        key_P = np.unique(np.repeat(np.arange(size), length_N) * classes + drawn_P)
        row_P, class_P = key_P // classes, key_P % classes
    offset_N1 = np.concatenate([[0], np.cumsum(np.bincount(row_P, minlength=size))])
    names = tuple(f"class{c}" for c in range(classes))
    groups = {f"group{g}": names[g::5] for g in range(min(5, classes))}
    source = Source((), "", "")
    task = Task("made", "", names, "multi", "x", source, "", None, None, None, groups, "user")  # never read
    subject_N = np.char.add("user", (rng.permutation(size) % subjects).astype("<U6"))
    return TrainingRows(Labels(class_P.astype(np.int32), offset_N1, classes), np.arange(size), subject_N), task


CASES = (
    ("categories, 50 classes, 25 clients", {"classes": 50, "clients": 25, "partition": "categories"}),
    ("  keep_subjects, 60 subjects", {"classes": 50, "clients": 25, "partition": "categories", "subjects": 60}),
    (
        "  keep_subjects, 10,000 subjects",
        {"classes": 50, "clients": 25, "partition": "categories", "subjects": 10_000},
    ),
    ("subjects, 3,500 of them, 50 clients", {"classes": 62, "clients": 50, "partition": "subjects", "subjects": 3500}),
    ("subjects, 3,500 of them, one each", {"classes": 62, "clients": 3500, "partition": "subjects", "subjects": 3500}),
    ("one_class, 10,000 classes", {"classes": 10_000, "clients": 10_000, "partition": "one_class"}),
    ("dirichlet, 100 classes, 500 clients, beta 0.05", {"classes": 100, "clients": 500, "partition": "dirichlet"}),
    (
        "  5,000 rows of them",
        {"classes": 100, "clients": 500, "partition": "dirichlet", "rows": 5000, "single": True},
    ),
    ("k_classes, 50 classes, 25 clients, k = 5", {"classes": 50, "clients": 25, "partition": "k_classes"}),
    ("iid, 50 classes, 25 clients", {"classes": 50, "clients": 25, "partition": "iid"}),
)


def measure(case, rows, repeat, answers):
    """Answer best and worst seconds of some plans, least CPU seconds, most MiB held, rows of the smallest client."""
    size = case.get("rows", rows)
    data, task = made(size, case["classes"], case.get("subjects", 10), case.get("single", False))
    options = TaskOptions(
        clients=case["clients"],
        partition=case["partition"],
        keep_subjects=case["partition"] == "categories" and "subjects" in case,
        classes_per_client=5,
        beta=0.05,
    )
    taken, worked = [], []
    for seed in range(repeat):
        began, began_work = time.perf_counter(), time.process_time()
        make_plan(data, task, options, seed)
        taken.append(time.perf_counter() - began)
        worked.append(time.process_time() - began_work)
    tracemalloc.start()
    plan = make_plan(data, task, options, 0)
    held = tracemalloc.get_traced_memory()[1] / 2**20
    smallest = min(len(client.rows) for client in plan.clients)
    answers.put((size, min(taken), max(taken), min(worked), held, smallest))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    columns = f"{'best s':>9}{'worst s':>9}{'CPU s':>8}{'MiB':>7}{'least rows':>12}"
    print(f"{'case':<48}{'rows':>10}{columns}")
    context = multiprocessing.get_context("spawn")
    for name, case in CASES:
        answers = context.SimpleQueue()
        process = context.Process(target=measure, args=(case, chosen.rows, chosen.repeat, answers))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name.strip()}: the process ended with {process.exitcode}")
        size, best, worst, worked, held, least = answers.get()
        figures = f"{best:>9.2f}{worst:>9.2f}{worked:>8.2f}{held:>7.0f}{least:>12}"
        print(f"{name:<48}{size:>10,}{figures}", flush=True)


if __name__ == "__main__":
    main()
