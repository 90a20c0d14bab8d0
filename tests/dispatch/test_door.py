"""The tool's door: a call is entered soon after its reservation, or asked about again."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fencepost_dispatch import Line, ToolFailed, tool
from fencepost_dispatch.settings import Settings
from fencepost_ledger import Desk
from fencepost_schemas import Dispatch


@pytest.fixture
def desk(database: str) -> Any:
    with Desk(database) as made:
        made.open_execution("e", "acme")
        yield made


def dispatch(tool: str, index: int = 0, node: str = "n", **arguments: Any) -> Dispatch:
    return Dispatch(
        event_id=f"{node}-{index}",
        execution_id="e",
        node_id=node,
        call_index=index,
        generation=1,
        tool=tool,
        arguments=arguments,
    )


@pytest.mark.parametrize("sync", [False, True])
async def test_a_process_frozen_between_reservation_and_tool_asks_again_before_it_enters(
    database: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    attempts: list[int] = []

    def act(n: int) -> int:
        attempts.append(n)
        return n

    async def act_async(n: int) -> int:
        return act(n)

    create = tool("desk.create")(act if sync else act_async)
    from fencepost_dispatch import engine

    frozen = iter([3600.0])
    monkeypatch.setattr(engine, "monotonic", lambda: time.monotonic() - next(frozen, 0.0))
    async with Line([create], Settings(ledger_dsn=database)) as line:
        outcome = await line.run(dispatch("desk.create", n=1))
    assert (outcome.status, outcome.attempt, attempts) == ("succeeded", 2, [1])


async def test_a_generation_raised_while_the_process_was_frozen_is_not_entered(
    database: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool("desk.create")
    async def create() -> None:
        raise AssertionError("a stale generation started")

    from fencepost_dispatch import engine

    def thaw() -> float:
        """The reservation is being asked for; when it is there, the world has gone on."""
        return time.monotonic() - 3600.0

    monkeypatch.setattr(engine, "monotonic", thaw)
    original = engine.Engine._run

    def raised_meanwhile(self: Any, way: Any, step: Any) -> None:
        desk.redispatch("e", "n")
        original(self, way, step)

    monkeypatch.setattr(engine.Engine, "_run", raised_meanwhile)
    async with Line([create], Settings(ledger_dsn=database)) as line:
        outcome = await line.run(dispatch("desk.create"))
    assert outcome.status == "fenced"


async def test_no_call_is_reserved_for_a_thread_that_a_timed_out_tool_still_has(database: str, desk: Desk) -> None:
    release, entered = threading.Event(), threading.Event()

    @tool("desk.create_slowly", timeout=0.05)
    def slow() -> None:
        release.wait(20)

    @tool("desk.create")
    def create() -> str:
        entered.set()
        return "entered"

    async with Line([slow, create], Settings(ledger_dsn=database, concurrency=1)) as line:
        late = await line.run(dispatch("desk.create_slowly", node="slow"))
        waiting = asyncio.create_task(line.run(dispatch("desk.create", node="next")))
        await asyncio.sleep(0)
        assert desk.redispatch("e", "next") == 2  # returns, and nothing of generation 1 is reserved
        assert not entered.is_set()
        release.set()
        outcome = await waiting
    assert (late.status, outcome.status) == ("indeterminate", "fenced")
    assert not entered.is_set()


async def test_a_tool_that_says_not_started_itself_is_answered_and_not_asked_again(database: str, desk: Desk) -> None:
    runs: list[int] = []

    @tool("desk.create")
    async def create() -> None:
        runs.append(1)
        raise ToolFailed("not_started", retryable=True)

    async with Line([create], Settings(ledger_dsn=database)) as line:
        outcome = await line.run(dispatch("desk.create"))
    assert (outcome.status, outcome.attempt, runs) == ("failed", 1, [1])
