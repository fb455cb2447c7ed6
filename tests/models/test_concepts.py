"""Class concepts: every prompt of every class through a text encoder, and the file that stands in for the encoder."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch

from anchorfl.models import concepts as module
from anchorfl.models.concepts import load_concepts, save_concepts
from anchorfl.models.errors import NamesError
from tests.tiny_bert import (
    PROMPTS,
    WIDTH,
    WORDS_C,
    asked_of,
    never,
    saved_bert,
    states,
    transformers_or_skip,
    without_library,
)

# --- the vectors


def test_vectors_are_unit_means_over_real_tokens(folder, tmp_path):
    """Against mean pooling in NumPy: normalized per prompt, before any statistic."""
    got = load_concepts(asked_of(folder), tmp_path).vectors_CMD
    assert got.dtype == torch.float32
    assert not got.requires_grad
    expected = []
    for words in WORDS_C:
        state_MLD, mask_ML = states(folder, [prompt.replace("{name}", words) for prompt in PROMPTS])
        assert mask_ML.min() == 0, "no sentence is padded: this test would not see padding"
        rows = [s[m == 1].astype(np.float64).mean(0) for s, m in zip(state_MLD, mask_ML, strict=True)]
        expected.append([row / np.sqrt((row * row).sum()) for row in rows])
    np.testing.assert_allclose(got.numpy(), np.array(expected), rtol=0, atol=2e-6)
    np.testing.assert_allclose(got.norm(dim=2).numpy(), 1, atol=1e-6)
    # a statistic of the raw vectors would differ: they do not have one length
    assert np.ptp([np.linalg.norm(s[m == 1].mean(0)) for s, m in zip(state_MLD, mask_ML, strict=True)]) > 1e-3


def test_dropout_is_off_and_a_row_depends_on_its_class_alone(folder, tmp_path):
    every = load_concepts(asked_of(folder), tmp_path / "a").vectors_CMD
    assert torch.equal(load_concepts(asked_of(folder), tmp_path / "b").vectors_CMD, every)
    alone = load_concepts(asked_of(folder, words=WORDS_C[1:2]), tmp_path).vectors_CMD
    assert torch.equal(alone[0], every[1])


def test_prompts_that_are_too_long_or_the_same_are_named(folder, tmp_path):
    with pytest.raises(NamesError, match="a prompt has 21 tokens, it takes 16; shorten it"):
        load_concepts(asked_of(folder, prompts=("a " * 17 + "{name}",)), tmp_path)
    for changed, message in [
        ({"prompts": ()}, "at least one class and one prompt"),
        ({"words": ()}, "at least one class and one prompt"),
        ({"prompts": ("a photo",)}, r"prompt 'a photo' has no \{name\}; write it"),
        ({"prompts": ("{name}", "{name}")}, r"two prompts are '\{name\}'; give each its own"),
        ({"words": ("polyp", "polyp")}, "the words of two classes are 'polyp'; give each its own"),
    ]:
        with pytest.raises(NamesError, match=message):
            load_concepts(asked_of(folder, **changed), tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- the file


def test_second_start_needs_neither_library_nor_model(folder, tmp_path, monkeypatch):
    """The digest covers what is asked, so it is the same on a machine that has nothing."""
    model = shutil.copytree(folder, tmp_path / "model")
    cache, asked, heard = tmp_path / "cache", asked_of(model), []
    first = load_concepts(asked, cache, heard.append)
    assert [file.name for file in cache.iterdir()] == [f"concepts-{asked.digest[:16]}.npz"]
    assert first.made_by == f"transformers {metadata.version('transformers')}"
    shutil.rmtree(model)
    without_library(monkeypatch)
    cache = cache.rename(tmp_path / "another machine")
    again = load_concepts(asked, cache, heard.append)
    assert torch.equal(again.vectors_CMD, first.vectors_CMD)
    assert again.made_by == first.made_by
    assert heard == []
    about = json.loads(str(np.load(asked.file(cache))["about"]))
    assert about["model"] == str(model)
    assert about["files"].keys() >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_without_anything_one_line_names_extra_model_and_cache(folder, tmp_path, monkeypatch):
    asked = asked_of("nobody/nothing")
    file, place = asked.file(tmp_path), re.escape(str(tmp_path))
    copy = rf"; or copy {file.name}, made by the same options on a machine with 'anchorfl\[plm\]' and the model"
    transformers_or_skip()
    with pytest.raises(NamesError, match=rf"'nobody/nothing' cannot be loaded .*{copy} 'nobody/nothing', into {place}"):
        load_concepts(asked, tmp_path)
    without_library(monkeypatch)
    install = r"pip install 'anchorfl\[plm\]'"
    with pytest.raises(NamesError, match=rf"text encoder 'nobody/nothing': .*{install}.*{copy}.* into {place}") as got:
        load_concepts(asked, tmp_path)
    assert "\n" not in str(got.value)
    with pytest.raises(NamesError, match=rf"need open_clip: pip install open_clip_torch.*into {place}"):
        load_concepts(replace(asked, model="open_clip:hf-hub:a/b"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_digest_covers_what_is_asked_and_nothing_of_the_machine(folder, monkeypatch):
    cases = [
        {}, {"words": WORDS_C[::-1]}, {"words": WORDS_C[:2]}, {"prompts": PROMPTS[:2]}, {"prompts": PROMPTS[::-1]},
        {"model": "another"}, {"pooling": "mean"}, {"pooling": "first"},
    ]  # fmt: skip
    digests = [asked_of(folder, **case).digest for case in cases]
    before = asked_of(folder).digest
    without_library(monkeypatch)
    assert asked_of(folder).digest == before
    monkeypatch.setattr(module, "FORMAT", 2)
    digests.append(asked_of(folder).digest)
    assert len(set(digests)) == len(cases) + 1


def test_another_version_of_the_library_makes_nothing_again(folder, tmp_path, monkeypatch):
    first = load_concepts(asked_of(folder), tmp_path)
    monkeypatch.setattr(metadata, "version", lambda _: "0")
    monkeypatch.setattr(module, "encode_concepts", never)
    again = load_concepts(asked_of(folder), tmp_path)
    assert torch.equal(again.vectors_CMD, first.vectors_CMD)
    assert again.made_by == first.made_by != "transformers 0"


def test_other_weights_in_the_folder_make_them_again_and_other_times_do_not(folder, tmp_path):
    model, cache, heard = shutil.copytree(folder, tmp_path / "model"), tmp_path / "cache", []
    first = load_concepts(asked_of(model), cache, heard.append)
    for file in model.iterdir():
        os.utime(file, ns=(1, 1))
    assert torch.equal(load_concepts(asked_of(model), cache, heard.append).vectors_CMD, first.vectors_CMD)
    assert heard == []
    saved_bert(model, seed=6)
    again = load_concepts(asked_of(model), cache, heard.append)
    assert not torch.allclose(again.vectors_CMD, first.vectors_CMD)
    assert heard == [
        f"{asked_of(model).file(cache)}: unusable cache of class concepts"
        f" (made from other files than {model} holds now); making them again"
    ]
    load_concepts(asked_of(model), cache, heard.append)
    assert len(heard) == 1


def test_damaged_files_are_said_and_made_again(folder, tmp_path, monkeypatch):
    asked, heard = asked_of(folder), []
    first, file = load_concepts(asked, tmp_path), asked.file(tmp_path)
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[200] ^= 0xFF
    for text in (b"", good[: len(good) // 2], b"\x80\x04N.", bytes(flipped)):
        file.write_bytes(text)
        again = load_concepts(asked, tmp_path, heard.append)
        assert torch.equal(again.vectors_CMD, first.vectors_CMD)
        assert file.read_bytes() == good
    vectors = first.vectors_CMD.numpy()
    nan = np.where(np.arange(WIDTH) == 0, np.nan, vectors).astype(np.float32)
    for wrong in (vectors[:2], vectors * 2, vectors[0], nan):
        save_concepts(asked, file, wrong, "somebody", heard.append)
        assert torch.equal(load_concepts(asked, tmp_path, heard.append).vectors_CMD, first.vectors_CMD)
    assert len(heard) == 8
    assert all(f"{file}: unusable cache of class concepts (" in line for line in heard)
    assert sum("another shape or length" in line for line in heard) == 4
    file.write_bytes(good[:100])
    monkeypatch.setattr(module, "encode_concepts", never)
    with pytest.raises(AssertionError, match="called"):
        load_concepts(asked, tmp_path, heard.append)


def test_a_damaged_file_without_an_encoder_is_an_error(folder, tmp_path, monkeypatch):
    asked, heard = asked_of(folder), []
    load_concepts(asked, tmp_path)
    asked.file(tmp_path).write_bytes(b"half")
    without_library(monkeypatch)
    with pytest.raises(NamesError, match=r"pip install 'anchorfl\[plm\]'"):
        load_concepts(asked, tmp_path, heard.append)
    assert len(heard) == 1


def test_a_cache_that_cannot_be_written_is_said(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    heard = []
    assert load_concepts(asked_of(folder), tmp_path / "file", heard.append).vectors_CMD.shape == (3, 3, WIDTH)
    assert len(heard) == 1
