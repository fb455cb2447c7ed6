"""The networks of plug-ins and libraries: encoders of other packages, by entry point, prefix or module and name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.models.options import LIBRARIES, NETWORKS, EncoderSpec, library_of
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import NETWORK, LibraryCode, check_name_is_free, find_plugin

if TYPE_CHECKING:  # torch
    from torch import nn

    from anchorfl.models.encoders.plug_in import MakeEncoder

WHERE = "[model] network"
TOKENIZER = "*.json", "*.txt", "*.model"
"""Files of a language model's folder that its tokens may depend on."""


class LibraryNetwork(LibraryCode):
    """What makes the encoder of a library's network; the library is imported when it does."""

    __slots__ = ()

    def __call__(self, spec: EncoderSpec) -> nn.Module:
        """Return the encoder for an input. Raises NetworkError where it does not fit."""
        from anchorfl.models.encoders.libraries import make

        prefix, _, name = self.name.partition(":")
        return make(prefix, str(self.files[0].parent) if self.files else name, spec)


def find_network(name: str) -> MakeEncoder | None:
    """Return what makes the encoder of a plug-in or library; None for a network of AnchorFL. InputError where there is
    none.
    """
    if name in NETWORKS:
        check_name_is_free(NETWORK, name, f"{WHERE} = {name!r}", NETWORKS)
        return None
    if library_of(name):
        return _of_library(name)
    found: Any = find_plugin(NETWORK, name, WHERE, NETWORKS)
    if not callable(found) or not hasattr(found, "__qualname__"):
        raise InputError(
            f"{WHERE} = {name!r}: a {type(found).__name__}, and no class or function that makes an encoder"
        )
    return found  # type: ignore[no-any-return]  # what it makes is looked at when it is made


def _of_library(name: str) -> LibraryNetwork:
    prefix, _, network = name.partition(":")
    package, extra = LIBRARIES[prefix]
    installed = _installed(package, extra, f"{WHERE} = {name!r}")
    return LibraryNetwork(name, installed, _files(network, f"{WHERE} = 'hf:{network}'") if prefix == "hf" else ())


def find_label_encoder(name: str) -> LibraryCode:
    """Return the language model that is a run's label encoder, with the files of its network and its tokenizer.
    InputError where it is not on this machine.
    """
    where = f"class_embeddings.encoder = {name!r}"
    installed = _installed("transformers", "plm", where)
    config, *weights = _files(name, where)
    if not weights:
        raise InputError(f"{where}: no safetensors weights beside its config.json: save them as model.safetensors")
    words = {path for pattern in TOKENIZER for path in config.parent.glob(pattern)} - {config}
    return LibraryCode(name, installed, (config, *weights, *sorted(words)))


def _installed(package: str, extra: str, where: str) -> str:
    try:
        return f"{package}=={version(package)}"
    except PackageNotFoundError as error:
        raise InputError(f"{where} needs {package}, which is not installed: pip install 'anchorfl[{extra}]'") from error


def _files(name: str, where: str) -> tuple[Path, ...]:
    """Return the files of a transformers network, config.json first: of a folder, or of a hub name's copy in the cache
    on this machine. Nothing is downloaded. where: the option, for messages.
    """
    try:
        folder = Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(f"{where}: there is no such home ({error}); write the path in full") from error
    if not folder.is_dir():
        folder = _cached(name) or folder
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(
            f"{where}: no folder with a config.json, nor the hub name of a network in the cache of this machine;"
            " nothing is downloaded: fetch it first, or write a config.json"
        )
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and (other := next((p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth")), "")):
        raise InputError(
            f"{where}: its weights are in {other}, and only safetensors files are read: save them as"
            " model.safetensors, or move them away to start from drawn ones"
        )
    return config, *weights


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    try:
        found = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    except HFValidationError:  # no name that the hub could have
        return None
    return Path(found).parent if isinstance(found, str) else None
