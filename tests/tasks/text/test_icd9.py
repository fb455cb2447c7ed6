"""ICD-9-CM: periods, chapters, and the titles of MIMIC-III-50 beside those of FedAlign's table."""

from __future__ import annotations

import csv
import json

import pyarrow as pa
import pytest

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.text import icd9
from anchorfl.tasks.text.mimic3 import CLASSES, GROUPS


def test_names_and_chapters():
    assert len(set(CLASSES)) == len(CLASSES) == 50
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(CLASSES)
    assert len(GROUPS) == 14
    chapter = {"V58.61": "factors influencing", "E812.0": "external causes", "001": "infectious", "139.8": "infectious"}
    chapter |= {"140": "neoplasms", "999.9": "injury", "00.66": "procedures and", "17.1": "other misc", "99.04": "misc"}
    for code, start in chapter.items():
        assert icd9.chapter(code).startswith(start)
    for code in ("4019", "", "000", "X12"):
        with pytest.raises(ValueError, match="is no ICD-9-CM code with its period"):
            icd9.chapter(code)
    diagnoses = pa.array(["4019", "486", "25000", "V5861", "V30", "E8120", "E812", "0389"])
    expected = ["401.9", "486", "250.00", "V58.61", "V30", "E812.0", "E812", "038.9"]
    assert icd9.with_period(diagnoses, procedures=False).to_pylist() == expected
    assert icd9.with_period(pa.array(["3893", "966", "0066", "54"]), procedures=True).to_pylist() == [
        "38.93",
        "96.6",
        "00.66",
        "54",
    ]


def test_the_presets_have_the_categories_of_the_authors_code():
    """dataset_mimic3.py there: the first of these limits that a code's number is below, E and V apart."""
    limits = [140, 240, 280, 290, 320, 390, 460, 520, 580, 630, 680, 710, 740, 760, 780, 800, 1000]
    classes = dict[object, list[int]]()
    for number, code in enumerate(icd9.TITLES):
        category = "E, V" if code[0] in "EV" else next(limit for limit in limits if float(code) < limit)
        classes.setdefault(category, []).append(number)
    given = json.loads(read_preset("mimic3-10/fedalign").task.client_classes)
    assert given == list(classes.values())
    assert len(given) == 10


@pytest.mark.data
def test_the_classes_have_the_papers_names(data_folder):
    path = data_folder / "cooccurrence_fedalign" / "cooccurrence_mimic3.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with path.open(encoding="utf-8", newline="") as file:
        assert tuple(next(csv.reader(file))[1:]) == CLASSES
