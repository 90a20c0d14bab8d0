"""A worker of a few lines, so that dispatchers and subscribers can be tested without the real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from fencepost_dispatch.settings import Settings
from fencepost_schemas import Decoded, Dispatch, Outcome, Status, decode, encode_outcome, outcome_id


def outcome_of(event: Dispatch, status: Status = Status.succeeded, **fields: Any) -> Outcome:
    return Outcome.model_validate(
        {
            "outcome_id": outcome_id(event.execution_id, event.event_id, status),
            "status": status,
            "event_id": event.event_id,
            "execution_id": event.execution_id,
            "node_id": event.node_id,
            "call_index": event.call_index,
            "generation": event.generation,
            "tool": event.tool,
            "result": event.arguments,
            **fields,
        }
    )


def succeed(event: Dispatch) -> Iterable[Outcome]:
    return [outcome_of(event)]


class FakeWorker(threading.Thread):
    """Answers every dispatch of the topic by `answer`; keeps the records and what they decode to."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self.answer: Callable[[Dispatch], Iterable[Outcome]] = succeed
        self.records: list[Message] = []
        self.seen: list[Decoded] = []
        self.heard = threading.Condition()
        self._settings = settings
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": settings.kafka_bootstrap, "linger.ms": 0})

    def publish(self, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            record = encode_outcome(outcome)
            headers: list[tuple[str, str | bytes | None]] = list(record.headers)
            self._producer.produce(self._settings.outcome_topic, record.value, record.key, headers=headers)
        assert self._producer.flush(20) == 0

    def publish_raw(self, value: bytes | None, key: bytes | None = None) -> None:
        self._producer.produce(self._settings.outcome_topic, value, key)
        assert self._producer.flush(20) == 0

    def wait(self, count: int) -> list[Decoded]:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.seen) >= count, 30)
        return self.seen

    def headers(self, number: int) -> dict[str, bytes]:
        found = self.records[number].headers()
        assert isinstance(found, list)
        return {name: value for name, value in found if isinstance(value, bytes)}

    def run(self) -> None:
        brokers = self._settings.kafka_bootstrap
        consumer = Consumer({"bootstrap.servers": brokers, "group.id": "fake", "fetch.wait.max.ms": 20})
        topic = self._settings.dispatch_topic
        found = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found])
        while not self._stopping.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._handle(message)
        consumer.close()

    def _handle(self, message: Message) -> None:
        decoded = decode(message.value(), message.headers())  # type: ignore[arg-type]
        with self.heard:
            self.records.append(message)
            self.seen.append(decoded)
            self.heard.notify_all()
        if isinstance(decoded.event, Dispatch):
            self.publish(*self.answer(decoded.event))

    def stop(self) -> None:
        self._stopping.set()
        self.join(20)


@contextmanager
def fake_worker(settings: Settings) -> Iterator[FakeWorker]:
    """One that runs."""
    worker = FakeWorker(settings)
    worker.start()
    yield worker
    worker.stop()
