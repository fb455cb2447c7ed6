"""Ray itself: starting one of our own or joining a running one, and how its resources are shared out."""

from __future__ import annotations

import gc
import ipaddress
import math
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import ray
from ray.exceptions import RayError, RayTaskError

from pipeline import ending, token_file
from pipeline.capacity import Node, largest_share, wherever
from pipeline.experiment import ClusterOptions
from pipeline.gathering import busy, gather
from tasks.contract import InputError

T = TypeVar("T")
PER_CLIENT_ACTORS_UP_TO = 32
LOOPBACK = "127.0.0.1"
LONGEST = 41
"""Characters of the folder around Ray's own, so that the path of a socket in it stays within Linux's 107."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a run lies on the cluster: number of client actors, their shares, and how many may train at one time."""

    actors: int
    client_cpus: float
    client_gpus: float
    server_cpus: float
    server_gpus: float
    concurrent: int
    group: Any = None
    """Placement group with bundle 0 for the server and one more per client actor; None: anywhere on the cluster."""


def start(options: ClusterOptions) -> bool:
    """Connect to Ray; True if this call started or joined it (then ``stop`` is for the caller to call)."""
    if ray.is_initialized():
        return False
    # Read by the workers that Ray starts ahead of need: torch is then imported while the driver still prepares data.
    os.environ.setdefault("RAY_preload_python_modules", "torch,pyarrow.parquet,pipeline.client")
    # On Linux a process's large buffers then lie on huge pages: fewer faults, the same bits (docs/speed.md).
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    # Workers must find the packages in a checkout that is not installed, too.
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if not options.address:
        _start_own(quiet)
        ending.renew()
        return True
    token_file.closed()
    try:
        ray.init(address=options.address, **quiet)
    except ConnectionError as error:
        raise InputError(
            f"cluster.address = {options.address!r}: no Ray cluster answers there ({error}); start one with"
            " 'ray start --head', or leave cluster.address empty"
        ) from error
    ending.renew()
    if not _wants_token():
        _tell(
            f"the Ray cluster at {options.address} wants no token: whoever reaches it can run code on it (SECURITY.md)"
        )
    gather(options)
    if not sum(node.cpus for node in nodes()):
        raise InputError(
            f"the cluster at {options.address!r} has no CPUs now: start workers, or have its autoscaler start them with"
            " --cluster.gather_cpus or --cluster.gather_gpus"
        )
    if line := busy(sum(node.cpus for node in nodes())):
        _tell(line)
    return True


def stop() -> None:
    """Leave Ray; a Ray of our own ends with it.

    While Ray shuts down it ends the process at once, with status 1, where another thread frees a reference to one of
    its objects. Python's garbage collector does so in any thread, such as the one that writes to MLflow.
    """
    automatic = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if automatic:
            gc.enable()


def _start_own(quiet: dict[str, Any]) -> None:
    """A Ray that only this user of this machine can reach: on loopback, with a token, in a folder of his own.

    InputError where one of the three cannot be had; ``RAY_AUTH_MODE=disabled`` and ``RAY_TMPDIR`` are the user's own
    decisions, and stand.
    """
    token_file.made()
    # Without a dashboard nobody asks what tasks have run, of which Ray would keep 100,000 at 3 kB each.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    with _loopback_only(), _few_processes():
        ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, _temp_dir=_own_folder(), **quiet)
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # as in ``nodes``
    if not ipaddress.ip_address(address).is_loopback:
        stop()
        raise InputError(
            f"Ray {ray.__version__} listens on {address} and not on loopback alone: install the version of"
            " requirements.lock, or start Ray yourself ('ray start --head') and give --cluster.address"
        )
    if not _wants_token():
        _tell(f"{token_file.MODE} = {os.environ.get(token_file.MODE, '')!r}: every user of this machine can run code in"
              " this Ray, as you; unset it for a Ray that asks for a token")  # fmt: skip


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Ray started in this block listens on loopback.

    Ray 2.60 takes 127.0.0.1 as a node's address for a slip and puts the machine's own in its place, except where it
    makes no clusters, as on macOS and Windows by default (RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, read once, at the import).
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _few_processes() -> Iterator[None]:
    """Ray started in this block does without three processes that nobody here asks anything: the API server behind the
    dashboard, the autoscaler's monitor, and the monitor of workers' logs, which are not shown.

    It is there 2 s sooner and takes 180 MB less (docs/speed.md). ``ray.init`` has no options for them.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    begin = RayParams.__init__

    def without_monitors(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self.no_monitor, self.include_log_monitor = True, False

    def without_server(self: Any, **_: Any) -> None:
        self._webui_url = ""

    with patch.object(RayParams, "__init__", without_monitors), patch.object(Node, "start_api_server", without_server):
        yield


def _own_folder() -> str | None:
    """Folder for the sockets, logs and spilled objects of a Ray of our own; None: ``RAY_TMPDIR`` names one.

    Ray opens its folders to everybody for writing (``/tmp/ray``, mode 0777), so that another user could put his socket
    in the place of ours; hence a folder around it that he cannot enter. Names are short, as paths of sockets must be.
    """
    if os.environ.get("RAY_TMPDIR"):
        return None
    place = os.environ.get("TMPDIR") if sys.platform.startswith("linux") else ""  # macOS has one that is too long
    around = Path(place or "/tmp") / f"ray-{os.getuid()}"
    if len(str(around)) > LONGEST:  # as batch systems make them
        _tell(f"TMPDIR ({place}) is too long for Ray's sockets, which go to /tmp; RAY_TMPDIR names another place")
        around = Path("/tmp") / around.name
    around.mkdir(mode=0o700, exist_ok=True)
    found = around.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & token_file.OTHERS:
        raise InputError(
            f"{around} is to hold Ray's sockets and logs, and is no folder that only you may enter: remove it, or name"
            " another place in RAY_TMPDIR"
        )
    return str(around / "r")


def _wants_token() -> bool:
    """Whether Ray, which is connected, speaks only to who has the token: Ray sets the variable where it decides so."""
    return os.environ.get(token_file.MODE, "").lower() == "token"


def _tell(line: str) -> None:
    print(f"anchorfl: {line}", file=sys.stderr, flush=True)


def nodes() -> list[Node]:
    """What each node of the cluster has, free or not."""
    everywhere: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray has no annotation here
    shares = [node["Resources"] for node in everywhere if node["Alive"]]
    return [Node(float(s.get("CPU", 0.0)), (1.0,) * int(s.get("GPU", 0.0))) for s in shares]


def layout(options: ClusterOptions, clients: int) -> Layout:
    """Shares that fit the cluster, or InputError: actors that never get their share would wait for ever."""
    have = nodes()
    cpus, gpus = sum(node.cpus for node in have), sum(len(node.devices) for node in have)
    if options.clients_per_actor:
        actors = math.ceil(clients / options.clients_per_actor)
    else:
        actors = clients if clients <= PER_CLIENT_ACTORS_UP_TO else max(1, int(cpus))
    wanted = actors * options.client_gpus + options.server_gpus
    if wanted > gpus + 1e-9:
        raise InputError(
            f"{actors} client actors of {options.client_gpus:g} GPU and a server of {options.server_gpus:g} need"
            f" {wanted:g} GPUs, the cluster has {gpus:g}: lower --cluster.client_gpus or raise"
            " --cluster.clients_per_actor"
        )

    def fits(share: float, server: float) -> bool:
        return wherever(have, (server, options.server_gpus), [(share, options.client_gpus)] * actors)

    share = options.client_cpus or largest_share(have, actors + 1, lambda s: fits(s, s))
    left = max(0.0, min(1.0, cpus - actors * share)) if options.client_cpus else share
    server = next((s for s in (left, min(share, left), 0.0) if share and fits(share, s)), None)
    if server is None:
        raise InputError(_too_many(actors, share, options, have))
    concurrent = options.concurrent or max(1, int(cpus))
    return Layout(actors, share, options.client_gpus, server, options.server_gpus, concurrent)


def _too_many(actors: int, share: float, options: ClusterOptions, have: Sequence[Node]) -> str:
    cpus = sum(node.cpus for node in have)
    each = ", ".join(f"{node.cpus:g} CPUs and {len(node.devices)} GPUs" for node in have)
    shares = [f"{n:g} {what}" for n, what in ((share, "CPU"), (options.client_gpus, "GPU")) if n]
    asked = f" of {' and '.join(shares)}" if shares else ""
    return (
        f"{actors} client actors{asked} do not fit a cluster of {cpus:g} CPUs, with their server, where each lies on"
        f" one node and one GPU (nodes: {each}): set --cluster.client_cpus (0 shares them out) or --cluster.client_gpus"
        " lower, or --cluster.clients_per_actor higher"
    )


def with_memory() -> list[tuple[Node, float]]:
    """What each node has, as in ``nodes``, and the bytes that actors may take there: free when Ray started, less its
    object store.
    """
    everywhere: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray has no annotation here
    shares = [node["Resources"] for node in everywhere if node["Alive"]]
    return [
        (Node(float(s.get("CPU", 0.0)), (1.0,) * int(s.get("GPU", 0.0))), float(s.get("memory", 0.0))) for s in shares
    ]


def apart(function: Callable[..., T], *arguments: Any, gpus: float = 0.0) -> T:
    """What ``function`` gives in a fresh worker process of the cluster; RuntimeError with one line where it gives
    nothing.
    """
    # A worker serves only tasks of its own environment, so none that has worked before gets this one.
    fresh = {"env_vars": {"ANCHORFL_APART": uuid.uuid4().hex}}
    task: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, max_calls=1, runtime_env=fresh)(function)
    try:
        return ray.get(task.remote(*arguments))  # type: ignore[no-any-return]  # what ``function`` returned there
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        text = str(cause).strip().splitlines()
        raise RuntimeError(f"{type(cause).__name__}: {text[0] if text else 'no message'}") from error
