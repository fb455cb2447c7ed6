"""Rules, as in tuning/clusters/rules.py, about what lets strangers in: tokens, ports and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anchorfl.tuning.clusters.nodes import Config, Fault, mounted, option_values, run_options

SSH = 22
START = ("head_start_ray_commands", "worker_start_ray_commands")
COMMANDS = (*START, "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
"""Keys of the file that hold shell commands."""
ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|SECRET_ACCESS_KEY|TOKEN|API_KEY))=(?!['\"]?\$)\S")
"""A secret by the name of its variable, given as such and not as another variable."""
SPELT_OUT = re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|//[^\s/:@'\"]*:[^\s/@'\"$]+@")
"""A key of AWS, or a password in an address."""
PRIVATE = ("~/.aws", "~/.azure", "~/.config", "~/.docker", "~/.kube", "~/.netrc", "~/.pgpass", "~/.ssh")
"""Files and folders with what opens other doors."""


def token(config: Config) -> Iterator[Fault]:
    """Check that every node starts Ray with token authentication, and gets the token as a file."""
    docker = bool(config.get("docker"))
    where = "docker.run_options" if docker else "head_start_ray_commands and worker_start_ray_commands"
    environments = {name: _authentication(config, name) for name in config["available_node_types"]}
    without = [name for name, variables in environments.items() if variables.get("RAY_AUTH_MODE") != "token"]
    if without:
        what = f"no RAY_AUTH_MODE=token for {' and '.join(without)}: Ray would serve anyone who reaches it"
        hint = "add '-e RAY_AUTH_MODE=token'" if docker else "write 'RAY_AUTH_MODE=token ray start ...'"
        yield Fault(where, what, hint)
    for key, command in _commands(config):
        if key not in START and re.search(r"\bRAY_AUTH_MODE=(?!['\"]?token\b)", command):
            yield Fault(key, f"{command!r} turns token authentication off", "leave RAY_AUTH_MODE out of it")
    if any("RAY_AUTH_TOKEN" in variables for variables in environments.values()):
        return
    for path in {variables.get("RAY_AUTH_TOKEN_PATH", ".ray/auth_token") for variables in environments.values()}:
        if not any(str(remote).endswith(path) for remote in config["file_mounts"]):
            what = f"{path} is not brought to the nodes: Ray would not start without the token"
            yield Fault("file_mounts", what, "add '/home/ray/.ray/auth_token: ~/.ray/auth_token'")


def _authentication(config: Config, name: str) -> dict[str, str]:
    """Return the variables about the token that ``ray start`` sees on a node of this type."""
    starts = config[f"{'head' if name == config['head_node_type'] else 'worker'}_start_ray_commands"]
    pairs = option_values(run_options(config, name), "-e", "--env")
    for command in starts:  # Ray runs each in a shell of its own
        before, found, _ = command.partition("ray start")
        *earlier, own = re.split(r"[;&|\n]+", before)
        exported = [text for text in earlier if text.split()[:1] == ["export"]]
        pairs += re.findall(r"\bRAY_AUTH_\w+=[^\s;]+", " ".join([*exported, own])) if found else []
    return {k: v for k, _, v in (pair.partition("=") for pair in pairs) if k.startswith("RAY_AUTH_")}


def open_ports(config: Config) -> Iterator[Fault]:
    """Check that nothing but SSH is open to the outside, the dashboard least of all."""
    for key, command in _commands(config):
        for host in re.findall(r"--dashboard-host[= ](\S+)", command):
            if host.strip("'\"") not in ("127.0.0.1", "localhost", "::1"):
                what = f"--dashboard-host {host} serves the dashboard, which runs anyone's code, to the network"
                hint = "write 'ray start --head' with --dashboard-host=127.0.0.1 there, and reach it by 'ray dashboard'"
                yield Fault(key, what, hint)
        if match := re.search(r"--(?:host|ip|bind)[= ]['\"]?(?:0\.0\.0\.0|\[?::\]?|\*)(?=['\"\s:]|$)", command):
            what = f"{match[0]} serves something to everybody who reaches the node"
            yield Fault(key, what, "serve it on 127.0.0.1, and reach it with 'ray attach --port-forward'")
    for i, rule in enumerate(config["provider"].get("security_group", {}).get("IpPermissions", [])):
        ranges = [*(rule.get("IpRanges") or []), *(rule.get("Ipv6Ranges") or [])]
        if odd := next((r for r in ranges if not isinstance(r, dict)), None):
            where = f"provider.security_group.IpPermissions[{i}]"
            yield Fault(where, f"{odd!r} is no range", "write {CidrIp: ...} or {CidrIpv6: ...}")
            continue
        outside = [r.get("CidrIp") or r.get("CidrIpv6") for r in ranges]
        outside += ["a prefix list" for _ in rule.get("PrefixListIds") or []]
        outside += ["another group" for _ in rule.get("UserIdGroupPairs") or []]
        everything = str(rule.get("IpProtocol", "")) == "-1"  # EC2 then takes no notice of the ports
        ports = (-1, -1) if everything else (rule.get("FromPort", -1), rule.get("ToPort", -1))
        if outside and ports != (SSH, SSH):
            opened = "every port" if -1 in ports else f"port {ports[0]} to {ports[1]}"
            what = f"opens {opened} to {', '.join(map(str, outside))}"
            yield Fault(f"provider.security_group.IpPermissions[{i}]", what, "leave it out; reach ports through SSH")


def secrets(config: Config, folder: Path) -> Iterator[Fault]:
    """Check that no secret stands in the file, and none of its owner's goes to nodes that run others' code. folder: in
    which ``ray up`` is typed.
    """
    first = {text: path for path, text in reversed(list(_texts(config)))}
    for text, path in first.items():
        if match := ASSIGNED.search(text):
            what = "the token itself" if match[1] == "RAY_AUTH_TOKEN" else f"the value of {match[1]}"
            hint = "leave it out and mount the token's file" if match[1] == "RAY_AUTH_TOKEN" else "leave it out"
        elif SPELT_OUT.search(text):
            what, hint = "a key or a password", "leave it out, and give the nodes a role (IamInstanceProfile)"
        else:
            continue
        yield Fault(path, f"{what} stands in the file, and from there goes into git", hint)
    private = [Path(path).expanduser().resolve() for path in PRIVATE]
    for remote, local in config["file_mounts"].items():
        own = mounted(local, folder)
        if own is None:
            continue  # ``rules.code`` says so
        if any(own.is_relative_to(p) or p.is_relative_to(own) for p in private):
            here = "" if Path(local).is_absolute() or local.startswith(("~", "$")) else f", {own},"
            what = f"{local}{here} goes to every node, where all who run code can read it"
            yield Fault(f"file_mounts.{remote}", what, "leave it out, and give the nodes a role (IamInstanceProfile)")


def containers(config: Config) -> Iterator[Fault]:
    """Check that what runs in a node's container stays in it."""
    for name in config["available_node_types"] if config.get("docker") else ():
        words = run_options(config, name)
        loose = [w for w in words if w == "--privileged" or w.startswith("--privileged=") or "docker.sock" in w]
        if loose:
            what = f"{loose[0]} gives all code that runs on {name} the whole machine and its role"
            yield Fault("docker.run_options", what, "leave it out: GPUs need no more than the gpu image")
            return


def _commands(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, command) of every shell command, each once: Ray adds the general ones to head's and workers'."""
    seen = set[str]()
    for key in COMMANDS:
        for command in map(str, config.get(key) or ()):
            if command not in seen:
                seen.add(command)
                yield key, command


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, text) of every text in the file."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{i}]")
    elif isinstance(value, str):
        yield path, value
