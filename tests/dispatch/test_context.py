from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost_dispatch import (
    Tool,
    ToolFailed,
    ToolInvocationContext,
    bind_tool_invocation,
    current_tool_invocation_context,
    tool,
)
from fencepost_dispatch.execute import Threads, execute

IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


async def run(declared: Tool[..., Any], name: str = "call-1", threads: Threads | None = None) -> object:
    with threads or Threads(2) as pool:
        return (await execute(declared, {}, ToolInvocationContext(name, invocation_key="k-" + name), pool)).result


def test_the_fields_are_the_contracts_in_its_order():
    names = [field.name for field in dataclasses.fields(ToolInvocationContext)]
    assert " ".join(names) == (
        "tool_call_id invocation_key org_id execution_id node_id call_index generation attempt event_id deadline"
    )
    assert dataclasses.astuple(ToolInvocationContext("call-1")) == ("call-1",) + (None,) * 9


def test_a_context_cannot_be_changed():
    context = ToolInvocationContext("call-1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.invocation_key = "another"  # type: ignore[misc]


def test_there_is_no_context_outside_a_tool_call():
    assert current_tool_invocation_context() is None


async def test_a_tool_sees_its_call_and_afterwards_nobody_does():
    seen = []

    @tool("t")
    async def look() -> None:
        seen.append(current_tool_invocation_context())
        await asyncio.sleep(0)
        seen.append(current_tool_invocation_context())

    await run(look)
    assert [context.tool_call_id for context in seen] == ["call-1", "call-1"]
    assert current_tool_invocation_context() is None


@pytest.mark.parametrize("error", [ValueError("x"), ToolFailed("x"), SystemExit(1), KeyboardInterrupt()], ids=repr)
async def test_the_context_is_reset_after_an_error(error: BaseException):
    @tool("t")
    async def fail() -> None:
        assert current_tool_invocation_context() is not None
        raise error

    await run(fail)
    assert current_tool_invocation_context() is None


async def test_the_context_is_reset_after_cancellation():
    entered, after = asyncio.Event(), []

    @tool("t")
    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def call() -> None:
        await run(hang)
        after.append(current_tool_invocation_context())

    task = asyncio.create_task(call())
    await entered.wait()
    task.cancel()
    await task
    assert after == [None]


async def test_the_context_is_reset_after_a_timeout():
    @tool("t", timeout=0.001)
    async def hang() -> None:
        await asyncio.Event().wait()

    await run(hang)
    assert current_tool_invocation_context() is None


async def test_parallel_calls_each_see_their_own():
    meeting = asyncio.Barrier(3)

    @tool("t")
    async def look() -> list[str]:
        before = current_tool_invocation_context()
        await meeting.wait()
        after = current_tool_invocation_context()
        assert before is not None
        assert after is not None
        return [before.tool_call_id, after.tool_call_id]

    results = await asyncio.gather(*(run(look, name) for name in "abc"))
    assert results == ['["a","a"]', '["b","b"]', '["c","c"]']


async def test_a_sync_tool_in_a_thread_sees_its_own():
    meeting = threading.Barrier(3)

    @tool("t")
    def look() -> list[str]:
        meeting.wait(10)
        context = current_tool_invocation_context()
        assert context is not None
        return [context.tool_call_id, threading.current_thread().name[:14]]

    threads = Threads(3)
    results = await asyncio.gather(*(run(look, name, threads) for name in "abc"))
    assert results == ['["a","fencepost-tool"]', '["b","fencepost-tool"]', '["c","fencepost-tool"]']
    assert current_tool_invocation_context() is None


async def test_a_thread_keeps_no_context_for_the_next_call():
    left: list[object] = []

    @tool("t")
    def look() -> None:
        pass

    with Threads(1) as threads:
        await execute(look, {}, ToolInvocationContext("a"), threads)
        left.append(threads.submit(current_tool_invocation_context).result())
    assert left == [None]


def test_a_host_without_kafka_binds_a_call_for_as_long_as_the_block_lasts():
    with bind_tool_invocation("call_0", "chat-7") as bound:
        assert current_tool_invocation_context() is bound
        assert bound.tool_call_id == "call_0"
    assert current_tool_invocation_context() is None


def test_leaving_a_block_by_an_error_resets_it_and_an_outer_block_comes_back():
    with bind_tool_invocation("outer") as outer:
        with pytest.raises(ValueError, match="x"), bind_tool_invocation("inner"):
            raise ValueError("x")
        assert current_tool_invocation_context() is outer


@pytest.mark.parametrize("session_key", [None, ""])
def test_without_a_session_key_there_is_no_invocation_key(session_key: str | None):
    with bind_tool_invocation("call_0", session_key) as bound:
        assert bound.invocation_key is None


def test_a_call_without_an_id_is_refused():
    with pytest.raises(ValueError, match="tool_call_id is empty"), bind_tool_invocation("", "chat-7"):
        pass


def key(tool_call_id: str, session_key: str) -> str | None:
    with bind_tool_invocation(tool_call_id, session_key) as bound:
        return bound.invocation_key


@settings(max_examples=30)
@given(IDS, IDS)
def test_the_same_pair_has_the_same_key_of_64_hex_digits(tool_call_id: str, session_key: str):
    found = key(tool_call_id, session_key)
    assert found == key(tool_call_id, session_key)
    assert found is not None
    assert len(bytes.fromhex(found)) == 32


@settings(max_examples=30)
@given(IDS, IDS, IDS)
def test_another_session_or_another_call_has_another_key(one: str, other: str, session: str):
    if one != other:
        assert key(one, session) != key(other, session)
        assert key(session, one) != key(session, other)


@pytest.mark.parametrize("separator", [":", "\n", "/", "\x00", '","', "|", " "])
def test_ids_that_hold_a_separator_never_meet(separator: str):
    assert key("b", f"a{separator}c") != key(f"c{separator}b", "a")
    assert key(f"b{separator}", "a") != key("b", f"a{separator}")
