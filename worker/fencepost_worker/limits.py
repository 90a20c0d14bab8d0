"""How much may be in flight. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost_worker.records import Record

BATCH = 500  # records handed over at once, at most


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be in flight at once. Paused above a limit, resumed at `low` times the limit or below.

    `records` and `size` (bytes) count over all partitions, beside librdkafka's own prefetch. Where records suddenly
    grow, one batch may exceed `size` by as much as was prefetched. `span` is the distance, in offsets, between a
    partition's lowest unfinished record and its newest.
    """

    records: int = 2_000
    size: int = 64 * 1024 * 1024
    span: int = 100_000
    low: float = 0.5

    def __post_init__(self) -> None:
        if min(self.records, self.size, self.span) < 1 or not 0 < self.low <= 1:
            raise ValueError("limits must be at least 1, and low above 0 and at most 1")


class Room:
    """What `Limits` leave free, given what is in flight."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._least = max(1, min(BATCH, limits.records // 8))  # fewer than this are not worth a turn
        self._mean_size = limits.size / 8  # a slow start: nothing is known about the records yet

    def free(self, records: int, size: int) -> int:
        """How many records may be taken beside `records` of `size` bytes; 0 when it is too few for a turn."""
        count, space = self._limits.records - records, self._limits.size - size
        if count < self._least or space <= 0:
            return 0
        return min(count, BATCH, int(space / self._mean_size) + 1)

    def may_resume(self, records: int, size: int) -> bool:
        """Whether enough has been finished for paused partitions to go on."""
        low = self._limits.low
        return records <= low * self._limits.records and size <= low * self._limits.size

    def too_wide(self, span: int, paused: bool) -> bool:
        """Whether a partition has to be (or to stay) paused, its unfinished offsets being `span` apart."""
        return span > self._limits.span * (self._limits.low if paused else 1.0)

    def learn(self, batch: Sequence[Record]) -> None:
        """Expects the next records to be as large as these: up at once, down by halves."""
        mean = max(1.0, sum(record.size for record in batch) / len(batch))
        self._mean_size = max(mean, (self._mean_size + mean) / 2)
