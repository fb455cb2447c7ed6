"""A job of NVFlare on stand-ins for its classes, whose messages cross as bytes: the bits of the serial run."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm.contract import ServerState
from anchorfl.pipeline.export.apps import PRESET, write_app
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.tasks.errors import InputError
from tests.runs import quiet


class Shareable(dict):
    """NVFlare's: what is sent, with a return code."""

    code = "OK"

    def get_return_code(self):
        return self.code


class Task:
    """NVFlare's, as far as a controller makes one."""

    def __init__(self, name, data, timeout=0, result_received_cb=None):
        assert isinstance(timeout, int)
        self.name, self.data, self.timeout, self.received = name, data, timeout, result_received_cb


class Controller:
    """NVFlare's: tasks go to sites in this process, and their answers come in any order."""

    def __init__(self, task_check_period=0.2):
        self.tasks, self.said, self.reason, self.stuck, self.timeouts = [], [], "", False, set()

    def send(self, task, fl_ctx, targets):
        self.tasks.append((task, targets[0]))
        self.timeouts.add(task.timeout)

    def get_num_standing_tasks(self):
        if self.stuck:
            return len(self.tasks)
        for task, site in reversed(self.tasks):
            answer = self.sites.answer(task, site)
            if answer is not None:
                task.received(SimpleNamespace(client=SimpleNamespace(name=site), result=answer), None)
        self.tasks.clear()
        return 0

    def cancel_all_tasks(self):
        self.tasks.clear()

    def log_info(self, fl_ctx, line):
        self.said += line.splitlines()

    def system_panic(self, reason, fl_ctx):
        self.reason = reason


class Sites:
    """Sites of a job; ``changed``: site -> what becomes of its answer, None for none."""

    def __init__(self, nvflare, folder, names, changed=None):
        self.folder, self.names, self.changed = folder, names, changed or {}
        self.executors = {name: nvflare.AnchorExecutor() for name in names}

    def context(self, site):
        workspace = SimpleNamespace(
            get_app_config_dir=lambda job: str(self.folder / "app/config"),
            get_run_dir=lambda job: str(self.folder / "workspace" / site),
        )
        (self.folder / "workspace" / site).mkdir(parents=True, exist_ok=True)
        clients = [SimpleNamespace(name=name) for name in self.names]
        engine = SimpleNamespace(get_workspace=lambda: workspace, get_clients=lambda: clients)
        return SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "job", get_identity_name=lambda: site)

    def answer(self, task, site):
        answer = self.executors[site].execute(task.name, task.data, self.context(site), None)
        return self.changed.get(site, lambda same: same)(answer)


def make_reply(code):
    reply = Shareable()
    reply.code = code
    return reply


@pytest.fixture
def nvflare(monkeypatch):
    """Return the module that runs in NVFlare, with stand-ins for what it imports."""
    codes = SimpleNamespace(OK="OK", TASK_UNKNOWN="TASK_UNKNOWN")
    made = {
        "": {}, ".apis": {}, ".apis.impl": {}, ".apis.controller_spec": {"ClientTask": object, "Task": Task},
        ".apis.executor": {"Executor": object}, ".apis.fl_constant": {"ReturnCode": codes},
        ".apis.fl_context": {"FLContext": object}, ".apis.impl.controller": {"Controller": Controller},
        ".apis.shareable": {"Shareable": Shareable, "make_reply": make_reply}, ".apis.signal": {"Signal": object},
    }  # fmt: skip
    for name, members in made.items():
        module = ModuleType(f"nvflare{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, f"nvflare{name}", module)
    monkeypatch.delitem(sys.modules, "anchorfl.pipeline.export.nvflare", raising=False)
    yield importlib.import_module("anchorfl.pipeline.export.nvflare")
    sys.modules.pop("anchorfl.pipeline.export.nvflare", None)


def served(nvflare, folder, experiment, names=None, triggered=False, **changed):
    """Return the controller of a job that has run. changed: by the site's number."""
    write_app("nvflare", folder, "toy", experiment)
    names = names or [f"site-{number + 1}" for number in range(experiment.task.clients)]
    controller = nvflare.AnchorController()
    controller.stuck = triggered
    controller.sites = Sites(nvflare, folder, names, {f"site-{k[1:]}": change for k, change in changed.items()})
    controller.control_flow(SimpleNamespace(triggered=triggered), controller.sites.context("server"))
    return controller


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "scaffold", "moon", "fedrep", "feddyn", "fednh"])
def test_it_gives_the_bits_of_the_serial_run(nvflare, experiment, tmp_path, method):
    """Also where clients keep something between rounds, or get a message of their own."""
    e = experiment(method)
    alone = run(e, tmp_path / "serial", quiet)
    job = served(nvflare, tmp_path / "app", e)
    assert (job.said[-1], job.reason) == (f"weights sha256 {alone.checksum}", "")
    score = f"{100 * alone.scores['test']['f1_macro']:.2f}"
    assert job.said[-3].startswith(f"test f1_macro {score}")
    assert (tmp_path / "app/workspace/server/model/weights.safetensors").exists()


def test_a_deadline_is_the_timeout_of_a_round(nvflare, experiment, tmp_path):
    """In whole seconds."""
    e = experiment("fedavg")
    timed = replace(e, cluster=replace(e.cluster, executor="ray"), federation=replace(e.federation, deadline=2.5))
    job = served(nvflare, tmp_path / "app", timed)
    assert (job.timeouts, job.reason) == ({3}, "")


def test_what_a_client_keeps_stays_at_its_site(nvflare, experiment, tmp_path):
    """In a file, since the simulator may end a site's process between two rounds."""
    served(nvflare, tmp_path / "app", experiment("scaffold", federation={"rounds": 3, "clients_per_round": 0}))
    kept = sorted((path.parent.name, path.name) for path in (tmp_path / "app").rglob("memory*"))
    assert kept == [(f"site-{n}", f"memory-{round_}.safetensors") for n in range(1, 5) for round_ in (2, 3)]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_an_update_that_is_lost_leaves_no_memory(nvflare, experiment, tmp_path, masked):
    """Its client goes on with what it kept when the server last heard it."""
    e = experiment("scaffold", federation={"rounds": 3, "clients_per_round": 0, "quorum": 0.75})
    plain, count, trained = nvflare.fit, [0], dict[bool, str]()

    def failing(preset, client, content, folder):
        if client == 1 and content["round"] == 2:
            raise RuntimeError("no route to host")
        return plain(preset, client, content, folder)

    def lost(reply):
        count[0] += "update" in reply
        return failed(reply) if "update" in reply and count[0] == 2 else reply

    for trains in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            execute = nvflare.AnchorExecutor.execute

            def guarded(self, *given, execute=execute):
                try:
                    return execute(self, *given)
                except RuntimeError:
                    return make_reply("EXECUTION_EXCEPTION")

            patch.setattr(nvflare.AnchorExecutor, "execute", guarded)
            patch.setattr(nvflare, "fit", plain if trains else failing)
            masks = replace(e, federation=replace(e.federation, secure_aggregation=masked))
            job = served(nvflare, tmp_path / str(trains), masks, **({"s2": lost} if trains else {}))
        assert "round 2: site-2: EXECUTION_EXCEPTION" in job.said
        trained[trains] = job.said[-1]
    assert trained[True] == trained[False]


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "scaffold"])
def test_masked_updates_give_the_same_bits(nvflare, experiment, tmp_path, method):
    """With a secret at every site, in a file of its owner alone."""
    e = experiment(method)
    masked = replace(e, federation=replace(e.federation, secure_aggregation=True))
    job = served(nvflare, tmp_path / "app", masked)
    assert (job.said[-1], job.reason) == (f"weights sha256 {run(e, tmp_path / 'serial', quiet).checksum}", "")
    files = sorted((tmp_path / "app").rglob("secure.json"))
    assert [path.parent.name for path in files] == ["site-1", "site-2", "site-3", "site-4"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert len({json.loads(path.read_text())["secret"] for path in files}) == 4


def test_a_site_that_is_lost_beside_its_masked_update_costs_that_alone(nvflare, experiment, tmp_path):
    """It gave its keys and shares, and no update; the others' shares open the sum."""
    e = experiment("fedavg", federation={"rounds": 2, "clients_per_round": 0, "quorum": 0.75})
    masked = replace(e, federation=replace(e.federation, secure_aggregation=True))
    without = served(nvflare, tmp_path / "plain", e, s2=failed)
    job = served(nvflare, tmp_path / "app", masked, s2=lambda reply: failed(reply) if "update" in reply else reply)
    assert job.said[-1] == without.said[-1]
    assert [line for line in job.said if "site-2" in line] == [
        f"round {n}: site-2: EXECUTION_EXCEPTION" for n in (1, 2)
    ]


def failed(answer):
    return make_reply("EXECUTION_EXCEPTION")


def test_a_site_that_fails_or_is_silent_is_left_out_as_long_as_the_quorum_answers(nvflare, experiment, tmp_path):
    e = experiment("fedavg", federation={"rounds": 2, "clients_per_round": 0, "quorum": 0.75})
    job = served(nvflare, tmp_path / "one", e, s2=failed)
    assert [line for line in job.said if "site-2" in line] == [
        f"round {n}: site-2: EXECUTION_EXCEPTION" for n in (1, 2)
    ]
    assert job.said[-1].startswith("weights sha256 ")
    job = served(nvflare, tmp_path / "two", e, s2=failed, s4=lambda answer: None)
    assert "round 1: site-4: no answer in time" in job.said
    assert job.reason == "round 1: 2 clients answered, and 3 must (federation.quorum)"


def test_what_is_no_update_costs_its_sender_alone(nvflare, experiment, tmp_path):
    def another(answer):
        nvflare.put(answer, "update", ServerState({}))
        return answer

    def not_finite(answer):
        tensors = {name: torch.full_like(t, np.nan) for name, t in nvflare.load(answer["update"]).items()}
        answer["update"] = nvflare.save(tensors)
        return answer

    def no_file(answer):
        answer["update"] = b"12345678"
        return answer

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.25})
    job = served(nvflare, tmp_path / "app", e, s1=another, s2=not_finite, s3=no_file)
    said = "\n".join(job.said)
    assert "round 1: the message of client 0 is no update: it is a ServerState" in said
    assert "round 1: client 1 is left out: tensor " in said
    assert "round 1: the message of client 2 is no update: " in said
    assert job.said[-1].startswith("weights sha256 ")


def test_a_client_without_a_site_and_an_aborted_job_are_named(nvflare, experiment, tmp_path):
    e = experiment("fedavg")
    job = served(nvflare, tmp_path / "one", e, names=["site-1", "site-2", "site-4"])
    assert job.reason == "no site has the data of client 2: the name of its site ends in 3"
    job = served(nvflare, tmp_path / "same", e, names=["site-1", "site-2", "clinic-2", "site-3", "site-4"])
    assert job.reason == "sites 'site-2' and 'clinic-2' have one number, and train one client: rename one"
    job = served(nvflare, tmp_path / "two", e, names=["site-1", "hospital", "site-3", "site-4"])
    assert job.reason.startswith("site 'hospital' trains no client: ")
    assert served(nvflare, tmp_path / "three", e, triggered=True).reason == "round 1 was aborted"
    assert nvflare.client_of("hospital-12") == 11
    with pytest.raises(InputError, match="trains no client"):
        nvflare.client_of("site-0")
    assert (tmp_path / "one/app/config" / PRESET).exists()


def test_another_task_is_refused(nvflare):
    assert nvflare.AnchorExecutor().execute("validate", Shareable(), None, None).get_return_code() == "TASK_UNKNOWN"
