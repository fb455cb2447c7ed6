"""Class concepts: vectors of a text encoder for every prompt with every class, of length 1 (FedBM, section LKCC).

The words of a class are filled into each prompt and the sentence goes through the encoder (models/text_encoders.py).
Every vector is brought to length 1 before anything is counted from them; means and variances are the method's matter.
Shape suffixes: C classes, M prompts, D width of the encoder.

The vectors are kept in ``<cache>/concepts-<digest>.npz``. The digest covers the request alone, not the files of library
and model, so that a machine that has neither finds them. How they were made stands inside: where the model's folder is
on this machine and has other files, they are made again (docs/concepts.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models import name_cache
from anchorfl.models.errors import NamesError
from anchorfl.models.language import encode_names
from anchorfl.models.options import Pooling
from anchorfl.models.text_encoders import CLIP, NoEncoderError, OwnEncoder, folder_of, library, text_encoder

FORMAT = 1  # part of every digest: raise it when the same input would give other vectors
PARTS = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin")
"""Files of a model's folder that its vectors may depend on."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConceptRequest:
    """A request for concept vectors."""

    words: tuple[str, ...]
    """The words of every class, in the order of the rows."""
    prompts: tuple[str, ...]
    """Templates with ``{name}``."""
    model: str
    """Name of a model, as ``text_encoder`` takes it; of an encoder of another package, name and version."""
    pooling: Pooling = "auto"

    def check(self) -> None:
        """Raise NamesError where the request cannot be met."""
        if not self.words or not self.prompts:
            raise NamesError("class concepts: give at least one class and one prompt")
        if (bad := next((prompt for prompt in self.prompts if "{name}" not in prompt), None)) is not None:
            raise NamesError(f"prompt {bad!r} has no {{name}}; write it where the class name belongs")
        for what, some in (("the words of two classes are", self.words), ("two prompts are", self.prompts)):
            if twice := next((each for each, count in Counter(some).items() if count > 1), None):
                raise NamesError(f"class concepts: {what} {twice!r}; give each its own")

    @property
    def digest(self) -> str:
        """The sha256 of the request, in hex."""
        return hashlib.sha256(json.dumps(["concepts", FORMAT, asdict(self)], sort_keys=True).encode()).hexdigest()

    def file(self, cache: Path) -> Path:
        """Return the path of the cached vectors."""
        return cache / f"concepts-{self.digest[:16]}.npz"


@dataclass(frozen=True, slots=True, eq=False)
class Concepts:
    """The concept vectors of the classes."""

    vectors_CMD: Tensor
    """float32, of length 1."""
    made_by: str
    """Library and version, for the log."""


def load_concepts(
    request: ConceptRequest,
    cache: Path,
    log: Callable[[str], None] = _LOG.warning,
    encoder: OwnEncoder | None = None,
) -> Concepts:
    """Return the vectors of a request, from the cache, or made now and kept there; a row depends on its class alone.

    encoder: that of another package which ``request.model`` names.
    Raises NamesError where neither the file is in the cache, nor the encoder on this machine, or it cannot do this.
    """
    request.check()
    file = request.file(cache)
    if (cached := _load(request, file, log)) is not None:
        return cached
    try:
        vector_CMD, made_by = encode_concepts(request, encoder or ""), library(encoder or request.model)
    except NoEncoderError as error:
        raise _not_available(request, cache, error) from error
    save_concepts(request, file, vector_CMD, made_by, log)
    return Concepts(torch.from_numpy(vector_CMD), made_by)


def check_available(request: ConceptRequest, cache: Path) -> None:
    """Raise NamesError where neither the file is in the cache, nor the encoder's library on this machine.

    So that is said before the data are prepared, which may take long.
    """
    request.check()
    if not request.file(cache).exists():
        try:
            library(request.model)
        except NoEncoderError as error:
            raise _not_available(request, cache, error) from error


def _not_available(request: ConceptRequest, cache: Path, error: NoEncoderError) -> NamesError:
    package = "open_clip_torch" if request.model.startswith(CLIP) else "'anchorfl[plm]'"
    return NamesError(
        f"class concepts: {error}; or copy {request.file(cache).name}, made by the same options on a machine with"
        f" {package} and the model {request.model!r}, into {cache}"
    )


def encode_concepts(request: ConceptRequest, source: str | OwnEncoder = "") -> npt.NDArray[np.float32]:
    """Make the vectors [C, M, D] now. source: the encoder, or where the model is, if not where its name says."""
    model = source or request.model
    with text_encoder(model, request.pooling) as encode:
        each = encode_names(encode, request.words, request.prompts, model)
        vector_CMD = F.normalize(torch.stack(each).double(), dim=2).float()
    if not _unit(vector_CMD.numpy()):
        raise NamesError(f"language model {model}: a vector is zero and has no direction; take another model")
    return vector_CMD.numpy()


def save_concepts(
    request: ConceptRequest, file: Path, vector_CMD: npt.NDArray[np.float32], made_by: str, log: Callable[[str], None],
    source: str = "",
) -> None:  # fmt: skip
    """Write the file of a request, with how it was made."""
    metadata = {"made_by": made_by, "files": _checksums(source or request.model), **asdict(request)}
    name_cache.save(file, request.digest, vector_CMD, log, json.dumps(metadata))


def _load(request: ConceptRequest, file: Path, log: Callable[[str], None]) -> Concepts | None:
    """Return the vectors of the file; None where there is none, or (``log`` says so) where it cannot be used."""
    if not file.exists():
        return None
    reason = "the vectors have another shape or length"
    try:
        vector_CMD, text = name_cache.read(file, request.digest)
        metadata = json.loads(text)
        files, checksums = metadata["files"], _checksums(request.model)
        if checksums and files != checksums:
            reason = f"made from other files than {folder_of(request.model)} holds now"
        elif vector_CMD.shape[:2] == (len(request.words), len(request.prompts)) and _unit(vector_CMD):
            return Concepts(torch.from_numpy(vector_CMD), str(metadata["made_by"]))
    except (name_cache.UnusableError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    log(f"{file}: unusable cache of class concepts ({reason}); making them again")
    return None


def _unit(vector_CMD: npt.NDArray[np.float32]) -> bool:
    if vector_CMD.ndim != 3:
        return False
    return bool(np.all(np.abs(np.linalg.norm(vector_CMD.astype(np.float64), axis=2) - 1) < 1e-5))  # nan is not below


def _checksums(model: str) -> dict[str, str]:
    """Return the sha256 of the model's files, by name; empty where the model is no folder of this machine."""
    folder, checksums = folder_of(model), dict[str, str]()
    if folder is not None:
        for path in sorted({path for pattern in PARTS for path in folder.glob(pattern) if path.is_file()}):
            with path.open("rb") as stream:
                checksums[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return checksums
