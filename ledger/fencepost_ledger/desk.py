"""The desk: what the SDK and the command line read and write, one call at a time, off the hot path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import psycopg

from fencepost_ledger import statements as sql
from fencepost_ledger.calls import COLUMNS, CallRow, Source, State, call_row
from fencepost_ledger.connect import LedgerUnavailable, NotMigrated, connect, is_conflict, is_not_migrated, unreachable
from fencepost_ledger.isolation import NARROW
from fencepost_ledger.rulings import Judgement, Moved, did_not_happen, happened
from fencepost_ledger.settle import settle
from fencepost_ledger.verdicts import OnDivergence, Settle

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

    With an `org` it is the desk of that org alone: what belongs to another one is not there, and cannot be made or
    changed. Where row-level security applies, it is narrowed to that org as well (`fencepost_ledger.isolation`).

    Raises (every method):
        LedgerUnavailable, NotMigrated: with one line that names the cure.
    """

    def __init__(self, dsn: str, org: str | None = None) -> None:
        self._dsn, self._org = dsn, org
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

    def open_execution(self, execution_id: str, org_id: str, *, on_divergence: OnDivergence | None = None) -> bool:
        """Open the execution under `org_id`, or find it open under it → True when it is new.

        `on_divergence`, where given, stands over the setting of the workers; a tool's own stands over both.

        Raises:
            OrgConflict: it is there under another org; a trusted row never changes hands.
        """
        if self._org not in (None, org_id):
            raise OrgConflict(f"this is the desk of {self._org!r}, not of {org_id!r}")
        new = self._run(
            "INSERT INTO fencepost.executions (execution_id, org_id, on_divergence) VALUES (%s, %s, %s)"
            " ON CONFLICT (execution_id) DO NOTHING RETURNING 1",
            [execution_id, org_id, on_divergence],
        )
        if new:
            return True
        found = self._run("SELECT org_id FROM fencepost.executions WHERE execution_id = %s", [execution_id])
        if not found or found[0][0] != org_id:  # not found: it is there, and hidden from us
            raise OrgConflict(f"execution {execution_id!r} belongs to another org than {org_id!r}")
        if on_divergence is not None:
            self._run(
                "UPDATE fencepost.executions SET on_divergence = %s WHERE execution_id = %s RETURNING 1",
                [on_divergence, execution_id],
            )
        return False

    def close_execution(self, execution_id: str) -> None:
        """No new call of it starts any more; what is recorded is still answered. Raises NotFound."""
        closed = self._run(
            "UPDATE fencepost.executions SET closed_at = coalesce(closed_at, now())"
            f" WHERE execution_id = %(execution)s AND {_OURS} RETURNING 1",
            {"execution": execution_id, "ours": self._org},
        )
        if not closed:
            raise NotFound(f"no execution {execution_id!r}: see `fencepost executions list`")

    def executions(self, org: str | None = None) -> Iterator[Execution]:
        """The trusted rows, oldest first."""
        statement = (
            "SELECT execution_id, org_id, opened_at, closed_at FROM fencepost.executions"
            f" WHERE (%(org)s::text IS NULL OR org_id = %(org)s) AND {_OURS} ORDER BY opened_at, execution_id"
        )
        for row in self._stream(statement, {"org": org, "ours": self._org}):
            yield Execution(*row)

    def redispatch(self, execution_id: str, node_id: str) -> int:
        """Raise the node's generation by one and return it (the first time: 2). From here on no older call starts.

        Raises:
            NotFound: nobody opened the execution.
        """
        raised = self._run(
            "INSERT INTO fencepost.generations AS g (execution_id, node_id, generation)"
            " SELECT execution_id, %(node)s, 2 FROM fencepost.executions"
            f" WHERE execution_id = %(execution)s AND {_OURS}"
            " ON CONFLICT (execution_id, node_id) DO UPDATE SET generation = g.generation + 1, raised_at = now()"
            " RETURNING generation",
            {"node": node_id, "execution": execution_id, "ours": self._org},
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
              AND (%(execution)s::text IS NULL OR c.execution_id = %(execution)s) AND {_OURS}
            ORDER BY c.started_at, c.key LIMIT %(limit)s"""
        params = {"state": state, "execution": execution, "org": org, "ours": self._org, "limit": limit}
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
            statement = f"SELECT {_ROW}, {_LEASE} FROM {source} c WHERE c.key BETWEEN %(low)s AND %(high)s AND {_OURS}"
            rows = self._run(statement + " LIMIT 2", {"low": low, "high": high, "ours": self._org})
            if len(rows) > 1:
                raise Ambiguous(f"more than one call begins with {key_prefix}: give more digits")
            if rows and (source != _OPEN or len(key_prefix) == _KEY_HEX):
                return call_row(rows[0])
        raise NotFound(f"no call begins with {key_prefix}: see `fencepost calls list`")

    def resolve(
        self,
        shown: CallRow,
        *,
        by: str,
        reason: str,
        evidence: str | None = None,
        succeeded: str | None = None,
        failed: str | None = None,
        message: str | None = None,
    ) -> CallRow:
        """Rule on an unknown outcome, as it was `shown` → the row as it is now. The sweeper publishes the ruling.

        Either `succeeded`, the result as a JSON text, or `failed`, the code of an error (its `message` is the reason
        unless given): then it did not happen, and is never run again. The same ruling once more is fine.

        Raises:
            ValueError: nothing or too much was said; `Refused` with a JSON path for a result that is no strict JSON.
            Moved: the row is another one by now, or was no unknown outcome. NotFound.
        """
        who = {"by": by, "reason": reason, "evidence": evidence}
        if succeeded is not None and failed is None:
            return self._rule(shown, happened(succeeded, **who))
        if failed is not None and succeeded is None:
            return self._rule(shown, did_not_happen(failed, message, **who))
        raise ValueError("say either what it succeeded with or why it failed")

    def release(self, shown: CallRow, by: str, reason: str, evidence: str | None = None) -> CallRow:
        """Let a call of unknown outcome, as it was `shown`, start again at its next delivery → the row as it is now.

        The same release once more is fine, until the call has started again. Raises as `resolve` does.
        """
        return self._rule(shown, Judgement(State.released, by, reason, evidence))

    def settle(self, acknowledged: Iterable[Settle]) -> None:
        """The broker has these outcomes."""
        try:
            with self._narrowed() as connection, connection.transaction(), connection.cursor() as cur:
                settle(cur, list(acknowledged))
        except psycopg.Error as error:
            raise self._sorted(error) from None

    def origin(self, row: CallRow) -> Source | None:
        """Where on Kafka the event of the row's attempt came from; None when it came in process, or is forgotten."""
        self._require_ours(row)
        found = self._run(
            'SELECT topic, partition, "offset" FROM fencepost.events WHERE execution_id = %s AND event_id = %s',
            [row.execution_id, row.event_id],
        )
        return Source(*found[0]) if found and found[0][0] is not None else None

    def _rule(self, shown: CallRow, judgement: Judgement) -> CallRow:
        self._require_ours(shown)
        which = {"execution": shown.execution_id, "key": shown.key, "revision": shown.revision}
        if ruled := self._run(sql.RULE, judgement.as_params() | which):
            return call_row(ruled[0])
        now = self.call(shown.key.hex())
        if judgement.stands(now, shown.attempt):
            return now
        raise Moved(now, shown.revision)

    def _require_ours(self, row: CallRow) -> None:
        if self._org not in (None, row.org_id):
            raise NotFound(f"no such call of {self._org!r}: see `fencepost calls list`")

    @contextmanager
    def _narrowed(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """The connection; where row-level security applies, it sees the desk's org alone until the block ends."""
        connection = self._connection()
        if self._org is None:
            yield connection
            return
        with connection.transaction():
            connection.execute(NARROW.encode(), [self._org])
            yield connection

    def _connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._open is None or self._open.closed:
            self._open = connect(self._dsn)
        return self._open

    def _run(self, statement: str, params: Any) -> list[tuple[Any, ...]]:
        while True:
            try:
                with self._narrowed() as connection:
                    return connection.execute(statement.encode(), params).fetchall()
            except psycopg.Error as error:
                if not is_conflict(error):  # else a worker was in the way, and it was rolled back whole
                    raise self._sorted(error) from None

    def _stream(self, statement: str, params: Any) -> Iterator[tuple[Any, ...]]:
        try:
            with self._narrowed() as connection, connection.transaction(), connection.cursor("listing") as cur:
                cur.itersize = _CHUNK
                yield from cur.execute(statement.encode(), params)
        except psycopg.Error as error:
            raise self._sorted(error) from None

    def _sorted(self, error: psycopg.Error) -> Exception:
        if is_not_migrated(error):
            return NotMigrated("the ledger's schema is not there: run `fencepost migrate`")
        if isinstance(error, psycopg.DataError):
            return ValueError(f"the ledger cannot hold such a value: {error.diag.message_primary}")
        self.close()
        return LedgerUnavailable(unreachable(self._dsn, error))


# Of the desk's org, when it has one; no table is named twice in a statement with it.
_OURS = "(%(ours)s::text IS NULL OR org_id = %(ours)s)"
_OPEN = "(SELECT c.* FROM fencepost.unsettled u JOIN fencepost.calls c USING (execution_id, key))"


def _source(state: State | None) -> str:
    """Executing and indeterminate calls all stand in the small table of what still needs somebody."""
    return _OPEN if state in (State.executing, State.indeterminate) else "fencepost.calls"


def _range(prefix: str) -> tuple[bytes, bytes]:
    digits = prefix.lower()
    if not _MIN_PREFIX <= len(digits) <= _KEY_HEX or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"{prefix!r} is not an invocation key: give {_MIN_PREFIX} to {_KEY_HEX} hex digits of it")
    return bytes.fromhex(digits.ljust(_KEY_HEX, "0")), bytes.fromhex(digits.ljust(_KEY_HEX, "f"))
