"""The Kafka of a test: whichever there is, with the few things that tests ask of it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from fencepost_worker.embedded import EmbeddedBroker
from services import Unavailable, containers, distribution
from services.cluster import KafkaCluster, train


class Broker(Protocol):
    """``bootstrap`` names its addresses; ``real`` is False for the embedded one; ``name`` is for people."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def real(self) -> bool: ...
    @property
    def name(self) -> str: ...

    def new_topic(self, stem: str = "topic", partitions: int = 4, config: Mapping[str, str] | None = None) -> str:
        """Makes a topic under a name that no other test has, and returns the name."""


@dataclass(frozen=True, slots=True)
class Embedded:
    broker: EmbeddedBroker
    name: str = "embedded (librdkafka)"
    real: bool = False

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def new_topic(self, stem: str = "topic", partitions: int = 4, config: Mapping[str, str] | None = None) -> str:
        """``config`` is left aside: the embedded broker has no settings of topics."""
        name = unique(stem)
        self.broker.create_topic(name, partitions)
        return name


@dataclass(frozen=True, slots=True)
class Kafka:
    """Real Apache Kafka; ``cluster`` is set where its brokers are ours to kill."""

    name: str
    bootstrap: str
    admin: AdminClient
    copies: int
    cluster: KafkaCluster | None = None
    real: bool = True

    def new_topic(self, stem: str = "topic", partitions: int = 4, config: Mapping[str, str] | None = None) -> str:
        name = unique(stem)
        topic = NewTopic(name, partitions, self.copies, config=dict(config or {}))
        self.admin.create_topics([topic], operation_timeout=30)[name].result(timeout=30)
        for node in self.admin.list_topics(name, timeout=30).brokers.values():
            _until_known(f"{node.host}:{node.port}", name, partitions)
        return name


def _until_known(address: str, topic: str, partitions: int) -> None:
    """Waits for one broker to have heard of a topic: the controller has it a moment before them."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        # A new client asks the one address that it was given; a used one asks any broker of the cluster.
        client = AdminClient({"bootstrap.servers": address, "log_level": 0})
        parts = client.list_topics(topic, timeout=30).topics[topic].partitions.values()
        if len(parts) == partitions and all(part.leader >= 0 for part in parts):
            return
    raise TimeoutError(f"{address} does not know {topic}")


def unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:10]}"


def planned() -> str:
    """Which Kafka a run is going to use, said without starting anything."""
    if named := os.environ.get("FENCEPOST_TEST_KAFKA"):
        return f"Kafka at {named} (FENCEPOST_TEST_KAFKA)"
    if containers.daemon():
        return f"Apache Kafka, 1 broker ({containers.KAFKA_IMAGE} by testcontainers)"
    if distribution.obtainable():
        return f"Apache Kafka {distribution.version()}, {distribution.NODES} brokers (jars by Maven)"
    return "embedded (librdkafka)"


@contextmanager
def embedded_broker() -> Iterator[Embedded]:
    with EmbeddedBroker(3) as broker:
        yield Embedded(broker)


@contextmanager
def real_kafka() -> Iterator[Kafka]:
    """Real Kafka, from the first source that has it. Raises `Unavailable` with the reason when none has."""
    if named := os.environ.get("FENCEPOST_TEST_KAFKA"):
        yield _reached(planned(), named)
    elif containers.daemon():
        with containers.kafka() as bootstrap:
            yield _reached(planned(), bootstrap)
    elif distribution.obtainable():
        with KafkaCluster(distribution.prepare(train), distribution.NODES) as cluster:
            yield Kafka(planned(), cluster.bootstrap, cluster.admin(), cluster.copies, cluster)
    else:
        raise Unavailable("needs real Kafka: set FENCEPOST_TEST_KAFKA, or have Docker, or java and mvn")


def _reached(name: str, bootstrap: str) -> Kafka:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return Kafka(name, bootstrap, admin, copies=min(3, len(admin.list_topics(timeout=30).brokers)))
