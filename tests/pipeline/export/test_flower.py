"""A Flower app on stand-ins for Flower's classes, whose messages cross as bytes: the bits of the serial run."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm.contract import ServerState, Update
from anchorfl.pipeline.algorithm.secure_aggregation import SHARE_BYTES
from anchorfl.pipeline.export.apps import write_app
from anchorfl.pipeline.export.secure_exchange import decoded, encoded
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.tasks.errors import InputError
from tests.runs import quiet


class Array:
    """Flower's: the bytes of an array."""

    def __init__(self, array):
        self.dtype, self.shape, self.data = str(array.dtype), array.shape, array.tobytes()

    def numpy(self):
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Message:
    """Flower's, with what a reply has of the message that it answers."""

    def __init__(self, content=None, dst_node_id=0, message_type="", group_id="", reply_to=None, error=None):
        node = reply_to.metadata.dst_node_id if reply_to else 0
        self.content, self.error = content, error
        self.metadata = SimpleNamespace(dst_node_id=dst_node_id, message_type=message_type, src_node_id=node)

    def has_error(self):
        return self.error is not None


class App:
    """Flower's apps: functions by kind of message."""

    def __init__(self):
        self.functions = {}

    def __getattr__(self, kind):
        return lambda: lambda function: self.functions.setdefault(kind, function)


class Grid:
    """Nodes in this process; ``broken``: those that fail; ``changed``: node -> change of its reply; ``lost``: node ->
    stage of a round with secure aggregation at which it says nothing.
    """

    def __init__(self, clients, app, broken=(), changed=None, lost=None):
        self.app, self.broken, self.changed, self.lost = app, broken, changed or {}, lost or {}
        self.timeouts = set()
        self.contexts = {
            100 + client: SimpleNamespace(node_config={"partition-id": client}, state={}) for client in range(clients)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, timeout=None):
        self.timeouts.add(timeout)
        for message in reversed(list(messages)):  # in any order
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if kind == "train" and node in self.broken:
                yield Message(reply_to=message, error=SimpleNamespace(reason="out of order"))
                continue
            stage = message.content.get("about", {}).get("kind", kind)
            if self.lost.get(node) == stage:
                yield Message(reply_to=message, error=SimpleNamespace(reason=f"lost at {stage}"))
                continue
            reply = self.app.functions[kind](message, self.contexts[node])
            yield self.changed.get((node, kind), lambda same: same)(reply)


@pytest.fixture
def flower(monkeypatch):
    """Return the module that runs in Flower, with stand-ins for what it imports."""
    made = {
        "flwr": {}, "flwr.clientapp": {"ClientApp": App}, "flwr.serverapp": {"ServerApp": App, "Grid": Grid},
        "flwr.app": {"Array": Array, "Message": Message, "Context": object}
        | dict.fromkeys(("ArrayRecord", "ConfigRecord", "MetricRecord", "RecordDict"), dict),
    }  # fmt: skip
    for name, members in made.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "anchorfl.pipeline.export.flower", raising=False)
    yield importlib.import_module("anchorfl.pipeline.export.flower")
    sys.modules.pop("anchorfl.pipeline.export.flower", None)


def served(flower, folder, experiment, **grid):
    """Return the lines of a run of an app."""
    said = []
    write_app("flower", folder, "toy", experiment)
    flower.serve(folder, Grid(experiment.task.clients, flower.client_app(folder), **grid), said.append)
    return "\n".join(said).splitlines()


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "scaffold", "moon", "fedrep", "feddyn", "fednh"])
def test_it_gives_the_bits_of_the_serial_run(flower, experiment, tmp_path, method):
    """Also where clients keep something between rounds, or get a message of their own."""
    e = experiment(method)
    alone = run(e, tmp_path / "serial", quiet)
    said = served(flower, tmp_path / "app", e)
    assert said[-1] == f"weights sha256 {alone.checksum}"
    score = f"{100 * alone.scores['test']['f1_macro']:.2f}"
    assert said[-3].startswith(f"test f1_macro {score}")
    assert (tmp_path / "app/model/weights.safetensors").exists()


def test_a_node_that_fails_is_left_out_as_long_as_the_quorum_answers(flower, experiment, tmp_path):
    e = experiment("fedavg", federation={"rounds": 2, "clients_per_round": 0, "quorum": 0.75})
    said = served(flower, tmp_path / "one", e, broken=(101,))
    assert [line for line in said if "node 101" in line] == [f"round {n}: node 101: out of order" for n in (1, 2)]
    with pytest.raises(InputError, match=r"round 1: 2 clients answered, and 3 must \(federation.quorum\)"):
        served(flower, tmp_path / "two", e, broken=(101, 102))


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_an_update_that_is_lost_leaves_no_memory(flower, experiment, tmp_path, monkeypatch, method, masked):
    """Its client goes on with what it kept when the server last heard it, as in a run of AnchorFL."""
    e = experiment(method, federation={"rounds": 3, "clients_per_round": 0, "quorum": 0.75})
    plain = ClientRunner._fit

    def failing(self, round_, call, lane):
        if (call.client, round_) == (1, 2):
            raise OSError("no route to host")
        return (yield from plain(self, round_, call, lane))

    monkeypatch.setattr(ClientRunner, "_fit", failing)
    alone = run(e, tmp_path / "serial", quiet)
    monkeypatch.setattr(ClientRunner, "_fit", plain)
    said = served(flower, tmp_path / "app", secure(e) if masked else e, changed={(101, "train"): lost_at(2)})
    assert "round 2: node 101: no route to host" in said
    assert said[-1] == f"weights sha256 {alone.checksum}"


def lost_at(number):
    """Return what loses the answer that has this number."""
    count = iter(range(1, 1000))

    def lose(reply):
        if next(count) != number:
            return reply
        lost = Message(error=SimpleNamespace(reason="no route to host"))
        lost.metadata.src_node_id = reply.metadata.src_node_id
        return lost

    return lose


def test_a_client_whose_memory_is_gone_says_so(flower, experiment, tmp_path):
    """It does not begin anew in silence: its control variate would be wrong for good."""

    def forget(method):
        e = experiment(method, federation={"rounds": 2, "clients_per_round": 0}, optimizer={"state": "reset"})
        write_app("flower", tmp_path / method, "toy", e)
        grid = Grid(4, flower.client_app(tmp_path / method))
        grid.changed = {(101, "train"): lambda reply: grid.contexts[101].state.clear() or reply}
        flower.serve(tmp_path / method, grid, lambda line: None)

    forget("fedavg")
    with pytest.raises(InputError, match="what client 1 kept in round 1 is gone from this site, and it trains no more"):
        forget("scaffold")


def test_without_validation_rows_and_without_a_test(flower, experiment, tmp_path):
    e = experiment("fedavg", evaluation={"test": "never"})
    said = served(flower, tmp_path / "app", replace(e, task=replace(e.task, validation=0.0)))
    assert sum("no validation rows" in line for line in said) == 3
    assert not any(line.startswith("test ") for line in said)


def test_a_deadline_is_the_timeout_of_a_round(flower, experiment, tmp_path):
    e = experiment("fedavg")
    timed = replace(e, cluster=replace(e.cluster, executor="ray"), federation=replace(e.federation, deadline=2.5))
    write_app("flower", tmp_path / "app", "toy", timed)
    grid, said = Grid(e.task.clients, flower.client_app(tmp_path / "app")), []
    flower.serve(tmp_path / "app", grid, said.append)
    assert grid.timeouts == {None, 2.5}  # which nodes are there is asked without one
    assert said[-1].endswith(f"weights sha256 {run(e, tmp_path / 'serial', quiet).checksum}")


# ---- Secure aggregation.


def secure(e):
    return replace(e, federation=replace(e.federation, secure_aggregation=True))


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "scaffold"])
def test_masked_updates_give_the_same_bits(flower, experiment, tmp_path, method):
    e = experiment(method)
    said = served(flower, tmp_path / "app", secure(e))
    assert said[-1] == f"weights sha256 {run(e, tmp_path / 'serial', quiet).checksum}"


STAGES = ("keys", "shares", "train", "reveal")


@pytest.mark.parametrize("stage", STAGES)
def test_a_node_that_is_lost_at_any_stage_costs_its_own_update_alone(flower, experiment, tmp_path, stage):
    """At the last one its update is in the sum, and the others' shares open it."""
    e = experiment("fedavg", federation={"rounds": 2, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "plain", e, broken=(101,) if stage != "reveal" else ())
    said = served(flower, tmp_path / "secure", secure(e), lost={101: stage})
    assert said[-1] == without[-1]
    assert [line for line in said if "node 101" in line] == [f"round {n}: node 101: lost at {stage}" for n in (1, 2)]


def test_what_is_no_answer_costs_its_sender_alone(flower, experiment, tmp_path):
    def nonsense(reply):
        reply.content["about"]["text"] = '"no shares"' if "text" in reply.content["about"] else ""
        return reply

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "plain", e, broken=(101,))
    said = served(flower, tmp_path / "secure", secure(e), changed={(101, "query"): nonsense})
    assert "round 1: what client 1 says is no answer (keys): " in "\n".join(said)
    assert said[-1] == without[-1]


def test_a_reply_without_its_record_costs_its_sender_alone(flower, experiment, tmp_path):
    """KeyError."""

    def emptied(reply):
        if "text" in reply.content.get("about", {}):
            reply.content.clear()
        return reply

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "plain", e, broken=(101,))
    assert served(flower, tmp_path / "secure", secure(e), changed={(101, "query"): emptied})[-1] == without[-1]
    with pytest.raises(InputError, match="node 101 does not say which client"):
        served(flower, tmp_path / "other", e, changed={(101, "query"): lambda reply: reply.content.clear() or reply})


def test_a_site_that_masks_answers_no_round_without(flower, experiment, tmp_path):
    write_app("flower", tmp_path / "app", "toy", secure(experiment("fedavg")))
    context = SimpleNamespace(node_config={"partition-id": 0}, state={})
    weights, form = flower.record_of(Update({}))
    about = {"secure": "", "round": 1, "merged": 0, flower.SENT: form, flower.TO_IT: form}
    content = {flower.SENT: weights, flower.TO_IT: weights, flower.ABOUT: about}
    with pytest.raises(InputError, match="round 1: asked for an update without masks"):
        flower.fit(tmp_path / "app", content, context)


@pytest.mark.parametrize("keys", [b"12345", bytes(64)], ids=["short", "zeros"])
def test_keys_that_are_none_cost_their_sender_alone(flower, experiment, tmp_path, keys):
    def other(reply):
        if reply.content["about"].get("text", "").startswith('"'):
            reply.content["about"]["text"] = encoded(keys)
        return reply

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "plain", e, broken=(101,))
    said = served(flower, tmp_path / "secure", secure(e), changed={(101, "query"): other})
    assert "round 1: the keys of client 1 are none: " in "\n".join(said)
    assert said[-1] == without[-1]


@pytest.mark.parametrize("value", [b"\x05", b"\x07", b"\x40"])
def test_a_false_share_ends_the_run_and_not_in_weights(flower, experiment, tmp_path, value):
    """Words at random would be the next model. Masks of lost clients have their keys to be checked by; own ones not."""

    def false(reply):
        text = reply.content["about"].get("text", "")
        shares = decoded(text, dict[int, bytes]) if text.startswith("{") else {}
        if shares and len(shares[2]) == SHARE_BYTES:
            reply.content["about"]["text"] = encoded(shares | {2: bytes(SHARE_BYTES - 1) + value})
        return reply

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    why = "what was opened is no sum of 'weights'|the shares give no secret"
    with pytest.raises(InputError, match=f"round 1: .*({why})"):
        served(flower, tmp_path / "secure", secure(e), changed={(100, "query"): false})


@pytest.mark.parametrize("node", [100, 103])
def test_a_masked_update_of_another_form_costs_its_sender_alone(flower, experiment, tmp_path, node):
    """Whether it is the first or the last that comes in."""

    def shorter(reply):
        name = next(name for name, array in reply.content["update"].items() if array.shape)
        reply.content["update"][name] = Array(reply.content["update"][name].numpy()[:1])
        return reply

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "plain", e, broken=(node,))
    said = served(flower, tmp_path / "secure", secure(e), changed={(node, "train"): shorter})
    assert f"round 1: client {node - 100} is left out: tensor " in "\n".join(said)
    assert said[-1] == without[-1]


def test_an_update_without_masks_is_none(flower, experiment, tmp_path):
    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    said = served(flower, tmp_path / "secure", secure(e), changed={(101, "train"): unmasked})
    assert "round 1: the message of client 1 is no update: it is a Update" in said


def unmasked(reply):
    reply.content["about"]["update"] = json.dumps({"is": "Update", "of": {"weights": {"of": {}}}})
    return reply


def test_too_few_nodes_open_no_sum(flower, experiment, tmp_path):
    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.25})
    with pytest.raises(InputError, match="round 1: 2 of 4 clients answered, and 3 must, so that their sum can be open"):
        served(flower, tmp_path / "app", secure(e), lost={101: "train", 102: "train"})
    with pytest.raises(InputError, match="round 1: the sum cannot be opened: 2 of 4 clients gave their shares, and 3"):
        served(flower, tmp_path / "two", secure(e), lost={101: "reveal", 102: "reveal"})


# ---- Nonsense.


def no_update(reply):
    reply.content["about"]["update"] = json.dumps({"is": "ServerState", "of": {"weights": {"of": {}}}})
    return reply


def not_finite(reply):
    for name, array in reply.content["update"].items():
        reply.content["update"][name] = Array(np.full_like(array.numpy(), np.nan))
    return reply


def test_an_update_without_what_the_method_reads_costs_its_sender_alone(flower, experiment, tmp_path):
    """FedAvg's update, where SCAFFOLD's clients send their control variates too."""

    def plain(reply):
        form = json.loads(reply.content["about"]["update"])
        weights_only = {"is": "Update", "of": {"weights": form["of"]["weights"]}}
        reply.content["about"]["update"] = json.dumps(weights_only)
        return reply

    e = experiment("scaffold", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "without", e, broken=(101,))
    lines = served(flower, tmp_path / "plain", e, changed={(101, "train"): plain})
    assert any("the message of client 1 is no update: AttributeError: " in line for line in lines), lines
    assert lines[-1] == without[-1]


@pytest.mark.parametrize("node", [100, 103])  # the last, and the first to come in
@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("control/", lambda array: array.numpy()[:1]),
        ("control/", lambda array: array.numpy().astype(np.float64)),
        ("weights/", None),
    ],
)
def test_an_update_of_another_form_costs_its_sender_alone(flower, experiment, tmp_path, node, part, change):
    """Beside the weights nothing was compared: the run ended, or every honest client was no update."""

    def changed(reply):
        update = reply.content["update"]
        name = next(n for n, array in update.items() if n.startswith(part) and array.shape)
        if change is not None:
            update[name] = Array(change(update[name]))
        else:  # a name that came out as another
            form = json.loads(reply.content["about"]["update"])
            of = form["of"]["weights"]["of"]
            form["of"]["weights"]["of"] = {"/" + key if path == name else key: path for key, path in of.items()}
            reply.content["about"]["update"] = json.dumps(form)
        return reply

    e = experiment("scaffold", federation={"rounds": 2, "clients_per_round": 0, "quorum": 0.75})
    without = served(flower, tmp_path / "without", e, broken=(node,))
    lines = served(flower, tmp_path / "changed", e, changed={(node, "train"): changed})
    assert sum(f"client {node - 100} is left out: " in line for line in lines) == 2, lines
    assert lines[-1] == without[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (no_update, "the message of client 1 is no update: it is a ServerState"),
        (not_finite, "client 1 is left out: tensor "),
        (lambda reply: Message(content={"about": {}, "update": {}}, reply_to=reply), None),
    ],
)
def test_what_is_no_update_costs_its_sender_alone(flower, experiment, tmp_path, change, said):
    def changed(reply):
        out = change(reply)
        out.metadata.src_node_id = 101
        return out

    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 0.75})
    lines = served(flower, tmp_path / "app", e, changed={(101, "train"): changed})
    assert any((said or "the message of client 1 is no update") in line for line in lines), lines
    assert lines[-1].startswith("weights sha256 ")


def test_updates_that_are_refused_count_for_no_quorum(flower, experiment, tmp_path):
    e = experiment("fedavg", federation={"rounds": 1, "clients_per_round": 0, "quorum": 1.0})
    with pytest.raises(InputError, match=r"round 1: 3 clients answered, and 4 must"):
        served(flower, tmp_path / "app", e, changed={(101, "train"): not_finite})


def test_a_client_without_a_node_is_named(flower, experiment, tmp_path):
    def other(reply):
        reply.content["about"]["client"] = 9
        return reply

    with pytest.raises(InputError, match="no node has the data of client 3; each node's partition-id names its client"):
        served(flower, tmp_path / "app", experiment("fedavg"), changed={(103, "query"): other})


def test_two_nodes_with_one_number_are_named(flower, experiment, tmp_path):
    def other(reply):
        reply.content["about"]["client"] = 0
        return reply

    e = experiment("fedavg")
    write_app("flower", tmp_path / "app", "toy", e)
    grid = Grid(5, flower.client_app(tmp_path / "app"), changed={(104, "query"): other})
    with pytest.raises(InputError, match=r"nodes 10[04] and 10[04] both have the data of client 0"):
        flower.serve(tmp_path / "app", grid, lambda line: None)


@pytest.mark.parametrize(
    "form", ["[]", "3", '{"of": []}', '{"of": {"weights": 3}}', '{"of":' * 20_000 + "{}" + "}" * 20_000], ids=len
)
def test_what_is_no_form_is_refused(flower, form):
    with pytest.raises((TypeError, RecursionError)):
        flower.message_of({}, form, METHODS["fedavg"]())


def test_messages_keep_their_form_and_types(flower):
    state = ServerState({"a": torch.arange(3.0), "n": torch.tensor(2)})
    record, form = flower.record_of({"x": state, "y": {}})
    back = flower.message_of(record, form, METHODS["fedavg"]())
    assert (type(back["x"]), back["y"]) == (ServerState, {})
    assert back["x"].weights["n"].dtype == torch.int64
    assert torch.equal(back["x"].weights["a"], torch.arange(3.0))
    with pytest.raises(InputError, match="'Popen', unknown to 'fedavg' here: the versions differ"):
        flower.message_of({}, json.dumps({"is": "Popen", "of": {}}), METHODS["fedavg"]())
    assert isinstance(flower.message_of(*flower.record_of(Update({})), METHODS["moon"]()), Update)
