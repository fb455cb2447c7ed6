"""A saved BERT of two layers with random weights, made here; nothing is fetched. And a machine without libraries."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import metadata

import pytest
import torch

from anchorfl.models.concepts import ConceptRequest

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "photo", "of", "lying", "down", "sit", "##ting", "."]
WIDTH = 12
WORDS_C = ("lying down", "sitting", "of")
PROMPTS = ("a photo of {name}", "{name}.", "a {name}")
"""Words that it knows, and prompts: of each class, two of the sentences are padded."""


def transformers_or_skip():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers", reason="transformers is not installed: pip install 'anchorfl[plm]'")


def saved_bert(place, seed=5, words=()):
    """Save such a model, with dropout that evaluation must turn off; return its folder. words: that it knows, too."""
    transformers, words = transformers_or_skip(), [*WORDS, *words]
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        transformers.BertModel(config).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(place)
    return place


def states(folder, texts):
    """Return last hidden states [M, L, D] of the folder's model and mask [M, L], as arrays."""
    transformers = transformers_or_skip()
    network = transformers.BertModel.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return network(**batch).last_hidden_state.numpy(), batch["attention_mask"].numpy()


def asked_of(folder, **changed):
    return replace(ConceptRequest(WORDS_C, PROMPTS, str(folder)), **changed)


def without_library(monkeypatch):
    """Hide transformers, open_clip and every installed version."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    for name in ("transformers", "open_clip"):
        monkeypatch.setitem(sys.modules, name, None)


def never(*_, **__):
    """Stand in for what must not be called."""
    raise AssertionError("called")
