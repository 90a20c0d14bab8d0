"""`Dispatcher`: how an orchestrator asks for tool calls, fences older ones off, and awaits outcomes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fencepost_dispatch.event import new_event
from fencepost_dispatch.feed import Feed, Item, Received
from fencepost_dispatch.sender import Sender
from fencepost_dispatch.settings import Settings
from fencepost_dispatch.tracing import find_tracer, sending
from fencepost_dispatch.waiting import Answer, Waiting
from fencepost_schemas import Dispatch, Encoded, Fence, Outcome, encode_dispatch

if TYPE_CHECKING:
    from fencepost_ledger import Desk
    from fencepost_ledger.verdicts import OnDivergence

T = TypeVar("T")


class Dispatched:
    """A dispatch that the brokers have acknowledged; somebody may wait for its outcome."""

    def __init__(self, event: Dispatch | Fence, answer: Answer | None) -> None:
        self.event = event
        self._answer = answer

    @property
    def event_id(self) -> str:
        return self.event.event_id

    def __repr__(self) -> str:
        return f"Dispatched(event_id={self.event_id!r}, execution_id={self.event.execution_id!r})"

    async def outcome(self, timeout: float | None = None) -> Outcome:  # noqa: ASYNC109 - the contract's name
        """The first outcome of this event since it was dispatched; the same for everybody who asks.

        `timeout` is in seconds; None waits for as long as it takes.

        Raises:
            TimeoutError: still running, or no worker is.
            KafkaUnavailable: the outcome topic cannot be read any more.
            RuntimeError: the dispatcher was closed, or does not listen.
        """
        if self._answer is None:
            raise RuntimeError(
                "nobody listens for this outcome: a fence has none, and a Dispatcher(listen=False) neither"
            )
        async with asyncio.timeout(timeout):
            return await self._answer.get()


class Dispatcher:
    """Sends tool calls to the workers and hears how they ended.

    Connects to Kafka at the first dispatch, and to the ledger's Postgres at the first call that needs it: sending calls
    takes no DSN. With `listen=False` outcomes are not read. One dispatcher serves any number of coroutines of one loop.

    Raises, from every call:
        SettingsError: a setting is missing or refused.
        KafkaUnavailable, MissingTopic: see `fencepost_dispatch.kafka`.
        LedgerUnavailable, NotMigrated: see `fencepost_ledger`.
    """

    def __init__(self, settings: Settings | None = None, *, listen: bool = True) -> None:
        self._settings = settings or Settings.load()
        self._listen = listen
        self._waiting = Waiting()
        self._connecting = asyncio.Lock()
        self._closed = False
        self._sender: Sender | None = None
        self._feed: Feed | None = None
        self._desk = _LazyDesk(self._settings)
        self._tracer = find_tracer()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is still queued, for 10 seconds at most, and leave; whoever waits for an outcome is told so."""
        self._closed = True
        self._waiting.fail(RuntimeError("the dispatcher was closed before the outcome came"))
        if self._sender is not None:
            await self._sender.close()
        if self._feed is not None:
            await self._feed.close()
        await asyncio.to_thread(self._desk.close)

    async def open_execution(
        self, execution_id: str, org_id: str, *, on_divergence: OnDivergence | None = None
    ) -> bool:
        """Write the trusted row; True when it is new. Open already, under the same org: fine.

        `on_divergence` says for this execution what its re-dispatched nodes get where they diverge.

        Raises:
            OrgConflict: it is open under another org.
        """
        return await self._ask(lambda desk: desk.open_execution(execution_id, org_id, on_divergence=on_divergence))

    async def close_execution(self, execution_id: str) -> None:
        """Mark the execution as over.

        Raises:
            NotFound: there is none.
        """
        await self._ask(lambda desk: desk.close_execution(execution_id))

    async def redispatch(self, execution_id: str, node_id: str) -> int:
        """Raise the node's generation and return it (the first time 2): once this returns, no older call can start."""
        return await self._ask(lambda desk: desk.redispatch(execution_id, node_id))

    async def fence(self, execution_id: str, node_id: str, generation: int) -> str:
        """Raise the generation by an event instead: it holds once a worker has admitted it. Returns the event's id."""
        event = new_event(Fence, execution_id=execution_id, node_id=node_id, generation=generation)
        return (await self.send(event)).event_id

    async def dispatch(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        execution_id: str,
        node_id: str,
        call_index: int,
        generation: int = 1,
        event_id: str | None = None,
        tool_call_id: str | None = None,
        session_key: str | None = None,
        org_id: str | None = None,
        deadline: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Dispatched:
        """Ask for one call; returns once all in-sync replicas have it.

        Raises:
            InvalidDispatch: a field breaks a rule, or the event is too large for the brokers.
            Refused: the arguments are not canonical JSON (`fencepost_schemas.Refused`, with the path).
            NotAcknowledged: it may or may not have arrived; send it again with the same `event_id`.
        """
        event = new_event(
            Dispatch,
            event_id=event_id,
            execution_id=execution_id,
            node_id=node_id,
            call_index=call_index,
            generation=generation,
            tool=tool,
            arguments=dict(arguments),
            tool_call_id=tool_call_id,
            session_key=session_key,
            org_id=org_id,
            deadline=deadline,
            metadata=None if metadata is None else dict(metadata),
        )
        return await self.send(event)

    async def send(self, event: Dispatch | Fence) -> Dispatched:
        """What `dispatch` and `fence` do, for an event that is there already."""
        with sending(self._tracer, self._settings.dispatch_topic, event) as trace:
            encoded = encode_dispatch(event, trace=trace)
            return await self._send(event, encoded)

    async def _send(self, event: Dispatch | Fence, encoded: Encoded) -> Dispatched:
        sender = await self._connected()
        listens = self._listen and isinstance(event, Dispatch)
        answer = self._waiting.expect(event.execution_id, event.event_id) if listens else None
        await sender.send(encoded, event.event_id)
        return Dispatched(event, answer)

    async def _connected(self) -> Sender:
        if self._closed:
            raise RuntimeError("the dispatcher is closed")
        async with self._connecting:
            return await self._connect()

    async def _connect(self) -> Sender:
        if self._sender is None:
            sender = Sender(self._settings)
            await sender.open()
            self._sender = sender
        if self._listen and self._feed is None:
            feed = Feed(self._settings, self._hear, wanted=self._waiting.concerns)
            await feed.open()
            self._feed = feed
        return self._sender

    def _hear(self, items: list[Item]) -> None:
        for item in items:
            if not isinstance(item, Received):
                self._waiting.fail(item.reason or RuntimeError("the dispatcher was closed before the outcome came"))
            elif item.outcome is not None:
                self._waiting.settle(item.outcome)

    async def _ask(self, question: Callable[[Desk], T]) -> T:
        return await asyncio.to_thread(self._desk.ask, question)


class _LazyDesk:
    """The ledger's desk, one question at a time; connects when it is first asked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._one_at_a_time = threading.Lock()
        self._desk: Desk | None = None

    def ask(self, question: Callable[[Desk], T]) -> T:
        from fencepost_ledger import Desk, LedgerUnavailable  # noqa: PLC0415 - only for those who need it

        with self._one_at_a_time:
            if self._desk is None:
                self._desk = Desk(self._settings.require_dsn())
                return question(self._desk)
            try:
                return question(self._desk)
            except LedgerUnavailable:  # the connection may have died of old age, and every question may be asked twice
                return question(self._desk)

    def close(self) -> None:
        with self._one_at_a_time:
            if self._desk is not None:
                self._desk.close()
