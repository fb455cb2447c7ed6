"""The folders of apps for other frameworks, and what is refused before one is written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.export.apps import FLOWER_APP, FRAMEWORKS, check
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.prepare import prepare_data
from anchorfl.tasks.errors import InputError
from tests.runs import quiet

OPTIONS = ["digits/fedavg", "--federation.rounds", "3", "--output", "app"]


def test_the_command_writes_a_flower_app(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "flower", *OPTIONS]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["app/pyproject.toml", "app/app.py", "app/experiment.toml"]
    assert said[3].endswith("cd app && flwr run . local-simulation --stream")
    assert (tmp_path / "app/app.py").read_text() == FLOWER_APP
    assert "options.num-supernodes = 10" in (tmp_path / "app/pyproject.toml").read_text()
    assert read_preset("app/experiment.toml").federation.rounds == 3


OWN = """from dataclasses import dataclass

from anchorfl.pipeline.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Mean(FedAvg):
    name = "own-mean"
"""


def test_the_plug_ins_of_an_app_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_mean.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["export", "flower", "digits/fedavg", "--method.name", "own_mean:Mean"]) == 0
    assert "to install wherever it runs, as anchorfl is: a package with own_mean:Mean\n" in capsys.readouterr().out


def test_an_app_finds_what_options_name_below_the_folder_that_it_was_written_from(tmp_path, monkeypatch, capsys):
    """It runs in its own; addresses, and what is nowhere here, stay as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x,kind\n" + "".join(f"{i * i % 11},{'ab'[i % 2]}\n" for i in range(80)))
    words = ["--task.file", "t.csv", "--task.label_columns", "kind", "--task.cache", "cache", "--task.clients", "4"]
    assert main(["export", "flower", *words, "--output", "app"]) == 0
    exported = read_preset("app/experiment.toml")
    assert exported.task.file == str(tmp_path / "t.csv")
    assert exported.task.cache in ("cache", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "app")
    serial = replace(exported, cluster=replace(exported.cluster, executor="serial"))
    assert prepare_data(serial, quiet).manifest.test


def test_a_table_below_a_root_stays_the_one_below_it(tmp_path, monkeypatch):
    """Not another of its name in the folder that the app was written from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    rows = "".join(f"{i * i % 11},{'ab'[i % 2]}\n" for i in range(80))
    for folder, column in (("data", "x"), (".", "other")):
        (tmp_path / folder / "t.csv").write_text(f"{column},kind\n{rows}")
    words = ["--task.root", "data", "--task.file", "t.csv", "--task.label_columns", "kind", "--task.clients", "4"]
    assert main(["export", "flower", *words, "--output", "app"]) == 0
    exported = read_preset("app/experiment.toml")
    assert (exported.task.root, exported.task.file) == (str(tmp_path / "data"), "t.csv")
    monkeypatch.chdir(tmp_path / "app")
    serial = replace(exported, cluster=replace(exported.cluster, executor="serial"))
    assert prepare_data(serial, quiet).manifest.spec.columns.inputs == ("x",)


def test_the_command_writes_a_job_of_nvflare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "nvflare", *OPTIONS]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("cd app && nvflare simulator . -w workspace -n 10 -t 2")
    meta, server, client, policy = (
        json.loads((tmp_path / "app" / file).read_text())
        for file in (
            "meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json",
            "workspace/local/resources.json",
        )
    )  # fmt: skip
    assert (meta["min_clients"], meta["deploy_map"]) == (10, {"app": ["@ALL"]})
    assert server["workflows"][0]["path"] == "anchorfl.pipeline.export.nvflare.AnchorController"
    assert client["executors"][0]["executor"]["path"] == "anchorfl.pipeline.export.nvflare.AnchorExecutor"
    assert policy["class_allow_list"] == ["nvflare.", "anchorfl."]
    assert read_preset("app/app/config/experiment.toml").federation.rounds == 3


def test_a_folder_that_is_there_and_other_frameworks_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "nvflare", *OPTIONS]) == 0
    assert main(["export", "flower", *OPTIONS]) == 2
    assert "app exists: give another --output" in capsys.readouterr().err
    assert main(["export", "fate", "digits/fedavg"]) == 2
    assert "export fate: there are flower, nvflare; " in capsys.readouterr().err
    assert main(["export"]) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("method", "sections", "named"),
    [
        ("fedproto", {}, "scores its clients' own models"),
        ("fedavg", {"federation": {"stack": 2}}, "set it to 1"),
        ("fedavg", {"federation": {"backup_fraction": 0.5}}, "asks no stand-ins"),
        (
            "fedavg",
            {"evaluation": {"model_selection": "best_validation"}},
            "is that of the last round: set it to 'last'",
        ),
        ("fedavg", {"evaluation": {"save_state_every": 2}}, "no states are kept: set it to 0"),
        ("fedavg", {"evaluation": {"patience": 2}}, "it runs all rounds: set it to 0"),
        (
            "fedavg",
            {"federation": {"dp_noise": 1.0, "clip_norm": 1.0}},
            "every client would have the seed of the noise",
        ),
    ],
)
def test_what_a_framework_would_not_do_is_refused(experiment, framework, method, sections, named):
    with pytest.raises(InputError, match=f"{FRAMEWORKS[framework]} does not do this: .*{named}"):
        check(framework, experiment(method, **sections))


def test_scores_of_clients_are_refused(experiment):
    e = experiment("fedavg")
    with pytest.raises(InputError, match="clients are not scored: leave it out"):
        check("flower", replace(e, task=replace(e.task, client_test="0.2")))


def test_methods_whose_clients_send_something_before_round_1_are_refused(experiment):
    for kind in METHODS.values():
        if kind.sends_initial_message:
            e = experiment("fedavg")
            with pytest.raises(InputError, match="send a message before round 1"):
                check("nvflare", replace(e, method=kind()))
