"""The outcome topic as it arrives: one thread makes every call of one consumer and hands outcomes onto the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from fencepost_dispatch.handover import Handover
from fencepost_dispatch.kafka import (
    CONNECT_SECONDS,
    END_OF_PARTITION,
    KafkaUnavailable,
    MissingTopic,
    Troubles,
    new_consumer,
    partitions,
)
from fencepost_dispatch.settings import Settings, SettingsError
from fencepost_schemas import Headers, Outcome, Poison, decode_outcome

BATCH = 500
POLL_SECONDS = 0.1
REFRESH_SECONDS = 5.0  # how soon a partition that was added is noticed; it is read from its beginning
CLOSE_SECONDS = 10.0
FULL_SECONDS = 0.01  # between two looks at whether the readers have caught up
PREFETCH_KBYTES = 16_384
# A real broker answers a fetch as soon as there is something; the embedded one sleeps through all of this.
FETCH_WAIT_MILLISECONDS = 100

_log = logging.getLogger("fencepost.outcomes")


@dataclass(frozen=True, slots=True)
class Received:
    """One record of the outcome topic; without an outcome when it could not be decoded."""

    outcome: Outcome | None
    partition: int
    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The feed is over: at the end of the topic, as asked, or for a reason."""

    reason: Exception | None


Item = Received | Ended


# Through C on purpose: for a header name that is not UTF-8 the method answers with a null pointer *and* an exception,
# and a call from Python's own hot code sees the pointer first.
_read_headers: Callable[[Message], Headers] = methodcaller("headers")


def _headers(message: Message) -> Headers:
    try:
        return _read_headers(message)
    except (SystemError, UnicodeError):
        return None


def _everything(_: bytes | None) -> bool:
    return True


class Feed(threading.Thread):
    """Every partition of the outcome topic, without a consumer group.

    `receive` gets batches on the loop, each partition in order. `wanted` is asked for a record's key before the record
    is decoded, in the thread. With `most`, no more than about that many records are handed over and not yet `taken`.
    """

    def __init__(
        self,
        settings: Settings,
        receive: Callable[[list[Item]], None],
        *,
        from_beginning: bool = False,
        follow: bool = True,
        wanted: Callable[[bytes | None], bool] = _everything,
        most: int | None = None,
    ) -> None:
        super().__init__(name="fencepost-outcomes", daemon=True)
        loop = asyncio.get_running_loop()
        self.undecodable = 0
        self._settings = settings
        self._topic = settings.outcome_topic
        self._from_beginning = from_beginning
        self._follow = follow
        self._wanted = wanted
        self._most = most
        self._troubles = Troubles(settings)
        self._handover: Handover[Item] = Handover(loop, receive)
        self._positioned: Handover[None] = Handover(loop, lambda _: self._ready.set())
        self._ready = asyncio.Event()
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._taken: deque[Received] = deque()
        self._outstanding = 0
        self._ends: dict[int, int] = {}
        self._epochs: dict[int, int] = {}  # of the partitions we read; a partition that comes back has a new epoch
        self._refreshed = 0.0

    async def open(self) -> None:
        """Start, and return when every record produced from now on will be seen.

        Raises:
            KafkaUnavailable, MissingTopic, SettingsError
        """
        self.start()
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """End the thread and leave; waits 10 seconds at most, since closing may hang while no broker answers."""
        self._stopping.set()
        await asyncio.to_thread(self.join, CLOSE_SECONDS)
        if self.is_alive():
            _log.warning("the consumer of %s did not close within %s s", self._topic, CLOSE_SECONDS)

    def taken(self, record: Received) -> None:
        """The record is done with."""
        self._taken.append(record)

    def holds(self, record: Received) -> bool:
        """False once the record's partition has gone to somebody else, who will read it again."""
        return self._epochs.get(record.partition) == record.epoch

    def run(self) -> None:
        reason: Exception | None = None
        try:
            self._serve()
        except (KafkaUnavailable, MissingTopic, SettingsError) as error:
            reason = error
        except KafkaException as error:
            reason = KafkaUnavailable(self._troubles.explain(error.args[0]))
        except Exception as error:  # noqa: BLE001 - a thread that dies in silence would leave its readers waiting
            reason = error
        self._failure = reason
        self._handover.put(Ended(reason))
        self._positioned.put(None)

    def _serve(self) -> None:
        consumer = new_consumer(self._settings, self._troubles, **self._properties())
        try:
            self._position(consumer)
            self._positioned.put(None)
            while not self._stopping.is_set() and (self._follow or self._ends):
                self._turn(consumer)
            self._settle(consumer)
        finally:
            consumer.close()

    def _properties(self) -> dict[str, Any]:
        return {
            "group_id": f"{self._settings.group_id}-outcomes-{uuid.uuid4()}",  # must be there; nothing is committed
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "enable_partition_eof": not self._follow,
            "max_poll_interval_ms": 86_400_000,  # no group, no rebalance: a slow reader may take its time
            "queued_max_messages_kbytes": PREFETCH_KBYTES,
            "fetch_wait_max_ms": FETCH_WAIT_MILLISECONDS,
        }

    def _position(self, consumer: Consumer) -> None:
        found = partitions(consumer, self._topic, self._troubles, CONNECT_SECONDS)
        ends = consumer.offsets_for_times(self._at(found, OFFSET_END), timeout=CONNECT_SECONDS)
        if failed := next((end.error for end in ends if end.error), None):
            raise KafkaException(failed)
        self._ends = {} if self._follow else {end.partition: end.offset for end in ends if end.offset > 0}
        consumer.assign(self._at(found, OFFSET_BEGINNING) if self._from_beginning else ends)
        self._epochs = dict.fromkeys(found, 0)
        self._refreshed = time.monotonic()

    def _at(self, numbers: Iterable[int], offset: int) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number, offset) for number in numbers]

    def _turn(self, consumer: Consumer) -> None:
        self._settle(consumer)
        self._look_for_new(consumer)
        if self._held_back(consumer):
            return
        # The first record is handed on as soon as it is there: `consume(n)` alone would wait for n of them.
        first = consumer.poll(POLL_SECONDS)
        messages = [] if first is None else [first, *consumer.consume(BATCH, 0)]
        for message in messages:
            self._receive(message)

    def _receive(self, message: Message) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        if (error := message.error()) is not None:
            self._judge(error, partition)
            return
        epoch = self._epochs.get(partition)
        if epoch is not None and self._wanted(message.key()):
            self._outstanding += 1
            self._handover.put(Received(self._decoded(message), partition, offset, epoch))
        if offset + 1 >= self._ends.get(partition, offset + 2):
            del self._ends[partition]

    def _judge(self, error: KafkaError, partition: int) -> None:
        if error.code() == END_OF_PARTITION:
            self._ends.pop(partition, None)
        elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise KafkaException(error)
        else:
            _log.debug("%s[%s]: %s", self._topic, partition, error.str())  # librdkafka tries again by itself

    def _decoded(self, message: Message) -> Outcome | None:
        try:
            return decode_outcome(message.value(), _headers(message))
        except Poison as poison:
            self.undecodable += 1
            place = (self._topic, message.partition(), message.offset())
            _log.warning("no outcome at %s[%s]@%s: %s: %s", *place, poison.code, poison.message)
            return None

    def _settle(self, consumer: Consumer) -> None:
        """Take note of what the readers are done with."""
        done: dict[int, int] = {}
        while self._taken:
            record = self._taken.popleft()
            self._outstanding -= 1
            if self.holds(record):
                done[record.partition] = record.offset + 1
        if done:
            self._store(consumer, [TopicPartition(self._topic, number, offset) for number, offset in done.items()])

    def _store(self, consumer: Consumer, offsets: list[TopicPartition]) -> None:
        """Without a group there is nothing to remember."""

    def _held_back(self, consumer: Consumer) -> bool:  # noqa: ARG002
        """True while the readers have enough: librdkafka goes on fetching, up to its own bound."""
        if self._most is None or self._outstanding < self._most:
            return False
        self._stopping.wait(FULL_SECONDS)
        return True

    def _look_for_new(self, consumer: Consumer) -> None:
        if not self._follow or time.monotonic() - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = time.monotonic()
        try:
            found = set(consumer.list_topics(self._topic, timeout=POLL_SECONDS).topics[self._topic].partitions)
        except KafkaException:
            return  # asked again soon
        if added := found - self._epochs.keys():
            consumer.incremental_assign(self._at(added, OFFSET_BEGINNING))
            self._epochs |= dict.fromkeys(added, 0)


class GroupFeed(Feed):
    """The partitions of a member of a consumer group; commits what was `taken`, never more: at least once."""

    def __init__(self, settings: Settings, receive: Callable[[list[Item]], None], *, group_id: str, most: int) -> None:
        super().__init__(settings, receive, most=most)
        self._group_id = group_id
        self._assignments = 0
        self._paused: set[int] = set()  # our own account: resuming what is not paused would repeat records

    def _properties(self) -> dict[str, Any]:
        protocol = self._settings.group_protocol
        strategy = {"partition_assignment_strategy": "cooperative-sticky"} if protocol == "classic" else {}
        return {
            "group_id": self._group_id,
            "group_protocol": protocol,
            "enable_auto_commit": True,
            "enable_auto_offset_store": False,
            "auto_offset_reset": "earliest",  # a new group misses nothing, and retention never makes an old one jump
            "queued_max_messages_kbytes": PREFETCH_KBYTES,
            "fetch_wait_max_ms": FETCH_WAIT_MILLISECONDS,
            **strategy,
        }

    def _position(self, consumer: Consumer) -> None:
        partitions(consumer, self._topic, self._troubles, CONNECT_SECONDS)
        consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _assigned(self, _: Consumer, added: list[TopicPartition]) -> None:
        self._assignments += 1
        self._epochs |= {one.partition: self._assignments for one in added}

    def _revoked(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        self._settle(consumer)
        self._lost(consumer, gone)

    def _lost(self, _: Consumer, gone: list[TopicPartition]) -> None:
        for one in gone:
            self._epochs.pop(one.partition, None)
            self._paused.discard(one.partition)

    def _store(self, consumer: Consumer, offsets: list[TopicPartition]) -> None:
        try:
            consumer.store_offsets(offsets=offsets)
        except KafkaException as error:
            _log.info("offsets not stored, their outcomes come again: %s", error.args[0].str())

    def _look_for_new(self, consumer: Consumer) -> None:
        """The group notices new partitions by itself."""

    def _held_back(self, consumer: Consumer) -> bool:
        """Never: a member has to poll, so what it polls is paused instead."""
        most = self._most or 0
        if self._outstanding >= most:
            fresh = self._epochs.keys() - self._paused
            consumer.pause(self._at(fresh, OFFSET_END))
            self._paused |= fresh
        elif self._paused and self._outstanding <= most // 2:
            consumer.resume(self._at(self._paused, OFFSET_END))
            self._paused.clear()
        return False
