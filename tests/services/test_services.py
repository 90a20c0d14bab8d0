"""The services are what they say they are."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import ConfigResource, ResourceType

from services.brokers import Broker, Kafka
from services.cluster import KafkaCluster
from services.postgres import Postgres


@pytest.mark.kafka
def test_real_kafka_has_three_brokers_and_wants_two_acknowledgements(
    cluster: KafkaCluster, real_kafka_broker: Kafka
) -> None:
    topic = real_kafka_broker.new_topic("copies", partitions=2)
    seen = real_kafka_broker.admin.list_topics(topic, timeout=10)
    assert seen.brokers.keys() == {1, 2, 3}
    assert [sorted(part.replicas) for part in seen.topics[topic].partitions.values()] == [[1, 2, 3], [1, 2, 3]]
    assert _topic_config(real_kafka_broker, topic)["min.insync.replicas"] == "2"


@pytest.mark.kafka
def test_a_topic_that_was_not_made_does_not_appear(real_kafka_broker: Kafka) -> None:
    missing = real_kafka_broker.admin.list_topics("never-made", timeout=10).topics["never-made"]
    assert missing.error is not None


def test_a_topic_has_the_partitions_that_were_asked_for(broker: Broker) -> None:
    topic = broker.new_topic("parts", partitions=7)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    assert len(producer.list_topics(topic, timeout=10).topics[topic].partitions) == 7


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_both_protocols_of_groups_work(broker: Broker, protocol: str) -> None:
    topic = broker.new_topic("groups")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"value", b"key")
    assert producer.flush(20) == 0
    group = {"group.id": topic, "group.protocol": protocol, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **group})
    consumer.subscribe([topic])
    record = consumer.poll(20)
    consumer.close()
    assert record is not None
    assert (record.error(), record.key(), record.value()) == (None, b"key", b"value")


@pytest.mark.kafka
@pytest.mark.faults
def test_with_one_broker_left_nothing_is_acknowledged_and_with_two_it_is(
    cluster: KafkaCluster, real_kafka_broker: Kafka
) -> None:
    topic = real_kafka_broker.new_topic("faults", partitions=1)
    cluster.kill(3)
    assert _produce(cluster, topic) is None
    cluster.pause(2)
    assert _produce(cluster, topic, timeout_ms=4000) is not None
    cluster.heal()
    assert _produce(cluster, topic) is None


@pytest.mark.kafka
@pytest.mark.faults
def test_a_broker_that_was_stopped_comes_back_at_its_address(cluster: KafkaCluster) -> None:
    address = cluster.address(1)
    cluster.stop(1)
    with pytest.raises(KafkaException):
        cluster.admin(1).list_topics(timeout=0.5)
    cluster.start(1)
    assert cluster.address(1) == address
    assert 1 in cluster.admin(1).list_topics(timeout=10).brokers


def test_databases_of_two_tests_are_not_the_same(postgres: Postgres) -> None:
    first, second = postgres.new_database(), postgres.new_database()
    with psycopg.connect(postgres.dsn(first)) as connection:
        connection.execute("CREATE TABLE mine ()")
    with psycopg.connect(postgres.dsn(second)) as connection:
        assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)
    postgres.drop(first)
    postgres.drop(second)


def test_postgres_keeps_what_was_committed_when_it_crashes(postgres: Postgres, empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS value")
    postgres.crash()
    postgres.start()
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (1,)


def _produce(cluster: KafkaCluster, topic: str, timeout_ms: int = 20_000) -> object:
    """The error of one record, or None when it was acknowledged."""
    errors: list[object] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "delivery.timeout.ms": timeout_ms, "log_level": 0}
    )
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(timeout_ms / 1000 + 10) == 0
    return errors[0]


def _topic_config(kafka: Kafka, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = kafka.admin.describe_configs([resource])[resource].result(timeout=10)
    return {name: entry.value for name, entry in entries.items()}
