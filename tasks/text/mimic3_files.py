"""The files of MIMIC-III, version 1.4, that MIMIC-III-50 is made of: codes, notes, CAML's split.

Shape suffixes: N admissions, E entries of codes, T notes. Admissions and patients are int64 numbers (HADM_ID,
SUBJECT_ID).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, Table
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_file, open_text
from anchorfl.tasks.text.csv_records import Block, read_blocks
from anchorfl.tasks.text.icd9 import DIAGNOSIS, PROCEDURE, with_period

NUMBER = r"^[0-9]{1,9}$"
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}( 00:00:00)?$"
CATEGORY = "Discharge summary"
SPLIT_FILES = {"train": "train_50_hadm_ids.csv", "validation": "dev_50_hadm_ids.csv", "test": "test_50_hadm_ids.csv"}
NAME_FILES = ("D_ICD_DIAGNOSES.csv", "D_ICD_PROCEDURES.csv")
JOINED = 1024
"""Admissions whose notes are joined at a time."""


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of admissions, an entry for every line of the two files."""

    admission_E: Ints
    """Admission of every entry."""
    code_E: Any
    """Code with its period (dictionary array)."""

    def admissions(self, codes: Sequence[str]) -> Ints:
        """Return the admissions that have one of these codes, ascending."""
        return np.unique(self.admission_E[self._class_E(codes) >= 0])

    def of(self, row_N: Ints, codes: Sequence[str]) -> tuple[Ints, Ints]:
        """Return the entries of these admissions (ascending) with one of these codes: indices of admission and code."""
        class_E = self._class_E(codes)
        kept_E = (class_E >= 0) & np.isin(self.admission_E, row_N)
        return np.searchsorted(row_N, self.admission_E[kept_E]), class_E[kept_E]

    def counts(self, admission_N: Ints) -> dict[str, int]:
        """Return how often every code stands with these admissions."""
        among = self.code_E.indices.to_numpy()[np.isin(self.admission_E, admission_N)]
        count = np.bincount(among, minlength=len(self.code_E.dictionary)).tolist()
        return dict(zip(self.code_E.dictionary.to_pylist(), count, strict=True))

    def _class_E(self, codes: Sequence[str]) -> Ints:
        index = {code: number for number, code in enumerate(codes)}
        class_D = np.array([index.get(code, -1) for code in self.code_E.dictionary.to_pylist()], dtype=np.int64)
        class_E: Ints = class_D[self.code_E.indices.to_numpy()]
        return class_E


@dataclass(frozen=True, slots=True)
class Notes:
    """The discharge summaries."""

    row_N: Ints
    """Every admission that has one, ascending."""
    patient_N: Ints
    """The patient of each."""
    table: Table
    """The notes of the wanted admissions (admission, date, note, text), by admission, date and number."""


def read_codes(folder: Path, bad: BadRows) -> Codes:
    """Return the codes of both files. A line with neither SEQ_NUM nor ICD9_CODE (version 1.4 has 47) names none."""
    admissions, codes = list[Ints](), list[Any]()
    for name, pattern in (("DIAGNOSES_ICD.csv", DIAGNOSIS), ("PROCEDURES_ICD.csv", PROCEDURE)):
        path = find_file(folder, name)
        what = "no ICD-9 code without its period; write it as 4019"
        rules = {"HADM_ID": (NUMBER, "no number of an admission; correct it"), "ICD9_CODE": (pattern, what)}
        for block in read_blocks(path, ("HADM_ID", "SEQ_NUM", "ICD9_CODE"), bad):
            both = pc.binary_join_element_wise(block.columns["SEQ_NUM"], block.columns["ICD9_CODE"], "")
            empty_B = pc.equal(both, "")
            good = _kept(path, _only(block, pc.invert(empty_B)), rules, bad)
            admissions.append(_numbers(good["HADM_ID"]))
            codes.append(with_period(good["ICD9_CODE"], procedures=name == "PROCEDURES_ICD.csv"))
    code_E = pa.chunked_array(codes, type=pa.string()).combine_chunks().dictionary_encode()
    return Codes(np.concatenate([np.empty(0, dtype=np.int64), *admissions]), code_E)


def read_notes(folder: Path, wanted: Ints, bad: BadRows) -> Notes:
    """Return the discharge summaries, with the texts of those of the wanted admissions (ascending)."""
    path = find_file(folder, "NOTEEVENTS.csv")
    columns = ("ROW_ID", "SUBJECT_ID", "HADM_ID", "CHARTDATE", "CATEGORY", "TEXT")
    rules = {
        **{name: (NUMBER, "no number; correct it") for name in ("ROW_ID", "SUBJECT_ID", "HADM_ID")},
        "CHARTDATE": (DATE, "no date as 2151-08-04; correct it"),
        "TEXT": (r"\S", "empty; remove the record or fill it in"),
    }
    pairs, tables = list[Any](), list[Any]()
    for block in read_blocks(path, columns, bad):
        good = _kept(path, _only(block, pc.equal(block.columns["CATEGORY"], CATEGORY)), rules, bad)
        admission, patient, note = (_numbers(good[name]) for name in ("HADM_ID", "SUBJECT_ID", "ROW_ID"))
        pairs.append(np.stack([admission, patient], axis=1))
        parts = {"admission": admission, "date": good["CHARTDATE"], "note": note, "text": good["TEXT"]}
        tables.append(pa.table(parts).filter(pa.array(np.isin(admission, wanted))))
    if not any(len(pair) for pair in pairs):
        raise InputError(f"{path}: no note of category {CATEGORY!r}; get the file again")
    pair_N = np.unique(np.concatenate(pairs), axis=0)
    twice = np.flatnonzero(np.diff(pair_N[:, 0]) == 0)
    for index in twice.tolist():
        both = " and ".join(pair_N[index : index + 2, 1].astype(np.str_))
        bad.meet(f"{path}: admission {pair_N[index, 0]} is of the patients {both} (SUBJECT_ID); correct one of them")
    pair_N = np.delete(pair_N, np.flatnonzero(np.isin(pair_N[:, 0], pair_N[twice, 0])), axis=0)
    return Notes(pair_N[:, 0], pair_N[:, 1], pa.concat_tables(tables))


def join_notes(notes: Notes, row_N: Ints) -> Column:
    """Return the text of every one of these admissions (ascending): its notes, a line end between them."""
    ordered = notes.table.sort_by([(name, "ascending") for name in ("admission", "date", "note")])
    ordered = ordered.filter(pa.array(np.isin(ordered["admission"].to_numpy(), row_N)))
    start_N1 = np.append(np.searchsorted(ordered["admission"].to_numpy(), row_N), len(ordered))
    joined = []
    for first in range(0, len(row_N), JOINED):
        offset = start_N1[first : first + JOINED + 1]
        part = ordered["text"].slice(int(offset[0]), int(offset[-1] - offset[0])).combine_chunks()
        lists = pa.ListArray.from_arrays(pa.array((offset - offset[0]).astype(np.int32)), part)
        joined.append(pc.binary_join(lists, "\n"))
    return pa.chunked_array(joined, type=pa.string())


def check_frequent(codes: Codes, notes: Notes, expected: Sequence[str], folder: Path) -> None:
    """Raise InputError where these codes are not the most frequent of the admissions with a discharge summary.

    Where several are equally frequent, the expected ones count as more so.
    """
    count = dict.fromkeys(expected, 0) | codes.counts(notes.row_N)
    ranked = sorted(count, key=lambda code: (-count[code], code not in expected, code))[: len(expected)]
    wrong = [code for code in ranked if code not in expected]
    absent = [code for code in expected if code not in ranked or not count[code]]
    if not wrong and not absent:
        return
    names = _names(folder)

    def listed(codes: list[str]) -> str:
        shown = [f"{code}{f' {names[code]!r}' if code in names else ''} ({count[code]} times)" for code in codes[:5]]
        return ", ".join(shown) + (f" and {len(codes) - 5} more" if len(codes) > 5 else "") or "none"

    raise InputError(
        f"{folder}: the {len(expected)} most frequent codes are not those of MIMIC-III 1.4; missing: {listed(absent)}; "
        f"in their place: {listed(wrong)}; get the files of version 1.4, whole"
    )


@dataclass(frozen=True, slots=True)
class Published:
    """CAML's split."""

    split_of: dict[int, tuple[str, str]]
    """Admission -> its split and the location of that line."""

    @property
    def admission_N(self) -> Ints:
        """Its admissions, ascending."""
        return np.array(sorted(self.split_of), dtype=np.int64)

    def of(self, notes: Notes, labeled: Ints, bad: BadRows) -> dict[int, str]:
        """Return admission -> split.

        Bad rows: an admission without a discharge summary or without any of the classes, and one whose patient is also
        in a later split (train, validation, test), where that patient stays.
        """
        patient = dict(zip(notes.row_N.tolist(), notes.patient_N.tolist(), strict=True))
        known, splits = set(labeled.tolist()), dict[int, str]()
        for row, (split, where) in self.split_of.items():
            if row not in patient:
                bad.meet(f"{where}: admission {row} has no discharge summary in NOTEEVENTS; get all files again")
            elif row not in known:
                bad.meet(f"{where}: admission {row} has none of the 50 codes; get all files again")
            else:
                splits[row] = split
        last = dict[int, str]()
        for row, split in splits.items():  # in the order of the splits
            last[patient[row]] = split
        torn = [row for row, split in splits.items() if last[patient[row]] != split]
        count = len({patient[row] for row in torn})
        for row in torn:
            split, where = self.split_of[row]
            bad.meet(
                f"{where}: admission {row} is of patient {patient[row]} (SUBJECT_ID), who is also in the split "
                f"{last[patient[row]]}; {count} patients are on both sides; get the split files again"
            )
        return {row: split for row, split in splits.items() if row not in set(torn)}


def read_splits(folder: Path, bad: BadRows) -> Published:
    """Return CAML's split: a file per split, a HADM_ID per line."""
    split_of = dict[int, tuple[str, str]]()
    for split, name in SPLIT_FILES.items():
        path = find_file(folder, name)
        for number, line in open_text(path):
            where = f"{path}:{number}"
            if not re.fullmatch(NUMBER[1:-1], line.strip()):
                bad.meet(f"{where}: HADM_ID {line[:20]!r} is no number of an admission; write one per line")
                continue
            row = int(line)
            if row in split_of:
                bad.meet(f"{where}: admission {row} (HADM_ID) also stands at {split_of[row][1]}; remove one of the two")
                continue
            split_of[row] = split, where
    return Published(split_of)


def _names(folder: Path) -> dict[str, str]:
    """Return the code with its period -> title, from the files of names where they are there: they are not needed."""
    names = dict[str, str]()
    for name in NAME_FILES:
        path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
        for block in read_blocks(path, ("ICD9_CODE", "LONG_TITLE"), BadRows(skip=True)) if path else ():
            codes = with_period(block.columns["ICD9_CODE"], procedures="PROCEDURES" in name)
            names.update(zip(codes.to_pylist(), block.columns["LONG_TITLE"].to_pylist(), strict=True))
    return names


def _only(block: Block, kept_B: Any) -> Block:
    """Return some records of a block."""
    return Block(block.columns.filter(kept_B), block.number_N[kept_B.to_numpy(zero_copy_only=False)])


def _kept(path: Path, block: Block, rules: dict[str, tuple[str, str]], bad: BadRows) -> Any:
    """Return the records whose fields look as they should; the others are bad rows. rules: column -> pattern, and what
    a field is that does not match it.
    """
    good_B: Bools = np.ones(len(block.number_N), dtype=np.bool_)
    for name, (pattern, fault) in rules.items():
        match_B = pc.match_substring_regex(block.columns[name], pattern).to_numpy(zero_copy_only=False)
        for index in np.flatnonzero(good_B & ~match_B).tolist():
            shown = "" if name == "TEXT" else f" {block.columns[name][index].as_py()[:20]!r}"
            bad.meet(f"{path}: record {block.number_N[index]}: {name}{shown} is {fault}")
        good_B &= match_B
    return block.columns.filter(pa.array(good_B))


def _numbers(column: Column) -> Ints:
    numbers: Ints = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
