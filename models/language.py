"""Class names to vectors by a frozen language model: what FedAlign (KDD 2023) leaves to future work and FedBM does.

A name (underscores become spaces) is filled into prompts; each goes through the model in evaluation mode, and its
vector is the mean of the last hidden states over its tokens, the model's own first and last ones included (FedBM's
choice for BERT and RoBERTa). A name's vector is the mean over its prompts. Shape suffixes: C names, M prompts,
L tokens, D hidden width.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from models import name_cache
from models.label_names import NamesError, NameVectors

FORMAT = 1  # part of every digest: raise it when the same input would give other vectors
INSTALL = "language models need the extra 'plm': pip install 'anchorfl[plm]'"
_LOG = logging.getLogger(__name__)


def from_language_model(
    class_names: Sequence[str], *, model: str, prompts: Sequence[str] = ("{name}",), normalise: bool = True,
    cache: Path | None, log: Callable[[str], None] = _LOG.warning,
) -> NameVectors:  # fmt: skip
    """Vectors of ``class_names``, float32 [C, D].

    model: a folder with config, tokenizer and safetensors weights, or a hub name, ``name@revision`` to pin it; prompts:
    templates with ``{name}``; normalise: the vector of every prompt to length 1 before the mean. A row depends on its
    own name alone. They are kept in ``<cache>/names-<digest>.npz``. Raises NamesError where the extra or the model is
    missing, or the model is no text encoder.
    """
    if bad := next((prompt for prompt in prompts if "{name}" not in prompt), None):
        raise NamesError(f"prompt {bad!r} has no {{name}}; write it where the class name belongs")
    if not prompts or not class_names:
        raise NamesError("class-name vectors: give at least one prompt and one class name")
    digest = _digest(class_names, model, prompts, normalise)
    vector_CD = name_cache.cached(cache, digest, lambda: _encode(class_names, model, prompts, normalise), log)
    return NameVectors(torch.from_numpy(vector_CD), (), digest)


def mean_states(state_MLD: Tensor, mask_ML: Tensor) -> Tensor:
    """Mean of the states of real tokens (mask 1): [M, D]."""
    mask_ML1 = mask_ML[:, :, None].to(state_MLD.dtype)
    return (state_MLD * mask_ML1).sum(1) / mask_ML1.sum(1)


def _digest(class_names: Sequence[str], model: str, prompts: Sequence[str], normalise: bool) -> str:
    """Sha256, in hex, of all that the rows depend on; of a folder, the names, sizes and times of its files."""
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError as error:
        raise NamesError(f"class-name vectors: {INSTALL}") from error
    folder = Path(model).expanduser()
    about = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(folder.glob("*")) if f.is_file()]
    head = ["language model", FORMAT, model, about, list(prompts), normalise, list(class_names), version]
    return hashlib.sha256(json.dumps(head).encode()).hexdigest()


def _encode(class_names: Sequence[str], model: str, prompts: Sequence[str], normalise: bool) -> npt.NDArray[np.float32]:
    with _loaded(model) as (tokenizer, network):
        rows = []
        for name in class_names:
            texts = [prompt.replace("{name}", name.replace("_", " ")) for prompt in prompts]
            # the prompts of one name at a time: other names cannot change a row, not even by rounding
            vector_MD = mean_states(*_states(tokenizer, network, texts, model))
            rows.append((F.normalize(vector_MD, dim=1) if normalise else vector_MD).mean(0))
        vector_CD = torch.stack(rows)
    if not vector_CD.isfinite().all():
        raise NamesError(f"language model {model}: not all vectors are finite; take another model")
    return vector_CD.numpy().astype(np.float32)


def _states(tokenizer: Any, network: Any, texts: list[str], model: str) -> tuple[Tensor, Tensor]:
    """Last hidden states [M, L, D] and mask [M, L]."""
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    most = min(tokenizer.model_max_length, getattr(network.config, "max_position_embeddings", 1 << 30))
    mask_ML: Tensor = batch["attention_mask"]
    if mask_ML.shape[1] > most:
        raise NamesError(f"language model {model}: a prompt has {mask_ML.shape[1]} tokens, it takes {most}; shorten it")
    state_MLD: Tensor = network(**batch).last_hidden_state
    return state_MLD, mask_ML


@contextmanager
def _loaded(model: str) -> Iterator[tuple[Any, Any]]:
    """Tokenizer and network in evaluation mode (dropout would make vectors random), without gradients or chatter."""
    try:
        transformers = importlib.import_module("transformers")  # by name: it is an extra, and large
    except ImportError as error:
        raise NamesError(f"class-name vectors: {INSTALL} ({error})") from error
    talk = transformers.utils.logging
    before, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        tokenizer, network = _from_pretrained(transformers, model)
        with torch.inference_mode():
            yield tokenizer, network.eval().float()
    finally:
        talk.set_verbosity(before)
        if bars:
            talk.enable_progress_bar()


def _from_pretrained(transformers: Any, model: str) -> tuple[Any, Any]:
    folder = Path(model).expanduser()
    name, _, revision = (str(folder), "", "") if folder.is_dir() else model.partition("@")
    pinned = {"revision": revision} if revision else {}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **pinned)
        # no pickle is read from a file
        network = transformers.AutoModel.from_pretrained(name, use_safetensors=True, **pinned)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())[:300]
        mend = "give a folder with config.json, a tokenizer and safetensors weights, or a hub name that can be reached"
        raise NamesError(f"language model {model!r} cannot be loaded ({why}); {mend}") from error
    if network.config.is_encoder_decoder or not hasattr(network.config, "hidden_size"):
        kind = network.config.model_type
        raise NamesError(f"language model {model!r} ({kind}) is no text encoder; take one such as BERT or RoBERTa")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do
    return tokenizer, network
