"""ICD-9-CM: the period in a code, the chapter of a code, and the titles of the 50 codes of MIMIC-III-50.

Source: ICD-9-CM, volumes 1 to 3 (National Center for Health Statistics and Centers for Medicare & Medicaid Services;
in the public domain). A code with its period says what it is: a procedure has two digits before it, a diagnosis
three, of which the first may be V, or E and three more.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import pyarrow.compute as pc

DIAGNOSIS = r"^(?:[0-9]{3}|V[0-9]{2})[0-9]{0,2}$|^E[0-9]{3}[0-9]?$"
PROCEDURE = r"^[0-9]{2}[0-9]{0,2}$"
"""Form of a code without its period."""

TITLES = {
    "401.9": "Unspecified essential hypertension",
    "38.93": "Venous catheterization, not elsewhere classified",
    "428.0": "Congestive heart failure, unspecified",
    "427.31": "Atrial fibrillation",
    "414.01": "Coronary atherosclerosis of native coronary artery",
    "96.04": "Insertion of endotracheal tube",
    "96.6": "Enteral infusion of concentrated nutritional substances",
    "584.9": "Acute renal failure, unspecified",
    "250.00": (
        "type II diabetes mellitus [non-insulin dependent type] [NIDDM type] [adult-onset type] or unspecified type, "
        "not stated as uncontrolled, without mention of complication"
    ),
    "96.71": "Continuous mechanical ventilation for less than 96 consecutive hours",
    "272.4": "Other and unspecified hyperlipidemia",
    "518.81": "Acute respiratory failure",
    "99.04": "Transfusion of packed cells",
    "39.61": "Extracorporeal circulation auxiliary to open heart surgery",
    "599.0": "Urinary tract infection, site not specified",
    "530.81": "Esophageal reflux",
    "96.72": "Continuous mechanical ventilation for 96 consecutive hours or more",
    "272.0": "Pure hypercholesterolemia",
    "285.9": "Anemia, unspecified",
    "88.56": "Coronary arteriography using two catheters",
    "244.9": "Unspecified hypothyroidism",
    "486": "Pneumonia, organism unspecified",
    "38.91": "Arterial catheterization",
    "285.1": "Acute posthemorrhagic anemia",
    "36.15": "Single internal mammary-coronary artery bypass",
    "276.2": "Acidosis",
    "496": "Chronic airway obstruction, not elsewhere classified",
    "99.15": "Parenteral infusion of concentrated nutritional substances",
    "995.92": "Severe sepsis",
    "V58.61": "Encounter for long-term (current) use of anticoagulants",
    "507.0": "Pneumonitis due to inhalation of food or vomitus",
    "038.9": "Unspecified septicemia",
    "88.72": "Diagnostic ultrasound of heart",
    "585.9": "Chronic kidney disease, unspecified",
    "403.90": "Hypertensive renal disease, unspecified, without mention of renal failure",
    "311": "Depressive disorder, not elsewhere classified",
    "305.1": "Tobacco use disorder",
    "37.22": "Left heart cardiac catheterization",
    "412": "Old myocardial infarction",  # codespell:ignore infarction
    "33.24": "Closed [endoscopic] biopsy of bronchus",
    "39.95": "Hemodialysis",
    "287.5": "Thrombocytopenia, unspecified",
    "410.71": (
        "Acute myocardial infarction, subendocardial infarction, "  # codespell:ignore infarction
        "initial episode of care"
    ),
    "276.1": "Hyposmolality and/or hyponatremia",
    "V45.81": "Postsurgical aortocoronary bypass status",
    "424.0": "Mitral valve disorders",
    "45.13": "Other endoscopy of small intestine",
    "V15.82": "History of tobacco use",
    "511.9": "Unspecified pleural effusion",
    "37.23": "Combined right and left heart cardiac catheterization",
}
"""The 50 most frequent codes of MIMIC-III's discharge summaries, the most frequent first (Mullenbach et al. 2018),
with titles in the wording of FedAlign's table of co-occurrences, which is that of older editions: 250.00, 403.90 and
584.9 were renamed later.
"""

_DIAGNOSES = {
    1: "infectious and parasitic diseases",
    140: "neoplasms",
    240: "endocrine, nutritional and metabolic diseases, and immunity disorders",
    280: "diseases of the blood and blood-forming organs",
    290: "mental disorders",
    320: "diseases of the nervous system and sense organs",
    390: "diseases of the circulatory system",
    460: "diseases of the respiratory system",
    520: "diseases of the digestive system",
    580: "diseases of the genitourinary system",
    630: "complications of pregnancy, childbirth, and the puerperium",
    680: "diseases of the skin and subcutaneous tissue",
    710: "diseases of the musculoskeletal system and connective tissue",
    740: "congenital anomalies",
    760: "certain conditions originating in the perinatal period",
    780: "symptoms, signs, and ill-defined conditions",
    800: "injury and poisoning",
}
_PROCEDURES = {
    0: "procedures and interventions, not elsewhere classified",
    1: "operations on the nervous system",
    6: "operations on the endocrine system",
    8: "operations on the eye",
    17: "other miscellaneous diagnostic and therapeutic procedures",
    18: "operations on the ear",
    21: "operations on the nose, mouth, and pharynx",
    30: "operations on the respiratory system",
    35: "operations on the cardiovascular system",
    40: "operations on the hemic and lymphatic system",
    42: "operations on the digestive system",
    55: "operations on the urinary system",
    60: "operations on the male genital organs",
    65: "operations on the female genital organs",
    72: "obstetrical procedures",
    76: "operations on the musculoskeletal system",
    85: "operations on the integumentary system",
    87: "miscellaneous diagnostic and therapeutic procedures",
}
_SUPPLEMENTARY = {
    "V": "factors influencing health status and contact with health services",
    "E": "external causes of injury and poisoning",
}


def with_period(codes: Any, *, procedures: bool) -> Any:
    """Return a string column of codes without their period, which the files of MIMIC-III leave out, with it."""
    if procedures:
        return pc.replace_substring_regex(codes, r"^([0-9]{2})([0-9]+)$", r"\1.\2")
    return pc.replace_substring_regex(codes, r"^(E[0-9]{3}|[V0-9][0-9]{2})([0-9]+)$", r"\1.\2")


def without_period(code: str) -> str:
    """Return a code as the files of MIMIC-III have it."""
    return code.replace(".", "")


def is_procedure(code: str) -> bool:
    """Return whether a code with its period is a procedure's."""
    return len(code.partition(".")[0]) == 2


def chapter(code: str) -> str:
    """Return the chapter's name of a code with its period, by its range. Raises ValueError where the code is none."""
    head = code.partition(".")[0]
    if head[:1] in _SUPPLEMENTARY:
        return _SUPPLEMENTARY[head[0]]
    if not (head.isdecimal() and len(head) in (2, 3)) or head == "000":
        raise ValueError(f"{code!r} is no ICD-9-CM code with its period")
    first = _PROCEDURES if len(head) == 2 else _DIAGNOSES
    starts = [*first]
    return first[starts[bisect_right(starts, int(head)) - 1]]


def chapters() -> dict[str, tuple[str, ...]]:
    """Return the chapter -> titles of its codes among the 50, in the order in which the chapters first occur."""
    titles_of = dict[str, list[str]]()
    for code, title in TITLES.items():
        titles_of.setdefault(chapter(code), []).append(title)
    return {name: tuple(titles) for name, titles in titles_of.items()}
