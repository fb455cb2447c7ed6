"""The places that options name, such as an MLflow server, a folder of data or a module, and whether this user has named
them.

A run folder may come from somebody else, and its ``config.json`` may name any place. So a folder that this user's
commands wrote carries a seal: an HMAC-SHA256 of its places under a key that only this user can read. Places without
the right seal are used where the user types them again, or where the environment names them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anchorfl.models.options import library_of
from anchorfl.pipeline.cluster.auth_token import create
from anchorfl.pipeline.config.experiment import Experiment, digest, redacted_tree
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.config.text_encoders import names_encoder_code
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.plugins import names_code

PLACES: Mapping[str, str] = {
    "tracking.uri": "MLFLOW_TRACKING_URI",
    "cluster.address": "RAY_ADDRESS",
    "cluster.backup": "",
    "cluster.memories": "",
    "task.root": "ANCHORFL_DATA",
    "task.cache": "ANCHORFL_CACHE",
    "task.file": "",
    "task.class_names": "",
    "task.input_spec": "",
    "model.weights": "",
    "class_embeddings.table": "",
    "class_embeddings.encoder": "",
    "cluster.py_modules": "",
    "tracking.trackers": "",
    "method.name": "",
    "model.network": "",
    "task.name": "",
}
"""Options that name where a run reads, writes or sends -> the environment variable that names the same; "" for none."""
CODE = "method.name", "model.network", "task.name"
"""Those whose code is run when a record is read."""
ENCODER = "class_embeddings.encoder"
"""Likewise, where it names a module, or its files count as those of ``hf:`` networks do (``reads_encoder``)."""
NAMES = *CODE, "tracking.trackers"
"""Those that are places where they name a module, and a name alone otherwise."""
NO_PLACE = {"", "none", "auto"}
"""Values that name nothing, or what this machine has anyway."""


def places_of(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the places that the options of a record name, option -> value.

    tree: as of ``redacted_tree``, or read from a file, of which nothing is certain.
    """
    out = dict[str, str]()
    for option in PLACES:
        section, _, key = option.partition(".")
        table = tree.get(section)
        place = table.get(key, "") if isinstance(table, dict) else ""
        if not isinstance(place, str) or place in NO_PLACE or (option in NAMES and not names_code(place)):
            continue
        if option != "model.network" or library_of(place) in ("", "hf"):  # of the others no name reads a file
            out[option] = place
    return out


def seal_of(experiment: Experiment, options: Collection[str] = tuple(PLACES)) -> str:
    """Return the seal of an experiment's places, or some of them, hexadecimal; "" where there are none.

    The key is made where there is none. Also "" where it cannot be, as for a user without a home folder: then a resumed
    run asks for its places.
    """
    places = places_of(redacted_tree(experiment))
    return _seal({option: place for option, place in places.items() if option in options})


def _seal(places: Mapping[str, str]) -> str:
    key = _key() if places else b""
    return hmac.new(key, json.dumps(places, sort_keys=True).encode(), hashlib.sha256).hexdigest() if key else ""


def seal_of_names(names: Mapping[str, str]) -> str:
    """Return the seal of modules that a record of another kind names, by where; "" where there are none, or no key."""
    return _seal(names)


def check_own_names(names: Mapping[str, str], seal: str, record: Path) -> None:
    """Raise InputError where a record names modules, and this user's commands did not write them there."""
    if names and not _sealed(names, seal):
        where, name = next(iter(names.items()))
        raise InputError(
            f"{record} was not written by you on this machine, and names {where} = {name!r}, whose code would run:"
            " look at that, and begin one of your own (SECURITY.md says why)"
        )


def _key() -> bytes:
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "anchorfl" / "seal_key"
        if not path.exists():
            create(path)
        return path.read_bytes()
    return b""


def check_own_code(tree: Mapping[str, Any], seal: str, record: Path, typed: Mapping[str, str]) -> None:
    """Raise InputError where a record names modules that this user has not: reading its options would run their code.

    tree: its options, as they are read. seal, record, typed: as in ``with_own_places``.
    """
    places = places_of(tree)
    named = {option: place for option, place in places.items() if option in CODE}
    encoder = places.get(ENCODER, "")
    if names_encoder_code(encoder) or (encoder and reads_encoder(tree)):
        named[ENCODER] = encoder
    code = {option: place for option, place in named.items() if typed.get(option) != place}
    if code and not _sealed(places, seal):
        raise _foreign(record, code)


def reads_encoder(tree: Mapping[str, Any]) -> bool:
    """Return whether the files of a text encoder count in the digest of a record: it is the label encoder, or FedTSP's.

    tree: of which nothing is certain.
    """
    table, method = tree.get("class_embeddings"), tree.get("method")
    adapted = isinstance(table, dict) and bool(table.get("lora_rank"))
    return adapted or (isinstance(method, dict) and method.get("name") == "fedtsp")


def _sealed(places: Mapping[str, str], seal: str) -> bool:
    return bool(seal) and hmac.compare_digest(seal.encode(), _seal(places).encode())


def _foreign(record: Path, places: Mapping[str, str]) -> InputError:
    named = ", ".join(f"{option} = {place!r}" for option, place in places.items())
    return InputError(
        f"{record} was not written by you on this machine, and names {named}: look at that, and type what you want"
        f" used, for example --{next(iter(places))} VALUE (SECURITY.md says why)"
    )


def with_own_places(
    experiment: Experiment, seal: str, record: Path, typed: Mapping[str, str], copy: str = ""
) -> Experiment:
    """Return the experiment of a record with the places that the user types now.

    seal: of the record. typed: option -> value, also for places that the record does not name. copy: where its folder
    was fetched from, which the user typed. InputError where the record names places that this user has not named, or a
    typed one makes another experiment of it.
    """
    known = dict[str, str]()
    if copy and object_store.join(experiment.cluster.backup, record.parent.name) == copy.rstrip("/"):
        known["cluster.backup"] = experiment.cluster.backup
    check_own_places(experiment, seal, record, typed.keys(), known)
    return with_places(experiment, typed)


def check_own_places(
    experiment: Experiment, seal: str, record: Path, typed: Collection[str], known: Mapping[str, str], section: str = ""
) -> None:
    """Raise InputError where a record names places that this user has not named. typed: options that the user types;
    known: places that are the user's own; section: of its options alone, such as ``task``.
    """
    known = {option: os.environ.get(variable, "") for option, variable in PLACES.items() if variable} | dict(known)
    places = places_of(redacted_tree(experiment))
    foreign = {
        option: place
        for option, place in places.items()
        if option.startswith(section) and option not in typed and place != known.get(option)
    }
    if foreign and not _sealed(places, seal):
        raise _foreign(record, foreign)


def with_places(experiment: Experiment, typed: Mapping[str, str]) -> Experiment:
    """Return the experiment with places that the user types. InputError as ``with_own_places``, which asks whose the
    others are.
    """
    for option in typed.keys() - PLACES.keys():
        raise InputError(
            f"--{option}: a run goes on with its own options; only places can be given: {', '.join(PLACES)}"
        )
    own = with_options(experiment, typed)
    if digest(own) != digest(experiment):
        file, hint = Path(experiment.task.file), ""
        if own.task.file != experiment.task.file:
            moved = f"put it or a link at {file}" if file.is_absolute() else f"--task.root FOLDER where {file} lies now"
            hint = f", or, for a table that has moved: {moved}"
        raise InputError(
            f"--{', --'.join(typed)}: another value makes another experiment; start it in another --output{hint}"
        )
    return own
