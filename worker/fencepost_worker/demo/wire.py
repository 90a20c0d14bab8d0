"""A plain Kafka client with JSON, as any language could have it: sends dispatches, counts what comes back."""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

DISPATCH, OUTCOME, DEAD_LETTER = "tool.dispatch", "tool.outcome", "tool.dead-letter"
FETCH_WAIT_MILLISECONDS = 20  # the embedded broker sleeps through all of it


class Stuck(Exception):
    """Something that was waited for did not come; the text says what."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One record of the outcome topic, as far as it is counted."""

    status: str
    org: str | None
    worker: str | None
    key: str | None
    replayed: bool

    @property
    def pid(self) -> int:
        """The process that answered; 0 when the outcome does not say."""
        return int(self.worker.rsplit(":", 2)[1]) if self.worker else 0


class Wire(threading.Thread):
    """`answers` by event id and the places of the `dead` records grow while the thread reads; `wait` for them."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="demo-wire", daemon=True)
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.dead: set[tuple[str, ...]] = set()
        self._changed = threading.Condition()
        self._leaving = False
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"demo-{uuid.uuid4()}",  # librdkafka wants one; nothing is ever committed to it
                "enable.auto.commit": False,
                "fetch.wait.max.ms": FETCH_WAIT_MILLISECONDS,
                "log_level": 0,
            }
        )

    def send(self, value: dict[str, Any] | bytes, partition: int) -> None:
        """Queue one record; `flush` sees it off."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        key = None if isinstance(value, bytes) else str(value["execution_id"]).encode()
        self._producer.produce(DISPATCH, body, key, partition=partition)

    def flush(self) -> None:
        """Raises Stuck."""
        if self._producer.flush(20):
            raise Stuck("the broker did not take the events")

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait until `condition`, asked again after each record that came, is true. Raises Stuck."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise Stuck(f"waited {seconds:g} s for {what}")

    def close(self) -> None:
        """Read both topics to their ends, and leave."""
        self._leaving = True
        self.join(20)

    def run(self) -> None:
        known = self._consumer.list_topics(timeout=10).topics
        places = [
            TopicPartition(topic, number, 0) for topic in (OUTCOME, DEAD_LETTER) for number in known[topic].partitions
        ]
        self._consumer.assign(places)
        while not (self._leaving and self._at_end(places)):
            first = self._consumer.poll(0.1)
            if first is not None:
                self._take([first, *self._consumer.consume(500, 0)])
        self._consumer.close()

    def _at_end(self, places: list[TopicPartition]) -> bool:
        read = {(at.topic, at.partition): max(at.offset, 0) for at in self._consumer.position(places)}
        ends = {(at.topic, at.partition): self._consumer.get_watermark_offsets(at, timeout=10)[1] for at in places}
        return all(read[place] >= end for place, end in ends.items())

    def _take(self, messages: list[Message]) -> None:
        with self._changed:
            for message in messages:
                if message.error() is None:
                    self._note(message)
            self._changed.notify_all()

    def _note(self, message: Message) -> None:
        if message.topic() == DEAD_LETTER:
            headers = dict(message.headers() or ())
            names = ("topic", "partition", "offset")
            self.dead.add(tuple(str(headers.get(f"fencepost.source.{name}")) for name in names))
            return
        outcome = json.loads(message.value() or b"{}")
        fields = ("status", "org_id", "worker", "invocation_key", "replayed")
        self.answers[outcome["event_id"]].append(Answer(*(outcome[name] for name in fields)))
