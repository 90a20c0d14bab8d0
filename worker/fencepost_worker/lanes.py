"""Lanes: records that must be done one after the other. `unordered` has none; the ledger makes that safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from fencepost_schemas import Dispatch, Fence
from fencepost_worker.records import Record

Started = Callable[[], None]


def lane_of(ordering: str, record: Record, event: Dispatch | Fence) -> Hashable:
    """Which lane a record stands in: one per node (`key`), one per partition (`partition`); None: no lane."""
    match ordering:
        case "key":
            return event.execution_id, event.node_id
        case "partition":
            return record.partition
        case _:
            return None


class Lanes:
    """One of each lane at a time, in the order of arrival."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[Started]] = {}

    def enter(self, lane: Hashable, start: Started) -> None:
        """Call `start` when it is this one's turn, perhaps at once; it must end in `leave`."""
        if lane in self._lanes:
            self._lanes[lane].append(start)
        else:
            self._lanes[lane] = deque()
            start()

    def leave(self, lane: Hashable) -> Started | None:
        """The one whose turn it was is done → what starts the next one, to be called from a fresh stack."""
        waiting = self._lanes[lane]
        if waiting:
            return waiting.popleft()
        del self._lanes[lane]
        return None
