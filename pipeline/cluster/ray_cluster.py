"""Ray itself: start one of our own, join a running one, wait for its nodes, and leave it."""

from __future__ import annotations

import gc
import ipaddress
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import ray
from ray.exceptions import AuthenticationError

from anchorfl.pipeline.cluster import auth_token, signals
from anchorfl.pipeline.cluster.layout import nodes
from anchorfl.pipeline.cluster.placement import own_cpus
from anchorfl.pipeline.cluster.ray_watch import RayWatch, processes_of_ray
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.terminal import say_error
from anchorfl.tasks.errors import InputError, first_line

LOOPBACK = "127.0.0.1"
LONG_WAIT_S = 150
"""Seconds that each step of a second start of Ray may take; of the first, 30 by Ray's default."""
WAITS = ("raylet_start_wait_time_s", "gcs_server_port_wait_time_s")
"""Ray's options for that."""
LONGEST = 41
"""Characters of the folder around Ray's own, so that the path of a socket in it stays within Linux's 107."""

_watch: RayWatch | None = None
"""The watch over this process, while it uses a Ray that it started or joined."""


@contextmanager
def session(options: ClusterOptions) -> Iterator[None]:
    """Run the block with Ray; a Ray that is started or joined for it ends with the block."""
    started = start(options)
    try:
        yield
    finally:
        if started:
            stop()


def start(options: ClusterOptions) -> bool:
    """Connect to Ray; True if this call started or joined it (then ``stop`` is for the caller to call)."""
    if ray.is_initialized():
        return False
    # Read by the workers that Ray starts ahead of need: torch is then imported while the driver still prepares data.
    os.environ.setdefault("RAY_preload_python_modules", "torch,pyarrow.parquet,anchorfl.pipeline.training.client")
    # On Linux a process's large buffers then lie on huge pages: fewer faults, the same bits (docs/speed.md).
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join(_code_folders())
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    global _watch
    _watch = RayWatch()
    try:
        if options.address:
            _join(options, quiet)
        else:
            _start_own(quiet)
            signals.renew()
        _watch.started(own=not options.address)
    except BaseException:
        if options.address and ray.is_initialized():  # it was joined, and then lacked what is waited for
            stop()
        _watch_no_more()
        raise
    return True


def _code_folders() -> list[str]:
    """Return the folders in which workers must find modules, as this process does: AnchorFL's, which may be in a
    checkout that is not installed, and those of plug-ins.
    """
    root = str(Path(__file__).absolute().parents[3])  # the folder of ``anchorfl``; resolving would follow its links
    installed = sys.prefix, sys.base_prefix, sys.exec_prefix
    others = [os.path.abspath(path) for path in sys.path if path and not path.startswith(installed)]
    return list(dict.fromkeys([root, *os.environ.get("PYTHONPATH", "").split(os.pathsep), *others]))


def _watch_no_more() -> None:
    global _watch
    if _watch is not None:
        _watch.end()
        _watch = None


def _join(options: ClusterOptions, quiet: Mapping[str, Any]) -> None:
    """Connect to a running cluster. Raises InputError where there is none, or not the nodes that are waited for."""
    auth_token.restrict_mode()
    code = _runtime_env(options.py_modules)
    try:
        ray.init(address=options.address, **code, **quiet)
    except (ConnectionError, ValueError, RuntimeError, AuthenticationError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".")
        raise InputError(
            f"cluster.address = {options.address!r}: no Ray cluster that can be used answers there ({why}); give 'auto'"
            " or HOST:6379 of one that 'ray start --head' started, or leave cluster.address empty"
        ) from error
    signals.renew()
    if not _wants_token():
        _tell(
            f"the Ray cluster at {options.address} wants no token: whoever reaches it can run code on it (SECURITY.md)"
        )
    wait_for_nodes(options)
    if not sum(node.cpus for node in nodes()):
        raise InputError(
            f"the cluster at {options.address!r} has no CPUs now: start workers, or have its autoscaler start them with"
            " --cluster.wait_for_cpus or --cluster.wait_for_gpus"
        )
    if line := busy_line(sum(node.cpus for node in nodes())):
        _tell(line)


def _runtime_env(py_modules: str) -> dict[str, Any]:
    """Return the argument of ``ray.init`` that sends code to the workers. InputError where some is not there."""
    modules = [text.strip() for text in py_modules.split(",") if text.strip()]
    for text in modules:
        path = Path(text)
        if "://" not in text and not path.is_dir() and not (path.is_file() and path.suffix in (".py", ".whl")):
            raise InputError(
                f"cluster.py_modules: {path.absolute()} is no folder of a package, no .py and no .whl file; name one"
                " that is there"
            )
    absolute = [text if "://" in text else str(Path(text).absolute()) for text in modules]
    return {"runtime_env": {"py_modules": absolute}} if absolute else {}


def stop() -> None:
    """Leave Ray; a Ray of our own ends with it.

    While Ray shuts down it ends the process at once, with status 1, where another thread frees a reference to one of
    its objects. Python's garbage collector does so in any thread, such as the one that writes to MLflow.
    """
    if _watch is not None:
        _watch.stop()
    automatic = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        _watch_no_more()
        if automatic:
            gc.enable()


def _start_own(quiet: Mapping[str, Any]) -> None:
    """Start a Ray that only this user of this machine can reach: on loopback, with a token, in a folder of his own.

    Raises InputError where one of the three cannot be had. ``RAY_AUTH_MODE=disabled`` and ``RAY_TMPDIR`` are the user's
    own decisions, and stand.
    """
    auth_token.ensure_token()
    # Nobody reads Ray's metrics, which its agent would show to every user of the machine, without a token.
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    # Without a dashboard nobody asks what tasks have run, of which Ray would keep 100,000 at 3 kB each.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    # Ray counts the CPUs of the machine, also where Slurm or ``taskset`` gives this process a part of them.
    cpus = max(1, int(own_cpus()))
    fewer = {"num_cpus": cpus} if cpus < (os.cpu_count() or 1) else {}
    where = {"address": "local", "_node_ip_address": LOOPBACK, "_temp_dir": _own_folder()}
    with _loopback_only(), _few_processes():
        _init_patiently(include_dashboard=False, **where, **fewer, **quiet)
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # as in ``nodes``
    if not ipaddress.ip_address(address).is_loopback:
        stop()
        raise InputError(
            f"Ray {ray.__version__} listens on {address} and not on loopback alone: install the version of"
            " requirements.lock, or start Ray yourself ('ray start --head') and give --cluster.address"
        )
    if not _wants_token():
        _tell(f"{auth_token.MODE} = {os.environ.get(auth_token.MODE, '')!r}: every user of this machine can run code in"
              " this Ray, as you; unset it for a Ray that asks for a token")  # fmt: skip


def _init_patiently(**options: Any) -> None:
    """Start a Ray of our own; where it does not come up, as on a machine with too much to do, once more with a longer
    wait. Raises InputError where it does not then either.
    """
    try:
        _init(**options)
    except Exception as error:  # Ray raises whatever it met, often the plain Exception
        _tell(f"Ray did not start ({first_line(error)}); trying once more, with up to {LONG_WAIT_S} s for each step")
    else:
        return
    from ray._raylet import Config  # type: ignore[attr-defined]  # made by Cython

    # Ray's processes and its Python look into the variables; this process's C++ did when it was imported.
    waits = {name: os.environ.setdefault(f"RAY_{name}", str(LONG_WAIT_S)) for name in WAITS}
    Config.initialize(json.dumps({WAITS[0]: int(waits[WAITS[0]])}))
    try:
        _init(**options)
    except Exception as error:
        raise InputError(
            f"Ray does not start on this machine ({first_line(error)}): look at its load and free memory, and at Ray's"
            f" logs below {options['_temp_dir'] or os.environ.get('RAY_TMPDIR')}; or do without Ray by"
            " --cluster.executor serial"
        ) from error


def _init(**options: Any) -> None:
    """Call ``ray.init``; where it fails, end the processes that it leaves behind."""
    try:
        ray.init(**options)
    except BaseException:
        ray.shutdown()
        for process in processes_of_ray():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        raise


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Make a Ray that is started in the block listen on loopback.

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
    """Make a Ray that is started in the block do without three processes that nobody here asks anything.

    They are the API server behind the dashboard, the autoscaler's monitor, and the monitor of workers' logs.

    It is there 2 s sooner and takes 207 MB less (docs/speed.md). ``ray.init`` has no options for them.
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
    """Return the folder for the sockets, logs and spilled objects of a Ray of our own; None: ``RAY_TMPDIR`` names one.

    Ray opens its folders to everybody for writing (``/tmp/ray``, mode 0777), so that another user could put his socket
    in the place of ours; hence a folder around it that he cannot enter. Names are short, as paths of sockets must be.
    """
    if os.environ.get("RAY_TMPDIR"):
        return None
    tmpdir = os.environ.get("TMPDIR") if sys.platform.startswith("linux") else ""  # macOS has one that is too long
    parent = Path(tmpdir or "/tmp") / f"ray-{os.getuid()}"
    if len(str(parent)) > LONGEST:  # as batch systems make them
        _tell(f"TMPDIR ({tmpdir}) is too long for Ray's sockets, which go to /tmp; RAY_TMPDIR names another place")
        parent = Path("/tmp") / parent.name
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & auth_token.OTHERS:
        raise InputError(
            f"{parent} is to hold Ray's sockets and logs, and is no folder that only you may enter: remove it, or name"
            " another place in RAY_TMPDIR"
        )
    return str(parent / "r")


def _wants_token() -> bool:
    """Return whether Ray, which is connected, speaks only to who has the token.

    Ray sets the variable where it decides so.
    """
    return os.environ.get(auth_token.MODE, "").lower() == "token"


def _tell(line: str) -> None:
    say_error(f"anchorfl: {line}")


def wait_for_nodes(options: ClusterOptions, pause_s: float = 2.0) -> None:
    """Wait until the cluster has the CPUs and GPUs that ``options`` ask for, and ask its autoscaler for nodes.

    Raises InputError where they do not come in time.
    """
    wanted = {"CPU": options.wait_for_cpus, "GPU": options.wait_for_gpus}
    if not any(wanted.values()):
        return
    from ray.autoscaler.sdk import request_resources

    deadline = time.monotonic() + 60 * options.wait_minutes
    request_resources(bundles=[{name: 1} for name, count in wanted.items() for _ in range(count)])
    try:
        while True:
            have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # no annotation
            missing = {name: count for name, count in wanted.items() if have.get(name, 0.0) < count}
            if not missing:
                return
            if time.monotonic() > deadline:
                asked = " and ".join(f"{count} {name}s (has {have.get(name, 0):g})" for name, count in missing.items())
                raise InputError(
                    f"the cluster did not get {asked} within {options.wait_minutes:g} minutes: look at 'ray status'"
                    " for why, ask for less with --cluster.wait_for_gpus, or wait longer with --cluster.wait_minutes"
                )
            time.sleep(pause_s)
    finally:
        request_resources(bundles=[])  # a request outlives its maker, and would keep paid nodes for ever


def busy_line(total: float) -> str:
    """Return a line where others use some of the cluster's CPUs, of which there are ``total``; "" where nobody does.

    A run's layout counts on all of them, and Ray lets actors wait for ever.
    """
    resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]  # no annotation
    used = total - resources.get("CPU", 0.0)
    if used < 0.01:
        return ""
    return (
        f"others use {used:g} of the cluster's {total:g} CPUs: a run shares out all of them, and waits until its"
        " part is free; runs that start together may wait for each other for ever (docs/cluster.md)"
    )
