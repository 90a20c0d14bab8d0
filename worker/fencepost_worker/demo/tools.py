"""The demo's tools: what a tool author writes. `fencepost worker --tools fencepost_worker.demo.tools` serves them."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any
from urllib.error import HTTPError, URLError

from fencepost_dispatch import ToolFailed, tool

URL = "TICKETS_URL"  # the environment variable that says where the ticket system is


@tool("tickets.create", timeout=30)
def create_ticket(project: str, title: str) -> dict[str, Any]:
    """File a ticket; returns its key. The ticket system knows no idempotency key: to call it twice is to file two."""
    return _ask(json.dumps({"project": project, "title": title}).encode())  # type: ignore[no-any-return]


@tool("tickets.list", effect="read_only", timeout=10)
def list_tickets() -> list[dict[str, Any]]:
    """All tickets. It changes nothing, and may run as often as it is asked for."""
    return _ask(None)  # type: ignore[no-any-return]


def _ask(body: bytes | None) -> Any:
    request = urllib.request.Request(os.environ[URL], body, {"Content-Type": "application/json"})  # noqa: S310 - http
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
            return json.load(reply)
    except HTTPError as error:
        if error.code < 500:  # understood and refused: known not to have happened
            raise ToolFailed("refused", error.read().decode(errors="replace")) from error
        raise
    except URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):  # nothing was sent
            raise ToolFailed("not_reachable", str(error.reason), retryable=True) from error
        raise
