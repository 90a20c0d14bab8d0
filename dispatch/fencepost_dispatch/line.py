"""The line in process: the same guarantee for an agent runner that calls its tools itself, without Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from fencepost_dispatch.answers import Answer, Delivery
from fencepost_dispatch.engine import Engine
from fencepost_dispatch.execute import Threads
from fencepost_dispatch.path import Paths
from fencepost_dispatch.registry import Registry
from fencepost_dispatch.settings import Settings
from fencepost_dispatch.tools import Tool
from fencepost_dispatch.tracing import around_runs, find_tracer, headers
from fencepost_ledger import Ledger, new_holder, require_current
from fencepost_ledger.blobs import check
from fencepost_ledger.verdicts import Refused
from fencepost_schemas import Dispatch, Outcome, arguments_hash
from fencepost_schemas import Refused as NotCanonical


def open_ledger(settings: Settings, holder: str, engine: Engine, **more: Any) -> Ledger:
    """The ledger of these settings, talking to this engine. Raises SettingsError without a DSN."""
    return Ledger(
        settings.require_dsn(),
        holder=holder,
        lease_seconds=settings.lease_seconds,
        ttl_hours=settings.ttl_hours,
        default_org=settings.default_org,
        on_divergence=settings.on_divergence,
        deliver=engine.deliver,
        on_lost=engine.lost,
        on_lapse=engine.lapse,
        **more,
    )


def delivered(dispatch: Dispatch) -> Delivery:
    """A dispatch that came from no record; arguments without a canonical form are refused with their JSON path."""
    try:
        return Delivery(dispatch, arguments_hash(dispatch.arguments), trace=headers())
    except NotCanonical as error:
        return Delivery(dispatch, None, Refused("invalid_arguments", str(error)))


# How long calls that were cancelled at the end of a drain have to record that they were, in seconds.
_CLOSE_SECONDS = 5.0


class LineClosed(RuntimeError):
    """The line was left before this call was answered, or is not entered: ask again on an open one."""


class Line:
    """Runs calls through the ledger in this process; an async context manager.

    Leaving it waits for the calls under way, at most `drain_seconds`: whoever asked may be gone, the end is recorded.

    Args:
        tools: a Registry, or tools.
        settings: by default from `FENCEPOST_*`; only those of the ledger and of large results are used.

    Raises (on entering):
        SettingsError, LedgerUnavailable, NotMigrated, BlobsUnavailable: with one line that names the cure.
    """

    def __init__(self, tools: Registry | Iterable[Tool[..., Any]], settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._tools = tools if isinstance(tools, Registry) else _registry(tools, self._settings.strict)
        self._asked: set[asyncio.Future[Answer]] = set()
        self._open = False

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(require_current, self._settings.require_dsn())
        if self._settings.blobs is not None:
            await asyncio.to_thread(check, self._settings.blobs)
        holder = new_holder()
        self._idle = asyncio.Event()
        self._threads = Threads(self._settings.concurrency)
        self._engine = Engine(
            lambda engine: open_ledger(self._settings, holder, engine, on_health=_ignored),
            concurrency=self._settings.concurrency,
            threads=self._threads,
            around=around_runs(find_tracer()),
            on_idle=self._idle.set,
        )
        self._paths = Paths(
            self._tools,
            worker=holder,
            wait_seconds=self._settings.wait_seconds,
            inline_result_bytes=self._settings.inline_result_bytes,
            blobs=self._settings.blobs,
        )
        self._engine.ledger.start()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if not await self._drained(self._settings.drain_seconds):
            self._engine.cancel_all()
            await self._drained(_CLOSE_SECONDS)
        self._engine.flush()
        await asyncio.to_thread(self._engine.ledger.close)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(LineClosed(LineClosed.__doc__))

    async def run(self, dispatch: Dispatch) -> Outcome:
        """Run this call, or answer what is known of it. The same event may be given again at any time.

        Cancelling the caller does not cancel the call: it may have acted, and its end is recorded.

        Raises:
            LedgerRefused: the ledger cannot take this one event.
            LineClosed: the line is not open, or was left before the answer came.
        """
        if not self._open:
            raise LineClosed(LineClosed.__doc__)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def ended(value: Answer, error: BaseException | None) -> None:
            # Whoever asked is the only subscriber there is: an answer it no longer waits for is left to a next asking.
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                if value.settle is not None:
                    self._engine.settle(value.settle)
                answer.set_result(value)

        self._idle.clear()
        self._engine.launch(self._paths.path(delivered(dispatch)), ended)
        self._asked.add(answer)
        try:
            return (await answer).outcome
        finally:
            self._asked.discard(answer)

    async def _drained(self, seconds: float) -> bool:
        """Whether no call is under way any more, after `seconds` at most."""
        if not self._engine.under_way:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def _registry(tools: Iterable[Tool[..., Any]], strict: bool) -> Registry:
    registry = Registry(strict=strict)
    for tool in tools:
        registry.add(tool)
    return registry


def _ignored(_reason: str | None) -> None:
    """An agent runner has no readiness probe to flip; the ledger's own log says it."""
