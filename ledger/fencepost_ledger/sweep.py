"""The sweeper: publishes what a crash left, ends what nobody came back for, forgets what is past its time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import structlog

from fencepost_ledger import statements as sql
from fencepost_ledger.admit import give_up
from fencepost_ledger.blobs import BlobsUnavailable
from fencepost_ledger.calls import CallRow, call_row
from fencepost_ledger.case import House
from fencepost_ledger.connect import PATIENCE, LedgerUnavailable, connect, is_not_migrated, is_unavailable, unreachable
from fencepost_ledger.memory import PLANS, Walk, forget
from fencepost_ledger.names import forget_blobs
from fencepost_ledger.watch import Backlog, Watch

# One sweeper at a time over the whole ledger; the number is arbitrary and ours.
_LOCK = 7_102_035_114
# Rows in one transaction: small, so that nobody waits for the sweeper.
_LIMIT = 500
# A live worker publishes within this age, in seconds; older outcomes were left by a crash or set by a person.
_UNSETTLED_AGE = timedelta(seconds=5)
# An orphan is one that even a redelivery had time to come back for, in leases.
_ORPHAN_LEASES = 4

log = structlog.get_logger("fencepost.sweep")


@dataclass(frozen=True, slots=True)
class Swept:
    """What one pass did: outcomes handed over for publishing, orphans ended, rows forgotten, their blobs deleted.

    `more`: there is more to forget, and another pass should follow at once.
    """

    unsettled: int
    orphans: int
    forgotten: int
    blobs: int = 0
    more: bool = False


def sweep(
    dsn: str,
    house: House,
    publish: Callable[[list[CallRow]], None],
    watch: Watch = Watch(),  # noqa: B008 - it has no state
    walk: Walk | None = None,
) -> Swept | None:
    """One pass. `publish` gets rows whose outcome nobody acknowledged; they come up again until they are settled.

    With a `walk` only a piece of the generations is looked at, from where it has come to.

    Returns:
        What was done, or None when another sweeper is at work.

    Raises:
        LedgerUnavailable, psycopg.Error
        BlobsUnavailable: when all but the blobs was done; their turn comes again.
    """
    try:
        with connect(dsn, patience=PATIENCE, options=PLANS) as connection:
            return _swept(connection, house, publish, watch, walk)
    except psycopg.Error as error:
        if is_unavailable(error):
            raise LedgerUnavailable(unreachable(dsn, error)) from None
        raise


def _swept(
    connection: psycopg.Connection[tuple[Any, ...]],
    house: House,
    publish: Callable[[list[CallRow]], None],
    watch: Watch,
    walk: Walk | None,
) -> Swept | None:
    if connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone() != (True,):
        return None
    orphans = _orphans(connection, house)
    left = _unsettled(connection)
    if left:
        publish(left)
    watch.found(_backlog(connection))
    gone = forget(connection, house, _LIMIT, walk)
    return Swept(len(left), orphans, gone.rows, forget_blobs(connection), gone.more)


def _orphans(connection: psycopg.Connection[tuple[Any, ...]], house: House) -> int:
    with connection.transaction(), connection.cursor() as cur:
        params = {"age": house.lease * _ORPHAN_LEASES, "limit": _LIMIT}
        rows = [call_row(row) for row in cur.execute(sql.PICK_ORPHANS.encode(), params)]
        return len(give_up(cur, rows))


def _unsettled(connection: psycopg.Connection[tuple[Any, ...]]) -> list[CallRow]:
    with connection.transaction(), connection.cursor() as cur:
        params = {"age": _UNSETTLED_AGE, "limit": _LIMIT}
        return [call_row(row) for row in cur.execute(sql.PICK_UNSETTLED.encode(), params)]


def _backlog(connection: psycopg.Connection[tuple[Any, ...]]) -> Backlog:
    (row,) = connection.execute(sql.BACKLOG.encode())
    return Backlog(*row)


class Sweeper(threading.Thread):
    """Sweeps every `period` seconds in every worker; connects only for the pass."""

    def __init__(
        self,
        dsn: str,
        house: House,
        period: float,
        publish: Callable[[list[CallRow]], None],
        watch: Watch = Watch(),  # noqa: B008 - it has no state
    ) -> None:
        super().__init__(name="fencepost-sweeper", daemon=True)
        self._dsn, self._house, self._period, self._publish, self._watch = dsn, house, period, publish, watch
        self._walk = Walk()
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        swept: Swept | None = None
        while not self._stopping.wait(0 if swept and swept.more else self._period):
            swept = None
            try:
                swept = sweep(self._dsn, self._house, self._publish, self._watch, self._walk)
            except (psycopg.Error, LedgerUnavailable) as error:
                log.warning("sweep failed", error=type(error).__name__)
                self._watch.swept(_trouble(self._dsn, error))
            except BlobsUnavailable as error:
                log.warning("blobs not swept", reason=str(error))
                self._watch.swept(None)
            else:
                self._watch.swept(None)
                if swept and (swept.unsettled or swept.orphans):
                    log.info("swept", unsettled=swept.unsettled, orphans=swept.orphans, forgotten=swept.forgotten)


def _trouble(dsn: str, error: Exception) -> str:
    if is_not_migrated(error):
        return "the ledger's tables are not there: run `fencepost migrate`"
    return unreachable(dsn, error) if isinstance(error, psycopg.Error) else str(error)
