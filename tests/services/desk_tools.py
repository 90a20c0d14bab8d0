"""Tools of worker processes under test: each effect is a line in a file, counted by whoever reads it."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from pathlib import Path

from fencepost_dispatch import ToolInvocationContext, tool


def act(line: str) -> None:
    """One write of one short line: whole or not at all, whoever else appends."""
    with Path(os.environ["DESK_EFFECTS"]).open("a") as file:
        file.write(f"{line}\n")


@tool("desk.create")
async def create(n: int = 0) -> dict[str, int]:
    act(f"created {n}")
    return {"n": n}


@tool("desk.create_when")
async def create_when(n: int, gate: str) -> dict[str, int]:
    """Acts, and then does not come back before there is a file `gate`."""
    act(f"created {n}")
    while not await asyncio.to_thread(Path(gate).exists):  # noqa: ASYNC110 - another process opens the gate
        await asyncio.sleep(0.02)
    return {"n": n}


@tool("pay.refund", effect="idempotent", max_attempts=3)
def refund(order: str, url: str, context: ToolInvocationContext) -> dict[str, int | str]:
    """Hands its key downstream, so that the service can know a repeat of this call."""
    assert context.invocation_key is not None
    headers = {"Idempotency-Key": context.invocation_key}
    with urllib.request.urlopen(urllib.request.Request(url, order.encode(), headers), timeout=30) as answer:
        return {"refund": answer.read().decode(), "attempt": context.attempt or 0}
