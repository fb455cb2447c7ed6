"""Reuters-21578 R8: news texts of 8 topics, single-label (FedAlign's R8-8).

5485 training and 2189 test texts; per class (train/test): acq 1596/696, crude 253/121, earn 2840/1083, grain 41/10,
interest 190/81, money-fx 206/87, ship 108/36, trade 251/75. Two variants of the same documents in the same order:
``stemmed`` (A. Cardoso-Cachopo's, without stop words; the default) and ``textgcn`` (not stemmed). Origin:
Cardoso-Cachopo's data sets for single-label text categorisation, made of Reuters-21578, Distribution 1.0; terms:
copyright Reuters Ltd., free for research purposes only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import file_names, find_file, open_text
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.text.words import encode_text, token_spec

CLASSES = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")


def r8() -> Task:
    """Return the R8 task."""
    return Task(
        name="r8",
        title="Reuters-21578 R8, news topics",
        class_names=CLASSES,
        kind="single",
        payload="text",
        source=Source(
            files=("r8-train-{stemmed|textgcn}.txt", "r8-test-{stemmed|textgcn}.txt"),
            url="http://ana.cachopo.org/datasets-for-single-label-text-categorization",
            licence="Reuters Ltd., free for research purposes only",
        ),
        folder="reuters21578_r8",
        read=read,
        fit=fit,
        encode=encode_text,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows, training file first. Raises InputError with file and line."""
    if folder is None:
        raise ValueError("r8 needs the folder of its files")
    names = file_names(r8(), options)
    bad = BadRows.of(options)
    parts = [_read_file(find_file(folder, name), bad) for name in names]
    label_N = np.array([label for labels, _ in parts for label in labels], dtype=np.int32)
    splits = [split for split, (labels, _) in zip(("train", "test"), parts, strict=True) for _ in labels]
    columns = {
        "row": np.arange(len(label_N), dtype=np.int64),
        "split": pa.array(splits),
        "labels": pa.ListArray.from_arrays(np.arange(len(label_N) + 1, dtype=np.int32), pa.array(label_N)),
        "text": pa.array([text for _, texts in parts for text in texts], type=pa.string()),
    }
    return bad.noted(pa.table(columns))


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: the words seen ``min_count`` times in the training texts, ``max_tokens`` of a text at most."""
    return token_spec(train["text"], options.min_count, options.max_tokens)


def _read_file(path: Path, bad: BadRows) -> tuple[list[int], list[str]]:
    """Return the class indices and texts of one file of lines ``label<TAB>text``."""
    index = {name: i for i, name in enumerate(CLASSES)}
    labels, texts = [], []
    for number, line in open_text(path):
        label, tab, text = line.partition("\t")
        fault = ""
        if not tab:
            fault = "no tab between class and text; every line must be 'class<TAB>text'"
        elif label not in index:
            fault = f"unknown class {label!r}{nearest(label, CLASSES)}; the classes are {', '.join(CLASSES)}"
        elif not text.strip():
            fault = "the text is empty; remove the line or fill it in"
        if fault:
            bad.meet(f"{path}:{number}: {fault}")
            continue
        labels.append(index[label])
        texts.append(text)
    if not labels:
        raise InputError(f"{path}: the file is empty; get it again")
    return labels, texts
