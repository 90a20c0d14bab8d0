"""Kafka clients as Fencepost makes them, and their errors as one line that says what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from fencepost_dispatch.settings import Settings, SettingsError

CONNECT_SECONDS = 10.0


def client_log(name: str) -> logging.Logger:
    """The logger that a client is given."""
    log = logging.getLogger(name)
    # Properties are passed to every kind of client; that some mean nothing to this kind is not worth a line.
    log.addFilter(lambda record: "property and will be ignored by this" not in record.getMessage())
    return log


logging.getLogger("fencepost").addHandler(logging.NullHandler())
_log = client_log("fencepost.librdkafka")

# librdkafka's own codes, as against the protocol's, have names that begin with an underscore.
END_OF_PARTITION: int = KafkaError._PARTITION_EOF  # noqa: SLF001
_REFUSED = (
    KafkaError._AUTHENTICATION,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError._SSL,  # noqa: SLF001
)

Client = TypeVar("Client", Producer, Consumer, AdminClient)


class KafkaUnavailable(Exception):
    """No broker answers, or none that lets us in; the text is one line that says what to do."""


class MissingTopic(Exception):
    """A topic is not there: `fencepost topics` creates it."""


class Troubles:
    """The error callback of one client: remembers the reason worth telling."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        kept = self._last
        vague = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
        if kept is None or (not vague and kept.code() not in _REFUSED):
            self._last = error

    def explain(self, error: KafkaError) -> str:
        """One line about `error`, with the reason behind it where the callback has heard one."""
        cause = self._last or error
        reason = self._settings.redact(re.sub(r"\s+\(after .*?\)|^\S+/\S+: ", "", cause.str()))
        where = self._settings.kafka_bootstrap
        if cause.code() in _REFUSED:
            return f"Kafka at {where} refuses us ({reason}): check FENCEPOST_KAFKA__* (SASL, TLS) and its ACLs"
        return f"no Kafka broker answers at {where} ({reason}): start one, or set FENCEPOST_KAFKA_BOOTSTRAP"


def new_producer(settings: Settings, troubles: Troubles, **properties: Any) -> Producer:
    """An idempotent producer that waits for all in-sync replicas; `linger_ms=5` stands for `linger.ms`."""
    # The partitioner is the Java clients' choice: one key, one partition, whoever produces.
    usual = {"linger.ms": 2, "compression.type": "lz4", "partitioner": "murmur2_random"}
    safe = {"enable.idempotence": True, "acks": "all", **usual}
    return _client(Producer, settings, troubles, safe | _dotted(properties))


def new_consumer(settings: Settings, troubles: Troubles, **properties: Any) -> Consumer:
    """A consumer that never creates the topics it asks for."""
    return _client(Consumer, settings, troubles, {"allow.auto.create.topics": False} | _dotted(properties))


def new_admin(settings: Settings, troubles: Troubles) -> AdminClient:
    """A client for topics and their configuration."""
    return _client(AdminClient, settings, troubles, {})


def partitions(client: Producer | Consumer | AdminClient, topic: str, troubles: Troubles, timeout: float) -> list[int]:
    """The topic's partitions; asks a broker, for `timeout` seconds at most. Not for consumers that are at work already.

    Raises:
        KafkaUnavailable: no broker answered.
        MissingTopic: there is no such topic.
    """
    try:
        # Of all topics: to ask a producer for one would create it, where brokers allow that.
        found = client.list_topics(timeout=timeout).topics.get(topic)
    except KafkaException as error:
        client.poll(0)  # serves the error callback, which knows why
        raise KafkaUnavailable(troubles.explain(error.args[0])) from None
    if found is None or not found.partitions:
        raise MissingTopic(f"topic {topic} does not exist: create it with `fencepost topics`")
    return sorted(found.partitions)


def _client(kind: Callable[..., Client], settings: Settings, troubles: Troubles, properties: dict[str, Any]) -> Client:
    config = {**properties, **settings.kafka_config(), "error_cb": troubles}
    try:
        return kind(config, logger=_log)
    except KafkaException as error:
        raise SettingsError(_property(settings.redact(error.args[0].str()))) from None


def _property(reason: str) -> str:
    if unknown := re.match(r'No such configuration property: "(.+)"', reason):
        return f"FENCEPOST_KAFKA__{unknown[1].upper().replace('.', '_')} is not a property of librdkafka"
    return f"FENCEPOST_KAFKA__*: librdkafka says: {' '.join(reason.split())}"


def _dotted(properties: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in properties.items()}
