"""The audit of pinned packages, with a service that is made up: what it finds, what it lets pass, what it skips."""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date(2030, 1, 15)
LOCK = "# a comment with a==1\nalpha==1.0\nnumpy==2.4.6\nzeta==3\n"
HOLE = {"id": "PYSEC-2030-1", "aliases": ["CVE-2030-1"], "fix_versions": ["1.1"], "description": "long text"}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def audit(tool, tmp_path):
    """(exit code, lines) of an audit; holes: package -> vulnerabilities; unknown: packages that are not known."""

    def run(holes=None, exceptions="", unknown=(), ask=None):
        asked = []

        def service(pins):
            asked.append([pin.partition("==")[0] for pin in pins])
            return [
                {"name": name, "skip_reason": "not found"}
                if name in unknown
                else {"name": name, "version": version, "vulns": (holes or {}).get(name, [])}
                for name, _, version in (pin.partition("==") for pin in pins)
            ]

        (tmp_path / "lock").write_text(LOCK)
        (tmp_path / "ignore.toml").write_text(exceptions)
        lines = []
        code = tool.audit(tmp_path / "lock", tmp_path / "ignore.toml", TODAY, ask or service, lines.append)
        return code, lines, asked

    return run


def entry(name="PYSEC-2030-1", expires="2030-02-01"):
    return f'[[ignore]]\nid = "{name}"\npackage = "alpha"\nreason = "not reached"\nexpires = {expires}\n'


def test_nothing_found(audit):
    code, lines, asked = audit()
    assert code == 0
    assert lines == ["audit: 3 of 3 packages checked, 0 vulnerabilities, 0 ignored with a reason"]
    assert asked == [["numpy"], ["alpha", "numpy", "zeta"]]


def test_a_vulnerability_fails_the_check_in_one_line(audit):
    code, lines, _ = audit({"alpha": [HOLE]})
    assert code == 1
    assert lines[0] == "audit: alpha 1.0: PYSEC-2030-1 (mended in 1.1)"


@pytest.mark.parametrize("name", ["PYSEC-2030-1", "CVE-2030-1"])
def test_an_exception_holds_until_its_day(audit, name):
    code, lines, _ = audit({"alpha": [HOLE]}, entry(name))
    assert (code, lines) == (0, ["audit: 3 of 3 packages checked, 0 vulnerabilities, 1 ignored with a reason"])
    assert audit({"alpha": [HOLE]}, entry(name, "2030-01-15"))[0] == 0, "the day itself counts"
    code, lines, _ = audit({"alpha": [HOLE]}, entry(name, "2030-01-14"))
    assert code == 1
    assert any("ignored until 2030-01-14 only; decide again" in line for line in lines)


def test_an_exception_that_nothing_needs_is_said(audit):
    code, lines, _ = audit({}, entry())
    assert code == 0
    assert lines[0] == "audit: PYSEC-2030-1 is ignored and no longer found: take it out of ignore.toml"


@pytest.mark.parametrize("bad", ['[[ignore]]\nid = "X"\n', entry(expires='"soon"'), entry() + 'why = "?"\n'])
def test_an_exception_needs_reason_and_date(audit, bad):
    with pytest.raises(ValueError, match="needs id, package, reason, and expires"):
        audit({}, bad)


def test_a_mirror_without_advisories_is_no_clean_bill(audit):
    """It answers 404 for every package, and pip-audit itself then finds "no known vulnerabilities"."""
    code, lines, asked = audit(unknown=("alpha", "numpy", "zeta"))
    assert code == 0
    assert lines == [
        "audit: SKIPPED, the service of vulnerabilities does not answer (it does not know numpy): nothing was checked"
    ]
    assert asked == [["numpy"]], "the others are not asked about"


def test_some_packages_that_are_not_known_are_named(audit):
    code, lines, _ = audit(unknown=("zeta",))
    assert code == 0
    assert "not checked, since the service does not know them: zeta" in lines[0]
    assert "2 of 3 packages checked" in lines[1]


def test_no_network_is_said_aloud_and_no_failure(audit, tool, monkeypatch):
    """pip-audit's own words, where it cannot connect: exit code 1, no report, a line on stderr."""
    failed = subprocess.CompletedProcess([], 1, "", "WARNING:x\nERROR:pip_audit._cli:Could not connect to the feed\n")
    monkeypatch.setattr(tool.subprocess, "run", lambda *a, **k: failed)
    code, lines, _ = audit(ask=tool.asked)
    assert code == 0
    assert len(lines) == 1
    assert lines[0].startswith("audit: SKIPPED")
    assert "Could not connect" in lines[0]


def test_the_report_of_pip_audit_is_read(tool, monkeypatch):
    """The command that is run, and the form of its answer (pip-audit 2.10)."""
    seen = []

    def run(command, **_):
        seen.append(command)
        text = '{"dependencies": [{"name": "numpy", "version": "2", "vulns": []}], "fixes": []}'
        Path(command[command.index("--output") + 1]).write_text(text)
        return subprocess.CompletedProcess(command, 0, "", "No known vulnerabilities found")

    with monkeypatch.context() as patch:
        patch.setattr(tool.subprocess, "run", run)
        assert tool.asked(["numpy==2"]) == [{"name": "numpy", "version": "2", "vulns": []}]
    pytest.importorskip("pip_audit", reason="pip-audit is not installed: pip install 'anchorfl[dev]'")
    known = subprocess.run([sys.executable, "-m", "pip_audit", "--help"], capture_output=True, text=True, check=True)
    assert all(word in known.stdout for word in seen[0] if word.startswith("--"))


def test_a_missing_tool_is_no_skip(audit, tool, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "/bin/python: No module named pip_audit\n")
    monkeypatch.setattr(tool.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(SystemExit, match="make setup"):
        audit(ask=tool.asked)


def test_the_shipped_exceptions_can_be_read(tool):
    kept, late = tool.ignored(tool.IGNORED, TODAY)
    assert isinstance(kept, dict)
    assert late == [] or all("decide again" in line for line in late)
    assert tool.LOCK.is_file()
