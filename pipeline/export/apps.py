"""The folder of an app that runs an experiment in another framework: a preset, a few lines of code, Flower's pyproject.

What they call is ``flower.py`` and ``nvflare.py``, the only files that import Flower and NVFlare.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.schema import options_of, to_toml, with_options
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.tasks.errors import InputError

PRESET = "experiment.toml"
FLOWER_APP = '''"""The two halves of a Flower app, from experiment.toml beside it."""

from pathlib import Path

from anchorfl.pipeline.export import flower

server_app = flower.server_app(Path(__file__).resolve().parent)
client_app = flower.client_app(Path(__file__).resolve().parent)
'''
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "An experiment of AnchorFL"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.42"] # and anchorfl, as its docs/flower.md says

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "anchorfl"

[tool.flwr.app.components]
serverapp = "app:server_app"
clientapp = "app:client_app"

[tool.flwr.app.config]

[tool.flwr.federations]
default = "local-simulation"

[tool.flwr.federations.local-simulation]
options.num-supernodes = {clients}
"""
PARTS: dict[str, dict[str, object]] = {
    "server": {"workflows": [{"id": "rounds", "path": "anchorfl.pipeline.export.nvflare.AnchorController"}]},
    "client": {
        "executors": [
            {"tasks": ["train", "exchange"], "executor": {"path": "anchorfl.pipeline.export.nvflare.AnchorExecutor"}}
        ]
    },
}
"""What a job of NVFlare says of its two halves."""
WORKSPACE = "workspace"
"""Folder of NVFlare's simulator in the job's."""
PATHS = (
    *("task.root", "task.cache", "task.file", "task.class_names", "task.input_spec"),
    *("model.weights", "class_embeddings.table", "class_embeddings.encoder"),
)
"""Options that may name files and folders on this machine."""
BELOW_ROOT = "task.file", "task.class_names"
"""Those that lie below ``task.root`` where there is one."""
FRAMEWORKS = {"flower": "Flower", "nvflare": "NVFlare"}


def write_app(framework: str, folder: Path, name: str, experiment: Experiment) -> list[Path]:
    """Write the app of an experiment into a new folder; return its files. framework: one of ``FRAMEWORKS``.

    InputError where the folder is there, or the framework would not do what a run of AnchorFL does.
    """
    check(framework, experiment)
    if folder.exists():
        raise InputError(f"{folder} exists: give another --output")
    experiment = _from_anywhere(experiment)
    folder.mkdir(parents=True)
    project, clients = re.sub(r"[^a-z0-9]+", "-", f"anchorfl-{name}".lower()).strip("-"), experiment.task.clients
    texts = _flower(project, clients) if framework == "flower" else _nvflare(project, clients)
    texts = {file: text or to_toml(experiment) for file, text in texts.items()}
    for file, text in texts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / file, text.encode())
    return [folder / file for file in texts]


def _from_anywhere(experiment: Experiment) -> Experiment:
    """Return the experiment with the whole paths of what options name below this folder: an app runs in its own."""
    options = options_of(experiment)
    below_root = BELOW_ROOT if options["task.root"] else ()
    there = {name: Path(str(options[name])) for name in PATHS if options[name] and name not in below_root}
    found = {name: str(path.resolve()) for name, path in there.items() if not path.is_absolute() and path.exists()}
    return with_options(experiment, found)


def _flower(name: str, clients: int) -> dict[str, str]:
    """Return the files of a Flower app; empty: the preset."""
    return {"pyproject.toml": PYPROJECT.format(name=name, clients=clients), "app.py": FLOWER_APP, PRESET: ""}


def _nvflare(name: str, clients: int) -> dict[str, str]:
    """Return the files of a job of NVFlare; empty: the preset."""
    meta = {"name": name, "resource_spec": {}, "min_clients": clients, "deploy_map": {"app": ["@ALL"]}}
    every: dict[str, object] = {"format_version": 2}
    every |= {name: [] for name in ("task_data_filters", "task_result_filters", "components")}
    halves = {f"app/config/config_fed_{half}.json": every | content for half, content in PARTS.items()}
    # what the simulator may build; a site has such a list of its own
    halves[f"{WORKSPACE}/local/resources.json"] = {"format_version": 2, "class_allow_list": ["nvflare.", "anchorfl."]}
    texts = {file: json.dumps(content, indent=1) + "\n" for file, content in {"meta.json": meta, **halves}.items()}
    return {**texts, f"app/config/{PRESET}": ""}


def check(framework: str, experiment: Experiment) -> None:
    """Raise InputError where a framework would not do what a run of AnchorFL does."""
    federation, method, evaluation = experiment.federation, experiment.method, experiment.evaluation
    for bad, what in (
        (
            method.sends_initial_message,
            f"clients of {method.name!r} send a message before round 1: choose another method",
        ),
        (method.evaluate_on == "clients", f"{method.name!r} scores its clients' own models: choose another method"),
        (
            evaluation.model_selection != "last",
            f"evaluation.model_selection = {evaluation.model_selection!r}: the model is that of the last round: set it"
            " to 'last'",
        ),
        (evaluation.save_state_every > 0, "evaluation.save_state_every: no states are kept: set it to 0"),
        (bool(experiment.cluster.backup), "cluster.backup: nothing is copied: leave it out"),
        (evaluation.patience > 0, "evaluation.patience: it runs all rounds: set it to 0"),
        (federation.dp_noise > 0, "federation.dp_noise: every client would have the seed of the noise: set it to 0"),
        (experiment.task.client_test != "none", "task.client_test: clients are not scored: leave it out"),
        (bool(experiment.task.sites), "task.sites: a client's rows are prepared before: leave it out"),
        (federation.batched_clients, "federation.batched_clients trains all clients at once: set it to False"),
        (federation.stack != 1, "federation.stack trains clients in one process: set it to 1"),
        (federation.backup_fraction > 0, "federation.backup_fraction: it asks no stand-ins: set it to 0"),
        (experiment.task.clients < 1, "task.clients = 0: say how many there are"),
    ):
        if bad:
            raise InputError(f"{FRAMEWORKS[framework]} does not do this: {what}")
