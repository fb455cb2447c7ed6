"""The folder of a run: its name, its lock, its configuration and its result."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypedDict

from filelock import FileLock, Timeout

from anchorfl.pipeline.config.experiment import Experiment, data_and_method, digest, plugins_of, redacted_tree
from anchorfl.pipeline.config.schema import from_tree
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.places import check_own_code, seal_of, with_own_places
from anchorfl.pipeline.storage.run_record import FINAL_SCORES, read_metadata
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import parsed
from anchorfl.tasks.files.regular_files import outside, read_text_bytes, regular
from anchorfl.tasks.plugins import code_digest

RUNS = Path("runs")
CONFIG, RESULT, LOCK = "config.json", "result.json", ".lock"
WRITTEN = ("run.json", "metrics.jsonl", RESULT, "checkpoint", "model", "report")
"""What a run writes into its folder after ``CONFIG``."""
SERVER_STATES = "server_states"
"""Folder of the states that ``evaluation.save_state_every`` keeps."""
RunState = Literal["finished", "running", "interrupted", "failed"]
OF_RUNS = {
    "sweep": "its runs lie below {folder}/trials and {folder}/final; it goes on with: anchorfl sweep --resume {quoted}",
    "trial": "its runs, one per seed, lie in {folder}",
    "table": "its runs lie beside it; it goes on with the command that began it",
}
"""Kinds of a record that stands over those of several runs -> where these lie, and how it goes on."""


def new_folder(experiment: Experiment, label: str = "", runs: Path = RUNS) -> Path:
    """Return a folder for a new run: ``output`` if given and empty, else one below ``runs`` that does not exist yet.

    Raises InputError where ``output`` holds a run already.
    """
    if experiment.output:
        folder = Path(experiment.output)
        check_no_record(folder)
        if (folder / CONFIG).exists():
            command = shlex.join(["anchorfl", "resume", str(folder)])
            raise InputError(f"{folder} holds a run already: continue it with: {command}; or give another --output")
        return folder
    stem = label.replace("/", "-") or data_and_method(experiment)
    name = f"{stem}-s{experiment.seed}-{digest(experiment)[:8]}"
    tried = (runs / (name if n == 1 else f"{name}-{n}") for n in range(1, 10_000))
    return next(folder for folder in tried if not folder.exists())


def check_stays_inside(folder: Path) -> None:
    """Raise InputError where what a run writes would lie outside of its folder, by a link that somebody put there."""
    for name in (LOCK, CONFIG, *WRITTEN, FINAL_SCORES, SERVER_STATES):
        if (path := folder / name).is_symlink() and outside(path, folder):
            raise InputError(f"{path} is a link out of its folder: put in its place what it names")


@contextmanager
def lock_run(folder: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the folder of a run or a sweep for this process; InputError where another live process holds it.

    The operating system drops the lock with the process, so that a kill leaves nothing to clean up. patience_s: time to
    wait for the other: a process that was killed from afar may take some seconds to die.
    """
    check_stays_inside(folder)
    path = regular(folder / LOCK)
    lock = FileLock(path, patience_s, thread_local=False, poll_interval=0.2, fallback_to_soft=False, on_acquired=_sign)
    locked = None
    while locked is None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            locked = lock.acquire()
        except FileNotFoundError:  # who held the folder left it empty, and removed it
            continue
        except Timeout as error:
            holder = "?"
            with suppress(OSError):  # Windows lets nobody else read it
                holder = path.read_text().strip() or holder
            raise InputError(
                f"{folder} is in use by process {holder}: wait for it, or give another --output"
            ) from error
    with locked:
        try:
            yield
        finally:
            if [p.name for p in folder.iterdir()] == [LOCK]:  # bad input was found before anything was written
                with suppress(OSError):  # Windows removes no open file
                    path.unlink()
                    folder.rmdir()


def kind_of(metadata: Mapping[str, Any]) -> str:
    """Return what ``run.json`` is the record of: ``run``, or a kind of ``OF_RUNS``."""
    kind = metadata.get("tags", {}).get("kind")
    return kind if isinstance(kind, str) and kind in OF_RUNS else "run"


def state_of(folder: Path, status: str, *, finished: bool) -> RunState:
    """Return what a run is at: who holds its lock trains it now. status: of its record; finished: it has a result."""
    if finished:
        return "finished"
    stopped: RunState = "failed" if status == "FAILED" else "interrupted"
    if not (folder / LOCK).exists():
        return stopped
    try:
        with FileLock(folder / LOCK, 0, thread_local=False, fallback_to_soft=False):
            return stopped
    except Timeout:
        return "running"
    except OSError:  # of somebody else, who alone may lock it
        return stopped


def _sign(lock: int) -> None:
    """Write the number of this process into the lock file, for the message to others."""
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())


def write_config(folder: Path, experiment: Experiment) -> None:
    """Write the resolved options into a file whose presence makes the folder a run."""
    content = {"digest": digest(experiment), "seal": seal_of(experiment), **redacted_tree(experiment)}
    write_atomically(folder / CONFIG, json.dumps(content, indent=1).encode())


def check_no_record(folder: Path, kinds: Collection[str] = tuple(OF_RUNS)) -> None:
    """Raise InputError where a folder has a record of one of these kinds, which a run's would be written over."""
    held = kind_of(read_metadata(folder))
    if held in kinds:
        raise InputError(f"{folder} is a {held}'s: give another folder")


def check_is_one_run(folder: Path, metadata: Mapping[str, Any], kinds: Collection[str] = tuple(OF_RUNS)) -> None:
    """Raise InputError where the record of a folder is one of several runs, of one of these kinds."""
    if (kind := kind_of(metadata)) in kinds:
        quoted = shlex.quote(str(folder))
        raise InputError(
            f"{folder} is a {kind}'s folder, not a run's: {OF_RUNS[kind].format(folder=folder, quoted=quoted)}"
        )


def check_is_same_run(folder: Path, experiment: Experiment) -> None:
    """Raise InputError where the folder holds another run, or a table or sweep: its record would be written over."""
    check_no_record(folder)
    if not (folder / CONFIG).exists():
        if foreign := [name for name in WRITTEN if (folder / name).exists()]:
            raise InputError(
                f"{folder} holds no run, but {', '.join(foreign)}, which a run would write over: give another folder"
            )
    elif (held := read_config(folder).get("digest", "")) != digest(experiment):
        raise InputError(f"{folder} holds another run (digest {str(held)[:8]}): give another folder")


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json``: the resolved options of a run, as ``to_tree`` gave them, with their digest and seal.

    Raises InputError where the folder holds no run.
    """
    try:
        text, hint = read_text_bytes(folder / CONFIG), "start the run anew in another --output"
    except FileNotFoundError as error:
        check_is_one_run(folder, read_metadata(folder))
        known = sorted(p.parent.name for p in RUNS.glob(f"*/{CONFIG}"))
        raise InputError(
            f"{folder} holds no run ({CONFIG} is missing); runs in {RUNS}/: {', '.join(known) or 'none'}"
        ) from error
    tree: dict[str, Any] = parsed(text, dict[str, Any], folder / CONFIG, hint)
    return tree


class ResultFile(TypedDict, total=False):
    """The content of ``result.json``, as far as it is read again."""

    checksum: str
    scores: dict[str, dict[str, float]]
    client_test: dict[str, dict[str, float]]
    rounds: int
    seconds: float
    digest: str


def read_result(folder: Path, *needed: str) -> dict[str, Any]:
    """Return ``result.json`` of a run folder (the fields of ``ResultFile``); {} where there is none.

    needed: fields that are used. Raises InputError where it is damaged or lacks one of them.
    """
    path, hint = folder / RESULT, "delete it, and 'anchorfl resume' writes it again"
    if not path.exists():
        return {}
    found: dict[str, Any] = parsed(read_text_bytes(path), ResultFile, path, hint)
    if lacking := [name for name in needed if name not in found]:
        raise InputError(f"{path} is damaged ({lacking[0]} is missing); {hint}")
    return found


def read_experiment(folder: Path, typed: Mapping[str, str] | None = None) -> Experiment:
    """Return the experiment of a run folder.

    typed: places, as in ``check_own_code``. Raises InputError where it holds no run, its options are not of this
    version, or it names code of others.
    """
    config = read_config(folder)
    tree = {name: part for name, part in config.items() if name not in ("digest", "seal")}
    check_own_code(tree, str(config.get("seal", "")), folder / CONFIG, typed or {})
    try:
        return from_tree(tree)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from error


def read_own_experiment(folder: Path, typed: Mapping[str, str], copy: str = "") -> Experiment:
    """Return the experiment of a run folder to go on with, with the places that the user types now (``places.py``).

    copy: where the folder was fetched from. Raises InputError as ``read_experiment`` and ``with_own_places``.
    """
    experiment, seal = read_experiment(folder, typed), str(read_config(folder).get("seal", ""))
    return with_own_places(experiment, seal, folder / CONFIG, typed, copy)


def check_digest(folder: Path, experiment: Experiment) -> None:
    """Raise InputError where ``config.json`` states another digest than its options have: a run goes on as it began."""
    if read_config(folder).get("digest") != digest(experiment):
        tags = read_metadata(folder).get("tags", {})
        for word, of in plugins_of(experiment).items():
            if code_digest(of) not in tags.get(f"{word}_plugin", code_digest(of)):
                raise InputError(
                    f"{folder}: the source or files of its {word.replace('_', ' ')} were edited since it began: put"
                    " them back, or start the run anew in another --output"
                )
        raise InputError(
            f"{folder / CONFIG}: its options do not have the digest that it states: they were edited, or are of another"
            " version; restore the file from a copy, or start the run anew in another --output"
        )
