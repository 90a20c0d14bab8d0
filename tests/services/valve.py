"""A TCP proxy in front of a server, to freeze it, and to lose the answer to a commit."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Valve:
    """Between a client and the Postgres of `dsn`; `dsn` of the valve leads through it.

    `shut` holds back every byte without a word, as a frozen server does; `open` lets them go on. `swallow` lets the
    next commit reach the server, loses the answer and ends that connection; `swallowed` is set when it has happened.
    """

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._server = (parts.hostname or "", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        login = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username}@"
        self.dsn = parts._replace(netloc=f"{login}127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self.swallowed = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._swallowing = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        self._flowing.clear()

    def open(self) -> None:
        self._flowing.set()

    def swallow(self) -> None:
        self.swallowed.clear()
        self._swallowing = True

    def cut(self) -> None:
        """End every connection there is; new ones are taken."""
        for each in list(self._sockets):
            _end(each)

    def close(self) -> None:
        self.open()
        _end(self._listener)
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                deaf = threading.Event()
                for pump in ((client, server, deaf, True), (server, client, deaf, False)):
                    threading.Thread(target=self._pump, args=pump, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, deaf: threading.Event, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                if asking and self._swallowing and b"COMMIT" in data:
                    self._swallowing = False
                    deaf.set()
                if not asking and deaf.is_set():
                    self.swallowed.set()
                    break
                target.sendall(data)
        _end(source)
        _end(target)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
