"""Events onto the dispatch topic: returns once all in-sync replicas have them."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from fencepost_dispatch.event import InvalidDispatch
from fencepost_dispatch.handover import Handover
from fencepost_dispatch.kafka import CONNECT_SECONDS, KafkaUnavailable, Troubles, new_producer, partitions
from fencepost_dispatch.settings import Settings
from fencepost_schemas import Encoded

DELIVERY_MILLISECONDS = 120_000
FLUSH_SECONDS = 10.0
FULL_SECONDS = 0.01  # between two tries while librdkafka's queue is full

_log = logging.getLogger("fencepost.dispatcher")

Report = tuple[asyncio.Future[None], KafkaError | None]


class NotAcknowledged(KafkaUnavailable):
    """The brokers did not confirm the event, which may have arrived all the same.

    Send it again with the same `event_id`: the same event never runs twice.
    """


class Sender:
    """One idempotent producer, and the thread that hears its delivery reports."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = settings.dispatch_topic
        self._troubles = Troubles(settings)
        self._producer = new_producer(settings, self._troubles, delivery_timeout_ms=DELIVERY_MILLISECONDS)
        self._reports: Handover[Report] = Handover(asyncio.get_running_loop(), _acknowledge)
        self._closed = False
        self._pump = threading.Thread(target=self._hear, name="fencepost-acks", daemon=True)

    async def open(self) -> None:
        """Look for the topic.

        Raises:
            KafkaUnavailable, MissingTopic
        """
        await asyncio.to_thread(partitions, self._producer, self._topic, self._troubles, CONNECT_SECONDS)
        self._pump.start()

    async def send(self, encoded: Encoded, event_id: str) -> None:
        """Raises `InvalidDispatch` for an event that is too large, `NotAcknowledged` when nobody can say."""
        acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self._enqueue(encoded, acked)
            await acked
        except KafkaException as error:
            raise self._explained(error.args[0], event_id) from None

    async def close(self) -> None:
        """Wait for outstanding reports, for 10 seconds at most."""
        left = await asyncio.to_thread(self._producer.flush, FLUSH_SECONDS)
        if left:
            _log.warning("%s events were not acknowledged before the dispatcher closed", left)
        self._closed = True
        if self._pump.is_alive():
            await asyncio.to_thread(self._pump.join, 1)

    async def _enqueue(self, encoded: Encoded, acked: asyncio.Future[None]) -> None:
        headers: list[tuple[str, str | bytes | None]] = list(encoded.headers)
        report = partial(self._on_delivery, acked)
        while True:
            try:
                self._producer.produce(self._topic, encoded.value, encoded.key, headers=headers, on_delivery=report)
                return
            except BufferError:
                await asyncio.sleep(FULL_SECONDS)

    def _on_delivery(self, acked: asyncio.Future[None], error: KafkaError | None, _: Message) -> None:
        self._reports.put((acked, error))

    def _hear(self) -> None:
        while not self._closed:
            self._producer.poll(0.1)

    def _explained(self, error: KafkaError, event_id: str) -> Exception:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return InvalidDispatch("the event is larger than the brokers take: keep large things in a store")
        if error.fatal():  # this producer will never send again
            self._producer = new_producer(self._settings, self._troubles, delivery_timeout_ms=DELIVERY_MILLISECONDS)
        reason = self._settings.redact(error.str())
        return NotAcknowledged(f"not acknowledged ({reason}): send it again with the same event_id, {event_id}")


def _acknowledge(reports: list[Report]) -> None:
    for acked, error in reports:
        if acked.done():  # whoever sent it has gone
            continue
        if error is None:
            acked.set_result(None)
        else:
            acked.set_exception(KafkaException(error))
