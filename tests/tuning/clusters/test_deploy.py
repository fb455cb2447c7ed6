"""The files of ``deploy/``: fields that KubeRay has, commands and options that are ours, packages of the lock."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from anchorfl.pipeline.run.assemble import from_words
from deploy import lock

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
POD = {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", "required": ["containers"]}}}
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


CLUSTER = closed(
    ("headGroupSpec",),
    rayVersion={"type": "string"},
    authOptions=closed(mode={"enum": ["disabled", "token"]}, secretName={"type": "string"}),
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=closed(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=COUNT,
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        resources={"type": "object"},
    ),
    headGroupSpec=closed(("rayStartParams", "template"), rayStartParams=PARAMETERS, template=POD),
    workerGroupSpecs={
        "type": "array",
        "items": closed(
            ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
            groupName={"type": "string"},
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            idleTimeoutSeconds=COUNT,
            rayStartParams=PARAMETERS,
            template=POD,
        ),
    },
)
JOB = closed(
    entrypoint={"type": "string"},
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"]},
    backoffLimit=COUNT,
    activeDeadlineSeconds=COUNT,
    shutdownAfterJobFinishes={"type": "boolean"},
    ttlSecondsAfterFinished=COUNT,
    rayClusterSpec=CLUSTER,
)
"""Fields of KubeRay 1.6's ``RayJobSpec`` and ``RayClusterSpec`` (ray.io/v1) that the files may have."""


def resource(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=closed(("name",), name={"type": "string"}),
        spec=spec,
    )


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.fixture(scope="module")
def job():
    return read("rayjob.yaml")


def test_kubernetes_files_have_the_fields_of_kuberay(job):
    jsonschema.validate(job, resource("RayJob", JOB))
    jsonschema.validate(read("raycluster.yaml"), resource("RayCluster", CLUSTER))


def test_both_kubernetes_files_describe_one_cluster(job):
    assert job["spec"]["rayClusterSpec"] == read("raycluster.yaml")["spec"]


def test_the_cluster_on_kubernetes_is_closed_and_its_head_trains_nothing(job):
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"] == container["resources"]["limits"]


def test_versions_are_those_of_the_lock(job):
    assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in lock.runtime_lines(
        (ROOT / "requirements.lock").read_text()
    )


def sweep_of(command: str) -> list[str]:
    """Return the options of the last ``anchorfl sweep PRESET`` of a shell command that are those of a run."""
    words = shlex.split(command.rpartition("anchorfl sweep ")[2])
    assert words[0] in ("r8-8/fedalign", "digits/fedalign")
    pairs = itertools.pairwise(words[1:])
    return [word for name, value in pairs if name.startswith("--") and "." in name for word in (name, value)]


@pytest.mark.parametrize("name", ["rayjob.yaml", "sky.yaml"])
def test_options_of_the_commands_are_ours(name):
    file = read(name)
    command = file["spec"]["entrypoint"] if "spec" in file else file["run"]
    command = command.replace("$((SKYPILOT_NUM_NODES * SKYPILOT_NUM_GPUS_PER_NODE))", "2")
    command = command.replace("$ON", "--cluster.address head:6379 --task.cache s3://bucket/cache")
    words = [word.replace("$RUNS", "s3://bucket/runs") for word in sweep_of(command)]
    e = from_words("r8-8/fedalign", words, "anchorfl run", lambda line: None).experiment
    assert (e.cluster.client_gpus, e.cluster.backup.partition("://")[0]) == (0.1, "s3")
    assert e.cluster.wait_for_gpus > 0


def test_the_runtime_lock_is_what_running_needs():
    """Also without tools and documentation: the wheel of neither is in it."""
    text = (DEPLOY / "requirements.lock").read_text()
    assert text == lock.text((ROOT / "requirements.lock").read_text()), "python deploy/lock.py writes it anew"
    names = {line.partition("==")[0] for line in text.splitlines()}
    assert {"torch", "ray", "mlflow", "transformers", "boto3", "dp-accounting", "psycopg"} <= names
    assert not names & {"pytest", "mypy", "ruff", "moto", "mkdocs", "pip_audit", "tensorboard", "wandb"}


@pytest.mark.parametrize("name", ["Containerfile", "sky.yaml", "../cluster.yaml"])
def test_nodes_install_the_runtime_lock(name):
    text = (DEPLOY / name).read_text()
    assert re.search(r"-r \S*(deploy/|/tmp/)requirements\.lock", text)


def test_what_the_image_copies_is_let_in_and_nothing_else():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Containerfile").read_text(), re.M)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == {w for line in copied for w in line.split()}


def test_the_image_runs_as_nobody_in_particular_and_wants_a_token():
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^USER 1000$", text, re.M)
    assert "RAY_AUTH_MODE=token" in text
    assert text.count("FROM python:3.11-") == 2  # the lock's Python


@pytest.mark.parametrize(
    "text", [(DEPLOY / "slurm.sh").read_text(), read("sky.yaml")["run"], read("sky.yaml")["setup"]]
)
def test_scripts_are_bash(text):
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
