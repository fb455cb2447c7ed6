"""Sentences to vectors by a frozen text encoder: a transformers model, or the text tower of an open_clip model.

Or by an encoder of another package (``OwnEncoder``). Every model runs in evaluation mode (dropout would make vectors
random), in float32, without gradients, and is only read, never trained. Both libraries are large, so they are imported
by name when an encoder is opened. Shape suffixes: M sentences, L tokens, D width of a vector.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anchorfl.models.errors import NamesError
from anchorfl.models.options import Pooling

Encode = Callable[[list[str]], Tensor]
"""Sentences -> their vectors [M, D], as the model gives them (not brought to length 1)."""


@dataclass(frozen=True, slots=True)
class OwnEncoder:
    """A text encoder of another package."""

    name: str
    """As the option names it."""
    make: Callable[[], Encode]
    """Makes it."""
    version: str
    """Its package and the digest of its source, on which its vectors depend."""

    def __str__(self) -> str:
        return self.name


INSTALL = "language models need the extra 'plm': pip install 'anchorfl[plm]'"
CLIP = "open_clip:"
"""Prefix of a model's name: open_clip's way to name a model follows."""
INSTALL_CLIP = f"models named {CLIP}... need open_clip: pip install open_clip_torch"
CLIP_SOURCES = ("hf-hub:", "local-dir:")
"""Prefixes of names that open_clip finds with their weights; any other needs the name of a set of weights."""


class NoEncoderError(NamesError):
    """A missing encoder: its library or its files are not on this machine."""


@contextmanager
def text_encoder(model: str | OwnEncoder, pooling: Pooling = "auto") -> Iterator[Encode]:
    """Yield the encoder of a model, for as long as the context is open.

    model: a folder with config, tokenizer and safetensors weights; a hub name, ``name@revision`` to pin it; or
    ``open_clip:`` and what open_clip calls a model; or another package's. pooling: ``mean``, the mean of the last
    hidden states over real tokens; ``first``, that of the first token; ``projected``, the model's own projection of
    texts (CLIP); ``auto``: ``projected`` for open_clip, else ``mean``. Raises NoEncoderError, or NamesError where the
    model cannot do this.
    """
    if isinstance(model, OwnEncoder):
        yield _own(model)
    elif model.startswith(CLIP):
        if pooling not in ("auto", "projected"):
            raise NamesError(f"text encoder {model!r} has its own projection: set class_embeddings.pooling to 'auto'")
        with _clip(model) as encode:
            yield encode
    else:
        with _transformer(model, "mean" if pooling == "auto" else pooling) as encode:
            yield encode


def library(model: str | OwnEncoder) -> str:
    """Return name and version of the library that the model needs, without importing it; of an encoder of another
    package, its version.

    Raises NoEncoderError where it is not installed.
    """
    if isinstance(model, OwnEncoder):
        return model.version
    name, install = ("open_clip_torch", INSTALL_CLIP) if model.startswith(CLIP) else ("transformers", INSTALL)
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError as error:
        raise NoEncoderError(f"text encoder {model!r}: {install}") from error


def folder_of(model: str | OwnEncoder) -> Path | None:
    """Return the folder on this machine that a model's name means; None where it means none that is here."""
    if isinstance(model, OwnEncoder):
        return None
    try:
        folder = Path(model.removeprefix(f"{CLIP}local-dir:")).expanduser()
    except RuntimeError:  # of nobody's home
        return None
    return folder if folder.is_dir() else None


def _own(encoder: OwnEncoder) -> Encode:
    """Return an encoder of another package that is held to its promise: NamesError where its code fails, or gives no
    vector of one width for each sentence.
    """
    try:
        encode = encoder.make()
    except Exception as error:  # it is anybody's code
        what = f"making it failed ({type(error).__name__}: {_one_line(error)})"
        raise NamesError(f"text encoder {encoder.name!r}: {what}") from error
    widths = set[int]()

    def checked(texts: list[str]) -> Tensor:
        try:
            with torch.inference_mode():
                vector_MD = encode(texts)
        except Exception as error:
            what = f"encoding {len(texts)} texts failed ({type(error).__name__}: {_one_line(error)})"
            raise NamesError(f"text encoder {encoder.name!r}: {what}") from error
        shape = tuple(vector_MD.shape) if isinstance(vector_MD, Tensor) else ()
        if len(shape) != 2 or shape[0] != len(texts) or len(widths | {shape[1]}) > 1:
            got = shape or type(vector_MD).__name__
            raise NamesError(
                f"text encoder {encoder.name!r}: gives {got} for {len(texts)} texts, and not a tensor (texts, width) of"
                " one width"
            )
        widths.add(shape[1])
        return vector_MD.detach().cpu().float()

    return checked


def mean_states(state_MLD: Tensor, mask_ML: Tensor) -> Tensor:
    """Return the mean of the states of real tokens (mask 1): [M, D]."""
    mask_ML1 = mask_ML[:, :, None].to(state_MLD.dtype)
    return (state_MLD * mask_ML1).sum(1) / mask_ML1.sum(1)


@contextmanager
def _transformer(model: str, pooling: Pooling) -> Iterator[Encode]:
    """Yield the encoder of a transformers model, loaded without chatter."""
    tokenizer, network = load(model, pooling)
    with quiet(_import("transformers", model, INSTALL)), torch.inference_mode():
        yield lambda texts: _encode(tokenizer, network, texts, model, pooling)


def load(model: str, pooling: Pooling) -> tuple[Any, Any]:
    """Return tokenizer and network of a transformers model, in evaluation mode and float32. Errors as
    ``text_encoder``.
    """
    transformers = _import("transformers", model, INSTALL)
    with quiet(transformers):
        tokenizer, network = _from_pretrained(transformers, model)
    _check(network, model, pooling)
    return tokenizer, network.eval().float()


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Have transformers print neither warnings nor progress bars in the block."""
    talk = transformers.utils.logging
    before, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        yield
    finally:
        talk.set_verbosity(before)
        if bars:
            talk.enable_progress_bar()


def _import(name: str, model: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NoEncoderError(f"text encoder {model!r}: {install} ({error})") from error


def _from_pretrained(transformers: Any, model: str) -> tuple[Any, Any]:
    folder = folder_of(model)
    name, _, revision = (str(folder), "", "") if folder else model.partition("@")
    pinned = {"revision": revision} if revision else {}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **pinned)
        # no pickle is read from a file
        network = transformers.AutoModel.from_pretrained(name, use_safetensors=True, **pinned)
    except Exception as error:  # damaged files make it raise almost anything
        hint = "give a folder with config.json, a tokenizer and safetensors weights, or a hub name that can be reached"
        raise NoEncoderError(f"language model {model!r} cannot be loaded ({_one_line(error)}); {hint}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do
    return tokenizer, network


def _check(network: Any, model: str, pooling: Pooling) -> None:
    config, projects = network.config, hasattr(network, "get_text_features")
    if pooling == "projected" and not projects:
        raise NamesError(f"language model {model!r} has no projection of texts: set class_embeddings.pooling to 'mean'")
    if pooling != "projected" and (config.is_encoder_decoder or not hasattr(config, "hidden_size")):
        hint = "set class_embeddings.pooling to 'projected'" if projects else "take one such as BERT or RoBERTa"
        raise NamesError(f"language model {model!r} ({config.model_type}) is no text encoder; {hint}")


def _encode(tokenizer: Any, network: Any, texts: list[str], model: str, pooling: Pooling) -> Tensor:
    try:
        return pooled(network, tokens(tokenizer, network, texts, model, pooling), pooling)
    except NamesError:
        raise
    except Exception as error:  # files that do not fit each other: a token that the network does not have
        raise NamesError(f"language model {model!r} cannot encode ({_one_line(error)}); get its files again") from error


def longest(tokenizer: Any, network: Any) -> int:
    """Return the tokens that a transformers network takes at most. RoBERTa's tokenizer knows that two of its positions
    are none.
    """
    positions = getattr(network.config.get_text_config(), "max_position_embeddings", 1 << 30)
    return int(min(tokenizer.model_max_length, positions))


def tokens(tokenizer: Any, network: Any, texts: list[str], model: str, pooling: Pooling) -> Mapping[str, Tensor]:
    """Return the inputs of a transformers network for texts, by name, each [M, L]. NamesError where one is too long."""
    most = longest(tokenizer, network)
    # models with a projection were trained on texts padded to full length, and some look at the last position
    padding = {"padding": "max_length", "max_length": most} if pooling == "projected" else {"padding": True}
    batch = tokenizer(texts, return_tensors="pt", **padding)
    if (length := batch["input_ids"].shape[1]) > most:
        raise NamesError(f"language model {model}: a prompt has {length} tokens, it takes {most}; shorten it")
    inputs: Mapping[str, Tensor] = dict(batch)
    words = None if pooling == "projected" else getattr(network.get_input_embeddings(), "num_embeddings", None)
    if words is not None and int(inputs["input_ids"].max()) >= words:
        raise NamesError(f"language model {model}: its tokenizer has words that its network lacks; get its files again")
    return inputs


def pooled(network: Any, batch: Mapping[str, Tensor], pooling: Pooling) -> Tensor:
    """Return the vectors [M, D] of texts, of which ``batch`` has the ``tokens``."""
    if pooling == "projected":
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        output = network.get_text_features(**inputs)
        vector_MD: Tensor = output if isinstance(output, Tensor) else output.pooler_output  # transformers 4, 5
        return vector_MD
    state_MLD: Tensor = network(**batch).last_hidden_state
    mask_ML: Tensor = batch["attention_mask"]
    if pooling == "mean":
        return mean_states(state_MLD, mask_ML)
    first_M = mask_ML.argmax(1)  # of the real tokens: some tokenizers pad on the left
    return state_MLD[torch.arange(len(first_M), device=first_M.device), first_M]


@contextmanager
def _clip(model: str) -> Iterator[Encode]:
    """Yield the text tower of an open_clip model, with its own projection.

    ``create_model`` leaves some towers in training mode, so that the dropout of BiomedCLIP's would make vectors random.
    """
    open_clip = _import("open_clip", model, INSTALL_CLIP)
    name = model.removeprefix(CLIP)
    has_source = name.startswith(CLIP_SOURCES)
    architecture, _, weights = (name, "", "") if has_source else name.partition("@")
    if not has_source and not weights:  # which would be drawn at random
        raise NamesError(f"text encoder {model!r}: say which weights, for example {CLIP}ViT-B-32@laion2b_s34b_b79k")
    try:
        tokenizer = open_clip.get_tokenizer(architecture)
        network = open_clip.create_model(architecture, pretrained=weights or None, require_pretrained=True)
    except Exception as error:  # as above
        hint = f"give {CLIP}hf-hub:..., {CLIP}local-dir:... or {CLIP}architecture@weights that can be reached"
        raise NoEncoderError(f"text encoder {model!r} cannot be loaded ({_one_line(error)}); {hint}") from error
    network = network.eval().float()

    def encode(texts: list[str]) -> Tensor:
        token_ML = tokenizer(texts)
        # its tokenizers cut what is too long without a word: then another word at the end changes nothing
        if cut := [text for text, same in zip(texts, _unchanged(tokenizer, texts, token_ML), strict=True) if same]:
            raise NamesError(f"text encoder {model}: {cut[0]!r} has too many tokens for it; shorten it")
        vector_MD: Tensor = network.encode_text(token_ML)
        return vector_MD

    with torch.inference_mode():
        yield encode


def _unchanged(tokenizer: Any, texts: list[str], token_ML: Tensor) -> list[bool]:
    longer_ML = tokenizer([f"{text} more" for text in texts])
    same: list[bool] = (longer_ML == token_ML).all(1).tolist()
    return same


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
