"""Known vulnerabilities of what requirements.lock pins, by pip-audit: what `make audit`, and so `make check`, runs.

Exit code 1: a vulnerability that .ci/audit-ignore.toml does not name, or names with a date that has passed. Exit code
0: none; or the audit could not be done, because the service does not answer or does not know the packages (a mirror
without advisories answers 404, which pip-audit alone counts as "no known vulnerabilities"). Then one line says SKIPPED.
CI does not run it: what CI says of a commit depends on the commit alone.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK, IGNORED = ROOT / "requirements.lock", ROOT / ".ci" / "audit-ignore.toml"
PROBE = "numpy"
"""The package that is asked about first, alone: where the service does not know it, the others are not asked about."""
Report = list[dict[str, Any]]


class UnreachableError(Exception):
    """The service gave no answer."""


def asked(lines: list[str]) -> Report:
    """pip-audit's report on pinned requirements; UnreachableError where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        listed, out = Path(folder, "requirements.txt"), Path(folder, "report.json")
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(listed), "--no-deps", "--disable-pip"]
        command += ["--progress-spinner", "off", "--timeout", "10", "--format", "json", "--output", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "No module named pip_audit" in done.stderr:
            sys.exit("audit: pip-audit is not installed; run: make setup")
        if not out.exists():  # exit code 1 says both that something was found and that nothing could be asked
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise UnreachableError(said[-1].strip() if said else f"pip-audit ended with exit code {done.returncode}")
        report: Report = json.loads(out.read_text(encoding="utf-8"))["dependencies"]
        return report


def known(pins: list[str], ask: Callable[[list[str]], Report]) -> Report:
    """The report on all pins, of a service that knows the first that it is asked about; else UnreachableError."""
    first = ask([pin for pin in pins if pin.startswith(f"{PROBE}==")] or pins[:1])
    if all("skip_reason" in package for package in first):
        raise UnreachableError(f"it does not know {first[0]['name']}" if first else "an empty report")
    return ask(pins)


def ignored(path: Path, today: datetime.date) -> tuple[dict[str, str], list[str]]:
    """(id -> reason of what is ignored today, lines about entries whose date has passed). ValueError on a bad entry."""
    kept, late = dict[str, str](), list[str]()
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("ignore", []):
        if set(entry) != {"id", "package", "reason", "expires"} or not isinstance(entry["expires"], datetime.date):
            raise ValueError(f"{path.name}: {entry} needs id, package, reason, and expires as a date (2030-01-31)")
        if entry["expires"] < today:
            late.append(f"{entry['id']} ({entry['package']}): ignored until {entry['expires']} only; decide again")
        else:
            kept[entry["id"]] = entry["reason"]
    return kept, late


def audit(
    lock: Path, exceptions: Path, today: datetime.date, ask: Callable[[list[str]], Report], say: Callable[[str], None]
) -> int:
    """The exit code; ``ask``: gives the report on a list of pins."""
    pins = [line for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] != "#"]
    kept, late = ignored(exceptions, today)
    try:
        report = known(pins, ask)
    except UnreachableError as error:
        say(f"audit: SKIPPED, the service of vulnerabilities does not answer ({error}): nothing was checked")
        return 0
    bad = list[str]()
    seen = set[str]()
    for package in report:
        for found in package.get("vulns", []):
            names = {found["id"], *found.get("aliases", [])}
            seen |= names
            if not names & kept.keys():
                fixed = ", ".join(found.get("fix_versions", [])) or "no version yet"
                bad.append(f"{package['name']} {package['version']}: {found['id']} (mended in {fixed})")
    unknown = [package["name"] for package in report if "skip_reason" in package]
    for line in [*bad, *late]:
        say(f"audit: {line}")
    for name in sorted(kept.keys() - seen):
        say(f"audit: {name} is ignored and no longer found: take it out of {exceptions.name}")
    if unknown:
        say(f"audit: not checked, since the service does not know them: {', '.join(unknown)}")
    checked, excused = len(report) - len(unknown), len(kept.keys() & seen)
    say(
        f"audit: {checked} of {len(pins)} packages checked, {len(bad)} vulnerabilities, {excused} ignored with a reason"
    )
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(audit(LOCK, IGNORED, datetime.datetime.now(datetime.UTC).date(), asked, print))
