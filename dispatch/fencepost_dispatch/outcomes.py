"""`Outcomes`: the outcome topic as an async iterator, without repeats."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Self

from fencepost_dispatch.feed import Ended, Feed, GroupFeed, Item, Received
from fencepost_dispatch.settings import Settings
from fencepost_schemas import Outcome

AHEAD = 2_000  # records in memory that the reader has not taken yet


class Outcomes:
    """Every outcome of the topic, each `outcome_id` once within the last `remember` of them.

        async with Outcomes() as outcomes:
            async for outcome in outcomes: ...

    Without a group it starts with what is produced after entering, or with `from_beginning` at the oldest record; with
    `follow=False` it ends where the topic ended on entering. With `group_id` the partitions are shared with the other
    members, and an outcome is committed once the next one is asked for: at least once, so after a crash the last one
    comes again. A new group starts at the oldest record. Records that are no outcomes are skipped, logged and counted
    in `undecodable`. With an `org` only its outcomes come; that is a filter here, not at the brokers.

    Raises, on entering or from the iterator:
        KafkaUnavailable, MissingTopic, SettingsError
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        org: str | None = None,
        group_id: str | None = None,
        from_beginning: bool = False,
        follow: bool = True,
        remember: int = 10_000,
    ) -> None:
        if group_id is not None and (from_beginning or not follow):
            raise ValueError(
                "a group has its own position: from_beginning and follow=False are for reading without one"
            )
        self._settings = settings or Settings.load()
        self._org = org
        self._group_id = group_id
        self._from_beginning = from_beginning
        self._follow = follow
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._seen = _Recent(remember)
        self._feed: Feed | None = None
        self._current: Received | None = None
        self._ended: Ended | None = None

    @property
    def undecodable(self) -> int:
        """Records so far that were no outcomes."""
        return 0 if self._feed is None else self._feed.undecodable

    async def __aenter__(self) -> Self:
        self._feed = self._new_feed()
        await self._feed.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the topic; the outcome in hand is not committed, unless the iterator has gone on from it."""
        if self._feed is not None:
            await self._feed.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        if self._feed is None:
            await self.__aenter__()
        while True:
            self._done()
            record = await self._next()
            self._current = record
            outcome = record.outcome
            if outcome is None or not self._holds(record) or self._org not in (None, outcome.org_id):
                continue
            if self._seen.add(outcome.outcome_id):
                return outcome

    async def _next(self) -> Received:
        if self._ended is None:
            item = await self._items.get()
            if isinstance(item, Received):
                return item
            self._ended = item
        raise self._ended.reason or StopAsyncIteration

    def _done(self) -> None:
        if self._current is not None and self._feed is not None:
            self._feed.taken(self._current)
        self._current = None

    def _holds(self, record: Received) -> bool:
        return self._feed is not None and self._feed.holds(record)

    def _new_feed(self) -> Feed:
        if self._group_id is not None:
            return GroupFeed(self._settings, self._receive, group_id=self._group_id, most=AHEAD)
        return Feed(self._settings, self._receive, from_beginning=self._from_beginning, follow=self._follow, most=AHEAD)

    def _receive(self, items: list[Item]) -> None:
        for item in items:
            self._items.put_nowait(item)


class _Recent:
    """The last `most` ids."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, ident: str) -> bool:
        """True when it is new; an id that is met again counts as recent again."""
        new = ident not in self._ids
        self._ids[ident] = None
        self._ids.move_to_end(ident)
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return new
