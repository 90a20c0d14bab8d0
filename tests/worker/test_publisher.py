"""Records out: every one is delivered or answered, and none fails its neighbours."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost_worker.embedded import EmbeddedBroker
from fencepost_worker.publisher import Publisher, producer_config, size_of
from services.brokers import Broker, unique
from services.clients import Lookup, eventually


@dataclass
class Letter:
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


class Office:
    """A publisher with its answers in a queue."""

    def __init__(self, bootstrap: str, limits: dict[str, int] | None = None, **settings: Any) -> None:
        self.answers: queue.Queue[tuple[Any, KafkaError | None]] = queue.Queue()
        self.died: queue.Queue[BaseException] = queue.Queue()
        config = {"bootstrap.servers": bootstrap, "log_level": 2, **settings}
        self.publisher = Publisher(config, self._done, self.died.put, limits=limits)

    def _done(self, results: list[tuple[Any, KafkaError | None]]) -> None:
        for result in results:
            self.answers.put(result)

    def results(self, count: int) -> dict[Any, KafkaError | None]:
        found = dict(self.answers.get(timeout=20) for _ in range(count))
        assert len(found) == count, "a token was answered twice"
        return found


@pytest.fixture
def office() -> Iterator[Callable[..., Office]]:
    opened: list[Office] = []

    def new(bootstrap: str, *, start: bool = True, **options: Any) -> Office:
        opened.append(made := Office(bootstrap, **options))
        if start:
            made.publisher.start()
        return made

    yield new
    for one in opened:
        one.publisher.close()


NewOffice = Callable[..., Office]


def test_every_record_is_answered_once_when_it_is_delivered(broker: Broker, office: NewOffice, lookup: Lookup) -> None:
    topic = broker.new_topic(partitions=1)
    one = office(broker.bootstrap)
    for number in range(200):
        one.publisher.publish(Letter(b"%d" % number, b"key", [("h", b"\xff"), ("h", None)]), topic, number)
    assert one.results(200) == dict.fromkeys(range(200))
    found = lookup.read(topic)
    assert [message.value() for message in found] == [b"%d" % number for number in range(200)]
    assert found[0].headers() == [("h", b"\xff"), ("h", None)]


def test_key_and_value_may_be_null(broker: Broker, office: NewOffice, lookup: Lookup) -> None:
    topic = broker.new_topic(partitions=1)
    one = office(broker.bootstrap)
    one.publisher.publish(Letter(None), topic, "token")
    assert one.results(1) == {"token": None}
    (found,) = lookup.read(topic)
    assert (found.key(), found.value(), found.headers()) == (None, None, None)


def test_buffer_error_loses_nothing_and_keeps_the_order(broker: Broker, office: NewOffice, lookup: Lookup) -> None:
    topic = broker.new_topic(partitions=1)
    one = office(broker.bootstrap, **{"queue.buffering.max.messages": 10})
    for number in range(500):
        one.publisher.publish(Letter(b"%d" % number), topic, number)
    assert one.publisher._backlog, "the producer's queue was never full"
    assert one.results(500) == dict.fromkeys(range(500))
    assert [message.value() for message in lookup.read(topic)] == [b"%d" % number for number in range(500)]


def test_an_oversize_record_is_answered_alone(broker: Broker, office: NewOffice, lookup: Lookup) -> None:
    topic = broker.new_topic(partitions=1)
    one = office(broker.bootstrap)
    for token, size in (("before", 10), ("large", 1_100_000), ("after", 10)):
        one.publisher.publish(Letter(b"x" * size), topic, token)
    results = one.results(3)
    assert results["before"] is results["after"] is None
    refused = results["large"]
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert refused.str() == "the record has 1100128 bytes, the limit is 1048588"
    assert len(lookup.read(topic)) == 2


@pytest.mark.kafka
def test_a_limit_that_only_the_broker_knew_does_not_fail_the_neighbours(
    broker: Broker, office: NewOffice, lookup: Lookup
) -> None:
    topic = broker.new_topic(partitions=1, config={"max.message.bytes": "2000"})
    one = office(broker.bootstrap, **{"compression.type": "none", "linger.ms": 200})
    for token, size in ((1, 900), (2, 5_000), (3, 900), (4, 900)):
        one.publisher.publish(Letter(b"x" * size), topic, token)
    results = one.results(4)
    assert [token for token, error in results.items() if error is not None] == [2]
    assert sorted(len(message.value()) for message in lookup.read(topic)) == [900, 900, 900]


@pytest.mark.kafka
def test_a_topic_of_larger_records_takes_them(broker: Broker, office: NewOffice, lookup: Lookup) -> None:
    topic = broker.new_topic(partitions=1, config={"max.message.bytes": "4000000"})
    one = office(broker.bootstrap, limits={topic: 4_000_000})
    one.publisher.publish(Letter(b"x" * 3_900_000), topic, 1)
    assert one.results(1) == {1: None}


def test_what_times_out_is_produced_again_until_the_broker_is_back(office: NewOffice) -> None:
    with EmbeddedBroker() as broker:
        topic = unique("outcomes")
        broker.create_topic(topic)
        one = office(broker.bootstrap, **{"message.timeout.ms": 400, "reconnect.backoff.max.ms": 200})
        broker.stop_node(1)
        one.publisher.publish(Letter(b"v"), topic, "token")
        eventually(lambda: one.publisher._retries >= 2)
        assert one.answers.empty()
        assert one.publisher.health().pending == 1
        assert one.publisher.health().error is not None
        broker.start_node(1)
        assert one.results(1) == {"token": None}
        assert one.publisher.flush(10) == 0
        assert one.publisher.health().error is None


@pytest.mark.kafka
def test_a_topic_that_is_missing_is_waited_for(broker: Broker, office: NewOffice) -> None:
    one = office(broker.bootstrap, **{"message.timeout.ms": 300, "topic.metadata.refresh.interval.ms": 500})
    topic = unique("made-too-late")
    one.publisher.publish(Letter(b"v"), topic, "token")
    eventually(
        lambda: one.publisher.health().error or not one.answers.empty()
    )  # some brokers make topics by themselves
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with suppress(KafkaException):
        admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    assert one.results(1) == {"token": None}


def test_flush_and_close_say_what_is_left() -> None:
    with EmbeddedBroker() as broker:
        one = Office(broker.bootstrap)
        one.publisher.start()
        broker.stop_node(1)
        one.publisher.publish(Letter(b"v"), "topic", "token")
        assert one.publisher.flush(0.1) == 1
        began = time.monotonic()
        assert one.publisher.close() == 1
        assert time.monotonic() - began < 3
        assert not one.publisher.is_alive()
        assert one.answers.empty()


def test_close_hands_over_what_was_delivered(broker: Broker) -> None:
    topic = broker.new_topic(partitions=1)
    one = Office(broker.bootstrap)
    one.publisher.start()
    one.publisher.publish(Letter(b"v"), topic, "token")
    assert one.publisher.flush(20) == 0
    assert one.results(1) == {"token": None}
    assert one.publisher.close() == 0


def test_publishing_from_many_threads_answers_each(broker: Broker, office: NewOffice) -> None:
    topic = broker.new_topic()
    one = office(broker.bootstrap, **{"queue.buffering.max.messages": 20})

    def publish(first: int) -> None:
        for number in range(first, first + 100):
            one.publisher.publish(Letter(b"v"), topic, number)

    threads = [threading.Thread(target=publish, args=(start,)) for start in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    assert one.results(400) == dict.fromkeys(range(400))


def test_an_error_in_the_answer_ends_the_publisher_with_its_reason(broker: Broker) -> None:
    died: queue.Queue[BaseException] = queue.Queue()
    reason = RuntimeError("the event loop is closed")

    def raising(results: object) -> None:
        raise reason

    publisher = Publisher({"bootstrap.servers": broker.bootstrap, "log_level": 2}, raising, died.put)
    publisher.start()
    publisher.publish(Letter(b"v"), broker.new_topic(), "token")
    assert died.get(timeout=20) is reason
    publisher.join(20)
    assert not publisher.is_alive()


def test_a_fatal_error_ends_the_publisher_with_its_reason(broker: Broker, office: NewOffice) -> None:
    one = office(broker.bootstrap)
    one.publisher._faults.note(KafkaError(KafkaError._FATAL, "fenced", fatal=True))
    assert "fenced" in str(one.died.get(timeout=20))


def test_refused_access_shows_in_health_until_a_record_is_delivered(broker: Broker, office: NewOffice) -> None:
    one = office(broker.bootstrap)
    one.publisher._faults.note(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no access"))
    assert one.publisher.health().auth_error == "no access"
    one.publisher.publish(Letter(b"v"), broker.new_topic(), "token")
    one.results(1)
    assert one.publisher.health().auth_error is None


def test_the_size_of_a_record_counts_everything_in_it() -> None:
    assert size_of(Letter(b"12345", b"123", [("é", b"12"), ("n", None)])) == 128 + 5 + 3 + (2 + 2 + 10) + (1 + 10)


@pytest.mark.parametrize("name, value", [("acks", "1"), ("enable.idempotence", False)])
def test_weaker_delivery_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must stay"):
        producer_config({name: value})


def test_batches_are_never_larger_than_the_smallest_topic_takes() -> None:
    config = producer_config({}, {"small": 5_000, "large": 2_000_000})
    assert (config["batch.size"], config["message.max.bytes"]) == (5_000, 2_000_000)
