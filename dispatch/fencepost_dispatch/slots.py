"""Slots: how many calls may be under way at once, and whose turn it is. One tenant cannot starve another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Slots(Generic[T]):
    """`size` slots, handed out tenant by tenant in turn, and within a tenant in order. For one thread (the loop's).

    `granted` is called with each one whose turn it is, perhaps at once. `adrift` says how many slots are taken by what
    no longer has one: threads of tools whose time is up. `look` again when it has become less.
    """

    def __init__(self, size: int, granted: Callable[[T], None], adrift: Callable[[], int] = lambda: 0) -> None:
        self._free = size
        self._granted = granted
        self._adrift = adrift
        self.paused = False
        self.waiting = 0  # how many stand in line
        self._granting = False
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def acquire(self, tenant: str, who: T) -> None:
        """Stand in the tenant's line."""
        self.waiting += 1
        self._lines.setdefault(tenant, deque()).append(who)
        self._grant()

    def release(self) -> None:
        """Give a slot back."""
        self._free += 1
        self._grant()

    def look(self) -> None:
        """See whether somebody's turn has come."""
        self._grant()

    def pause(self, paused: bool) -> None:
        """Grant nothing while paused."""
        self.paused = paused
        self._grant()

    def take_out(self, which: Callable[[T], bool]) -> list[T]:
        """Those that stand in line and need no turn any more: they leave the line, and are returned."""
        left: list[T] = []
        for tenant in list(self._lines):
            kept: deque[T] = deque()
            for who in self._lines.pop(tenant):
                (left if which(who) else kept).append(who)
            if kept:
                self._lines[tenant] = kept
        self.waiting -= len(left)
        return left

    def _grant(self) -> None:
        if self._granting:
            return  # who was granted a slot gives it back at once: the loop below goes on with it
        self._granting = True
        try:
            while self._lines and not self.paused and self._free > self._adrift():
                self._granted(self._next())
        finally:
            self._granting = False

    def _next(self) -> T:
        tenant, line = self._lines.popitem(last=False)
        who = line.popleft()
        if line:
            self._lines[tenant] = line  # to the back: the other tenants' turn
        self._free -= 1
        self.waiting -= 1
        return who
