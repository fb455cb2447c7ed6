"""Rules of a cluster file beyond Ray's schema: each names the faults of one matter.

A rule takes the file as Ray completes it (``prepare_config``) and yields a Fault for each mistake. Nothing here asks a
cloud or the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfl.tuning.clusters.nodes import (
    Config,
    Fault,
    gpus,
    machine,
    mounted,
    node_path,
    option_values,
    run_options,
    workers,
)

GIB = 2**30
STORE_SHARE = 0.3
"""Part of a node's memory that Ray gives its object store (ray 2.60: DEFAULT_OBJECT_STORE_MEMORY_PROPORTION)."""
LEAST_GIB = 1.0
"""GPU memory below which a client does not start: a CUDA context takes about half of it."""
LONGEST_IDLE = 60
LOCK = "requirements.lock"
SETUPS = ("setup_commands", "head_setup_commands", "worker_setup_commands")
"""Keys of the file with commands that install."""
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": GIB}


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions as image tags have them."""

    ray: str
    """``2.60.0``."""
    python: str
    """``py311``."""

    def __str__(self) -> str:
        return f"Ray {self.ray} and Python {self.python[2]}.{self.python[3:]}"


def heads_and_counts(config: Config) -> Iterator[Fault]:
    """Check that the head runs no clients, workers' numbers fit each other, and idle workers end."""
    head = config["available_node_types"][config["head_node_type"]]
    path = f"{node_path(config['head_node_type'])}.resources"
    start = " ".join(config["head_start_ray_commands"])
    if head["resources"].get("CPU") != 0 and not re.search(r"--num-cpus[= ]0\b", start):
        yield Fault(f"{path}.CPU", "the head node would run clients", "set it to 0")
    if head["resources"].get("GPU", 0):
        yield Fault(f"{path}.GPU", "the head node runs no clients and needs no GPU", "leave it out")
    least = most = 0
    for name, node in workers(config).items():
        least, most = least + node["min_workers"], most + node["max_workers"]
        if node["min_workers"] > node["max_workers"]:
            what = f"{node['min_workers']} is above max_workers, {node['max_workers']}"
            yield Fault(f"{node_path(name)}.min_workers", what, "lower it, or raise max_workers")
    if config["max_workers"] < least <= most:
        what = f"{config['max_workers']} is below the min_workers of all node types, {least}"
        yield Fault("max_workers", what, f"raise it to at least {least}")
    idle = config["idle_timeout_minutes"]
    if not 1 <= idle <= LONGEST_IDLE:
        what = f"{idle} minutes: " + ("workers would end between two trials" if idle < 1 else "idle workers cost money")
        yield Fault("idle_timeout_minutes", what, f"set 1 to {LONGEST_IDLE}")


def images(config: Config, here: Versions) -> Iterator[Fault]:
    """Check that every node's image names its Ray and Python, both those of this machine and of the head."""
    docker = config.get("docker") or {}
    if not docker:
        return
    if not docker.get("image"):
        hint = "add docker.image, the head's image; workers may have their own below available_node_types"
        yield Fault("docker.image", "missing: Ray's autoscaler reads it for every node type", hint)
        return
    key = "docker.head_image" if "head_image" in docker else "docker.image"
    fault, head = _image(key, docker[key.rpartition(".")[2]], here, "this machine")
    if fault is not None:
        yield fault
    for name, node in workers(config).items():
        image, path = node.get("docker", {}).get("worker_image"), f"{node_path(name)}.docker.worker_image"
        if image is None and "worker_image" in docker:
            image, path = docker["worker_image"], "docker.worker_image"
        if image is not None:
            owner = "this machine and the head node" if head == here else "this machine"
            fault, _ = _image(path, image, here, owner)
            if fault is not None:
                yield fault
        if gpus(node) and not re.search(r"-(gpu|cu\d+)", str(image or docker["image"])):
            what = f"{image or docker['image']} is built for CPUs, and the node has a GPU"
            yield Fault(path, what, f"use rayproject/ray:{here.ray}-{here.python}-gpu")


def _image(path: str, image: Any, wanted: Versions, owner: str) -> tuple[Fault | None, Versions | None]:
    """Return the fault of an image's tag, and the versions that the tag names."""
    tag = str(image).partition("@")[0].rpartition("/")[2].partition(":")[2]
    hint = f"use {str(image).partition('@')[0].partition(':')[0]}:{wanted.ray}-{wanted.python}[-gpu]"
    if tag.split("-")[0] in ("", "latest", "nightly"):
        return Fault(path, f"{image}: tag {tag or 'latest'!r} is another Ray each time", hint), None
    match = re.match(r"(\d+\.\d+\.\d+)-(py3\d+)(?:-|$)", tag)
    if match is None:
        return Fault(path, f"{image}: the tag does not say which Ray and Python it holds", hint), None
    versions = Versions(match[1], match[2])
    fault = None if versions == wanted else Fault(path, f"{image}: holds {versions}, {owner} {wanted}", hint)
    return fault, versions


def shared_memory(config: Config) -> Iterator[Fault]:
    """Check that /dev/shm of every container holds Ray's object store."""
    without, path = list[str](), "docker.run_options"
    for name, node in config["available_node_types"].items() if config.get("docker") else ():
        sizes, known = option_values(run_options(config, name), "--shm-size"), machine(node)
        need = math.ceil(STORE_SHARE * known.memory) if known else 4
        size = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)b?", sizes[-1].lower()) if sizes else None
        if not sizes:
            without.append(name)
        elif size is None:
            yield Fault(path, f"--shm-size={sizes[-1]}: not a size", f"write --shm-size={need}gb")
        elif known and float(size[1]) * UNITS[size[2]] < STORE_SHARE * known.memory * GIB:
            what = f"--shm-size={sizes[-1]} is less than Ray's object store on {name}, {need} GiB"
            yield Fault(path, what, f"write --shm-size={need}gb")
    if without:
        what = f"no --shm-size for {' and '.join(without)}: docker's 64 MiB push Ray's object store onto the disk"
        yield Fault(path, what, "add --shm-size, a third of the node's memory")


def code(config: Config, folder: Path) -> Iterator[Fault]:
    """Check that what the set-up installs is in the folder that is brought to the nodes. folder: the file's."""
    commands = " ".join(str(command) for key in SETUPS for command in config.get(key) or ())
    for remote, local in config["file_mounts"].items():
        path = mounted(local, folder)
        if path is None:
            yield Fault(f"file_mounts.{remote}", f"{local!r} can be no place on this machine", "correct it")
            continue
        for lock in dict.fromkeys(re.findall(rf"{re.escape(remote.rstrip('/'))}/(\S*\b{re.escape(LOCK)})", commands)):
            if not (path / lock).is_file():
                what = f"{local} is {path}, which has no {lock}, and the nodes install it"
                hint = "put the cluster file into a checkout of AnchorFL, or name one"
                yield Fault(f"file_mounts.{remote}", what, hint)


def machines(config: Config) -> Iterator[Fault]:
    """Check that CPUs and GPUs of a node type are those of its instance type."""
    for name, node in config["available_node_types"].items():
        known = machine(node)
        for resource, most in (("CPU", known.cpus), ("GPU", known.gpus)) if known else ():
            count = node["resources"].get(resource, most)
            if count > most or (resource == "GPU" and count < most and name != config["head_node_type"]):
                what = f"{count}, and a {node['node_config']['InstanceType']} has {most}"
                yield Fault(f"{node_path(name)}.resources.{resource}", what, f"set it to {most}")


@dataclass(frozen=True, slots=True)
class Demand:
    """The GPUs that a run wants."""

    client_gpus: float
    """Share of a client actor."""
    server_gpus: float = 0.0
    """Share of the server."""
    clients: int = 0
    """0 where no preset says it."""
    clients_per_actor: int = 0
    """0: open."""

    @property
    def actors(self) -> int:
        """Number of client actors that must have a place: one at least, which clients share where their number per
        actor is open (``anchorfl.pipeline.cluster.layout.layout``).
        """
        return math.ceil(self.clients / self.clients_per_actor) if self.clients_per_actor else min(self.clients, 1)


def gpu_shares(config: Config, demand: Demand) -> Iterator[Fault]:
    """Check that a client's share of a GPU is enough to start, and that all client actors find one."""
    share = demand.client_gpus
    if not share:
        return
    fits = {name: share_fits(share) * gpus(node) for name, node in workers(config).items()}
    if not any(fits.values()):
        yield Fault("available_node_types", f"clients want {share:g} GPU, no worker has one", "add a GPU worker type")
        return
    for name, node in workers(config).items():
        known = machine(node)
        if known and gpus(node) and share * known.gpu_memory < LEAST_GIB:
            what = f"{share:g} of its {known.gpu_memory:g} GiB GPU is {share * known.gpu_memory:.2f} GiB a client"
            least = math.ceil(100 * LEAST_GIB / known.gpu_memory) / 100
            yield Fault(node_path(name), what, f"give clients at least {least:g}: fewer fit, but they start")
    left, room, total = config["max_workers"], 0, 0
    for name, node in sorted(workers(config).items(), key=lambda item: -fits[item[0]]):
        count = min(left, node["max_workers"])
        left -= count
        room, total = room + count * fits[name], total + count * gpus(node)
    actors = demand.actors
    if actors > room or actors * share + demand.server_gpus > total + 1e-9:
        server = f" and a server of {demand.server_gpus:g}" if demand.server_gpus else ""
        what = f"{actors} client actors of {share:g} GPU{server} do not fit: all workers together hold {room} clients"
        hint = "lower --client-gpus, raise --clients-per-actor, or raise max_workers"
        yield Fault("max_workers", what, hint)


def share_fits(share: float) -> int:
    """Return the number of actors with this share on one GPU; Ray never splits an actor's share over two."""
    return math.floor(1 / share + 1e-9)
