"""Plain clients for tests: writing, and looking at what a group has done."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

MOVED = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


def produce(bootstrap: str, topic: str, values: Sequence[bytes | None], partition: int = 0, **fields: Any) -> None:
    """Writes the values and waits until the broker has them."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for value in values:
        producer.produce(topic, value, partition=partition, **fields)
    assert producer.flush(20) == 0


def in_transactions(bootstrap: str, topic: str, *transactions: tuple[list[bytes], bool]) -> None:
    """Writes to partition 0; each transaction is its values and whether it is committed."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex, "log_level": 2}
    producer = Producer(settings)
    producer.init_transactions(20)
    for values, commit in transactions:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)


class Lookup:
    """A client of a group that never joins it: what is committed, and how far behind that is."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._client = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2})

    def committed(self, topic: str, partition: int = 0) -> int | None:
        until = time.monotonic() + 20
        while True:
            try:
                (at,) = self._client.committed([TopicPartition(topic, partition)], timeout=20)
                return at.offset if at.offset >= 0 else None
            except KafkaException as refused:
                # A coordinator that has moved is found again by the next request.
                if refused.args[0].code() not in MOVED or time.monotonic() > until:
                    raise

    def commit(self, topic: str, offset: int, partition: int = 0) -> None:
        self._client.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)

    def end(self, topic: str, partition: int = 0) -> int:
        return self._client.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1]

    def lag(self, topic: str, partition: int = 0) -> int:
        return self.end(topic, partition) - (self.committed(topic, partition) or 0)

    def read(self, topic: str, partition: int = 0) -> list[Any]:
        """Everything that is in a partition now."""
        self._client.assign([TopicPartition(topic, partition, 0)])
        end, found = self.end(topic, partition), []
        while self._client.position([TopicPartition(topic, partition)])[0].offset < end:
            found += self._client.consume(1, 1.0)
        self._client.unassign()
        return found

    def close(self) -> None:
        self._client.close()


def eventually(condition: Callable[[], Any], timeout: float = 15.0) -> Any:
    """For what sends no signal: asks again until the answer is true, and returns it; fails after `timeout` seconds."""
    until = time.monotonic() + timeout
    while not (answer := condition()):
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
    return answer
