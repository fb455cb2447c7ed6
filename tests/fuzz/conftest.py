"""The closing summary of a long run: cases and minutes of computing per parser."""

from __future__ import annotations

from tests.fuzz.promise import CASES, TALLIES


def pytest_terminal_summary(terminalreporter):
    if not CASES or not TALLIES:
        return
    terminalreporter.section("inputs per parser")
    terminalreporter.line(f"{'parser':<28}{'cases':>8}{'read':>8}{'refused':>9}{'minutes':>9}{'slowest s':>11}")
    for name, t in sorted(TALLIES.items()):
        terminalreporter.line(
            f"{name:<28}{t.cases:>8}{t.read:>8}{t.refused:>9}{t.seconds / 60:>9.1f}{t.slowest:>11.2f}"
        )
