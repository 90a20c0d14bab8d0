from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import json
import threading
from collections import OrderedDict, deque, namedtuple
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from pydantic import BaseModel, model_serializer

from fencepost_dispatch import NotDone, Tool, ToolFailed, ToolInvocationContext, current_tool_invocation_context, tool
from fencepost_dispatch.execute import Ended, Found, Threads, Unknown, execute, probe
from fencepost_schemas import loads

CONTEXT = ToolInvocationContext("call-1", invocation_key="k")


@pytest_asyncio.fixture
async def threads() -> AsyncIterator[Threads]:
    with Threads(2) as pool:
        yield pool


def raising(error: BaseException, *, sync: bool = False, **policy: Any) -> Tool[[], Any]:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    return tool("t", **policy)(fail if sync else fail_async)


def returning(value: Any, **policy: Any) -> Tool[[], Any]:
    async def give() -> Any:
        return value

    return tool("t", **policy)(give)


async def ended(declared: Tool[..., Any], **arguments: Any) -> Ended:
    with Threads(1) as pool:
        return await execute(declared, arguments, CONTEXT, pool)


def code(end: Ended) -> str | None:
    return end.error.code if end.error else None


# Results


@pytest.mark.parametrize(
    "value",
    [
        *(None, 0, False, True, "", [], {}, "None", "null", "a\x00b", "é😀", -0.0, 1.0, 1e300, 5e-324, 0.1),
        *(2**53 + 1, -(2**70), 10**5000, {"a": None}, {"": [[], {}]}, {"z": 1, "a": 2}, "\ud800"),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) or value < 10**9 else "big",
)
async def test_a_json_result_is_kept_exactly(value: Any):
    end = await ended(returning(value))
    assert (end.state, end.error, end.retryable) == ("completed", None, False)
    assert end.result is not None
    assert end.result.isascii()
    again = loads(end.result)
    assert (again, type(again)) == (value, type(value))
    if isinstance(value, dict):
        assert list(again) == list(value)


async def test_a_null_result_is_not_the_same_as_no_result():
    null, nothing = await ended(returning(None)), await ended(returning(object()))
    assert (null.result, null.has_result) == ("null", True)
    assert (nothing.result, nothing.has_result) == (None, False)


class Color(enum.Enum):
    red = "r"


class Level(enum.IntEnum):
    high = 3


class Model(BaseModel):
    when: datetime
    counts: dict[int, str] = {}


@dataclasses.dataclass
class Point:
    x: int
    color: Color = Color.red


Pair = namedtuple("Pair", "a b")  # noqa: PYI024

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value, expected",
    [
        (NOON, '"2026-01-02T12:00:00Z"'),
        (timedelta(seconds=90), '"PT1M30S"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.50"), '"1.50"'),
        (Path("a/b"), '"a/b"'),
        (b"abc", '"abc"'),
        (Color.red, '"r"'),
        ([Level.high], "[3]"),
        ({Color.red.value: Color.red}, '{"r":"r"}'),
        (Model(when=NOON, counts={1: "a"}), '{"when":"2026-01-02T12:00:00Z","counts":{"1":"a"}}'),
        (Point(1), '{"x":1,"color":"r"}'),
        (Pair(1, (2, 3)), "[1,[2,3]]"),
        (deque([1]), "[1]"),
        ({"s": {1}}, '{"s":[1]}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (MappingProxyType({"a": NOON}), '{"a":"2026-01-02T12:00:00Z"}'),
    ],
)
async def test_python_values_have_a_written_form(value: Any, expected: str):
    assert (await ended(returning(value))).result == expected


class Broken(BaseModel):
    @model_serializer
    def fail(self) -> str:
        raise RuntimeError("broken serializer")


class Leaving(BaseModel):
    @model_serializer
    def leave(self) -> str:
        raise SystemExit(3)


class NotANumber(BaseModel):
    x: float = float("nan")


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def circle() -> Any:
    values: list[Any] = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    "value, reason",
    [
        (float("nan"), "NaN"),
        ({"rows": [1, float("-inf")]}, "Infinity"),
        (NotANumber(), "$.x: NaN"),
        ({1: "a"}, "a key is int, not a string"),
        ({"a": [{None: 1}]}, "$.a[0]: a key is NoneType, not a string"),
        ({("a", "b"): 1}, "a key is tuple"),
        ({"a": object()}, "object"),
        (b"\xff", "UnicodeDecodeError"),
        ((n for n in [1]), "a generator is not a value"),
        (nested(65), "nested deeper than 64"),
        (nested(100_000), "nested deeper than 64"),
        (circle(), "nested deeper than 64"),
        (Broken(), "broken serializer"),
        (Leaving(), "SystemExit"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
async def test_the_effect_of_an_unusable_result_is_done_and_never_run_again(value: Any, reason: str):
    end = await ended(returning(value))
    assert (end.state, end.result, end.retryable) == ("completed", None, False)
    assert code(end) == "result_not_serializable"
    assert end.error is not None
    assert reason in end.error.message


async def test_a_result_of_the_deepest_nesting_is_kept():
    assert (await ended(returning(nested(64)))).result == "[" * 64 + "0" + "]" * 64


# Definite failures


async def test_tool_failed_is_a_definite_failure_in_the_tools_own_words():
    end = await ended(raising(ToolFailed("bad_request", "no\x00such", retryable=True, detail={"at": NOON})))
    assert end.error is not None
    assert end.error.model_dump() == {
        "code": "bad_request",
        "message": "no\x00such",
        "detail": {"at": "2026-01-02T12:00:00Z"},
    }
    assert (end.state, end.result, end.retryable) == ("failed", None, True)


async def test_tool_failed_is_not_retryable_unless_it_says_so():
    assert not (await ended(raising(ToolFailed("gone")))).retryable


async def test_a_subclass_of_tool_failed_may_say_it_by_class():
    class Gone(ToolFailed):
        code = "gone"

        def __init__(self) -> None:
            Exception.__init__(self)

    end = await ended(raising(Gone()))
    assert (end.state, code(end)) == ("failed", "gone")


@pytest.mark.parametrize(
    "detail", [object(), float("nan"), {1: 2}, "x" * 100_000, Broken()], ids=["object", "nan", "key", "long", "model"]
)
async def test_a_detail_that_no_outcome_can_carry_is_left_out_and_named(detail: Any):
    end = await ended(raising(ToolFailed("bad", detail=detail)))
    assert (end.state, code(end)) == ("failed", "bad")
    assert end.error is not None
    assert "left out" in end.error.detail


async def test_an_odd_code_or_a_long_message_cannot_break_the_outcome():
    end = await ended(raising(ToolFailed(404, "x" * 1_000_000)))  # type: ignore[arg-type]
    assert code(end) == "404"
    assert end.error is not None
    assert len(end.error.message) == 8192


@pytest.mark.parametrize("sync", [True, False])
async def test_a_type_of_definite_failures_did_not_happen(sync: bool):
    declared = raising(ConnectionRefusedError("nobody there"), definite_failures=(ConnectionRefusedError,), sync=sync)
    end = await ended(declared)
    assert (end.state, code(end), end.retryable) == ("failed", "definite_failure", True)
    assert end.error is not None
    assert end.error.message == "ConnectionRefusedError: nobody there"


# Everything else is unclear


@pytest.mark.parametrize("effect", ["protected", "idempotent"])
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        *(ConnectionResetError("reset"), TimeoutError("theirs"), ValueError("x"), KeyError("k"), MemoryError()),
        *(
            StopIteration(1),
            SystemExit(1),
            KeyboardInterrupt(),
            asyncio.CancelledError(),
            GeneratorExit(),
            BaseException("x"),
        ),
        ExceptionGroup("several", [ToolFailed("bad")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_any_other_exception_leaves_the_outcome_unknown(error: BaseException, sync: bool, effect: Any):
    end = await ended(raising(error, sync=sync, effect=effect))
    assert (end.state, code(end), end.result, end.retryable) == ("indeterminate", "unclear_error", None, False)
    assert end.error is not None
    assert type(error).__name__ in end.error.message


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("error", [ConnectionResetError(), SystemExit(1), TimeoutError()], ids=repr)
async def test_an_unclear_end_of_a_read_only_tool_is_a_failure_to_be_repeated(error: BaseException, sync: bool):
    end = await ended(raising(error, sync=sync, effect="read_only"))
    assert (end.state, code(end), end.retryable) == ("failed", "unclear_error", True)


async def test_an_exception_whose_text_raises_is_still_an_answer():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    end = await ended(raising(Mute()))
    assert end.error is not None
    assert end.error.message == "Mute: (its text raised RuntimeError)"


async def test_what_a_tool_does_not_know_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture):
    await ended(raising(ValueError("x")))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "'t'" in record.getMessage()


# Time-out


@pytest.mark.parametrize(
    "effect, state, retryable",
    [("protected", "indeterminate", False), ("idempotent", "indeterminate", False), ("read_only", "failed", True)],
)
async def test_a_timeout_is_unknown_and_not_failed(effect: Any, state: str, retryable: bool):
    @tool("t", effect=effect, timeout=0.01, definite_failures=(LookupError,))
    async def hang() -> None:
        await asyncio.Event().wait()

    end = await ended(hang)
    assert (end.state, code(end), end.retryable) == (state, "timeout", retryable)
    assert end.error is not None
    assert end.error.message == "no answer within 0.01 s"


async def test_what_a_tool_returns_after_its_time_counts():
    @tool("t", timeout=0.01)
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done after all"
        return "never"

    assert (await ended(late)).result == '"done after all"'


async def test_a_tool_that_says_after_its_time_that_it_did_not_act_is_believed():
    @tool("t", timeout=0.01)
    async def late() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ToolFailed("withdrawn") from None

    end = await ended(late)
    assert (end.state, code(end)) == ("failed", "withdrawn")


async def test_an_error_while_a_tool_is_being_stopped_is_no_definite_failure():
    @tool("t", timeout=0.01, definite_failures=(LookupError,))
    async def messy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while closing")

    end = await ended(messy)
    assert (end.state, code(end)) == ("indeterminate", "timeout")
    assert end.error is not None
    assert end.error.message == "LookupError: while closing"


async def test_a_tool_without_a_timeout_sets_no_timer(monkeypatch: pytest.MonkeyPatch):
    timers: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_at", lambda *args, **_: timers.append(args))
    await ended(returning(1))
    assert timers == []


async def test_a_call_needs_no_further_asyncio_task():
    before = len(asyncio.all_tasks())

    @tool("t", timeout=5)
    async def count() -> int:
        return len(asyncio.all_tasks())

    assert (await ended(count)).result == str(before)


# Cancellation


@pytest.mark.parametrize(
    "effect, state", [("protected", "indeterminate"), ("idempotent", "indeterminate"), ("read_only", "failed")]
)
async def test_a_cancelled_call_comes_back_and_its_task_can_go_on(effect: Any, state: str):
    entered = asyncio.Event()

    @tool("t", effect=effect)
    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def line() -> tuple[Ended, int]:
        end = await ended(hang)
        async with asyncio.timeout(5):
            await asyncio.sleep(0)  # recording the end has to be able to wait
        return end, asyncio.current_task().cancelling()  # type: ignore[union-attr]

    task = asyncio.create_task(line())
    await entered.wait()
    task.cancel()
    end, cancelling = await task
    assert (end.state, code(end), cancelling) == (state, "cancelled", 0)


async def test_a_cancellation_in_the_tools_last_step_does_not_reach_what_follows():
    @tool("t")
    async def cancels_itself() -> str:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        return "done"

    end = await asyncio.create_task(ended(cancels_itself))
    assert (end.state, end.result) == ("completed", '"done"')


async def test_a_second_cancellation_is_absorbed_too():
    entered, closing = asyncio.Event(), asyncio.Event()

    @tool("t")
    async def slow_to_close() -> None:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            closing.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(ended(slow_to_close))
    await entered.wait()
    task.cancel()
    await closing.wait()
    task.cancel()
    assert code(await task) == "cancelled"


async def test_a_tool_that_finishes_although_cancelled_has_finished():
    entered, release = asyncio.Event(), asyncio.Event()

    @tool("t")
    async def shielded() -> str:
        entered.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        await release.wait()
        return "done"

    task = asyncio.create_task(ended(shielded))
    await entered.wait()
    task.cancel()
    release.set()
    assert (await task).result == '"done"'


async def test_the_callers_own_timeout_still_gets_the_end():
    @tool("t")
    async def hang() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(0.01):
        end = await ended(hang)
    assert code(end) == "cancelled"


# Threads


async def test_a_sync_tool_leaves_the_event_loop_free(threads: Threads):
    go = threading.Event()

    @tool("t")
    def wait() -> bool:
        return go.wait(10)

    call = asyncio.create_task(execute(wait, {}, CONTEXT, threads))
    await asyncio.sleep(0)
    go.set()
    assert (await call).result == "true"


async def test_a_thread_whose_time_is_up_keeps_its_slot_until_it_ends(threads: Threads):
    entered, go = threading.Event(), threading.Event()

    @tool("t", timeout=0.3)
    def wait() -> None:
        entered.set()
        go.wait(10)

    end = await execute(wait, {}, CONTEXT, threads)
    assert (end.state, code(end)) == ("indeterminate", "timeout")
    assert end.error is not None
    assert end.error.message == "no answer within 0.3 s; its thread runs on"
    assert entered.is_set()
    assert (threads.taken, threads.free) == (1, 1)
    go.set()
    await asyncio.to_thread(threads.shutdown)
    assert (threads.taken, threads.free) == (0, 2)


async def test_a_cancelled_sync_call_comes_back_while_its_thread_runs_on(threads: Threads):
    entered, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool("t")
    def wait() -> None:
        loop.call_soon_threadsafe(entered.set)
        go.wait(10)

    task = asyncio.create_task(execute(wait, {}, CONTEXT, threads))
    await entered.wait()
    task.cancel()
    end = await task
    assert (end.state, code(end), threads.taken) == ("indeterminate", "cancelled", 1)
    go.set()


async def test_a_sync_tool_that_no_thread_took_up_did_not_happen():
    entered, go, ran = threading.Event(), threading.Event(), []

    @tool("t", timeout=0.02)
    def second() -> None:
        ran.append(1)

    with Threads(1) as threads:
        threads.submit(lambda: (entered.set(), go.wait(10)))
        assert entered.wait(10)
        end = await execute(second, {}, CONTEXT, threads)
        go.set()
    assert (end.state, code(end), end.retryable, ran) == ("failed", "not_started", True, [])
    assert threads.taken == 0


class CancelledAtOnce(Executor):
    """Has the function's answer in the moment in which the waiting task is cancelled."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        return future


async def test_a_sync_tool_that_ends_in_the_moment_of_its_cancellation_has_ended():
    declared = tool("t")(lambda: "done")
    end = await execute(declared, {}, CONTEXT, CancelledAtOnce())
    assert (end.state, end.result) == ("completed", '"done"')
    await asyncio.sleep(0)


async def test_any_executor_will_do():
    with ThreadPoolExecutor(1) as pool:
        end = await execute(raising(StopIteration(), sync=True), {}, CONTEXT, pool)
    assert code(end) == "unclear_error"


async def test_a_plain_wrapper_around_an_async_function_is_awaited(threads: Threads):
    async def act(number: int) -> list[Any]:
        context = current_tool_invocation_context()
        await asyncio.sleep(0)
        return [number, context.tool_call_id if context else None]

    @functools.wraps(act)
    def wrapper(**arguments: Any) -> Any:
        return act(**arguments)

    declared = tool("t")(wrapper)
    assert not declared.is_async
    assert (await execute(declared, {"number": 1}, CONTEXT, threads)).result == '[1,"call-1"]'


@pytest.mark.parametrize("sync", [True, False])
async def test_the_context_parameter_is_filled_in(sync: bool, threads: Threads):
    def look(number: int, context: ToolInvocationContext) -> list[Any]:
        return [number, context.invocation_key, context is current_tool_invocation_context()]

    async def look_async(number: int, context: ToolInvocationContext) -> list[Any]:
        return look(number, context)

    declared = tool("t")(look if sync else look_async)
    arguments = declared.validate({"number": 1})
    assert (await execute(declared, arguments, CONTEXT, threads)).result == '[1,"k",true]'
    assert arguments == {"number": 1}


# The probe


def act(number: int) -> None: ...


async def asked(answer: Any, *, sync: bool = False, **policy: Any) -> Found | NotDone | Unknown:
    declared = tool("t", **policy)(act)

    def give(number: int) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def give_async(number: int) -> Any:
        return give(number)

    declared.probe(give if sync else give_async)
    with Threads(1) as threads:
        return await probe(declared, {"number": 1}, CONTEXT, threads)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("answer", [{"key": "OPS-1"}, {}, [], 0, False, "", "None"])
async def test_a_probe_that_returns_something_found_it(answer: Any, sync: bool):
    assert await asked(answer, sync=sync) == Found(json.dumps(answer, separators=(",", ":")))


@pytest.mark.parametrize("answer", [NotDone, NotDone()])
async def test_a_probe_says_not_done_with_the_class_or_an_instance(answer: Any):
    assert isinstance(await asked(answer), NotDone)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    "answer", [None, ValueError("x"), ToolFailed("x"), SystemExit(1), asyncio.CancelledError()], ids=repr
)
async def test_a_probe_that_raises_or_returns_none_knows_nothing(answer: Any, sync: bool):
    assert isinstance(await asked(answer, sync=sync), Unknown)


async def test_a_probe_that_found_something_unusable_still_found_it():
    found = await asked(object())
    assert isinstance(found, Found)
    assert found.result is None
    assert found.error is not None
    assert found.error.code == "result_not_serializable"


async def test_a_tool_without_a_probe_knows_nothing(threads: Threads):
    assert await probe(returning(1), {}, CONTEXT, threads) == Unknown("the tool has no probe")


@pytest.mark.parametrize("own", [True, False])
async def test_a_probe_that_takes_too_long_knows_nothing(own: bool, threads: Threads, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fencepost_dispatch.execute.PROBE_SECONDS", 0.01)

    @tool("t", timeout=0.01 if own else None)
    async def act() -> None: ...

    @act.probe
    async def look() -> None:
        await asyncio.Event().wait()

    found = await probe(act, {}, CONTEXT, threads)
    assert isinstance(found, Unknown)
    assert "timeout" in found.reason


async def test_a_cancelled_probe_knows_nothing_and_its_task_can_go_on(threads: Threads):
    entered = asyncio.Event()

    @tool("t")
    async def act() -> None: ...

    @act.probe
    async def look() -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(probe(act, {}, CONTEXT, threads))
    await entered.wait()
    task.cancel()
    assert isinstance(await task, Unknown)


async def test_a_probe_sees_the_call_it_is_asked_about(threads: Threads):
    @tool("t")
    async def act() -> None: ...

    @act.probe
    async def look(context: ToolInvocationContext) -> list[Any]:
        return [context.invocation_key, context is current_tool_invocation_context()]

    assert await probe(act, {}, CONTEXT, threads) == Found('["k",true]')
