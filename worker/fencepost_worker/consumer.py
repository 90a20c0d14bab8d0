"""The poll thread: the only one that touches the Consumer.

Since 2.16 confluent-kafka lets one thread at a time into a Consumer, so another thread's `pause` or `commit` waits for
seconds behind a running `consume`. Here the thread makes every call itself; the rest of the process puts completions on
a queue that is emptied each turn.

Offsets: librdkafka commits by itself what was *stored*, and only the watermark is ever stored. Storing for a partition
that is no longer owned is refused, which is the safe direction; an explicit commit would be accepted and rewind the
group.

Where reading starts: at the group's committed offset. `auto.offset.reset` is `error`, so that nothing is decided
silently. A partition without a commit starts at its oldest record, and so does, with a warning, one whose committed
offset the broker no longer has. Nothing ever jumps to the newest record: that would skip calls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from fencepost_dispatch.kafka import client_log
from fencepost_worker.assignment import Assignment, Share
from fencepost_worker.lag import Lag
from fencepost_worker.limits import Limits, Room
from fencepost_worker.membership import REBALANCING, Faults, Protocol, consumer_config, is_member
from fencepost_worker.records import Health, Oldest, Record

__all__ = ["Health", "Limits", "Oldest", "PollThread", "Protocol", "Record", "consumer_config"]

log = client_log(__name__)

Headers = list[tuple[str, bytes | None]] | None
# With a header name that is not UTF-8, confluent-kafka answers with a null pointer in the list *and* an exception.
# Called through C it becomes the exception; a call from Python's own hot code does not look, and the process crashes.
_read_headers: Callable[[Message], Headers] = methodcaller("headers")

TICK = 0.1  # seconds between stores, and the longest wait for a record: completions are noticed at least this often
NAP = 0.005  # seconds between looks at the completions while the limits are reached
PATIENCE = 0.25  # seconds at the limits before partitions are paused: pausing throws the prefetch away


class PollThread(threading.Thread):
    """Owns the Consumer of one topic from start to close.

    `deliver` gets a non-empty list of records, `revoking` the partitions of which nothing may start any more (revoked
    or lost), `on_fatal` the reason when the thread ends by itself. All three are called in this thread and must not
    block.

    Args:
        config: librdkafka settings with `bootstrap.servers` and `group.id`.
        drain_seconds: how long a revocation waits for the partition's records in flight.
        protocol: `consumer` is KIP-848 and needs Kafka 4.0 or newer.

    Raises:
        ValueError: for a setting that is not allowed (see `consumer_config`).
        KafkaException: for a setting that librdkafka does not know.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        deliver: Callable[[list[Record]], None],
        on_fatal: Callable[[BaseException], None],
        *,
        revoking: Callable[[list[int]], None] = lambda partitions: None,  # noqa: ARG005
        drain_seconds: float = 25.0,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        protocol: Protocol = "classic",
    ) -> None:
        super().__init__(name="fencepost-poll", daemon=True)  # daemon: a close that hangs must not hold the process
        self._topic = topic
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._revoking = revoking
        self._drain_seconds = drain_seconds
        self._room = Room(limits)
        self._assignment = Assignment()
        self._lag = Lag(topic)
        self._finished: deque[Sequence[Record]] = deque()
        self._left: deque[Record] = deque()
        self._paused: set[int] = set()  # resuming what is not paused delivers twice, so this is kept here
        self._held = False  # everything is paused
        self._full_since: float | None = None
        self._taking = True
        self._stopping = False
        self._storing = True
        self._assigned = threading.Event()
        self._turned = time.monotonic()
        self._tick_at = 0.0
        self._oldest: tuple[float, int, int] | None = None
        self._faults = Faults()
        settings = consumer_config(config, protocol, drain_seconds)
        settings |= {"error_cb": self._faults.note, "on_commit": self._on_commit, "stats_cb": self._on_statistics}
        self._consumer = Consumer(settings, logger=log)

    # From other threads

    def done(self, records: Record | Sequence[Record]) -> None:
        """These need nothing more: their outcome is delivered. Completions of an ended epoch are dropped."""
        self._finished.append((records,) if isinstance(records, Record) else records)

    def current(self, record: Record) -> bool:
        """Ask right before starting a record. False: its partition has gone or is going, and it must not start; nothing
        more has to be said about it, and a revocation no longer waits for it.
        """
        if self._assignment.current(record):
            return True
        self._left.append(record)
        return False

    def stop_taking(self) -> None:
        """Takes no more records; polling, completions and commits go on."""
        self._taking = False

    def stop(self, timeout: float = 10.0) -> bool:
        """Stores, commits and closes, without waiting for records in flight.

        Returns False when that took longer than `timeout` seconds (the broker is gone): the process may end all the
        same, since what was not committed is delivered again and answered from the ledger.
        """
        self._stopping = True
        if self.ident is None:
            self._consumer.close()
            return True
        self.join(timeout)
        if self.is_alive():
            log.error("the consumer did not close within %.1f s; its last offsets may not be committed", timeout)
        return not self.is_alive()

    def wait_assigned(self, timeout: float | None = None) -> bool:
        """Waits for the group's first assignment, in seconds. An empty one counts: there may be more workers than
        partitions (with the `consumer` protocol that takes some seconds to be noticed).
        """
        return self._assigned.wait(timeout)

    def health(self) -> Health:
        """What is known right now; never waits."""
        now = time.monotonic()
        oldest = self._oldest
        return Health(
            turn_seconds=now - self._turned,
            partitions=tuple(sorted(self._assignment.partitions)),
            assigned=self._assigned.is_set(),
            in_flight=self._assignment.records,
            in_flight_bytes=self._assignment.size,
            paused=self._held,
            auth_error=self._faults.access,
            error=self._faults.other,
            oldest=oldest and Oldest(self._topic, oldest[1], oldest[2], now - oldest[0]),
            lag=self._lag.records,
        )

    # The thread

    def run(self) -> None:
        try:
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping:
                self._turn()
            self._settle()
            self._store(self._assignment.shares())
            self._consumer.close()  # commits what is stored
        except BaseException as reason:  # noqa: BLE001 - whatever it is, the process has to end with it
            self._storing = False  # what `consume` has counted may never have been handed over
            self._on_fatal(reason)
            self._stopping = True
            self._consumer.close()  # so that the group need not wait for us

    def _turn(self) -> None:
        self._turned = now = time.monotonic()
        self._faults.raise_fatal()
        self._settle()
        if now >= self._tick_at:
            self._tick(now)
        if messages := self._take(now):
            self._hand_over(messages, now)

    def _settle(self) -> None:
        done, finished = self._assignment.done, self._finished
        while finished:
            for record in finished.popleft():
                done(record)
        while self._left:
            self._assignment.leave(self._left.popleft())

    def _tick(self, now: float) -> None:
        self._tick_at = now + TICK
        self._store(self._assignment.shares())
        self._pause_or_resume()
        self._oldest = self._assignment.oldest()
        self._lag.look(self._consumer, self._assignment.shares(), now)

    # Taking records, within the limits

    def _take(self, now: float) -> list[Message]:
        flying = self._assignment
        if self._held:
            if self._taking and self._room.may_resume(flying.records, flying.size):
                self._hold(False)
            return self._consumer.consume(1, NAP * 4)  # serves the group, and calls of hours do no harm
        if self._taking and (room := self._room.free(flying.records, flying.size)):
            self._full_since = None
            return self._consume(room)
        self._full_since = self._full_since or now
        if self._taking and now - self._full_since < PATIENCE:
            time.sleep(NAP)
        else:
            self._hold(True)
        return []

    def _consume(self, room: int) -> list[Message]:
        # `consume(n, timeout)` waits for n records or the whole timeout: only ever wait for one. And never call the
        # client with a record in hand: a revocation served in between would store a position that is past it.
        return self._consumer.consume(room, 0) or self._consumer.consume(1, TICK)

    def _hold(self, held: bool) -> None:
        self._held = held
        self._full_since = None
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Brings the client's paused partitions in line with what is held and with the spans."""
        owned = self._assignment.partitions
        want = owned if self._held else {one.partition for one in self._assignment.shares() if self._too_wide(one)}
        if pause := want - self._paused:
            self._consumer.pause(self._named(pause))
        if resume := (self._paused - want) & owned:
            self._consumer.resume(self._named(resume))
        self._paused = set(want)

    def _too_wide(self, share: Share) -> bool:
        return self._room.too_wide(share.tracker.span, share.partition in self._paused)

    def _hand_over(self, messages: list[Message], now: float) -> None:
        records: list[Record] = []
        for message in messages:
            if (error := message.error()) is not None:
                self._on_partition_error(message, error)
            elif (record := self._record(message)) is not None:
                self._assignment.delivered(record, now)
                records.append(record)
        if records:
            self._faults.over()
            self._room.learn(records)
            self._deliver(records)

    def _record(self, message: Message) -> Record | None:
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or (epoch := self._assignment.epoch(partition)) is None:
            return None  # `consume` hands out what was fetched before the partition went
        key, value = message.key(), message.value()
        headers = self._headers(message)
        size = (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            for name, content in headers:
                size += len(name) + (len(content) if content else 0)
        kind, timestamp = message.timestamp()
        return Record(self._topic, partition, offset, epoch, key, value, headers, timestamp if kind else None, size)

    def _headers(self, message: Message) -> Headers:
        try:
            return _read_headers(message)
        except (SystemError, UnicodeError):
            where = f"{self._topic}/{message.partition()}/{message.offset()}"
            log.warning("the headers of %s are not readable: a name is not UTF-8", where)
            return None

    # Offsets

    def _store(self, shares: Iterable[Share]) -> None:
        shares = list(shares)
        idle = [share.partition for share in shares if not len(share.tracker)]
        positions = {at.partition: at.offset for at in self._consumer.position(self._named(idle))} if idle else {}
        fresh: list[TopicPartition] = []
        for share in shares:
            position = positions.get(share.partition, -1)
            mark = share.tracker.watermark(position if position >= 0 else None)
            if mark is not None and mark != share.stored:
                share.stored = mark
                fresh.append(TopicPartition(self._topic, share.partition, mark))
        if fresh and self._storing:
            self._store_offsets(fresh)

    def _store_offsets(self, fresh: list[TopicPartition]) -> None:
        try:
            self._consumer.store_offsets(offsets=fresh)
        except KafkaException as refused:
            log.info("offsets of partitions that have gone are not stored: %s", refused)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        faults = [error] if error is not None else [at.error for at in partitions if at.error is not None]
        if not faults:
            self._faults.over()
        for fault in faults:
            if fault.code() in REBALANCING:
                log.info("a commit came too late, the records will be delivered again: %s", fault.str())
            else:
                self._faults.note(fault)
                log.warning("a commit was refused: %s", fault.str())

    # The group

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("assigned: %s", _numbers(partitions))
        self._assignment.begin(_numbers(partitions))
        consumer.incremental_assign(partitions)
        self._pause_or_resume()
        self._faults.over()
        self._assigned.set()

    def _on_statistics(self, statistics: str) -> None:
        if not self._assigned.is_set() and is_member(statistics):
            self._assigned.set()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = _numbers(partitions)
        log.info("revoked: %s", numbers)
        self._assignment.closing(numbers)
        self._revoking(numbers)
        if not self._stopping and not self._drain(numbers):
            log.warning("partitions %s are given up with calls in flight: the next owner finds them leased", numbers)
        self._settle()
        self._store(self._assignment.shares(numbers))
        self._give_up(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = _numbers(partitions)
        log.warning("lost: %s", numbers)
        self._assignment.closing(numbers)
        self._revoking(numbers)
        self._give_up(consumer, partitions)

    def _drain(self, numbers: list[int]) -> bool:
        until = time.monotonic() + self._drain_seconds
        while True:
            self._turned = time.monotonic()
            self._settle()
            if self._assignment.awaited(numbers) == 0:
                return True
            if self._stopping or self._turned >= until:
                return False
            time.sleep(NAP)

    def _give_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = set(_numbers(partitions))
        if stuck := numbers & self._paused:
            consumer.resume(self._named(stuck))  # librdkafka would bring the partition back paused
        self._paused -= numbers
        self._assignment.end(numbers)
        consumer.incremental_unassign(partitions)

    def _from_the_oldest(self, partition: int, reason: KafkaError) -> None:
        """Starts a partition that has no usable commit at its oldest record."""
        level = logging.INFO if KafkaError(KafkaError._NO_OFFSET).str() in reason.str() else logging.WARNING  # noqa: SLF001
        log.log(level, "partition %d starts at its oldest record: %s", partition, reason.str())
        at = [TopicPartition(self._topic, partition, OFFSET_BEGINNING)]
        self._give_up(self._consumer, at)
        self._assignment.begin([partition])
        self._consumer.incremental_assign(at)
        self._pause_or_resume()

    # Errors

    def _on_partition_error(self, message: Message, error: KafkaError) -> None:
        partition = message.partition()
        if error.code() == KafkaError._AUTO_OFFSET_RESET and partition is not None:  # noqa: SLF001
            if self._assignment.epoch(partition) is not None:
                self._from_the_oldest(partition, error)
        elif error.code() in REBALANCING:
            log.warning("the group has moved on without us: %s", error.str())
        else:
            log.warning("the broker answered: %s", error.str())
            self._faults.note(error)

    def _named(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in partitions]


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return [at.partition for at in partitions]
