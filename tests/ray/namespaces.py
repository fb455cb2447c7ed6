"""Nodes of this machine that have a network, an address and processes of their own, and share its disk.

    unshare --net python -m tests.ray.namespaces 2 COMMAND WORD ...

Runs the command on every node at once, with ``NODE_RANK`` (0, 1, ...) and a ``TMPDIR`` of its own, and ends with the
largest exit code. The nodes' addresses are ``address(rank)``. Needs Linux and root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODE = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
START = 'until [ -e "$TMPDIR/joined" ]; do sleep 0.1; done; "$@"; exit $?'
"""Waits for the network of the node, and for processes that lose their parent, as its first one has to."""


def address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def possible() -> str:
    """Return why there can be no such nodes here; empty where there can."""
    tried = subprocess.run(
        ["unshare", "--net", *NODE, "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return tried.stderr.strip() if tried.returncode else ""


def _ip(words: str, inside: int | None = None) -> None:
    into = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else []
    subprocess.run([*into, "ip", *words.split()], check=True)


def run_on_nodes(count: int, command: list[str]) -> int:
    """Run a command on so many nodes; return the largest exit code."""
    _ip("link add br0 type bridge")
    _ip("link set br0 up")
    with tempfile.TemporaryDirectory(prefix="n-", dir="/tmp") as folder:  # short, for sockets
        nodes = []
        for rank in range(count):
            own = Path(folder, str(rank))
            own.mkdir()
            env = os.environ | {"NODE_RANK": str(rank), "TMPDIR": str(own)}
            nodes.append(node := subprocess.Popen([*NODE, "sh", "-c", START, "sh", *command], env=env))
            while os.readlink(f"/proc/{node.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
            _ip(f"link add v{rank} type veth peer name e{rank}")
            _ip(f"link set v{rank} master br0 up")
            _ip(f"link set e{rank} netns {node.pid}")
            for words in (f"addr add {address(rank)}/24 dev e{rank}", f"link set e{rank} up", "link set lo up"):
                _ip(words, inside=node.pid)
            (own / "joined").touch()
        return max(abs(node.wait()) for node in nodes)


if __name__ == "__main__":
    sys.exit(run_on_nodes(int(sys.argv[1]), sys.argv[2:]))
