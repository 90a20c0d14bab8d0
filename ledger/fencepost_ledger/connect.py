"""Connections to Postgres, and its errors sorted: not reachable, not migrated, try again, this item's own fault."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

# Connecting never hangs longer than this, in seconds; a dead peer is noticed within about half a minute.
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "application_name": "fencepost",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# How long an answer may take, in seconds: longer than any honest wait for a lock.
PATIENCE = 60.0
# Another try of the same transaction may succeed. A unique violation: somebody took the position between our look and
# our write, and the next look sees them.
_CONFLICT = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable, errors.UniqueViolation)
# SQLSTATEs of a server that is there and cannot serve us now (restart, failover to a standby, full disk, rights not yet
# granted), by class and by code (Postgres docs, appendix A). Class 54, a program's limit, is the item's own fault.
_UNAVAILABLE = ("08", "53", "57", "58", "25006", "25P03", "42501")


class LedgerUnavailable(Exception):
    """The ledger's Postgres cannot be reached or cannot serve."""


class NotMigrated(Exception):
    """The ledger's schema is not there or not of this version: run `fencepost migrate`."""


class _Impatient(psycopg.Connection[tuple[object, ...]]):
    patience: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


def connect(
    dsn: str, *, patience: float | None = None, **overrides: str | int
) -> psycopg.Connection[tuple[object, ...]]:
    """Open a connection; the DSN's own parameters win over our defaults.

    After `patience` seconds without an answer to a statement it raises OperationalError: a frozen server (a paused
    primary whose standby took over) keeps its connections open, and neither TCP nor its own time-outs end the wait.

    Raises:
        LedgerUnavailable: with one line that names the cure and never the password.
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
        connection = _Impatient.connect(make_conninfo("", **(_DEFAULTS | overrides | given)), autocommit=True)
    except psycopg.ProgrammingError:
        raise LedgerUnavailable("FENCEPOST_LEDGER_DSN is not a connection string: postgresql://user@host/db") from None
    except psycopg.OperationalError as error:
        raise LedgerUnavailable(unreachable(dsn, error)) from None
    connection.patience = patience
    return connection


def unreachable(dsn: str, error: Exception) -> str:
    """One line: which server, why, and what to look at; made of libpq's text, which never holds the password."""
    where = conninfo_to_dict(dsn)
    reason = " ".join(str(error).split()) or type(error).__name__
    server = f"{where.get('host', 'localhost')}:{where.get('port', 5432)}/{where.get('dbname', '')}"
    return f"Postgres at {server} cannot be used ({_reason(reason)}): check FENCEPOST_LEDGER_DSN and that it is running"


def _reason(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def is_conflict(error: Exception) -> bool:
    """A deadlock or serialization failure: run the same transaction again at once."""
    return isinstance(error, _CONFLICT)


def is_unavailable(error: Exception) -> bool:
    """The server or the way to it is gone for now: reconnect, and run the same transaction again."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, LedgerUnavailable)
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_UNAVAILABLE)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)  # libpq's own: the connection is gone


def is_not_migrated(error: Exception) -> bool:
    """The tables are not there."""
    return isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName | errors.UndefinedColumn)
