"""``anchorfl data``: what is there, made-up files, preparing ahead of a run."""

from __future__ import annotations

import hashlib
import json
import shlex
from unittest.mock import Mock

import pytest
import ray

from anchorfl.pipeline.cli.main import main
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.registry import TASKS
from anchorfl.tasks.synthetic import SYNTHETIC


@pytest.fixture
def here(here, monkeypatch):
    monkeypatch.setenv("ANCHORFL_CACHE", str(here / "cache"))
    return here


def paragraphs(text):
    return {part.split()[0]: part for part in text.strip().split("\n\n")}


def test_every_data_set_is_listed_once_with_terms(here, capsys):
    assert main(["data"]) == 0
    shown = paragraphs(capsys.readouterr().out)
    assert list(shown) == list(TASKS)
    for name, part in shown.items():
        source = TASKS[name]().source
        assert source.url in part
        assert source.licence in part
        assert ("missing" in part.splitlines()[0]) == bool(source.files)
    assert "access must be applied for" in shown["mimic3-50"]
    assert "presets: digits/fedalign, digits/fedavg" in shown["digits"]


def test_as_objects(here, capsys, monkeypatch):
    assert main(["data", "demo", "yeast", "--rows", "90"]) == 0
    monkeypatch.setenv("ANCHORFL_DATA", str(here / "demo" / "yeast"))
    capsys.readouterr()
    assert main(["data", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(found) == list(TASKS)
    assert found["yeast"]["found"]
    assert (found["yeast"]["folder"], found["yeast"]["missing"]) == (str(here / "demo" / "yeast"), [])
    assert not found["mimic3-50"]["found"]
    assert found["mimic3-50"]["missing"]
    assert found["digits"]["bundled"]
    assert found["digits"]["presets"][:2] == ["digits/fedalign", "digits/fedavg"]
    assert found["mimic3-50"]["gated"]


def test_made_up_files_are_found_and_prepared(here, capsys, monkeypatch):
    assert main(["data", "demo", "yeast", "--rows", "90", "--seed", "2"]) == 0
    shown = capsys.readouterr().out
    assert "not the data set, for trying only" in shown
    command = shown.rpartition("next: anchorfl ")[2].split()
    assert main([*command, "--task.partition", "iid", "--task.clients", "6", "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    (folder,) = (here / "cache").glob("yeast-*")
    assert (folder / "partition.png").read_bytes().startswith(b"\x89PNG")
    manifest = Prepared.load(folder).manifest
    assert (manifest.seed, manifest.options.partition, len(manifest.examples)) == (5, "iid", 6)
    words = {line.rpartition("  ")[0].strip(): line.split()[-1] for line in shown.splitlines() if "  " in line}
    assert (words["clients"], words["training rows"]) == ("6", str(sum(manifest.examples)))
    assert words["validation rows"] == str(manifest.validation)
    monkeypatch.setenv("ANCHORFL_DATA", str(here / "demo"))
    assert main(["data", "yeast"]) == 0
    assert f"found in {here / 'demo' / 'yeast'}" not in capsys.readouterr().out, "its own folder has another name"
    monkeypatch.setenv("ANCHORFL_DATA", str(here / "demo" / "yeast"))
    assert main(["data", "yeast"]) == 0
    shown = capsys.readouterr().out
    assert f"yeast               found in {here / 'demo' / 'yeast'}" in shown
    files = [path for path in (here / "demo" / "yeast").iterdir() if path.is_file()]
    assert f"{len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:,.1f} MB, digest " in shown


def test_another_form_of_the_files_is_told(here, capsys, monkeypatch):
    assert main(["data", "demo", "pbc", "--out", "pbc_bloodcells"]) == 0
    monkeypatch.setenv("ANCHORFL_DATA", str(here))
    for path in (here / "pbc_bloodcells").iterdir():
        if path.is_dir():
            path.rename(here / "elsewhere")
    capsys.readouterr()
    assert main(["data", "pbc"]) == 0
    shown = capsys.readouterr().out
    assert "pbc                 missing" in shown
    assert "found in another form: --task.variant npz28" in shown


def test_who_names_a_cluster_prepares_on_it(here, capsys, monkeypatch):
    monkeypatch.setattr(ray, "init", Mock(side_effect=ConnectionError("nobody there")))
    assert main(["data", "prepare", "digits", "--cluster.address", "127.0.0.1:9"]) == 2
    assert "cluster.address = '127.0.0.1:9': no Ray cluster that can be used answers" in capsys.readouterr().err


def test_a_preset_is_prepared_for_its_run(here, capsys):
    assert main(["data", "prepare", "digits/fedavg", "--seed", "3"]) == 0
    folders = [path.name for path in (here / "cache").glob("digits-*")]
    assert len(folders) == 1
    quick = ["--federation.rounds", "1", "--federation.epochs", "1", "--cluster.executor", "serial"]
    assert main(["run", "digits/fedavg", "--seed", "3", "--tracking.uri", "none", *quick]) == 0
    assert f"digits: prepared data found in {here / 'cache' / folders[0]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["yeest"], "no task 'yeest' in [task] name (did you mean 'yeast'?)"),
        (["demo", "yeest"], "no made-up files for 'yeest' (did you mean 'yeast'?)"),
        (["demo", "yeast", "--rows", "0"], "--rows 0 --seed 0: must be at least 1 and 0"),
        (["demo", "r8", "--seed", "-1"], "--rows 400 --seed -1: must be at least 1 and 0"),
        (["demo", "femnist", "--rows", "3"], "--rows 3: too few for made-up files of femnist"),
        (["demo", "yeast", "--out", "full"], "--out full is not empty: give a new folder"),
        (["prepare"], "usage: anchorfl data prepare PRESET|NAME"),
        (["prepare", "yeest"], "'yeest' is no data set and no preset (did you mean 'yeast'?)"),
        (["prepare", "yeast"], "yeast: no *train*.arff, *test*.arff, *.xml (plain or .gz); looked in nowhere"),
        (["prepare", "digits", "--task.clients", "0"], "task.clients = 0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line(here, fails, arguments, message):
    (here / "full").mkdir()
    (here / "full" / "a").write_text("mine")
    fails(["data", *arguments], message)
    assert hashlib.sha256((here / "full" / "a").read_bytes()).hexdigest() == hashlib.sha256(b"mine").hexdigest()


def next_of_demo_runs(name, capsys):
    assert main(["data", "demo", name]) == 0
    command = shlex.split(capsys.readouterr().out.rpartition("next: anchorfl ")[2])
    assert main(command) == 0
    assert "\ntraining rows " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["extrasensory", "mimic3-50", "femnist", "cal500", "r8"])
def test_the_next_command_of_a_demo_runs(here, capsys, name):
    next_of_demo_runs(name, capsys)


@pytest.mark.slow
def test_the_next_command_of_every_demo_runs(here, capsys):
    for name in SYNTHETIC:
        next_of_demo_runs(name, capsys)
