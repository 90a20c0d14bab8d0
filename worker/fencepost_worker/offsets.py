"""Which offset of a partition may be committed. Pure: no Kafka, no clock, no threads.

The watermark is the lowest offset that was delivered and is not yet done. It is built from delivered offsets only:
compaction, aborted transactions and transaction markers leave gaps that no arithmetic can know.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Tracker:
    """The delivered and unfinished offsets of one partition during one assignment.

    Completions may come in any order; `delivered` and `done` are O(log n) at worst and O(1) for what is done in order.
    An offset that is delivered twice (a rewound log) has to be done twice.
    """

    __slots__ = ("_again", "_heap", "_left", "_open", "_top")

    def __init__(self) -> None:
        self._open: dict[int, float] = {}  # offset -> when it was delivered
        self._again: dict[int, int] = {}  # offset -> deliveries beyond the first that are open
        self._left: set[int] = set()  # open, and nobody will finish them
        self._heap: list[int] = []  # every open offset; those that are done leave it when they reach the front
        self._top: int | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def awaited(self) -> int:
        """How many open offsets somebody is still going to finish."""
        return len(self._open) - len(self._left)

    @property
    def span(self) -> int:
        """From the lowest open offset to the highest delivered one, both counted; 0 when nothing is open."""
        if not self._open or self._top is None:
            return 0
        return self._top - self._heap[0] + 1

    def delivered(self, offset: int, at: float = 0.0) -> None:
        """The record at `offset` was handed out, at the time `at` (seconds of any clock)."""
        if offset in self._open:
            self._again[offset] = self._again.get(offset, 0) + 1
            return
        self._open[offset] = at
        heappush(self._heap, offset)
        if self._top is None or offset > self._top:
            self._top = offset

    def done(self, offset: int) -> bool:
        """The record at `offset` needs nothing more. False when it was not open: then nothing has changed."""
        if offset not in self._open:
            return False
        if more := self._again.pop(offset, 0):
            if more > 1:
                self._again[offset] = more - 1
            return True
        del self._open[offset]
        self._left.discard(offset)
        while self._heap and self._heap[0] not in self._open:
            heappop(self._heap)
        return True

    def leave(self, offset: int) -> None:
        """Nobody will finish `offset`: it is no longer awaited, and the watermark never passes it."""
        if offset in self._open:
            self._left.add(offset)

    def watermark(self, position: int | None = None) -> int | None:
        """The offset to commit; None when nothing was delivered and no position is known.

        `position` is where the consumer stands. It is past what a transaction or compaction left behind the last
        record, so with nothing open the group's lag becomes exactly 0.
        """
        if self._open:
            return self._heap[0]
        if position is not None:
            return position
        return None if self._top is None else self._top + 1

    def oldest(self) -> tuple[int, float] | None:
        """The lowest open offset and when it was delivered."""
        return (self._heap[0], self._open[self._heap[0]]) if self._open else None
