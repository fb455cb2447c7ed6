"""MIMIC-III-50: discharge summaries of intensive-care patients and their 50 most frequent ICD-9 codes, multi-label
(FedAlign's MIMIC-III-10).

Version 1.4; access must be applied for. The recipe is CAML's (Mullenbach et al. 2018, "Explainable Prediction of
Medical Codes from Clinical Text", 4.1): the notes of category "Discharge summary" of an admission (52,726 have some),
reports and addenda in the order of their dates, joined; its codes of diagnoses and procedures with their period;
admissions with at least one of the 50 codes. Words are lower case and hold a letter (CAML's code drops words of digits
alone and so keeps underscores; the paper says what we do).

Variants: ``published``, the default, has CAML's split, by patient, of a part of the admissions: 8066 train, 1573
validation, 1729 test (``*_50_hadm_ids.csv`` of CAML's repository; the paper counts the header lines of its tables).
``own`` does without these files and takes all admissions, several times as many: the patients are drawn with a seed of
the task's own, in the published shares (71.0, 13.8, 15.2 %). Figures of the two cannot be compared.

The 50 codes are the classes, whatever the files say; read stops where they are not the most frequent of the admissions
with a discharge summary, counted as CAML does: a code that stands twice with an admission counts twice.

FedAlign (KDD 2023) has 10 clients by category, on average 807 notes and 5 classes each, a vocabulary of 4896 words seen
at least 100 times, and cuts notes to 1000 words. From the authors' code (dataset/dataset_mimic3.py): words are counted
in the notes that are already cut, and admission, discharge, date and birth are left out; so here. Their categories go
by the number alone, which puts all 17 procedures (38.93, 96.04, ...) into "infectious and parasitic diseases" and makes
10 categories: the presets have these (``task.client_classes``). Without them, the groups are the 14 chapters of
diagnoses and of procedures, which ``categories`` merges into 10.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column, Ints, Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import variant
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.text.icd9 import TITLES, chapters
from anchorfl.tasks.text.mimic3_files import (
    NAME_FILES,
    Codes,
    Notes,
    check_frequent,
    join_notes,
    read_codes,
    read_notes,
    read_splits,
)
from anchorfl.tasks.text.words import encode_text, token_spec

CODES = tuple(TITLES)
CLASSES = tuple(TITLES.values())
GROUPS = chapters()
SPLITS = ("train", "validation", "test")
SHARES = (8066 / 11368, 1573 / 11368, 1729 / 11368)
"""Shares of the patients, in variant ``own``."""
SPLIT_SEED = 3
DROPPED = ("admission", "discharge", "date", "birth")
"""Words that FedAlign leaves out."""
SLICE = 1024
"""Notes whose words are taken apart at a time: some 10 MB of text become some 100 MB of words."""


def mimic3_50() -> Task:
    """Return the MIMIC-III-50 task."""
    return Task(
        name="mimic3-50",
        title="MIMIC-III discharge summaries, 50 ICD-9 codes",
        class_names=CLASSES,
        kind="multi",
        payload="text",
        source=Source(
            files=(
                "NOTEEVENTS{published=|own=}.csv",
                "DIAGNOSES_ICD.csv",
                "PROCEDURES_ICD.csv",
                "{published=train_50_hadm_ids.csv}",
                "{published=dev_50_hadm_ids.csv}",
                "{published=test_50_hadm_ids.csv}",
            ),
            url="https://physionet.org/content/mimiciii/1.4/",
            licence=(
                "PhysioNet Credentialed Health Data License 1.5.0; the *_50_hadm_ids.csv come from CAML's repository, "
                "--task.variant own does without them"
            ),
            gated=True,
            optional=NAME_FILES,
        ),
        folder="mimic3",
        read=read,
        fit=fit,
        encode=encode,
        groups=GROUPS,
        subjects="patient",
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows, one per admission, by number (HADM_ID, which is the row's id); ``text`` is the joined notes.

    Raises InputError with file and record. Holds some blocks of the file and, three times over, the notes of the wanted
    admissions (0.1 GB published, 0.6 GB own).
    """
    if folder is None:
        raise ValueError("mimic3-50 needs the folder of its files")
    bad = BadRows.of(options)
    codes = read_codes(folder, bad)
    labeled = codes.admissions(CODES)
    published = variant(mimic3_50(), options) == "published"
    splits = read_splits(folder, bad) if published else None
    wanted = labeled if splits is None else np.intersect1d(labeled, splits.admission_N)
    notes = read_notes(folder, wanted, bad)
    check_frequent(codes, notes, CODES, folder)
    split = (
        draw_split(notes, labeled, options.seed_of_split(SPLIT_SEED))
        if splits is None
        else splits.of(notes, labeled, bad)
    )
    if not split:
        raise InputError(f"{folder}: no admission has a discharge summary and one of the 50 codes; get the files again")
    row_N = np.array(sorted(split), dtype=np.int64)
    patient_N = notes.patient_N[np.searchsorted(notes.row_N, row_N)]
    columns = {
        "row": row_N,
        "split": pa.array([split[row] for row in row_N.tolist()]),
        "labels": _labels(codes, row_N),
        "text": join_notes(notes, row_N),
        "subject": pa.array(patient_N.astype(np.str_).tolist()),
    }
    return bad.noted(pa.table(columns))


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: the words seen ``min_count`` times in the training notes, cut to ``max_tokens`` words before."""
    cut = words(train["text"], max(1, options.max_tokens))  # token_spec refuses 0 and less
    return token_spec(cut, options.min_count, options.max_tokens)


def encode(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x``, ids of the first ``spec.shape[0]`` words, in place of ``text``."""
    cut = words(table["text"], spec.shape[0])
    return encode_text(table.set_column(table.column_names.index("text"), "text", cut), spec)


def words(texts: Column, limit: int) -> Column:
    """Return the first ``limit`` words of every text, separated by spaces: lower case, runs of letters, digits and
    underscores, of which those without a letter are left out, and so are ``DROPPED``. Words stay as they are when this
    is done again.
    """
    parts = [_words(texts.slice(start, SLICE), limit) for start in range(0, len(texts), SLICE)]
    return pa.chunked_array(parts, type=pa.string())


def _words(texts: Column, limit: int) -> Column:
    lower = pc.utf8_lower(texts.cast(pa.string()))
    spaced = pc.split_pattern(pc.replace_substring_regex(lower, r"[^\p{L}\p{N}_]+", " "), " ")
    array = spaced.combine_chunks() if isinstance(spaced, pa.ChunkedArray) else spaced
    flat = pc.list_flatten(array)
    kept = pc.and_(pc.match_substring_regex(flat, r"\p{L}"), pc.invert(pc.is_in(flat, pa.array(DROPPED))))
    kept_N1 = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False), dtype=np.int32)])
    end_N = np.cumsum(pc.list_value_length(array).to_numpy(zero_copy_only=False), dtype=np.int64)
    offset_N1 = kept_N1[np.concatenate([[0], end_N])].astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offset_N1), flat.filter(kept))
    return pc.binary_join(pc.list_slice(lists, 0, limit), " ")


def draw_split(notes: Notes, labeled: Ints, seed: int) -> dict[int, str]:
    """Return the admission -> split, for those that have a discharge summary and one of the classes: a function of the
    patient alone, so that it does not depend on which others there are.
    """
    kept_N = np.isin(notes.row_N, labeled)
    patient_S, patient_index_N = np.unique(notes.patient_N[kept_N], return_inverse=True)
    seeds = (hashlib.sha256(f"mimic3-50 {seed} {patient}".encode()).digest() for patient in patient_S.tolist())
    draw_S = np.array([int.from_bytes(seed[:8], "big") / 2**64 for seed in seeds])
    side_S = np.searchsorted(np.cumsum(SHARES)[:-1], draw_S, side="right")
    sides = (SPLITS[side] for side in side_S[patient_index_N].tolist())
    return dict(zip(notes.row_N[kept_N].tolist(), sides, strict=True))


def _labels(codes: Codes, row_N: Ints) -> Column:
    """Return list<int32>: the classes of every admission, ascending."""
    row_E, class_E = codes.of(row_N, CODES)
    key_P = np.unique(row_E * len(CODES) + class_E)
    length_N = np.bincount(key_P // len(CODES), minlength=len(row_N))
    offset_N1 = offsets(length_N)
    return Labels((key_P % len(CODES)).astype(np.int32), offset_N1, len(CODES)).lists()
