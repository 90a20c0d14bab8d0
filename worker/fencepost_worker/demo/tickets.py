"""A ticket system like many: it knows nothing of Fencepost, and files what it is asked to, twice if asked twice.

`POST /tickets` with `{"project": …, "title": …}` files one and answers 201; `GET /tickets` lists them. What it has
filed is in a SQLite file, and counted there.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Ticket:
    key: str
    title: str


class TicketSystem:
    """The service, at `url`; a context manager."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS tickets (number INTEGER PRIMARY KEY, project TEXT, title TEXT)"
        )
        self._filed = threading.Condition()
        self._prompt = threading.Event()
        self._prompt.set()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/tickets"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="tickets", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._prompt.set()
        self._server.shutdown()
        self._server.server_close()
        with self._filed:
            self._database.close()

    def file(self, project: str, title: str) -> Ticket:
        """Files a ticket, then answers: at once, unless the service is slow today."""
        with self._filed:
            query = "INSERT INTO tickets (project, title) VALUES (?, ?) RETURNING number"
            (number,) = self._database.execute(query, (project, title)).fetchone()
            self._filed.notify_all()
        self._prompt.wait(60)
        return Ticket(f"{project}-{number}", title)

    def tickets(self) -> list[Ticket]:
        """Everything that was ever filed, oldest first."""
        with self._filed:
            return self._tickets()

    def wait_for(self, title: str, seconds: float) -> bool:
        """Waits until a ticket of this title has been filed, whether or not that was answered yet."""
        with self._filed:
            return self._filed.wait_for(lambda: any(ticket.title == title for ticket in self._tickets()), seconds)

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Meanwhile tickets are filed and nothing is answered; the answers come at the end, to whoever is there."""
        self._prompt.clear()
        try:
            yield
        finally:
            self._prompt.set()

    def _tickets(self) -> list[Ticket]:
        rows = self._database.execute("SELECT project, number, title FROM tickets ORDER BY number")
        return [Ticket(f"{project}-{number}", title) for project, number, title in rows]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, system: TicketSystem) -> None:
        self.system = system
        super().__init__(("127.0.0.1", 0), _Request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is no longer there is not worth a word."""


class _Request(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        wanted: Any = None
        with suppress(ValueError):
            wanted = json.loads(body)
        if self.path != "/tickets" or not isinstance(wanted, dict) or not wanted.get("title"):
            self._answer(400, {"error": "POST /tickets takes an object with project and title"})
            return
        self._answer(201, asdict(self.server.system.file(str(wanted.get("project", "OPS")), str(wanted["title"]))))

    def do_GET(self) -> None:
        self._answer(200, [asdict(ticket) for ticket in self.server.system.tickets()])

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Nobody reads it."""
