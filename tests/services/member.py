"""A member of a consumer group as tests see it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from fencepost_worker.consumer import PollThread, Record


class Member:
    """A poll thread with its records in a queue, its revocations and its death in events."""

    def __init__(self, bootstrap: str, topic: str, group: str, *, session: int = 6_000, **options: Any) -> None:
        self.records: queue.Queue[Record] = queue.Queue()
        self.revoked: list[list[int]] = []
        self.revoking = threading.Event()
        self.died = threading.Event()
        self.reason: BaseException | None = None
        self.on_revoking: Callable[[list[int]], None] = _nothing
        self.on_deliver: Callable[[list[Record]], None] = _nothing
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2, "auto.commit.interval.ms": 100}
        settings |= options.pop("settings", {})
        if options.get("protocol", "classic") == "classic":
            settings = {"session.timeout.ms": session, "heartbeat.interval.ms": 200} | settings
        options = {"drain_seconds": 5.0, "revoking": self._revoking, **options}
        self.thread = PollThread(settings, topic, self._deliver, self._fatal, **options)

    def _deliver(self, records: list[Record]) -> None:
        for record in records:
            self.records.put(record)
        self.on_deliver(records)

    def _revoking(self, partitions: list[int]) -> None:
        self.revoked.append(partitions)
        self.revoking.set()
        self.on_revoking(partitions)

    def _fatal(self, reason: BaseException) -> None:
        self.reason = reason
        self.died.set()

    def start(self) -> Member:
        self.thread.start()
        assert self.thread.wait_assigned(20)
        return self

    def take(self, count: int, timeout: float = 20.0) -> list[Record]:
        """The next `count` records; fails after `timeout` seconds."""
        until = time.monotonic() + timeout
        return [self.records.get(timeout=max(0.01, until - time.monotonic())) for _ in range(count)]


def _nothing(_: object) -> None:
    pass


NewMember = Callable[..., Member]
