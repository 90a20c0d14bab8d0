"""Records that cannot be decoded: where they go, and when there are too many of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fencepost_worker.records import Record

PREFIX = "fencepost."
NAMES = (
    "fencepost.error.code",
    "fencepost.error.message",
    "fencepost.source.topic",
    "fencepost.source.partition",
    "fencepost.source.offset",
    "fencepost.source.timestamp",
    "fencepost.worker",
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The record for the dead-letter topic: original key, value and headers, then ours."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def dead_letter(record: Record, code: str, message: str, worker: str) -> DeadLetter:
    """`record` with the reason added. A record that was one already gets the new reason in place of the old one.

    `fencepost.source.timestamp` is in milliseconds since 1970, as Kafka has it; -1 when the record has none.
    """
    timestamp = -1 if record.timestamp is None else record.timestamp
    content = (code, message, record.topic, record.partition, record.offset, timestamp, worker)
    ours = [(name, str(text).encode(errors="replace")) for name, text in zip(NAMES, content, strict=True)]
    theirs = [header for header in record.headers or () if header[0] not in NAMES]
    return DeadLetter(record.key, record.value, [*theirs, *ours])


class DeadLetterLimit:
    """Says when the topic itself must be wrong, so that it is not drained into the dead-letter topic. Pure.

    Reached by `consecutive` undecodable records in a row, or by more than `ratio` (0 to 1) of the last `window`
    records, once that many have been seen.
    """

    def __init__(self, consecutive: int = 100, ratio: float = 0.5, window: int = 1_000) -> None:
        if consecutive < 1 or window < 1 or not 0 < ratio <= 1:
            raise ValueError("consecutive and window must be at least 1, ratio above 0 and at most 1")
        self._consecutive = consecutive
        self._ratio = ratio
        self._window = window
        self._recent: deque[bool] = deque(maxlen=window)
        self._dead = 0  # among the recent ones
        self._row = 0

    def decoded(self) -> None:
        """A record was understood."""
        self._row = 0
        self._add(False)

    def dead(self) -> str | None:
        """A record goes to the dead letters; the reason to stop, in one line, when it is one too many."""
        self._row += 1
        self._add(True)
        if self._row >= self._consecutive:
            return f"{self._row} records in a row cannot be decoded"
        if len(self._recent) == self._window and self._dead > self._ratio * self._window:
            return f"{self._dead} of the last {self._window} records cannot be decoded"
        return None

    def _add(self, dead: bool) -> None:
        if len(self._recent) == self._window:
            self._dead -= self._recent[0]
        self._recent.append(dead)
        self._dead += dead
