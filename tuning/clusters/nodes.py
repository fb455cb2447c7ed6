"""The nodes of a cluster file: types, machines, docker options; and a fault in it."""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake."""

    path: str
    """Path of the key, with points."""
    what: str
    """The mistake itself."""
    hint: str
    """Remedy."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance type."""

    cpus: int
    memory: int
    """GiB."""
    gpus: int = 0
    gpu_memory: float = 0.0
    """GiB of one GPU."""


MACHINES = {
    "m6i.large": Machine(2, 8),
    "m6i.xlarge": Machine(4, 16),
    "m7i.xlarge": Machine(4, 16),
    "g4dn.xlarge": Machine(4, 16, 1, 16),
    "g4dn.2xlarge": Machine(8, 32, 1, 16),
    "g4dn.12xlarge": Machine(48, 192, 4, 16),
    "g5.xlarge": Machine(4, 16, 1, 22.4),
    "g5.2xlarge": Machine(8, 32, 1, 22.4),
    "g5.4xlarge": Machine(16, 64, 1, 22.4),
    "g5.12xlarge": Machine(48, 192, 4, 22.4),
    "g5.48xlarge": Machine(192, 768, 8, 22.4),
    "g6.xlarge": Machine(4, 16, 1, 22.4),
    "g6.2xlarge": Machine(8, 32, 1, 22.4),
    "g6.12xlarge": Machine(48, 192, 4, 22.4),
    "g6e.2xlarge": Machine(8, 64, 1, 44.7),
    "p4d.24xlarge": Machine(96, 1152, 8, 40),
    "p5.48xlarge": Machine(192, 2048, 8, 80),
}
"""Instance types of AWS (DescribeInstanceTypes, 2025). GPUs and memory of others are not checked."""


def node_path(name: str) -> str:
    """Return the path of a node type."""
    return f"available_node_types.{name}"


def workers(config: Config) -> dict[str, Config]:
    """Return the node types other than the head's."""
    return {n: t for n, t in config["available_node_types"].items() if n != config["head_node_type"]}


def machine(node: Config) -> Machine | None:
    """Return the instance type of a node type; None for an unknown one."""
    return MACHINES.get(node["node_config"].get("InstanceType", ""))


def gpus(node: Config) -> int:
    """Return the GPUs of a node: as the file says, else as its instance type has."""
    known = machine(node)
    return int(node["resources"].get("GPU", known.gpus if known else 0))


def run_options(config: Config, name: str) -> list[str]:
    """Return the words of the options that ``docker run`` gets on a node of this type."""
    docker = config.get("docker", {})
    if name == config["head_node_type"]:
        more = docker.get("head_run_options", [])
    else:
        docker = docker | config["available_node_types"][name].get("docker", {})
        more = docker.get("worker_run_options", [])
    return shlex.split(" ".join([*map(str, docker.get("run_options", [])), *map(str, more)]))


def option_values(words: list[str], *names: str) -> list[str]:
    """Return the values of a docker option, written ``--name value`` or ``--name=value``, in their order: the last one
    counts.
    """
    values = []
    for word, after in itertools.zip_longest(words, words[1:]):
        name, equals, value = word.partition("=")
        if name in names and (equals or after is not None):
            values.append(value if equals else after)
    return values


def mounted(local: str, folder: Path) -> Path | None:
    """Return the file or folder of this machine that a file mount names; None where it can name none. folder: in which
    ``ray up`` is typed, as Ray resolves ``~`` alone.
    """
    try:
        return (folder / Path(os.path.expandvars(local)).expanduser()).resolve()
    except (RuntimeError, ValueError, OSError):  # ~nobody/..., NUL, links in a circle
        return None
