"""An empty current folder, and the check of a command that is refused."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty current folder; no folder of data is set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANCHORFL_DATA", raising=False)
    return tmp_path


@pytest.fixture
def fails(capsys):
    """Return a check: exit code 2, and nothing but one line on stderr that holds ``message``."""

    def check(arguments, message, main=main) -> str:
        assert main(arguments) == 2
        said = capsys.readouterr().err.strip()
        assert message in said
        assert "\n" not in said
        return said

    return check
