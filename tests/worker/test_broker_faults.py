"""Brokers that go and come back: nothing is lost, and work goes on by itself."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from fencepost_worker.embedded import EmbeddedBroker
from fencepost_worker.membership import REBALANCING
from fencepost_worker.publisher import Publisher
from services.brokers import Broker, unique
from services.clients import Lookup, eventually, produce
from services.cluster import KafkaCluster
from services.member import Member, NewMember


class Letter:
    key = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __init__(self, value: bytes) -> None:
        self.value = value


def test_completions_made_while_the_broker_is_away_are_committed_when_it_is_back() -> None:
    with EmbeddedBroker() as broker:
        topic = unique("away")
        broker.create_topic(topic)
        produce(broker.bootstrap, topic, [b"1", b"2"])
        one = Member(broker.bootstrap, topic, "group", settings={"reconnect.backoff.max.ms": 200}).start()
        records = one.take(2)
        broker.stop_node(1)
        eventually(lambda: one.thread.health().error)
        one.thread.done(records)
        eventually(lambda: one.thread.health().in_flight == 0)
        broker.start_node(1)
        lookup = Lookup(broker.bootstrap, "group")
        eventually(lambda: lookup.committed(topic) == 2)
        produce(broker.bootstrap, topic, [b"3"])
        assert [record.value for record in one.take(1)] == [b"3"]
        assert not one.died.is_set()
        assert one.thread.stop()
        lookup.close()


@pytest.mark.kafka
@pytest.mark.faults
def test_a_killed_broker_stops_neither_delivery_nor_commits(
    broker: Broker, cluster: KafkaCluster, member: NewMember, lookup: Lookup
) -> None:
    topic = broker.new_topic(partitions=3)
    one = member(topic)
    answers: list[Any] = []
    publisher = Publisher({"bootstrap.servers": broker.bootstrap, "log_level": 2}, answers.extend, answers.append)
    publisher.start()
    for number in range(300):
        if number == 100:
            cluster.kill(cluster.nodes[-1])
        publisher.publish(Letter(b"%d" % number), topic, number)
    assert publisher.flush(60) == 0
    publisher.close()
    assert sorted(answers) == [(number, None) for number in range(300)]
    records = one.take(300, timeout=60)
    assert {int(record.value or b"") for record in records} == set(range(300))
    one.thread.done(records)
    eventually(lambda: sum(lookup.lag(topic, partition) for partition in range(3)) == 0, timeout=60)


@pytest.mark.parametrize("code", sorted(REBALANCING))
def test_a_group_that_has_moved_on_is_no_fault(code: int) -> None:
    one = Member("127.0.0.1:1", "topic", "group")
    error = KafkaError(code)
    one.thread._on_commit(error, [])
    one.thread._on_partition_error(Message(topic="topic", partition=0, error=error), error)
    assert one.thread.health().error is None
    one.thread.stop()
