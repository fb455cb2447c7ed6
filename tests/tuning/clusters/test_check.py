"""The shipped cluster file passes its check; a file that is one edit away from it fails, named by that edit."""

from __future__ import annotations

import argparse
import copy
import re
from pathlib import Path

import pytest
import yaml

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.schema import options_of
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.clusters import check as cloud
from anchorfl.tuning.clusters.nodes import option_values
from anchorfl.tuning.clusters.rules import Demand, Versions, share_fits

SHIPPED = Path(__file__).resolve().parents[3] / "cluster.yaml"
HERE = Versions("2.60.0", "py311")
IMAGE = "rayproject/ray:2.60.0-py311"
PLENTY = Demand(0.25)


@pytest.fixture(autouse=True)
def _versions_of_the_file(monkeypatch, tmp_path):
    """Set the file's Ray and Python, as the tests run with others, too, and an empty home folder."""
    monkeypatch.setattr(cloud, "versions_here", lambda: HERE)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def check(capsys):
    """Return a runner of the command on a file: exit code, standard output, lines of standard error."""

    def run(*arguments):
        parser = argparse.ArgumentParser()
        cloud.arguments(parser)
        code = cloud.check(parser.parse_args([str(a) for a in arguments]))
        out, err = capsys.readouterr()
        return code, out, err.splitlines()

    return run


def edited(old: str, new: str) -> str:
    """Return the shipped file with an edit, and with one type of worker: a second would have each fault again."""
    text = re.sub(r"  on-demand:\n(?:    .*\n)+", "", SHIPPED.read_text())
    assert old in text, f"{old!r} is no longer in cluster.yaml"
    return text.replace(old, new)


def as_checkout(folder: Path) -> None:
    """Make a folder that has what the nodes install."""
    (folder / "deploy").mkdir(parents=True)
    (folder / "deploy" / "requirements.lock").touch()


def faults(text: str, demand: Demand = PLENTY) -> list[str]:
    return [str(fault) for fault in cloud.faults_of(text, demand, HERE, SHIPPED.parent)[1]]


def test_shipped_file_passes(check):
    code, out, err = check(SHIPPED, "--preset", "r8-8/fedalign", "--client-gpus", "0.25")
    assert code == 0
    assert "no fault found" in out
    assert "0 to 4 g5.2xlarge, spot, 1 GPU, 4 clients of 0.25 GPU on each" in out
    for command in ("ray up", "ray dashboard", "anchorfl submit", "ray attach", "ray down"):
        assert command in out
    assert all(": note: " in line for line in err)


BROKEN = {
    "typo": ("idle_timeout_minutes:", "idle_timeout_minute:", "idle_timeout_minute: no such key; did you mean '"),
    "syntax": ("provider:\n", "provider\n", "line 19, column 7: not YAML: "),
    "twice": ("max_workers: 4\nidle", "max_workers: 4\nmax_workers: 8\nidle", "the key 'max_workers' stands twice"),
    "type": ("max_workers: 4\nidle", "max_workers: many\nidle", 'max_workers: "many" is not integer'),
    "head's Ray": (f"{IMAGE}-cpu", "rayproject/ray:2.55.1-py311-cpu", "2.55.1-py311-cpu: holds Ray 2.55.1"),
    "latest": (f"{IMAGE}-gpu", "rayproject/ray:latest-gpu", "'latest-gpu' is another Ray each time"),
    "worker's Python": (f"{IMAGE}-gpu", "rayproject/ray:2.60.0-py312-gpu", "holds Ray 2.60.0 and Python 3.12"),
    "CPU image": (f"{IMAGE}-gpu", f"{IMAGE}-cpu", "worker_image: rayproject/ray:2.60.0-py311-cpu is built for CPUs"),
    "head runs clients": ("{ CPU: 0 }", "{ CPU: 4 }", "available_node_types.head.resources.CPU: the head node would"),
    "no shm": ("    - --shm-size=12gb", "    - --init", "docker.run_options: no --shm-size for head and worker"),
    "little shm": ("--shm-size=12gb", "--shm-size=6g", "is less than Ray's object store on worker, 10 GiB"),
    "counts": (
        "min_workers: 0",
        "min_workers: 5",
        "available_node_types.worker.min_workers: 5 is above max_workers, 4",
    ),
    "idle": ("idle_timeout_minutes: 10", "idle_timeout_minutes: 600", "idle_timeout_minutes: 600 minutes: idle"),
    "open port": (
        "    GroupName: anchorfl",
        "    IpPermissions: [{FromPort: 8265, ToPort: 8265, IpProtocol: tcp, IpRanges: [{CidrIp: 0.0.0.0/0}]}]\n"
        "    GroupName: anchorfl",
        "provider.security_group.IpPermissions[0]: opens port 8265 to 8265 to 0.0.0.0/0",
    ),
    "dashboard": ("--dashboard-host=127.0.0.1", "--dashboard-host 0.0.0.0", "--dashboard-host 0.0.0.0 serves the"),
    "Ray's default start": ("head_start_ray_commands:", "head_setup_commands:", "--dashboard-host 0.0.0.0 serves the"),
    "no token": ("-e RAY_AUTH_MODE=token", "-e RAY_X=1", "docker.run_options: no RAY_AUTH_MODE=token for head and wo"),
    "token in file": (
        "-e MLFLOW_DISABLE_TELEMETRY=true",
        "-e RAY_AUTH_TOKEN=abc",
        "the token itself stands in the file",
    ),
    "token not brought": ("  /home/ray/.ray/auth_token:", "  /home/ray/token:", "file_mounts: .ray/auth_token is not"),
    "provider": ("type: aws", "type: asw", "provider.type: 'asw' is unknown; did you mean 'aws'?"),
    "region": ("  region: us-west-2\n", "", "provider.region: missing"),
    "head type": ("head_node_type: head", "head_node_type: heads", "head_node_type: 'heads' is no node type"),
    "two GPUs": ("GPU: 1 }", "GPU: 2 }", "available_node_types.worker.resources.GPU: 2, and a g5.2xlarge has 1"),
}


def assert_one_fault(old: str, new: str, named: str) -> str:
    """Assert that this edit of the shipped file has one fault, named and with its mend; return its line."""
    (fault,) = faults(edited(old, new))
    assert named in fault
    assert "; " in fault, "says how to mend it"
    assert "\n" not in fault
    return fault


@pytest.mark.parametrize("name", BROKEN)
def test_one_edit_is_one_fault(name):
    assert_one_fault(*BROKEN[name])


def test_a_line_that_several_workers_share_is_one_fault():
    text = SHIPPED.read_text().replace(f"      worker_image: {IMAGE}-gpu\n", "")
    text = text.replace(
        f"  image: {IMAGE}-cpu", f"  image: {IMAGE}-cpu\n  worker_image: {IMAGE.replace('311', '312')}-gpu"
    )
    (fault,) = faults(text)
    assert "docker.worker_image: rayproject/ray:2.60.0-py312-gpu: holds Ray 2.60.0 and Python 3.12" in fault


def test_no_wrong_value_stops_the_check():
    """Any value in place of any other gives faults or none, never a traceback."""

    def paths(value, path=()):
        yield path
        steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, inner in steps:
            yield from paths(inner, (*path, step))

    raw, silent = yaml.safe_load(SHIPPED.read_text()), 0
    for path in list(paths(raw))[1:]:
        for value in (None, ["a"], {"a": 1}, "'", -1):
            changed = copy.deepcopy(raw)
            place = changed
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
            found = faults(yaml.safe_dump(changed))
            assert all("\n" not in fault for fault in found)
            silent += not found
    assert silent < 100  # free text, as names of groups and commands


def test_each_missing_key_is_named_once():
    found = faults("a: 1")
    assert [fault.partition(":")[0] for fault in found if ": missing" in fault] == ["cluster_name", "provider"]


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (["--env=RAY_AUTH_MODE=token", "-e", "RAY_AUTH_MODE=disabled"], "RAY_AUTH_MODE=disabled"),
        (["-e", "RAY_AUTH_MODE=disabled", "--env=RAY_AUTH_MODE=token", "-e"], "RAY_AUTH_MODE=token"),
    ],
)
def test_docker_takes_the_last_of_two_values(words, last):
    assert option_values(words, "--env", "-e")[-1] == last


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("file_mounts:\n", "file_mounts:\n  /home/ray/empty: ''\n", "file_mounts./home/ray/empty: "),
        ("{ MarketType: spot }", "spot", "Invalid type for parameter InstanceMarketOptions, value: spot"),
        ("{ MarketType: spot }", "null", "Invalid type for parameter InstanceMarketOptions, value: None"),
        ("  security_group:\n", "  security_group:\n    IpPermissions: [{ UserIdGroupPairs: 5 }]\n", "is no rule"),
    ],
)
def test_odd_values_are_named(check, tmp_path, old, new, named):
    pytest.importorskip("botocore", reason="EC2's options are checked by botocore, which is not installed")
    file = tmp_path / "mine.yaml"
    file.write_text(edited(old, new))
    code, _, err = check(file)
    assert code == 2
    assert any(named in line for line in err)


def test_sum_of_counts():
    text = edited("min_workers: 0", "min_workers: 3").replace("max_workers: 4\nidle", "max_workers: 2\nidle")
    assert faults(text) == ["max_workers: 2 is below the min_workers of all node types, 3; raise it to at least 3"]


def test_option_of_ec2_is_spelt_right():
    pytest.importorskip("botocore", reason="EC2's options are checked by botocore, which is not installed")
    found = faults(edited("InstanceMarketOptions:", "InstanceMarketOption:"))
    assert len(found) == 1
    assert found[0].endswith(
        "Unknown parameter in input: \"InstanceMarketOption\"; did you mean 'InstanceMarketOptions'?"
    )


def test_all_faults_are_shown(check, tmp_path):
    text = edited("--dashboard-host=127.0.0.1", "--dashboard-host=0.0.0.0").replace("{ CPU: 0 }", "{ CPU: 4 }")
    file = tmp_path / "checkout" / "mine.yaml"
    as_checkout(file.parent)
    file.write_text(text.replace("rsync_filter", "rsync_filtre"))
    code, out, err = check(file)
    assert code == 2
    assert out == ""
    assert len(err) == 3
    assert all(line.startswith(f"{file}: ") for line in err)
    assert re.search(r"rsync_filtre: no such key; did you mean 'rsync_filter'\?", err[0])


def test_notes_name_the_store_and_the_token(check, tmp_path):
    assert sum("s3://" in line or "auth_token is not here" in line for line in check(SHIPPED)[2]) == 2
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("x")
    (tmp_path / ".ray" / "auth_token").chmod(0o644)
    assert any("chmod 600" in line for line in check(SHIPPED)[2])
    (tmp_path / ".ray" / "auth_token").chmod(0o600)
    file = tmp_path / "checkout" / "mine.yaml"
    as_checkout(file.parent)
    file.write_text(edited("-e ANCHORFL_DATA=/home/ray/data", "-e ANCHORFL_CACHE=s3://bucket/cache"))
    assert check(file)[2] == []


def test_mounts_are_those_of_the_folder_of_the_file(check, tmp_path, monkeypatch):
    """Ray takes "." from the folder in which ``ray up`` is typed: from a home it would send keys to every node. So what
    is typed next goes to the file's folder first, which has to be a checkout.
    """

    def refused(file):
        code, _, err = check(file)
        assert code == 2
        return [line.partition("file_mounts./home/ray/")[2] for line in err]

    home, checkout = tmp_path / "home", tmp_path / "home" / "with blank"
    checkout.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    for folder in (home, checkout):
        (folder / "cluster.yaml").write_text(SHIPPED.read_text())
    secret, code = refused("cluster.yaml")
    assert secret.startswith(f"anchorfl: ., {home}, goes to every node, where all who run code can read it; ")
    assert code.startswith(f"anchorfl: . is {home}, which has no deploy/requirements.lock, and the nodes install it; ")
    (only,) = refused("with blank/cluster.yaml")
    assert only.startswith(f"anchorfl: . is {checkout}, which has no deploy/requirements.lock")
    as_checkout(checkout)
    assert f"  cd '{checkout}'\n  ray up cluster.yaml\n" in check("with blank/cluster.yaml")[1]
    monkeypatch.chdir(checkout)
    assert "  cd " not in check("cluster.yaml")[1]
    for mount in ("..", str(tmp_path), "/", "$HOME/.config/gh"):
        (checkout / "cluster.yaml").write_text(edited("anchorfl: .\n", f"anchorfl: .\n  /home/ray/more: {mount}\n"))
        (only,) = refused("cluster.yaml")
        assert only.startswith(f"more: {mount}")
        assert "goes to every node" in only


@pytest.mark.parametrize(
    ("demand", "named"),
    [
        (Demand(0.25, clients=16), None),  # four workers with four clients each
        (
            Demand(0.25, clients=34, clients_per_actor=2),
            "max_workers: 17 client actors of 0.25 GPU do not fit: all workers together hold 16",
        ),
        (Demand(0.25, clients=17), None),  # they share 16 actors
        (Demand(0.25, clients=17, clients_per_actor=2), None),  # nine actors
        (Demand(0.25, server_gpus=0.5, clients=16, clients_per_actor=1), "and a server of 0.5"),
        (Demand(0.6, clients=4), None),  # one per GPU: no share is split over two
        (Demand(0.6, clients=5, clients_per_actor=1), "hold 4 clients"),
        (Demand(0.3, clients=100), None),
        (Demand(0.04), "0.04 of its 22.4 GiB GPU is 0.90 GiB a client; give clients at least 0.05"),
        (Demand(0.05), None),
        (Demand(0.0, clients=1000), None),
    ],
)
def test_shares_of_a_gpu(demand, named):
    found = faults(edited("", ""), demand)
    assert found == [] if named is None else len(found) == 1 and named in found[0], found


def test_shares_need_a_gpu():
    text = edited("GPU: 1 }", "GPU: 0 }").replace("g5.2xlarge", "m6i.xlarge").replace("CPU: 8", "CPU: 4")
    assert faults(text, Demand(0.5)) == [
        "available_node_types: clients want 0.5 GPU, no worker has one; add a GPU worker type"
    ]
    assert faults(text, Demand(0.0)) == []


@pytest.mark.parametrize(("share", "count"), [(1, 1), (0.5, 2), (1 / 3, 3), (0.3, 3), (0.1, 10), (0.6, 1)])
def test_share_fits(share, count):
    assert share_fits(share) == count


def test_other_clouds_pass():
    """GCP, without docker, its token in the start commands."""
    file = """
cluster_name: mine
provider: {type: gcp, region: us-west1, availability_zone: us-west1-a, project_id: mine}
auth: {ssh_user: ubuntu}
head_node_type: head
max_workers: 1
available_node_types:
  head: {resources: {CPU: 0}, node_config: {machineType: n1-standard-4}}
  worker: {resources: {CPU: 4}, node_config: {machineType: n1-standard-4}}
file_mounts: {/home/ubuntu/.ray/auth_token: ~/.ray/auth_token}
head_start_ray_commands:
  - RAY_AUTH_MODE=token ray start --head --autoscaling-config=~/ray_bootstrap_config.yaml --dashboard-host=127.0.0.1
worker_start_ray_commands: ["RAY_AUTH_MODE=token ray start --address=$RAY_HEAD_IP:6379"]
"""
    assert faults(file, Demand(0.0)) == []
    found = faults(file.replace("RAY_AUTH_MODE=token ray start --address", "ray start --address"), Demand(0.0))
    assert len(found) == 1
    assert "no RAY_AUTH_MODE=token for worker" in found[0]


def test_what_rays_own_completion_refuses_is_one_fault():
    text = "cluster_name: a\nprovider: {type: local, head_ip: 10.0.0.1}\nauth: {ssh_user: me}\n"
    (fault,) = faults(text)
    assert fault.startswith("provider: ")


def test_bad_arguments(check, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        check(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"--client-gpus 1\.5: give a share"):
        check(SHIPPED, "--client-gpus", "1.5")
    with pytest.raises(InputError, match=r"--client-gpus 1e-310: give a share .* from 0\.0001 to 1"):
        check(SHIPPED, "--client-gpus", "1e-310")
    with pytest.raises(InputError, match=r"--clients-per-actor: .* and --preset"):
        check(SHIPPED, "--clients-per-actor", "2")


def test_what_is_shipped_keeps_runs_and_asks_for_its_gpus():
    """The folder of runs lies on the node's disk and is there before the container; a worker looks for its GPU."""
    config = yaml.safe_load(SHIPPED.read_text())
    (mount,) = (option.split()[1] for option in config["docker"]["run_options"] if option.startswith("-v "))
    outside, inside = mount.split(":")
    assert inside == "/home/ray/runs"
    assert f"mkdir -p {outside}" in config["initialization_commands"]
    assert config["worker_setup_commands"] == ["nvidia-smi --list-gpus"]
    assert "head_setup_commands" not in config, "the head has none"
    options = {name for name in re.findall(r"--([a-z]+\.[a-z_]+)", SHIPPED.read_text())}
    assert {"task.cache", "cluster.backup"} <= options <= set(options_of(read_preset("digits/fedavg")))


@pytest.mark.parametrize(("most", "taken"), [(4, "worker"), (0, "on-demand")])
def test_ray_takes_spot_machines_where_it_may(most, taken):
    """By Ray's own scheduler, which takes the later name of two types that fit alike."""
    from ray.autoscaler._private.resource_demand_scheduler import _default_utilization_scorer, get_nodes_for
    from ray.autoscaler._private.util import prepare_config

    text = SHIPPED.read_text().replace("max_workers: 4\n    resources", f"max_workers: {most}\n    resources")
    config = prepare_config(yaml.safe_load(text))

    def score(*arguments):
        return _default_utilization_scorer(*arguments, node_availability_summary=None)

    types = config["available_node_types"]
    added, left = get_nodes_for(types, {}, "head", 4, [{"GPU": 1.0}, {"GPU": 1.0}], score)
    assert text.count("max_workers: 4") == (3 if most else 2)
    assert (dict(added), left) == ({taken: 2}, [])
    assert ("InstanceMarketOptions" in types[taken]["node_config"]) == (taken == "worker")
