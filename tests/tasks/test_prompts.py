"""The words for the classes of every image task of FedBM, and the sentences that hold them."""

from __future__ import annotations

import re

import pytest

from anchorfl.tasks.images import ham10000_rows, kvasir, oct_c8, pbc
from anchorfl.tasks.prompts import Wording, with_article
from anchorfl.tasks.registry import TASKS, find_task

PAIRS = {
    "oct-c8": {
        "AMD": "age-related macular degeneration",
        "CNV": "choroidal neovascularization",
        "CSR": "central serous retinopathy",
        "DME": "diabetic macular edema",
        "DR": "diabetic retinopathy",
        "DRUSEN": "choroidal drusen",
        "MH": "macular hole",
        "NORMAL": "normal retina",
    },
    "kvasir-v2": {
        "dyed-lifted-polyps": "dyed lifted polyp",
        "dyed-resection-margins": "dyed resection margin",
        "esophagitis": "esophagitis",
        "normal-cecum": "cecum",
        "normal-pylorus": "pylorus",
        "normal-z-line": "Z-line",
        "polyps": "polyps",
        "ulcerative-colitis": "ulcerative colitis",
    },
    "pbc": {
        "basophil": "basophil",
        "eosinophil": "eosinophil",
        "erythroblast": "erythroblast",
        "ig": "immature granulocyte",
        "lymphocyte": "lymphocyte",
        "monocyte": "monocyte",
        "neutrophil": "neutrophil",
        "platelet": "platelet",
    },
    "ham10000": {
        "akiec": "actinic keratosis or intraepithelial carcinoma",
        "bcc": "basal cell carcinoma",
        "bkl": "benign keratosis-like lesion",
        "df": "dermatofibroma",
        "mel": "melanoma",
        "nv": "melanocytic nevus",
        "vasc": "vascular lesion",
    },
}
"""Label in the raw files -> words. FedBM's code pairs DR with macular hole and MH with diabetic retinopathy."""
LABELS = {
    "oct-c8": oct_c8.FOLDERS, "kvasir-v2": kvasir.FOLDERS, "pbc": pbc.FOLDERS, "ham10000": ham10000_rows.DIAGNOSES,
}  # fmt: skip
"""Label in the raw files -> class name, in the order of the classes."""
MEDMNIST = {"bloodmnist": "pbc", "dermamnist": "ham10000"}
"""A file of the same images -> the set that they are from, whose words it has."""
WITH_PROMPTS = (*PAIRS, *MEDMNIST, "femnist", "digits")


@pytest.mark.parametrize("name", PAIRS)
def test_words_are_bound_to_labels_by_name(name):
    task = find_task(name)
    assert task.class_names == tuple(LABELS[name].values())
    words = dict(zip(LABELS[name], task.wording.of(task.class_names), strict=True))
    assert words == PAIRS[name]


@pytest.mark.parametrize("name", WITH_PROMPTS)
def test_words_follow_the_class_not_its_place(name):
    task = find_task(name)
    words = dict(zip(task.class_names, task.wording.of(task.class_names), strict=True))
    turned = task.class_names[::-1][1:]  # as after task.min_positives: a class less
    assert task.wording.of(turned) == tuple(words[each] for each in turned)
    assert len(set(words.values())) == len(words)


def test_characters_are_called_by_their_names():
    femnist, digits = find_task("femnist"), find_task("digits")
    numbers = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    words = femnist.wording.of(femnist.class_names)
    assert words[:10] == tuple(f"digit {number}" for number in numbers) == digits.wording.of(digits.class_names)
    assert (words[10], words[35], words[36], words[61]) == (
        "capital letter A", "capital letter Z", "small letter a", "small letter z",
    )  # fmt: skip
    assert len(words) == 62


@pytest.mark.parametrize("name", WITH_PROMPTS)
def test_every_task_of_fedbm_has_20_to_28_sentences(name):
    prompts = find_task(name).wording.prompts()
    assert 20 <= len(set(prompts)) == len(prompts) <= 28
    for prompt in prompts:
        assert prompt.count("{name}") == 1
        assert "{noun}" not in prompt
        articles = re.findall(r"\b(an?) (\w+)", prompt)
        assert len(articles) == 1, prompt
        assert articles[0][0] == ("an" if articles[0][1] in ("image", "OCT", "endoscopic") else "a"), prompt


def test_the_scheme_is_every_frame_with_every_noun():
    prompts = find_task("kvasir-v2").wording.prompts()
    assert prompts[:5] == (
        "an image of {name}", "{name} presented in an image", "an image shows {name}",
        "an image shows the presence of {name}", "the presence of {name} in an image",
    )  # fmt: skip
    assert prompts[-1] == "the presence of {name} in an endoscopic photo"
    assert len(prompts) == 20
    assert Wording(("OCT scan",)).prompts()[10] == "an OCT scan of {name}"


def test_articles():
    right = ("an OCT scan", "an X-ray image", "an MRI scan", "a CT scan", "a US image", "a photo", "an angiogram")
    assert tuple(with_article(noun.partition(" ")[2]) for noun in right) == right


def test_words_are_for_classes_that_there_are():
    tasks = [task() for task in TASKS.values()]
    assert {task.name for task in tasks if task.wording} == set(WITH_PROMPTS)
    for task in tasks:
        if task.wording:
            assert set(task.wording.words) <= set(task.class_names)
