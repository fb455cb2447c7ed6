"""Federations, papers and their product: the source of each option of a row, and every way to write a file wrongly."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.config.federations import Catalog
from anchorfl.pipeline.config.presets import PRESETS, read_preset, shipped
from anchorfl.pipeline.config.schema import from_tree
from anchorfl.tasks.errors import InputError

DATA = """
[task]
name = "toy-multi"
clients = 4
[model]
width = 8
[method]
class_embedding_lr = 0.2
[rows.fedaws.method]
neighbours = 7
[rows.fedaws-2.method]
nu = 2.0
[federation]
clients_per_round = 2
[rows.own]
cost = "seconds"
method.name = "fedavg"
[variants.a.task]
clients = 5
[variants.b.rows.fedaws.method]
neighbours = 9
[variants.b.model]
width = 16
"""
PAPER = """
title = "Toy (2023)"
published = "Toy"
seeds = [3, 4]
[data]
A = "toy-a"
B = "toy-b"
[method]
weighting = "samples"
class_embedding_lr = 0.3
lambda_ = 5.0
[rows.fedavg]
published = "FedAvg"
method.name = "fedavg-positive"
[rows.fedaws]
published = "FedAwS"
method.name = "fedaws"
method.neighbours = 6
method.lambda_ = 1.0
[rows.fedaws-2]
published = "FedAwS 2"
data = ["toy-b"]
from = "fedaws"
method.lambda_ = 2.0
federation.rounds = 7
"""


def write(folder, **texts):
    for name, text in {"toy": DATA, "paper": PAPER, **texts}.items():
        (folder / f"{name}.toml").write_text(text)
    return Catalog(folder)


def test_the_product(tmp_path):
    """Only what has no data of its own goes to all; a federation's own row is in no paper."""
    catalog = write(tmp_path)
    assert list(catalog.presets) == [
        "toy-a/fedavg", "toy-a/fedaws", "toy-a/own", "toy-b/fedavg", "toy-b/fedaws", "toy-b/fedaws-2", "toy-b/own",
    ]  # fmt: skip
    assert catalog.presets["toy-b/fedaws-2"].published == "FedAwS 2"
    assert catalog.presets["toy-b/own"].paper is None
    assert catalog.presets["toy-b/own"].cost == "seconds"


def test_the_nearest_says_it(tmp_path):
    """[method] of the paper, of the federation, the row, what the federation and its variant need for the row."""
    catalog = write(tmp_path)
    a, b, two = (from_tree(catalog.tree(name)) for name in ("toy-a/fedaws", "toy-b/fedaws", "toy-b/fedaws-2"))
    assert (a.method.class_embedding_lr, a.method.weighting, a.method.lambda_) == (0.2, "samples", 1.0)
    assert (a.method.neighbours, b.method.neighbours) == (7, 9)
    assert (a.task.clients, a.model.width) == (5, 8)
    assert (b.task.clients, b.model.width) == (4, 16)
    assert (two.method.neighbours, two.method.lambda_, two.method.nu, two.federation.rounds) == (9, 2.0, 2.0, 7)
    assert b.method.nu == 1.0
    assert (a.seed, two.seed) == (3, 3)
    own = from_tree(catalog.tree("toy-a/own"))
    assert (own.method.name, own.method.weighting, own.seed) == ("fedavg", "samples", 0)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("toy", "[model]", "[models]", r"toy\.toml: no key 'models' \(did you mean 'model'\?\); there are: seed, task"),
        ("toy", "width = 8", "widthh = 8", r"toy\.toml: no option 'widthh' in \[model\] \(did you mean 'width'\?\)"),
        ("toy", "[task]", "tracking = 3\n[task]", r"toy\.toml: \[tracking\] must be a table, not 3"),
        ("toy", "class_embedding_lr", "class_embedding_lrr",
         r"toy\.toml: no option 'class_embedding_lrr' in \[method\] \(did you mean 'class_embedding_lr'\?\): no row"),
        ("toy", "neighbours = 7", "neighbors = 7",
         r"toy\.toml: no option 'neighbors' in \[rows\.fedaws\.method\] \(did"),
        ("toy", "[rows.fedaws-2.", "[rows.fedaws2.",
         r"rows\.fedaws2: no paper has such a row for toy-a or toy-b \(did you mean"),
        ("toy", "cost =", "costs =", r"toy\.toml: no key 'costs' in \[rows\.own\] \(did you mean 'cost'\?\)"),
        ("toy", 'cost = "seconds"', "cost = 3", r"rows\.own\.cost = 3: must be text, such as 'about 20 CPU minutes'"),
        ("toy", 'cost = "seconds"', 'data = ["x"]', r"rows\.own: published, data and from are for papers' files"),
        ("toy", 'name = "fedavg"', 'name = "fedvag"',
         r"toy\.toml: rows\.own: no method 'fedvag' \(did you mean 'fedavg"),
        ("toy", "[variants.b.model]", "[variants.b.models]",
         r"no key 'models' in \[variants\.b\] \(did you mean 'model'"),
        ("toy", "[variants.a.task]", "[variants.c.task]", r"data\.'A' = 'toy-a': no such federation \(did you mean"),
        ("paper", "seeds", "seed", r"paper\.toml: no key 'seed' \(did you mean 'seeds'\?\); there are: title"),
        ("paper", "seeds = [3, 4]", "", r"paper\.toml: a paper's file needs seeds"),
        ("paper", "[3, 4]", "[]", r"seeds = \[\]: must be whole numbers, such as \[0, 1, 2\]"),
        ("paper", "[3, 4]", "['x']", r"seeds = 'x': must be whole numbers"),
        ("paper", 'A = "toy-a"', "A = 3", r"paper\.toml: data\.'A' = 3: must be the name of a federation"),
        ("paper", 'data = ["toy-b"]', 'data = ["toy-c"]', r"rows\.fedaws-2\.data: \[data\] has no 'toy-c' \(did you"),
        ("paper", 'from = "fedaws"', 'from = "fedawz"', r"rows\.fedaws-2\.from = 'fedawz': no such row \(did you mean"),
        ("paper", 'from = "fedaws"', 'from = "fedaws-2"', r"rows\.fedaws-2 is from itself, by fedaws-2"),
        ("paper", 'from = "fedaws"', "frm = 3", r"no key 'frm' in \[rows\.fedaws-2\] \(did you mean 'from'\?\)"),
        ("paper", "lambda_ = 2.0", "lamda_ = 2.0",
         r"no option 'lamda_' in \[rows\.fedaws-2\.method\] \(did you mean 'lam"),
        ("paper", 'method.name = "fedaws"', "", r"paper\.toml: rows\.fedaws: needs method\.name; there are: "),
        ("paper", "lambda_ = 5.0", "lambda = 5.0",
         r"paper\.toml: no option 'lambda' in \[method\] \(did you mean 'lamb"),
        ("paper", "[rows.fedavg]", "rows = 3\n[row.x]", r"paper\.toml: (not valid TOML|no key 'row')"),
        ("toy", "[task]", "[task", r"toy\.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_in_one_line(tmp_path, file, old, new, message):
    text = {"toy": DATA, "paper": PAPER}[file]
    assert old in text
    catalog = write(tmp_path, **{file: text.replace(old, new, 1)})
    with pytest.raises(InputError, match=message) as error:
        _ = [catalog.tree(name) for name in catalog.presets]
    assert str(error.value).startswith(f"{tmp_path / ('paper' if 'no such federation' in message else file)}.toml: ")
    assert "\n" not in str(error.value)


def test_names_that_two_files_claim(tmp_path):
    with pytest.raises(InputError, match=r"toy\.toml: toy-a is a federation of toy-a\.toml, too: rename one"):
        _ = write(tmp_path, **{"toy-a": DATA.partition("[variants")[0]}).presets
    (tmp_path / "toy-a.toml").unlink()
    with pytest.raises(InputError, match=r"toy\.toml: several papers have a row 'fedavg' for it: rename one"):
        _ = write(tmp_path, second=PAPER).presets
    (tmp_path / "second.toml").unlink()
    with pytest.raises(InputError, match=r"lone\.toml: no paper has lone in its \[data\], and it has no rows"):
        _ = write(tmp_path, lone='[task]\nname = "digits"\n').presets


def test_a_wrong_value_names_the_preset_and_its_files(tmp_path):
    catalog = write(tmp_path, toy=DATA.replace("clients = 4", "clients = 'x'"))
    with pytest.raises(InputError, match=r"/toy\.toml: toy-b/own: task\.clients = 'x': must be int, not str\Z"):
        catalog.read("toy-b/own")
    with pytest.raises(
        InputError, match=r"/toy\.toml: toy-b/fedaws with paper\.toml: task\.clients = 'x': must be int"
    ):
        catalog.read("toy-b/fedaws")


@pytest.mark.parametrize("name", ["es", "fedbm"])
def test_a_part_of_a_preset_is_none(name):
    with pytest.raises(InputError, match=rf"{name}\.toml: a part of the shipped presets, none itself: there are "):
        read_preset(str(PRESETS / f"{name}.toml"))


def test_a_preset_says_nothing_twice():
    """No federation asks of a row what the row has anyway; no row repeats the one that it is from."""
    catalog = shipped()
    for paper in catalog.papers.values():
        for name, row in paper.rows.items():
            above = paper.rows[row.parent].tree.get("method", {}) if row.parent else {}
            for option, value in row.tree.get("method", {}).items():
                same = option.startswith("lambda_")  # which says the value that is in the row's label
                assert same or above.get(option) != value, (name, option)
    for federation in catalog.federations.values():
        papers = [paper for paper in catalog.papers.values() if federation.name in paper.data.values()]
        for layer in federation.layers:
            for name, entry in layer.items():
                for paper in papers:
                    row = paper.rows[name].tree.get("method", {})
                    assert not row.items() & entry.tree.get("method", {}).items(), (federation.name, name)
