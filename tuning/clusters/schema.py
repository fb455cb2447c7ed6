"""Checks of a cluster file by Ray's own schema, and by botocore's description of EC2's RunInstances."""

from __future__ import annotations

import copy
import difflib
import functools
import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from anchorfl.tuning.clusters.nodes import Config, Fault, node_path


def against_schema(raw: Config) -> tuple[list[Fault], Config | None]:
    """Return the faults by Ray's schema, and the file with misspelt keys put right, for the other rules.

    None in place of the file: the rules cannot go on.
    """
    import ray.autoscaler
    from jsonschema import Draft7Validator  # type: ignore[import-untyped]  # needed by ray[default]

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    faults, repaired, usable = list[Fault](), copy.deepcopy(raw), True
    for error in Draft7Validator(schema).iter_errors(raw):
        path = list(error.absolute_path)
        if error.validator != "additionalProperties":
            usable = False
            faults.append(_schema_fault(error, path))
            continue
        known = sorted(error.schema["properties"])
        for key in sorted(set(error.instance) - set(known), key=str):
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(known)}"
            faults.append(Fault(_dotted([*path, key]), "no such key", hint))
            parent: Any = repaired
            for step in path:
                parent = parent[step]
            value = parent.pop(key)
            if near:
                parent.setdefault(near[0], value)
    loose = list(_loose(repaired)) if usable else []
    return faults + loose, repaired if usable and not loose else None


def _loose(raw: Config) -> Iterator[Fault]:
    """Yield wrong types where Ray's schema asks for none, and quotes that nobody closes."""
    for remote, local in raw.get("file_mounts", {}).items():
        if not isinstance(local, str):
            yield Fault(f"file_mounts.{remote}", f"{local!r} is no path", "name a file or folder of this machine")
    for i, rule in enumerate(raw["provider"].get("security_group", {}).get("IpPermissions", [])):
        lists = ("IpRanges", "Ipv6Ranges", "PrefixListIds", "UserIdGroupPairs")
        if not isinstance(rule, dict) or not all(isinstance(rule.get(name) or [], list) for name in lists):
            yield Fault(f"provider.security_group.IpPermissions[{i}]", f"{rule!r} is no rule", "see EC2's IpPermission")
    sections = [("docker", raw.get("docker", {}))]
    for name, node in raw.get("available_node_types", {}).items():
        sections.append((f"{node_path(name)}.docker", node.get("docker", {})))
        kind = node["node_config"].get("InstanceType", "")
        if not isinstance(kind, str):
            yield Fault(
                f"{node_path(name)}.node_config.InstanceType", f"{kind!r} is no name", "write one, as g5.2xlarge"
            )
    for path, docker in sections:
        for key in ("run_options", "head_run_options", "worker_run_options"):
            for i, option in enumerate(docker.get(key, [])):
                if not isinstance(option, str) or not _closed(option):
                    yield Fault(f"{path}.{key}[{i}]", f"{option!r} is no option", "write one, its quotes closed")


def _closed(option: str) -> bool:
    try:
        shlex.split(option)
    except ValueError:
        return False
    return True


def _schema_fault(error: Any, path: list[Any]) -> Fault:
    if error.validator == "required":
        missing = next(n for n in error.validator_value if error.message.startswith(f"{n!r} "))  # an error for each
        return Fault(_dotted([*path, missing]), "missing", "Ray needs it: add it")
    if error.validator == "type":
        what = f"{json.dumps(error.instance, default=str)[:60]} is not {error.validator_value}"
        return Fault(_dotted(path), what, f"write a value of type {error.validator_value}")
    return Fault(_dotted(path), error.message.splitlines()[0][:120], "see Ray's cluster YAML reference")


def _dotted(path: Iterable[Any]) -> str:
    words = [f"[{p}]" if isinstance(p, int) else f".{p}" for p in path]
    return "".join(words).lstrip(".") or "the file"


def against_ec2(config: Config) -> Iterator[Fault]:
    """Yield the faults in what goes to EC2's RunInstances as it stands, by botocore's description of that call."""
    if not config["provider"].get("region"):
        yield Fault("provider.region", "missing", "add it, for example us-west-2")
    shape = _run_instances()
    if shape is None:
        return  # the command notes that boto3 is missing
    from botocore.validate import ParamValidator  # type: ignore[import-untyped]

    for name, node in config["available_node_types"].items():
        arguments = {k: v for k, v in node["node_config"].items() if k != "SubnetIds"}  # Ray's own key
        report = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **arguments}, shape).generate_report()
        for line in filter(None, report.splitlines()):
            what, _, allowed = line.partition(", must be one of: ")
            wrong = what.rpartition(': "')[2].rstrip('"')
            near = difflib.get_close_matches(wrong, allowed.split(", "), 1)
            hint = f"did you mean '{near[0]}'?" if near else "see EC2's RunInstances"
            yield Fault(f"{node_path(name)}.node_config", what, hint)


@functools.cache
def _run_instances() -> Any:
    """Return the shape of RunInstances' arguments; None without botocore."""
    try:
        import botocore.session  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    return botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
