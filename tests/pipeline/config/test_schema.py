"""Presets and overrides: strict, with the nearest name, and one line of error."""

from __future__ import annotations

import tomllib

import pytest

from anchorfl.pipeline.config.experiment import digest, flat, to_tree
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.schema import from_tree, to_toml, with_options
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment


def test_the_tree_is_its_own_inverse(experiment):
    for method in ("fedavg", "fedalign"):
        e = experiment(method)
        assert from_tree(to_tree(e)) == e


def test_a_table_is_no_option():
    """It took the place of the whole table: what a preset had in it went back to the defaults."""
    with pytest.raises(InputError, match=r"'optimizer' is a table: give its options, such as 'optimizer\.name'"):
        with_options(small_experiment("fedavg"), {"optimizer": {"lr": 0.01}})


def test_any_character_comes_back_from_toml():
    """TOML takes no halves of one beyond U+FFFF, as which JSON escapes it."""
    e = with_options(read_preset("digits/fedavg"), {"tracking.run_name": "𠮷野 \U0001f600 é"})
    assert from_tree(tomllib.loads(to_toml(e))) == e


def test_a_list_or_a_table_may_stand_for_json(tmp_path):
    """In a preset, in Python and on the command line; as TOML it is one line of text."""
    path = tmp_path / "own.toml"
    for text, value in (
        ("client_classes = [['a', 'b'], [1]]", '[["a","b"],[1]]'),
        ("[task.client_classes]\n7 = [['a'], ['b']]", '{"7":[["a"],["b"]]}'),
        ("client_classes = '[[0]]'", "[[0]]"),
        ("client_classes = 'sets.csv'", "sets.csv"),
    ):
        path.write_text(f"[task]\n{text}\n[method]\nname = 'fedavg'\n")
        experiment = read_preset(str(path))
        assert experiment.task.client_classes == value
        path.write_text(to_toml(experiment))
        assert read_preset(str(path)) == experiment
        assert override(experiment, ["--task.client_classes", value], "run") == experiment
    assert with_options(experiment, {"task.client_classes": [["a"]]}).task.client_classes == '[["a"]]'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ronds = 3", r"no option or table 'ronds'"),
        ("[federation]\nronds = 3", r"no option 'ronds' in \[federation\] \(did you mean 'rounds'\?\)"),
        ("[metod]\nname = 'fedavg'", r"no option or table 'metod' \(did you mean 'method'\?\)"),
        ("[federation]\nrounds = 'many'", r"federation.rounds = 'many': must be int, not str"),
        ("[federation]\nrounds = true", r"federation.rounds = True: must be int, not bool"),
        ("[federation]\nrounds = 0", r"federation.rounds = 0: must be at least 1"),
        ("[federation]\nsteps = -1", r"federation.steps = -1: must be at least 0"),
        (
            "[federation]\nsteps = 9\nstack = 4",
            r"federation.stack trains clients by whole epochs: leave federation.steps",
        ),
        ("[task]\npartition = 'dirchlet'", r"task.partition = 'dirchlet' \(did you mean 'dirichlet'\?\): one of"),
        ("[task]\nname = 'r9'", r"no task 'r9' in \[task\] name"),
        ("[method]\nname = 'fedaling'", r"no method 'fedaling' in \[method\] name \(did you mean 'fedalign'\?\)"),
        ("[method]\nname = 'fedavg'\nq1 = 3", r"no option 'q1' in \[method\]"),
        ("[method]\nname = 'fedalign'\nq1 = 100", r"method.q1 = 100.0, method.q2 = 50.0: percentiles lie strictly"),
        ("[method]\nname = 'fedalign'\nq1 = 40", r"method.q2 = 50.0 exceeds method.q1 = 40.0: .*lower q2"),
        ("federation = 3", r"\[federation\] must be a table, not 3"),
        ("[federation]\nclients_per_round = 11", r"clients_per_round = 11 exceeds task.clients = 10: lower it"),
        ("[optimizer]\nlr = -1", r"optimizer.lr = -1.0: must be above 0"),
        ("[class_embeddings]\ninit = 'cooccurrence'", r"needs class_embeddings.table"),
        ("a = [", r"not valid TOML"),
    ],
)
def test_bad_presets_are_named(tmp_path, text, message):
    """File, table, key and the nearest name, in one line."""
    path = tmp_path / "bad.toml"
    path.write_text(text if "[method]" in text or "metod" in text else f"{text}\n[method]\nname = 'fedavg'\n")
    with pytest.raises(InputError, match=message) as error:
        read_preset(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_unknown_preset_names_the_nearest():
    with pytest.raises(
        InputError, match=r"no preset 'digits/fedalgin' \(did you mean 'digits/fedalign'\?\); there are: "
    ):
        read_preset("digits/fedalgin")


def test_overrides():
    e = override(
        read_preset("digits/fedalign"),
        ["--method.q1", "90", "--seed=3", "--federation.clients-per-round", "4", "--method.alignment", "False",
         "--method.positive_f1_gate", "0.5"],
    )  # fmt: skip
    assert (e.method.q1, e.seed, e.federation.clients_per_round) == (90.0, 3, 4)
    assert (e.method.alignment, e.method.positive_f1_gate) == (False, 0.5)
    assert e.task == read_preset("digits/fedalign").task


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method.q3", "90"], r"no option --method.q3 \(did you mean 'method.q[12]'\?\)"),
        (["--metod.q1", "90"], r"no option --metod.q1 \(did you mean 'method.q1'\?\)"),
        (["--method.q1", "high"], r"method.q1 = 'high'"),
        (["--method.q1", "101"], r"^method.q1 = 101.0, method.q2 = 50.0: percentiles lie strictly between 0 and 100$"),
        (["--method.q2", "99.5"], r"^method.q2 = 99.5 exceeds method.q1 = 95.0"),
        (["--federation.clients_per_round", "11"], r"clients_per_round = 11 exceeds task.clients = 10"),
        (["--seed"], "--seed: give a value"),
        (["--task.partition", "dirchlet"], r"task.partition = 'dirchlet' \(did you mean 'dirichlet'\?\): one of"),
    ],
)
def test_bad_overrides_are_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        override(read_preset("digits/fedalign"), arguments)
    assert "\n" not in str(error.value)


def test_help_lists_every_option_with_its_words(capsys):
    with pytest.raises(SystemExit) as stop:
        override(read_preset("r8-8/fedalign"), ["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--method.q1" in shown
    words = " ".join(shown.split())
    assert "Percentile of SIMILARITY" in words
    assert "--seed INT Seed of the run" in words.replace("│ ", "")
    assert "--output STR Folder of the run" in words.replace("│ ", "")


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1])
def test_a_seed_that_no_record_holds_is_refused(seed):
    """JSON readers hold 64 bits: the manifest would be called damaged."""
    with pytest.raises(ValueError, match=f"seed = {seed}: records hold 64 bits"):
        small_experiment(seed=seed)
    assert small_experiment(seed=(1 << 63) - 1).seed == (1 << 63) - 1


def test_the_digest_is_of_what_can_change_a_result():
    base = read_preset("digits/fedalign")
    same = ["--cluster.executor", "serial", "--tracking.uri", "none", "--output", "x", "--task.cache", "y"]
    assert digest(override(base, [*same, "--evaluation.save_state_every", "3"])) == digest(base)
    for change in ("--seed 1", "--federation.rounds 9", "--optimizer.lr 0.1", "--task.clients 9", "--method.q1 98"):
        assert digest(override(base, change.split())) != digest(base)


def test_a_share_of_the_clients_takes_part():
    """Rounded down, at least one; ``clients_per_round`` does not count then, even where it is more than there are."""
    base = read_preset("digits/fedavg")
    assert (base.task.clients, base.selected_clients) == (10, 5)
    for share, clients, selected in ((0.5, 8, 4), (0.5, 4, 2), (0.29, 100, 29), (0.1, 3, 1), (1.0, 4, 4)):
        words = ["--federation.client_fraction", str(share), "--task.clients", str(clients)]
        assert override(base, words).selected_clients == selected
    for share in ("-0.1", "1.5"):
        with pytest.raises(InputError, match=r"federation.client_fraction = .*: must be in \[0, 1\]"):
            override(base, ["--federation.client_fraction", share])
    with pytest.raises(InputError, match=r"clients_per_round = 5 exceeds task.clients = 4"):
        override(base, ["--task.clients", "4"])


def test_the_names_that_people_sweep_stay_short():
    names = flat(read_preset("r8-8/fedalign"))
    assert {"q1", "q2", "alpha", "method", "task", "seed"} <= names.keys()
    assert (names["q1"], names["method"], names["task"]) == (99.0, "fedalign", "r8")
    assert names["federation.rounds"] == 50


@pytest.mark.parametrize("typed", ["--task.split_seed none", "--task.split_seed=none", "--task.split_seed None"])
def test_none_is_typed_written_read_and_recorded(typed):
    """The seed of the split is then that of the run."""
    e = override(read_preset("digits/fedavg"), typed.split())
    assert e.task.split_seed is None
    assert from_tree(tomllib.loads(to_toml(e))) == e
    assert flat(e)["task.split_seed"] == "none"
