"""The bench of each parser of a module, and the closing summary of a long run: cases and minutes per parser."""

from __future__ import annotations

import pytest

from tests.fuzz.parsers import Bench
from tests.fuzz.promise import CASES, TALLIES


def pytest_generate_tests(metafunc):
    """Run a test that asks for a ``bench`` for each of its module's ``PARSERS``."""
    if "bench" in metafunc.fixturenames:
        metafunc.parametrize("bench", metafunc.module.PARSERS, ids=lambda p: p.name, indirect=True, scope="module")


@pytest.fixture(scope="module")
def bench(request, tmp_path_factory):
    return Bench(request.param, tmp_path_factory.mktemp("bench"))


def pytest_terminal_summary(terminalreporter):
    if not CASES or not TALLIES:
        return
    terminalreporter.section("inputs per parser")
    terminalreporter.line(f"{'parser':<28}{'cases':>8}{'read':>8}{'refused':>9}{'minutes':>9}{'slowest s':>11}")
    for name, t in sorted(TALLIES.items()):
        terminalreporter.line(
            f"{name:<28}{t.cases:>8}{t.read:>8}{t.refused:>9}{t.seconds / 60:>9.1f}{t.slowest:>11.2f}"
        )
