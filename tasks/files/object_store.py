"""Places: folders and files that may lie on object storage. The one module that knows URIs.

A place is a string: ``s3://bucket/prefix``, ``gs://bucket/prefix`` (both through pyarrow, with the credentials that the
machine has), ``file:///folder``, or a path. An object store has no folders and no renaming; all that is asked of it
here is that an object is there as a whole or not at all. Another endpoint than Amazon's comes from
``AWS_ENDPOINT_URL``, which pyarrow reads itself, or from the address
(``s3://bucket/prefix?endpoint_override=host:port&scheme=http``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from filelock import FileLock

from anchorfl.tasks.errors import InputError

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "s3": {"allow_delayed_open": "true"},  # a small file is one request, and no half upload is left after a kill
    "gs": {"retry_limit_seconds": "30"},  # the default is 15 minutes, in which nobody learns what is wrong
    "file": {},
}
"""Known schemes, and what their address says unless the user's says otherwise."""
READS = 10
"""A file that another machine replaces meanwhile is read so many times."""
DRAFT = ".tmp"
"""End of the names of files that are being written to a disk; they are no files yet."""
HINTS = (
    (
        r"ACCESS_DENIED|ACCESS_KEY|SIGNATURE|TOKEN|CREDENTIAL|UNAUTHORIZED|PERMISSION|Permission denied|status 40[13]",
        "no permission: give this machine credentials that may list, read, write and delete there",
    ),
    (
        r"NO_SUCH_BUCKET|Bucket '[^']*' not found|bucket does not exist",
        "there is no such bucket: make it or correct the address",
    ),
    (
        r"NETWORK_CONNECTION|curlCode|UNAVAILABLE|TIMEOUT|Could not connect|[Tt]imed out",
        "no answer: look at the network, the region and AWS_ENDPOINT_URL",
    ),
    (r"PERMANENT_REDIRECT|HTTP status 301", "the bucket is in another region: set AWS_REGION"),
)
"""What a library says -> what to do."""


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a place is given as a URI."""
    return "://" in os.fspath(place)


def check(place: str, option: str) -> None:
    """InputError where ``option`` holds what is no place: an unknown scheme, no bucket, a relative path, a key."""
    url = urlsplit(place)
    if "@" in url.netloc and url.netloc.partition("@")[0] != "anonymous":
        raise InputError(
            f"{option} holds a key, which would stand in config.json and in every record: leave keys to the"
            f" environment (AWS_PROFILE, AWS_ACCESS_KEY_ID) and give {url.scheme}://{url.netloc.rpartition('@')[2]}..."
        )
    if not is_remote(place):
        if not os.path.isabs(place):
            raise InputError(f"{option} = {place!r}: give s3://bucket/folder, gs://bucket/folder or an absolute path")
        return
    if url.scheme not in SCHEMES:
        raise InputError(f"{option} = {shown(place)!r}: no scheme '{url.scheme}'; known: {', '.join(SCHEMES)}")
    if bool(url.netloc) == (url.scheme == "file"):
        form = "file:///folder" if url.scheme == "file" else f"{url.scheme}://bucket/folder"
        raise InputError(f"{option} = {shown(place)!r} must look like {form}")


def join(place: str, *names: str) -> str:
    """A place below a place; ``names`` may hold slashes."""
    if not is_remote(place):
        return os.path.join(place, *names)
    url = urlsplit(place)
    path = "/".join([url.path.rstrip("/"), *(quote(name) for name in names)])
    return url._replace(path=path if path.startswith("/") else f"/{path}").geturl()


def last_name(place: str) -> str:
    """Name of the file or folder at a place."""
    path = unquote(urlsplit(place).path) if is_remote(place) else place
    return path.rstrip("/").rpartition("/")[2]


def shown(place: str) -> str:
    """A place as it may be printed: without a key."""
    if not is_remote(place):
        return place
    url = urlsplit(place)
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


def read_bytes(place: str) -> bytes:
    """Content of a file, whole. FileNotFoundError where there is none, InputError where the store cannot be used."""
    with _explained(place), _opened(place) as (system, path):
        for _ in range(READS):
            with system.open_input_stream(path) as stream:
                data = bytes(stream.readall())
            # pyarrow asks for the size, then for so many bytes: of a larger file that has come meanwhile, for a part
            if system.get_file_info(path).size == len(data):
                return data
        raise InputError(f"{shown(place)} changes while it is read: end what writes it, or try again")


def exists(place: str) -> bool:
    """Whether there is a file."""
    with _explained(place), _opened(place) as (system, path):
        return bool(system.get_file_info(path).is_file)


def sizes(place: str) -> dict[str, int]:
    """Every file below a place: its name relative to it -> bytes; {} where there is nothing, not even a folder.

    InputError where the store cannot be used, or has no such bucket.
    """
    from pyarrow.fs import FileSelector

    with _explained(place), _opened(place) as (system, path):
        try:
            found = system.get_file_info(FileSelector(path, recursive=True))
        except FileNotFoundError:
            return {}
        start = len(path.rstrip("/")) + 1
        return {info.path[start:]: info.size for info in found if info.is_file and not info.path.endswith(DRAFT)}


def write_bytes(place: str, data: bytes) -> None:
    """Write a file: whole, or not at all. InputError where the store cannot be used."""
    from pyarrow.fs import LocalFileSystem

    with _explained(place), _opened(place) as (system, path):
        if isinstance(system, LocalFileSystem):
            _write_to_disk(Path(path), data)
            return
        with system.open_output_stream(path) as stream:
            stream.write(data)  # in one piece: an error within the block would publish what came before it


def delete(place: str) -> None:
    """Delete a file, if it is there. InputError where the store cannot be used."""
    with _explained(place), _opened(place) as (system, path):
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return


def fetch(place: str, path: Path, sha256: str = "") -> None:
    """Bring a file to ``path`` on this machine unless it is there: once and whole, however many processes ask for it.

    sha256: of its bytes, checked where it is given. FileNotFoundError where there is no such file, InputError where it
    has another checksum or the store cannot be used.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # dropped by the operating system if this process dies
    with FileLock(path.with_name(f".{path.name}.lock"), fallback_to_soft=False):
        if path.exists():
            return
        data = read_bytes(place)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise InputError(
                f"{shown(place)} does not have the checksum that its manifest states: delete {path.parent} and start"
                " again; if that does not help, delete the folder at the place, too"
            )
        _write_to_disk(path, data)


def _write_to_disk(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}{DRAFT}")
    try:
        with draft.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _opened(place: str) -> Iterator[tuple[Any, str]]:
    """The file system of a place, and the path in it."""
    url = urlsplit(place)
    if not is_remote(place) or url.scheme == "file":
        yield _file_system("file:///", ()), os.path.abspath(unquote(url.path) if is_remote(place) else place)
        return
    query = urlencode(dict(SCHEMES.get(url.scheme, {})) | dict(parse_qsl(url.query)))
    # What pyarrow reads when it makes a file system is a part of the key: another endpoint is another file system.
    told = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "STORAGE_"))))
    bucket = url.netloc.rpartition("@")[2]
    yield _file_system(f"{url.scheme}://{url.netloc}/?{query}", told), f"{bucket}{unquote(url.path)}".rstrip("/")


@lru_cache(maxsize=16)
def _file_system(root: str, told: tuple[tuple[str, str], ...]) -> Any:
    from pyarrow.fs import FileSystem  # not needed by runs that stay on one machine

    return FileSystem.from_uri(root)[0]


@contextmanager
def _explained(place: str) -> Iterator[None]:
    """What a store refuses, as an InputError of one line with the place and the mend."""
    try:
        yield
    except (FileNotFoundError, InputError):
        raise
    except (OSError, ValueError) as error:  # pyarrow's errors are of these two kinds
        said = (str(error).splitlines() or [type(error).__name__])[0]
        said = re.sub(r"\s*\(Request ID: [^)]*\)", "", said)
        hint = next((hint for pattern, hint in HINTS if re.search(pattern, said)), "mend what the store says")
        raise InputError(f"{shown(place)}: {hint} ({said})") from error
