"""Stores for the tests of this folder: one for copies of run folders, one for MLflow."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["file", "s3"])
def backup(request, tmp_path):
    """Return a place for copies: one that needs no server, and an object store."""
    return f"file://{tmp_path}/backup" if request.param == "file" else f"{request.getfixturevalue('s3')}/runs"


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Return the address of a database for MLflow, migrated once; every test has its own experiment in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
