"""A cluster file that lets strangers in, or carries a secret, is refused: each edit of the shipped one by its line."""

from __future__ import annotations

import pytest

from anchorfl.tuning.clusters import security
from tests.tuning.clusters.test_check import assert_one_fault, edited, faults

START = "ray start --head --port=6379"
MOUNT = "  /home/ray/anchorfl: .\n"
SETUP = "setup_commands:\n"
OPTION = "    - -e MLFLOW_DISABLE_TELEMETRY=true\n"
GROUP = "    GroupName: anchorfl"
EVERYBODY = "IpRanges: [{CidrIp: 0.0.0.0/0}]"

BROKEN = {
    "a range that is none": (
        GROUP,
        f"    IpPermissions: [{{FromPort: 22, ToPort: 22, IpProtocol: tcp, IpRanges: [203.0.113.7/32]}}]\n{GROUP}",
        "'203.0.113.7/32' is no range; write {CidrIp: ...}",
    ),
    "a folder of nobody": (MOUNT, f"{MOUNT}  /home/ray/x: ~nobody-here/x\n", "can be no place on this machine"),
    "token off at the start": (START, f"RAY_AUTH_MODE=disabled {START}", "no RAY_AUTH_MODE=token for head"),
    "token off in a container": (OPTION, f"{OPTION}    - -e RAY_AUTH_MODE=disabled\n", "no RAY_AUTH_MODE=token for h"),
    "token off in a profile": (
        SETUP,
        f"{SETUP}  - echo 'export RAY_AUTH_MODE=disabled' >> ~/.bashrc\n",
        "turns token authentication off",
    ),
    "dashboard said twice": (
        "--dashboard-host=127.0.0.1",
        "--dashboard-host=127.0.0.1 --dashboard-host=0.0.0.0",
        "--dashboard-host 0.0.0.0 serves the dashboard",
    ),
    "MLflow for all": (SETUP, f"{SETUP}  - anchorfl ui --host 0.0.0.0 &\n", "--host 0.0.0.0 serves something"),
    "notebook for all": (SETUP, f"{SETUP}  - jupyter lab --ip='*' &\n", "--ip='* serves something"),
    "all protocols": (
        GROUP,
        f"    IpPermissions: [{{FromPort: 22, ToPort: 22, IpProtocol: '-1', {EVERYBODY}}}]\n{GROUP}",
        "opens every port to 0.0.0.0/0",
    ),
    "another group": (
        GROUP,
        "    IpPermissions: [{FromPort: 6379, ToPort: 6379, IpProtocol: tcp, UserIdGroupPairs: [{GroupId: sg-1}]}]\n"
        f"{GROUP}",
        "opens port 6379 to 6379 to another group",
    ),
    "token at the start": (START, f"RAY_AUTH_TOKEN=abc {START}", "the token itself stands in the file"),
    "key of AWS": (
        OPTION,
        f"{OPTION}    - -e AWS_SECRET_ACCESS_KEY=abc\n",
        "the value of AWS_SECRET_ACCESS_KEY stands",
    ),
    "MLflow's password": (
        SETUP,
        f"{SETUP}  - export MLFLOW_TRACKING_PASSWORD='abc'\n",
        "setup_commands[0]: the value of MLFLOW_TRACKING_PASSWORD stands in the file",
    ),
    "password in an address": (
        SETUP,
        f"{SETUP}  - git clone https://me:abc@example.org/data.git\n",
        "setup_commands[0]: a key or a password stands in the file",
    ),
    "credentials sent along": (MOUNT, f"{MOUNT}  /home/ray/.aws: ~/.aws\n", "file_mounts./home/ray/.aws: ~/.aws goes"),
    "home sent along": (MOUNT, f"{MOUNT}  /home/ray/all: '~'\n", "~ goes to every node"),
    "privileged": (OPTION, f"{OPTION}    - --privileged\n", "docker.run_options: --privileged gives all code"),
    "docker's socket": (
        OPTION,
        f"{OPTION}    - -v /var/run/docker.sock:/var/run/docker.sock\n",
        "/var/run/docker.sock:/var/run/docker.sock gives all code",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_edit_is_one_fault(name):
    fault = assert_one_fault(*BROKEN[name])
    assert "abc" not in fault or "abc" in BROKEN[name][2], "a secret is not said again"


@pytest.mark.parametrize(
    "harmless",
    [
        (OPTION, f"{OPTION}    - -e PGPASSWORD=$PGPASSWORD\n"),
        (SETUP, f"{SETUP}  - anchorfl ui --host 127.0.0.1 &\n"),
        (GROUP, f"    IpPermissions: [{{FromPort: 22, ToPort: 22, IpProtocol: tcp, {EVERYBODY}}}]\n{GROUP}"),
        (MOUNT, f"{MOUNT}  /home/ray/tables: ~/tables\n"),
    ],
    ids=["passed on", "loopback", "SSH", "data"],
)
def test_what_opens_nothing_passes(harmless):
    assert faults(edited(*harmless)) == []


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("ulimit -n 65536; RAY_AUTH_MODE=token ray start --head", True),
        ("export RAY_AUTH_MODE=token; ulimit -n 65536; ray start --head", True),
        ("RAY_AUTH_MODE=token ray stop; ray start --head", False),
        ("ray start --head; export RAY_AUTH_MODE=token", False),
    ],
)
def test_a_variable_counts_where_ray_start_sees_it(command, seen):
    """Ray runs each command in a shell of its own, so that an export before is forgotten."""
    config = {
        "head_node_type": "head",
        "head_start_ray_commands": ["export RAY_AUTH_MODE=token", command],
        "available_node_types": {"head": {}},
    }
    assert bool(security._authentication(config, "head")) == seen


def test_credentials_of_a_home_behind_a_link_are_not_sent(tmp_path, monkeypatch):
    (tmp_path / "home/.aws").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    assert_one_fault(MOUNT, f"{MOUNT}  /home/ray/.aws: ~/.aws\n", "~/.aws goes to every node")


def test_no_file_mounts_is_one_fault():
    text = edited("  /home/ray/anchorfl: .\n  /home/ray/.ray/auth_token: ~/.ray/auth_token\n", "").replace(
        "file_mounts:\n", ""
    )
    assert faults(text) == [
        "file_mounts: .ray/auth_token is not brought to the nodes: Ray would not start without the token; add"
        " '/home/ray/.ray/auth_token: ~/.ray/auth_token'"
    ]
