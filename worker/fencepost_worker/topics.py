"""The topics: whether they are fit for their use, and making those that are missing.

A topic's settings decide about correctness in three places: a dispatch topic that replays what the ledger has
forgotten, a compacted topic (it keeps one call of each execution), and too few replicas behind `acks=all`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic

from fencepost_worker.membership import AUTH_ERRORS

HOUR = 3_600_000  # milliseconds
PARTITIONS = 12
MAX_MESSAGE_BYTES = 1_048_588  # the broker's default of max.message.bytes
HEARSAY = 3.0  # seconds; by then every broker has heard of a new topic
HEADROOM = 65_536  # bytes that a dead letter may be larger than its original

Level = Literal["ok", "warning", "error"]


class BrokersUnavailable(Exception):
    """No broker answers; the text is one line with the cure."""


class AccessRefused(BrokersUnavailable):
    """The brokers answer and refuse us: credentials or protocol; the text is one line with the cure."""


class Wanted(Protocol):
    """The settings that are about topics; `Settings` has them."""

    @property
    def dispatch_topic(self) -> str: ...
    @property
    def outcome_topic(self) -> str: ...
    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def ttl_hours(self) -> float: ...
    @property
    def strict(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `cure` says what to do unless it is ok."""

    level: Level
    subject: str
    text: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}" + (f"; {self.cure}" if self.cure else "")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connection to the brokers and what they said about themselves."""

    admin: AdminClient
    metadata: ClusterMetadata

    @property
    def embedded(self) -> bool:
        """Whether it is librdkafka's own broker, which has no admin requests."""
        return str(self.metadata.cluster_id).startswith("mockCluster")


def check(config: Mapping[str, Any], settings: Wanted, timeout: float = 10.0) -> list[Finding]:
    """Looks at the three topics; changes nothing. `config` is librdkafka's, `timeout` in seconds.

    Raises:
        BrokersUnavailable, AccessRefused: with a line that says what to do.
    """
    cluster = connect(config, timeout)
    findings = _names(settings)
    if cluster.embedded:
        text = "made on first sight; the embedded broker has no topic settings to check"
        return findings + [Finding("ok", name, text) for name in _topics(settings)]
    metadata = _until_known(cluster, set(_topics(settings)), min(timeout, HEARSAY))
    described = _describe(cluster.admin, _topics(settings), timeout)
    for name in _topics(settings):
        findings += _judge(metadata, settings, name, described[name])
    return findings + _room_for_dead_letters(settings, described)


def create(
    config: Mapping[str, Any], settings: Wanted, partitions: int = PARTITIONS, timeout: float = 10.0
) -> list[Finding]:
    """Creates the topics that are missing and says what it found; existing ones are left as they are.

    Raises:
        BrokersUnavailable, AccessRefused: with a line that says what to do.
    """
    cluster = connect(config, timeout)
    known = cluster.metadata.topics
    found = [Finding("ok", name, _shape(cluster.metadata, name)) for name in _topics(settings) if name in known]
    missing = [name for name in _topics(settings) if name not in known]
    if cluster.embedded:
        return found + [_touch(cluster.admin, name, timeout) for name in missing]
    wanted = [_new_topic(cluster.metadata, settings, name, partitions) for name in missing]
    answers = cluster.admin.create_topics(wanted, operation_timeout=timeout) if wanted else {}
    for answer in answers.values():
        answer.exception()  # waits
    metadata = _until_known(cluster, set(missing), min(timeout, HEARSAY))
    return found + [_created(metadata, topic, answers[topic.topic]) for topic in wanted]


def record_limits(config: Mapping[str, Any], settings: Wanted, timeout: float = 10.0) -> dict[str, int]:
    """The largest record, in bytes, of each topic that is produced to; the broker's default where it does not say.

    Raises:
        BrokersUnavailable, AccessRefused: with a line that says what to do.
    """
    cluster = connect(config, timeout)
    names = [settings.outcome_topic, settings.dead_letter_topic]
    described = {} if cluster.embedded else _describe(cluster.admin, names, timeout)
    return {name: _number(described.get(name), "max.message.bytes", MAX_MESSAGE_BYTES) for name in names}


def connect(config: Mapping[str, Any], timeout: float = 10.0) -> Cluster:
    """Connects and reads the metadata, trying for `timeout` seconds; refused credentials are not tried again.

    Raises:
        BrokersUnavailable, AccessRefused: with a line that says what to do.
    """
    errors: list[KafkaError] = []
    admin = AdminClient({**config, "log_level": 0}, error_cb=errors.append)
    until = time.monotonic() + timeout
    while True:
        try:
            return Cluster(admin, admin.list_topics(timeout=max(0.1, min(1.0, until - time.monotonic()))))
        except KafkaException as failed:
            admin.poll(0)  # serves error_cb, which knows why
            if time.monotonic() >= until or any(error.code() in AUTH_ERRORS for error in errors):
                raise _explain(str(config.get("bootstrap.servers")), errors, failed) from None


def memory(topic: str, retention_ms: int, segment_ms: int, ttl_hours: float, strict: bool = True) -> Finding:
    """Whether the ledger remembers for longer than `topic` can replay.

    A record is deleted with its whole segment, so a quiet topic keeps it for up to `segment_ms` more.
    """
    ttl = ttl_hours * HOUR
    kept = "for ever" if retention_ms < 0 else f"for {retention_ms / HOUR:g} h"
    if retention_ms < 0 or retention_ms > ttl:
        cure = f"lower retention.ms to less than {round(ttl)}, or raise FENCEPOST_TTL_HOURS"
        text = f"keeps records {kept}, the ledger remembers {ttl_hours:g} h: an old call could be replayed unknown"
        return Finding("error" if strict else "warning", topic, text, cure)
    if retention_ms + segment_ms > ttl:
        text = f"keeps records {kept} and its open segment up to {segment_ms / HOUR:g} h longer than that"
        return Finding("warning", topic, text, f"lower segment.ms to less than {round(ttl) - retention_ms}")
    return Finding("ok", topic, f"keeps records {kept}, the ledger remembers {ttl_hours:g} h")


def _until_known(cluster: Cluster, names: set[str], timeout: float) -> ClusterMetadata:
    """The metadata, once it has the topics or `timeout` seconds are over: a broker hears of a new one a moment late."""
    metadata, until = cluster.metadata, time.monotonic() + timeout
    while names - metadata.topics.keys() and time.monotonic() < until:
        time.sleep(0.05)
        metadata = cluster.admin.list_topics(timeout=10)
    return metadata


# What is wrong with the connection


def _explain(servers: str, errors: list[KafkaError], failed: KafkaException) -> BrokersUnavailable:
    codes = {error.code(): error.str() for error in errors}
    for code in AUTH_ERRORS & codes.keys():
        return AccessRefused(f"Kafka at {servers} refuses us: {codes[code]}; check {_CREDENTIALS}")
    if (text := codes.get(KafkaError._RESOLVE)) is not None:  # noqa: SLF001
        return BrokersUnavailable(f"{text}; check the host names in FENCEPOST_KAFKA_BOOTSTRAP")
    why = codes.get(KafkaError._TRANSPORT) or failed.args[0].str()  # noqa: SLF001
    hint = "check FENCEPOST_KAFKA_BOOTSTRAP, that it is running, and FENCEPOST_KAFKA__SECURITY_PROTOCOL"
    return BrokersUnavailable(f"no Kafka answers at {servers}: {why}; {hint}")


_CREDENTIALS = "FENCEPOST_KAFKA__SECURITY_PROTOCOL, __SASL_MECHANISM, __SASL_USERNAME and __SASL_PASSWORD"


# What is wrong with a topic


def _topics(settings: Wanted) -> list[str]:
    return list(dict.fromkeys((settings.dispatch_topic, settings.outcome_topic, settings.dead_letter_topic)))


def _names(settings: Wanted) -> list[Finding]:
    names = [settings.dispatch_topic, settings.outcome_topic, settings.dead_letter_topic]
    return [
        Finding("error", name, f"serves as {names.count(name)} of the three topics", "give each a name of its own")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]


def _judge(
    metadata: ClusterMetadata, settings: Wanted, name: str, config: Mapping[str, str] | KafkaError
) -> list[Finding]:
    if isinstance(config, KafkaError):
        return [_unreadable(name, name in metadata.topics, config)]
    if name not in metadata.topics:
        return [Finding("warning", name, "is not known to every broker yet", "look again in a moment")]
    findings = [Finding("ok", name, _shape(metadata, name)), *_replicas(metadata, name, config)]
    if "compact" in config.get("cleanup.policy", ""):
        text = "is compacted: it keeps only the newest record of an execution"
        findings.append(Finding("error", name, text, "set cleanup.policy=delete"))
    if name == settings.dispatch_topic:
        retention, segment = _number(config, "retention.ms", -1), _number(config, "segment.ms", 0)
        findings.append(memory(name, retention, segment, settings.ttl_hours, settings.strict))
    return findings


def _unreadable(name: str, exists: bool, error: KafkaError) -> Finding:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return Finding("error", name, "does not exist", "run `fencepost topics`")
    if exists:
        text = f"its settings cannot be read: {error.str()}"
        return Finding("warning", name, text, "grant DescribeConfigs on it, or check retention.ms by hand")
    return Finding("error", name, f"does not exist or is hidden from us: {error.str()}", "grant Describe on it")


def _replicas(metadata: ClusterMetadata, name: str, config: Mapping[str, str]) -> list[Finding]:
    brokers, replicas = len(metadata.brokers), _replication(metadata, name)
    needed = _number(config, "min.insync.replicas", 1)
    if needed > replicas:
        text = f"min.insync.replicas is {needed} with {replicas} replicas: nothing can be produced"
        return [Finding("error", name, text, "lower min.insync.replicas")]
    if replicas < min(3, brokers):
        text = f"has {replicas} replicas on {brokers} brokers: losing a broker may lose calls"
        return [Finding("warning", name, text, f"raise its replication factor to {min(3, brokers)}")]
    if replicas >= 3 and needed < 2:
        text = "min.insync.replicas is 1: an acknowledged record may be on one broker only"
        return [Finding("warning", name, text, "set min.insync.replicas=2")]
    return []


def _room_for_dead_letters(settings: Wanted, described: Mapping[str, Mapping[str, str] | KafkaError]) -> list[Finding]:
    largest = _number(described[settings.dispatch_topic], "max.message.bytes", 0)
    room = _number(described[settings.dead_letter_topic], "max.message.bytes", 0)
    if not largest or not room or room > largest:
        return []
    text = f"takes records up to {room} bytes, {settings.dispatch_topic} up to {largest}: a large one would not fit"
    return [Finding("warning", settings.dead_letter_topic, text, f"set max.message.bytes={largest + HEADROOM}")]


def _shape(metadata: ClusterMetadata, name: str) -> str:
    if name not in metadata.topics:
        return "created by somebody else just now"
    return f"{len(metadata.topics[name].partitions)} partitions, {_replication(metadata, name)} replicas"


def _replication(metadata: ClusterMetadata, name: str) -> int:
    return min((len(part.replicas) for part in metadata.topics[name].partitions.values()), default=0)


def _describe(admin: AdminClient, names: list[str], timeout: float) -> dict[str, dict[str, str] | KafkaError]:
    resources = [ConfigResource("topic", name) for name in dict.fromkeys(names)]
    found: dict[str, dict[str, str] | KafkaError] = {}
    for resource, answer in admin.describe_configs(resources, request_timeout=timeout).items():
        try:
            found[resource.name] = {name: str(entry.value) for name, entry in answer.result().items()}
        except KafkaException as refused:
            found[resource.name] = refused.args[0]
    return found


def _number(config: Mapping[str, str] | KafkaError | None, name: str, default: int) -> int:
    return default if config is None or isinstance(config, KafkaError) else int(config.get(name, default))


# Making topics


def _new_topic(metadata: ClusterMetadata, settings: Wanted, name: str, partitions: int) -> NewTopic:
    replicas = min(3, len(metadata.brokers))
    config = {"cleanup.policy": "delete", "min.insync.replicas": str(2 if replicas == 3 else 1)}
    ttl = round(settings.ttl_hours * HOUR)
    if name == settings.dispatch_topic:
        # Well inside the ledger's memory, and in segments small enough to be deleted on time
        config |= {"retention.ms": str(ttl * 3 // 4), "segment.ms": str(max(ttl // 48, 1_000))}
    if name == settings.dead_letter_topic:
        config |= {
            "retention.ms": str(max(14 * 24 * HOUR, ttl)),
            "max.message.bytes": str(MAX_MESSAGE_BYTES + HEADROOM),
        }
        partitions = 1
    return NewTopic(name, partitions, replicas, config=config)


def _created(metadata: ClusterMetadata, topic: NewTopic, answer: Any) -> Finding:
    try:
        answer.result()
    except KafkaException as refused:
        error: KafkaError = refused.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return Finding("ok", topic.topic, _shape(metadata, topic.topic))
        return Finding("error", topic.topic, f"not created: {error.str()}", "grant Create on it, or create it by hand")
    settings = ", ".join(f"{name}={value}" for name, value in sorted((topic.config or {}).items()))
    text = f"created: {topic.num_partitions} partitions, {topic.replication_factor} replicas, {settings}"
    return Finding("ok", topic.topic, text)


def _touch(admin: AdminClient, name: str, timeout: float) -> Finding:
    made = admin.list_topics(name, timeout=timeout).topics[name]
    text = f"{len(made.partitions)} partitions, made on first sight: the embedded broker has no topic settings"
    return Finding("ok", name, text)
