"""Small multi-label sets of the Mulan authors: ARFF files and an XML list of the labels, multi-label.

Rows (train/test), features and labels: scene 1211/1196, 294, 6; yeast 1500/917, 103, 14; delicious 12 920/3185, 500,
983; corel5k 4500/500, 499, 374; emotions 391/202, 72, 6; enron 1123/579, 1001, 53; medical 333/645, 1449, 45; birds
322/323, 260, 19; cal500 502 in one file, 68, 174. scene and yeast were read here, the others were checked on made-up
files. Class names and their order are those of the XML file (yeast has none but Class1, ..., Class14, in an order of
its own; enron and medical have codes).

All are inputs of kind sparse. Bags of words (delicious, corel5k, enron, medical) list their words with value 1. The
measurements of the others are dense: every feature of a row is listed, less its mean and divided by its deviation over
the clients' training rows; a nominal feature (birds) counts as its number. Chosen by us: the test rows of cal500, a
third of the rows (167), drawn with a seed of the task's own. Origin: github tsoumakas/mulan, data/multi-label; terms:
no licence is given, public benchmarks, cite the source of each set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_one
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.sparse.arff import Arff, read_arff
from anchorfl.tasks.sparse.arff_header import read_labels
from anchorfl.tasks.sparse.pairs import PAYLOAD, encode, fit, fit_scaled, label_lists, pair_lists, sparse_table

TEST_SHARE = 1 / 3
TEST_SEED = 500
TRAIN_TEST = ("*train*.arff", "*test*.arff", "*.xml")
ONE_FILE = ("*.arff", "*.xml")


def scene() -> Task:
    """Return the scene task."""
    return _task("scene", "Scene, kinds of landscapes in pictures", scaled=True)


def yeast() -> Task:
    """Return the yeast task."""
    return _task("yeast", "Yeast, functional classes of genes", scaled=True)


def delicious() -> Task:
    """Return the delicious task."""
    return _task("delicious", "Delicious, tags of web pages")


def corel5k() -> Task:
    """Return the Corel5k task."""
    return _task("corel5k", "Corel5k, keywords of pictures")


def emotions() -> Task:
    """Return the emotions task."""
    return _task("emotions", "Emotions, moods of music", scaled=True)


def enron() -> Task:
    """Return the Enron task."""
    return _task("enron", "Enron, topics of mails")


def medical() -> Task:
    """Return the medical task."""
    return _task("medical", "Medical, ICD-9 codes of radiology reports")


def birds() -> Task:
    """Return the birds task."""
    return _task("birds", "Birds, species in recordings", scaled=True)


def cal500() -> Task:
    """Return the CAL500 task."""
    return _task("cal500", "CAL500, descriptions of songs", scaled=True, files=ONE_FILE)


def _task(name: str, title: str, *, scaled: bool = False, files: tuple[str, ...] = TRAIN_TEST) -> Task:
    """Return a task. scaled: dense measurements, which are scaled."""
    return Task(
        name=name,
        title=title,
        class_names=(),
        kind="multi",
        payload=PAYLOAD,
        source=Source(
            files=files,
            url="https://github.com/tsoumakas/mulan/tree/master/data/multi-label",
            licence="none given; cite the source of the set",
        ),
        folder=f"mulan_multilabel/{name}",
        read=read_one_file if files == ONE_FILE else read_train_test,
        fit=fit_scaled if scaled else fit,
        encode=encode,
    )


def read_train_test(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows, training file first. Raises InputError with file and line."""
    train, test, xml = _paths(folder, TRAIN_TEST)
    bad = BadRows.of(options)
    parts = [read_arff(train, bad), read_arff(test, bad)]
    _check_same(*parts)
    row_N = np.concatenate([parts[0].index_N, parts[1].index_N + parts[0].rows])
    return bad.noted(_table(parts, xml, row_N, row_N >= parts[0].rows))


def read_one_file(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows in file order, a third drawn as test rows. Raises InputError with file and line."""
    path, xml = _paths(folder, ONE_FILE)
    bad = BadRows.of(options)
    part = read_arff(path, bad)
    test = np.random.default_rng(options.seed_of_split(TEST_SEED)).permutation(part.rows)[
        : round(TEST_SHARE * part.rows)
    ]
    return bad.noted(_table([part], xml, part.index_N, np.isin(part.index_N, test)))


def _paths(folder: Path | None, patterns: tuple[str, ...]) -> list[Path]:
    if folder is None:
        raise ValueError("a Mulan data set needs the folder of its files")
    return [find_one(folder, pattern) for pattern in patterns]


def _check_same(train: Arff, test: Arff) -> None:
    """Raise InputError where two files differ in their attributes."""
    if train.attributes == test.attributes:
        return
    pairs = zip(train.attributes, test.attributes, strict=False)
    short = min(len(train.attributes), len(test.attributes))
    index = next((index for index, (one, other) in enumerate(pairs) if one != other), short)
    one, other = (
        f"{part.attributes[index].name!r}" if index < len(part.attributes) else "none" for part in (train, test)
    )
    raise InputError(
        f"{test.path}: attribute {index + 1} is {other}, but {one} in {train.path}, or has other values there; the two "
        f"files must be of one data set"
    )


def _table(parts: Sequence[Arff], xml: Path, row_N: npt.NDArray[np.int64], test_N: npt.NDArray[np.bool_]) -> Table:
    """Return the rows of one or two files; what is no label is a feature, in the order of the attributes."""
    attributes = parts[0].attributes
    columns = read_labels(xml, attributes)
    if len(columns) == len(attributes):
        raise InputError(f"{xml}: all {len(columns)} attributes are labels, none is a feature; correct the list")
    label_A = np.full(len(attributes), -1)
    label_A[columns] = np.arange(len(columns))
    number_A = np.cumsum(label_A < 0)
    labels, pairs = [], []
    for part in parts:
        row_P = np.repeat(np.arange(len(part.length_N)), part.length_N)
        label_P = label_A[part.column_P]
        is_label_P = label_P >= 0
        order = np.lexsort((label_P, row_P))  # the XML file has an order of its own
        order = order[is_label_P[order]]
        labels.append(label_lists(label_P[order], np.bincount(row_P[order], minlength=len(part.length_N))))
        length_N = np.bincount(row_P[~is_label_P], minlength=len(part.length_N))
        number_P = number_A[part.column_P[~is_label_P]]
        pairs.append(pair_lists(number_P, part.value_P[~is_label_P], length_N))
    names = [attributes[column].name for column in columns]
    features = len(attributes) - len(columns)
    return sparse_table(row_N, test_N, pa.chunked_array(labels), pa.chunked_array(pairs), names, features)
