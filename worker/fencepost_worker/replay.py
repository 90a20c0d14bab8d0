"""A dispatch that was delivered before, produced once more as it was: what a release with `--replay` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fencepost_dispatch.kafka import (
    CONNECT_SECONDS,
    END_OF_PARTITION,
    KafkaUnavailable,
    MissingTopic,
    Troubles,
    new_consumer,
    new_producer,
    partitions,
)
from fencepost_dispatch.settings import Settings
from fencepost_ledger import CallRow, Source
from fencepost_schemas import Dispatch, Headers, Poison, decode

READ_SECONDS = 10.0
DELIVERY_SECONDS = 30.0
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, END_OF_PARTITION)  # noqa: SLF001

# Through C, as in `consumer.py`: names that are not UTF-8 make the method fail in a way that Python sees only so.
_read_headers: Callable[[Message], Headers] = methodcaller("headers")


class NotReplayed(KafkaUnavailable):
    """The call is released, and the brokers did not confirm its event."""


@dataclass(frozen=True, slots=True)
class Original:
    """A record of a dispatch as it lies at `source`; `deadline` is the event's."""

    source: Source
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    deadline: datetime | None

    @property
    def late(self) -> bool:
        """Past its deadline: it would only be answered `expired`."""
        return self.deadline is not None and self.deadline < datetime.now(UTC)


def original(settings: Settings, row: CallRow, source: Source) -> Original | None:
    """The record of the row's event, or None when it is there no more (deleted, or the topic was made anew).

    Raises:
        KafkaUnavailable
    """
    troubles = Troubles(settings)
    properties: dict[str, Any] = {
        "group_id": f"{settings.group_id}-replay",  # must be there; nothing is committed
        "enable_auto_commit": False,
        "enable_partition_eof": True,
        "auto_offset_reset": "error",
        "fetch_wait_max_ms": 100,
    }
    with closing(new_consumer(settings, troubles, **properties)) as consumer:
        try:
            if source.partition not in partitions(consumer, source.topic, troubles, CONNECT_SECONDS):
                return None
        except MissingTopic:
            return None
        message = _read(consumer, source, troubles)
    return None if message is None else _of(row, source, message)


def produce_again(settings: Settings, record: Original) -> None:
    """Produce it to where it was; returns once all in-sync replicas have it.

    Raises:
        NotReplayed
    """
    troubles = Troubles(settings)
    size = len(record.value or b"") + 65_536  # the brokers took it once
    properties = {"delivery_timeout_ms": int(DELIVERY_SECONDS * 1000), "message_max_bytes": max(1_000_000, size)}
    producer = new_producer(settings, troubles, **properties)
    reports: list[KafkaError | None] = []
    try:
        producer.produce(
            record.source.topic,
            record.value,
            record.key,
            record.source.partition,
            on_delivery=lambda error, _: reports.append(error),
            headers=record.headers,
        )
        producer.flush(DELIVERY_SECONDS + 5)
    except KafkaException as error:
        reports = [error.args[0]]
    if reports != [None]:
        reason = troubles.explain(reports[0]) if reports and reports[0] is not None else "no answer"
        raise NotReplayed(f"the release holds, but its event is not dispatched again ({reason}): run the command again")


def _read(consumer: Consumer, source: Source, troubles: Troubles) -> Message | None:
    consumer.assign([TopicPartition(source.topic, source.partition, source.offset)])
    until = time.monotonic() + READ_SECONDS
    while time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            return message
        if error.code() in _GONE:
            return None
        raise KafkaUnavailable(troubles.explain(error))
    raise KafkaUnavailable(f"{source.topic} does not answer within {READ_SECONDS:g} s: see `fencepost doctor`")


def _of(row: CallRow, source: Source, message: Message) -> Original | None:
    """The record, if it is that event and not another one: the topic may have been made anew, or compacted."""
    try:
        headers = _read_headers(message)
    except (SystemError, UnicodeError):
        headers = None
    try:
        event = decode(message.value(), headers).event
    except Poison:
        return None
    if (event.execution_id, event.event_id) != (row.execution_id, row.event_id) or not isinstance(event, Dispatch):
        return None
    return Original(source, message.key(), message.value(), list(headers or ()), event.deadline)
