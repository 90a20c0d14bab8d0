"""One tool, run once, and how it ended. The only place where everything that a tool may raise is caught.

| what came of it | protected, idempotent | read_only |
|---|---|---|
| returned | completed | completed |
| `ToolFailed`, a type of `definite_failures`, never begun | failed | failed |
| anything else: another exception, `SystemExit`, time-out, cancellation | indeterminate | failed, retryable |

To cancel a call, cancel the asyncio task that awaits `execute`. The cancellation ends here: the tool is told, and
`execute` returns how it ended, so that it can be recorded; that it was cancelled says the error's code alone.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Literal, ParamSpec, TypeVar, cast

from fencepost_dispatch.context import ToolInvocationContext, bind, unbind
from fencepost_dispatch.results import plain, result_text
from fencepost_dispatch.signature import Body
from fencepost_dispatch.tools import Effect, NotDone, Tool, ToolFailed
from fencepost_schemas import OutcomeError, ResultRef, dumps

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
AnyTool = Tool[..., Any]
Code = Literal["timeout", "cancelled", "unclear_error"]

PROBE_SECONDS = 30.0
"""How long the probe of a tool without a timeout may take."""

_MESSAGE_CHARACTERS = 8192  # an outcome has to fit the broker's limit, whatever a service wrote into its error
_DETAIL_CHARACTERS = 65536


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. `result` is ASCII JSON text (`null` is a result), and None when there is none to record, or
    when it lies at `result_ref`."""

    state: Literal["completed", "failed", "indeterminate"]
    result: str | None = None
    error: OutcomeError | None = None
    retryable: bool = False
    entered: bool = True
    result_ref: ResultRef | None = None

    @property
    def has_result(self) -> bool:
        """Tells the result `null` from no result."""
        return self.result is not None


@dataclass(frozen=True, slots=True)
class Found:
    """The probe found that the lost attempt happened. `result` and `error` as in a completed `Ended`."""

    result: str | None
    error: OutcomeError | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe could not tell: `reason`, for the log."""

    reason: str


class Threads(ThreadPoolExecutor):
    """The bounded pool for sync tools. `taken` counts the functions still running, those whose time is up included."""

    def __init__(self, size: int) -> None:
        super().__init__(max_workers=size, thread_name_prefix="fencepost-tool")
        self.size = size
        self.on_free: Callable[[], None] = lambda: None  # called in the thread that has become free
        self._taken = 0
        self._counting = threading.Lock()

    @property
    def taken(self) -> int:
        """Threads that cannot take a call now."""
        return self._taken

    @property
    def free(self) -> int:
        """Calls that could start at once."""
        return max(0, self.size - self._taken)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As in `Executor`, and counted until the function has returned."""
        self._count(1)
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._count(-1)
            raise
        future.add_done_callback(lambda _: self._freed())
        return future

    def _freed(self) -> None:
        self._count(-1)
        self.on_free()

    def _count(self, step: int) -> None:
        with self._counting:
            self._taken += step


class _NeverBegan(Exception):
    """The tool was not entered: no thread was free in time, or too much time has passed since the reservation."""


@dataclass(frozen=True, slots=True)
class _Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException
    code: Code


async def execute(
    tool: AnyTool,
    arguments: dict[str, Any],
    context: ToolInvocationContext,
    threads: Executor,
    enter_by: float = math.inf,
) -> Ended:
    """Run the tool with validated arguments. Never raises, and comes back from cancellation too.

    After `enter_by` (seconds of `time.monotonic`) the tool is not entered: it ends as failed, `not_started`.

    An async tool is waited for after its timeout or a cancellation, until it lets go: what it then returns or says
    counts. A sync tool is not: its thread runs on, and its slot in `threads` stays taken until the function returns.
    """
    match await _attempt(tool.body, arguments, tool.timeout, context, threads, enter_by):
        case _Returned(value):
            return _completed(value)
        case _Raised(error, code):
            return _early(tool, error, code, context)


async def probe(
    tool: AnyTool, arguments: dict[str, Any], context: ToolInvocationContext, threads: Executor
) -> Found | NotDone | Unknown:
    """Ask the tool's probe about a lost attempt. Never raises: a probe that does, or takes too long, knows nothing."""
    if tool.probe_body is None:
        return Unknown("the tool has no probe")
    match await _attempt(tool.probe_body, arguments, tool.timeout or PROBE_SECONDS, context, threads):
        case _Returned(None):
            return Unknown("the probe cannot tell")
        case _Returned(answer) if answer is NotDone or isinstance(answer, NotDone):
            return NotDone()
        case _Returned(answer):
            ended = _completed(answer)
            return Found(ended.result, ended.error)
        case _Raised(error, code):
            return Unknown(f"the probe ended early: {code}: {_named(error)}")


async def _attempt(  # noqa: PLR0917 - one call as it is, all of it needed
    body: Body,
    arguments: dict[str, Any],
    seconds: float | None,
    context: ToolInvocationContext,
    threads: Executor,
    enter_by: float = math.inf,
) -> _Returned | _Raised:
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    cancels = task.cancelling()
    limit = asyncio.timeout(seconds)  # None sets no timer
    try:
        async with limit:
            return _Returned(await _bound(body, arguments, context, threads, enter_by))
    except BaseException as error:  # noqa: BLE001 - a tool that exits must not take the worker along
        if task.cancelling() > cancels:
            return _Raised(error, "cancelled")
        return _Raised(error, "timeout" if limit.expired() else "unclear_error")
    finally:
        if task.cancelling() > cancels:
            await _absorb(task, cancels)


async def _absorb(task: asyncio.Task[Any], cancels: int) -> None:
    """Take back the cancellations that came during the tool, so that what follows in this task can wait again."""
    while task.cancelling() > cancels:
        task.uncancel()
        with suppress(asyncio.CancelledError):  # one may still be on its way: requested in the tool's last step
            await asyncio.sleep(0)


async def _bound(
    body: Body, arguments: dict[str, Any], context: ToolInvocationContext, threads: Executor, enter_by: float
) -> Any:
    token = bind(context)
    try:
        named = body.filled(arguments, context)
        if body.is_async:
            _enter(enter_by)
            return await body.function(**named)
        value = await _in_thread(body.function, named, threads, enter_by)
        # A plain wrapper around an async function has done nothing yet.
        return await value if inspect.isawaitable(value) else value
    finally:
        unbind(token)


def _enter(enter_by: float) -> None:
    """The tool's door. A process that was frozen since the reservation, or a thread that was long in coming, finds it
    closed: others may have given the call up, or raised its generation, in the meantime."""
    if time.monotonic() > enter_by:
        raise _NeverBegan


async def _in_thread(
    function: Callable[..., Any], arguments: dict[str, Any], threads: Executor, enter_by: float
) -> Any:
    running = threads.submit(copy_context().run, _caught, function, arguments, enter_by)
    try:
        value, error = await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if running.cancel():
            raise _NeverBegan from None
        if not running.done():
            raise
        value, error = running.result()  # it ended in the same moment: better known than unknown
    if error is not None:
        raise error
    return value


def _caught(
    function: Callable[..., Any], arguments: dict[str, Any], enter_by: float
) -> tuple[Any, BaseException | None]:
    # Handed over as a value: an asyncio future refuses StopIteration, and whoever awaits it would wait for ever.
    try:
        _enter(enter_by)
        return function(**arguments), None
    except BaseException as error:  # noqa: BLE001 - see above
        return None, error


def _completed(value: Any) -> Ended:
    try:
        return Ended("completed", result_text(value))
    except BaseException as error:  # noqa: BLE001 - a serializer is the author's code, and the effect is done
        message = f"The tool acted, but its result cannot be recorded: {_named(error)}"
        return Ended("completed", error=OutcomeError(code="result_not_serializable", message=_short(message)))


def _early(tool: AnyTool, error: BaseException, code: Code, call: ToolInvocationContext) -> Ended:
    match error:
        case ToolFailed():
            said = OutcomeError(
                code=_short(_text(error.code)), message=_short(_text(error.message)), detail=_detail(error.detail)
            )
            return Ended("failed", error=said, retryable=bool(error.retryable))
        case _NeverBegan():
            when = "too long after its reservation" if code == "unclear_error" else f"{code} before a thread was free"
            return never_entered(when)
        case _ if code == "unclear_error" and isinstance(error, tool.definite_failures):
            return _failed("definite_failure", _named(error))
    logger.warning("tool %r ended without an answer: %s", tool.name, code, exc_info=error, extra=_ids(call))
    message = _unclear(tool, error, code)
    if tool.effect is Effect.read_only:
        return _failed(code, message)
    return Ended("indeterminate", error=OutcomeError(code=code, message=message))


def _ids(call: ToolInvocationContext) -> dict[str, Any]:
    ids = {"event_id": call.event_id, "execution": call.execution_id, "node": call.node_id, "attempt": call.attempt}
    return {name: value for name, value in ids.items() if value is not None}


def _failed(code: str, message: str) -> Ended:
    return Ended("failed", error=OutcomeError(code=code, message=message), retryable=True)


def never_entered(why: str) -> Ended:
    """The end of an attempt whose tool was not called at all."""
    return replace(_failed("not_started", f"{why}: nothing ran"), entered=False)


def _unclear(tool: AnyTool, error: BaseException, code: Code) -> str:
    runs_on = "" if tool.is_async else "; its thread runs on"
    match code, error:
        case "timeout", TimeoutError():
            return f"no answer within {tool.timeout:g} s{runs_on}"
        case "cancelled", asyncio.CancelledError():
            return f"cancelled while it ran{runs_on}"
        case _:
            return _named(error)


def _named(error: BaseException) -> str:
    text = _text(error)
    return _short(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - so is an exception's __str__
        return f"(its text raised {type(error).__name__})"


def _short(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else text[: _MESSAGE_CHARACTERS - 1] + "…"


def _detail(value: Any) -> Any:
    """What of a `ToolFailed.detail` an outcome can carry; a text in angle brackets where it cannot."""
    try:
        kept = plain(value)
        size = len(dumps(kept))
    except Exception as error:  # noqa: BLE001 - and a serializer
        return f"<{type(value).__name__} left out: {_named(error)}>"
    return kept if size <= _DETAIL_CHARACTERS else f"<{type(value).__name__} left out: {size} characters of JSON>"
