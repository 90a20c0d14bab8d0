"""How far the group is behind in the partitions of this worker."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from fencepost_worker.assignment import Share

SECONDS = 1.0  # between two looks


class Lag:
    """`records`: partition → records from its lowest unfinished one to its end, by what the last fetch said of the end.

    No request is made for it. Of a paused partition nothing is fetched, and its number stands still.
    """

    def __init__(self, topic: str) -> None:
        self.records: dict[int, int] = {}
        self._topic = topic
        self._due = 0.0

    def look(self, consumer: Consumer, shares: Iterable[Share], now: float) -> None:
        """In the consumer's thread, as often as one likes."""
        if now >= self._due:
            self._due = now + SECONDS
            self.records = {share.partition: self._behind(consumer, share) for share in shares}

    def _behind(self, consumer: Consumer, share: Share) -> int:
        try:
            known = consumer.get_watermark_offsets(TopicPartition(self._topic, share.partition), cached=True)
        except KafkaException:  # it has gone meanwhile
            return 0
        oldest = share.tracker.oldest()
        front = share.stored if oldest is None else oldest[0]
        return 0 if front is None else max(0, known[1] - front)
