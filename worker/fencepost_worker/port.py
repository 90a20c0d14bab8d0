"""One small port for probes and scrapes, in threads of its own: it answers while the event loop is blocked.

Whatever is sent to it, it is bounded: so many connections at once, so many seconds each, and nothing is kept.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import structlog

CONNECTIONS = 16  # more at once are closed unheard
SECONDS = 10.0  # a connection that takes longer is cut
_SILENCE = 5.0  # and one that says nothing for so long

log = structlog.get_logger("fencepost.port")


class PortUnavailable(Exception):
    """The port for metrics and health cannot be opened; the text is one line with the cure."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A body in UTF-8 and what it is."""

    status: int
    kind: str
    body: bytes


# Path → what answers it, given the Accept header.
Routes = Mapping[str, Callable[[str], Reply]]


@contextmanager
def opened(port: int, routes: Routes) -> Iterator[int]:
    """Serves meanwhile → the port; 0 stands for any free one.

    Raises:
        PortUnavailable
    """
    server = _listen(port, routes)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="fencepost-port")
    thread.daemon = True
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(port: int, routes: Routes) -> _Server:
    try:
        try:
            return _Server(port, routes, socket.AF_INET6)  # takes IPv4 too
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            return _Server(port, routes, socket.AF_INET)
    except OSError as error:
        cure = "set FENCEPOST_METRICS_PORT to a free one, another for each worker of a machine, or to 0 for none"
        reason = "in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise PortUnavailable(f"port {port} for metrics and health is not to be had ({reason}): {cure}") from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, port: int, routes: Routes, family: socket.AddressFamily) -> None:
        self.address_family = family
        self.routes = routes
        self._open: dict[socket.socket, float] = {}
        super().__init__(("", port), _Request)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # not HTTPServer's: it asks the DNS for our name, and waits for it
        self.server_name, self.server_port = "", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        return len(self._open) < CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open[request] = time.monotonic() + SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        for request, until in self._open.copy().items():
            if now > until:
                with suppress(OSError):  # it has gone meanwhile
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request was not answered", reason=repr(sys.exception()))


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE
    server_version = "fencepost"
    sys_version = ""

    def do_GET(self) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            self._send(Reply(HTTPStatus.NOT_FOUND, "text/plain", b"not found: /livez, /readyz, /metrics\n"))
            return
        try:
            reply = route(self.headers.get("Accept", ""))
        except Exception as error:
            log.warning("a probe failed", path=self.path, exc_info=True)
            reply = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}\n".encode())
        self._send(reply)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", f"{reply.kind}; charset=utf-8" if ";" not in reply.kind else reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def log_message(self, *_: Any) -> None:
        """A probe every few seconds is not worth a line."""
