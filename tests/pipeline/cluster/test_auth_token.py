"""The token's file is nobody else's to read, from its first byte on."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from anchorfl.pipeline.cluster import auth_token
from anchorfl.tasks.errors import InputError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in (auth_token.MODE, auth_token.TOKEN, auth_token.PATH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def open_umask():
    """Modes are what the code asks for, and not what a careful user's umask makes of it."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_a_new_token_is_never_open(home, monkeypatch):
    """Not even for a moment: it has its mode when it is created."""
    asked = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: asked.append(a) or real(*a, **k))
    auth_token.ensure_token()
    path = home / ".ray" / "auth_token"
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    assert [(a[1] & os.O_EXCL > 0, a[2]) for a in asked] == [(True, 0o600)]
    assert len(path.read_text()) == 64
    assert int(path.read_text(), 16) > 0
    assert list(path.parent.iterdir()) == [path], "no draft is left"


def test_a_token_stays_what_it_is(home):
    auth_token.ensure_token()
    first = (home / ".ray" / "auth_token").read_text()
    auth_token.ensure_token()
    assert (home / ".ray" / "auth_token").read_text() == first


def test_many_that_start_at_once_have_one_token(home):
    seen = []
    path = auth_token.default_path()

    def start():
        auth_token.create(path)
        seen.append(path.read_text())

    threads = [threading.Thread(target=start) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 16
    assert len(set(seen)) == 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("others", [0o644, 0o640, 0o604, 0o660, 0o666])
def test_an_open_file_is_closed_aloud(home, capsys, others):
    path = auth_token.default_path()
    auth_token.create(path)
    secret = path.read_text()
    path.chmod(others)
    auth_token.ensure_token()
    assert mode(path) == 0o600
    assert path.read_text() == secret
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"{path} (mode {others:04o}) could be read by others and is now closed to them" in printed
    assert secret not in printed
    auth_token.ensure_token()
    assert capsys.readouterr().err == "", "said once"


def test_what_cannot_be_closed_is_refused_in_one_line(home, monkeypatch):
    path = auth_token.default_path()
    auth_token.create(path)
    path.chmod(0o644)

    def refused(self, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(InputError, match="others can read Ray's token, and run code as you") as error:
        auth_token.ensure_token()
    assert "\n" not in str(error.value)
    assert "RAY_AUTH_TOKEN_PATH" in str(error.value)
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)  # a disk that keeps no modes
    with pytest.raises(InputError, match="this disk keeps no modes"):
        auth_token.ensure_token()


def test_the_user_s_own_ways_stand(home, monkeypatch):
    monkeypatch.setenv(auth_token.MODE, "disabled")
    auth_token.ensure_token()
    assert not (home / ".ray").exists()
    monkeypatch.delenv(auth_token.MODE)
    monkeypatch.setenv(auth_token.TOKEN, "abc")
    auth_token.ensure_token()
    assert not (home / ".ray").exists()
    monkeypatch.delenv(auth_token.TOKEN)
    monkeypatch.setenv(auth_token.PATH, str(home / "mine"))
    with pytest.raises(InputError, match=r"RAY_AUTH_TOKEN_PATH = .*there is no such file"):
        auth_token.ensure_token()
    (home / "mine").write_text("abc")
    (home / "mine").chmod(0o644)
    auth_token.ensure_token()
    assert mode(home / "mine") == 0o600
    assert not (home / ".ray").exists()
