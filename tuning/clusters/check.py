"""``anchorfl cluster check``: finds what is wrong with a cluster file before ``ray up`` costs time and money.

All of it works offline: YAML, Ray's own schema, the cloud's names of options, and the rules of
tuning/clusters/rules.py.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anchorfl.pipeline.cli.main import EXIT_INPUT
from anchorfl.pipeline.terminal import say, say_error
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tuning.clusters import rules, security
from anchorfl.tuning.clusters.nodes import Config, Fault, gpus, machine, mounted, node_path, workers
from anchorfl.tuning.clusters.rules import Demand, Versions
from anchorfl.tuning.clusters.schema import against_ec2, against_schema

PROVIDERS = ("aws", "gcp", "azure", "local")
STORES = ("s3://", "gs://")
LEAST_SHARE = 1e-4
"""Ray counts shares of a GPU in steps of this."""
MOST_VALUES = 10_000
"""Values of a cluster file, its aliases written out."""


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    sub.add_argument("file", nargs="?", type=Path, default=Path("cluster.yaml"), help="default: cluster.yaml")
    sub.add_argument("--preset", default="", help="check that the clients of this preset fit")
    sub.add_argument("--client-gpus", type=float, help="as --cluster.client_gpus; default: the preset's")
    sub.add_argument("--clients-per-actor", type=int, help="as --cluster.clients_per_actor, with --preset")


def check(options: argparse.Namespace) -> int:
    """Print every fault, one line each, and return 2; or what to type next, and return 0. InputError: no such file."""
    demand = _demand(options)
    try:
        text = read_text_bytes(options.file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{options.file}: cannot be read ({error}); name a cluster file") from error
    config, faults = faults_of(text, demand, versions_here(), options.file.absolute().parent)
    for fault in faults:
        say_error(f"{options.file}: {fault}")
    if config is None or faults:
        return EXIT_INPUT
    for note in _notes(config, options, demand):
        say_error(f"{options.file}: note: {note}")
    say("\n".join([f"{options.file}: no fault found", *_summary(config, demand), "", *_next(options.file)]))
    return 0


def versions_here() -> Versions:
    """Return Ray and Python of this process."""
    import ray

    return Versions(ray.__version__, f"py{sys.version_info.major}{sys.version_info.minor}")


def faults_of(text: str, demand: Demand, here: Versions, folder: Path) -> tuple[Config | None, list[Fault]]:
    """Return the file as Ray completes it (None where it cannot), and all that is wrong with it. folder: the file's, in
    which ``ray up`` is to be typed.
    """
    try:
        raw = _load(text)
    except Flaw as flaw:
        return None, [flaw.fault]
    faults, repaired = against_schema(raw)
    if repaired is None:
        return None, faults
    try:
        config = _complete(repaired)
    except Flaw as flaw:
        return None, [*faults, flaw.fault]
    faults += [
        *rules.heads_and_counts(config),
        *rules.images(config, here),
        *rules.shared_memory(config),
        *security.token(config),
        *security.open_ports(config),
        *security.secrets(config, folder),
        *rules.code(config, folder),
        *security.containers(config),
        *rules.machines(config),
        *rules.gpu_shares(config, demand),
    ]
    if config["provider"]["type"] == "aws":
        faults += against_ec2(config)
    return config, list(dict.fromkeys(faults)) or _last_word(config)  # node types share docker.worker_image


class Flaw(Exception):
    """A fault after which the rest of the file cannot be checked."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def _demand(options: argparse.Namespace) -> Demand:
    share, per_actor = options.client_gpus, options.clients_per_actor
    if share is not None and not (share == 0 or LEAST_SHARE <= share <= 1):
        raise InputError(f"--client-gpus {share:g}: give a share of one GPU, 0 or from {LEAST_SHARE:g} to 1")
    if per_actor is not None and (per_actor < 0 or not options.preset):
        raise InputError(
            "--clients-per-actor: give a number from 0, and --preset, which says how many clients there are"
        )
    if not options.preset:
        return Demand(share or 0.0)
    from anchorfl.pipeline.config.presets import read_preset

    experiment = read_preset(options.preset)
    cluster = experiment.cluster
    return Demand(
        cluster.client_gpus if share is None else share,
        cluster.server_gpus,
        experiment.task.clients,
        cluster.clients_per_actor if per_actor is None else per_actor,
    )


def _load(text: str) -> Config:
    """Return the file as a mapping; a key that stands twice is a fault: YAML would silently take the last."""
    import yaml  # type: ignore[import-untyped]  # PyYAML has no annotations; ray needs it, so it is there

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set[str]()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="a key that is no word", problem_mark=key.start_mark)
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        raw = yaml.load(text, Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "YAML"
        raise Flaw(
            Fault(where, f"not YAML: {error.problem or error.context}", "mend the line or the one above")
        ) from error
    except yaml.YAMLError as error:
        raise Flaw(Fault("line 1", f"not YAML: {' '.join(str(error).split())}", "save it as plain UTF-8")) from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # dates and numbers that are none
        words = "too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise Flaw(Fault("the file", f"a value cannot be read ({words})", "correct it")) from error
    if not _bounded(raw):
        raise Flaw(Fault("the file", f"aliases (*) make more than {MOST_VALUES} values of it", "write it out"))
    if not isinstance(raw, dict):
        raise Flaw(Fault("line 1", "no keys and values", "start from the cluster.yaml of AnchorFL"))
    return raw


def _bounded(raw: Any) -> bool:
    """Return whether a tree of dicts and lists, which may hold one another or themselves, is small enough to walk."""
    left, waiting = MOST_VALUES, [raw]
    while waiting and left > 0:
        node = waiting.pop()
        left -= 1
        children = node.values() if isinstance(node, dict) else node
        waiting.extend(children if isinstance(node, dict | list | tuple | set) else ())
    return left > 0


def _complete(raw: Config) -> Config:
    """Return the file with Ray's defaults filled in."""
    from click import ClickException
    from ray.autoscaler._private.util import prepare_config

    kind = raw["provider"]["type"]
    if kind not in PROVIDERS:
        near = difflib.get_close_matches(kind, PROVIDERS, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"this check knows {', '.join(PROVIDERS)}"
        raise Flaw(Fault("provider.type", f"{kind!r} is unknown", hint))
    try:
        config: Config = prepare_config(copy.deepcopy(raw))
    except ClickException as error:
        raise Flaw(Fault("provider", " ".join(error.message.split()), "add what is missing")) from error
    except (AssertionError, ValueError, KeyError) as error:
        raise Flaw(
            Fault("docker" if "container" in str(error) else "the file", str(error), "add what is missing")
        ) from error
    head, kinds = config.get("head_node_type"), sorted(config["available_node_types"])
    if head not in kinds:
        raise Flaw(Fault("head_node_type", f"{head!r} is no node type", f"name one of {', '.join(kinds)}"))
    return config


def _last_word(config: Config) -> list[Fault]:
    """Return the faults of Ray's own check, in case it refuses what the rules let pass."""
    from ray.autoscaler._private.util import validate_config

    try:
        validate_config(config)
    except (ValueError, RuntimeError) as error:
        return [Fault("the file", f"Ray refuses it: {str(error).splitlines()[0]}", "see Ray's cluster YAML reference")]
    return []


def _notes(config: Config, options: argparse.Namespace, demand: Demand) -> Iterator[str]:
    """Yield what is not wrong but worth knowing."""
    cache = ""
    if options.preset:
        from anchorfl.pipeline.config.presets import read_preset

        cache = read_preset(options.preset).task.cache
    if not any(store in json.dumps(config) + cache for store in STORES):
        yield (
            "no s3:// or gs:// place for data and checkpoints; on more than one node give"
            " --task.cache s3://BUCKET/cache --cluster.backup s3://BUCKET/runs"
        )
    for local in config["file_mounts"].values():
        path = mounted(local, options.file.absolute().parent)
        assert path is not None, "rules.code lets none pass"
        if not path.exists():
            hint = (
                ": '(umask 077; ray get-auth-token --generate > /dev/null)' makes it" if "auth_token" in local else ""
            )
            yield f"file_mounts: {local} is not here, and 'ray up' will want it{hint}"
        elif "auth_token" in local and path.stat().st_mode & 0o077:
            yield f"file_mounts: others on this machine can read {local}: chmod 600 {local}"
    if any(gpus(n) for n in workers(config).values()) and not demand.client_gpus and options.preset:
        yield f"clients of {options.preset} use no GPU: give --cluster.client_gpus, for example 0.25"
    if not config.get("docker"):
        yield "no docker: Ray and Python of the nodes cannot be compared with those here"
    for name, node in config["available_node_types"].items():
        if machine(node) is None:
            kind = node["node_config"].get("InstanceType", "its machine")
            yield f"{node_path(name)}: {kind} is not in the table: its CPUs, memory and GPUs are not checked"
    if config["provider"]["type"] == "aws":
        from importlib.util import find_spec

        if find_spec("boto3") is None:
            yield "boto3 is missing: node_config is not checked, and 'ray up' needs it: pip install 'anchorfl[aws]'"


def _summary(config: Config, demand: Demand) -> Iterator[str]:
    for name, node in workers(config).items():
        market = node["node_config"].get("InstanceMarketOptions")
        spot = ", spot" if isinstance(market, dict) and market.get("MarketType") == "spot" else ""
        kind, count = node["node_config"].get("InstanceType", ""), f"{node['min_workers']} to {node['max_workers']}"
        fits = ""
        if demand.client_gpus:
            count_fits = rules.share_fits(demand.client_gpus) * gpus(node)
            fits = f", {count_fits} clients of {demand.client_gpus:g} GPU on each"
        yield f"  {name}: {count} {kind}{spot}, {gpus(node)} GPU{fits}"


def _next(file: Path) -> list[str]:
    folder, name = file.absolute().parent, shlex.quote(file.name)
    # Ray takes the file mount "." from the folder in which it is called
    move = [] if folder.samefile(Path()) else [f"  cd {shlex.quote(str(folder))}"]
    return [
        "next:",
        "  (umask 077; ray get-auth-token --generate > /dev/null)    once: a file that only you can read",
        *move,
        f"  ray up {name}",
        f"  ray dashboard {name}      leave it running; http://localhost:8265 asks for the token: ray get-auth-token",
        "  anchorfl submit --help",
        f"  ray attach {name}         a shell on the head node",
        f"  ray down {name}           ends all nodes",
    ]
