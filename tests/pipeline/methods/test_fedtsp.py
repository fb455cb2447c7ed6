"""FedTSP: its limits, its loss and rounds against NumPy, what it sends, and the server's text encoder.

Oracle, from the authors' code (Wu et al., 2025): with t_c the text prototype of class c, h the head's logits and s the
trained logarithm of a scale, a client trains CE(h(z), y) + lambda_ CE(exp(s) cos(z, t), y), and then sends the mean of
z over its rows of each class. Server: u_c, the plain mean over the participants that have class c, stays without any;
then steps of gradient descent on prompts and s, for the mean over classes of CE(exp(s) cos(u_c, t), c).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientResult
from anchorfl.pipeline.config.experiment import digest, plugins_of
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedtsp import FedTSP
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.local_training import TrainingSpec, fit
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment, stopped_before
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, C, D, arrays, assert_close, base_loss, elsewhere, encode, logits, slope
from tests.pipeline.methods.test_fedproto import client_of
from tests.runs import quiet
from tests.tiny_bert import saved_bert, transformers_or_skip

K, P = 2, 5
WHOLE = replace(compared.WHOLE, state="reset")


class Texts:
    """A text encoder that NumPy computes: tanh of a prompt's sum and the class's own vector."""

    width, state_width, length = P, P, K
    words_SLP = torch.zeros(1)
    blocks = (slice(0, C),)
    own_CP = torch.from_numpy(np.random.default_rng(8).normal(size=(C, P)))

    def __call__(self, prompt_CKP, classes=None):
        return torch.tanh(prompt_CKP.sum(1) + self.own_CP[classes or slice(None)])


def prototypes(prompt_CKP, map_PD):
    return np.tanh(prompt_CKP.sum(1) + Texts.own_CP.numpy()) @ map_PD


def server(cards):
    return replace(compared.server(compared.dense(), cards), texts=Texts())


def state_of(cards, seed=4):
    """Return a first state in float64."""
    state = FedTSP(prompt_length=K).begin(server(cards))
    rng = np.random.default_rng(seed)
    prompt, map_PD = torch.from_numpy(rng.normal(size=(C, K, P))), state.map_PD.double()
    text_CD = Texts()(prompt) @ map_PD
    return replace(state, prompt_CKP=prompt, map_PD=map_PD, log_scale=torch.tensor(1.1).double(), text_CD=text_CD)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def text_loss(w, data, text_CD, log_scale):
    s_NC = np.exp(log_scale) * unit(encode(w, data.x.numpy())) @ unit(text_CD).T
    return base_loss("single", s_NC, data)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_text_prototypes_it_is_fedavg_bit_for_bit(experiment, weighting):
    e = experiment("fedtsp", options={"lambda_": 0.0, "weighting": weighting})
    plain = compared.history(replace(e, method=FedAvg(weighting=weighting)))
    compared.assert_same_bits(compared.history(e), plain)
    drawn = compared.history(replace(e, method=replace(e.method, lambda_=1.0)))
    assert messages.checksum(drawn[0][0]) != messages.checksum(plain[0][0])


def test_loss_and_gradient_equal_numpy():
    """Rows without a label have no part; the mini-batch comes in two pieces."""
    state = state_of([client_of(1)[0]])
    local, micro_batches = compared.started(FedTSP(lambda_=0.7), state=state)
    local.model.load_state_dict(elsewhere(state.weights))
    data, text_CD, log_scale = local.ctx.data, state.text_CD.numpy(), float(state.log_scale)

    def whole(w):
        first = base_loss("single", logits(w, data.x.numpy()), data)
        return first + 0.7 * text_loss(w, data, text_CD, log_scale)

    compared.assert_gradient(local, micro_batches, whole)


def test_four_rounds_equal_numpy():
    """3 clients with classes 01, 12 and 23, of which some take part; class 3 has no mean before round 3."""
    method, selected = FedTSP(lambda_=0.7, prompt_length=K, prompt_steps=3, prompt_lr=0.2), [(0,), (0, 1), (1, 2), (0,)]
    clients = [client_of(i) for i in range(3)]
    ctx = server([card for card, _ in clients])
    state, training = state_of(ctx.cards), TrainingSpec(method, Objective("single"), WHOLE, 2, 3)
    w = arrays(state.weights)
    at = arrays({"prompt": state.prompt_CKP, "scale": state.log_scale, "map": state.map_PD})
    rows, held = np.zeros((C, D)), set()
    for round_, chosen in enumerate(selected, 1):
        results, means, ends = [], {c: [] for c in range(C)}, []
        sent = method.broadcast(state, ctx)
        text_CD = prototypes(at["prompt"], at["map"])
        for i in chosen:
            card, data = clients[i]
            results.append(ClientResult(card, fit(training, compared.dense(), card, data, sent, {}, round_).update))
            x, own = data.x.numpy(), w

            def whole(w, data=data, x=x, text_CD=text_CD, log_scale=float(at["scale"])):
                return base_loss("single", logits(w, x), data) + 0.7 * text_loss(w, data, text_CD, log_scale)

            for _ in range(2):
                g = slope(whole, own)
                own = {name: value - WHOLE.lr * g[name] for name, value in own.items()}
            ends.append(own)
            for c in range(C):
                if of_class := [n for n in range(len(x)) if data.y_NC[n, c] == 1]:
                    means[c].append(encode(own, x[of_class]).mean(0))
        w = {name: np.mean([own[name] for own in ends], axis=0) for name in w}  # as many rows everywhere
        for c in range(C):
            if means[c]:
                rows = np.concatenate([rows[:c], np.mean(means[c], axis=0)[None], rows[c + 1 :]])
                held.add(c)

        have = sorted(held)

        def aim(at, rows=rows, held=have):
            s_HC = np.exp(at["scale"]) * unit(rows[held]) @ unit(prototypes(at["prompt"], at["map"])).T
            return -np.mean([np.log(compared.softmax(s_HC)[i, c]) for i, c in enumerate(held)])

        before = aim(at)
        for _ in range(3):
            g = slope(aim, at)
            at = {name: np.asarray(value - 0.2 * g[name]) for name, value in at.items()}
        assert aim(at) < before
        state = method.aggregate(state, results, ctx)
        assert_close(arrays(state.weights), w, 1e-6)
        got = arrays({"prompt": state.prompt_CKP, "scale": state.log_scale, "map": state.map_PD})
        assert_close(got, at, 1e-6)
        assert np.abs(state.rows_CD.numpy() - rows).max() < 1e-6
        assert np.abs(state.text_CD.numpy() - prototypes(at["prompt"], at["map"])).max() < 1e-6
        assert set(state.held_C.nonzero().flatten().tolist()) == held
    assert held == {0, 1, 2, 3}


def without_labels(client):
    """Return the client with its rows, none of which has a label."""
    card, data = client
    none_NC = torch.zeros_like(data.y_NC)
    return replace(card, count_C=torch.zeros(C, dtype=torch.int64)), replace(
        data, y_NC=none_NC, known_NC=none_NC, weight_NC=none_NC
    )


def test_a_client_that_holds_no_class_sends_no_representation_and_counts_in_no_mean():
    """The rows are those of the other client; where no client has any, prompts, scale and map stay, too."""
    clients = [without_labels(client_of(0)), client_of(1)]
    method, ctx = FedTSP(prompt_length=K, prompt_steps=2), server([card for card, _ in clients])
    state, training = state_of(ctx.cards), TrainingSpec(method, Objective("single"), WHOLE, 2, 3)
    sent = method.broadcast(state, ctx)
    results = [
        ClientResult(card, fit(training, compared.dense(), card, data, sent, {}, 1).update) for card, data in clients
    ]
    assert compared.shapes(results[0].update) | {"rows_KD": (0, D)} == compared.shapes(results[0].update)
    assert not results[0].update.held_C.any()
    alone = method.aggregate(state, results[:1], ctx)
    for name in ("prompt_CKP", "log_scale", "map_PD", "text_CD", "rows_CD", "held_C"):
        assert torch.equal(getattr(alone, name), getattr(state, name)), name
    both = method.aggregate(state, results, ctx)
    assert both.held_C.tolist() == [False, True, True, False]
    torch.testing.assert_close(both.rows_CD[1:3], results[1].update.rows_KD, rtol=0, atol=1e-6)
    assert not torch.equal(both.prompt_CKP, state.prompt_CKP)


def test_first_prompts_are_small():
    """Of deviation 0.02, as the authors' are, around zero: 8000 numbers."""
    prompt_CKP = FedTSP(prompt_length=400).begin(server([])).prompt_CKP
    assert prompt_CKP.shape == (C, 400, P)
    assert float(prompt_CKP.std()) == pytest.approx(0.02, rel=0.05)
    assert abs(float(prompt_CKP.mean())) < 0.001


def test_without_prompts_the_text_prototypes_stay(experiment):
    rounds = compared.history(experiment("fedtsp", options={"prompt_length": 0}))
    first, last = rounds[0][3], rounds[-1][3]
    assert torch.equal(first["text_CD"], last["text_CD"])
    assert torch.equal(first["log_scale"], last["log_scale"])
    moved = compared.history(experiment("fedtsp"))
    assert not torch.equal(moved[0][3]["text_CD"], moved[-1][3]["text_CD"])


def test_nothing_is_mapped_where_widths_are_the_same():
    """Then text prototypes are what the language model makes, as in the paper."""
    texts = Texts()
    texts.width = texts.state_width = D
    texts.own_CP = Texts.own_CP[:, :D]
    state = FedTSP(prompt_length=K).begin(replace(server([]), texts=texts))
    assert state.map_PD.numel() == 0
    assert torch.equal(state.text_CD, texts(state.prompt_CKP))
    map_PD = state_of([]).map_PD  # 5 to 3: of orthonormal columns
    assert torch.allclose(map_PD.T @ map_PD, torch.eye(D).double(), atol=1e-6)


@pytest.mark.parametrize("classes", [1, 3])
def test_block_by_block_the_steps_are_those_of_all_at_once(classes):
    """So that a graph of thousands of sentences is never whole."""
    state = replace(state_of([]), held_C=torch.tensor([True, False, True, True]))
    state = replace(state, rows_CD=torch.from_numpy(np.random.default_rng(2).normal(size=(C, D))))
    method, parted = FedTSP(prompt_length=K, prompt_steps=3, prompt_lr=0.5), Texts()
    parted.blocks = tuple(slice(start, start + classes) for start in range(0, C, classes))
    whole, by_blocks = (method.trained(state, texts) for texts in (Texts(), parted))
    for name in ("text_CD", "log_scale", "prompt_CKP", "map_PD"):
        got, want = getattr(by_blocks, name), getattr(whole, name)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        assert not torch.equal(want, getattr(state, name))


@pytest.mark.parametrize("kind", ["Electra", "Albert"])
def test_models_whose_states_are_wider_than_their_words(experiment, tmp_path, kind):
    transformers = transformers_or_skip()
    saved_bert(tmp_path, words=["engine", "fruit", "music", "river"])
    size = transformers.AutoConfig.from_pretrained(tmp_path).vocab_size
    (tmp_path / "model.safetensors").unlink()
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=size, embedding_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=32,
    )  # fmt: skip
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    names = {"encoder": str(tmp_path), "prompts": "a {name} | of {name} ."}
    e = small_experiment(FedTSP(prompt_length=2, prompt_steps=1), class_embeddings=names)
    server = SerialExecutor(make_run_spec(e, quiet)).server
    assert (server.state.prompt_CKP.shape[2], server.state.map_PD.shape[0]) == (4, 8)


def test_the_exact_tensors_on_the_wire():
    """Down weights, text prototypes and scale; up weights and a row for each class that the client has."""
    method, (card, data) = FedTSP(prompt_length=K), client_of(1)
    ctx = server([card])
    wire = {f"weights/{name}": shape for name, shape in SHAPES.items()}
    nothing = dict.fromkeys(("prompt_CKP", "map_PD", "rows_CD", "held_C"), (0,))
    sent = method.broadcast(state_of([card]), ctx)
    assert compared.shapes(sent) == wire | {"text_CD": (C, D), "log_scale": ()} | nothing
    got = fit(TrainingSpec(method, Objective("single"), WHOLE, 2, 3), compared.dense(), card, data, sent, {}, 1)
    assert compared.shapes(got.update) == wire | {"rows_KD": (2, D), "held_C": (C,)}
    assert got.update.held_C.tolist() == [False, True, True, False]


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(experiment, tmp_path):
    e = experiment("fedtsp")
    whole = run(e, tmp_path / "whole", quiet)
    with stopped_before(3):
        run(e, tmp_path / "cut", quiet)
    assert resume(tmp_path / "cut", quiet).checksum == whole.checksum


def test_another_language_model_is_another_experiment(experiment, tmp_path):
    e = experiment("fedtsp")
    assert list(plugins_of(e)) == ["label_encoder"]
    other = saved_bert(tmp_path / "bert", seed=6)
    changed = replace(e, class_embeddings=replace(e.class_embeddings, encoder=str(other)))
    assert digest(changed) != digest(e)
    specs = [make_run_spec(one, quiet).vectors()["texts_digest"] for one in (e, changed)]
    assert len(set(specs)) == 2


def test_the_server_alone_has_the_language_model(experiment):
    executor = executor_for(make_run_spec(experiment("fedtsp"), quiet))
    assert isinstance(executor, SerialExecutor)
    assert executor.server.texts is not None
    names = {type(part).__name__ for part in executor.server.model.modules()}
    assert not names & {"BertModel", "PromptedTexts"}


def test_a_run_without_an_encoder_is_refused_in_one_line():
    prompts = {"prompts": "a {name}"}
    for encoder, refusal in (
        ("", r"method 'fedtsp' needs a text encoder: set class_embeddings.encoder to a folder"),
        ("nowhere", r"class_embeddings.encoder = 'nowhere': no folder with a config.json"),
    ):
        e = small_experiment("fedtsp", "toy-single", class_embeddings=prompts | {"encoder": encoder})
        with pytest.raises(InputError, match=refusal):
            make_run_spec(e, quiet)


def test_a_prompt_that_is_too_long_is_refused_in_one_line(experiment):
    with pytest.raises(ValueError, match=r"a sentence and its prompt have \d+ tokens, it takes 16: shorten"):
        make_run_spec(experiment("fedtsp", options={"prompt_length": 14}), quiet)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"lambda_": -1.0}, r"\Amethod\.lambda_ = -1\.0: must be at least 0\Z"),
        ({"prompt_lr": 0.0}, r"\Amethod\.prompt_lr = 0\.0: must be above 0\Z"),
        ({"prompt_steps": 0}, r"method\.prompt_steps = 0 at least 1\Z"),
    ],
)
def test_bad_options_are_refused(options, refusal):
    with pytest.raises(ValueError, match=refusal):
        FedTSP(**options)
