"""The shipped cluster file against a mock of AWS (moto): Ray's own AWS code prepares it, makes and ends the nodes.

Shown: every option of the file is one that Ray passes and EC2's interface accepts; key pair, subnets and security group
come out as the file means them; tags, spot, instance profile and image reach each node; and, by recording in place of
ssh, the commands that 'ray up' would run on the head node. Not shown: that AWS has capacity, quota or the images, that
the roles of docs/cluster.md suffice, that docker starts, or that Ray's nodes find each other. No request leaves the
machine.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import yaml

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'anchorfl[dev]'")
moto = pytest.importorskip("moto", reason="moto is not installed: pip install 'anchorfl[dev]'")

SHIPPED = Path(__file__).resolve().parents[3] / "cluster.yaml"
REGION = "us-west-2"


@pytest.fixture
def account(monkeypatch, tmp_path):
    """Mock an empty account with the two instance profiles of docs/cluster.md, and a home folder of its own."""
    from ray.autoscaler._private.aws import config as aws
    from ray.autoscaler._private.aws import utils

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    checkout = tmp_path / "checkout"  # Ray hashes all that it would copy, so this holds no virtual environment
    checkout.mkdir()
    (checkout / "deploy").mkdir()
    for name in ("cluster.yaml", "deploy/requirements.lock", ".gitignore"):
        shutil.copy(SHIPPED.parent / name, checkout / name)
    monkeypatch.chdir(checkout)
    caches = (utils.resource_cache, utils.client_cache, aws._get_subnets_or_die)
    with moto.mock_aws():
        for cache in caches:
            cache.cache_clear()
        iam = boto3.client("iam")
        for name in ("anchorfl-head", "anchorfl-worker"):
            iam.create_instance_profile(InstanceProfileName=name)
        yield boto3.resource("ec2")
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def config(account):
    """Return the shipped file as 'ray up' has it before it makes a node."""
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(yaml.safe_load(SHIPPED.read_text()))
    validate_config(prepared)
    return AWSNodeProvider.bootstrap_config(AWSNodeProvider.fillout_available_node_types_resources(prepared))


@pytest.fixture
def provider(config):
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    return AWSNodeProvider(config["provider"], config["cluster_name"])


def test_bootstrap(account, config, tmp_path):
    nodes = {name: kind["node_config"] for name, kind in config["available_node_types"].items()}
    assert config["available_node_types"]["worker"]["resources"]["GPU"] == 1
    assert config["available_node_types"]["head"]["resources"]["CPU"] == 0
    key = Path(config["auth"]["ssh_private_key"])
    assert key.is_relative_to(tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600
    assert nodes["head"]["KeyName"] == nodes["worker"]["KeyName"]
    assert nodes["head"]["SecurityGroupIds"] == nodes["worker"]["SecurityGroupIds"]
    (group,) = nodes["head"]["SecurityGroupIds"]
    outside = [rule for rule in account.SecurityGroup(group).ip_permissions if rule["IpRanges"]]
    assert [(rule["FromPort"], rule["ToPort"]) for rule in outside] == [(22, 22)]
    inside = [rule for rule in account.SecurityGroup(group).ip_permissions if rule["UserIdGroupPairs"]]
    assert [pair["GroupId"] for rule in inside for pair in rule["UserIdGroupPairs"]] == [group]
    assert account.SecurityGroup(group).group_name == "anchorfl"


def test_worker_is_made_tagged_and_ended(account, config, provider):
    from ray.autoscaler import tags

    node = config["available_node_types"]["worker"]["node_config"]
    given = {
        tags.TAG_RAY_NODE_KIND: tags.NODE_KIND_WORKER,
        tags.TAG_RAY_USER_NODE_TYPE: "worker",
        tags.TAG_RAY_NODE_NAME: "ray-anchorfl-worker",
        tags.TAG_RAY_LAUNCH_CONFIG: "hash",
    }
    provider.create_node(node, dict(given), 1)
    (made,) = provider.non_terminated_nodes({tags.TAG_RAY_NODE_KIND: tags.NODE_KIND_WORKER})
    assert given.items() <= provider.node_tags(made).items()
    instance = account.Instance(made)
    assert instance.instance_type == "g5.2xlarge"
    assert instance.image_id == node["ImageId"]
    assert instance.instance_lifecycle == "spot"
    assert instance.iam_instance_profile["Arn"].endswith("/anchorfl-worker")
    assert {"Key": "ray-cluster-name", "Value": "anchorfl"} in instance.tags
    (disk,) = instance.volumes.all()
    assert (disk.size, disk.volume_type, disk.encrypted) == (150, "gp3", True)
    provider.terminate_nodes([made])
    assert provider.non_terminated_nodes({}) == []
    instance.reload()
    assert instance.state["Name"] == "terminated", "ended, not stopped: a stopped node's disk still costs"


class Recorder:
    """In place of subprocess: keeps each command, and answers as a fresh node with docker would."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def check_call(self, command, *_, **__) -> int:
        self.commands.append(command if isinstance(command, str) else " ".join(command))
        return 0

    def check_output(self, command, *_, **__) -> bytes:
        self.check_call(command)
        last = self.commands[-1]
        answers = {
            ".Config.Env": b'["HOME=/home/ray"]',
            "command -v docker": b"/usr/bin/docker",
            "printenv HOME": b"/home/ray",
        }
        return next((answer for asked, answer in answers.items() if asked in last), b"")

    call = check_call

    def one(self, text: str) -> str:
        """Return the one command with this text."""
        (found,) = [c for c in self.commands if text in c]
        return found


def test_head_is_set_up(account, config, provider, tmp_path):
    from ray.autoscaler._private import commands

    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    runner = Recorder()
    commands.get_or_create_head_node(
        config, str(SHIPPED), False, False, True, None, _provider=provider, _runner=runner
    )  # fmt: skip
    (head,) = account.instances.filter(Filters=[{"Name": "tag:ray-node-type", "Values": ["head"]}])
    assert head.instance_type == "m6i.xlarge"
    assert head.instance_lifecycle is None
    assert {"Key": "ray-node-status", "Value": "up-to-date"} in head.tags
    container = runner.one("docker run")
    for words in (
        "--shm-size=12gb",
        "-e RAY_AUTH_MODE=token",
        "rayproject/ray:2.60.0-py311-cpu",
        ":/home/ray/anchorfl",
    ):
        assert words in container
    start = runner.one("ray start --head")
    assert "--dashboard-host=127.0.0.1" in start
    assert '"CPU":0' in start.replace(" ", "").replace("\\", "")
    copies = [shlex.split(c) for c in runner.commands if c.startswith("rsync")]
    assert any(words[-2].endswith("/.ray/auth_token") for words in copies)
    assert any(words[-2] == "./" and "dir-merge,- .gitignore" in " ".join(words) for words in copies)
    assert "deploy/requirements.lock" in runner.one("pip install --quiet --disable-pip-version-check -r")
    assert not any("secret" in command for command in runner.commands), "the token goes as a file"
