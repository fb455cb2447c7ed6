"""Kill processes of a run at random, seeded instants; its result must be that of a run in peace.

    python -m benchmarks.chaos --preset digits/fedavg --runs 50 --seed 0 -- --federation.rounds 8 --federation.epochs 1

One run in peace says how long a run takes and what it gives. Then, in each of the others, ``--kills`` times something
is killed with SIGKILL, drawn from ``--targets``: a client actor, all of them at once, the server actor, the driver,
Ray's raylet, GCS or one of its agents, at instants drawn uniformly from that time. After an end with another exit code
than 0 ``anchorfl resume`` (or ``run``, where it had not begun) goes on. A run that ended before the
first of its instants was one in peace: it says anew how long a run takes, and its seed is taken again. Compared are the
SHA-256 of the final weights, and round by round all metrics but times, memory and counts of faults. Also noted: exit
codes, whether a line of ours came (none after the death of a driver) and no traceback, and processes of the killed run
that are there 70 s after the kill. Exit code 1 where a result differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from anchorfl.pipeline.storage.run_folder import CONFIG

ROOT = Path(__file__).resolve().parents[1]
MAIN = "from anchorfl.tuning.cli import console; console()"
TITLES = {
    "client": "ray::ClientActor", "clients": "ray::ClientActor", "server": "ray::ServerActor",
    "raylet": "raylet/raylet", "gcs": "gcs/gcs_server",
    "agent": "ray::DashboardAgent", "environment_agent": "ray::RuntimeEnvAgent",
}  # fmt: skip
"""Target -> part of the first word of the command line of its processes; of ``clients``, all are killed."""
TARGETS = (*TITLES, "driver")
ENDING = {"driver", "raylet", "gcs", "agent", "environment_agent"}
"""Targets without which a run cannot go on in its process."""
PATIENCE_S = 120.0
"""Seconds in which a run ends after one of these was killed."""
ORPHANS_AFTER_S = 70.0
ATTEMPTS = 5
"""At a run in which something is killed."""
OF_THE_MACHINE = ("time/", "system/", "failures/")


@dataclass(frozen=True)
class Peace:
    """The result of a run in peace."""

    checksum: str
    rows: list[tuple[int, dict[str, float]]]
    """Metrics by round."""
    seconds: float


@dataclass
class Storm:
    """A run with kills."""

    seed: int
    kills: list[tuple[float, str, int]] = field(default_factory=list)
    """Seconds since the start, target, rounds recorded by then."""
    missed: int = 0
    """Instants at which the run had ended, or had not begun what was to be killed within the wait."""
    same: bool = False
    seconds: float = 0.0
    recovered: int = 0
    retried: int = 0
    said: str = ""
    codes: list[int] = field(default_factory=list)
    """Exit codes of its commands, in their order."""
    line: bool = False
    """A line of ours says how to go on."""
    traceback: bool = False
    orphans: list[str] = field(default_factory=list)
    """Processes of the killed run that outlive it by ``ORPHANS_AFTER_S``."""


def start(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command of the project in a process of its own."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))}
    with log.open("ab") as out:
        command = [sys.executable, "-c", MAIN, *words]
        return subprocess.Popen(command, cwd=log.parent, env=env, stdout=out, stderr=subprocess.STDOUT)


def rows_of(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return round and metrics of every recorded round, without what is the machine's."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return [(r["round"], {k: v for k, v in r["metrics"].items() if not k.startswith(OF_THE_MACHINE)}) for r in records]


def in_peace(words: Sequence[str], folder: Path) -> Peace:
    """Do a run that nobody disturbs. Raise RuntimeError where it fails."""
    began = time.monotonic()
    process = start([*words, "--output", str(folder / "run")], folder / "log")
    if process.wait():
        raise RuntimeError((folder / "log").read_text(encoding="utf-8")[-2000:])
    content = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    return Peace(content["checksum"], rows_of(folder / "run"), time.monotonic() - began)


def title(process: psutil.Process) -> str:
    """Return the first word of a process's command line; "" where it has ended."""
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


def victims(driver: psutil.Process, target: str) -> list[psutil.Process]:
    """Return the processes of the run to be killed, none where there are none now."""
    if target == "driver":
        return [driver]
    try:
        found = [p for p in driver.children(recursive=True) if TITLES[target] in title(p)]
    except psutil.Error:
        return []
    return found if target == "clients" else found[:1]


def strike(process: subprocess.Popen[bytes], target: str, wait_s: float) -> list[psutil.Process]:
    """Kill what is to be killed as soon as it is there; return all processes of the run, none where it never was."""
    until = time.monotonic() + wait_s
    while process.poll() is None and time.monotonic() < until:
        found = victims(psutil.Process(process.pid), target)
        if found:
            family = psutil.Process(process.pid).children(recursive=True)
            for one in found:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
            return [psutil.Process(process.pid), *family]
        time.sleep(0.05)
    return []


def left_of(family: Sequence[psutil.Process], until: float) -> list[str]:
    """Return the titles of those processes that are there at an instant (``time.monotonic``)."""
    while True:
        alive = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive or time.monotonic() > until:
            return [title(p) for p in alive]
        time.sleep(0.5)


def storm(words: Sequence[str], peace: Peace, folder: Path, seed: int, kills: int, targets: Sequence[str]) -> Storm:
    """Do one run with so many kills, drawn from the seed."""
    rng, out, run, log = np.random.default_rng(seed), Storm(seed), folder / "run", folder / "log"
    plan = sorted(zip(rng.uniform(0.0, peace.seconds, kills), rng.choice(list(targets), kills), strict=True))
    first = [*words, "--output", str(run)]
    began, process = time.monotonic(), start(first, log)
    families: list[tuple[float, list[psutil.Process]]] = []
    for instant, target in plan:
        while process.poll() is None and time.monotonic() - began < instant:
            time.sleep(0.02)
        family = strike(process, str(target), wait_s=peace.seconds)
        if not family:
            out.missed += 1
            continue
        out.kills.append((time.monotonic() - began, str(target), len(rows_of(run))))
        if target in ENDING:
            families.append((time.monotonic() + ORPHANS_AFTER_S, family))
            out.codes.append(process.wait(PATIENCE_S))
            if out.codes[-1]:
                process = start(["resume", str(run)] if (run / CONFIG).exists() else first, log)
    if 0 not in out.codes:  # else it ended well all the same
        out.codes.append(process.wait())
    out.seconds = time.monotonic() - began
    text = log.read_text(encoding="utf-8", errors="replace")
    out.said = f"exit codes {out.codes}: {text[-1500:]}"
    out.line = any(part.startswith("anchorfl: ") for part in text.splitlines())
    out.traceback = "Traceback" in text
    if out.codes[-1] == 0:
        content = json.loads((run / "result.json").read_text(encoding="utf-8"))
        out.retried, out.recovered = content["retried"], text.count("starting it anew")
        out.same = content["checksum"] == peace.checksum and rows_of(run) == peace.rows
    out.orphans = [name for until, family in families for name in left_of(family, until)]
    return out


def until_killed(
    words: Sequence[str], peace: Peace, folder: Path, seed: int, kills: int, targets: Sequence[str] = TARGETS
) -> tuple[Storm, Peace]:
    """Return the run with kills of a seed, and the peace with its present seconds: a run in which nothing was killed
    gives these, and is made again.
    """
    for attempt in range(ATTEMPTS):
        (place := folder / str(attempt)).mkdir(parents=True)
        one = storm(words, peace, place, seed, kills, targets)
        if one.kills or not one.same:
            break
        peace = replace(peace, seconds=one.seconds)
    return one, peace


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="digits/fedavg")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=1, help="per run")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next has the next")
    parser.add_argument("--targets", default=",".join(TARGETS), help="what may be killed (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=None, help="JSON file of all runs")
    parser.add_argument("overrides", nargs="*", help="after --")
    o = parser.parse_args(arguments)
    words = ["run", o.preset, *o.overrides, "--tracking.uri", "none"]
    storms: list[Storm] = []
    with tempfile.TemporaryDirectory() as name:
        (peaceful := Path(name) / "peace").mkdir()
        peace = in_peace(words, peaceful)
        print(f"{o.preset}: in peace {peace.seconds:.1f} s, {peace.checksum[:16]}", flush=True)
        for seed in range(o.seed, o.seed + o.runs):
            place = Path(name) / f"storm{seed}"
            one, peace = until_killed(words, peace, place, seed, o.kills, o.targets.split(","))
            storms.append(one)
            kills = ", ".join(f"{target} at {at:.1f} s after {count} rounds" for at, target, count in one.kills)
            found = f"exit codes {one.codes}, line {one.line}, traceback {one.traceback}, orphans {one.orphans}"
            print(f"seed {seed}: {'same' if one.same else 'DIFFERS'}  {kills or 'nothing killed'}; {found}", flush=True)
            if not one.same:
                print(one.said, flush=True)
            if o.out is not None:  # after each, as many take hours
                content: dict[str, Any] = {"preset": o.preset, "overrides": o.overrides, "seconds": peace.seconds}
                runs = {"runs": [vars(s) for s in storms]}
                o.out.write_text(json.dumps(content | runs, indent=1), encoding="utf-8")
    killed = Counter(target for one in storms for _, target, _ in one.kills)
    same, every = sum(s.same for s in storms), sum(killed.values())
    print(
        f"{o.preset}: {every} kills ({', '.join(f'{n} {t}' for t, n in sorted(killed.items()))})"
        f" in {len(storms)} runs,"
        f" {sum(s.missed for s in storms)} came too late; equal results: {same} of {len(storms)};"
        f" attempts made again {sum(s.retried for s in storms)},"
        f" servers started anew {sum(s.recovered for s in storms)}"
    )
    return 0 if same == len(storms) else 1


if __name__ == "__main__":
    sys.exit(main())
