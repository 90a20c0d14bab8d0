"""The ledger as a worker holds it: writer, lease keeper and sweeper under one roof."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fencepost_ledger.batch import Entry, GroupCommit
from fencepost_ledger.calls import CallRow, Term
from fencepost_ledger.case import Holding, House
from fencepost_ledger.lease import LeaseKeeper
from fencepost_ledger.sweep import Sweeper
from fencepost_ledger.verdicts import OnDivergence
from fencepost_ledger.watch import Watch


def new_holder() -> str:
    """An id that no other process start ever had: a reused host or pod name must not hide an orphan."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(6)}"


class Ledger:
    """Owns the three threads. All callbacks are called in those threads, never in the caller's.

    Args:
        dsn: `postgresql://…`.
        holder: this process's id, see `new_holder`.
        lease_seconds, ttl_hours: the lease of a call; how long a call is remembered.
        deliver: answers of a committed batch, as (token, answer).
        on_lost: terms that this process no longer holds.
        on_lapse: True when no lease could be renewed for a whole lease, False when it could again.
        on_health: None when the ledger answers, else one line.
        publish: rows whose outcome nobody acknowledged (from the sweeper).
        watch: is told of the threads' work.
    """

    def __init__(
        self,
        dsn: str,
        *,
        holder: str,
        lease_seconds: float,
        ttl_hours: float,
        deliver: Callable[[list[tuple[Any, Any]]], None],
        on_lost: Callable[[list[Term]], None],
        on_lapse: Callable[[bool], None],
        on_health: Callable[[str | None], None],
        publish: Callable[[list[CallRow]], None] | None = None,
        default_org: str | None = None,
        on_divergence: OnDivergence = "refuse",
        watch: Watch = Watch(),  # noqa: B008 - it has no state
    ) -> None:
        self.house = House(
            holder, timedelta(seconds=lease_seconds), timedelta(hours=ttl_hours), default_org, on_divergence
        )
        holding = Holding()
        self._writer = GroupCommit(dsn, self.house, holding, deliver, on_health, watch=watch)
        self._leases = LeaseKeeper(dsn, self.house, holding, on_lost, on_lapse, watch=watch)
        self._sweeper = Sweeper(dsn, self.house, min(5.0, lease_seconds), publish, watch) if publish else None

    def start(self) -> None:
        """Start the threads; the connections open when they are needed."""
        self._writer.start()
        self._leases.start()
        if self._sweeper:
            self._sweeper.start()

    def submit(self, entries: list[Entry]) -> None:
        """Queue operations, each with a token that comes back with its answer; callable from any thread."""
        self._writer.submit(entries)

    def close(self, timeout: float = 5.0) -> bool:
        """End the threads, the writer after what is queued → False when something did not end in `timeout` seconds."""
        threads = [t for t in (self._sweeper, self._writer, self._leases) if t is not None and t.is_alive()]
        for thread in threads:
            if thread is not self._leases:
                thread.stop()
        self._writer.join(timeout) if self._writer.is_alive() else None
        # Leases are renewed to the last: the writer's final batch may still be on its way.
        self._leases.stop()
        for thread in threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in threads)
