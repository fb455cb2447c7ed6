"""MIMIC-III-50: its reader and its errors on synthetic files, its numbers on the real files."""

from __future__ import annotations

import csv
import gzip
import re

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.files.raw_files import file_names, raw_folder
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_table import validate_table
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.text import icd9
from anchorfl.tasks.text import mimic3 as module
from anchorfl.tasks.text.mimic3 import CODES, mimic3_50, words

NOTES, DIAGNOSES, PROCEDURES = "NOTEEVENTS.csv", "DIAGNOSES_ICD.csv", "PROCEDURES_ICD.csv"
PUBLISHED = TaskOptions(name="mimic3-50")
SKIP = TaskOptions(name="mimic3-50", on_bad_row="skip")
OWN = TaskOptions(name="mimic3-50", variant="own")


@pytest.fixture
def written(made_up):
    return {path.name: path.read_bytes() for path in made_up("mimic3-50", 120, 1).iterdir()}


@pytest.fixture
def folder(written, tmp_path):
    """Return synthetic files, their tables unpacked, so that a test can change a line."""
    for name, data in written.items():
        path = tmp_path / name.removesuffix(".gz")
        path.write_bytes(gzip.decompress(data) if name.endswith(".gz") else data)
    return tmp_path


def change(path, old, new, count=1):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), encoding="utf-8")


def records(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_what_the_twin_wrote_comes_back(folder):
    """Read the files once more with the csv module and plain Python."""
    table = validate_table(module.read(folder, PUBLISHED), mimic3_50())
    split = {
        int(line): split
        for split, name in (("train", "train"), ("validation", "dev"), ("test", "test"))
        for line in (folder / f"{name}_50_hadm_ids.csv").read_text().split()
    }
    assert dict(zip(table["row"].to_pylist(), table["split"].to_pylist(), strict=True)) == split
    assert table.num_rows == 120
    index = {icd9.without_period(code): (icd9.is_procedure(code), c) for c, code in enumerate(CODES)}
    labels = {row: set() for row in split}
    for name, procedure in ((DIAGNOSES, False), (PROCEDURES, True)):
        for line in records(folder / name):
            kind, c = index.get(line["ICD9_CODE"], (None, -1))
            if kind == procedure and int(line["HADM_ID"]) in labels:
                labels[int(line["HADM_ID"])].add(c)
    assert table["labels"].to_pylist() == [sorted(labels[row]) for row in table["row"].to_pylist()]
    notes = [line for line in records(folder / NOTES) if line["CATEGORY"] == "Discharge summary"]
    notes.sort(key=lambda line: (line["CHARTDATE"], int(line["ROW_ID"])))
    for row, text, patient in zip(*(table[name].to_pylist() for name in ("row", "text", "subject")), strict=True):
        own = [line for line in notes if line["HADM_ID"] == str(row)]
        assert text == "\n".join(line["TEXT"] for line in own)
        assert {patient} == {line["SUBJECT_ID"] for line in own}
    assert any(len([line for line in notes if line["HADM_ID"] == str(row)]) == 2 for row in split)


def test_gzip_files_give_the_same(written, folder, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed")
    for name, data in written.items():
        (packed / name).write_bytes(data)
    assert module.read(packed, PUBLISHED).equals(module.read(folder, PUBLISHED))


def test_own_split_takes_every_admission_and_keeps_patients_together(folder):
    for name in ("train", "dev", "test"):
        (folder / f"{name}_50_hadm_ids.csv").unlink()
    assert file_names(mimic3_50(), OWN) == (NOTES, DIAGNOSES, PROCEDURES)
    table = validate_table(module.read(folder, OWN), mimic3_50())
    assert table.num_rows == 120 + 12
    sides = {}
    for patient, split in zip(table["subject"].to_pylist(), table["split"].to_pylist(), strict=True):
        assert sides.setdefault(patient, split) == split
    assert 0.55 < np.mean([split == "train" for split in sides.values()]) < 0.85
    assert module.read(folder, OWN).equals(table)


def test_without_the_split_files_the_mend_is_named(folder):
    (folder / "dev_50_hadm_ids.csv").unlink()
    options = TaskOptions(name="mimic3-50", root=str(folder))
    hint = r"no dev_50_hadm_ids\.csv .*physionet\.org/content/mimiciii/1\.4/ .*--task\.variant own does without"
    with pytest.raises(InputError, match=hint):
        raw_folder(mimic3_50(), options)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (NOTES, '"TEXT"', '"TEXTS"', r"NOTEEVENTS\.csv:1: no column TEXT \(did you mean 'TEXTS'\?\)"),
        (DIAGNOSES, '"ICD9_CODE"', '"ICD10"', r"DIAGNOSES_ICD\.csv:1: no column ICD9_CODE in the header"),
    ],
)
def test_a_missing_column_is_named(folder, name, old, new, message):
    change(folder / name, old, new)
    with pytest.raises(InputError, match=message):
        module.read(folder, SKIP)


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "message"),
    [
        (DIAGNOSES, r'"4019"', '"I10"', r"record \d+: ICD9_CODE 'I10' is no ICD-9 code without its period; write it"),
        (DIAGNOSES, r'"4019"', '"401.9"', r"record \d+: ICD9_CODE '401\.9' is no ICD-9 code without its period"),
        (DIAGNOSES, r'"4019"', '""', r"record \d+: ICD9_CODE '' is no ICD-9 code"),
        (PROCEDURES, r'"3893"', '"38931"', r"record \d+: ICD9_CODE '38931' is no ICD-9 code"),
        (DIAGNOSES, r"(\n3,\d+),\d+,", r"\1,12x,", r"record 4: HADM_ID '12x' is no number of an admission"),
        (DIAGNOSES, r"(\n3,\d+),\d+,", r"\1,", r"record 4: 4 fields, the header has 5; look for a quote that is"),
        (NOTES, r"(\n\d+,\d+),\d+(,[-\d]+,,,.Discharge)", r"\1,1e5\2", r"record \d+: HADM_ID '1e5' is no number"),
        (NOTES, r"(\n\d+,\d+),\d+(,[-\d]+,,,.Discharge)", r"\1,\2", r"record \d+: HADM_ID '' is no number"),
        (NOTES, r"(\n\d+),\d+(,\d+,[-\d]+,,,.Discharge)", r"\1,P7\2", r"record \d+: SUBJECT_ID 'P7' is no number"),
        (NOTES, r"2110-01-14(,,,.Discharge)", r"14/01/2110\1", r"record 3: CHARTDATE '14/01/2110' is no date as 2151"),
    ],
)
def test_a_bad_row_is_named_or_left_out(folder, name, pattern, replacement, message):
    path = folder / name
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), count=1)
    assert count == 1
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {message}.*--task.on_bad_row skip"):
        module.read(folder, PUBLISHED)
    count, listed = skipped(module.read(folder, SKIP))
    assert count >= 1  # a note that is left out may be the only one of its admission, which the split then lacks
    assert re.search(message, listed[0])


def test_a_quote_that_is_not_closed_is_found_and_no_text_is_quoted(folder):
    path = folder / NOTES
    change(path, '\n"\n', "\n\n")
    with pytest.raises(InputError, match=r"NOTEEVENTS\.csv: record 2: 1\d fields, the header has 11; look") as caught:
        module.read(folder, PUBLISHED)
    assert "Admission" not in str(caught.value)


@pytest.mark.parametrize("name", [NOTES, DIAGNOSES])
def test_a_cut_and_a_damaged_gzip_file_are_named(folder, written, name):
    data = written[f"{name}.gz"]
    (folder / name).unlink()
    for broken in (data[: len(data) // 2], data[:-4], data[:-8] + bytes(8)):
        (folder / f"{name}.gz").write_bytes(broken)
        with pytest.raises(InputError, match=rf"{name}\.gz(:1)?: the gzip file is damaged or cut short"):
            module.read(folder, SKIP)


def test_bytes_that_are_no_utf8_and_files_without_notes_are_named(folder):
    path = folder / NOTES
    good = path.read_bytes()
    path.write_bytes(good.replace(b" mg,", b" mg\xe9,", 1))
    with pytest.raises(InputError, match=r"NOTEEVENTS\.csv:\d+: bytes that are no UTF-8; convert"):
        module.read(folder, SKIP)
    path.write_bytes(good.split(b"\n")[0] + b"\n")
    with pytest.raises(InputError, match=r"NOTEEVENTS\.csv: no note of category 'Discharge summary'; get the file"):
        module.read(folder, SKIP)


def test_an_admission_in_two_splits_is_named_or_stays_in_the_first(folder):
    train, test = (folder / f"{name}_50_hadm_ids.csv" for name in ("train", "test"))
    admission = train.read_text().split()[0]
    test.write_text(f"{test.read_text()}{admission}\n")
    message = rf"test_50_hadm_ids\.csv:19: admission {admission} \(HADM_ID\) also stands at .*train_50_hadm_ids\.csv:1;"
    with pytest.raises(InputError, match=message):
        module.read(folder, PUBLISHED)
    table = module.read(folder, SKIP)
    assert skipped(table)[0] == 1
    assert dict(zip(table["row"].to_pylist(), table["split"].to_pylist(), strict=True))[int(admission)] == "train"


def test_bad_lines_of_the_split_are_named(folder):
    path = folder / "dev_50_hadm_ids.csv"
    good = path.read_text()
    path.write_text(f"HADM_ID\n{good}999999\n")
    with pytest.raises(InputError, match=r"dev_50_hadm_ids\.csv:1: HADM_ID 'HADM_ID' is no number of an admission"):
        module.read(folder, PUBLISHED)
    count, listed = skipped(module.read(folder, SKIP))
    assert count == 2
    assert listed[1].endswith("19: admission 999999 has no discharge summary in NOTEEVENTS; get all files again")


def test_an_admission_without_any_class_is_named(folder):
    have = set(module.read(folder, OWN)["row"].to_pylist())
    noted = {int(line["HADM_ID"]) for line in records(folder / NOTES) if line["CATEGORY"] == "Discharge summary"}
    lost = min(noted - have)
    path = folder / "test_50_hadm_ids.csv"
    path.write_text(f"{lost}\n{path.read_text()}")
    with pytest.raises(InputError, match=rf"test_50_hadm_ids\.csv:1: admission {lost} has none of the 50 codes"):
        module.read(folder, PUBLISHED)


def test_patients_on_both_sides_are_counted_and_named(folder):
    table = module.read(folder, PUBLISHED)
    patient = dict(zip(table["row"].to_pylist(), table["subject"].to_pylist(), strict=True))
    train, test = (folder / f"{name}_50_hadm_ids.csv" for name in ("train", "test"))
    ids = [int(line) for line in train.read_text().split()]
    moved = next(row for row in ids if [patient[i] for i in ids].count(patient[row]) > 1)
    train.write_text("".join(f"{row}\n" for row in ids if row != moved))
    test.write_text(f"{test.read_text()}{moved}\n")
    message = (
        rf"train_50_hadm_ids\.csv:\d+: admission \d+ is of patient {patient[moved]} \(SUBJECT_ID\), who is also in the "
        r"split test; 1 patients are on both sides"
    )
    with pytest.raises(InputError, match=message):
        module.read(folder, PUBLISHED)
    left = module.read(folder, SKIP)
    sides = {split for row, split in zip(left["subject"].to_pylist(), left["split"].to_pylist(), strict=True)
             if row == patient[moved]}  # fmt: skip
    assert sides == {"test"}
    assert left.num_rows == 120 - skipped(left)[0]


def test_an_admission_of_two_patients_is_named(folder):
    path = folder / NOTES
    second = [line for line in records(path) if line["CATEGORY"] == "Discharge summary"][1]
    change(path, f"\n2,{second['SUBJECT_ID']},{second['HADM_ID']},", f"\n2,77777,{second['HADM_ID']},")
    with pytest.raises(InputError, match=rf"admission {second['HADM_ID']} is of the patients {second['SUBJECT_ID']} a"):
        module.read(folder, PUBLISHED)


def test_other_codes_than_the_50_stop_the_reader(folder):
    """A code of every admission that has no summary is not counted; the same with a summary is."""
    assert (folder / DIAGNOSES).read_text().count('"V053"') == 12
    patients = dict.fromkeys((line["SUBJECT_ID"], line["HADM_ID"]) for line in records(folder / DIAGNOSES))
    with (folder / DIAGNOSES).open("a") as file:
        file.writelines(f'9{n},{patient},{stay},30,"V053"\n' for n, (patient, stay) in enumerate(patients))
    change(folder / "D_ICD_DIAGNOSES.csv", "\n1,", '\n0,"V053","Short","Need for a made-up thing"\n1,')
    message = (
        r"the 50 most frequent codes are not those of MIMIC-III 1\.4; missing: \S+ '.*' \(\d+ times\); in their place: "
        r"V05\.3 'Need for a made-up thing' \(144 times\); get the files of version 1\.4, whole"
    )
    with pytest.raises(InputError, match=message):
        module.read(folder, SKIP)


def test_words_are_those_of_the_recipe():
    texts = pa.array(["Admission Date:  [**2151-7-16**]\nMr. O'Neil got 500 mg, 250MG x2 ___ 1_2", "", "µg Über 9"])
    expected = ["mr o neil got mg 250mg x2", "", "µg über"]
    assert words(texts, 100).to_pylist() == expected
    assert words(words(texts, 100), 100).to_pylist() == expected
    assert words(texts, 2).to_pylist() == ["mr o", "", "µg über"]
    assert words(texts.slice(0, 0), 5).to_pylist() == []


def test_the_vocabulary_is_counted_in_the_cut_notes_and_encodes_block_by_block(folder):
    table = module.read(folder, PUBLISHED)
    spec = module.fit(table, TaskOptions(min_count=1, max_tokens=3))
    firsts = [text.split()[:3] for text in words(table["text"], 1000).to_pylist()]
    assert set(spec.vocabulary[2:]) == {word for first in firsts for word in first}
    whole = module.encode(table, spec)["x"].to_pylist()
    assert [[spec.vocabulary[i] for i in ids] for ids in whole] == firsts
    parts = [module.encode(table.slice(at, size), spec)["x"].to_pylist() for at, size in ((0, 0), (0, 7), (7, 200))]
    assert [row for part in parts for row in part] == whole
    with pytest.raises(InputError, match="max_tokens = 0 must be at least 1"):
        module.fit(table, TaskOptions(min_count=1, max_tokens=0))


def test_ten_clients_by_category(folder, tmp_path):
    options = TaskOptions(
        name="mimic3-50", root=str(folder), cache=str(tmp_path / "cache"), partition="categories", min_count=3
    )
    prepared = prepare(mimic3_50(), options, 0, engine="local")
    assert sorted(c for classes in prepared.manifest.classes for c in classes) == list(range(50))
    assert (sum(prepared.manifest.examples), prepared.manifest.validation, prepared.manifest.test) == (85, 17, 18)
    assert prepared.split("test", Objective("multi")).y_NC.sum(1).min() >= 1


@pytest.mark.data
def test_the_real_data_have_the_counts_of_the_paper(data_folder):
    folder = data_folder / "mimic3"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: access to MIMIC-III must be applied for")
    table = module.read(folder, PUBLISHED)
    split = np.array(table["split"])
    assert [int((split == name).sum()) for name in module.SPLITS] == [8066, 1573, 1729]
    train = table.filter(pa.array(split == "train"))
    assert len(train["labels"].combine_chunks().flatten()) / 8066 == pytest.approx(5.69, abs=0.01)
    assert len(module.fit(train, PUBLISHED).vocabulary) == pytest.approx(4896, abs=15)


def test_words_of_the_headings_are_left_out():
    text = pa.chunked_array([["Admission DATE: 3; date of birth, discharge"]])
    assert words(text, 9).to_pylist() == ["of"]
