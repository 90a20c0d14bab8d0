"""The line while things break: a blocked event loop, lost and lapsed leases, a database that dies, cuts and forgets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from fencepost_dispatch import Line, Tool, current_tool_invocation_context, tool
from fencepost_ledger import State
from fencepost_schemas import Outcome, Status
from services.holder import Book, Holder, call
from services.lines import MAIL, Gate, ask, line, said
from services.postgres import Postgres
from services.valve import Valve

CALLS = 60


@pytest.fixture
def valve(book: Book) -> Iterator[Valve]:
    with closing(Valve(book.dsn)) as valve:
        yield valve


async def until(book: Book, holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(book.wait, holds)


# --- leases -----------------------------------------------------------------------------------------------------------


def wait_for_renewal(book: Book) -> None:
    before = book.row().lease_until
    book.wait(lambda: book.row().lease_until != before)


async def test_a_tool_that_blocks_the_event_loop_keeps_its_lease(book: Book, elsewhere: Holder) -> None:
    """It stands still until its lease has been renewed again and again, without one turn of the loop."""

    @tool(MAIL, effect="idempotent")
    async def send() -> None:
        for _ in range(5):
            wait_for_renewal(book)

    async with line(book.dsn, send, lease_seconds=1) as opened:
        assert said(await opened.run(ask(MAIL))) == ("succeeded", True, False, False)


def stolen(book: Book) -> None:
    """Somebody else took the call over as its next attempt."""
    book.ask(
        "UPDATE fencepost.calls SET holder = 'thief', attempt = 2, revision = revision + 1, lease_until = now() + '1 h'"
    )


async def test_a_lost_call_that_others_run_again_is_cancelled_and_answered_by_them(book: Book) -> None:
    gate = Gate(MAIL, effect="idempotent")
    async with line(book.dsn, gate.tool, lease_seconds=1) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        await gate.entered.wait()
        stolen(book)
        await gate.cancelled.wait()
        assert book.states() == [State.executing], "the thief's"
        theirs = "UPDATE fencepost.calls SET state = 'completed', lease_until = NULL, result = '1', finished_at = now()"
        book.ask(theirs)
        outcome = await asking
    assert (*said(outcome), outcome.result, outcome.worker) == ("succeeded", False, True, False, 1, "thief")


async def test_a_lost_protected_call_is_left_to_end_and_reports_what_is_recorded(book: Book) -> None:
    gate = Gate(MAIL)
    async with line(book.dsn, gate.tool, lease_seconds=1, wait_seconds=0.1) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        await gate.entered.wait()
        other = asyncio.create_task(opened.run(ask(MAIL, event_id="e2", call_index=1)))
        await until(book, lambda: len(book.rows()) == 2)
        book.ask("UPDATE fencepost.calls SET holder = 'thief', attempt = 2 WHERE call_index = 0")
        before = book.rows()[1].lease_until
        await until(book, lambda: book.rows()[1].lease_until != before)  # a turn of the keeper: the loss is known
        assert not gate.cancelled.is_set()
        gate.let_go()
        assert (await asking).status is Status.busy, "and never its own result"
        assert said(await other) == ("succeeded", True, False, False)


async def test_a_live_attempt_that_was_called_unknown_still_tells_the_truth(book: Book, elsewhere: Holder) -> None:
    gate = Gate(MAIL)
    async with line(book.dsn, gate.tool, lease_seconds=60) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        await gate.entered.wait()
        book.lease_over()
        elsewhere.look(call("e2", tool=MAIL))
        assert book.states() == [State.indeterminate]
        gate.let_go()
        assert said(await asking) == ("succeeded", True, False, False)
    assert book.states() == [State.completed]


@pytest.mark.faults
async def test_a_lapse_cancels_only_what_others_may_run_again_and_starts_nothing_until_it_ends(
    book: Book, valve: Valve
) -> None:
    protected, shared = Gate(MAIL), Gate("pay.refund", effect="idempotent")
    async with line(valve.dsn, protected.tool, shared.tool, lease_seconds=1) as opened:
        first = asyncio.create_task(opened.run(ask(MAIL)))
        second = asyncio.create_task(opened.run(ask("pay.refund", event_id="e2", call_index=1)))
        await asyncio.gather(protected.entered.wait(), shared.entered.wait())
        valve.shut()
        await shared.cancelled.wait()
        assert not protected.cancelled.is_set()
        third = asyncio.create_task(opened.run(ask(MAIL, {"n": 3}, "e3", call_index=2)))
        await asyncio.sleep(0)
        assert len(protected.runs) == 1
        valve.open()
        protected.let_go()
        shared.let_go()
        assert [(await asked).status for asked in (first, second, third)] == [
            Status.succeeded,
            Status.indeterminate,
            Status.succeeded,
        ]
        again = await opened.run(ask("pay.refund", event_id="e4", call_index=1))
        assert (again.status, again.attempt) == (Status.succeeded, 2)
    assert len(shared.runs) == 1, "both attempts under one key"


# --- the database -----------------------------------------------------------------------------------------------------


class Load:
    """Many calls at once, each of which must run once; `under_way` when some have run and some have not."""

    def __init__(self) -> None:
        self.runs: Counter[str | None] = Counter()
        self.under_way = asyncio.Event()

        @tool(MAIL)
        async def send(n: int) -> int:
            context = current_tool_invocation_context()
            self.runs[context.invocation_key if context else None] += 1
            if len(self.runs) == CALLS // 4:
                self.under_way.set()
            await asyncio.sleep(0)
            return n

        self.tool: Tool[..., Any] = send

    @asynccontextmanager
    async def on(self, opened: Line) -> AsyncIterator[None]:
        """Asks for all calls, each by two events; at the end all are answered, and none ran twice."""
        events = [ask(MAIL, {"n": n}, f"{n}-{twin}", call_index=n) for n in range(CALLS) for twin in "ab"]
        asked = [asyncio.create_task(opened.run(event)) for event in events]
        await self.under_way.wait()
        yield
        outcomes: list[Outcome] = await asyncio.gather(*asked)
        assert {o.status for o in outcomes} == {Status.succeeded}
        assert [o.result for o in outcomes] == [n for n in range(CALLS) for _ in "ab"]
        assert sum(o.executed for o in outcomes) == len(self.runs) == CALLS
        assert set(self.runs.values()) == {1}


@pytest.mark.faults
@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_under_load_no_call_is_lost_or_doubled_when_the_database_restarts(
    book: Book, postgres: Postgres, how: str
) -> None:
    load = Load()
    async with line(book.dsn, load.tool, concurrency=4) as opened, load.on(opened):
        await asyncio.to_thread(getattr(postgres, how))
        await asyncio.to_thread(postgres.start)


@pytest.mark.faults
async def test_under_load_no_call_is_lost_or_doubled_when_the_writers_connection_is_cut(book: Book) -> None:
    load = Load()
    cut = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'fencepost' AND datname = current_database()"""
    async with line(book.dsn, load.tool, concurrency=4) as opened, load.on(opened):
        for _ in range(5):
            await until(book, lambda: book.ask(cut) != [(0,)])


@pytest.mark.faults
async def test_under_load_no_call_is_lost_or_doubled_when_commits_go_unheard(book: Book, valve: Valve) -> None:
    load = Load()
    async with line(valve.dsn, load.tool, concurrency=4) as opened:
        valve.swallow()
        async with load.on(opened):
            for _ in range(3):
                assert await asyncio.to_thread(valve.swallowed.wait, 20)
                valve.swallow()


@pytest.mark.faults
async def test_a_reservation_and_an_end_whose_commits_went_unheard_are_one_run(book: Book, valve: Valve) -> None:
    runs: list[int] = []

    @tool(MAIL)
    async def send() -> str:
        assert await asyncio.to_thread(valve.swallowed.wait, 20)
        runs.append(1)
        valve.swallow()  # the commit of the end too
        return "sent"

    async with line(valve.dsn, send) as opened:
        valve.swallow()
        outcome = await opened.run(ask(MAIL))
    assert (*said(outcome), outcome.result, outcome.attempt) == ("succeeded", True, False, False, "sent", 1)
    assert valve.swallowed.is_set()
    assert len(runs) == 1


@pytest.mark.faults
async def test_a_tool_that_acted_while_the_database_was_away_is_recorded_when_it_is_back(
    book: Book, valve: Valve
) -> None:
    gate = Gate(MAIL)
    async with line(valve.dsn, gate.tool, lease_seconds=30) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        await gate.entered.wait()
        valve.cut()
        gate.let_go()
        assert (await asking).status is Status.succeeded
    assert book.states() == [State.completed]
