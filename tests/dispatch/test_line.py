"""The line in process: the guarantee without Kafka, on real Postgres, as an agent runner gets it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost_dispatch import Line, ToolFailed, current_tool_invocation_context, tool
from fencepost_ledger import Desk
from fencepost_schemas import Outcome, Status
from services.holder import Book
from services.lines import MAIL, Gate, ask, code, line, said

# --- once -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_event", [True, False])
async def test_parallel_duplicates_join_the_one_run(gated: Line, gate: Gate, same_event: bool) -> None:
    asked = [asyncio.create_task(gated.run(ask(MAIL, event_id="e" if same_event else f"e{n}"))) for n in range(6)]
    await gate.entered.wait()
    gate.let_go()
    outcomes = await asyncio.gather(*asked)
    assert sorted(said(o) for o in outcomes) == [("succeeded", False, True, False)] * 5 + [
        ("succeeded", True, False, False)
    ]
    assert {o.result for o in outcomes} == {"done"}
    assert list(gate.runs.values()) == [1]


async def test_each_outcome_answers_its_own_event(gated: Line, gate: Gate) -> None:
    gate.let_go()
    first = await gated.run(ask(MAIL, event_id="e1", tool_call_id="call_0", metadata={"a": "b"}))
    again = await gated.run(ask(MAIL, event_id="e2", tool_call_id="call_7"))
    assert (first.event_id, first.tool_call_id, first.metadata) == ("e1", "call_0", {"a": "b"})
    assert (again.event_id, again.tool_call_id, again.metadata) == ("e2", "call_7", None)
    assert first.outcome_id != again.outcome_id
    assert (first.invocation_key, first.attempt, first.worker) == (again.invocation_key, again.attempt, again.worker)


async def test_two_lines_on_one_ledger_run_each_call_once(book: Book) -> None:
    runs: list[str | None] = []

    @tool(MAIL)
    async def send(n: int) -> int:
        context = current_tool_invocation_context()
        runs.append(context.invocation_key if context else None)
        return n

    async with line(book.dsn, send) as one, line(book.dsn, send) as two:
        events = [ask(MAIL, {"n": n}, f"e{n}", call_index=n) for n in range(20)]
        outcomes = await asyncio.gather(*[which.run(event) for event in events for which in (one, two)])
    assert [o.result for o in outcomes] == [n for n in range(20) for _ in range(2)]
    assert len(runs) == len(set(runs)) == 20


async def test_a_sync_tool_runs_in_a_thread_and_sees_its_own_call(book: Book) -> None:
    @tool(MAIL)
    def send(to: str) -> list[Any]:
        context = current_tool_invocation_context()
        return [threading.current_thread() is threading.main_thread(), to, context and context.event_id]

    async with line(book.dsn, send) as opened:
        events = [ask(MAIL, {"to": f"p{n}"}, f"e{n}", call_index=n) for n in range(8)]
        outcomes = await asyncio.gather(*map(opened.run, events))
    assert [o.result for o in outcomes] == [[False, f"p{n}", f"e{n}"] for n in range(8)]


async def test_a_read_only_tool_runs_each_time_and_leaves_no_trace(book: Book) -> None:
    runs: list[int] = []

    @tool("mail.search", effect="read_only")
    async def search() -> int:
        runs.append(1)
        return len(runs)

    async with line(book.dsn, search) as opened:
        outcomes = [await opened.run(ask("mail.search")) for _ in range(2)]
    assert [(o.result, o.executed) for o in outcomes] == [(1, True), (2, True)]
    assert not book.rows()


# --- refused before anything is reserved ------------------------------------------------------------------------------


async def test_an_unknown_tool_is_refused_and_the_same_event_runs_once_the_tool_is_there(
    book: Book, gate: Gate
) -> None:
    gate.let_go()
    async with line(book.dsn) as without:
        outcome = await without.run(ask(MAIL))
    assert (*said(outcome), code(outcome)) == ("rejected", False, False, True, "unknown_tool")
    async with line(book.dsn, gate.tool) as opened:
        assert said(await opened.run(ask(MAIL))) == ("succeeded", True, False, False)


async def test_arguments_that_do_not_fit_are_refused_before_the_reservation(book: Book) -> None:
    @tool(MAIL)
    async def send(to: str) -> None:
        raise AssertionError("never entered")

    async with line(book.dsn, send) as opened:
        outcome = await opened.run(ask(MAIL, {"two": "ann"}))
    assert (*said(outcome), code(outcome)) == ("rejected", False, False, False, "invalid_arguments")
    assert not book.rows()


async def test_arguments_without_a_canonical_form_are_refused_with_their_path(gated: Line, book: Book) -> None:
    outcome = await gated.run(ask(MAIL, {"a": [1, float("nan")]}))
    assert (code(outcome), outcome.invocation_key) == ("invalid_arguments", None)
    assert "$.a[1]" in str(outcome.error)
    assert not book.rows()


async def test_a_deadline_that_is_over_starts_nothing(gated: Line, gate: Gate) -> None:
    outcome = await gated.run(ask(MAIL, deadline=datetime.now(UTC) - timedelta(seconds=1)))
    assert said(outcome) == ("expired", False, False, False)
    assert not gate.runs


async def test_a_redispatch_fences_older_calls(gated: Line, gate: Gate, book: Book) -> None:
    gate.let_go()
    with Desk(book.dsn) as desk:
        generation = desk.redispatch("x", "n")
    assert said(await gated.run(ask(MAIL))) == ("fenced", False, False, False)
    assert said(await gated.run(ask(MAIL, event_id="e2", generation=generation))) == ("succeeded", True, False, False)


async def test_what_an_older_generation_did_is_told_to_a_changed_call(gated: Line, gate: Gate) -> None:
    gate.let_go()
    await gated.run(ask(MAIL))
    outcome = await gated.run(ask(MAIL, {"to": "bob"}, "e2", generation=2))
    assert said(outcome) == ("diverged", False, False, False)
    assert outcome.error is not None
    assert (outcome.error.detail["result"], outcome.error.detail["state"]) == ("done", "completed")


async def test_an_event_that_the_ledger_cannot_take_fails_alone(gated: Line, gate: Gate) -> None:
    gate.let_go()
    bad = ask(MAIL).model_copy(update={"node_id": "n\x00"})  # what no decoded event can hold
    good = [gated.run(ask(MAIL, event_id=f"e{n}", call_index=n)) for n in range(1, 5)]
    refused, *others = await asyncio.gather(gated.run(bad), *good, return_exceptions=True)
    assert type(refused).__name__ == "LedgerRefused"
    assert [said(o) for o in others if isinstance(o, Outcome)] == [("succeeded", True, False, False)] * 4


# --- how a tool may end -----------------------------------------------------------------------------------------------


async def test_an_unclear_error_is_unknown_and_never_run_again(book: Book) -> None:
    runs: list[int] = []

    @tool(MAIL)
    async def send() -> None:
        runs.append(1)
        raise ConnectionResetError("peer \x00 gone")

    async with line(book.dsn, send) as opened:
        outcomes = [await opened.run(ask(MAIL, event_id=f"e{n}")) for n in (1, 1, 2)]
    assert [said(o) for o in outcomes] == [
        ("indeterminate", True, False, False),
        ("indeterminate", False, True, False),
        ("indeterminate", False, True, False),
    ]
    assert {o.error.message for o in outcomes if o.error} == {"ConnectionResetError: peer \x00 gone"}
    assert len(runs) == 1


async def test_a_definite_failure_runs_again_while_attempts_are_left(book: Book) -> None:
    attempts: list[int | None] = []

    @tool(MAIL, max_attempts=3)
    async def send() -> None:
        context = current_tool_invocation_context()
        attempts.append(context.attempt if context else None)
        raise ToolFailed("busy", "later", retryable=True, detail={"after": 5})

    async with line(book.dsn, send) as opened:
        outcomes = [await opened.run(ask(MAIL, event_id=f"e{n}")) for n in range(5)]
    assert attempts == [1, 2, 3]
    assert [(o.status.value, o.executed, o.attempt, o.retryable) for o in outcomes] == [
        ("failed", True, 1, True),
        ("failed", True, 2, True),
        ("failed", True, 3, False),
        ("failed", False, 3, False),
        ("failed", False, 3, False),
    ]
    assert all(o.error is not None and o.error.detail == {"after": 5} for o in outcomes)
    assert not book.row().retryable, "nor does the sweeper say so"


async def test_a_failure_for_good_is_replayed(book: Book) -> None:
    @tool(MAIL)
    async def send() -> None:
        raise ToolFailed("bad_request")

    async with line(book.dsn, send) as opened:
        outcomes = [await opened.run(ask(MAIL)) for _ in range(2)]
    assert [said(o) for o in outcomes] == [("failed", True, False, False), ("failed", False, True, False)]


RESULTS = [
    None,
    0,
    False,
    "",
    [],
    {},
    "None",
    0.0,
    "\x00",
    {"\x00": ["\x00"]},
    10**400,
    -(2**63),
    "\ud800",
    [None, True],
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda value: ascii(value)[:20])
async def test_results_are_replayed_exactly(book: Book, result: Any) -> None:
    runs: list[int] = []

    @tool(MAIL)
    async def send() -> Any:
        runs.append(1)
        return result

    async with line(book.dsn, send) as opened:
        outcomes = [await opened.run(ask(MAIL, event_id=f"e{n}")) for n in range(2)]
    assert [(o.result, type(o.result), o.status) for o in outcomes] == [(result, type(result), Status.succeeded)] * 2
    assert len(runs) == 1


@pytest.mark.parametrize("result", [object(), "x" * 2000], ids=["not serializable", "too large"])
async def test_an_unusable_result_is_success_without_a_result_and_never_run_again(book: Book, result: Any) -> None:
    runs: list[int] = []

    @tool(MAIL)
    async def send() -> Any:
        runs.append(1)
        return result

    async with line(book.dsn, send, inline_result_bytes=1000) as opened:
        outcomes = [await opened.run(ask(MAIL)) for _ in range(2)]
    expected = "result_too_large" if isinstance(result, str) else "result_not_serializable"
    assert [(o.status, o.result, code(o)) for o in outcomes] == [(Status.succeeded, None, expected)] * 2
    assert len(runs) == 1
