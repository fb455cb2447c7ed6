"""Networks of other packages: same promises, same bits, saved and read again; refused in one line."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from anchorfl import EncoderSpec, load_model
from anchorfl.models.build import build
from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.plug_in import PlugIn
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.methods import find_method
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.mlmodel import _load_pyfunc
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.tasks.errors import InputError
from anchorfl.testing import check_network, small_experiment
from tests.runs import SMALL, quiet

HERE = __name__
AT_ONCE = {"name": "sgd", "lr": 0.1, "momentum": 0.0, "batch_size": 0}
WHOLE = {"skip_zero_rows": False, "microbatch_tokens": 0, "batch_size": 64}


class Words(nn.Module):
    """Tokens or series, with dropout modules, dropout functions, and a weight that is tied."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.middle = nn.Linear(spec.width, spec.width)
        self.again = nn.Linear(spec.width, spec.width)
        self.again.weight = self.middle.weight
        self.drop = nn.Dropout(spec.dropout)
        self.p = spec.dropout

    def forward(self, x):
        there = (x > 0).unsqueeze(-1)
        z = (self.words(x) * there).sum(1) / there.sum(1).clamp(min=1)
        z = self.drop(self.middle(z).relu())
        return self.again(nn.functional.dropout(z, self.p, self.training))


class Once(Words):
    """The same, whose tied weight has one name."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(spec)
        self.bias = nn.Parameter(self.again.bias.detach())
        del self.again
        self.again = lambda z: nn.functional.linear(z, self.middle.weight, self.bias)


class Shifted(nn.Module):
    """Images, less a mean that travels or stays."""

    def __init__(self, spec: EncoderSpec, travels: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1,), 0.5), persistent=travels)
        self.linear = nn.Linear(spec.shape[0] * spec.shape[1] * spec.shape[2], spec.width)

    def forward(self, x):
        return self.linear((x - self.mean).flatten(1))


def with_mean(spec):
    return Shifted(spec, True)


def with_mean_that_stays(spec):
    return Shifted(spec, False)


def with_doubles(spec):
    network = nn.Sequential(nn.Flatten(), nn.Linear(spec.shape[0] * spec.shape[1] * spec.shape[2], spec.width))
    network.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
    return network


class Pixels(nn.Module):
    """Images, with BatchNorm, whose counter is a whole number, and a buffer of whole numbers of its own."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.conv = nn.Conv2d(spec.shape[0], 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, spec.width)
        self.register_buffer("order", torch.arange(8).flip(0))

    def forward(self, x):
        return self.linear(self.norm(self.conv(x)).relu().mean((2, 3))[:, self.order])


def wrong_width(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.shape[0] * spec.shape[1] * spec.shape[2], 7))


def fails(spec):
    raise RuntimeError("no weights\nand more")


def fails_later(spec):
    return nn.Sequential(nn.Linear(3, spec.width))


def doubles(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, spec.width)).double()


def lazy(spec):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(spec.width))


def complex_(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, spec.width, dtype=torch.complex64))


class Extra(nn.Linear):
    def __init__(self, spec):
        super().__init__(16, spec.width)

    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        pass


class Float64(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.width = spec.width

    def forward(self, x):
        return torch.zeros(len(x), self.width, dtype=torch.float64)


NUMBER = 3


@pytest.mark.parametrize(("name", "data"), [("Words", "toy-single"), ("Pixels", "toy-multi")])
def test_it_keeps_the_contract(tmp_path, name, data):
    """Two runs, a stopped one and forked workers give the same bits, with dropout by torch's global generator."""
    check_network(f"{HERE}:{name}", data, tmp_path)


def test_its_dropout_draws_from_the_clients_generator_alone():
    source = MaskSource()
    net = PlugIn(nn.Dropout(0.5), source)
    x, before = torch.ones(4, 32), torch.random.get_rng_state()
    drawn = []
    for seed in (1, 1, 2):
        source.reseed(torch.Generator().manual_seed(seed))
        torch.rand(7)  # whatever others draw meanwhile
        state = torch.random.get_rng_state()
        drawn.append([net(x), net(x)])
        assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])
    assert torch.equal(net.eval()(x), x)
    torch.random.set_rng_state(before)


def test_a_tied_weight_stays_one(tmp_path):
    result = run(small_experiment("fedavg", model={"network": f"{HERE}:Words", "width": 16}), tmp_path / "run", quiet)
    net = load_model(result.folder / "model").model.encoder.net
    assert net.again.weight is net.middle.weight
    assert not torch.equal(net.again.bias, net.middle.bias)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {}),
        ("scaffold", {"method": {"server_lr": 0.5}, "optimizer": {"name": "sgd", "lr": 0.1}}),
        ("feddyn", {}),
        ("anchor", {}),
        ("fedaws", {"method": {"server": "adam"}}),
        ("fedaws", {"federation": {"batched_clients": True, "epochs": 1}, "optimizer": AT_ONCE}),
    ],
)
def test_two_names_of_a_weight_change_no_bit(tmp_path, method, options):
    """Servers that step by parameters know the first name alone."""
    made, weights = find_method(method)(**options.pop("method", {})), []
    for network in ("Words", "Once"):
        e = small_experiment(made, model={"network": f"{HERE}:{network}", "width": 16}, **options)
        weights.append(load_model(run(e, tmp_path / network, quiet).folder / "model").model.state_dict())
    tied, once = weights
    assert torch.equal(tied["encoder.net.again.weight"], tied["encoder.net.middle.weight"])
    assert tied.keys() - once.keys() == {"encoder.net.again.weight", "encoder.net.again.bias"}
    assert all(torch.equal(tied[name], value) for name, value in once.items() if name in tied)
    assert torch.equal(tied["encoder.net.again.bias"], once["encoder.net.bias"])


def frozen(spec):
    """A network whose first layer its author has frozen."""
    network = Words(spec)
    network.words.requires_grad_(False)
    network.middle.weight.requires_grad_(False)  # it has two names
    return network


def test_what_a_network_freezes_stays(tmp_path):
    """All parameters were trained."""
    e = small_experiment("scaffold", model={"network": f"{HERE}:frozen", "width": 16}, optimizer=WHOLE)
    first = make_run_spec(e, quiet).model().state_dict()
    free = small_experiment("scaffold", model={"network": f"{HERE}:Words", "width": 16}, optimizer=WHOLE)
    run(e, tmp_path / "run", quiet)
    last = load_model(tmp_path / "run" / "model").model.state_dict()
    assert last.keys() == make_run_spec(free, quiet).model().state_dict().keys()
    stays = {name for name in last if torch.equal(last[name], first[name])}
    assert stays == {f"encoder.net.{name}.weight" for name in ("words", "middle", "again")}


def test_what_is_frozen_does_not_travel_with_adapters():
    model = {"network": f"{HERE}:frozen", "width": 16, "lora_rank": 2}
    e = small_experiment("fedavg", model=model, optimizer=WHOLE)
    assert "encoder.net.words.weight" not in make_run_spec(e, quiet).model().state_dict()


def test_noise_is_not_for_buffers_that_travel():
    private = {"clip_norm": 1.0, "dp_noise": 1.0, "clients_per_round": 0}
    for network, travels in (("with_mean", True), ("with_mean_that_stays", False)):
        e = small_experiment(FedAvg(weighting="uniform"), "toy-multi", model={"network": f"{HERE}:{network}"},
                             federation=private, optimizer=WHOLE)  # fmt: skip
        if travels:
            with pytest.raises(
                InputError, match=r"encoder\.net\.mean is no parameter: register it with persistent=False"
            ):
                make_run_spec(e, quiet)
        else:
            make_run_spec(e, quiet)


def test_masked_sums_are_of_numbers_of_32_bits():
    """Round 1 ended, and said that an earlier round had broken the model."""
    masked = {"secure_aggregation": True}
    e = small_experiment("fedavg", "toy-multi", model={"network": f"{HERE}:with_doubles"}, federation=masked)
    with pytest.raises(
        InputError, match=r"is for numbers of 32 bits, and encoder\.net\.seen is float64: make it float32"
    ):
        make_run_spec(e, quiet)


def test_a_weight_file_is_where_it_starts(tmp_path):
    """Of a run's whole classifier, or of the network alone; names are those that the network has by itself."""
    e = small_experiment("fedavg", model={"network": f"{HERE}:Words", "width": 16})
    first = run(e, tmp_path / "first", quiet)
    start = str(first.folder / "model" / "weights.safetensors")
    second = small_experiment("fedavg", model={"network": f"{HERE}:Words", "width": 16, "weights": start}, seed=2,
                              federation={"rounds": 1, "epochs": 1}, optimizer={"lr": 1e-30})  # fmt: skip
    got = load_model(run(second, tmp_path / "second", quiet).folder / "model").model
    assert torch.equal(got.encoder.net.words.weight, load_model(first.folder / "model").model.encoder.net.words.weight)


def test_it_is_recorded_and_part_of_the_digest(tmp_path):
    e = small_experiment("fedavg", model={"network": f"{HERE}:Words"})
    assert digest(e) != digest(small_experiment("fedavg"))
    run(e, tmp_path / "run", quiet)
    assert read_metadata(tmp_path / "run")["tags"]["network_plugin"].startswith(f"{HERE}:Words, sha256 ")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Nothing", "has no 'Nothing'"),
        ("NUMBER", "a int, and no class or function that makes an encoder"),
        ("quiet", "gives a NoneType, and no torch.nn.Module"),
        ("fails", "making it failed (RuntimeError: no weights)"),
        ("lazy", "1.weight has no size yet: take a layer that is given its size, such as nn.Linear in place"),
        ("complex_", "1.weight is torch.complex64: keep its real and imaginary parts as two tensors"),
        ("Extra", "_extra_state of its state_dict is a dict, and only tensors travel: leave get_extra_state out"),
        ("wrong_width", "gives (2, 7) for 2 rows, and not (rows, model.width), which is (2, 16)"),
        ("fails_later", "of kind 'image' and shape (2, 1, 4, 4) failed (RuntimeError: mat1 and mat2"),
        ("Float64", "gives torch.float64, and not torch.float32"),
        ("Words", "of kind 'image' and shape (2, 1, 4, 4) failed (RuntimeError: Expected tensor"),
    ],
)
def test_one_that_does_not_fit_is_one_line(tmp_path, name, line):
    e = small_experiment("fedavg", "toy-multi", model={"network": f"{HERE}:{name}", "width": 16}, optimizer=WHOLE)
    with pytest.raises(InputError) as caught:
        run(e, tmp_path / "run", quiet)
    assert line in str(caught.value)
    assert f"network = '{HERE}:{name}'" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"optimizer": {"skip_zero_rows": True, "microbatch_tokens": 0}}, "has BatchNorm"),
        ({"optimizer": WHOLE | {"precision": "bfloat16"}}, "optimizer.onednn and precision are for AnchorFL's own"),
        ({"optimizer": WHOLE, "federation": {"stack": 2}}, "federation.stack = 2 needs another network than"),
        (
            {"optimizer": WHOLE, "federation": {"secure_aggregation": True}},
            "are not for whole numbers such as BatchNorm's counters",
        ),
    ],
)
def test_options_that_do_not_fit_are_one_line(tmp_path, sections, line):
    with pytest.raises(InputError, match=line):
        run(small_experiment("fedavg", "toy-multi", model={"network": f"{HERE}:Pixels"}, **sections), tmp_path, quiet)


def test_noise_does_not_cover_counters(tmp_path):
    e = small_experiment("fedavg", "toy-multi", model={"network": f"{HERE}:Pixels"}, optimizer=WHOLE)
    noisy = replace(e.federation, dp_noise=1.0, clip_norm=1.0)
    with pytest.raises(InputError, match=r"not for whole numbers .* \(encoder\.net\.order\): choose"):
        run(replace(e, method=replace(e.method, weighting="uniform"), federation=noisy), tmp_path, quiet)


def test_a_misspelt_name_is_one_line(capsys):
    assert main(["run", "digits/fedavg", "--model.network", "resnet81"]) == 2
    assert "no network 'resnet81' in [model] network (did you mean 'resnet8'?)" in capsys.readouterr().err
    assert main(["run", "digits/fedavg", "--model.network", f"{HERE}:Pixels", "--model.heads", "3"]) == 2
    assert "--model.heads does nothing here" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no network of that name"):
        build(ModelOptions(network="mine:Net"), input_kind="image", shape=(1, 4, 4), vocabulary=0, classes=2,
              head="linear", unit=False, vectors_CP=None, seed=0)  # fmt: skip


def test_a_model_of_others_imports_nothing(tmp_path, monkeypatch, capsys):
    """``predict`` and ``load_model`` run the module of a model that this user trained, or named; MLflow any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = "from pathlib import Path\nimport tests.pipeline.training.test_plugin_networks as t\nPath('ran').touch()\n"
    (tmp_path / "their_net.py").write_text(source + "Net = t.Pixels\n")
    options = ["--optimizer.skip_zero_rows", "False", "--optimizer.microbatch_tokens", "0"]
    words = ["run", "digits/fedavg", "--model.network", "their_net:Net", "--method.weighting", "uniform", *options]
    assert main([*words, *SMALL, "--output", "out"]) == 0
    (tmp_path / "in.csv").write_text(",".join(map(str, range(64))) + "\n" + ",".join(["1"] * 64) + "\n")
    assert main(["predict", "out", "in.csv"]) == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    del sys.modules["their_net"]
    (tmp_path / "ran").unlink()
    capsys.readouterr()
    assert main(["predict", "out", "in.csv"]) == 2
    err = capsys.readouterr().err
    assert "was not written by you on this machine, and names model.network = 'their_net:Net'" in err
    with pytest.raises(InputError, match=r"model\.network"):
        load_model("out/model", "os:system")
    assert not (tmp_path / "ran").exists()
    assert main(["predict", "out", "in.csv", "--model.network", "their_net:Net"]) == 0
    assert load_model("out/model", "their_net:Net").class_names[0] == "zero"
    assert _load_pyfunc("out/model").saved.class_names[0] == "zero"
    record = json.loads((tmp_path / "out/model/model.json").read_text())
    record["model"]["network"] = "resnet8"
    (tmp_path / "out/model/model.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"does not fit weights\.safetensors"):
        load_model("out/model")
    del sys.modules["their_net"]


def test_a_model_whose_network_was_edited_says_so(tmp_path, monkeypatch):
    """It may compute something else with the weights of before."""
    monkeypatch.syspath_prepend(tmp_path)
    text = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layer = nn.Linear(64, spec.width)
    def forward(self, x):
        return self.layer(x.flatten(1)).relu()
"""
    (tmp_path / "edited_net.py").write_text(text)
    e = small_experiment(
        "fedavg",
        "digits",
        task={"classes_per_client": 5},
        model={"network": "edited_net:Net", "width": 8},
        optimizer=WHOLE,
    )
    folder = run(e, tmp_path / "run", quiet).folder / "model"
    load_model(folder)
    (tmp_path / "edited_net.py").write_text(text.replace("relu", "tanh"))
    importlib.reload(sys.modules["edited_net"])
    with pytest.warns(UserWarning, match="the source or files of its network were edited since the model"):
        load_model(folder)
