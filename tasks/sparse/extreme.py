"""Extreme-classification sets: bags of words with many labels, multi-label (FedALC's text experiments).

Rows (train/test), features and labels as published: bibtex 4880/2515, 1836, 159; eurlex-4k 15 539/3809, 5000, 3993;
amazoncat-13k 1 186 239/306 782, 203 882, 13 330; amazon-670k 490 449/153 025, 135 909, 670 091 (what FedAwS used);
amazontitles-670k 485 176/150 875, 66 666, 670 091 (FedALC's "Amazon670K"); wikilshtc-325k 1 778 351/587 084, 1 617 899,
325 056. Only bibtex was read here; the others were checked on made-up files of their format.

bibtex comes as one file and two files of row numbers: the split of the SLEEC demonstration (``sleec``, the default) or
that of Mulan (variant ``mulan``); 15 of its rows are duplicates of others. Its values are all 1, its row numbers are
those of Mulan's training file followed by the test file. The others come as a training and a test file, with or without
a name in front (``train.txt``, ``amazonCat_train.txt``). Class names are the lines of ``label_names.txt`` or ``Yf.txt``
where one of them is there, else ``label 0``, ``label 1``, ... Values stay as in the file. Terms: none are given with
the files; the repository asks for citation (Bhatia et al., 2016) and for that of each set's source.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import file_names, find_file, find_one, has_file, open_text
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.sparse.pairs import PAYLOAD, encode, fit, sparse_table
from anchorfl.tasks.sparse.xc_format import read_rows, read_splits

NAMES = ("label_names.txt", "Yf.txt")
URL = "http://manikvarma.org/downloads/XC/XMLRepository.html"
LICENCE = "none given; cite the repository and the source of the set"


def bibtex() -> Task:
    """Return the Bibtex task."""
    return Task(
        name="bibtex",
        title="Bibtex, tags of BibSonomy entries",
        class_names=(),
        kind="multi",
        payload=PAYLOAD,
        source=Source(
            files=(
                "Bibtex_data.txt",
                "bibtex_trSplit{sleec=|mulan=_mulan}.txt",
                "bibtex_tstSplit{sleec=|mulan=_mulan}.txt",
            ),
            url=URL,
            licence=LICENCE,
            optional=NAMES,
        ),
        folder="bibtex",
        read=read_bibtex,
        fit=fit,
        encode=encode,
    )


def eurlex_4k() -> Task:
    """Return the EURLex-4K task."""
    return _task("eurlex-4k", "EURLex-4K, EUROVOC subjects of European law")


def amazoncat_13k() -> Task:
    """Return the AmazonCat-13K task."""
    return _task("amazoncat-13k", "AmazonCat-13K, categories of products")


def amazon_670k() -> Task:
    """Return the Amazon-670K task."""
    return _task("amazon-670k", "Amazon-670K, products bought after a product")


def amazontitles_670k() -> Task:
    """Return the AmazonTitles-670K task."""
    return _task("amazontitles-670k", "AmazonTitles-670K, products bought after a product, by titles")


def wikilshtc_325k() -> Task:
    """Return the WikiLSHTC-325K task."""
    return _task("wikilshtc-325k", "WikiLSHTC-325K, categories of Wikipedia pages")


def _task(name: str, title: str) -> Task:
    """Return a task of a training and a test file."""
    return Task(
        name=name,
        title=title,
        class_names=(),
        kind="multi",
        payload=PAYLOAD,
        source=Source(files=("*train.txt", "*test.txt"), url=URL, licence=LICENCE, optional=NAMES),
        folder=name.replace("-", "_"),
        read=read_train_test,
        fit=fit,
        encode=encode,
    )


def read_bibtex(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows in the order of the one file. Raises InputError with file and line."""
    if folder is None:
        raise ValueError("bibtex needs the folder of its files")
    bad = BadRows.of(options)
    data, train, test = (find_file(folder, name) for name in file_names(bibtex(), options))
    rows = read_rows(data, bad)
    test_N = read_splits(train, test, rows.header.rows, max(0, options.fold))[rows.index_N]
    names = class_names(folder, rows.header.labels)
    return bad.noted(sparse_table(rows.index_N, test_N, rows.labels, rows.pairs, names, rows.header.features))


def read_train_test(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows, training file first. Raises InputError with file and line."""
    if folder is None:
        raise ValueError("a sparse data set needs the folder of its files")
    bad = BadRows.of(options)
    paths = [find_one(folder, pattern) for pattern in ("*train.txt", "*test.txt")]
    train, test = (read_rows(path, bad) for path in paths)
    header = train.header
    if (header.features, header.labels) != (test.header.features, test.header.labels):
        raise InputError(
            f"{paths[1]}:1: {test.header.features} features and {test.header.labels} labels, but {paths[0]} has "
            f"{header.features} and {header.labels}; the two files must be of one data set"
        )
    row_N = np.concatenate([train.index_N, test.index_N + header.rows])
    test_N = np.arange(len(row_N)) >= len(train.index_N)
    labels, pairs = (
        pa.chunked_array([*a.chunks, *b.chunks], a.type)
        for a, b in ((train.labels, test.labels), (train.pairs, test.pairs))
    )
    names = class_names(folder, header.labels)
    return bad.noted(sparse_table(row_N, test_N, labels, pairs, names, header.features))


def class_names(folder: Path, labels: int) -> list[str]:
    """Return the names of all labels: the lines of the first file of ``NAMES`` that is there, else their numbers.

    Raises InputError where the file has an empty line or another number of lines.
    """
    files = [find_file(folder, name) for name in NAMES if has_file(folder, name)]
    if not files:
        return [f"label {number}" for number in range(labels)]
    names = []
    for line, text in open_text(files[0]):
        if not text.strip():
            raise InputError(f"{files[0]}:{line}: the line is empty; write the name of label {line - 1}")
        names.append(text.strip())
    if len(names) != labels:
        raise InputError(
            f"{files[0]}: {len(names)} names for {labels} labels; write one a line, in the order of the labels"
        )
    return names
