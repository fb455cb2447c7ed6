"""Class names through a language model: a tiny BERT with random weights, made here; nothing is fetched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from anchorfl.models import language
from anchorfl.models.errors import NamesError
from anchorfl.models.language import encode_names, from_language_model
from anchorfl.models.text_encoders import mean_states
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from tests.tiny_bert import WORDS, never, states, transformers_or_skip, without_library

NAMES = ("lying_down", "sitting", "of")
PROMPTS = ("{name}", "a photo of {name}.")


def by_hand(folder, text):
    """Return the mean of the last hidden states of one text, alone and so without padding."""
    return states(folder, [text])[0][0].mean(0)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_row_is_the_mean_over_prompts_of_mean_states(folder, normalize):
    got = from_language_model(NAMES, model=str(folder), prompts=PROMPTS, normalize=normalize, cache=None)
    assert got.without_edge == ()
    assert got.vectors_CD.dtype == torch.float32
    for name, row in zip(("lying down", "sitting", "of"), got.vectors_CD.numpy(), strict=True):
        each = [by_hand(folder, text) for text in (name, f"a photo of {name}.")]
        each = [v / np.linalg.norm(v) for v in each] if normalize else each
        np.testing.assert_allclose(row, np.mean(each, 0), rtol=0, atol=2e-6)
    assert torch.pdist(got.vectors_CD).min() > 1e-3


def test_a_row_depends_on_its_name_alone_and_dropout_is_off(folder):
    every = from_language_model(NAMES, model=str(folder), prompts=PROMPTS, cache=None)
    one = from_language_model(NAMES[1:2], model=str(folder), prompts=PROMPTS, cache=None)
    assert torch.equal(one.vectors_CD[0], every.vectors_CD[1])
    assert not every.vectors_CD.requires_grad


def test_padding_is_left_out_of_the_mean():
    state_MLD = torch.tensor([[[1.0, 2], [3, 4], [99, 99]], [[1, 1], [2, 2], [6, 0]]])
    mask_ML = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert mean_states(state_MLD, mask_ML).tolist() == [[2, 3], [3, 1]]


def test_second_start_loads_no_model(folder, tmp_path, monkeypatch):
    first = from_language_model(NAMES, model=str(folder), cache=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [f"names-{first.digest[:16]}.npz"]
    heard = []
    monkeypatch.setattr(language, "_encode", never)
    again = from_language_model(NAMES, model=str(folder), cache=tmp_path, log=heard.append)
    assert torch.equal(again.vectors_CD, first.vectors_CD)
    assert heard == []
    digests = {first.digest}
    for case in (
        {"class_names": NAMES[:2]}, {"prompts": PROMPTS}, {"normalize": False}, {"model": "another/hub-name@v1"},
    ):  # fmt: skip
        asked = {"class_names": NAMES, "model": str(folder), "prompts": ("{name}",), "normalize": True} | case
        digests.add(language._digest(**asked))
    os.utime(folder / "config.json", ns=(1, 1))
    digests.add(language._digest(NAMES, str(folder), ("{name}",), True))
    assert len(digests) == 6


def test_a_run_starts_from_the_vectors_of_the_model(folder, experiment, tmp_path, monkeypatch):
    from anchorfl.pipeline.run.prepare import make_run_spec

    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path))
    options = {"init": "language_model", "encoder": str(folder), "prompts": "{name} | a {name}"}
    run_spec = make_run_spec(experiment("fedalign", class_embeddings=options), lambda _: None)
    names = run_spec.data().manifest.class_names
    expected = from_language_model(names, model=str(folder), prompts=("{name}", "a {name}"), cache=None)
    assert torch.equal(run_spec.vectors_CP, expected.vectors_CD)
    assert list(tmp_path.rglob("names-*.npz"))


def test_models_that_cannot_be_used_are_named(folder, tmp_path):
    with pytest.raises(
        NamesError, match=r"language model '.*' cannot be loaded \(.*\); give a folder with config\.json"
    ):
        from_language_model(NAMES, model=str(tmp_path), cache=None)
    with pytest.raises(NamesError, match="cannot be loaded"):
        from_language_model(NAMES, model="nobody/nothing", cache=None)
    with pytest.raises(NamesError, match=re.escape("a prompt has 19 tokens, it takes 16; shorten it")):
        from_language_model(NAMES, model=str(folder), prompts=("a " * 15 + "{name}",), cache=None)
    import transformers

    small = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": len(WORDS)}
    transformers.T5Model(transformers.T5Config(**small)).save_pretrained(tmp_path / "t5")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "t5" / file).write_bytes((folder / file).read_bytes())
    with pytest.raises(NamesError, match=r"\(t5\) is no text encoder; take one such as BERT or RoBERTa"):
        from_language_model(NAMES, model=str(tmp_path / "t5"), cache=None)


def test_pickled_weights_are_refused(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(NamesError, match="safetensors"):
        from_language_model(NAMES, model=str(tmp_path), cache=None)


# --- without transformers


def test_without_the_extra_it_is_named(monkeypatch):
    without_library(monkeypatch)
    with pytest.raises(NamesError, match=re.escape("need the extra 'plm': pip install 'anchorfl[plm]'")):
        from_language_model(NAMES, model="any", cache=None)
    monkeypatch.setattr(metadata, "version", lambda _: "0")
    with pytest.raises(NamesError, match=re.escape("need the extra 'plm': pip install 'anchorfl[plm]'")):
        from_language_model(NAMES, model="any", cache=None)


def test_a_name_whose_vector_is_zero_is_named():
    def encode(texts):
        return torch.tensor([[float(text != "0"), 0.0] for text in texts])

    assert [v.tolist() for v in encode_names(encode, ["a", "b"], ["{name}"], "m")] == [[[1.0, 0.0]]] * 2
    with pytest.raises(NamesError, match=r"m: the vector of class '0' is zero; write its name otherwise"):
        encode_names(encode, ["a", "0"], ["{name}"], "m")


def test_a_tokenizer_with_more_words_than_the_network_is_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "more")
    vocabulary = (copy / "vocab.txt").read_text()
    transformers_or_skip()
    from transformers import BertTokenizerFast

    (copy / "vocab.txt").write_text(f"{vocabulary}\nwalking")
    BertTokenizerFast(str(copy / "vocab.txt")).save_pretrained(copy)
    with pytest.raises(NamesError, match="its tokenizer has words that its network lacks; get its files again"):
        from_language_model(("walking",), model=str(copy), cache=None)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match=r"class_embeddings\.width = 0: must be at least 1"):
        ClassEmbeddingOptions(width=0)
    with pytest.raises(ValueError, match=r"init = 'cooccurrence' needs class_embeddings\.table, the CSV of the"):
        ClassEmbeddingOptions(init="cooccurrence")
    with pytest.raises(
        ValueError,
        match=r"class_embeddings\.init = 'language_model' needs class_embeddings\.encoder, its folder or hub",
    ):
        ClassEmbeddingOptions(init="language_model")
    with pytest.raises(ValueError, match=r"class_embeddings\.prompts: 'a photo' has no \{name\}: write it where"):
        ClassEmbeddingOptions(prompts="{name}|a photo")
    for prompts in ("", "a {name} | "):
        with pytest.raises(ValueError, match=r"class_embeddings\.prompts: '' has no \{name\}"):
            ClassEmbeddingOptions(prompts=prompts)
    with pytest.raises(NamesError, match=r"prompt '' has no \{name\}"):
        from_language_model(NAMES, model="any", prompts=("",), cache=None)
    assert ClassEmbeddingOptions(prompts="a {name} | {name}").templates == ("a {name}", "{name}")
    with pytest.raises(NamesError, match=r"prompt 'photo' has no \{name\}"):
        from_language_model(NAMES, model="any", prompts=("photo",), cache=None)
    with pytest.raises(NamesError, match="at least one prompt and one class name"):
        from_language_model((), model="any", cache=None)


def test_importing_this_package_does_not_import_transformers():
    code = "import sys, anchorfl.models.language; print('transformers' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "False"
