"""The schema's version: bring it up to date, and say whether this program fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from psycopg.errors import DeadlockDetected
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from fencepost_ledger.connect import LedgerUnavailable, NotMigrated, connect, unreachable
from fencepost_ledger.isolation import require_whole_sight
from fencepost_ledger.tables import SCHEMA

# Two migrations at once wait for each other on this advisory lock; the number is arbitrary and ours.
_LOCK = 7_102_035_113


def migrate(dsn: str) -> str:
    """Bring the schema to this program's version; safe to run twice, at once, and beside running workers.

    Returns:
        One line that says what was done.

    Raises:
        LedgerUnavailable, NotMigrated: the database cannot be reached, or is of a newer version than this program.
    """
    while True:
        try:
            before, after = _to_head(dsn)
        except CommandError as error:
            why = f"the ledger is of a newer version than this program ({error}): update fencepost"
            raise NotMigrated(why) from None
        except DBAPIError as error:
            # A running worker and we, each with a table that the other one wants: it was rolled back whole.
            if not isinstance(error.orig, DeadlockDetected):
                raise LedgerUnavailable(unreachable(dsn, error.orig or error)) from None
        else:
            break
    return f"the ledger is at {after}, nothing to do" if before == after else f"migrated the ledger: {before} → {after}"


def _to_head(dsn: str) -> tuple[str | None, str | None]:
    with _Database(dsn) as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        before = _version(connection)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return before, _version(connection)


def schema_status(dsn: str) -> tuple[Literal["current", "missing", "older", "newer"], str]:
    """Compare the database with this program → (status, one line with the cure).

    Raises:
        LedgerUnavailable
    """
    try:
        with _Database(dsn) as connection:
            found = _version(connection)
    except DBAPIError as error:
        raise LedgerUnavailable(unreachable(dsn, error.orig or error)) from None
    script = ScriptDirectory.from_config(_config())
    head = script.get_current_head()
    if found is None:
        return "missing", "the ledger's schema is not there: run `fencepost migrate`"
    if found == head:
        return "current", f"the ledger is at {found}"
    if found in {revision.revision for revision in script.walk_revisions()}:
        return "older", f"the ledger is at {found}, this program needs {head}: run `fencepost migrate`"
    return "newer", f"the ledger is at {found}, newer than this program's {head}: update fencepost"


def require_current(dsn: str) -> None:
    """Whether a worker can use it: of this program's version or newer (rolling upgrades), and wholly visible.

    Raises:
        NotMigrated, LedgerUnavailable: with the cure.
    """
    status, line = schema_status(dsn)
    if status in ("missing", "older"):
        raise NotMigrated(line)
    require_whole_sight(dsn)


class _Database:
    """One SQLAlchemy connection over our own `connect` (one place for defaults and errors), in a transaction."""

    def __init__(self, dsn: str) -> None:
        self._engine = create_engine("postgresql+psycopg://", creator=lambda: _plain(dsn), poolclass=NullPool)

    def __enter__(self) -> Connection:
        self._context = self._engine.begin()
        return self._context.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._context.__exit__(*exc)  # type: ignore[arg-type]
        self._engine.dispose()


def _plain(dsn: str) -> object:
    connection = connect(dsn)
    connection.autocommit = False
    return connection


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA}).get_current_revision()
