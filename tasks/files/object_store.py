"""Folders and files that may lie on object storage. The one module that knows URIs of folders.

A location is a string: ``s3://bucket/prefix``, ``gs://bucket/prefix`` (both through pyarrow, with the credentials that
the machine has), ``file:///folder``, or a path. An object store has no folders and no renaming; all that is asked of it
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

from anchorfl.tasks.errors import InputError, PreparedDataError

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "s3": {"allow_delayed_open": "true"},  # a small file is one request, and no half upload is left after a kill
    "gs": {"retry_limit_seconds": "30"},  # the default is 15 minutes, in which nobody learns what is wrong
    "file": {},
}
"""Known schemes, and their parameters unless the user's address says otherwise."""
KEY = re.compile(r"([^/:?#]+://)([^/?#]*:[^?#]*@|[^/?#]*@)")
"""A scheme, and the key before the bucket; a secret may hold slashes."""
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
"""Pattern of a library's message -> what to do."""


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URI."""
    return "://" in os.fspath(location)


def check_location(location: str, option: str) -> None:
    """Raise InputError where ``option`` holds no location: an unknown scheme, no bucket, a relative path, a key."""
    url = urlsplit(location)
    if (key := KEY.match(location)) and key[2] != "anonymous@":
        raise InputError(
            f"{option} holds a key, which would stand in config.json and in every record: leave keys to the"
            f" environment (AWS_PROFILE, AWS_ACCESS_KEY_ID) and give {shown(location)}"
        )
    if not is_remote(location):
        if not os.path.isabs(location):
            raise InputError(
                f"{option} = {location!r}: give s3://bucket/folder, gs://bucket/folder or an absolute path"
            )
        return
    if url.scheme not in SCHEMES:
        raise InputError(f"{option} = {shown(location)!r}: no scheme '{url.scheme}'; known: {', '.join(SCHEMES)}")
    if bool(url.netloc) == (url.scheme == "file"):
        form = "file:///folder" if url.scheme == "file" else f"{url.scheme}://bucket/folder"
        raise InputError(f"{option} = {shown(location)!r} must look like {form}")


def join(location: str, *names: str) -> str:
    """Return a location below a location; ``names`` may hold slashes."""
    if not is_remote(location):
        return os.path.join(location, *names)
    url = urlsplit(location)
    path = "/".join([url.path.rstrip("/"), *(quote(name) for name in names)])
    return url._replace(path=path if path.startswith("/") else f"/{path}").geturl()


def last_name(location: str) -> str:
    """Return the name of the file or folder at a location."""
    path = unquote(urlsplit(location).path) if is_remote(location) else location
    return path.rstrip("/").rpartition("/")[2]


def shown(location: str) -> str:
    """Return a location as it may be printed: without a key."""
    return KEY.sub(r"\1", location)


def read_bytes(location: str) -> bytes:
    """Return the content of a file. Raises FileNotFoundError, or InputError where the store cannot be used."""
    with _explain_errors(location), _open_store(location) as (system, path):
        for _ in range(READS):
            with system.open_input_stream(path) as stream:
                data = bytes(stream.readall())
            # pyarrow asks for the size, then for so many bytes: of a larger file that has come meanwhile, for a part
            if system.get_file_info(path).size == len(data):
                return data
        raise InputError(f"{shown(location)} changes while it is read: end what writes it, or try again")


def read_part(location: str, start: int, size: int) -> bytes:
    """Return a part of a file, short where the file is. Errors as ``read_bytes``."""
    with _explain_errors(location), _open_store(location) as (system, path), system.open_input_file(path) as file:
        return bytes(file.read_at(size if size >= 0 else max(0, file.size() - start), start))


def exists(location: str) -> bool:
    """Return whether there is a file."""
    with _explain_errors(location), _open_store(location) as (system, path):
        return bool(system.get_file_info(path).is_file)


def sizes(location: str) -> dict[str, int]:
    """Return every file below a location: its name relative to it -> bytes; {} where there is nothing, not even a
    folder.

    Raises InputError where the store cannot be used, or has no such bucket.
    """
    return {name: size for name, (size, _) in listing(location).items()}


def listing(location: str) -> dict[str, tuple[int, int]]:
    """Return ``sizes`` with the time of each file's last change, in ns."""
    from pyarrow.fs import FileSelector

    with _explain_errors(location), _open_store(location) as (system, path):
        try:
            infos = system.get_file_info(FileSelector(path, recursive=True))
        except FileNotFoundError:
            return {}
        start = len(path.rstrip("/")) + 1
        return {
            info.path[start:]: (info.size, info.mtime_ns or 0)
            for info in infos
            if info.is_file and not info.path.endswith(DRAFT)
        }


def write_bytes(location: str, data: bytes) -> None:
    """Write a file: whole, or not at all. Raises InputError where the store cannot be used."""
    from pyarrow.fs import LocalFileSystem

    with _explain_errors(location), _open_store(location) as (system, path):
        if isinstance(system, LocalFileSystem):
            _write_to_disk(Path(path), data)
            return
        with system.open_output_stream(path) as stream:
            stream.write(data)  # in one piece: an error within the block would publish what came before it


def delete(location: str) -> None:
    """Delete a file, if it is there. Raises InputError where the store cannot be used."""
    with _explain_errors(location), _open_store(location) as (system, path):
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return


def download(location: str, path: Path, sha256: str = "", part: tuple[int, int] | None = None) -> None:
    """Bring a file to ``path`` on this machine unless it is there: once and whole, however many processes ask for it.

    part: first byte and number of bytes of a part of it (-1: up to the end), which alone is brought; None: all of it.
    sha256: of the bytes, checked where it is given. Raises FileNotFoundError where there is no such file,
    PreparedDataError where it has another checksum, InputError where the store cannot be used.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds rows
    # dropped by the operating system if this process dies
    with FileLock(path.with_name(f".{path.name}.lock"), fallback_to_soft=False):
        if path.exists():
            return
        data = read_bytes(location) if part is None else read_part(location, *part)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise PreparedDataError(
                f"{shown(location)} does not have the checksum that its manifest states: delete {path.parent} and start"
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
def _open_store(location: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a location, and the path in it."""
    url = urlsplit(location)
    if not is_remote(location) or url.scheme == "file":
        yield _file_system("file:///", ()), os.path.abspath(unquote(url.path) if is_remote(location) else location)
        return
    query = urlencode(dict(SCHEMES.get(url.scheme, {})) | dict(parse_qsl(url.query)))
    # what pyarrow reads when it makes a file system is a part of the key: another endpoint is another file system.
    environment = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "STORAGE_"))))
    bucket = url.netloc.rpartition("@")[2]
    yield _file_system(f"{url.scheme}://{url.netloc}/?{query}", environment), f"{bucket}{unquote(url.path)}".rstrip("/")


@lru_cache(maxsize=16)
def _file_system(root: str, environment: tuple[tuple[str, str], ...]) -> Any:
    from pyarrow.fs import FileSystem  # not needed by runs that stay on one machine

    return FileSystem.from_uri(root)[0]


@contextmanager
def _explain_errors(location: str) -> Iterator[None]:
    """Turn a store's errors into an InputError of one line, with the location and a hint."""
    try:
        yield
    except (FileNotFoundError, InputError):
        raise
    except (OSError, ValueError) as error:  # pyarrow's errors are of these two kinds
        message = (str(error).splitlines() or [type(error).__name__])[0]
        message = re.sub(r"\s*\(Request ID: [^)]*\)", "", message)
        hint = next((hint for pattern, hint in HINTS if re.search(pattern, message)), "mend what the store says")
        raise InputError(f"{shown(location)}: {hint} ({message})") from error
