"""Calls with large results, run in process through a line whose ledger keeps next to nothing inline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fencepost_dispatch import Line, NotDone, Settings, Tool, tool
from fencepost_ledger import CallRow, Desk
from fencepost_schemas import Dispatch, Outcome

LARGE = {"rows": ["ü" * 40, "\0", 2**70, None]}
TEXT = json.dumps(LARGE, separators=(",", ":")).encode()
INLINE = 64  # bytes
ORG, OTHER_ORG = "acme", "../acme"


class Reports:
    """The tools, and how often each ran."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

        @tool("report.make")
        async def make() -> Any:
            self.ran["make"] += 1
            return LARGE

        @make.probe
        async def find() -> Any:
            self.ran["find"] += 1
            return LARGE if self.there else NotDone

        @tool("report.read", effect="read_only")
        async def read() -> Any:
            self.ran["read"] += 1
            return LARGE

        self.there = True
        self.tools: list[Tool[..., Any]] = [make, read]


@asynccontextmanager
async def line(database: str, tools: list[Tool[..., Any]], url: str | None, **more: Any) -> AsyncIterator[Line]:
    """A line; the executions `x` and `of another` are open, each under its org."""
    with Desk(database) as desk:
        desk.open_execution("x", ORG)
        desk.open_execution("of another", OTHER_ORG)
    async with Line(tools, Settings(ledger_dsn=database, blobs=url, inline_result_bytes=INLINE, **more)) as entered:
        yield entered


def ask(number: int = 0, **fields: Any) -> Dispatch:
    event: dict[str, Any] = {
        "event_id": f"e{number}",
        "execution_id": "x",
        "node_id": "n",
        "call_index": number,
        "generation": 1,
        "tool": "report.make",
        "arguments": {},
    }
    return Dispatch(**event | fields)


def row(database: str, outcome: Outcome) -> CallRow:
    """What the ledger has of it."""
    assert outcome.invocation_key is not None
    with Desk(database) as desk:
        return desk.call(outcome.invocation_key)
