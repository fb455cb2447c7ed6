"""Clients that are sites: two nodes whose disks nobody else sees, and what leaves them.

Needs Linux and root (``unshare --mount``, ``/proc/PID/mem``). All share this machine's network.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from anchorfl.tasks.ingest.prepared import Prepared
from tests.processes import MAIN, checksum_of, end, free_port
from tests.ray.nodes import LOG, Node, environment, start_node, wait_for_start

pytestmark = [pytest.mark.ray, pytest.mark.cluster]
OWN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && cp "$1" "$0/notes.csv" && shift && exec "$@"')
"""Before the folder of the head's disk, a table and a command: runs the command where that folder holds the table
alone, as nobody else sees it."""
SITES = ("north", "south")
KINDS = {"north": "ab", "south": "bc"}
WORDS = [f"word{i:02d}" for i in range(40)]
SIGNED = {"north": [WORDS[i] for i in (37, 5, 29, 11, 23)], "south": [WORDS[i] for i in (31, 17, 3, 38, 8)]}
"""Words with which each row of a site begins, so that its encoded rows can be searched for."""
ROWS = 60


def notes(site: str, seed: int) -> list[dict[str, str]]:
    """Rows of a site. Each begins with a mark, which no vocabulary has, and with the words of its site."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(ROWS):
        kind = KINDS.get(site, "abc")[i % len(KINDS.get(site, "abc"))]
        words = [WORDS[j] for j in rng.integers(0, 40, 7)] + [f"word{ord(kind) - 97:02d}"] * 3
        out.append({"note": " ".join([f"zq{site}x{i:03d}", *SIGNED.get(site, ()), *words]), "kind": kind})
    return out


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*rows[0]], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def cluster():
    """Yield what runs ``anchorfl`` on the head, its disk, and its processes and the sites'."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="afs-", dir="/tmp"))  # Ray's sockets lie there: their paths must be short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        disk = folder / "disk"
        disk.mkdir()
        tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"no mount namespaces here: {tried.stderr.strip()}")
        env, port = environment(disk), free_port()
        address = f"127.0.0.1:{port}"
        words = ("--head", "--port", str(port), "--num-cpus", "0", "--include-dashboard", "false")
        head = start_node(Node((), "127.0.0.1"), env, folder / "h", *words)
        stack.callback(end, [head])
        wait_for_start({folder / "h" / LOG: head})
        nodes = {}
        for number, site in enumerate(SITES):
            table = write(folder / f"{site}.csv", notes(site, number))
            words = ("--address", address, "--num-cpus", "1", "--resources", f'{{"site:{site}": 1}}')
            node = Node((*OWN, str(disk), str(table)), "127.0.0.1")
            nodes[site] = start_node(node, env, folder / site, *words)
            stack.callback(end, [nodes[site]])
        wait_for_start({folder / site / LOG: node for site, node in nodes.items()})
        for site in SITES:
            (folder / f"{site}.csv").unlink()

        def anchorfl(*words: str, on_cluster: bool = True, wait: bool = True):
            where = ("--cluster.address", address) if on_cluster else ("--cluster.executor", "serial")
            command = [sys.executable, "-c", MAIN, *words, *where, "--tracking.uri", "none"]
            process = subprocess.Popen(command, cwd=disk, env=env, text=True, stdout=-1, stderr=-1)
            if not wait:
                return process
            out, err = process.communicate(timeout=240)
            return subprocess.CompletedProcess(command, process.returncode, out, err)

        yield anchorfl, disk, head, nodes


COMMON = (
    "run", "r8-8/fedavg", "--task.label_columns", "kind", "--task.input_columns", "note",
    "--task.split_column", "split", "--task.min_count", "1", "--task.max_tokens", "20", "--task.variant", "",
    "--task.client_classes", "", "--task.validation", "0.1", "--model.width", "16", "--model.feedforward", "16",
    "--model.heads", "2", "--federation.clients_per_round", "0", "--federation.epochs", "1",
    "--optimizer.batch_size", "16",
)  # fmt: skip
"""Options of all runs here."""


@pytest.fixture(scope="module")
def tables(cluster):
    """Write the head's tables: the server's own rows, words that anybody may know, and all rows in one place."""
    anchorfl, disk, _, _ = cluster
    split = ["validation", "test", "test"]
    server = [row | {"split": split[i % 3], "site": "server"} for i, row in enumerate(notes("server", 9))]
    write(disk / "notes.csv", [{k: v for k, v in row.items() if k != "site"} for row in server])
    public = [{"note": " ".join(WORDS), "kind": "abc"[i % 3], "split": ["train", "test"][i % 2]} for i in range(60)]
    write(disk / "public.csv", public)
    words = ("--task.file", "public.csv", "--task.clients", "2", "--task.classes_per_client", "3")
    made = anchorfl(*COMMON, *words, "--federation.rounds", "1", "--output", "public", on_cluster=False)
    assert made.returncode == 0, made.stderr[-3000:]
    (spec,) = (disk / "cache").glob("table-public-*")
    everything = [*server]
    for number, site in enumerate(SITES):
        everything += [row | {"split": "train", "site": site} for row in notes(site, number)]
    folder = disk.parent / "all"
    folder.mkdir()
    write(folder / "all.csv", everything)
    return ("--task.input_spec", str(spec)), folder / "all.csv"


def at_sites(tables, *more):
    return (*COMMON, "--task.file", "notes.csv", "--task.sites", "south, north", *tables[0], *more)


def in_one_place(tables, *more):
    return (*COMMON, "--task.file", str(tables[1]), "--task.client_column", "site", *tables[0], *more)


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedalign", marks=pytest.mark.slow)])
def test_sites_give_the_bits_of_a_run_in_one_place(cluster, tables, method):
    anchorfl, _, _, _ = cluster
    words = ("--method.name", method, "--federation.rounds", "2")
    there = anchorfl(*at_sites(tables, *words, "--output", f"sites-{method}"))
    assert there.returncode == 0, there.stderr[-3000:]
    here = anchorfl(*in_one_place(tables, *words, "--output", f"here-{method}"), on_cluster=False)
    assert here.returncode == 0, here.stderr[-3000:]
    assert checksum_of(there) == checksum_of(here)
    again = anchorfl(*at_sites(tables, *words, "--output", f"again-{method}"))
    assert "prepared data found in" in again.stdout
    assert "and at 2 sites" in again.stdout
    assert checksum_of(again) == checksum_of(there)


@pytest.mark.slow
def test_what_a_client_keeps_stays_at_its_site(cluster, tables):
    """A control variate is a client's own. The run has a number for it, resumed as well."""
    anchorfl, disk, _, nodes = cluster
    words = ("--method.name", "scaffold", "--federation.rounds")
    there = anchorfl(*at_sites(tables, *words, "3", "--output", "kept"))
    assert there.returncode == 0, there.stderr[-3000:]
    here = anchorfl(*in_one_place(tables, *words, "3", "--output", "kept-here"), on_cluster=False)
    assert checksum_of(there) == checksum_of(here)
    sizes = {path.name: path.stat().st_size for path in (disk / "kept/checkpoint").glob("memory-*")}
    assert sizes
    assert max(sizes.values()) < 500, "a number, and no tensors of the network's size"
    for site, node in nodes.items():
        kept = list(_disk_of(node, disk).glob("cache/memories/*/*/*"))
        assert len(kept) >= 1, site
        assert min(path.stat().st_size for path in kept) > 5000


# ---- What leaves a site.


def _disk_of(node: subprocess.Popen, disk: Path) -> Path:
    """A site's disk, as its processes see it."""
    return Path(f"/proc/{node.pid}/root") / disk.relative_to("/")


def _processes(*roots: subprocess.Popen) -> list[psutil.Process]:
    found = [psutil.Process(root.pid) for root in roots]
    return [*found, *(child for process in found for child in process.children(recursive=True))]


def _memory_of(process: psutil.Process) -> Iterator[bytes]:
    """All that a process can write, or that is no file's: the object store is among it, libraries are not."""
    try:
        with open(f"/proc/{process.pid}/maps") as maps, open(f"/proc/{process.pid}/mem", "rb", 0) as memory:
            for line in maps:
                found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r(.)\S+ \S+ \S+ \S+\s*(.*)", line)
                if found is None or found[4].startswith(("[vvar", "[vsyscall")):
                    continue
                if found[3] != "w" and found[4].startswith("/") and "(deleted)" not in found[4]:
                    continue
                start, stop = (int(found[i], 16) for i in (1, 2))
                for at in range(start, stop, 1 << 26):
                    try:
                        memory.seek(at)
                        yield memory.read(min(stop - at, (1 << 26) + 64))
                    except OSError:
                        continue
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended


def _found(parts: Iterator[bytes], wanted: dict[str, bytes]) -> set[str]:
    out = set[str]()
    for part in parts:
        out |= {name for name, pattern in wanted.items() if pattern in part}
    return out


def _files_below(*folders: Path) -> Iterator[bytes]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield path.read_bytes()


@pytest.mark.slow
def test_no_row_leaves_its_site(cluster, tables):
    """Marks in every text, and the encoded words of every row, in all that the other node's processes can read, their
    object store among it, and on its disk: while it trains, and afterwards. The site's own have them.
    """
    anchorfl, disk, head, nodes = cluster
    spec = Prepared.load(tables[0][1]).manifest.spec
    number = {word: i for i, word in enumerate(spec.vocabulary)}
    rows = {site: np.array([number[word] for word in SIGNED[site]], "<i4").tobytes() for site in SITES}
    wanted = rows | {f"text of {site}": f"zq{site}x".encode() for site in SITES}
    run = anchorfl(
        *at_sites(tables, "--federation.rounds", "100000", "--seed", "3", "--output", "searched"), wait=False
    )
    try:
        lines, until = disk / "searched/metrics.jsonl", time.monotonic() + 120
        while not lines.exists() or lines.read_text().count("\n") < 5:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.2)
        for site, node in nodes.items():
            seen = set[str]()
            for process in _processes(node):
                seen |= _found(_memory_of(process), wanted)
            assert seen >= {site}, "the search finds rows where they are"
            assert not seen & {*SITES, *wanted} - {site, f"text of {site}"}, "and none of the other site's"
            assert _found(_files_below(_disk_of(node, disk)), wanted) == {f"text of {site}"}
        searched = _processes(head, run)
        assert any("ServerActor" in " ".join(process.cmdline()) for process in searched)
        for process in searched:
            assert not _found(_memory_of(process), wanted), process.cmdline()
    finally:
        run.kill()
        run.communicate()
    assert not _found(_files_below(disk, disk.parent / "h"), wanted)


@pytest.mark.slow
def test_a_fault_of_a_row_is_said_at_its_site_alone(cluster, tables):
    anchorfl, disk, _, nodes = cluster
    theirs = _disk_of(nodes["north"], disk)
    bad = (theirs / "notes.csv").read_text() + "zqnorthsecret,not-a-kind-zq\n"
    (theirs / "bad.csv").write_text(bad)
    (_disk_of(nodes["south"], disk) / "bad.csv").write_text((_disk_of(nodes["south"], disk) / "notes.csv").read_text())
    shutil.copy(disk / "notes.csv", disk / "bad.csv")
    words = [word.replace("notes.csv", "bad.csv") for word in at_sites(tables, "--federation.rounds", "1")]
    done = anchorfl(*words, "--output", "bad")
    assert done.returncode == 2, done.stderr[-3000:]
    line = done.stderr.splitlines()[-1]
    assert "site 'north': its rows cannot be prepared (InputError): site-faults.txt" in line
    assert "zq" not in done.stdout + done.stderr
    assert "not-a-kind-zq" in (theirs / "cache/site-faults.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task.sites", "north, west"), "no node of the cluster is site 'west': start it with ray start --resources"),
        (("--task.sites", "north, north"), "give each a name of its own"),
        (("--task.input_spec", ""), "sites share no rows to fit a vocabulary or a scaling on"),
        (("--method.name", "fedproto"), "task.sites = 'south, north': the rows to score clients' models of 'fedproto'"),
    ],
)
def test_what_cannot_be_is_one_line(cluster, tables, words, said):
    anchorfl, _, _, _ = cluster
    done = anchorfl(*at_sites(tables, *words, "--output", "never"))
    assert done.returncode == 2, done.stderr[-3000:]
    assert said in done.stderr.splitlines()[-1]
