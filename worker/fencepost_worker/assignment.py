"""The partitions this worker owns and what is in flight of them. Pure: no Kafka, no clock.

Every assignment of a partition is an *epoch* of its own with a tracker of its own. What belongs to an ended epoch is
not current, and its completions change nothing: those records are another owner's now, or will be delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost_worker.offsets import Tracker
from fencepost_worker.records import Record


class Share:
    """One owned partition: its epoch, its tracker, the bytes in flight and the offset that was stored last."""

    __slots__ = ("epoch", "partition", "size", "stored", "tracker")

    def __init__(self, partition: int, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.tracker = Tracker()
        self.size = 0
        self.stored: int | None = None


class Assignment:
    """The owned partitions. One thread changes it; `current` may be asked from any."""

    def __init__(self) -> None:
        self.records = 0  # in flight, over all partitions
        self.size = 0  # their bytes
        self._shares: dict[int, Share] = {}
        self._current: dict[int, int] = {}  # partition -> epoch whose records may start
        self._epoch = 0

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._shares)

    def begin(self, partitions: Iterable[int]) -> None:
        """These partitions are ours from here on, in new epochs."""
        for partition in partitions:
            self.end([partition])
            self._epoch += 1
            self._shares[partition] = Share(partition, self._epoch)
            self._current[partition] = self._epoch

    def closing(self, partitions: Iterable[int]) -> None:
        """Of these nothing may start any more; what has started may still be finished."""
        for partition in partitions:
            self._current.pop(partition, None)

    def end(self, partitions: Iterable[int]) -> None:
        """These are not ours any more: nothing starts, and completions that come later are dropped."""
        for partition in partitions:
            self._current.pop(partition, None)
            if (share := self._shares.pop(partition, None)) is not None:
                self.records -= len(share.tracker)
                self.size -= share.size

    def epoch(self, partition: int) -> int | None:
        """The running epoch of a partition; None when it is not ours."""
        share = self._shares.get(partition)
        return None if share is None else share.epoch

    def current(self, record: Record) -> bool:
        """Whether the record may start: its partition is still ours, in the same epoch, and not about to go."""
        return self._current.get(record.partition) == record.epoch

    def delivered(self, record: Record, at: float) -> None:
        """The record, of a running epoch, is handed out at the time `at`."""
        share = self._shares[record.partition]
        before = len(share.tracker)
        share.tracker.delivered(record.offset, at)
        if len(share.tracker) > before:
            share.size += record.size
            self.size += record.size
            self.records += 1

    def done(self, record: Record) -> None:
        """The record needs nothing more. Of an ended epoch: nothing happens."""
        share = self._shares.get(record.partition)
        if share is None or share.epoch != record.epoch:
            return
        before = len(share.tracker)
        share.tracker.done(record.offset)
        if len(share.tracker) < before:
            share.size -= record.size
            self.size -= record.size
            self.records -= 1

    def leave(self, record: Record) -> None:
        """The record will not be started here; nobody has to wait for it, and no commit passes it."""
        share = self._shares.get(record.partition)
        if share is not None and share.epoch == record.epoch:
            share.tracker.leave(record.offset)

    def shares(self, partitions: Iterable[int] | None = None) -> list[Share]:
        """The owned ones of `partitions`, or all."""
        if partitions is None:
            return list(self._shares.values())
        return [self._shares[partition] for partition in partitions if partition in self._shares]

    def awaited(self, partitions: Iterable[int]) -> int:
        """How many records of these partitions somebody is still going to finish."""
        return sum(share.tracker.awaited for share in self.shares(partitions))

    def oldest(self) -> tuple[float, int, int] | None:
        """When the record was delivered that has held back its partition for longest; the partition and the offset."""
        fronts = ((share.partition, share.tracker.oldest()) for share in self._shares.values())
        return min(((front[1], partition, front[0]) for partition, front in fronts if front is not None), default=None)
