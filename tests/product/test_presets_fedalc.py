"""The presets of FedALC's tables: their options against the published settings, and what they have in common."""

from __future__ import annotations

import csv

import pytest

from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.published import PUBLISHED, rows_of

FOLDERS = {
    "coco14": "COCO",
    "voc12": "VOC12",
    "voc07": "VOC07",
    "flair": "FLAIR",
    "eurlex": "EURLex",
    "bibtex": "Bibtex",
    "amazoncat": "AmazonCat",
    "amazon670k": "Amazon670K",
    "wikilshtc": "WikiLSHTC",
}
"""Folder of the presets -> what the paper calls the data set."""
IMAGES = ("coco14", "voc12", "voc07", "flair")
GRID = ("eurlex", "bibtex")
METHODS = ["fedavg", "fedavg-fixed", "flag", "fedmlh", "fedalc-fixed"]
LAMBDAS = (1, 10, 100, 150, 200, 500)
NAMES = [n for n in preset_names() if n.split("/")[0] in FOLDERS]
ROWS = {row.preset: row for row in rows_of(PAPERS["fedalc"])}


def neighbours():
    """(data set, method, lambda) -> the K that the paper's tables give."""
    out: dict[tuple[str, str, str], str] = {}
    with PUBLISHED.open(newline="") as stream:
        for line in csv.DictReader(stream):
            if line["paper"] == "FedALC":
                said = dict(word.split("=") for word in line["setting"].split())
                out[line["dataset"], line["method"], said.get("lambda", "")] = said.get("K", "")
    return out


def test_all_presets_are_seen():
    both = [f"{m}-{v}" for m in ("fedaws", "fedalc") for v in LAMBDAS]
    wanted = [f"{f}/{m}" for f in FOLDERS for m in METHODS + (both if f in GRID else ["fedaws", "fedalc"])]
    assert sorted(wanted) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_options_are_those_that_the_published_label_names(name):
    """Method, lambda and the K of the table; for images all pairs, but for FLAIR's 1,628 labels."""
    row, method = ROWS[name], to_tree(read_preset(name))["method"]
    label, _, setting = row.label.partition("(")
    assert FOLDERS[name.split("/")[0]] == row.data
    assert method["name"] == ("fedavg-positive" if label.startswith("FedAvg") else label.lower())
    assert (method["class_embedding_lr"] == 0.0) == (
        label == "FedAvg-fixed" or method["name"] in ("flag", "fedmlh", "fedalc-fixed")
    )
    if method["name"] in ("fedaws", "fedalc"):
        lambda_ = setting.removeprefix("lambda=").removesuffix(")")
        assert method["lambda_"] == float(lambda_ or 10)
        all_pairs = {"coco14": 79, "voc12": 19, "voc07": 19, "flair": 50}
        assert method["neighbours"] == int(neighbours()[row.data, label, lambda_] or all_pairs[name.split("/")[0]])
        assert method["regularizer"] == ("hinge_const" if method["neighbours"] in (19, 79) else "neg_d2")


@pytest.mark.parametrize("name", NAMES)
def test_presets_of_a_data_set_differ_in_the_method_alone(name):
    """All rows share the local work; fixed rows of text have 500 rounds (FedALC, section V), all others 300 or 100."""
    folder, method = name.split("/")
    one, base = (to_tree(read_preset(n)) for n in (name, f"{folder}/fedavg"))
    shared = ("server", "server_lr", "server_lr_decay", "server_eps", "margin", "weighting")
    skipped = "weighting" if method == "flag" else ""  # its weights are what makes it FLAG
    assert {o: one["method"][o] for o in shared if o != skipped} == {
        o: base["method"][o] for o in shared if o != skipped
    }
    rounds = one["federation"].pop("rounds")
    if method.endswith("-fixed") and folder not in IMAGES:
        assert rounds == 500
        assert base["federation"].pop("rounds") == 300
    else:
        assert base["federation"].pop("rounds") == rounds == (100 if folder in ("coco14", "flair") else 300)
    del one["method"], base["method"]
    assert one == base


@pytest.mark.parametrize("name", [n for n in NAMES if n.split("/")[1].startswith("fedalc") and "fixed" not in n])
def test_fedaws_beside_fedalc_lacks_the_correlation_alone(name):
    one, other = (to_tree(read_preset(n))["method"] for n in (name, name.replace("fedalc", "fedaws")))
    common = set(one) & set(other) - {"name"}
    assert {"lambda_", "neighbours", "regularizer", "eta_s", "class_embedding_lr"} <= common
    assert {o: one[o] for o in common} == {o: other[o] for o in common}


@pytest.mark.parametrize("folder", FOLDERS)
def test_one_client_per_label_in_pooled_rounds(folder):
    e = read_preset(f"{folder}/fedavg")
    assert (e.task.partition, e.task.clients, e.federation.clients_per_round) == ("one_class", 0, 0)
    assert e.federation.batched_clients
    assert e.evaluation.metrics == "ranking"
    assert e.model.width == (2048 if folder == "coco14" else 512)
    assert e.model.network == ("resnet50" if folder in IMAGES else "auto")
