"""Presets that extend another: what is inherited, what is not, and every way to name a base wrongly."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.errors import InputError

METHOD = "[method]\nname = 'fedavg'\n"


def write(folder, **texts):
    """Files ``<name>.toml``; the path of the first."""
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return str(folder / f"{next(iter(texts))}.toml")


def test_tables_are_merged_and_what_is_said_wins(tmp_path):
    text = "extends = 'digits/fedavg'\nseed = 9\n[federation]\nrounds = 3\n[model]\ndropout = 0.0\n"
    got, base = read_preset(write(tmp_path, own=text)), read_preset("digits/fedavg")
    want = to_tree(base)
    want["seed"], want["federation"]["rounds"], want["model"]["dropout"] = 9, 3, 0.0
    assert to_tree(got) == want
    assert (base.seed, base.federation.rounds, base.federation.clients_per_round) == (0, 30, 5)


def test_options_of_the_same_method_are_inherited(tmp_path):
    """With its name or without."""
    for method in ("alpha = 2.0", "name = 'fedalign'\nalpha = 2.0"):
        got = read_preset(write(tmp_path, own=f"extends = 'digits/fedalign'\n[method]\n{method}\n")).method
        assert (got.name, got.alpha, got.q1) == ("fedalign", 2.0, 95.0)


def test_options_of_another_method_or_data_set_are_not_inherited(tmp_path):
    """They would be errors (q1 of FedProx) or worse, mean something else (alpha of FedRS, classes_per_client)."""
    got = read_preset(
        write(tmp_path, own="extends = 'digits/fedalign'\n[method]\nname = 'fedrs'\n[task]\nname = 'toy-multi'\n")
    )
    assert got.method == type(got.method)()
    assert got.method.name == "fedrs"
    assert got.task == type(got.task)(name="toy-multi")
    assert got.optimizer == read_preset("digits/fedalign").optimizer


def test_a_chain_and_a_path_beside_the_file(tmp_path, monkeypatch):
    """``extends`` with the name of a .toml file means the one beside the preset, wherever the command is started."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = write(
        tmp_path / "own",
        top="extends = 'middle.toml'\n[method]\nmu = 0.5\n",
        middle="extends = '../base.toml'\n[method]\nname = 'fedprox'\nmu = 0.1\nweighting = 'uniform'\n",
    )
    write(tmp_path, base="extends = 'digits/fedavg'\nseed = 4\n[federation]\nrounds = 2\n")
    got = read_preset(path)
    assert (got.method.name, got.method.mu, got.method.weighting) == ("fedprox", 0.5, "uniform")
    assert (got.seed, got.federation.rounds, got.optimizer.batch_size) == (4, 2, 32)


def test_a_path_as_seen_from_where_the_command_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bases").mkdir()
    write(tmp_path / "bases", base=f"seed = 8\n{METHOD}")
    assert read_preset(write(tmp_path, own="extends = 'bases/base.toml'\n")).seed == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends = 3", r"extends = 3: must be the name of a preset, such as 'r8-8/fedavg'"),
        ("extends = ['digits/fedavg']", r"extends = \['digits/fedavg'\]: must be the name of a preset"),
        ("[extends]\nname = 'fedavg'", r"extends = \{'name': 'fedavg'\}: must be the name of a preset"),
        ("extends = 'digits/fedagv'", r"extends: no preset 'digits/fedagv' \(did you mean 'digits/fedavg'\?\); there"),
        ("extends = 'missing.toml'", r"extends: no preset 'missing.toml'; there are: "),
        ("extends = 'digits/fedavg'\n[federation]\nronds = 3", r"no option 'ronds' in \[federation\] \(did you mean"),
        ("extends = 'digits/fedavg'\n[method]\nq1 = 3", r"no option 'q1' in \[method\]"),
        ("extends = 'digits/fedavg'\nmethod = 3", r"\[method\] needs a name"),
        ("extends = 'digits/fedavg'\n[federation]\nextends = 'x'", r"no option 'extends' in \[federation\]"),
        ("extend = 'digits/fedavg'", r"no option or table 'extend'"),
    ],
)
def test_a_bad_base_is_named_in_one_line(tmp_path, text, message):
    path = write(tmp_path, own=text)
    with pytest.raises(InputError, match=message) as error:
        read_preset(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_base_that_is_not_toml_is_named_itself(tmp_path):
    path = write(tmp_path, own="extends = 'base.toml'\n", base="a = [")
    with pytest.raises(InputError, match=r"base\.toml: not valid TOML"):
        read_preset(path)


@pytest.mark.parametrize("base", ["one.toml", "./one.toml", "../presets/one.toml"])
def test_a_cycle_is_named(tmp_path, base):
    """However the file is spelled: it would read for ever."""
    folder = tmp_path / "presets"
    folder.mkdir()
    path = write(folder, one="extends = 'two.toml'\n", two=f"extends = '{base}'\n")
    with pytest.raises(InputError, match=r"one\.toml: it extends itself, by one\.toml and two\.toml\Z"):
        read_preset(path)


def test_a_preset_that_extends_itself_is_named(tmp_path):
    with pytest.raises(InputError, match=r"one\.toml: it extends itself, by one\.toml\Z"):
        read_preset(write(tmp_path, one="extends = 'one.toml'\n"))
