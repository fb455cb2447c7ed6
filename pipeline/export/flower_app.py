"""The folder of a Flower app that runs an experiment: a preset, two lines of code, Flower's pyproject.

What they call is ``flower.py``, the only file that imports Flower.
"""

from __future__ import annotations

import re
from pathlib import Path

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.tasks.errors import InputError

PRESET = "experiment.toml"
APP = '''"""The two halves of a Flower app, from experiment.toml beside it."""

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


def write_app(folder: Path, name: str, experiment: Experiment) -> list[Path]:
    """Write the app of an experiment into a new folder; return its files.

    InputError where the folder is there, or Flower would not do what a run of AnchorFL does.
    """
    check(experiment)
    if folder.exists():
        raise InputError(f"{folder} exists: give another --output")
    folder.mkdir(parents=True)
    project = re.sub(r"[^a-z0-9]+", "-", f"anchorfl-{name}".lower()).strip("-")
    texts = {
        "pyproject.toml": PYPROJECT.format(name=project, clients=experiment.task.clients),
        "app.py": APP,
        PRESET: to_toml(experiment),
    }
    for file, text in texts.items():
        write_atomically(folder / file, text.encode())
    return [folder / file for file in texts]


def check(experiment: Experiment) -> None:
    """Raise InputError where Flower would not do what a run of AnchorFL does."""
    federation, method = experiment.federation, experiment.method
    for bad, what in (
        (
            method.sends_initial_message,
            f"clients of {method.name!r} send a message before round 1: choose another method",
        ),
        (method.evaluate_on == "clients", f"{method.name!r} scores its clients' own models: choose another method"),
        (federation.batched_clients, "federation.batched_clients trains all clients at once: set it to False"),
        (federation.stack != 1, "federation.stack trains clients in one process: set it to 1"),
        (federation.backup_fraction > 0, "federation.backup_fraction: Flower asks no stand-ins: set it to 0"),
        (experiment.task.clients < 1, "task.clients = 0: say how many there are"),
    ):
        if bad:
            raise InputError(f"a Flower app does not do this: {what}")
