"""The desk: what the SDK and the command line read and write, one call at a time, off the hot path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import psycopg

from fencepost_ledger.calls import COLUMNS, CallRow, State, call_row
from fencepost_ledger.connect import LedgerUnavailable, NotMigrated, connect, is_not_migrated, unreachable

_ROW = ", ".join(f"c.{name}" for name in COLUMNS)
_LEASE = "c.lease_until < clock_timestamp(), NULL::boolean"
# Rows fetched at a time from a listing, so that ten million calls do not fill the memory.
_CHUNK = 500
_MIN_PREFIX, _KEY_HEX = 4, 64


class NotFound(Exception):
    """There is no such row."""


class Ambiguous(Exception):
    """The prefix names more than one call."""


class OrgConflict(Exception):
    """The execution is open under another org."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The trusted row: whose execution it is. `closed_at` is None while new calls may start."""

    execution_id: str
    org_id: str
    opened_at: datetime
    closed_at: datetime | None

    def as_json(self) -> dict[str, Any]:
        """Times in RFC 3339."""
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in asdict(self).items()}


class Desk:
    """One connection to the ledger, for trusted callers; a context manager.

    Raises (every method):
        LedgerUnavailable, NotMigrated: with one line that names the cure.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._open: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        self._connection()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def open_execution(self, execution_id: str, org_id: str) -> bool:
        """Open the execution under `org_id`, or find it open under it → True when it is new.

        Raises:
            OrgConflict: it is there under another org; a trusted row never changes hands.
        """
        new = self._run(
            "INSERT INTO fencepost.executions (execution_id, org_id) VALUES (%s, %s)"
            " ON CONFLICT (execution_id) DO NOTHING RETURNING 1",
            [execution_id, org_id],
        )
        if new:
            return True
        found = self._run("SELECT org_id FROM fencepost.executions WHERE execution_id = %s", [execution_id])
        if found and found[0][0] != org_id:
            raise OrgConflict(f"execution {execution_id!r} belongs to another org than {org_id!r}")
        return False

    def close_execution(self, execution_id: str) -> None:
        """No new call of it starts any more; what is recorded is still answered. Raises NotFound."""
        closed = self._run(
            "UPDATE fencepost.executions SET closed_at = coalesce(closed_at, now())"
            " WHERE execution_id = %s RETURNING 1",
            [execution_id],
        )
        if not closed:
            raise NotFound(f"no execution {execution_id!r}: see `fencepost executions list`")

    def executions(self, org: str | None = None) -> Iterator[Execution]:
        """The trusted rows, oldest first."""
        statement = (
            "SELECT execution_id, org_id, opened_at, closed_at FROM fencepost.executions"
            " WHERE %(org)s::text IS NULL OR org_id = %(org)s ORDER BY opened_at, execution_id"
        )
        for row in self._stream(statement, {"org": org}):
            yield Execution(*row)

    def redispatch(self, execution_id: str, node_id: str) -> int:
        """Raise the node's generation by one and return it (the first time: 2). From here on no older call starts.

        Raises:
            NotFound: nobody opened the execution.
        """
        raised = self._run(
            "INSERT INTO fencepost.generations AS g (execution_id, node_id, generation)"
            " SELECT x.execution_id, %s, 2 FROM fencepost.executions x WHERE x.execution_id = %s"
            " ON CONFLICT (execution_id, node_id) DO UPDATE SET generation = g.generation + 1, raised_at = now()"
            " RETURNING generation",
            [node_id, execution_id],
        )
        if not raised:
            raise NotFound(f"no execution {execution_id!r}: open it with `fencepost executions open`")
        return int(raised[0][0])

    def calls(
        self, state: State | None = None, execution: str | None = None, org: str | None = None, limit: int | None = None
    ) -> Iterator[CallRow]:
        """Calls that match every given filter, oldest first."""
        statement = f"""
            SELECT {_ROW}, {_LEASE} FROM {_source(state)} c
            WHERE (%(state)s::text IS NULL OR c.state = %(state)s) AND (%(org)s::text IS NULL OR c.org_id = %(org)s)
              AND (%(execution)s::text IS NULL OR c.execution_id = %(execution)s)
            ORDER BY c.started_at, c.key LIMIT %(limit)s"""
        params = {"state": state, "execution": execution, "org": org, "limit": limit}
        for row in self._stream(statement, params):
            yield call_row(row)

    def call(self, key_prefix: str) -> CallRow:
        """The call whose invocation key begins with `key_prefix` (4 to 64 hex digits).

        Raises:
            ValueError: not a prefix of a key. NotFound, Ambiguous.
        """
        low, high = _range(key_prefix)
        # What an operator asks for is nearly always in the small table; the large one has no index by key alone.
        for source in (_OPEN, "fencepost.calls"):
            statement = f"SELECT {_ROW}, {_LEASE} FROM {source} c WHERE c.key BETWEEN %s AND %s LIMIT 2"
            rows = self._run(statement, [low, high])
            if len(rows) > 1:
                raise Ambiguous(f"more than one call begins with {key_prefix}: give more digits")
            if rows and (source != _OPEN or len(key_prefix) == _KEY_HEX):
                return call_row(rows[0])
        raise NotFound(f"no call begins with {key_prefix}: see `fencepost calls list`")

    def _connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._open is None or self._open.closed:
            self._open = connect(self._dsn)
        return self._open

    def _run(self, statement: str, params: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection().execute(statement.encode(), params).fetchall()
        except psycopg.Error as error:
            raise self._sorted(error) from None

    def _stream(self, statement: str, params: Any) -> Iterator[tuple[Any, ...]]:
        try:
            connection = self._connection()
            with connection.transaction(), connection.cursor("listing") as cur:
                cur.itersize = _CHUNK
                yield from cur.execute(statement.encode(), params)
        except psycopg.Error as error:
            raise self._sorted(error) from None

    def _sorted(self, error: psycopg.Error) -> Exception:
        if is_not_migrated(error):
            return NotMigrated("the ledger's schema is not there: run `fencepost migrate`")
        self.close()
        return LedgerUnavailable(unreachable(self._dsn, error))


_OPEN = "(SELECT c.* FROM fencepost.unsettled u JOIN fencepost.calls c USING (execution_id, key))"


def _source(state: State | None) -> str:
    """Executing and indeterminate calls all stand in the small table of what still needs somebody."""
    return _OPEN if state in (State.executing, State.indeterminate) else "fencepost.calls"


def _range(prefix: str) -> tuple[bytes, bytes]:
    digits = prefix.lower()
    if not _MIN_PREFIX <= len(digits) <= _KEY_HEX or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"{prefix!r} is not an invocation key: give {_MIN_PREFIX} to {_KEY_HEX} hex digits of it")
    return bytes.fromhex(digits.ljust(_KEY_HEX, "0")), bytes.fromhex(digits.ljust(_KEY_HEX, "f"))
