"""The presets of FedALC's tables: their first lines against the published figures, and what they have in common."""

from __future__ import annotations

import csv
import re

import pytest

from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import PRESETS, preset_names, read_preset

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
OPENING = re.compile(
    r"# (?P<method>\S+)( \(lambda = (?P<lam>\d+)\))? on (?P<data>\S+), (?P<beside>beside )?Table (?P<table>[IV]+)"
    r" of FedALC \(2025\)(: published (?P<figures>.+)|, which has no such row)\."
)
METRICS = {"mAP": "map", "P@1": "p@1", "P@3": "p@3", "P@5": "p@5"}


def published():
    """(table, data set, method, lambda) -> the K of the line and its figures, without SLEEC's."""
    out: dict[tuple[str, str, str, str], tuple[str, dict[str, float]]] = {}
    with (PRESETS.parent / "published.csv").open(newline="") as stream:
        for line in csv.DictReader(stream):
            if line["paper"] == "FedALC" and line["method"] != "SLEEC":
                said = dict(word.split("=") for word in line["setting"].split())
                key = line["table"], line["dataset"], line["method"], said.get("lambda", "")
                out.setdefault(key, (said.get("K", ""), {}))[1][line["metric"]] = float(line["mean_percent"])
    return out


def opening(name):
    lines = (PRESETS / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    found = OPENING.fullmatch(lines[0])
    assert found, f"{name}: {lines[0]}"
    return found


def test_all_presets_are_seen():
    both = [f"{m}-{v}" for m in ("fedaws", "fedalc") for v in LAMBDAS]
    wanted = [f"{f}/{m}" for f in FOLDERS for m in METHODS + (both if f in GRID else ["fedaws", "fedalc"])]
    assert sorted(wanted) == sorted(NAMES)


def test_the_published_figures_are_those_of_the_table():
    """Both ways; a row that only we run says so."""
    table, said = published(), set()
    for name in NAMES:
        found = opening(name)
        key = found["table"], found["data"], found["method"], found["lambda_"] or ""
        assert FOLDERS[name.split("/")[0]] == found["data"]
        if found["beside"]:
            assert not found["figures"]
            assert key not in table
            continue
        figures = dict(figure.split(" ") for figure in found["figures"].split(", "))
        assert {METRICS[n]: float(v) for n, v in figures.items()} == table[key][1], name
        said.add(key)
    assert said == set(table)


@pytest.mark.parametrize("name", NAMES)
def test_the_options_are_those_that_the_first_line_names(name):
    """Method, lambda and the K of the table; for images all pairs, but for FLAIR's 1,628 labels."""
    found, method = opening(name), to_tree(read_preset(name))["method"]
    is_fixed = found["method"] == "FedAvg-fixed"
    assert method["name"] == ("fedavg-positive" if found["method"].startswith("FedAvg") else found["method"].lower())
    assert (method["class_embedding_lr"] == 0.0) == (is_fixed or method["name"] in ("flag", "fedmlh", "fedalc-fixed"))
    if method["name"] in ("fedaws", "fedalc"):
        assert method["lambda_"] == float(found["lambda_"] or 10)
        k, _ = published()[found["table"], found["data"], found["method"], found["lambda_"] or ""]
        all_pairs = {"coco14": 79, "voc12": 19, "voc07": 19, "flair": 50}
        assert method["neighbours"] == int(k or all_pairs[name.split("/")[0]])
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
    assert e.model.width == 512
    assert e.model.network == ("resnet50" if folder in IMAGES else "auto")
