"""A language model as FedAlign's label encoder: of it adapters and a linear layer are trained, and travel."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertModel

from anchorfl import load_model
from anchorfl.models.adapters import LowRank, frozen_of
from anchorfl.models.errors import NamesError
from anchorfl.models.heads import LabelHead
from anchorfl.models.label_encoder import LabelEncoderSpec, LanguageHead, encoded_once
from anchorfl.models.language import from_language_model
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import mean_of
from anchorfl.pipeline.algorithm.contract import ClientResult
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.idle_options import check_idle
from anchorfl.pipeline.methods.fedalign import AlignState, AlignUpdate, FedAlign
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.tasks.contract import Card
from anchorfl.tasks.errors import InputError
from anchorfl.testing import check_experiment, small_experiment, stopped_before
from tests.runs import quiet
from tests.tiny_bert import WIDTH, saved_bert, without_library

NAMES = ("engine", "fruit", "music", "river")
PROMPTS = ("{name}", "a photo of {name} .")
RANK, D = 2, 16
ADAPTERS = 2 * ((4 * (WIDTH + WIDTH) + 2 * (WIDTH + 16)) * RANK)
"""Numbers in the adapters of the two layers of the tiny BERT: four square linear layers and two of the feed-forward."""


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Return the folder of a tiny BERT that knows the names, to be read only."""
    return saved_bert(tmp_path_factory.mktemp("names-bert"), words=NAMES)


def head_of(bert, seed=3, **changed):
    spec = LabelEncoderSpec(str(bert), NAMES, PROMPTS, "auto", True, RANK)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return LanguageHead(replace(spec, **changed), D, unit=True)


def small(bert, method="fedalign", task="toy-single", *, embeddings=None, **sections):
    names = {"init": "language_model", "encoder": str(bert), "prompts": " | ".join(PROMPTS), "lora_rank": RANK}
    return small_experiment(method, task, class_embeddings=names | (embeddings or {}), **sections)


def drawn(head):
    """Draw the adapters' B, which are 0 at first, and return the adapters."""
    low, generator = [m for m in head.modules() if isinstance(m, LowRank)], torch.Generator().manual_seed(1)
    with torch.no_grad():
        for adapter in low:
            adapter.b.normal_(std=0.3, generator=generator)
    return low


@pytest.mark.parametrize("changed", [{}, {"normalize": False}, {"pooling": "first"}])
def test_at_first_classes_are_the_vectors_of_the_model_times_the_linear_layer(bert, changed):
    """Also in training: the model's dropout stays off."""
    head = head_of(bert, **changed).train()
    options = {"normalize": True, "pooling": "auto"} | changed
    vectors_CP = from_language_model(NAMES, model=str(bert), prompts=PROMPTS, cache=None, **options).vectors_CD.numpy()
    weight_DP, bias_D = (p.detach().numpy() for p in head.project.parameters())
    np.testing.assert_allclose(head.classes().detach().numpy(), vectors_CP @ weight_DP.T + bias_D, rtol=0, atol=2e-6)
    assert torch.pdist(head.classes()).min() > 1e-4
    assert torch.equal(head.classes(), head.classes())
    z_BD = torch.randn(3, D)
    assert torch.allclose(head(z_BD), z_BD @ F.normalize(head.classes(), dim=1).T)
    drawn(head)
    moved = np.abs(head.classes().detach().numpy() - (vectors_CP @ weight_DP.T + bias_D)).max()
    assert moved > 0.02


def test_gradients_reach_adapters_and_linear_layer_alone_and_are_those_of_plain_torch(bert):
    """transformers' own BERT with ``W + B A`` in place of W, one sentence at a time, is differentiated by torch."""
    head = head_of(bert)
    drawn(head)
    target_CD = torch.randn(len(NAMES), D)
    (head.classes() * target_CD).sum().backward()
    got = {name: p.grad for name, p in head.named_parameters()}
    assert sum(p.numel() for p in head.parameters()) == ADAPTERS + WIDTH * D + D
    assert head.state_dict().keys() == got.keys()

    plain, tokenizer = BertModel.from_pretrained(bert).eval(), AutoTokenizer.from_pretrained(bert)
    values = {name: p.detach().clone().requires_grad_() for name, p in head.named_parameters()}
    weights = {name: p.detach() for name, p in plain.named_parameters()}
    for name in weights:
        place = f"net.{name.removesuffix('.weight')}.parametrizations.weight.0."
        if f"{place}a" in values:
            weights[name] = weights[name] + values[f"{place}b"] @ values[f"{place}a"]
    rows = []
    for name in NAMES:
        texts = [tokenizer(prompt.replace("{name}", name), return_tensors="pt") for prompt in PROMPTS]
        states = [torch.func.functional_call(plain, weights, (), dict(text)).last_hidden_state[0] for text in texts]
        mean_P = sum(F.normalize(state_LP.mean(0), dim=0) for state_LP in states) / len(PROMPTS)
        rows.append(values["project.weight"] @ mean_P + values["project.bias"])
    (torch.stack(rows) * target_CD).sum().backward()
    for name, value in values.items():
        torch.testing.assert_close(got[name], value.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert all(got[name].abs().max() > 0 for name in got)


def test_names_are_encoded_once_for_all_passes_of_a_step(bert):
    """With the same gradients as in each; without gradients where the head is frozen, and anew behind the block."""
    head, calls = head_of(bert), list[int]()
    drawn(head)
    head.net.register_forward_hook(lambda *_: calls.append(1))
    parts = torch.randn(3, 5, D)
    grads = list[list[torch.Tensor]]()
    for block in (False, True):
        head.zero_grad()
        calls.clear()
        if block:
            with encoded_once(head):
                for z_BD in parts:
                    head(z_BD).square().sum().backward()
        else:
            for z_BD in parts:
                head(z_BD).square().sum().backward()
        assert len(calls) == (1 if block else 3)
        grads.append([p.grad.clone() for p in head.parameters()])
    for once, each in zip(*grads, strict=True):
        torch.testing.assert_close(once, each, rtol=1e-4, atol=1e-5)
    head.requires_grad_(False)
    with encoded_once(head):
        assert not head.classes().requires_grad
    calls.clear()
    head.classes()
    assert calls == [1]


def test_a_client_encodes_once_per_turn_of_a_step(bert):
    """And once to annotate; a mini-batch has several passes, and weights are scored by one encoding for all rows."""
    e = small(bert, optimizer={"microbatch_tokens": 32, "lr": 0.01, "batch_size": 16})
    runner, calls = ClientRunner(make_run_spec(e, quiet)), list[int]()
    runner.model.head.net.register_forward_hook(lambda *_: calls.append(1))
    sent = e.method.begin(SimpleNamespace(model=runner.model))
    runner.fit(0, 1, sent, {})
    rows = runner.all_cards[0].num_examples
    assert len(calls) == 1 + 2 * e.federation.epochs * -(-rows // 16)
    calls.clear()
    runner.scoring.scores(runner.model, ["test"])
    assert calls == [1]


def test_the_server_averages_adapters_like_theta():
    """Over the clients with a labeled row, and not class by class; here by NumPy."""
    rng, method = np.random.default_rng(0), FedAlign()
    names = ("encoder.w", "head.net.b", "head.project.weight")
    sent = [{n: torch.tensor(rng.normal(size=(2, 3)), dtype=torch.float32) for n in names} for _ in range(3)]
    cards = [
        Card(client, 4, torch.tensor([float(client != 1), 0.0]), torch.tensor([client != 1, False]))
        for client in range(3)
    ]
    results = [
        ClientResult(card, AlignUpdate(weights, torch.zeros(0, dtype=torch.bool)))
        for card, weights in zip(cards, sent, strict=True)
    ]
    merged = method.aggregate(AlignState(sent[1], torch.zeros(0)), results, SimpleNamespace(average=mean_of)).weights
    assert merged.keys() == set(names)
    for name in names:
        want = np.mean([sent[k][name].double().numpy() for k in (0, 2)], axis=0)
        np.testing.assert_allclose(merged[name].numpy(), want, rtol=0, atol=1e-6)


def test_a_round_sends_adapters_linear_layer_and_theta_and_the_model_is_used_without_the_language_model(
    bert, tmp_path, monkeypatch
):
    place = shutil.copytree(bert, tmp_path / "bert")
    e = small(place, federation={"rounds": 1})
    run_spec = make_run_spec(e, quiet)
    model, result = run_spec.model(), run(e, tmp_path / "run", quiet)
    theta = sum(value.nbytes for value in model.encoder.state_dict().values())
    row = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert row["communication/upload_bytes"] == e.selected_clients * (theta + 4 * (ADAPTERS + WIDTH * D + D))
    assert run_spec.vectors_CP is None
    tags = read_metadata(result.folder)["tags"]
    assert tags["frozen_digest"] == messages.checksum(frozen_of(model))
    assert tags["label_encoder_plugin"].startswith(f"{place} of transformers==")
    shutil.rmtree(place)
    without_library(monkeypatch)
    saved = load_model(result.folder / "model")
    assert isinstance(saved.model.head, LabelHead)
    weights = load_file(result.folder / "model/weights.safetensors")
    assert weights.keys() == weights_of(model).keys()
    model.load_state_dict(weights)
    x = torch.tensor([[5, 6, 7, 2, 1], [1, 2, 3, 4, 5]], dtype=torch.int32)
    assert torch.equal(saved.model(x), model.eval()(x))
    vectors = result.folder / "model/class_vectors.safetensors"
    vectors.write_bytes((result.folder / "model/weights.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"class_vectors\.safetensors does not have the checksum"):
        load_model(result.folder / "model")


def test_files_of_the_model_are_part_of_the_experiment(bert, tmp_path):
    place = shutil.copytree(bert, tmp_path / "bert")
    e = small(place, federation={"rounds": 2})
    before = digest(e)
    assert before != digest(small(place, embeddings={"lora_rank": 0}, federation={"rounds": 2}))
    with stopped_before(2):
        run(e, tmp_path / "run", quiet)
    saved_bert(place, seed=6, words=NAMES)
    assert digest(e) != before
    with pytest.raises(InputError, match="the source or files of its label encoder were edited since it began"):
        resume(tmp_path / "run", quiet)
    (place / "vocab.txt").unlink()
    (place / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no safetensors weights beside its config"):
        digest(e)
    with pytest.raises(InputError, match="nothing is downloaded: fetch it first"):
        digest(small("nobody/nothing"))


def test_rank_0_is_a_table_of_first_vectors(bert):
    run_spec = make_run_spec(small(bert, embeddings={"lora_rank": 0}), quiet)
    assert "head.table" in run_spec.model().state_dict()
    assert run_spec.vectors().keys() == {"names_digest"}


@pytest.mark.parametrize("optimizer", [{"onednn": True}, {"precision": "bfloat16"}])
def test_other_arithmetic_leaves_the_language_model_in_float32(bert, tmp_path, optimizer):
    e = small(bert, federation={"rounds": 1}, optimizer=optimizer)
    model = make_run_spec(e, quiet).model()
    assert model.head.classes().dtype == torch.float32
    assert torch.equal(model.head.classes(), make_run_spec(small(bert), quiet).model().head.classes())
    assert run(e, tmp_path / "run", quiet).scores["test"]["accuracy"] > 0


def test_what_does_not_go_together_is_one_line(bert, tmp_path):
    with pytest.raises(ValueError, match=r"class_embeddings\.lora_rank = -1: must be at least 0"):
        small(bert, embeddings={"lora_rank": -1})
    with pytest.raises(ValueError, match=r"init = 'random': set that to 'language_model'"):
        small(bert, embeddings={"init": "random"})
    for other in ({"pooling": "projected"}, {"encoder": "open_clip:ViT-B-32@laion2b"}):
        with pytest.raises(ValueError, match="is for transformers models with pooling 'mean' or 'first'"):
            small(bert, embeddings=other)
    with pytest.raises(ValueError, match=r"is for a method with a label encoder \(fedalign\), and 'fedavg' has none"):
        small(bert, "fedavg")
    with pytest.raises(ValueError, match=r"of which method\.semantic = False makes no use: set one of the two"):
        small(bert, FedAlign(semantic=False))
    with pytest.raises(InputError, match=r"federation\.stack = 2 needs class_embeddings\.lora_rank = 0"):
        run(
            small(bert, federation={"stack": 2}, optimizer={"microbatch_tokens": 0, "batch_size": 16}),
            tmp_path / "run", quiet,
        )  # fmt: skip
    with pytest.raises(InputError, match=r"--method\.aggregate_pseudo does nothing here, it belongs to"):
        check_idle(["method.aggregate_pseudo"], [small(bert, FedAlign(aggregate_pseudo=True))])
    with pytest.raises(NamesError, match="a prompt has 19 tokens, it takes 16; shorten it"):
        head_of(bert, prompts=("a " * 16 + "{name}",))


def test_bits_are_the_same_everywhere(bert, tmp_path):
    """Two runs, a stopped one and forked workers; ``tests/ray/test_executors.py`` has Ray's actors."""
    check_experiment(small(bert, federation={"rounds": 2, "epochs": 1}), tmp_path, ray=False)
