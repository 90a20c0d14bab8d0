"""The sweeper by hand: one pass, with its outcomes published and acknowledged before it returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from fencepost_dispatch.kafka import KafkaUnavailable, MissingTopic
from fencepost_dispatch.settings import Settings
from fencepost_ledger import CallRow, Desk, new_holder, require_current, sweep
from fencepost_ledger.case import House
from fencepost_ledger.verdicts import Settle
from fencepost_schemas import encode_outcome
from fencepost_worker.events import Event, left
from fencepost_worker.publisher import Publisher
from fencepost_worker.topics import connect, record_limits

ACK_SECONDS = 30.0

Way = tuple[CallRow, Event]


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass did: outcomes published, orphans ended, rows forgotten, blobs deleted.

    `faults` says, a line each, which outcomes cannot be published as they are.
    """

    published: int = 0
    orphans: int = 0
    forgotten: int = 0
    blobs: int = 0
    faults: tuple[str, ...] = ()


def sweep_by_hand(settings: Settings) -> Pass | None:
    """Publish every outcome that nobody acknowledged, end orphans, forget what is past its time.

    Returns:
        What was done, or None when another sweeper is at work.

    Raises:
        LedgerUnavailable, NotMigrated, BlobsUnavailable, BrokersUnavailable, KafkaUnavailable, MissingTopic
    """
    dsn = settings.require_dsn()
    require_current(dsn)
    house = House(new_holder(), timedelta(seconds=settings.lease_seconds), timedelta(hours=settings.ttl_hours))
    total: Pass | None = None
    with Desk(dsn) as desk, Post(settings, desk) as post:
        # The sweeper takes a part at a time; it is done when there is nothing more to take.
        while (swept := sweep(dsn, house, post.deliver)) is not None:
            done = total or Pass()
            total = Pass(
                post.published,
                done.orphans + swept.orphans,
                done.forgotten + swept.forgotten,
                done.blobs + swept.blobs,
                tuple(post.faults),
            )
            if not (swept.unsettled or swept.orphans or swept.more):
                break
    return total


class Post:
    """Publishes outcomes and waits for the brokers, in a process that has no event loop; connects with the first."""

    def __init__(self, settings: Settings, desk: Desk) -> None:
        self._settings, self._desk = settings, desk
        self._publisher: Publisher | None = None
        self._acknowledged: list[Settle] = []
        self._fatal: BaseException | None = None
        self.published = 0
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def deliver(self, rows: list[CallRow]) -> None:
        """Publish these rows' outcomes, and settle what is acknowledged.

        Raises:
            KafkaUnavailable: when not all of it was.
        """
        publisher = self._publisher = self._publisher or self._open()
        for row in rows:
            self._go((row, left(row)), None)
        missing = publisher.flush(ACK_SECONDS)
        settled, self._acknowledged = self._acknowledged, []
        self._desk.settle(settled)
        self.published += len(settled)
        if missing:
            health = publisher.health()
            reason = self._fatal or health.auth_error or health.error or "no answer"
            text = f"{missing} outcomes are not acknowledged ({reason}): they come up again, see `fencepost doctor`"
            raise KafkaUnavailable(text)

    def _open(self) -> Publisher:
        kafka = self._settings.kafka_config()
        topic = self._settings.outcome_topic
        cluster = connect(kafka)
        if topic not in cluster.metadata.topics and not cluster.embedded:
            raise MissingTopic(f"topic {topic} does not exist: create it with `fencepost topics`")
        publisher = Publisher(kafka, self._sent, self._died, limits=record_limits(kafka, self._settings))
        publisher.start()
        return publisher

    def _go(self, way: Way, answer: Any) -> None:
        """On to the way's next record, or to its end."""
        row, path = way
        try:
            step = path.send(answer)
            letter = encode_outcome(step.outcome, source=self._settings.group_id, trace=step.trace)
        except StopIteration as end:
            self._acknowledged.append(end.value)
        except Exception as error:  # noqa: BLE001 - whatever it is, its neighbours go on
            self.faults.append(f"call {row.key.hex()[:12]}: {error}")
        else:
            if self._publisher is not None:
                self._publisher.publish(letter, self._settings.outcome_topic, way)

    def _sent(self, results: list[tuple[Way, Any]]) -> None:
        """From the publisher's thread, before it counts these as done."""
        for way, error in results:
            self._go(way, error)

    def _died(self, reason: BaseException) -> None:
        self._fatal = reason
