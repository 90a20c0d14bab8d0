"""How far this machine's clock is from the database's, by which leases, deadlines and memory are judged."""

from __future__ import annotations

import time

from fencepost_ledger.connect import connect


def clock_offset(dsn: str) -> float:
    """Seconds by which the database is ahead of this machine (behind: negative), to about half a round trip.

    Raises:
        LedgerUnavailable
    """
    with connect(dsn) as connection:
        before = time.time()
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        after = time.time()
    there = float(str(row[0])) if row else after
    return there - (before + after) / 2
