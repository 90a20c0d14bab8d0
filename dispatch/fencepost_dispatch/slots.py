"""Slots: how many calls may be under way at once, and whose turn it is. One tenant cannot starve another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable


class Slots:
    """`size` slots, handed out tenant by tenant in turn, and within a tenant in order. For one thread (the loop's)."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._paused = False
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return sum(len(line) for line in self._waiting.values())

    def acquire(self, tenant: str, granted: Callable[[], None]) -> None:
        """Call `granted` as soon as there is a slot for it, perhaps at once."""
        self._waiting.setdefault(tenant, deque()).append(granted)
        self._grant()

    def release(self) -> None:
        """Give a slot back."""
        self._free += 1
        self._grant()

    def pause(self, paused: bool) -> None:
        """Grant nothing while paused."""
        self._paused = paused
        self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting and not self._paused:
            tenant, line = self._waiting.popitem(last=False)
            granted = line.popleft()
            if line:
                self._waiting[tenant] = line  # to the back: the other tenants' turn
            self._free -= 1
            granted()
