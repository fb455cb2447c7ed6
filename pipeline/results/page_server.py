"""The page of runs on loopback, made anew on each request while they go on."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from anchorfl.pipeline.results.run_page import run_page
from anchorfl.pipeline.results.run_view import Run
from anchorfl.tasks.errors import InputError

LOOPBACK, MAX_PORT = "127.0.0.1", 65535
REFRESH_S = 5
"""Seconds after which a browser asks again, while a run is not finished."""
NAMES = "127.0.0.1", "localhost"
"""Names by which a browser may ask: a web page whose name comes to mean 127.0.0.1 (DNS rebinding) gets nothing."""


class PageServer(HTTPServer):
    """A server of the page of some runs, bound to a port of loopback; ``serve_forever`` answers."""

    def __init__(self, runs: Sequence[Run], port: int) -> None:
        """port: 0 takes a free one. Errors: InputError where it cannot be had."""
        self.runs = runs
        run_page(runs)  # bad folders are refused before anybody asks
        if not 0 <= port <= MAX_PORT:
            raise InputError(f"--serve {port}: must be from 0, which takes a free port, to {MAX_PORT}")
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InputError(
                f"cannot listen on {LOOPBACK}:{port} ({error.strerror}); name another port, or 0 for a free one"
            ) from error

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10
    """Seconds for a request, since one is answered at a time."""

    def do_GET(self) -> None:
        """Answer with the page; with one line where a folder was damaged meanwhile."""
        if self.headers.get("Host", "").partition(":")[0] not in NAMES:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"ask for {self.server.address}\n")
        elif self.path != "/":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is one page: /\n")
        else:
            try:
                page = run_page(self.server.runs, refresh_s=REFRESH_S)
            except InputError as error:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n")
            else:
                self._answer(HTTPStatus.OK, "text/html", page)

    def _answer(self, status: HTTPStatus, kind: str, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal is the user's."""
