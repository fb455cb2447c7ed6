"""Every shipped preset reads, says what it reproduces, agrees with the published table, and fits its task."""

from __future__ import annotations

import csv
import re

import pytest

from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import PRESETS, preset_names, read_preset
from anchorfl.tasks.files.raw_files import variants
from anchorfl.tasks.registry import TASKS

NAMES = preset_names()
FOLDERS = {
    "es-5": "ES-5",
    "es-15": "ES-15",
    "es-25": "ES-25",
    "mimic3-10": "MIMIC-III-10",
    "pamap2-9": "PAMAP2-9",
    "r8-8": "R8-8",
}
"""Folder of FedAlign's presets -> what the paper calls the data set."""
COMPARED = ["fedavg", "fedprox-1e-3", "fedprox-1e-4", "moon", "scaffold", "fedpu", "fedrs-0.5", "fedrs-0.9", "fedalign"]
ABLATIONS = ["fedalign-no-al", "fedalign-no-se", "fedalign-no-at"]
METHOD = {"central": "fedavg", "baseline": "fedavg", "lkcc": "fedbm", "frozen": "fedbm"}
"""How names of FedBM's presets begin -> their method, where it is another word."""
OF_A_PAPER = [n for n in NAMES if n.split("/")[0] in FOLDERS]
OPENING = re.compile(
    r"# (?P<method>.+) on (?P<data>\S+), Table (?P<table>[23]) of FedAlign \(KDD 2023\):"
    r" published macro F1 (?P<macro_f1>\d\d\.\d\d)(, accuracy (?P<macro_accuracy>\d\d\.\d\d))?\."
)


def published() -> dict[tuple[str, str, str, str], str]:
    """(table, data set, method without spaces, metric) -> figure of FedAlign's tables."""
    with (PRESETS.parent / "published.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["paper"] == "FedAlign"]
    keys = [(r["table"], r["dataset"], r["method"].replace(" ", ""), r["metric"]) for r in rows]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, (r["mean_percent"] for r in rows), strict=True))


def opening(name: str) -> list[str]:
    return (PRESETS / f"{name}.toml").read_text(encoding="utf-8").splitlines()[:2]


def figures(name: str) -> dict[tuple[str, str, str, str], str]:
    """What the first line of a preset says, by the keys of ``published``."""
    found = OPENING.fullmatch(opening(name)[0])
    assert found, f"{name}: {opening(name)[0]}"
    key = found["table"], found["data"], found["method"].replace(" ", "")
    return {(*key, metric): found[metric] for metric in ("macro_f1", "macro_accuracy") if found[metric]}


def test_all_presets_are_seen():
    """Nine methods on six data sets, and the three ablations on the four of Table 3."""
    compared = [f"{folder}/{method}" for folder in FOLDERS for method in COMPARED]
    without = [f"{f}/{method}" for f in ("es-25", "mimic3-10", "pamap2-9", "r8-8") for method in ABLATIONS]
    assert sorted(compared + without) == OF_A_PAPER
    assert {"digits/fedalign", "digits/fedavg"} < set(NAMES)
    assert len(list(PRESETS.rglob("*.toml"))) == len(NAMES) == 2 + 66 + 83 + 181


@pytest.mark.parametrize("name", NAMES)
def test_preset(name):
    """It reads; its method is that of its name; it says what it reproduces and where our figure and its cost stand."""
    e = read_preset(name)
    assert e.task.variant in ("", *variants(TASKS[e.task.name]()))
    assert to_tree(e)["method"]["name"].split("-")[0] == METHOD.get(*[name.split("/")[1].split("-")[0]] * 2)
    assert all(line.startswith("# ") for line in opening(name))
    line, rows = opening(name)[1], (PRESETS.parents[1] / "REPRODUCIBILITY.md").read_text()
    if name.startswith("digits/"):  # a table of no paper
        assert "REPRODUCIBILITY.md" in line
    else:
        assert ("REPRODUCIBILITY.md" in line) == any(f"`{name}{end}" in rows for end in "` "), "has it a row there?"
        assert "REPRODUCIBILITY.md" in line or "Ours: not run yet." in line


def test_the_published_figures_are_those_of_the_table():
    """Every first line, both ways: what a preset says stands in the table, and every figure of the table in a preset.
    Table 3 repeats FedAvg and FedAlign of Table 2.
    """
    table, said = published(), {}
    for name in OF_A_PAPER:
        folder = name.split("/")[0]
        for (number, data, method, metric), value in figures(name).items():
            assert data == FOLDERS[folder], name
            assert table[number, data, method, metric] == value, name
            assert said.setdefault((number, data, method, metric), name) == name
    for (number, data, method, metric), value in table.items():
        if number == "3" and method in ("FedAvg", "FedAlign"):
            assert table["2", data, method, metric] == value
        else:
            assert (number, data, method, metric) in said


@pytest.mark.parametrize("name", OF_A_PAPER)
def test_the_options_are_those_that_the_first_line_names(name):
    method = to_tree(read_preset(name))["method"]
    title = OPENING.fullmatch(opening(name)[0])["method"]
    plain = {"fedavg": "FedAvg", "fedprox": "FedProx", "moon": "MOON", "scaffold": "SCAFFOLD", "fedpu": "FedPU",
             "fedrs": "FedRS", "fedalign": "FedAlign"}[method["name"]]  # fmt: skip
    told = {"fedprox": "mu", "fedrs": "alpha"}.get(method["name"])
    parts = [plain] if told is None else [plain, f"({told} = {method[told]:g})"]
    off = {"AL": "alignment", "SE": "semantic", "AT": "alternating"}
    if method["name"] == "fedalign":
        parts += [f"w/o {short}" for short, switch in off.items() if not method[switch]]
    assert title == " ".join(parts)
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
            tree["model"] = {k: v for k, v in tree["model"].items() if not k.startswith("names")}
    del one["method"], base["method"]
    assert one == base


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith(tuple(ABLATIONS))])
def test_an_ablation_is_fedalign_with_one_switch_off(name):
    one, whole = (to_tree(read_preset(n)) for n in (name, f"{name.split('/')[0]}/fedalign"))
    switches = [k for k, v in one["method"].items() if v != whole["method"][k]]
    assert [one["method"].pop(k) for k in switches] == [False]
    assert [whole["method"].pop(k) for k in switches] == [True]
    assert one == whole
