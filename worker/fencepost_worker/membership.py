"""What it takes to be a member of the consumer group: the settings, what the client says of it, and its faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException

Protocol = Literal["classic", "consumer"]

AUTH_ERRORS = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes begin with an underscore
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
CONNECTION_ERRORS = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
# The group has moved on without us: librdkafka joins again by itself, and lost partitions are announced.
REBALANCING = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
        KafkaError._NO_OFFSET,  # noqa: SLF001 - nothing new to commit
    }
)
_OWN = {
    "enable.auto.commit": True,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": False,
    "isolation.level": "read_committed",
}
_DEFAULTS = {
    "auto.commit.interval.ms": 1_000,
    # The prefetch is bounded in bytes; a full one is looked at again soon instead of after a second.
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 10_000,
    "fetch.queue.backoff.ms": 10,
    "fetch.max.bytes": 8 * 1024 * 1024,
}
_CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "group.protocol.type", "partition.assignment.strategy")


def consumer_config(
    config: Mapping[str, Any], protocol: Protocol = "classic", drain_seconds: float = 0
) -> dict[str, Any]:
    """Everything a member of ours needs, on top of connection settings with `group.id`.

    Raises:
        ValueError: for a setting that would break the promise; the text is one line.
    """
    _refuse_changes(config)
    merged = {**_DEFAULTS, **config, **_OWN, "group.protocol": protocol}
    if not merged.get("group.id"):
        raise ValueError("group.id is missing")
    if float(merged.get("max.poll.interval.ms", 300_000)) <= drain_seconds * 1000:
        raise ValueError("max.poll.interval.ms must be longer than the drain, or partitions are lost while it runs")
    if protocol == "consumer":
        if wrong := [name for name in _CLASSIC_ONLY if name in config]:
            raise ValueError(f"{wrong[0]} belongs to the classic group protocol; with `consumer` the broker sets it")
        # This protocol does not announce an empty assignment: the statistics say whether the group is there
        return {"statistics.interval.ms": 2_000, **merged}
    if merged.setdefault("partition.assignment.strategy", "cooperative-sticky") != "cooperative-sticky":
        raise ValueError("partition.assignment.strategy must be cooperative-sticky")
    return merged


def _refuse_changes(config: Mapping[str, Any]) -> None:
    for name, value in _OWN.items():
        if str(config.get(name, value)).lower() != str(value).lower():
            raise ValueError(f"{name} must stay {str(value).lower()}")


def is_member(statistics: str) -> bool:
    """Whether librdkafka's statistics (JSON) show a group that has had time to hand out partitions, ours or not."""
    group = json.loads(statistics).get("cgrp", {})
    return bool(group.get("state") == "up" and group.get("stateage", 0) >= 3_000)  # milliseconds


class Faults:
    """The last errors of a client that still hold. One thread notes them, any may read.

    librdkafka says so when a connection fails and not when it is back, but it tries a failing one again every ten
    seconds: an error of a connection that is not repeated is over.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fatal: KafkaError | None = None
        self._access = self._other = _NOTHING

    @property
    def access(self) -> str | None:
        """Refused credentials or permissions."""
        return self._access[0] if self._clock() < self._access[1] else None

    @property
    def other(self) -> str | None:
        """Everything else."""
        return self._other[0] if self._clock() < self._other[1] else None

    def note(self, error: KafkaError) -> None:
        """What the client's `error_cb` says, or an answer of a broker."""
        if error.fatal():
            self._fatal = error
        noted = (error.str(), self._clock() + _REPEATED if error.code() in CONNECTION_ERRORS else inf)
        if error.code() in AUTH_ERRORS:
            self._access = noted
        else:
            self._other = noted

    def over(self) -> None:
        """The brokers have answered as they should."""
        self._access = self._other = _NOTHING

    def raise_fatal(self) -> None:
        """Raises KafkaException once the client cannot go on."""
        if self._fatal is not None:
            raise KafkaException(self._fatal)


_NOTHING: tuple[str | None, float] = (None, inf)
_REPEATED = 60.0  # seconds within which a fault of a connection is repeated while it lasts
