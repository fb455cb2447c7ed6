"""Break the core on purpose, a small change at a time, and see whether a test fails: a mutation run.

    make mutants                                  # 300 changes by seed 0
    python -m benchmarks.mutants --count 50 --files 'tasks/metrics/*'
    python -m benchmarks.mutants --again          # once more those that lived and have no reason

Changes are drawn by a seed out of all that ``benchmarks.mutations`` finds in the core. Each is made in memory, in
a forked process that has the libraries imported already, and that process runs the tests that ran the changed line,
those of the module's own test file first. Results are kept line by line (``--results``), so a stopped run goes on. A
change that no test kills must stand in benchmarks/mutants.toml with a reason, or the run fails.

Chosen over mutmut 3.8, which finds modules by the path of their file and not by ``anchorfl.*``, changes functions alone
and draws no sample, and over cosmic-ray 8.4, which rewrites files and starts a fresh process for each change: 4 seconds
of imports before the first test.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import hashlib
import importlib.util
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from benchmarks.mutations import mutated, mutations

ROOT = Path(__file__).parents[1]
CORE = (
    "pipeline/algorithm/*", "pipeline/methods/*", "pipeline/training/*", "pipeline/run/round_loop.py",
    "pipeline/storage/checkpoint.py", "tasks/partition/*", "tasks/metrics/*", "tuning/search/s*.py",
    "tuning/tables/significance.py", "models/*",
)  # fmt: skip
TESTS = (
    "tests/models", "tests/pipeline/algorithm", "tests/pipeline/execution/test_batched_executor.py",
    "tests/pipeline/execution/test_cohort.py", "tests/pipeline/methods", "tests/pipeline/run",
    "tests/pipeline/storage/test_atomic_files.py", "tests/pipeline/storage/test_checkpoint.py",
    "tests/pipeline/training", "tests/product/test_defaults.py", "tests/tasks/ingest/test_validation_from.py",
    "tests/tasks/metrics", "tests/tasks/partition", "tests/tuning/search", "tests/tuning/tables/test_significance.py",
)  # fmt: skip
"""The tests that may kill: those of the core's folders, and a few others that say what it promises."""
MARKED = "not ray and not slow and not gpu"
LIBRARIES = (
    "torch", "numpy", "pyarrow.parquet", "pyarrow.compute", "scipy.stats", "scipy.sparse", "hypothesis.extra.numpy",
    "safetensors.torch", "tyro", "pytest", "ray.tune", "mlflow", "matplotlib.figure", "_pytest.assertion",
)  # fmt: skip
SECONDS = 40
"""Tests of one change, at most, by the time that they take without it; those of its own file run whatever they take."""
REASONS = ROOT / "benchmarks" / "mutants.toml"
BAR = 0.95
"""Least share that is killed of the changes that are not equivalent: that change what anybody could see."""


@dataclass(frozen=True)
class Mutant:
    """A change of one file of the core."""

    file: str
    """Path from the top of the repository."""
    scope: str
    """Class and function."""
    change: str
    """Source before and after, with an arrow."""
    nth: int
    """Counts equal changes of one function from 0."""
    number: int
    """Place among all changes of the file."""
    line: int
    end: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What it is known by, wherever in the file it stands."""
        return self.file, self.scope, self.change, self.nth


def core(patterns: Iterable[str]) -> list[str]:
    """Return the files of the core that the patterns name."""
    files = {
        path.relative_to(ROOT).as_posix()
        for top in ("models", "pipeline", "tasks", "tuning")
        for path in (ROOT / top).rglob("*.py")
    }
    return sorted(f for f in files if any(fnmatch.fnmatch(f, p) for p in patterns) and not f.endswith("__init__.py"))


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield all changes of a file."""
    seen = Counter[tuple[str, str]]()
    for number, m in enumerate(mutations(ast.parse((ROOT / file).read_text()))):
        change = f"{m.before}  ->  {m.after}"
        yield Mutant(file, m.scope, change, seen[m.scope, change], number, m.line, m.end)
        seen[m.scope, change] += 1


def draw(files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw changes of these files, each as likely as any other."""
    every = [mutant for file in files for mutant in mutants_of(file)]
    order = np.random.default_rng(seed).permutation(len(every))
    return [every[i] for i in order[:count]]


# ---- Processes that have the libraries, but nothing of ours.


def forked(work: Callable[[], int], limit: float, log: Path) -> int | None:
    """Return the exit code of ``work`` in a forked process, whose output goes to ``log``; None where it took longer."""
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def pytest_run(tests: Sequence[str], scratch: Path, plugin: object, *options: str) -> int:
    """Run tests in this process."""
    os.chdir(ROOT)
    ignore = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    quiet = [
        "-q",
        "--no-header",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-W",
        ignore,
        "--basetemp",
        str(scratch / "tmp"),
    ]
    return int(pytest.main([*quiet, "-m", MARKED, *options, *tests], plugins=[plugin]))


class FirstFailure:
    """Remembers the test that failed."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def _note(self, report: Any) -> None:
        if report.failed:
            self.out.write_text(report.nodeid)

    pytest_runtest_logreport = pytest_collectreport = _note


class Changed(SourceFileLoader):
    """Loads a module with one change, and is its finder."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self.tree = tree

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.tree, self.path, "exec", dont_inherit=True)
        return code

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def source_of(file: str) -> str:
    """Return the path by which ``anchorfl`` imports a file."""
    spec = importlib.util.find_spec("anchorfl")
    assert spec is not None
    assert spec.submodule_search_locations
    return f"{spec.submodule_search_locations[0]}/{file}"


def try_tests(file: str, tree: ast.Module, tests: Sequence[str], limit: float, scratch: Path) -> tuple[int | None, str]:
    """Run tests on a changed file until one fails: exit code of pytest (None: too slow), and the test that failed."""
    failed = scratch / "failed"
    failed.write_text("")
    loader = Changed("anchorfl." + file.removesuffix(".py").replace("/", "."), source_of(file), tree)

    def work() -> int:
        sys.meta_path.insert(0, loader)
        return pytest_run(tests, scratch, FirstFailure(failed), "-x")

    code = forked(work, limit, scratch / "log")
    return code, failed.read_text()


# ---- Which tests run which line.


class Tracer:
    """Notes the lines that run, test by test; what runs while tests are collected counts for all of them."""

    def __init__(self, out: Path) -> None:
        self.out, self.prefix = out, source_of("")
        self.now: dict[str, set[int]] = defaultdict(set)
        self.shared: dict[str, dict[str, set[int]]] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self.collected = self.now

    def start(self) -> None:
        sys.settrace(self.call)
        threading.settrace(self.call)

    def call(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        return self.line if path.startswith(self.prefix) else None

    def line(self, frame: FrameType, event: str, arg: object) -> Any:
        self.now[frame.f_code.co_filename].add(frame.f_lineno)
        return self.line

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        before, self.now, began = self.now, defaultdict(set), time.perf_counter()
        yield
        for name in item.fixturenames:
            for path, lines in self.shared.get(name, {}).items():
                self.now[path] |= lines
        lines = {path.removeprefix(self.prefix): sorted(numbers) for path, numbers in self.now.items()}
        self.tests[item.nodeid] = {"seconds": time.perf_counter() - began, "lines": lines}
        self.now = before

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before, self.now = self.now, defaultdict(set)
        yield
        shared = self.shared.setdefault(fixturedef.argname, defaultdict(set))
        for path, lines in self.now.items():
            shared[path] |= lines
            before[path] |= lines
        self.now = before

    def write(self) -> None:
        sys.settrace(None)
        collected = {path.removeprefix(self.prefix): sorted(lines) for path, lines in self.collected.items()}
        self.out.write_text(json.dumps({"collected": collected, "tests": self.tests}))


def traced(test_file: str, scratch: Path) -> dict[str, Any]:
    """Return the tests of a file with their seconds and lines."""
    out = scratch / "lines.json"
    out.unlink(missing_ok=True)

    def work() -> int:
        tracer = Tracer(out)
        tracer.start()
        code = pytest_run([test_file], scratch, tracer)
        tracer.write()
        return code

    code = forked(work, 900, scratch / "log")
    if code not in (0, 5):  # 5: no test, by its marks
        raise SystemExit(f"{test_file}: the tests fail without any change\n{(scratch / 'log').read_text()[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def trace_all(kept: Path, scratch: Path) -> dict[str, dict[str, Any]]:
    """Return test file -> its tests and lines; those of files that did not change are read from ``kept``."""
    files = sorted(
        {
            path
            for pattern in TESTS
            for top in ROOT.glob(pattern)
            for path in ([top] if top.is_file() else top.rglob("test_*.py"))
        }
    )
    before = json.loads(kept.read_text()) if kept.exists() else {}
    shared = [
        *(path for top in ("models", "pipeline", "tasks", "tuning") for path in sorted((ROOT / top).rglob("*.py")))
    ]
    shared += sorted(path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_"))
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in shared)).hexdigest()
    out = {}
    for path in files:
        name, digest = (
            path.relative_to(ROOT).as_posix(),
            hashlib.sha256(sources.encode() + path.read_bytes()).hexdigest(),
        )
        if before.get(name, {}).get("digest") != digest:
            began = time.monotonic()
            before[name] = traced(name, scratch) | {"digest": digest}
            kept.write_text(json.dumps(before))
            print(f"lines of {name}: {len(before[name]['tests'])} tests, {time.monotonic() - began:.0f} s", flush=True)
        out[name] = before[name]
    return out


def tests_for(mutant: Mutant, traces: dict[str, dict[str, Any]]) -> tuple[list[str], float]:
    """Return the tests that run the changed lines, up to SECONDS, and their seconds: the module's own first, then file
    by file, the fastest first.
    """
    lines = {*range(mutant.line, mutant.end + 1)}
    own, by_file = own_tests(mutant.file), dict[str, list[tuple[str, float]]]()
    for file, trace in traces.items():
        imported = bool(lines & {*trace["collected"].get(mutant.file, ())})
        for test, found in trace["tests"].items():
            if file == own or imported or lines & {*found["lines"].get(mutant.file, ())}:
                by_file.setdefault(file, []).append((test, found["seconds"]))
    order = sorted(by_file, key=lambda file: (file != own, sum(seconds for _, seconds in by_file[file])))
    tests, total = [], 0.0
    for file in order:
        for test, seconds in by_file[file]:
            if file == own or total + seconds <= SECONDS:
                tests.append(test)
                total += seconds
    return tests, total


def own_tests(file: str) -> str:
    """Return the folder or file of a module's own tests: the one at its place below tests, or that of its name."""
    path = Path("tests") / file
    path = path.with_name(f"test_{path.name}")
    named = [path] if (ROOT / path).exists() else sorted((ROOT / "tests" / path.parts[1]).rglob(path.name))
    return (ROOT / (named[0] if named else path)).relative_to(ROOT).as_posix()


def folder_of(file: str) -> str:
    """Return the folder of a file, as text."""
    return file.rpartition("/")[0]


# ---- The run.


def judge(mutant: Mutant, traces: dict[str, dict[str, Any]], scratch: Path) -> dict[str, Any]:
    """Return the mutant with what became of it."""
    tests, seconds = tests_for(mutant, traces)
    began = time.monotonic()
    result, by = "survived", ""
    if tests:
        tree = mutated((ROOT / mutant.file).read_text(), mutant.number)
        limit = 60 + 5 * seconds
        code, by = try_tests(mutant.file, tree, tests, limit, scratch)
        if code == 4:  # the names of tests follow from the change
            code, by = try_tests(mutant.file, tree, sorted({t.partition("::")[0] for t in tests}), limit, scratch)
        result = {None: "too slow", 0: "survived", 5: "survived"}.get(code, "killed")
    about = {"tests": len(tests), "by": by, "seconds": round(time.monotonic() - began, 1)}
    return asdict(mutant) | {"result": result} | about


def key_of(line: dict[str, Any]) -> tuple[str, str, str, int]:
    """Return what a mutant of the results, or of the reasons, is known by."""
    return line["file"], line["scope"], line["change"], line.get("nth", 0)


def report(results: Sequence[dict[str, Any]], reasons: dict[tuple[str, str, str, int], str]) -> bool:
    """Print what became of the mutants; return whether the bar is met and every survivor has a reason."""
    by_folder: dict[str, Counter[str]] = defaultdict(Counter)
    for line in results:
        by_folder[folder_of(line["file"])][line["result"]] += 1
    print("\n| folder | drawn | killed | too slow | survived |\n|---|---|---|---|---|")
    for folder, count in sorted(by_folder.items()):
        print(f"| {folder} | {count.total()} | {count['killed']} | {count['too slow']} | {count['survived']} |")
    survivors = [line for line in results if line["result"] == "survived"]
    equal = [line for line in survivors if reasons.get(key_of(line), "").startswith("equivalent")]
    killed, others = len(results) - len(survivors), len(results) - len(equal)
    seconds = statistics.median(line["seconds"] for line in results)
    print(
        f"\n{len(results)} drawn, {len(equal)} of them equivalent; {killed} of the other {others} killed"
        f" ({killed / others:.1%}); a change takes {seconds:.1f} s (median)"
    )
    missing = "NO REASON GIVEN: write a test that fails, or say why in benchmarks/mutants.toml"
    for line in survivors:
        print(f"\n{line['file']}:{line['line']} {line['scope']} ({line['tests']} tests)")
        print(f"    {line['change']}\n    {reasons.get(key_of(line), missing)}")
    return killed >= BAR * others and all(key_of(line) in reasons for line in survivors)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=300, help="changes to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="+", default=CORE, help="patterns of files; default: the core")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "mutants.jsonl", help="kept results")
    parser.add_argument("--again", action="store_true", help="try those again that had survived and have no reason")
    args = parser.parse_args()
    reasons = {key_of(one): one["reason"] for one in tomllib.loads(REASONS.read_text()).get("survivor", [])}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        importlib.import_module(name)
    assert threading.active_count() == 1  # a fork would lose the others
    drawn = draw(core(args.files), args.count, args.seed)
    done = (
        {key_of(line): line for line in map(json.loads, args.results.read_text().splitlines())}
        if args.results.exists()
        else {}
    )
    if args.again:
        done = {key: line for key, line in done.items() if line["result"] != "survived" or key in reasons}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        traces = trace_all(args.results.with_name("mutants-lines.json"), scratch)
        for at, mutant in enumerate(drawn, 1):
            if mutant.key in done:
                continue
            line = done[mutant.key] = judge(mutant, traces, scratch)
            with args.results.open("a") as out:
                print(json.dumps(line), file=out)
            where = f"{mutant.file}:{mutant.line}  {mutant.change[:120]}"
            print(f"{at}/{len(drawn)} {line['result']} {line['seconds']} s  {where}", flush=True)
    return 0 if report([done[mutant.key] for mutant in drawn], reasons) else 1


if __name__ == "__main__":
    sys.exit(main())
