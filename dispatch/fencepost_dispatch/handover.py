"""From a thread of librdkafka onto the event loop: many items at one wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """`put` may be called by any thread; `receive` gets everything put so far, in order, on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._items: deque[T] = deque()
        self._awake = False

    def put(self, item: T) -> None:
        """Never raises: a loop that is closed has nobody left who waits."""
        self._items.append(item)
        if self._awake:
            return
        self._awake = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            self._items.clear()

    def _drain(self) -> None:
        self._awake = False  # first: what is put from here on wakes the loop again
        items = []
        while self._items:
            items.append(self._items.popleft())
        if items:
            self._receive(items)
