"""Group commit: all that waits goes into the next transaction. One thread, one connection, one wake-up per batch.

A bad item never fails its neighbours: the batch is halved until it stands alone. A conflict runs the same batch
again. A lost connection keeps the batch until there is a new one: every write is a compare-and-set, so that a batch
whose commit went unheard can be applied again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
import structlog

from fencepost_ledger.admit import admit
from fencepost_ledger.case import Holding, House
from fencepost_ledger.connect import PATIENCE, connect, is_conflict, is_not_migrated, is_unavailable, unreachable
from fencepost_ledger.fence import raise_generations
from fencepost_ledger.names import name
from fencepost_ledger.settle import finalize, settle
from fencepost_ledger.verdicts import Admit, Failed, Finalize, Name, Op, Raise, Settle
from fencepost_ledger.watch import Watch

Entry = tuple[Op, Any]
Connection = psycopg.Connection[tuple[Any, ...]]

# Larger transactions gain nothing more and make the first of them wait; results are bounded in bytes as well.
MAX_BATCH = 500
MAX_BATCH_BYTES = 8 * 1024 * 1024
# Plans stay nested loops over indexes whatever the tables' statistics say of an empty or a growing ledger.
_PLANS = "-c enable_hashjoin=off -c enable_mergejoin=off -c enable_seqscan=off -c jit=off"
_BACKOFF = (0.05, 0.2, 0.5, 1.0)  # seconds; the last one repeats

log = structlog.get_logger("fencepost.ledger")


def transact(connection: Connection, ops: Sequence[Op], house: House, holding: Holding) -> list[Any]:
    """Apply a batch in one transaction → one answer per item, in order (Admitted, Finalized, None …)."""
    with connection.transaction(), connection.cursor() as cur:
        ends = finalize(cur, ends_, house, holding) if (ends_ := _of(ops, Finalize)) else []
        if settled := _of(ops, Settle):
            settle(cur, settled)
        if names := _of(ops, Name):
            name(cur, names, house)
        raised = raise_generations(cur, raises, house) if (raises := _of(ops, Raise)) else []
        admitted = admit(cur, admits, house, holding) if (admits := _of(ops, Admit)) else []
    answers = {Finalize: iter(ends), Raise: iter(raised), Admit: iter(admitted)}
    return [next(answers[type(op)]) if type(op) in answers else None for op in ops]


def _of(ops: Sequence[Op], kind: type[Any]) -> list[Any]:
    return [op for op in ops if type(op) is kind]


def _parts(batch: list[Entry]) -> Iterator[list[Entry]]:
    """The batch in order, in parts of a bounded count and size."""
    part: list[Entry] = []
    size = 0
    for entry in batch:
        weight = len(entry[0].result or "") if isinstance(entry[0], Finalize) else 0
        if part and (len(part) == MAX_BATCH or size + weight > MAX_BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += weight
    yield part


class GroupCommit(threading.Thread):
    """The ledger's writer.

    Args:
        deliver: called in this thread with the answers of a committed batch, as (token, answer).
        on_health: called in this thread with None when the ledger answers, or the one-line reason why it does not.
        watch: is told of batches.
    """

    def __init__(
        self,
        dsn: str,
        house: House,
        holding: Holding,
        deliver: Callable[[list[tuple[Any, Any]]], None],
        on_health: Callable[[str | None], None],
        *,
        watch: Watch = Watch(),  # noqa: B008 - it has no state
    ) -> None:
        super().__init__(name="fencepost-ledger", daemon=True)
        self._dsn, self._house, self._holding = dsn, house, holding
        # Frozen in the middle of a transaction (a suspended machine), it would hold up whoever wants the same rows for
        # as long as that lasts: after a lease of silence the server ends the transaction.
        self._options = f"{_PLANS} -c idle_in_transaction_session_timeout={house.lease // timedelta(milliseconds=1)}"
        self._deliver, self._on_health, self._watch = deliver, on_health, watch
        self._waiting: SimpleQueue[list[Entry] | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._connection: Connection | None = None
        self._batches = 0  # of this connection
        self._trouble: str | None = None

    def submit(self, entries: list[Entry]) -> None:
        """Queue operations with their tokens; callable from any thread."""
        self._waiting.put(entries)

    def stop(self) -> None:
        """End after what is queued; without a database, at once."""
        self._stopping.set()
        self._waiting.put(None)

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            while (batch := self._take()) is not None:
                for part in _parts(batch):
                    self._apply(part)

    def _take(self) -> list[Entry] | None:
        """Everything that waits, at least one entry; None at the end."""
        batch: list[Entry] = []
        entries = self._waiting.get()
        while entries is not None:
            batch += entries
            try:
                entries = self._waiting.get_nowait()
            except Empty:
                return batch
        self._waiting.put(None)
        return batch or None

    def _apply(self, batch: list[Entry]) -> None:
        attempt = 0
        while True:
            try:
                answers = self._transact(batch)
            except Exception as error:  # noqa: BLE001 - sorted by kind right here
                if not self._again(error, attempt):
                    return self._blame(batch, error)
                attempt += 1
                if self._stopping.is_set() and self._trouble:
                    return None
            else:
                self._well()
                return self._deliver([(token, answer) for (_, token), answer in zip(batch, answers, strict=True)])

    def _transact(self, batch: list[Entry]) -> list[Any]:
        self._holding.drop()
        connection = self._connected()
        began = time.perf_counter()
        answers = transact(connection, [op for op, _ in batch], self._house, self._holding)
        self._holding.keep()
        self._watch.committed(len(batch), time.perf_counter() - began)
        return answers

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection, self._batches = connect(self._dsn, patience=PATIENCE, options=self._options), 0
        self._batches += 1
        if self._batches & (self._batches - 1) == 0:
            # Before the 1st, 2nd, 4th, 8th … batch. A plan is kept until somebody analyzes the table, and the one that
            # is best for a ledger's first calls reads all of its calls for each batch of ends.
            self._connection.execute("DISCARD PLANS")
        return self._connection

    def _again(self, error: Exception, attempt: int) -> bool:
        """Whether the same batch is to be tried again; waits and reconnects where that is the cure."""
        if is_conflict(error):
            return True
        if not (is_unavailable(error) or is_not_migrated(error)):
            return False
        self._close()
        self._ill(str(error) if not isinstance(error, psycopg.Error) else unreachable(self._dsn, error))
        self._stopping.wait(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
        return True

    def _blame(self, batch: list[Entry], error: Exception) -> None:
        self._holding.drop()
        if len(batch) == 1:
            log.error("ledger refused an item", kind=type(batch[0][0]).__name__, error=type(error).__name__)
            return self._deliver([(batch[0][1], Failed(error))])
        self._apply(batch[: len(batch) // 2])
        self._apply(batch[len(batch) // 2 :])
        return None

    def _ill(self, reason: str) -> None:
        if self._trouble is None:
            log.warning("ledger unavailable", reason=reason)
            self._on_health(reason)
        self._trouble = reason

    def _well(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            log.info("ledger available again")
            self._on_health(None)

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._connection = None
