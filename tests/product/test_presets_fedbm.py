"""The presets of FedBM's tables: their settings, and what they have in common."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.config.experiment import digest, to_tree
from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.published import rows_of

PAPER = PAPERS["fedbm"]
ROWS = rows_of(PAPER)
NAMES = [n for n in preset_names() if n.split("/")[0] in PAPER.data.values()]
COMPARED = [
    "central", "fedavg", "feddyn", "fedprox", "fedrep", "fedrod", "fednh", "fedproto", "fedetf", "scaffold", "fedbm",
]  # fmt: skip
SETTINGS = {  # clients, of them in a round, epochs, rounds: section IV-A of the paper
    "oct-c8": (12, 6, 2, 200),
    "kvasir-v2": (10, 5, 2, 200),
    "ham10000": (10, 5, 1, 200),
    "pbc": (12, 6, 10, 50),
    "femnist": (35, 3, 5, 200),
}


def test_all_presets_are_seen():
    assert sorted(NAMES) == sorted(row.preset for row in ROWS)
    for folder in PAPER.data.values():
        assert {f"{folder}/{name}" for name in (*COMPARED, "fedbm-no-lkcc", "fedbm-no-cgde")} <= set(NAMES)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "fedavg"], ids=lambda row: row.preset)
def test_rows_of_a_data_set_share_all_but_the_method(row):
    """Central training has one client, which has everything; concepts are an affair of FedBM's network."""
    one, base = (to_tree(read_preset(n)) for n in (row.preset, f"{row.folder}/fedavg"))
    for tree in (one, base):
        del tree["class_embeddings"]
        del tree["method"]
        if row.name == "central":
            assert (tree["task"].pop("clients"), tree["federation"].pop("clients_per_round")) in (
                (1, 1), SETTINGS[row.folder.rsplit("-0.", 1)[0]][:2],
            )  # fmt: skip
            tree["task"].pop("partition")
            tree["task"].pop("beta")
    assert one == base


@pytest.mark.parametrize("data", ["oct-c8", "kvasir-v2", "ham10000", "pbc"])
def test_central_training_is_one_run_for_both_betas(data):
    assert digest(read_preset(f"{data}-0.05/central")) == digest(read_preset(f"{data}-0.1/central"))


@pytest.mark.parametrize(("data", "folder"), PAPER.data.items())
def test_settings_are_the_papers(data, folder):
    e = read_preset(f"{folder}/fedavg")
    clients, some, epochs, rounds = SETTINGS[folder.rsplit("-0.", 1)[0]]
    assert (e.task.clients, e.federation.clients_per_round) == (clients, some)
    assert (e.federation.epochs, e.federation.rounds) == (epochs, rounds)
    if folder == "femnist":
        assert e.task.partition == "subjects"
    else:
        assert (e.task.partition, e.task.beta) == ("dirichlet", float(data.partition("beta=")[2]))
    o = e.optimizer
    assert (o.name, o.lr, o.lr_decay, o.momentum, o.weight_decay) == ("sgd", 0.01, 0.99, 0.9, 5e-4)
    assert (o.batch_size, o.state) == (8, "keep")
    assert (e.model.network, e.model.norm, e.model.width, e.model.init) == ("resnet18", "batch", 512, "torch")
    assert (e.evaluation.metrics, e.evaluation.model_selection) == ("classification", "best_validation_sum")


def options(name):
    return to_tree(read_preset(name))["method"]


EVERYWHERE = ("no-lkcc", "no-cgde", "no-language")
ENCODERS = {"bert", "roberta", "biomedclip"}


@pytest.mark.parametrize("folder", PAPER.data.values())
def test_an_ablation_changes_what_its_name_says(folder):
    """OCT-C8 and Kvasir-v2 have all of them, the other data sets the first ones; no preset is left unseen."""
    whole = options(f"{folder}/fedbm")
    changes = {
        "no-lkcc": {"lkcc": False},
        "no-cgde": {"cgde": False},
        "no-concepts": {"concept_conditions": False},
        "no-language": {"lkcc": False, "concept_conditions": False},
        **{f"no-{name}": {f"lambda_{name}": 0.0} for name in ("div", "dis")},
        **{f"{name}-{value:g}": {f"lambda_{name}": value} for name in ("div", "dis") for value in (0.1, 1.0, 10.0)},
    }
    studied = folder.startswith(("oct-c8", "kvasir-v2"))
    if not studied:
        changes = {name: changes[name] for name in EVERYWHERE}
    there = {n.partition("/fedbm-")[2] for n in NAMES if n.startswith(f"{folder}/fedbm-")}
    assert there == changes.keys() | (ENCODERS if studied else set())
    for name, change in changes.items():
        assert options(f"{folder}/fedbm-{name}") == whole | change, name


def test_rows_that_are_one_experiment_are_one():
    """Rows of several tables, under several names, are run once."""
    for first, *others in (
        ("fedavg", "baseline"),
        ("fedbm-no-cgde", "lkcc-100", "frozen-distribution"),
        ("fedbm", "fedbm-div-1", "fedbm-dis-0.1", "fedbm-biomedclip"),
    ):
        for other in others:
            one, two = (digest(read_preset(f"oct-c8-0.1/{name}")) for name in (first, other))
            assert one == two, other


def test_what_was_chosen_for_each_data_set():
    """The temperatures, weights and numbers of generated images of the reference scripts."""
    got = {
        f: tuple(options(f"{f}/fedbm")[o] for o in ("tau", "lambda_dis", "synthetic_per_batch"))
        for f in PAPER.data.values()
    }
    assert got["oct-c8-0.05"] == (17.5, 0.1, 16)
    assert got["oct-c8-0.1"] == (12.5, 0.1, 16)
    assert got["kvasir-v2-0.05"] == (12.5, 1.0, 32)
    assert got["kvasir-v2-0.1"] == (7.5, 0.1, 32)
    assert [read_preset(f"oct-c8-0.05/lkcc-{n}").class_embeddings.prompt_fraction for n in (25, 50, 75, 100)] == [
        0.25,
        0.5,
        0.75,
        1,
    ]
