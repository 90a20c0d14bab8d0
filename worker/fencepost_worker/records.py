"""What the poll thread hands to the rest of the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A Kafka record as it was delivered; `epoch` is the assignment that it was delivered in.

    `headers` is None without headers, and when their names are not UTF-8 (the client cannot read such headers).
    `timestamp` is in milliseconds since 1970 or None; `size` in bytes of key, value and headers.
    """

    topic: str
    partition: int
    offset: int
    epoch: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Oldest:
    """The record that holds back its partition's commits, and for how many seconds it has been in flight."""

    topic: str
    partition: int
    offset: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the poll thread. `auth_error` and `error` are gone again once the brokers answer."""

    turn_seconds: float
    """Since the thread last began a turn; more than some seconds means that it hangs."""
    partitions: tuple[int, ...]
    assigned: bool
    """Whether the group has given an assignment since the start, an empty one included."""
    in_flight: int
    in_flight_bytes: int
    paused: bool
    auth_error: str | None
    error: str | None
    oldest: Oldest | None
    lag: Mapping[int, int]
    """Partition → records behind, see `Lag`."""
