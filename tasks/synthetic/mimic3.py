"""Synthetic MIMIC-III-50: the files of MIMIC-III 1.4 that it is made of and CAML's split, all invented.

As in the true files: quoted notes of many lines with doubled quotes, addenda that stand before their report, other
categories in between, notes without an admission, codes without their period and with leading zeros, a procedure that
stands twice with an admission, lines without a code, admissions without a discharge summary, which have a frequent
code of their own. The words are made of syllables and mean nothing; every class has four words of its own, and the
classes of a chapter occur together. No result of it is a result of MIMIC-III.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools
from anchorfl.tasks.text.icd9 import TITLES, chapter, is_procedure, without_period
from anchorfl.tasks.text.mimic3_files import SPLIT_FILES

CODES = tuple(TITLES)
ROWS = 20
"""The fewest rows that hold every class in every split."""
SHARES = (0.71, 0.14, 0.15)
NOTES_HEADER = "ROW_ID,SUBJECT_ID,HADM_ID,CHARTDATE,CHARTTIME,STORETIME,CATEGORY,DESCRIPTION,CGID,ISERROR,TEXT"
CODES_HEADER = "ROW_ID,SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE"
NAMES_HEADER = "ROW_ID,ICD9_CODE,SHORT_TITLE,LONG_TITLE"
OTHERS = ("Nursing/other", "Radiology", "ECG", "Physician ", "Echo")
WITHOUT_SUMMARY = "V053"
"""A code of every admission without a discharge summary."""


@dataclass(frozen=True, slots=True)
class Stay:
    """An admission."""

    patient: int
    admission: int
    split: str
    """Empty where it is in none."""
    classes: tuple[int, ...]
    note: bool = True
    """True where it has a discharge summary."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write the files: ``rows`` admissions in CAML's split, and a tenth as many each that are in none, that have none
    of the 50 codes, and that have no discharge summary.
    """
    if rows < ROWS:
        raise ValueError(f"synthetic MIMIC-III-50 needs at least {ROWS} rows, not {rows}")
    rng = np.random.default_rng(seed)
    stays = _stays(rows, rng)
    _write_gzip(folder / "DIAGNOSES_ICD.csv.gz", CODES_HEADER, _codes(stays, rng, procedures=False))
    _write_gzip(folder / "PROCEDURES_ICD.csv.gz", CODES_HEADER, _codes(stays, rng, procedures=True))
    _write_gzip(folder / "NOTEEVENTS.csv.gz", NOTES_HEADER, _notes(stays, rng))
    for procedures, name in ((False, "D_ICD_DIAGNOSES.csv.gz"), (True, "D_ICD_PROCEDURES.csv.gz")):
        names = [(code, title) for code, title in TITLES.items() if is_procedure(code) == procedures]
        lines = (f'{n},"{without_period(c)}","{t[:24]}","{t}"' for n, (c, t) in enumerate(names, 1))
        _write_gzip(folder / name, NAMES_HEADER, lines)
    for split, name in SPLIT_FILES.items():
        ids = [stay.admission for stay in stays if stay.split == split]
        (folder / name).write_text("".join(f"{id_}\n" for id_ in rng.permutation(ids).tolist()), encoding="utf-8")


def _stays(rows: int, rng: np.random.Generator) -> list[Stay]:
    """Return all admissions, by patient; a patient has one to three, all in one split."""
    extra = max(1, rows // 10)
    y_NC = _classes(rows, rng)
    numbers = iter((100_001 + rng.permutation(max(99_999, rows + 3 * extra))).tolist())
    stays, patient = list[Stay](), 0
    cut = np.round(np.cumsum(SHARES) * rows).astype(np.int64).tolist()
    for split, first, last in zip(SPLIT_FILES, [0, *cut], cut, strict=False):
        row = first
        while row < last:
            patient += int(rng.integers(1, 4))
            for _ in range(int(rng.integers(1, 4))):
                if row < last:
                    stays.append(Stay(patient, next(numbers), split, tuple(np.flatnonzero(y_NC[row]).tolist())))
                    row += 1
    for _ in range(extra):
        patient += 1
        some = tuple(np.flatnonzero(y_NC[rng.integers(rows)]).tolist())
        stays.append(Stay(patient, next(numbers), "", some))
        stays.append(Stay(patient, next(numbers), "", ()))
        stays.append(Stay(patient + 10**6, next(numbers), "", some[:1], note=False))
    return stays


def _classes(rows: int, rng: np.random.Generator) -> Bools:
    """Return bool [rows, C]: every row one class by its frequency, half of the time some of its chapter, and every
    class twice per split at least.
    """
    share_C = 1 / np.arange(3, 3 + len(CODES))
    chapters = [chapter(code) for code in CODES]
    same_CC = np.array([[a == b for b in chapters] for a in chapters])
    first_N = rng.choice(len(CODES), size=rows, p=share_C / share_C.sum())
    y_NC: Bools = rng.random((rows, len(CODES))) < np.where(same_CC[first_N], 0.35, 0.04)
    y_NC[np.arange(rows), first_N] = True
    cut = [0, *np.round(np.cumsum(SHARES) * rows).astype(np.int64).tolist()]
    for first, last in pairwise(cut):
        index_C = np.arange(len(CODES)) % (last - first)
        y_NC[first + index_C, np.arange(len(CODES))] = True
        y_NC[first + (index_C + 1) % (last - first), np.arange(len(CODES))] = True
    return y_NC


def _codes(stays: list[Stay], rng: np.random.Generator, *, procedures: bool) -> Iterator[str]:
    """Yield the lines of a file of codes: those of the classes, and two others, which hardly any admissions share."""
    in_file = [without_period(code) if is_procedure(code) == procedures else "" for code in CODES]
    foreign = _foreign(rng, procedures)
    number = 0
    for index, stay in enumerate(stays):
        codes = [in_file[c] for c in stay.classes if in_file[c]]
        codes += [foreign[(2 * index + n) % len(foreign)] for n in range(2)]
        if procedures:
            codes += codes[:1]
        elif not stay.note:
            codes.append(WITHOUT_SUMMARY)
        for position, code in enumerate(codes, 1):
            number += 1
            yield f'{number},{stay.patient},{stay.admission},{position},"{code}"'
        if not procedures and index % 40 == 0:
            number += 1
            yield f"{number},{stay.patient},{stay.admission},,"


def _foreign(rng: np.random.Generator, procedures: bool) -> list[str]:
    """Return codes that look right and are none of the 50, in any order."""
    used = {without_period(code) for code in CODES} | {WITHOUT_SUMMARY}
    if procedures:
        every = [f"{n:04d}" for n in range(1, 9999)]
    else:
        every = [*(f"{n:05d}" for n in range(100, 99_999)), *(f"E{n}" for n in range(8000, 9999)), "V3000"]
    unused = [code for code in every if code not in used]
    return [unused[index] for index in rng.permutation(len(unused)).tolist()]


def _notes(stays: list[Stay], rng: np.random.Generator) -> Iterator[str]:
    """Yield the records of the notes. An addendum, if any, stands before its report and is of a later day."""
    words = _vocabulary()
    number = 0
    for index, stay in enumerate(stays):
        number += 4
        day = f"21{10 + index % 80}-0{1 + index % 9}-1"
        if stay.note and index % 5 == 0:
            yield _record(number - 3, stay, f"{day}5,,", "Discharge summary", "Addendum", _text(stay, words, rng, 12))
        if stay.note:
            yield _record(number - 2, stay, f"{day}4,,", "Discharge summary", "Report", _text(stay, words, rng, 120))
        for n in range(2):
            times = f"{day}3,{day}3 0{n + 1}:00:00,{day}3 0{n + 2}:30:00"
            other = OTHERS[int(rng.integers(len(OTHERS)))]
            yield _record(number - n, stay, times, other, "Report", _text(stay, words, rng, 30), outside=n == 1)


def _record(
    number: int, stay: Stay, times: str, category: str, description: str, text: str, outside: bool = False
) -> str:
    """Return a record; ``outside``: of no admission."""
    admission = "" if outside else str(stay.admission)
    quoted = text.replace('"', '""')
    return f'{number},{stay.patient},{admission},{times},"{category}","{description}",,,"{quoted}\n"'


def _text(stay: Stay, words: list[list[str]], rng: np.random.Generator, length: int) -> str:
    """Return the lines of ten words, a third of them of the classes, with numbers and signs as in true notes."""
    common = words[-1]
    own_words = [word for c in stay.classes for word in words[c]] or common
    lists = [own_words if draw < 0.35 else common for draw in rng.random(length).tolist()]
    draws = rng.integers(0, 1 << 30, size=length).tolist()
    chosen = [list_[at % len(list_)] for list_, at in zip(lists, draws, strict=True)]
    lines = [" ".join(chosen[start : start + 10]) for start in range(0, length, 10)]
    head = f'Admission Date:  [**2151-7-16**]\n\n"{chosen[0].upper()}" {draws[0] % 500} mg, {draws[0] % 90}mg.'
    return "\n".join([head, *lines])


def _vocabulary() -> list[list[str]]:
    """Return four words for every class, and at the end 200 that all share; the same for every seed."""
    rng = np.random.default_rng(50)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = list(dict.fromkeys("".join(rng.choice(syllables, size=3).tolist()) for _ in range(600)))
    by_class = [words[4 * c : 4 * c + 4] for c in range(len(CODES))]
    return [*by_class, words[4 * len(CODES) : 4 * len(CODES) + 200]]


def _write_gzip(path: Path, header: str, lines: Iterable[str]) -> None:
    """Write a gzip file whose bytes depend on the lines alone."""
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        io.TextIOWrapper(packed, "utf-8", newline="") as text,
    ):
        text.write(",".join(f'"{name}"' for name in header.split(",")) + "\n")
        text.writelines(f"{line}\n" for line in lines)
