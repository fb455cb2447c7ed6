"""One file over HTTP, resumed where an earlier try stopped.

pooch checks the digest and gives the file its name; it begins every download anew, so that the bytes come from here.
What has come lies in ``.<name>.part``, and the server's word for the version of the file in ``.<name>.part.version``:
another version is never joined to it. A proxy is what ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` say.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anchorfl.tasks.errors import InputError

CONNECT_SECONDS, READ_SECONDS = 10, 60
"""Seconds to wait for a connection, and for the next bytes."""
PAUSE = 1.0
"""Seconds before a connection that broke is made again."""
CHUNK = 1 << 16
"""Bytes that are written, and reported, at a time; as many may be lost where a connection breaks."""
Progress = Callable[[int, int | None], None]
"""Takes the bytes that are there, and all of them where the server says how many."""


def fetch(url: str, path: Path, digest: str, progress: Progress) -> str:
    """Bring a file to ``path`` and return the SHA-256 of its bytes.

    digest: ``sha256:...`` or ``md5:...`` that it must have; empty: any. Raises InputError where the server cannot be
    reached, the connection breaks before anything new has come, or the file has another digest; there is no file at
    ``path`` then.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # what is fetched, and its digest, is said here
    part = path.with_name(f".{path.name}.part")

    def rest(url: str, output_file: str, _: object) -> None:
        _fetch_rest(url, path, part, progress)
        part.replace(output_file)
        _version_of(part).unlink(missing_ok=True)

    try:
        pooch.retrieve(url, digest or None, fname=path.name, path=path.parent, downloader=rest)
    except InputError:
        raise
    except ValueError as error:  # pooch's, where the digest is another
        message = " ".join(str(error).split())
        raise InputError(
            f"{url}: {message.removesuffix('.')}; run the command again, or get the file by hand"
        ) from error
    return str(pooch.file_hash(str(path), alg="sha256"))


def _fetch_rest(url: str, path: Path, part: Path, progress: Progress) -> None:
    """Append to ``part`` until the file is complete. path: its later name, for messages. Raises InputError."""
    import requests

    host = urlsplit(url).hostname
    while True:
        before = _size(part)
        try:
            _ask(url, part, progress)
        except requests.exceptions.RequestException as error:
            if _size(part) > before:
                time.sleep(PAUSE)
                continue
            if before:
                raise InputError(
                    f"{url}: the connection broke after {before / 1e6:.1f} MB ({type(error).__name__}); run the command"
                    " again: it goes on from there where the server can"
                ) from error
            raise InputError(
                f"{host} cannot be reached ({type(error).__name__}): get {url} elsewhere and put it at {path}, then run"
                " the command again; behind a proxy set HTTPS_PROXY"
            ) from error
        return


def _ask(url: str, part: Path, progress: Progress) -> None:
    """Make one request for what ``part`` lacks, and append what comes."""
    import requests

    headers = {"Accept-Encoding": "identity"}  # a packed answer has other bytes, and cannot be cut
    version = _version_of(part)
    if _size(part) and version.exists():
        headers |= {"Range": f"bytes={_size(part)}-", "If-Range": version.read_text(encoding="utf-8")}
    with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as answer:
        if answer.status_code == requests.codes.requested_range_not_satisfiable:  # all of it is there, or too much
            if answer.headers.get("Content-Range") == f"bytes */{_size(part)}":
                return
            part.unlink()
            return _ask(url, part, progress)
        if not answer.ok:
            raise InputError(f"{url}: the server answers {answer.status_code} {answer.reason}; get the file by hand")
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            raise InputError(f"{url}: the server answers with a page where the file should be; get the file by hand")
        begin, total = _range(answer)
        if begin != _size(part):  # no part was asked for, or the server gives none, or the file is a new one
            begin = 0
        _check_space(url, part, (total or 0) - begin)
        _note_version(answer, version)
        with part.open("ab" if begin else "wb") as stream:
            done = begin
            for chunk in answer.iter_content(CHUNK):
                stream.write(chunk)
                stream.flush()
                done += len(chunk)
                progress(done, total)
    return None


def _range(answer: Any) -> tuple[int, int | None]:
    """Return the first byte of an answer and the size of the whole file, where the server states it."""
    if answer.status_code == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if match is None:
            raise InputError(f"{answer.url}: the server gives a part without saying which; get the file by hand")
        return int(match[1]), int(match[2]) if match[2] != "*" else None
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _check_space(url: str, part: Path, lacking: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if lacking > free:
        raise InputError(
            f"{url}: {lacking / 1e9:.1f} GB are to come, and {part.parent} has {free / 1e9:.1f} GB left; free some, or"
            " give another folder with --root"
        )


def _note_version(answer: Any, version: Path) -> None:
    """Keep the server's word for the version of the file; a weak one says nothing about its bytes."""
    word = answer.headers.get("ETag", "")
    word = answer.headers.get("Last-Modified", "") if not word or word.startswith("W/") else word
    if word:
        version.write_text(word, encoding="utf-8")
    else:
        version.unlink(missing_ok=True)


def _version_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
