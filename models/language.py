"""Class names to vectors by a frozen language model: FedAlign (KDD 2023) leaves it to future work, FedBM does it.

A name (underscores become spaces) is filled into prompts; each goes through a text encoder (models/text_encoders.py),
by default the mean of the last hidden states over its tokens, the model's own first and last ones included (FedBM's
choice for BERT and RoBERTa). A name's vector is the mean over its prompts. Shape suffixes: C names, M prompts, D width.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models import name_cache
from anchorfl.models.errors import NamesError
from anchorfl.models.label_names import NameVectors
from anchorfl.models.options import Pooling
from anchorfl.models.text_encoders import Encode, OwnEncoder, folder_of, library, text_encoder

FORMAT = 1  # part of every digest: raise it when the same input would give other vectors
_LOG = logging.getLogger(__name__)


def from_language_model(
    class_names: Sequence[str], *, model: str | OwnEncoder, prompts: Sequence[str] = ("{name}",),
    normalize: bool = True, pooling: Pooling = "auto", cache: Path | None, log: Callable[[str], None] = _LOG.warning,
) -> NameVectors:  # fmt: skip
    """Return the vectors of ``class_names``, float32 [C, D].

    model, pooling: as ``text_encoder`` takes them; prompts: templates with ``{name}``; normalize: the vector of every
    prompt to length 1 before the mean. A row depends on its own name alone. They are kept in
    ``<cache>/names-<digest>.npz``. Raises NamesError where library or model is missing, or it is no text encoder.
    """
    if (bad := next((prompt for prompt in prompts if "{name}" not in prompt), None)) is not None:
        raise NamesError(f"prompt {bad!r} has no {{name}}; write it where the class name belongs")
    if not prompts or not class_names:
        raise NamesError("class-name vectors: give at least one prompt and one class name")
    digest = _digest(class_names, model, prompts, normalize, pooling)
    vector_CD = name_cache.load_or_make(
        cache, digest, lambda: _encode(class_names, model, prompts, normalize, pooling), log
    )
    return NameVectors(torch.from_numpy(vector_CD), (), digest)


def fill_prompts(prompts: Sequence[str], name: str) -> list[str]:
    """Return the sentences about a class."""
    return [prompt.replace("{name}", name.replace("_", " ")) for prompt in prompts]


def encode_names(
    encode: Encode, class_names: Sequence[str], prompts: Sequence[str], model: str | OwnEncoder
) -> list[Tensor]:
    """Return the vectors [M, D] of the sentences about every name.

    Names go through the encoder one at a time: other names cannot change a row, not even by rounding. Raises NamesError
    where one is not finite, or those of a name are zero.
    """
    rows = [encode(fill_prompts(prompts, name)) for name in class_names]
    if not all(bool(vector_MD.isfinite().all()) for vector_MD in rows):
        raise NamesError(f"language model {model}: not all vectors are finite; take another model")
    if zero := [name for name, vector_MD in zip(class_names, rows, strict=True) if not bool(vector_MD.any())]:
        raise NamesError(
            f"language model {model}: the vector of class {zero[0]!r} is zero; write its name otherwise"
            " (task.class_names), or take another model"
        )
    return rows


def _digest(
    class_names: Sequence[str],
    model: str | OwnEncoder,
    prompts: Sequence[str],
    normalize: bool,
    pooling: Pooling = "auto",
) -> str:
    """Return sha256, in hex, of all that the rows depend on; of a folder, the names, sizes and times of its files."""
    version = library(model).removeprefix("transformers ")
    files = sorted(folder.glob("*")) if (folder := folder_of(model)) else []
    stamps = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    head = ["language model", FORMAT, str(model), stamps, list(prompts), normalize, list(class_names), version]
    head += [] if pooling == "auto" else [pooling]  # so that what older versions made is still found
    return hashlib.sha256(json.dumps(head).encode()).hexdigest()


def _encode(
    class_names: Sequence[str], model: str | OwnEncoder, prompts: Sequence[str], normalize: bool, pooling: Pooling
) -> npt.NDArray[np.float32]:
    with text_encoder(model, pooling) as encode:
        each = encode_names(encode, class_names, prompts, model)
        vector_CD = torch.stack([(F.normalize(v_MD, dim=1) if normalize else v_MD).mean(0) for v_MD in each])
    return vector_CD.numpy().astype(np.float32)
