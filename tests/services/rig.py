"""A worker with everything around it, seen from outside: plain JSON in, plain JSON out."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from fencepost_dispatch import Registry, Tool
from fencepost_dispatch.settings import Settings
from fencepost_ledger import Desk
from fencepost_worker.worker import Worker
from services.brokers import Broker

PATIENCE = 30.0  # seconds; a bound for what never comes, not a time to wait


class Rig:
    """Topics, a database and an open execution; workers on demand."""

    def __init__(self, broker: Broker, topics: Any, database: str, org: str = "acme") -> None:
        self.bootstrap, self.topics, self.database = broker.bootstrap, topics, database
        # The embedded broker never lets a second member into a classic group that its last member has left (seen).
        self.protocol = "classic" if broker.real else "consumer"
        self.group = f"group-{uuid.uuid4().hex[:10]}"
        self.execution = f"exec-{uuid.uuid4().hex[:10]}"
        self.desk = Desk(database)
        self.desk.open_execution(self.execution, org)
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        self._readers: dict[str, Reader] = {}
        self._events = 0

    def settings(self, **overrides: Any) -> Settings:
        fields = {
            "kafka_bootstrap": self.bootstrap,
            "ledger_dsn": self.database,
            "group_id": self.group,
            "group_protocol": self.protocol,
            "dispatch_topic": self.topics.dispatch,
            "outcome_topic": self.topics.outcome,
            "dead_letter_topic": self.topics.dead_letter,
            "concurrency": 16,
            "lease_seconds": 2,
            "drain_seconds": 10,
            "metrics_port": 0,
        }
        return Settings(**(fields | overrides))

    @asynccontextmanager
    async def worker(self, *tools: Tool[..., Any], **overrides: Any) -> AsyncIterator[Worker]:
        """A worker in this loop; at the end it is stopped, and must have drained unless the test stopped it itself."""
        registry = Registry(strict=False)
        for tool in tools:
            registry.add(tool)
        worker = Worker(self.settings(**overrides), registry)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            self.exit_code = await asyncio.wait_for(running, PATIENCE)

    def event(self, **fields: Any) -> dict[str, Any]:
        """A dispatch as a stranger would write it."""
        self._events += 1
        event = {
            "event_id": f"{self.execution}-{self._events}",
            "execution_id": self.execution,
            "node_id": "node",
            "call_index": self._events,
            "generation": 1,
            "tool": "desk.create",
            "arguments": {},
        }
        return event | fields

    def produce(self, *values: dict[str, Any] | bytes | None, partition: int | None = None, **more: Any) -> None:
        """Write records and wait until the broker has them."""
        where = {} if partition is None else {"partition": partition}
        for value in values:
            text = json.dumps(value).encode() if isinstance(value, dict) else value
            key = value["execution_id"].encode() if isinstance(value, dict) else None
            self._producer.produce(self.topics.dispatch, text, key, **where, **more)
        assert self._producer.flush(PATIENCE) == 0

    async def outcomes(self, count: int) -> list[dict[str, Any]]:
        """The next `count` outcomes."""
        return [json.loads(m.value()) for m in await self._read(self.topics.outcome, count)]

    async def dead_letters(self, count: int) -> list[Message]:
        return await self._read(self.topics.dead_letter, count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition of the outside world that has no signal of its own."""
        end = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < end, "it never came true"
            await asyncio.sleep(0.02)

    async def _read(self, topic: str, count: int) -> list[Message]:
        reader = self._readers.setdefault(topic, Reader(self.bootstrap, topic))
        return await asyncio.to_thread(reader.next, count)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._producer.close()
        self.desk.close()


class Reader:
    """Reads a topic from its beginning, all partitions, without a group's commits."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._client = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{uuid.uuid4().hex}",
                "log_level": 2,
                "enable.auto.commit": False,
            }
        )
        partitions = self._client.list_topics(topic, timeout=20).topics[topic].partitions
        self._client.assign([TopicPartition(topic, partition, 0) for partition in partitions])

    def next(self, count: int, seconds: float = PATIENCE) -> list[Message]:
        found: list[Message] = []
        end = time.monotonic() + seconds
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} records came"
            message = self._client.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
        return found

    def close(self) -> None:
        self._client.close()
