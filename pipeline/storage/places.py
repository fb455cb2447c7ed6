"""The places that options name, such as an MLflow server or a folder of data, and whether this user has named them.

A run folder may come from somebody else, and its ``config.json`` may name any place. So a folder that this user's
commands wrote carries a seal: an HMAC-SHA256 of its places under a key that only this user can read. Places without
the right seal are used where the user types them again, or where the environment names them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from anchorfl.pipeline.cluster.auth_token import create
from anchorfl.pipeline.config.experiment import Experiment, digest, redacted_tree
from anchorfl.pipeline.config.schema import with_options
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store

PLACES: Mapping[str, str] = {
    "tracking.uri": "MLFLOW_TRACKING_URI",
    "cluster.address": "RAY_ADDRESS",
    "cluster.backup": "",
    "task.root": "ANCHORFL_DATA",
    "task.cache": "ANCHORFL_CACHE",
    "task.file": "",
    "task.class_names": "",
    "model.weights": "",
    "class_embeddings.table": "",
    "class_embeddings.encoder": "",
}
"""Options that name where a run reads, writes or sends -> the environment variable that names the same; "" for none."""
NO_PLACE = {"", "none", "auto"}
"""Values that name nothing, or what this machine has anyway."""


def places_of(experiment: Experiment) -> dict[str, str]:
    """Return the places that an experiment names, option -> value, without passwords."""
    tree = redacted_tree(experiment)
    found = {option: tree[option.partition(".")[0]][option.partition(".")[2]] for option in PLACES}
    return {option: place for option, place in found.items() if place not in NO_PLACE}


def seal_of(experiment: Experiment) -> str:
    """Return the seal of an experiment's places, hexadecimal; "" where there are none.

    The key is made where there is none. Also "" where it cannot be, as for a user without a home folder: then a resumed
    run asks for its places.
    """
    places = places_of(experiment)
    key = _key() if places else b""
    return hmac.new(key, json.dumps(places, sort_keys=True).encode(), hashlib.sha256).hexdigest() if key else ""


def _key() -> bytes:
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "anchorfl" / "seal_key"
        if not path.exists():
            create(path)
        return path.read_bytes()
    return b""


def with_own_places(
    experiment: Experiment, seal: str, record: Path, typed: Mapping[str, str], copy: str = ""
) -> Experiment:
    """Return the experiment of a record with the places that the user types now.

    seal: of the record. typed: option -> value, also for places that the record does not name. copy: where its folder
    was fetched from, which the user typed. InputError where the record names places that this user has not named, or a
    typed one makes another experiment of it.
    """
    for option in typed.keys() - PLACES.keys():
        raise InputError(
            f"--{option}: a run goes on with its own options; only places can be given: {', '.join(PLACES)}"
        )
    known = {option: os.environ.get(variable) for option, variable in PLACES.items() if variable}
    if copy and object_store.join(experiment.cluster.backup, record.parent.name) == copy.rstrip("/"):
        known["cluster.backup"] = experiment.cluster.backup
    if not (seal and hmac.compare_digest(seal.encode(), seal_of(experiment).encode())):
        foreign = {o: p for o, p in places_of(experiment).items() if o not in typed and p != known.get(o)}
        if foreign:
            named = ", ".join(f"{option} = {place!r}" for option, place in foreign.items())
            raise InputError(
                f"{record} was not written by you on this machine, and names {named}: look at that, and type what you"
                f" want used, for example --{next(iter(foreign))} VALUE (SECURITY.md says why)"
            )
    own = with_options(experiment, typed)
    if digest(own) != digest(experiment):
        raise InputError(
            f"--{', --'.join(typed)}: another value makes another experiment; start it in another --output"
        )
    return own
