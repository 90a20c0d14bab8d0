"""The line in process where others come into it: lost attempts, other holders, callers that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fencepost_dispatch import Line, NotDone, current_tool_invocation_context, tool
from fencepost_dispatch.line import LineClosed
from fencepost_ledger import State
from fencepost_ledger.verdicts import Policy
from fencepost_schemas import Status
from services.holder import Book, Holder, call
from services.lines import MAIL, Gate, ask, code, line, said

LONG = 1000.0  # seconds: beyond every lease and grace


# --- lost attempts ----------------------------------------------------------------------------------------------------


def lost(elsewhere: Holder, book: Book, **policy: Any) -> None:
    """Somebody else started the call and is gone."""
    elsewhere.start(call("lost", tool=MAIL, policy=Policy(**policy)))
    book.lease_over(LONG)


async def test_an_idempotent_call_runs_again_under_the_same_key(book: Book, elsewhere: Holder) -> None:
    gate = Gate(MAIL, effect="idempotent")
    gate.let_go()
    lost(elsewhere, book, effect="idempotent")
    async with line(book.dsn, gate.tool) as opened:
        outcome = await opened.run(ask(MAIL))
    assert (*said(outcome), outcome.attempt) == ("succeeded", True, False, False, 2)
    assert list(gate.runs) == [book.row().key.hex()]


async def test_a_protected_call_that_is_lost_is_unknown(gated: Line, gate: Gate, book: Book, elsewhere: Holder) -> None:
    lost(elsewhere, book)
    outcome = await gated.run(ask(MAIL))
    assert (*said(outcome), code(outcome)) == ("indeterminate", False, True, False, "lost_holder")
    assert not gate.runs


PROBES: dict[str, tuple[Any, tuple[str, bool, Any]]] = {
    "found": ({"id": 7}, ("succeeded", False, {"id": 7})),
    "found, falsy": (0, ("succeeded", False, 0)),
    "not done": (NotDone, ("succeeded", True, "sent")),
    "cannot tell": (None, ("indeterminate", False, None)),
    "raises": (ConnectionError("away"), ("indeterminate", False, None)),
}


@pytest.mark.parametrize("case", PROBES)
async def test_a_lost_call_is_what_its_probe_says(book: Book, elsewhere: Holder, case: str) -> None:
    answer, expected = PROBES[case]
    asked: list[Any] = []

    @tool(MAIL)
    async def send() -> str:
        return "sent"

    @send.probe
    async def find() -> Any:
        asked.append(current_tool_invocation_context())
        if isinstance(answer, Exception):
            raise answer
        return answer

    lost(elsewhere, book, probed=True)
    async with line(book.dsn, send) as opened:
        outcome = await opened.run(ask(MAIL))
        assert (outcome.status.value, outcome.executed, outcome.result) == expected
        again = await opened.run(ask(MAIL, event_id="e2"))
    assert (again.status, again.result, len(asked)) == (outcome.status, outcome.result, 1)
    assert asked[0].invocation_key == book.row().key.hex()
    assert (outcome.resolution is not None) == case.startswith("found")


async def test_a_probes_large_result_is_not_kept_and_the_call_is_done(book: Book, elsewhere: Holder) -> None:
    @tool(MAIL)
    async def send() -> str:
        raise AssertionError("never entered")

    @send.probe
    async def find() -> str:
        return "x" * 2000

    lost(elsewhere, book, probed=True)
    async with line(book.dsn, send, inline_result_bytes=1000) as opened:
        outcome = await opened.run(ask(MAIL))
    assert (outcome.status, outcome.result, code(outcome)) == (Status.succeeded, None, "result_too_large")


# --- other holders ----------------------------------------------------------------------------------------------------


async def test_another_holders_run_is_waited_for_then_answered(book: Book, gate: Gate, elsewhere: Holder) -> None:
    term = elsewhere.start(call("theirs", tool=MAIL))
    async with line(book.dsn, gate.tool, wait_seconds=30) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        inbox = "SELECT count(*) FROM fencepost.events"
        await asyncio.to_thread(book.wait, lambda: book.ask(inbox) == [(2,)])
        elsewhere.finalize(term, result='"theirs"')
        outcome = await asking
    assert (*said(outcome), outcome.result, outcome.worker) == ("succeeded", False, True, False, "theirs", "elsewhere")
    assert not gate.runs


async def test_another_holders_run_that_goes_on_is_answered_busy_and_may_be_asked_again(
    book: Book, gate: Gate, elsewhere: Holder
) -> None:
    term = elsewhere.start(call("theirs", tool=MAIL))
    async with line(book.dsn, gate.tool, wait_seconds=0.1) as opened:
        assert said(await opened.run(ask(MAIL))) == ("busy", False, False, True)
        elsewhere.finalize(term)
        assert said(await opened.run(ask(MAIL))) == ("succeeded", False, True, False)


async def test_waiting_for_another_holder_takes_no_slot(book: Book, gate: Gate, elsewhere: Holder) -> None:
    elsewhere.start(call("theirs", tool=MAIL))
    gate.let_go()
    async with line(book.dsn, gate.tool, wait_seconds=0.5, concurrency=1) as opened:
        waiting = asyncio.create_task(opened.run(ask(MAIL)))
        assert said(await opened.run(ask(MAIL, event_id="e2", call_index=1))) == ("succeeded", True, False, False)
        assert not waiting.done()
        assert (await waiting).status is Status.busy


# --- callers come and go ----------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_does_not_cancel_the_call(gated: Line, gate: Gate, book: Book) -> None:
    caller = asyncio.create_task(gated.run(ask(MAIL)))
    await gate.entered.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.let_go()
    outcome = await gated.run(ask(MAIL))
    assert (*said(outcome), outcome.result) == ("succeeded", False, True, False, "done")
    assert list(gate.runs.values()) == [1]


async def test_leaving_the_line_waits_for_calls_whose_caller_is_gone(book: Book, gate: Gate) -> None:
    async with line(book.dsn, gate.tool) as opened:
        caller = asyncio.create_task(opened.run(ask(MAIL)))
        await gate.entered.wait()
        caller.cancel()
        asyncio.get_running_loop().call_soon(gate.let_go)
    assert book.states() == [State.completed]


async def test_leaving_the_line_ends_what_does_not_end_as_unknown(book: Book, gate: Gate) -> None:
    async with line(book.dsn, gate.tool, drain_seconds=0) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        await gate.entered.wait()
    assert (await asking).status is Status.indeterminate
    assert book.states() == [State.indeterminate]


async def test_nobody_waits_for_ever_on_a_line_that_was_left(
    book: Book, gate: Gate, elsewhere: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost_dispatch.line._CLOSE_SECONDS", 0.1)
    elsewhere.start(call("theirs", tool=MAIL))
    async with line(book.dsn, gate.tool, wait_seconds=60, drain_seconds=0) as opened:
        asking = asyncio.create_task(opened.run(ask(MAIL)))
        await asyncio.sleep(0)
    with pytest.raises(LineClosed):
        await asking
    with pytest.raises(LineClosed):
        await opened.run(ask(MAIL))


async def test_a_line_that_was_not_entered_says_so(book: Book, gate: Gate) -> None:
    with pytest.raises(LineClosed):
        await line(book.dsn, gate.tool).run(ask(MAIL))


async def test_what_was_answered_needs_nobody_any_more(book: Book, gate: Gate) -> None:
    gate.let_go()
    async with line(book.dsn, gate.tool) as opened:
        await opened.run(ask(MAIL))
    assert not book.unsettled()
