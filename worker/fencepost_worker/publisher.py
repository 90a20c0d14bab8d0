"""Records out: outcomes and dead letters, delivered or retried until the worker is told to close.

`delivery.timeout` ends as *unknown*, so such a record is produced again; subscribers drop the repeat by its
`outcome_id`. What librdkafka has no room for waits here. A record over the size limit is answered alone, before it
could fail the batch that it would have travelled in.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import Protocol as Structural

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fencepost_dispatch.kafka import client_log
from fencepost_worker.membership import Faults

log = client_log(__name__)

POLL = 0.1  # seconds; the longest that an answer given without the broker waits
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds between attempts of one record
MAX_BYTES = 1_048_588  # the broker's default of max.message.bytes

_OWN = {"enable.idempotence": True, "acks": "all"}
_DEFAULTS = {
    "compression.type": "lz4",
    "linger.ms": 2,
    "partitioner": "murmur2_random",  # the Java clients' choice: one key, one partition, whoever produces
}


class Letter(Structural):
    """What can be published; `Encoded` and `DeadLetter` are."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


@dataclass(slots=True, eq=False)
class _Sending:
    topic: str
    letter: Letter
    token: Any
    tries: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """State of the publisher: how many records are not delivered yet, and the last errors that still hold."""

    pending: int
    auth_error: str | None
    error: str | None


def producer_config(config: Mapping[str, Any], limits: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Everything our producer needs, on top of connection settings. Raises ValueError for what must not be changed."""
    sizes = [MAX_BYTES, *(limits or {}).values()]
    for name, value in _OWN.items():
        if str(config.get(name, value)).lower() not in (str(value).lower(), "-1"):
            raise ValueError(f"{name} must stay {str(value).lower()}")
    batch = min(int(config.get("batch.size", 1_000_000)), *sizes)  # a record larger than a batch travels alone
    return {**_DEFAULTS, **config, **_OWN, "message.max.bytes": max(sizes), "batch.size": batch}


def size_of(letter: Letter) -> int:
    """Bytes of a record in a batch of its own, at most (KIP-98, record format v2: varints of up to 5 bytes)."""
    content = len(letter.key or b"") + len(letter.value or b"") + 128
    return content + sum(len(name.encode()) + len(text or b"") + 10 for name, text in letter.headers)


class Publisher(threading.Thread):
    """Owns the Producer. `publish` may be called from any thread and never waits.

    `on_done` gets batches of `(token, None)` for what all in-sync replicas have, and `(token, error)` for what is too
    large (`KafkaError.MSG_SIZE_TOO_LARGE`); any other failure is retried and not reported. It is called in this thread,
    as is `on_fatal` when the producer cannot go on.

    Args:
        config: librdkafka settings with `bootstrap.servers`.
        limits: the largest record of a topic in bytes (its `max.message.bytes`); the broker's default for others.

    Raises:
        ValueError: for a setting that is not allowed (see `producer_config`).
        KafkaException: for a setting that librdkafka does not know.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        on_done: Callable[[list[tuple[Any, KafkaError | None]]], None],
        on_fatal: Callable[[BaseException], None],
        *,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(name="fencepost-publish", daemon=True)
        self._on_done = on_done
        self._on_fatal = on_fatal
        self._limits = dict(limits or {})
        self._lock = threading.Lock()  # keeps publish order where the backlog meets new records
        self._idle = threading.Condition(self._lock)
        self._pending = 0
        self._backlog: deque[_Sending] = deque()
        self._later: list[tuple[float, int, _Sending]] = []  # heap by due time; this thread's alone
        self._suspects: deque[_Sending] = deque()
        self._suspect: _Sending | None = None
        self._notes: deque[tuple[_Sending, KafkaError | None]] = deque()  # how attempts ended
        self._results: list[tuple[Any, KafkaError | None]] = []  # what `on_done` gets next
        self._retries = 0
        self._closing = False
        self._asking = threading.Lock()  # no question while the producer closes
        self._faults = Faults()
        self._producer = Producer({**producer_config(config, limits), "error_cb": self._faults.note}, logger=log)

    # From other threads

    def publish(self, letter: Letter, topic: str, token: Any) -> None:
        """Sends a record; `token` comes back to `on_done`."""
        sending = _Sending(topic, letter, token)
        limit = self._limits.get(topic, MAX_BYTES)
        with self._lock:
            if (size := size_of(letter)) > limit:
                sending.alone = True
                self._notes.append((sending, _too_large(size, limit)))
            elif self._backlog or not self._produce(sending):
                self._backlog.append(sending)
            self._pending += 1

    def flush(self, timeout: float) -> int:
        """Waits until everything is delivered, at most `timeout` seconds; returns how many records are not."""
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0, timeout)
            return self._pending

    def close(self, timeout: float = 5.0) -> int:
        """Ends at once: what is not delivered is given up. Returns how many records that were."""
        self._closing = True
        if self.ident is not None:
            self.join(timeout)
        return self._pending

    def health(self) -> Sent:
        """What is known right now; never waits."""
        return Sent(self._pending, self._faults.access, self._faults.other)

    def ask(self, topic: str, timeout: float) -> str | None:
        """Asks the brokers for a topic → None, or why no answer came within `timeout` seconds."""
        with self._asking:
            if self._closing:
                return "the producer is closed"
            try:
                self._producer.list_topics(topic, timeout=timeout)
            except KafkaException as error:
                return self._faults.access or self._faults.other or str(error.args[0].str())
            return None

    # The thread

    def run(self) -> None:
        try:
            while not self._closing:
                self._turn()
            self._producer.purge()  # or `close` would wait for the delivery timeout of each record
            with self._asking:
                self._producer.close()
            self._report()
        except BaseException as reason:  # noqa: BLE001 - whatever it is, the process has to end with it
            self._on_fatal(reason)

    def _turn(self) -> None:
        self._producer.poll(POLL)
        self._faults.raise_fatal()
        self._report()
        self._send_again(time.monotonic())

    def _report(self) -> None:
        while self._notes:
            sending, error = self._notes.popleft()
            if error is None:
                self._faults.over()
                self._settled(sending, None)
            elif not self._closing:
                self._failed(sending, error)
        if results := self._results:
            self._results = []
            self._on_done(results)
            with self._idle:
                self._pending -= len(results)
                self._idle.notify_all()

    def _settled(self, sending: _Sending, error: KafkaError | None) -> None:
        if sending is self._suspect:
            self._suspect = None
        self._results.append((sending.token, error))

    def _failed(self, sending: _Sending, error: KafkaError) -> None:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._oversize(sending, error)
            return
        self._faults.note(error)
        pause = min(FIRST_PAUSE * 2 ** min(sending.tries, 10), LONGEST_PAUSE)
        sending.tries += 1
        self._retries += 1
        log.warning("%s: not delivered (%s), again in %.1f s", sending.topic, error.str(), pause)
        heapq.heappush(self._later, (time.monotonic() + pause, self._retries, sending))

    def _oversize(self, sending: _Sending, error: KafkaError) -> None:
        """The broker refuses whole batches, so each record of one is tried by itself before it is blamed."""
        if sending.alone:
            self._settled(sending, error)
        else:
            sending.alone = True
            self._suspects.append(sending)

    def _send_again(self, now: float) -> None:
        with self._lock:
            while self._later and self._later[0][0] <= now:
                self._backlog.append(heapq.heappop(self._later)[2])
            if self._suspect is None and self._suspects:
                self._suspect = self._suspects.popleft()
                self._backlog.append(self._suspect)
            while self._backlog and self._produce(self._backlog[0]):
                self._backlog.popleft()

    def _produce(self, sending: _Sending) -> bool:
        """False when there is no room for the record now. Called with the lock."""
        letter = sending.letter
        note = partial(self._note, sending)
        try:
            self._producer.produce(
                sending.topic, letter.value, letter.key, headers=list(letter.headers), on_delivery=note
            )
        except BufferError:
            return False
        except KafkaException as refused:
            self._notes.append((sending, refused.args[0]))
        return True

    def _note(self, sending: _Sending, error: KafkaError | None, message: Message) -> None:  # noqa: ARG002
        self._notes.append((sending, error))  # nothing more: an exception here would escape from `poll`


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, f"the record has {size} bytes, the limit is {limit}")
