"""The worker: poll thread → paths → ledger → tools → publisher → offsets, wired together, and its orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from fencepost_dispatch.answers import Answer
from fencepost_dispatch.engine import Engine, Way
from fencepost_dispatch.execute import Threads
from fencepost_dispatch.line import open_ledger
from fencepost_dispatch.path import Paths
from fencepost_dispatch.registry import Registry
from fencepost_dispatch.settings import Settings
from fencepost_ledger import CallRow, Ledger, new_holder, require_current
from fencepost_ledger.blobs import check as check_blobs
from fencepost_ledger.verdicts import Settle
from fencepost_schemas import Decoded, Poison, decode, encode_outcome
from fencepost_worker.consumer import PollThread
from fencepost_worker.deadletter import DeadLetterLimit, dead_letter
from fencepost_worker.events import Bury, Done, Passage, Publish, Unburied, buried, left
from fencepost_worker.lanes import Lanes, lane_of
from fencepost_worker.limits import Limits
from fencepost_worker.publisher import Publisher
from fencepost_worker.records import Record
from fencepost_worker.telemetry import Telemetry
from fencepost_worker.topics import Finding, check, record_limits

# Exit codes beyond the contract's: work was left behind at the deadline (the ledger makes that safe); a second signal.
DRAIN_CUT_SHORT = 4
SECOND_SIGNAL = 130
_CLOSE_SECONDS = 5.0

log = structlog.get_logger("fencepost.worker")


class TopicsUnfit(Exception):
    """A topic is missing, or its settings would lose or repeat calls; the text is one line with the cure."""


class Worker:
    """One worker process. Everything in it but the callbacks of the threads belongs to the event loop's thread."""

    def __init__(self, settings: Settings, tools: Registry) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.holder = new_holder()
        self._ending: asyncio.Future[int] = self._loop.create_future()
        self._stopping = False
        self._idle = asyncio.Event()
        self._threads = Threads(settings.concurrency)
        self._lanes = Lanes()
        self._dead = DeadLetterLimit()
        self._finished: list[Record] = []
        self._telemetry = Telemetry(settings, tools)
        self._paths = Paths(
            tools,
            worker=self.holder,
            wait_seconds=settings.wait_seconds,
            inline_result_bytes=settings.inline_result_bytes,
            blobs=settings.blobs,
        )
        self._engine = Engine(
            self._open_ledger,
            concurrency=settings.concurrency,
            threads=self._threads,
            steps={Publish: self._publish, Bury: self._bury},
            on_idle=self._look_idle,
            watch=self._telemetry.meters,
            around=self._telemetry.around,
        )
        kafka = settings.kafka_config()
        self._publisher = Publisher(
            kafka,
            self._from_thread(self._published),
            self._from_thread(self._fatal),
            limits=record_limits(kafka, settings),
        )
        self._poll = self._open_consumer(kafka)

    def _open_ledger(self, engine: Engine) -> Ledger:
        meters, left_over = self._telemetry.meters, self._from_thread(self._take_left)
        return open_ledger(
            self._settings, self.holder, engine, on_health=meters.written, publish=left_over, watch=meters
        )

    def _open_consumer(self, kafka: dict[str, Any]) -> PollThread:
        return PollThread(
            kafka | _membership(self._settings),
            self._settings.dispatch_topic,
            self._from_thread(self._take),
            self._from_thread(self._fatal),
            revoking=self._from_thread(self._revoking),
            drain_seconds=self._settings.drain_seconds,
            limits=Limits(records=max(2_000, 4 * self._settings.concurrency)),
            protocol=self._settings.group_protocol,
        )

    async def run(self) -> int:
        """Serve until a signal or a fatal fault → the exit code.

        Raises:
            PortUnavailable: before anything has started.
        """
        with self._telemetry.opened(self._engine, self._poll, self._publisher):
            return await self._serve()

    async def _serve(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, signal.Signals(number).name)
        self._engine.ledger.start()
        self._publisher.start()
        self._poll.start()
        log.info("worker started", worker=self.holder, topic=self._settings.dispatch_topic)
        code = await self._ending
        return await self._end(code)

    # --- records in -------------------------------------------------------------------------------------------------

    def _take(self, records: list[Record]) -> None:
        for record in records:
            decoded = self._decoded(record)
            if self._too_many_dead(decoded):
                return
            lane = None if isinstance(decoded, Poison) else lane_of(self._settings.ordering, record, decoded.event)
            passage = self._telemetry.passage(record, decoded, self._paths)
            if lane is None:
                self._launch(record, passage, None)
            else:
                self._lanes.enter(lane, partial(self._launch, record, passage, lane))

    def _decoded(self, record: Record) -> Decoded | Poison:
        try:
            decoded = decode(record.value, record.headers)
        except Poison as poison:
            return poison
        self._telemetry.meters.unknown_fields += decoded.unknown_fields
        return decoded

    def _launch(self, record: Record, path: Passage, lane: Any) -> None:
        self._engine.launch(path, partial(self._ended, record, lane), partial(self._wanted, record, lane))

    def _wanted(self, record: Record, lane: Any) -> bool:
        """Asked right before a call may start: not while draining, and not for a partition that is somebody else's."""
        wanted = not self._stopping and self._poll.current(record)
        if not wanted:
            self._leave(lane)
        return wanted

    def _leave(self, lane: Any) -> None:
        if lane is not None and (start := self._lanes.leave(lane)) is not None:
            self._loop.call_soon(start)

    def _ended(self, record: Record, lane: Any, done: Done | None, error: BaseException | None) -> None:
        self._leave(lane)
        if isinstance(error, Unburied):
            log.error("a record could not be buried", **_where(record))
            self._fatal(error)
            return
        if error is not None:
            log.error("a record could not be handled", **_where(record), exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            self._engine.launch(buried(record, "internal_error", reason), partial(self._ended, record, None))
            return
        if done is not None:
            self._telemetry.done(record, done)
        if isinstance(done, Answer) and done.settle is not None:
            self._engine.settle(done.settle)
        if not self._finished:
            self._loop.call_soon(self._done)
        self._finished.append(record)

    def _done(self) -> None:
        finished, self._finished = self._finished, []
        self._poll.done(finished)
        self._look_idle()

    def _revoking(self, partitions: list[int]) -> None:
        log.info("partitions revoked", partitions=partitions)
        self._engine.drop_unwanted()

    def _too_many_dead(self, decoded: Decoded | Poison) -> bool:
        if not isinstance(decoded, Poison):
            self._dead.decoded()
            return False
        reason = self._dead.dead()
        if reason is not None:
            self._fatal(RuntimeError(f"{reason}: is {self._settings.dispatch_topic} the right topic?"))
        return reason is not None

    def _take_left(self, rows: list[CallRow]) -> None:
        """From the sweeper: outcomes that nobody published."""
        for row in rows:
            self._engine.launch(left(row), partial(self._left_ended, row))

    def _left_ended(self, row: CallRow, settled: Settle | None, error: BaseException | None) -> None:
        if error is not None:
            log.error("an outcome could not be published", exc_info=error)
        elif settled is not None:
            self._telemetry.left(row)
            self._engine.settle(settled)

    # --- outcomes out -----------------------------------------------------------------------------------------------

    def _publish(self, way: Way, step: Publish) -> None:
        letter = encode_outcome(step.outcome, source=self._settings.group_id, trace=step.trace)
        self._publisher.publish(letter, self._settings.outcome_topic, way)

    def _bury(self, way: Way, step: Bury) -> None:
        log.warning("dead letter", code=step.code, reason=step.message, **_where(step.record))
        letter = dead_letter(step.record, step.code, step.message, self.holder)
        self._publisher.publish(letter, self._settings.dead_letter_topic, way)

    def _published(self, results: list[tuple[Way, Any]]) -> None:
        for way, error in results:
            self._engine.resume(way, error)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _signalled(self, name: str) -> None:
        if self._stopping:
            log.warning("second signal: leaving at once", signal=name)
            os._exit(SECOND_SIGNAL)
        log.info("draining", signal=name, under_way=self._engine.under_way)
        self.stop()

    def _fatal(self, reason: BaseException) -> None:
        self._telemetry.leaving = text = f"{type(reason).__name__}: {reason}"
        log.error("worker cannot go on", reason=text)
        self.stop(1)

    def stop(self, code: int = 0) -> None:
        """Begin the orderly end; `run` returns `code`, or another one when work was left behind."""
        self._stopping = True
        self._telemetry.leaving = self._telemetry.leaving or "draining"
        if not self._ending.done():
            self._ending.set_result(code)

    async def _end(self, code: int) -> int:
        """Stop taking → drain → flush → store → close; after the grace period leave anyway."""
        self._poll.stop_taking()
        self._engine.drop_unwanted()
        drained = await self._drained(self._settings.drain_seconds)
        if not drained:
            log.warning("drain cut short: what still runs is recorded as unknown", under_way=self._engine.under_way)
            self._engine.cancel_all()
            await self._drained(_CLOSE_SECONDS)
        self._engine.flush()
        closed = await asyncio.to_thread(self._close)
        self._threads.shutdown(wait=False, cancel_futures=True)
        log.info("worker stopped", drained=drained, closed=closed)
        return code if drained and closed else code or DRAIN_CUT_SHORT

    async def _drained(self, seconds: float) -> bool:
        self._look_idle()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _look_idle(self) -> None:
        if self._stopping and self._engine.under_way == 0 and not self._finished:
            self._idle.set()

    def _close(self) -> bool:
        """In a thread: the clients' own ends may hang when their servers are gone."""
        flushed = self._publisher.flush(_CLOSE_SECONDS) == 0
        left_group = self._poll.stop(_CLOSE_SECONDS)
        self._publisher.close()
        return self._engine.ledger.close(_CLOSE_SECONDS) and flushed and left_group

    def _from_thread(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """The callback, callable from any thread: it runs in the loop's."""

        def call(value: Any) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(callback, value)

        return call


def _membership(settings: Settings) -> dict[str, Any]:
    group: dict[str, Any] = {"group.id": settings.group_id}
    if settings.group_instance_id is not None:
        group["group.instance.id"] = settings.group_instance_id
    return group


def _where(record: Record) -> dict[str, Any]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def load_tools(settings: Settings, modules: list[str]) -> Registry:
    """Import the modules of tools. Raises ToolsNotLoaded, DuplicateTool."""
    registry = Registry(strict=settings.strict)
    for module in modules:
        registry.load(module)
    return registry


async def run_worker(settings: Settings, modules: list[str]) -> int:
    """Run a worker of the consumer group until it is told to stop → exit code.

    Raises:
        SettingsError, ToolsNotLoaded, LedgerUnavailable, NotMigrated, BlobsUnavailable, BrokersUnavailable,
            TopicsUnfit, PortUnavailable: at start, with the cure.
    """
    tools = load_tools(settings, modules)
    await asyncio.to_thread(require_current, settings.require_dsn())
    if settings.blobs is not None:
        await asyncio.to_thread(check_blobs, settings.blobs)
    _require_fit(await asyncio.to_thread(check, settings.kafka_config(), settings))
    return await Worker(settings, tools).run()


def _require_fit(findings: list[Finding]) -> None:
    for finding in findings:
        if finding.level == "warning":
            log.warning("topic", finding=str(finding))
    if faults := [str(finding) for finding in findings if finding.level == "error"]:
        raise TopicsUnfit("; ".join(faults))
