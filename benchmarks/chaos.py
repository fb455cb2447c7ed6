"""Kill processes of a run at random, seeded instants; its result must be that of a run in peace.

    python -m benchmarks.chaos --preset digits/fedavg --runs 50 --seed 0 -- --federation.rounds 8 --federation.epochs 1

One run in peace says how long a run takes and what it gives. Then, in each of the others, ``--kills`` processes are
killed with SIGKILL, each a client actor, the server actor or the driver, at instants drawn uniformly from that time;
after a driver's death ``anchorfl resume`` (or ``run``, where it had not begun) goes on. A run that ended before the
first of its instants was one in peace: it says anew how long a run takes, and its seed is taken again. Compared are the
SHA-256 of the final weights, and round by round all metrics but times, memory and counts of faults. Exit code 1 where
one differs.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from anchorfl.pipeline.storage.run_folder import CONFIG

ROOT = Path(__file__).resolve().parents[1]
MAIN = "import sys; from anchorfl.tuning.cli import main; sys.exit(main(sys.argv[1:]))"
ACTORS = {"client": "ray::ClientActor", "server": "ray::ServerActor"}
TARGETS = (*ACTORS, "driver")
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


def victim(driver: psutil.Process, target: str) -> psutil.Process | None:
    """Return a process of the run to be killed, None where there is none now."""
    if target == "driver":
        return driver
    try:
        found = [p for p in driver.children(recursive=True) if ACTORS[target] in " ".join(p.cmdline())]
    except psutil.Error:
        return None
    return found[0] if found else None


def strike(process: subprocess.Popen[bytes], target: str, wait_s: float) -> bool:
    """Kill a process of that kind as soon as there is one; return whether there was."""
    until = time.monotonic() + wait_s
    while process.poll() is None and time.monotonic() < until:
        found = victim(psutil.Process(process.pid), target)
        if found is not None:
            try:
                found.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
            return True
        time.sleep(0.05)
    return False


def storm(words: Sequence[str], peace: Peace, folder: Path, seed: int, kills: int) -> Storm:
    """Do one run with so many kills, drawn from the seed."""
    rng, out, run = np.random.default_rng(seed), Storm(seed), folder / "run"
    plan = sorted(zip(rng.uniform(0.0, peace.seconds, kills), rng.choice(TARGETS, kills), strict=True))
    first = [*words, "--output", str(run)]
    began, process = time.monotonic(), start(first, folder / "log")
    for instant, target in plan:
        while process.poll() is None and time.monotonic() - began < instant:
            time.sleep(0.02)
        if not strike(process, str(target), wait_s=peace.seconds):
            out.missed += 1
            continue
        out.kills.append((time.monotonic() - began, str(target), len(rows_of(run))))
        if target == "driver":
            process.wait()
            process = start(["resume", str(run)] if (run / CONFIG).exists() else first, folder / "log")
    code = process.wait()
    out.seconds = time.monotonic() - began
    out.said = f"exit code {code}: " + (folder / "log").read_text(encoding="utf-8")[-1500:]
    if code == 0:
        content = json.loads((run / "result.json").read_text(encoding="utf-8"))
        out.retried = content["retried"]
        out.recovered = (folder / "log").read_text(encoding="utf-8").count("starting it anew")
        out.same = content["checksum"] == peace.checksum and rows_of(run) == peace.rows
    return out


def until_killed(words: Sequence[str], peace: Peace, folder: Path, seed: int, kills: int) -> tuple[Storm, Peace]:
    """Return the run with kills of a seed, and the peace with its present seconds: a run in which nothing was killed
    gives these, and is made again.
    """
    for attempt in range(ATTEMPTS):
        (place := folder / str(attempt)).mkdir(parents=True)
        one = storm(words, peace, place, seed, kills)
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
            one, peace = until_killed(words, peace, Path(name) / f"storm{seed}", seed, o.kills)
            storms.append(one)
            kills = ", ".join(f"{target} at {at:.1f} s after {count} rounds" for at, target, count in one.kills)
            print(f"seed {seed}: {'same' if one.same else 'DIFFERS'}  {kills or 'nothing killed'}", flush=True)
            if not one.same:
                print(one.said, flush=True)
    killed = Counter(target for one in storms for _, target, _ in one.kills)
    same, every = sum(s.same for s in storms), sum(killed.values())
    print(
        f"{o.preset}: {every} kills ({', '.join(f'{n} {t}' for t, n in sorted(killed.items()))})"
        f" in {len(storms)} runs,"
        f" {sum(s.missed for s in storms)} came too late; equal results: {same} of {len(storms)};"
        f" attempts made again {sum(s.retried for s in storms)},"
        f" servers started anew {sum(s.recovered for s in storms)}"
    )
    if o.out is not None:
        content: dict[str, Any] = {"preset": o.preset, "overrides": o.overrides, "seconds": peace.seconds}
        o.out.write_text(json.dumps(content | {"runs": [vars(s) for s in storms]}, indent=1), encoding="utf-8")
    return 0 if same == len(storms) else 1


if __name__ == "__main__":
    sys.exit(main())
