"""Every shipped preset reads, fits its task, and is a row of a published table or run beside one."""

from __future__ import annotations

import csv
import re

import pytest

from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import PRESETS, preset_names, read_preset, shipped, shipped_toml
from anchorfl.tasks.files.raw_files import variants
from anchorfl.tasks.registry import TASKS
from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.published import PUBLISHED, rows_of

NAMES = preset_names()
FOLDERS = ["es-5", "es-15", "es-25", "mimic3-10", "pamap2-9", "r8-8"]
FOLDERS += ["es-15-redrawn", "es-25-redrawn", "r8-8-redrawn"]
"""Federations of FedAlign's tables, and three of them with other class sets."""
COMPARED = ["fedavg", "fedprox-1e-3", "fedprox-1e-4", "moon", "scaffold", "fedpu", "fedrs-0.5", "fedrs-0.9", "fedalign"]
ABLATIONS = ["fedalign-no-al", "fedalign-no-se", "fedalign-no-at"]
METHOD = {"central": "fedavg", "baseline": "fedavg", "lkcc": "fedbm", "frozen": "fedbm"}
"""How names of FedBM's rows begin -> their method, where it is another word."""
OF_A_PAPER = [n for n in NAMES if n.split("/")[0] in FOLDERS]
FEDBM = [f"{name}-{beta}" for name in ("oct-c8", "kvasir-v2", "ham10000", "pbc") for beta in (0.05, 0.1)] + ["femnist"]
BESIDE = {
    "fedalign": set(),
    "fedalc": {f"{folder}/fedavg" for folder in ("coco14", "voc12", "voc07", "flair")}
    | {
        f"{folder}/{row}"
        for folder in ("eurlex", "bibtex", "amazoncat", "amazon670k", "wikilshtc")
        for row in ("fedavg-fixed", "fedalc-fixed")
    },
    "fedbm": {
        f"{folder}/{row}"
        for folder in ("ham10000-0.05", "ham10000-0.1", "pbc-0.05", "pbc-0.1", "femnist")
        for row in ("fedbm-no-lkcc", "fedbm-no-cgde")
    }
    | {f"{folder}/fedbm-no-language" for folder in FEDBM},
    "suite": {name for name in NAMES if name.startswith("suite-")},
}
"""Presets that are run beside a paper's rows, and published nowhere; the suite is no paper's."""


def test_all_presets_are_seen():
    """Nine methods on six data sets, and the three ablations on the four of Table 3; three sets twice. The suite: eight
    methods on twenty-four settings, four more on the sixteen with one label a row, two on the others, our own on all,
    six on the one with a class a client.
    """
    compared = [f"{folder}/{method}" for folder in FOLDERS for method in COMPARED]
    with_table_3 = [f for f in FOLDERS if not f.startswith(("es-5", "es-15"))]
    without = [f"{folder}/{method}" for folder in with_table_3 for method in ABLATIONS]
    assert sorted(compared + without) == OF_A_PAPER
    assert {"digits/fedalign", "digits/fedavg"} < set(NAMES)
    assert sorted(NAMES) == NAMES
    assert len(NAMES) == 2 + 99 + 83 + 190 + 24 * (8 + 1) + 16 * 4 + 8 * 2 + 2 * 6
    assert len(list(PRESETS.glob("*.toml"))) == 26 + 4


@pytest.mark.parametrize("name", NAMES)
def test_preset(name):
    """It reads; its method is that of its name; it is the same preset as one file."""
    e = read_preset(name)
    assert e.task.variant in ("", *variants(TASKS[e.task.name]()))
    assert to_tree(e)["method"]["name"].split("-")[0] == METHOD.get(*[name.split("/")[1].split("-")[0]] * 2)


def test_a_preset_as_one_file_is_the_same(tmp_path):
    for i, name in enumerate(NAMES):
        path = tmp_path / f"{i}.toml"
        path.write_text(shipped_toml(name))
        assert read_preset(str(path)) == read_preset(name), name


def test_every_published_figure_has_a_preset_or_is_quoted():
    """Each line of published.csv is a figure of one row, or of a method that is not run again, or of a preprint that
    has a row otherwise.
    """
    with PUBLISHED.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    papers = {name: paper for paper in PAPERS.values() for name in (paper.published, paper.preprint)}
    rows = {(paper.title, row.data, row.label): row for paper in PAPERS.values() for row in rows_of(paper)}
    for line in lines:
        paper = papers[line["paper"]]
        assert line["table"] in paper.tables
        data, label = paper.data_and_method(line)
        if label not in paper.quoted:
            row = rows[paper.title, data, label]
            assert row.preset in NAMES
            same = row.figures[line["metric"]].mean == float(line["mean_percent"])
            assert same == (line["paper"] == paper.published)


@pytest.mark.parametrize("name", PAPERS)
def test_presets_without_a_published_figure_are_known(name):
    assert {row.preset for row in rows_of(PAPERS[name]) if not row.figures} == BESIDE[name]


def test_no_figure_stands_in_a_preset():
    """Published ones stand in published.csv, ours in ours.csv."""
    for path in PRESETS.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b\d\d\.\d\d\b", text), path  # as results are written; options have other digits
        assert "not run" not in text


@pytest.mark.parametrize("name", OF_A_PAPER)
def test_the_options_are_those_that_the_published_label_names(name):
    method = to_tree(read_preset(name))["method"]
    plain = {"fedavg": "FedAvg", "fedprox": "FedProx", "moon": "MOON", "scaffold": "SCAFFOLD", "fedpu": "FedPU",
             "fedrs": "FedRS", "fedalign": "FedAlign"}[method["name"]]  # fmt: skip
    symbol = {"fedprox": "mu", "fedrs": "alpha"}.get(method["name"])
    parts = [plain] if symbol is None else [f"{plain}({symbol}={method[symbol]:g})"]
    off = {"AL": "alignment", "SE": "semantic", "AT": "alternating"}
    if method["name"] == "fedalign":
        parts += [f"w/o {short}" for short, switch in off.items() if not method[switch]]
    assert shipped().presets[name].published == " ".join(parts)
    expected = {
        "moon": {"mu": 0.001, "tau": 0.5},
        "scaffold": {"server_lr": 1.0},
        "fedpu": {"lambda_": 1.0, "prior": 0.0},
    }
    for option, value in expected.get(method["name"], {}).items():
        assert method[option] == value
    assert method.get("weighting", "uniform") == "uniform"  # FedAlign's tables: every client counts alike


@pytest.mark.parametrize("name", [n for n in ["digits/fedalign", *OF_A_PAPER] if not n.endswith("/fedavg")])
def test_presets_of_a_data_set_differ_in_the_method_alone(name):
    """And FedAlign's in the names of the classes; its own learning rates stand in [method]."""
    one, base = (to_tree(read_preset(n)) for n in (name, f"{name.split('/')[0]}/fedavg"))
    if one["method"]["name"] == "fedalign":
        for tree in (one, base):
            del tree["class_embeddings"]
    del one["method"], base["method"]
    assert one == base


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith(tuple(ABLATIONS))])
def test_an_ablation_is_fedalign_with_one_switch_off(name):
    one, whole = (to_tree(read_preset(n)) for n in (name, f"{name.split('/')[0]}/fedalign"))
    switches = [k for k, v in one["method"].items() if v != whole["method"][k]]
    assert [one["method"].pop(k) for k in switches] == [False]
    assert [whole["method"].pop(k) for k in switches] == [True]
    assert one == whole
