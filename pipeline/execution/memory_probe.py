"""Memory and time that one client, and the server, need, measured in a process that does nothing else.

Plain torch, no Ray. All sizes are bytes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.cluster.sizing import GpuNeed
from anchorfl.pipeline.execution.executor import server_of
from anchorfl.pipeline.execution.fresh_process import exit_reason
from anchorfl.pipeline.execution.system_metrics import peak_resident
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.tasks.ingest.prepared import SERVER_SPLITS

ROUNDS = 2
"""With ``optimizer.state = "keep"`` the second round is the first that holds the state of the one before it."""
CGROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Versions 2 and 1: files of limit, use, statistics, and the entry of what is cached and can be given up."""


@dataclass(frozen=True, slots=True)
class ClientUse:
    """Memory and time that one client needed."""

    baseline: int
    """Resident memory when ready to train."""
    peak: int
    """Resident memory at most."""
    rows: int
    """Size of its data, which an actor keeps for every client that it serves."""
    update: int
    """Size of what it sends."""
    kept: int
    """Size of what is kept for it between rounds."""
    seconds: tuple[float, ...]
    """Wall time of each round."""
    gpu: GpuNeed | None = None
    """None: it trained on the CPU."""


@dataclass(frozen=True, slots=True)
class ServerUse:
    """Memory and time that the server needed for a client's update."""

    baseline: int
    """Resident memory when ready."""
    peak: int
    """Resident memory at most."""
    updates: int
    """Updates that it held: one, but for Krum, which compares them."""
    seconds: float
    """Wall time to aggregate them, and to score both splits where it does."""


def measure_client(
    run_spec: RunSpec, client: int, sent: messages.Packed, round_: int, on_gpu: bool
) -> tuple[ClientUse, messages.Packed]:
    """Train one client alone, as its actor would; return its needs and its last update. Call it in a fresh process.

    sent: ``broadcast`` and ``client_message``, what the server sends to all and to this client. round_: the last round.
    """
    one_thread()
    before = free_elsewhere() if on_gpu else 0
    runner = ClientRunner(run_spec, torch.device("cuda" if on_gpu else "cpu"))
    baseline, seconds, memory = resident(), [], messages.pack({})
    first = max(1, round_ - ROUNDS + 1)
    for number in range(first, first + ROUNDS):
        received = messages.unpack(sent)
        result = runner.fit(client, number, received["broadcast"], messages.unpack(memory), received["client_message"])
        update, memory = messages.pack(result.update), messages.pack(result.memory)
        seconds.append(result.seconds)
    if run_spec.experiment.method.evaluate_on == "clients":
        runner.scores(messages.unpack(sent)["broadcast"], messages.unpack(memory), SERVER_SPLITS)
    use = ClientUse(
        baseline, peak_resident(), data_bytes(run_spec, client), messages.nbytes(result.update),
        messages.nbytes(result.memory), tuple(seconds), _read_gpu(before) if on_gpu else None,
    )  # fmt: skip
    return use, update


def measure_server(run_spec: RunSpec, client: int, update: messages.Packed) -> ServerUse:
    """Aggregate one client's update and score both splits, as the server's actor would. Call it in a fresh process.

    Krum compares updates: it gets as many as it needs, all the same.
    """
    one_thread()
    server = server_of(run_spec)
    experiment = run_spec.experiment
    server.state, round_ = experiment.method.peak_state(server.state, experiment.federation.rounds)
    baseline, began = resident(), time.perf_counter()
    federation = experiment.federation
    faulty, selected = federation.krum_num_malicious, federation.krum_num_selected
    answers = max(2 * faulty + 3, selected + faulty + 2) if federation.aggregation == "krum" else 1
    clients = [client, *(c for c in range(answers) if c != client)][:answers]
    for each in clients:
        server.collect(round_, each, messages.unpack(update))
    server.aggregate(round_, clients)
    messages.pack(server.broadcast(round_ + 1))
    if run_spec.experiment.method.evaluate_on == "server":
        server.scores(SERVER_SPLITS)
    return ServerUse(baseline, peak_resident(), answers, time.perf_counter() - began)


def data_bytes(run_spec: RunSpec, client: int) -> int:
    """Return the size of a client's tensors."""
    rows = run_spec.data().client(client, run_spec.objective())
    parts = (rows.x, rows.y_NC, rows.known_NC, rows.weight_NC, rows.length_N)
    return sum(messages.nbytes(t) for t in parts if t is not None)


def resident() -> int:
    """Return the resident memory of this process now."""
    return int(psutil.Process().memory_info().rss)


def gpu_use(total: int, before: int, after: int, free: int, reserved: int, peak: int) -> GpuNeed:
    """Return a client's need of a GPU, from readings.

    total: of the device. before, after: what another process sees free before this one touches the GPU, and when it has
    trained. free: what this one then sees free. reserved, peak: of its allocator, now and at most.
    """
    context = free - after  # of the other process, which it sees as used
    return GpuNeed(total, max(0, total - before - context), peak, max(context, before - after - reserved))


def _read_gpu(before: int) -> GpuNeed:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    reserved, peak = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
    return gpu_use(total, before, free_elsewhere(), free, reserved, peak)


def free_elsewhere() -> int:
    """Return the free memory of the GPU as another process sees it.

    To ask is to make a context, so this process must not.
    """
    code = "import torch; print(torch.cuda.mem_get_info()[0])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [exit_reason(result.returncode)]
        raise RuntimeError(f"the GPU's free memory cannot be read: {lines[-1]}")
    return int(result.stdout)


def free_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that new processes may take on this machine, or in the container that this process is in."""
    free = int(psutil.virtual_memory().available)
    for limit, used, stat, cached in CGROUPS:
        if not (root / limit).exists():
            continue
        most = (root / limit).read_text(encoding="ascii").strip()
        if most != "max":
            entries = dict(line.split()[:2] for line in (root / stat).read_text(encoding="ascii").splitlines())
            taken = int((root / used).read_text(encoding="ascii")) - int(entries.get(cached, 0))
            free = min(free, max(0, int(most) - taken))
    return free
