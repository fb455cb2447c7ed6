"""Low-rank adapters: the first pass is the network's own, and what is frozen neither changes nor travels."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, ResNetConfig

from anchorfl import EncoderSpec, load_model
from anchorfl.models.adapters import LowRank, add_adapters, frozen_of
from anchorfl.models.encoders.libraries import make
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment, stopped_before
from tests.pipeline.training.test_plugin_networks import Words
from tests.runs import quiet

SPEC = EncoderSpec("tokens", (12,), 30, 16, 0.0)
WORDS = f"{Words.__module__}:Words"
HERE = __name__


class Attention(nn.Module):
    """torch's own layer takes the weights of its linear layers past them, in evaluation by one fused call."""

    def __init__(self, spec):
        super().__init__()
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.layer = nn.TransformerEncoderLayer(spec.width, 2, 8, dropout=0.0, batch_first=True)
        self.norm = nn.BatchNorm1d(spec.width)

    def forward(self, x):
        return self.norm(self.layer(self.words(x)).mean(1))


@pytest.mark.parametrize("net", [Words, Attention, "bert"])
def test_the_first_pass_is_the_networks_own(tmp_path, net):
    """Bit for bit; and where B is not 0, evaluation and training see the same change."""
    if net == "bert":
        BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                   hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).save_pretrained(tmp_path)  # fmt: skip
        net = make("hf", str(tmp_path), SPEC)
    else:
        net = net(SPEC)
    x = torch.tensor([[5, 6, 7, 2, 1], [1, 2, 3, 4, 5]])
    with torch.no_grad():  # torch's own attention takes another kernel where gradients are wanted
        before = net.eval()(x)
        add_adapters(net, 3)
        assert torch.equal(net(x), before)
    low = [m for m in net.modules() if isinstance(m, LowRank)]
    with torch.no_grad():
        for adapter in low:
            adapter.b.normal_()
        changed = net(x)
    assert not torch.allclose(changed, before)
    for part in net.modules():
        part.training = not isinstance(part, nn.BatchNorm1d)
    assert torch.allclose(net(x), changed, atol=1e-5)
    trained = {id(p) for adapter in low for p in adapter.parameters()}
    if isinstance(getattr(net, "net", None), BertModel):
        trained.add(id(net.net.get_input_embeddings().weight))  # the task's own
    assert {id(p) for p in net.parameters()} == trained


def test_adapters_head_and_norm_statistics_travel_alone():
    e = small_experiment("fedavg", model={"network": f"{HERE}:Attention", "width": 16, "lora_rank": 2},
                         optimizer={"skip_zero_rows": False, "microbatch_tokens": 0})  # fmt: skip
    run_spec = make_run_spec(e, quiet)
    model, again = run_spec.model(), run_spec.model()
    for name in weights_of(model):
        assert ".parametrizations.weight.0." in name or name.startswith("head.") or ".net.norm." in name, name
    assert "encoder.net.norm.running_mean" in weights_of(model)
    assert "encoder.net.norm.weight" not in weights_of(model)
    frozen = frozen_of(model)
    assert {"encoder.net.words.weight", "encoder.net.norm.weight"} <= frozen.keys()
    assert messages.checksum(frozen) == messages.checksum(frozen_of(again))


def test_frozen_weights_stay_and_messages_are_smaller(tmp_path):
    sent = dict[int, float]()
    for rank in (0, 2):
        e = small_experiment("fedavg", model={"network": WORDS, "width": 16, "lora_rank": rank})
        run_spec = make_run_spec(e, quiet)
        result = run(e, tmp_path / str(rank), quiet)
        rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
        sent[rank] = rows[-1]["metrics"]["communication/upload_bytes"]
        first = run_spec.model()
        assert sent[rank] == messages.nbytes(weights_of(first)) * e.selected_clients
    assert sent[2] < sent[0] / 2
    saved = load_model(tmp_path / "2/model").model
    frozen, start = frozen_of(saved), frozen_of(first)
    assert frozen.keys() == start.keys()
    assert all(torch.equal(value, start[name]) for name, value in frozen.items())
    assert saved.encoder.net.middle.parametrizations.weight[0].b.abs().max() > 0
    assert saved.encoder.net.again.parametrizations.weight[0] is saved.encoder.net.middle.parametrizations.weight[0]
    assert read_metadata(tmp_path / "2")["tags"]["frozen_digest"] == messages.checksum(start)
    (tmp_path / "2/model/frozen.safetensors").write_bytes((tmp_path / "2/model/weights.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"frozen\.safetensors does not have the checksum"):
        load_model(tmp_path / "2/model")


def test_a_run_does_not_go_on_with_other_frozen_weights(tmp_path):
    files = [run(small_experiment("fedavg", model={"network": WORDS, "width": 16}, seed=seed,
                                  federation={"rounds": 1}), tmp_path / str(seed), quiet).folder
             / "model/weights.safetensors" for seed in (1, 2)]  # fmt: skip
    e = small_experiment("fedavg", model={"network": WORDS, "width": 16, "lora_rank": 2, "weights": str(files[0])})
    with stopped_before(2):
        run(e, tmp_path / "run", quiet)
    files[0].write_bytes(files[1].read_bytes())
    with pytest.raises(InputError, match="its frozen weights are others now"):
        resume(tmp_path / "run", quiet)


def test_one_without_linear_layers_is_refused(tmp_path):
    ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic").save_pretrained(tmp_path)
    model = {"network": f"hf:{tmp_path}", "width": 8, "lora_rank": 2}  # its layer to the width is the task's
    with pytest.raises(InputError, match=r"has no linear layer \(torch\.nn\.Linear\) for an adapter"):
        run(small_experiment("fedavg", "toy-multi", model=model), tmp_path / "run", quiet)
    with pytest.raises(ValueError, match=r"model\.lora_rank = 2 is for networks of libraries and plug-ins"):
        small_experiment("fedavg", model={"lora_rank": 2})
    with pytest.raises(ValueError, match="must be at least 0"):
        small_experiment("fedavg", model={"lora_rank": -1})
