"""A holder of the ledger as tests see it, one transaction at a time, and a look at what the tables say."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg

from fencepost_ledger import CallRow, Desk, State, Term
from fencepost_ledger.batch import GroupCommit, transact
from fencepost_ledger.calls import COLUMNS, call_row
from fencepost_ledger.case import Holding, House
from fencepost_ledger.verdicts import Admit, Finalize, Finalized, Op, Policy, Start, Verdict
from fencepost_schemas import arguments_hash
from fencepost_schemas.identity import invocation_key

Connection = psycopg.Connection[tuple[Any, ...]]
ORG, EXECUTION, NODE, TOOL = "acme", "x", "n", "mail.send"
PATIENCE = 20.0  # seconds until a test gives up on a signal
LOST = Finalized(False, 0, None)


def sha(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def call(event_id: str = "e1", arguments: dict[str, Any] | None = None, **more: Any) -> Admit:
    """A delivered dispatch: position 0 of one node, generation 1, unless `more` says otherwise."""
    fields: dict[str, Any] = {
        "execution_id": EXECUTION,
        "node_id": NODE,
        "call_index": 0,
        "generation": 1,
        "tool": TOOL,
        "arguments_hash": arguments_hash(arguments or {}),
        "policy": Policy(),
    } | more
    said = sorted((k, v) for k, v in fields.items() if k not in {"policy", "probe", "refused", "source"})
    return Admit(event_id=event_id, **{"digest": sha(said), **fields})


def key_of(item: Admit, org: str = ORG) -> bytes:
    assert item.arguments_hash is not None
    return invocation_key(org, item.execution_id, item.node_id, item.call_index, item.tool, item.arguments_hash)


def emptied(dsn: str) -> str:
    """The same database without a row of the ledger: that is quicker than a new one."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'fencepost'").fetchall()
        for (table,) in tables:
            if table != "alembic_version":
                connection.execute(f"DELETE FROM fencepost.{table}".encode())
    return dsn


class Holder:
    """What one process start does with the ledger: a connection, an id and the memory of what it runs."""

    def __init__(self, dsn: str, name: str, *, lease: float = 30.0, ttl_hours: float = 48.0, **house: Any) -> None:
        self.house = House(name, timedelta(seconds=lease), timedelta(hours=ttl_hours), **house)
        self.holding = Holding()
        self.connection: Connection = psycopg.connect(dsn, autocommit=True)

    @property
    def pid(self) -> int:
        """Of the server's process for this connection."""
        return self.connection.info.backend_pid

    def do(self, *ops: Op) -> list[Any]:
        """One committed transaction of the writer → its answers."""
        self.holding.drop()
        answers = transact(self.connection, ops, self.house, self.holding)
        self.holding.keep()
        return answers

    def unheard(self, *ops: Op) -> None:
        """A transaction that commits while its holder never hears of it."""
        transact(self.connection, ops, self.house, self.holding)
        self.holding.drop()

    def admit(self, *items: Admit) -> list[Verdict]:
        return [answer.verdict for answer in self.do(*items)]

    def look(self, item: Admit) -> Verdict:
        return self.admit(item)[0]

    def start(self, item: Admit) -> Term:
        """Admit a call that must start now → its term."""
        verdict = self.look(item)
        assert isinstance(verdict, Start), verdict
        assert verdict.term is not None
        return verdict.term

    def finalize(self, term: Term, state: State | str = "completed", **more: Any) -> Finalized:
        more = {"result": '"done"'} | more if state == "completed" else {"error": ERROR} | more
        finalized: Finalized = self.do(Finalize(term, State(state), **more))[0]
        return finalized

    def run(self, item: Admit, state: State | str = "completed", **more: Any) -> Term:
        """A call from its start to its recorded end."""
        term = self.start(item)
        assert self.finalize(term, state, **more).mine
        return term

    def close(self) -> None:
        self.connection.close()


ERROR = '{"code": "refused", "message": "did not act", "detail": null}'


class Book:
    """The tables, through a connection of the test's own; also the hand of the operator and of time."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection: Connection = psycopg.connect(dsn, autocommit=True)

    def ask(self, statement: str, *params: Any) -> list[tuple[Any, ...]]:
        cur = self.connection.execute(statement.encode(), params)
        return cur.fetchall() if cur.description else []

    def open(self, execution_id: str = EXECUTION, org: str = ORG) -> None:
        self.ask("INSERT INTO fencepost.executions (execution_id, org_id) VALUES (%s, %s)", execution_id, org)

    def rows(self) -> list[CallRow]:
        columns = ", ".join(COLUMNS)
        lease = "lease_until < clock_timestamp(), NULL::boolean"
        return [
            call_row(row) for row in self.ask(f"SELECT {columns}, {lease} FROM fencepost.calls ORDER BY started_at")
        ]

    def row(self) -> CallRow:
        (row,) = self.rows()
        return row

    def states(self) -> list[State]:
        return [row.state for row in self.rows()]

    def unsettled(self) -> list[tuple[int, int]]:
        """(revision, acknowledged) of what still needs somebody."""
        return self.ask("SELECT revision, acknowledged FROM fencepost.unsettled ORDER BY since")

    def generation(self, node: str = NODE) -> int | None:
        found = self.ask("SELECT generation FROM fencepost.generations WHERE node_id = %s", node)
        return found[0][0] if found else None

    def lease_over(self, seconds: float = 1.0) -> None:
        """Time goes by for every holder: all leases have been over for `seconds`."""
        past = "clock_timestamp() - make_interval(secs => %s)"
        self.ask(f"UPDATE fencepost.calls SET lease_until = {past} WHERE state = 'executing'", seconds)

    def age(self, hours: float) -> None:
        """Time goes by for the memory: everything was written `hours` earlier."""
        for table in ("calls", "events", "blobs"):
            self.ask(f"UPDATE fencepost.{table} SET expires_at = expires_at - make_interval(hours => %s)", hours)
        self.ask("UPDATE fencepost.unsettled SET since = since - make_interval(hours => %s)", hours)
        self.ask("UPDATE fencepost.calls SET finished_at = finished_at - make_interval(hours => %s)", hours)

    def rule(self, state: str) -> None:
        """A person rules on every unknown outcome: `completed`, `failed` or `released`."""
        with Desk(self.dsn) as desk:
            for row in list(desk.calls(State.indeterminate)):
                if state == "released":
                    desk.release(row, by="ann", reason="looked")
                else:
                    said = {"succeeded": '"ruled"'} if state == "completed" else {"failed": "not_there"}
                    desk.resolve(row, by="ann", reason="looked", **said)

    def wait_blocked(self, pid: int) -> None:
        """Return once the server's process `pid` waits for a lock."""
        self.wait(lambda: self.ask("SELECT cardinality(pg_blocking_pids(%s)) > 0", pid) == [(True,)])

    def wait_writer_blocked(self) -> int:
        """Return the writer thread's server process once it waits for a lock."""
        blocked = """SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost'
            AND datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"""
        self.wait(lambda: bool(self.ask(blocked)))
        return int(self.ask(blocked)[0][0])

    def wait(self, holds: Callable[[], bool]) -> None:
        """Return once `holds`, asked again with every round trip to the server."""
        until = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < until, "the signal never came"
            self.ask("SELECT pg_sleep(0.005)")

    def close(self) -> None:
        self.connection.close()


class Writer:
    """The ledger's own writer thread; `ask` waits for the answers, `heard` is what it said of its health."""

    def __init__(self, dsn: str, house: House) -> None:
        self.heard: queue.Queue[str | None] = queue.Queue()
        self.batches: list[int] = []
        self._answers: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.thread = GroupCommit(dsn, house, Holding(), self._deliver, self.heard.put)
        self.thread.start()

    def _deliver(self, answers: list[tuple[int, Any]]) -> None:
        self.batches.append(len(answers))
        for answer in answers:
            self._answers.put(answer)

    def submit(self, *ops: Op) -> None:
        self.thread.submit([(op, number) for number, op in enumerate(ops)])

    def answers(self, count: int) -> list[Any]:
        """The next `count` answers, in the order in which they were asked for."""
        return [answer for _, answer in sorted((self._answers.get(timeout=PATIENCE) for _ in range(count)), key=_first)]

    def ask(self, *ops: Op) -> list[Any]:
        self.submit(*ops)
        return self.answers(len(ops))

    def close(self) -> None:
        self.thread.stop()
        self.thread.join(PATIENCE)


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


class Thread(threading.Thread):
    """A thread whose answer, or whose error, `result` gives."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._answer: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:  # noqa: BLE001 - handed over by `result`
            self._error = error

    def result(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), "the thread never ended"
        if self._error is not None:
            raise self._error
        return self._answer


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Each work in a thread of its own, begun when all are ready → their answers."""
    barrier = threading.Barrier(len(works), timeout=PATIENCE)

    def met(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    threads = [Thread(partial(met, work)) for work in works]
    return [thread.result() for thread in threads]
