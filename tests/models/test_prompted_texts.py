"""Class names behind trained prompts, through a frozen language model."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anchorfl.models import prompted_texts
from anchorfl.models.errors import NamesError
from anchorfl.models.label_encoder import LabelEncoderSpec
from anchorfl.models.prompted_texts import PromptedTexts
from tests.tiny_bert import PROMPTS, WIDTH, WORDS_C, saved_bert, transformers_or_skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return saved_bert(tmp_path_factory.mktemp("bert"))


def texts_of(bert, length=2, *, pooling="auto", normalize=True, prompts=PROMPTS):
    return PromptedTexts(LabelEncoderSpec(str(bert), WORDS_C, prompts, pooling, normalize, 0), length)


def expected(bert, prompt_CKP, *, pooling, normalize):
    """Return the class vectors by transformers' BERT, one sentence at a time: no padding, no mask."""
    transformers = transformers_or_skip()
    network = transformers.BertModel.from_pretrained(bert).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    rows = []
    for name, prompt_KP in zip(WORDS_C, prompt_CKP, strict=True):
        vectors = []
        for template in PROMPTS:
            word_LP = network.embeddings.word_embeddings(
                tokenizer(template.replace("{name}", name), return_tensors="pt").input_ids
            )[0]
            whole_LP = torch.cat([word_LP[:1], prompt_KP, word_LP[1:]])
            state_LP = network(inputs_embeds=whole_LP[None]).last_hidden_state[0]
            vector_P = state_LP[0] if pooling == "first" else state_LP.mean(0)
            vectors.append(F.normalize(vector_P, dim=0) if normalize else vector_P)
        rows.append(sum(vectors) / len(vectors))
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", ["auto", "first"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("length", [0, 3])
def test_vectors_and_gradients_are_those_of_sentences_one_by_one(bert, pooling, normalize, length):
    """Also in training: the model's dropout stays off."""
    texts = texts_of(bert, length, pooling=pooling, normalize=normalize).train()
    mine = torch.randn(len(WORDS_C), length, WIDTH, generator=torch.Generator().manual_seed(2)).requires_grad_()
    plain = mine.detach().clone().requires_grad_()
    target_CP = torch.randn(len(WORDS_C), WIDTH, generator=torch.Generator().manual_seed(3))
    got_CP = texts(mine)
    whole_CP = expected(bert, plain, pooling=pooling, normalize=normalize)
    np.testing.assert_allclose(got_CP.detach().numpy(), whole_CP.detach().numpy(), rtol=0, atol=3e-6)
    assert torch.pdist(got_CP).min() > 1e-4
    assert (texts.width, texts.length) == (WIDTH, length)
    assert not [name for name, p in texts.named_parameters() if p.requires_grad]
    if length:
        (got_CP * target_CP).sum().backward()
        (whole_CP * target_CP).sum().backward()
        torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-3, atol=1e-5)
        assert mine.grad.abs().max() > 1e-4


def test_classes_may_be_read_a_few_at_a_time(bert, monkeypatch):
    texts = PromptedTexts(LabelEncoderSpec(str(bert), WORDS_C, PROMPTS, "mean", True, 0), 2)
    assert texts.blocks == [slice(0, 64 * 3 // 9)]
    monkeypatch.setattr(prompted_texts, "SENTENCES_AT_ONCE", 7)
    assert texts.blocks == [slice(0, 2), slice(2, 4)]
    prompt_CKP = torch.randn(3, 2, texts.width, generator=torch.Generator().manual_seed(3))
    parts = torch.cat([texts(prompt_CKP[block], block) for block in texts.blocks])
    torch.testing.assert_close(parts, texts(prompt_CKP))


def test_a_prompt_is_of_its_own_class(bert):
    texts = texts_of(bert)
    prompt_CKP = torch.randn(len(WORDS_C), 2, WIDTH)
    before_CP = texts(prompt_CKP)
    prompt_CKP[1] *= -1
    moved_C = (texts(prompt_CKP) - before_CP).abs().amax(1)
    assert (moved_C > 1e-3).tolist() == [False, True, False]


def test_what_the_model_cannot_do_is_one_line(bert):
    with pytest.raises(NamesError, match=r"a sentence and its prompt have 19 tokens, it takes 16: shorten the senten"):
        texts_of(bert, 12)
    with pytest.raises(NamesError, match=r"\Atrained prompts need class_embeddings.pooling 'mean' or 'first'"):
        texts_of(bert, pooling="projected")


def test_a_tokenizer_may_know_of_fewer_positions(bert, tmp_path):
    """Two of RoBERTa's 514 are none: a sentence of 513 tokens would fail in its middle."""
    shutil.copytree(bert, tmp_path / "model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 14}))
    with pytest.raises(NamesError, match="have 15 tokens, it takes 14: shorten"):
        texts_of(tmp_path / "model", 8)
