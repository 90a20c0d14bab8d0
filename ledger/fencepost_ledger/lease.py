"""Lease renewal on a thread and a connection of its own: a tool that blocks the event loop cannot stop it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import structlog

from fencepost_ledger import statements as sql
from fencepost_ledger.calls import Term
from fencepost_ledger.case import Holding, House
from fencepost_ledger.connect import LedgerUnavailable, connect
from fencepost_ledger.watch import Watch

log = structlog.get_logger("fencepost.lease")


class LeaseKeeper(threading.Thread):
    """Renews every call in flight in one statement, four times per lease.

    Args:
        on_lost: called in this thread, once, with the terms that this process no longer holds.
        on_lapse: called in this thread with True when nothing could be renewed for a whole lease, False when it could.
    """

    def __init__(
        self,
        dsn: str,
        house: House,
        holding: Holding,
        on_lost: Callable[[list[Term]], None],
        on_lapse: Callable[[bool], None],
        *,
        watch: Watch = Watch(),  # noqa: B008 - it has no state
    ) -> None:
        super().__init__(name="fencepost-lease", daemon=True)
        self._dsn, self._house, self._holding = dsn, house, holding
        self._on_lost, self._on_lapse, self._watch = on_lost, on_lapse, watch
        self._lease = house.lease / timedelta(seconds=1)
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._reported: set[Term] = set()
        self._lapsed = False
        self._renewed_at = time.monotonic()
        self._pause = self._lease / 4

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(self._pause):
            self._turn()
        self._drop_connection()

    def _turn(self) -> None:
        began = time.monotonic()
        try:
            self._renew(self._holding.terms())
        except (psycopg.Error, LedgerUnavailable) as error:
            log.warning("leases not renewed", error=type(error).__name__)
            self._drop_connection()
            self._pause = self._lease / 16  # there is no time to lose
        else:
            self._renewed_at = began
            self._pause = self._lease / 4
        self._judge()

    def _judge(self) -> None:
        lapsed = time.monotonic() - self._renewed_at >= self._lease
        if lapsed != self._lapsed:
            self._lapsed = lapsed
            self._on_lapse(lapsed)

    def _renew(self, terms: list[Term]) -> None:
        if not terms:
            return
        cur = self._cursor()
        items = json.dumps([_item(term) for term in sorted(terms, key=_order)])
        params = {"items": items, "holder": self._house.holder, "lease": self._house.lease}
        renewed = cur.execute(sql.RENEW.encode(), params).rowcount
        self._watch.renewed(renewed)
        if renewed < len(terms):
            self._report(terms, {(e, bytes(k)) for e, k in cur.execute(sql.STILL_MINE.encode(), params)})

    def _report(self, asked: list[Term], mine: set[tuple[str, bytes]]) -> None:
        held = set(self._holding.terms())  # what ended meanwhile is not lost
        lost = {term for term in asked if (term.execution_id, term.key) not in mine and term in held}
        if new := lost - self._reported:
            self._on_lost(sorted(new, key=_order))
            self._watch.lost(len(new))
        self._reported = lost

    def _cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            # An answer that takes longer than a quarter of the lease is no answer: the next try opens a new connection.
            patience = self._lease / 4
            self._connection = connect(
                self._dsn,
                patience=patience,
                connect_timeout=max(1, int(patience)),
                options=f"-c statement_timeout={int(patience * 1000)} -c enable_seqscan=off",
            )
        return self._connection.cursor()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _order(term: Term) -> tuple[str, bytes]:
    return term.execution_id, term.key


def _item(term: Term) -> dict[str, Any]:
    return {"e": term.execution_id, "k": term.key.hex(), "a": term.attempt}
