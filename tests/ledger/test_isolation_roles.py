"""Roles: a worker that is not the owner pays nothing for isolation, and an org's own operator stays in its org."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import psycopg
import pytest
from alembic import command
from psycopg import ClientCursor, errors

from fencepost_ledger import (
    Ambiguous,
    Desk,
    LedgerUnavailable,
    NotFound,
    NotMigrated,
    OrgConflict,
    State,
    make_roles,
    migrate,
    names,
    require_current,
    statements,
    sweep,
)
from fencepost_ledger.batch import _PLANS
from fencepost_ledger.case import House
from fencepost_ledger.schema import _config, _Database
from fencepost_ledger.tables import calls
from fencepost_ledger.verdicts import Finalize, Name, Op, Policy, Probe, Raise, Replay, Settle, Start
from services.holder import Book, Holder, Thread, Writer, at_once, call
from services.logins import Logins
from services.rulings import RULINGS, every_ruling

OURS, THEIRS = "acme", "zeta"
LEASE, TTL = timedelta(seconds=30), timedelta(hours=48)
IDEMPOTENT, PROBED = Policy("idempotent"), Policy(probed=True)


@pytest.fixture(scope="module")
def logins(module_database: str) -> Iterator[Logins]:
    with closing(Logins(module_database)) as made:
        yield made


@pytest.fixture(scope="module")
def worker(logins: Logins) -> str:
    return logins.new("worker")


# --- the worker -------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(worker: str, book: Book) -> Iterator[tuple[Holder, Holder]]:
    """Two workers that are not the owner."""
    with closing(Holder(worker, "w1", default_org="solo")) as one, closing(Holder(worker, "w2")) as other:
        yield one, other


def test_a_worker_that_is_not_the_owner_runs_calls_to_their_end(two: tuple[Holder, Holder], book: Book) -> None:
    one, other = two
    term = one.run(call())
    assert isinstance(other.look(call()), Replay)
    one.do(Settle(term.execution_id, term.key, 2))
    one.run(call("e2", call_index=1), "failed", retryable=True)
    assert other.start(call("e3", call_index=1, policy=IDEMPOTENT)).attempt == 2
    assert isinstance(one.look(call("solo", execution_id="new")), Start)
    assert book.ask("SELECT org_id FROM fencepost.executions WHERE execution_id = 'new'") == [("solo",)]


def test_a_worker_that_is_not_the_owner_deals_with_what_others_left(two: tuple[Holder, Holder], book: Book) -> None:
    one, other = two
    lost, found = call("e1"), call("e2", call_index=1, policy=PROBED)
    one.admit(lost, found)
    book.lease_over(seconds=99)
    assert isinstance(other.look(lost), Replay)
    answer = other.look(replace(found, event_id="e3", probe=Probe(1, "found", '"there"')))
    assert isinstance(answer, Replay)
    other.do(Raise("x", "n", 2), Settle("x", answer.row.key, 1, undecided=True))
    moved = other.look(call("e4", call_index=7, generation=2))
    assert isinstance(moved, Replay)
    assert {row.call_index: row.state for row in book.rows()} == {0: State.indeterminate, 1: State.completed}
    assert book.generation() == 2


def test_a_worker_that_is_not_the_owner_sweeps(two: tuple[Holder, Holder], worker: str, book: Book) -> None:
    one, _ = two
    term = one.run(call())
    one.do(Settle(term.execution_id, term.key, 2), Name("x", term.key, "memory:///o/b"))
    one.run(call("e2", call_index=1), "indeterminate")
    one.start(call("e3", call_index=2))
    book.lease_over(seconds=999)
    book.age(hours=99)
    published: list[Any] = []
    swept = sweep(worker, one.house, published.extend)
    assert swept is not None
    assert (swept.orphans, len(published) >= 1, swept.forgotten) == (1, True, 4)


def test_a_worker_sees_every_org(worker: str, logins: Logins, book: Book) -> None:
    book.open("y", THEIRS)
    with psycopg.connect(worker) as connection:
        connection.execute("SET fencepost.org = 'nobody'")
        assert len(connection.execute("SELECT FROM fencepost.executions").fetchall()) == 2


@pytest.mark.parametrize(
    "change",
    ["executions SET org_id = 'evil'", "calls SET org_id = 'evil'", "calls SET key = key", "org_roles SET org_id = ''"],
)
def test_not_even_a_worker_changes_whose_a_row_is(worker: str, book: Book, holder: Holder, change: str) -> None:
    holder.run(call())
    with psycopg.connect(worker) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(f"UPDATE fencepost.{change}".encode())


def test_a_worker_may_write_every_column_of_a_call_but_its_identity(worker: str, book: Book) -> None:
    identity = {"execution_id", "key", "org_id", "node_id", "call_index", "tool", "arguments_hash"}
    with psycopg.connect(worker) as connection:
        may = "SELECT has_column_privilege('fencepost.calls', %s, 'UPDATE')"
        written = {c.name for c in calls.columns if connection.execute(may, [c.name]).fetchone() == (True,)}
    assert written == {c.name for c in calls.columns} - identity


PARAMS: dict[str, Any] = {
    **dict.fromkeys(("holder", "org", "state", "by", "reason", "evidence", "execution", "error", "result"), "a"),
    **dict.fromkeys(("lease", "ttl", "age"), timedelta(1)),
    "items": "[]",
    "now": datetime.now(UTC),
    "limit": 1,
    "revision": 1,
    "key": b"",
    "uris": ["a"],
}
STATEMENTS = {
    name: text
    for module in (statements, names)
    for name, text in vars(module).items()
    if isinstance(text, str) and text.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"))
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_isolation_costs_a_worker_nothing(worker: str, book: Book, name: str) -> None:
    """The planner makes of each statement the same for a worker as for the owner."""
    assert plan(worker, STATEMENTS[name]) == plan(book.dsn, STATEMENTS[name])


def plan(dsn: str, statement: str) -> list[list[str]]:
    """The words of each line: conditions that are asked together stand in no fixed order."""
    with psycopg.connect(dsn, options=_PLANS) as connection:
        cur = ClientCursor(connection).execute(f"EXPLAIN (VERBOSE, COSTS OFF) {statement}".encode(), PARAMS)
        return [sorted(re.findall(r"[^\s()]+", line)) for (line,) in cur]


def test_a_worker_from_which_rows_are_hidden_does_not_start(logins: Logins, worker: str, book: Book) -> None:
    require_current(worker)
    require_current(book.dsn)
    for groups in (["reader", "every_org"], ["operator"]):
        with pytest.raises(LedgerUnavailable, match=r"row-level security hides.*GRANT fencepost_worker TO"):
            require_current(logins.new(*groups))


# --- the desk of one org ----------------------------------------------------------------------------------------------


@pytest.fixture
def unknown(book: Book, holder: Holder) -> Book:
    """Executions x of acme and y of zeta, each with a call whose outcome nobody knows."""
    book.open("y", THEIRS)
    for execution in "xy":
        holder.run(call(execution_id=execution), "indeterminate")
    return book


@pytest.fixture(params=["the owner for acme", "a login of acme", "a login of acme for acme", "a login of all for acme"])
def desk(request: pytest.FixtureRequest, logins: Logins, unknown: Book) -> Iterator[Desk]:
    """A desk that is acme's by what it was told, by what its login may see, or by both."""
    match request.param:
        case "the owner for acme":
            made = Desk(unknown.dsn, OURS)
        case "a login of all for acme":
            made = Desk(logins.new("operator", "every_org"), OURS)
        case _:
            made = Desk(logins.new("operator", orgs=[OURS]), OURS if "for" in request.param else None)
    with made as desk:
        yield desk


def rows(book: Book) -> dict[str, Any]:
    return {row.execution_id: row for row in book.rows()}


def test_the_desk_of_an_org_lists_what_is_its_own(desk: Desk) -> None:
    assert [one.execution_id for one in desk.executions()] == ["x"]
    assert [row.org_id for row in desk.calls()] == [row.org_id for row in desk.calls(State.indeterminate)] == [OURS]


def test_the_desk_of_an_org_does_not_know_another(desk: Desk, unknown: Book) -> None:
    assert not list(desk.executions(THEIRS))
    assert not list(desk.calls(org=THEIRS))
    assert not list(desk.calls(execution="y"))
    key = rows(unknown)["y"].key.hex()
    for prefix in (key, key[:8]):
        with pytest.raises(NotFound):
            desk.call(prefix)
    assert desk.call(rows(unknown)["x"].key.hex()).execution_id == "x"


def test_what_anothers_key_begins_with_makes_no_key_ambiguous(desk: Desk, unknown: Book) -> None:
    for table in ("calls", "unsettled"):
        unknown.ask(f"UPDATE fencepost.{table} SET key = decode(rpad(md5('') || md5(execution_id), 64), 'hex')")
    assert desk.call(hashlib.md5(b"").hexdigest()).execution_id == "x"
    with Desk(unknown.dsn) as everybodys, pytest.raises(Ambiguous):
        everybodys.call(hashlib.md5(b"").hexdigest())


def test_the_desk_of_an_org_changes_nothing_of_another(desk: Desk, unknown: Book) -> None:
    with pytest.raises(NotFound):
        desk.close_execution("y")
    with pytest.raises(NotFound):
        desk.redispatch("y", "n")
    for execution, org in [("y", THEIRS), ("y", OURS), ("new", THEIRS)]:
        with pytest.raises((OrgConflict, LedgerUnavailable)):
            desk.open_execution(execution, org)
    assert unknown.ask("SELECT execution_id, closed_at FROM fencepost.executions ORDER BY 1") == [
        ("x", None),
        ("y", None),
    ]


@every_ruling
def test_the_desk_of_an_org_rules_on_its_own_calls_alone(desk: Desk, unknown: Book, ruling: str) -> None:
    before = rows(unknown)
    with pytest.raises(NotFound):
        RULINGS[ruling](desk, before["y"])
    assert rows(unknown)["y"] == before["y"]
    assert RULINGS[ruling](desk, desk.call(before["x"].key.hex())).decided_by == "ann"
    assert desk.origin(before["x"]) is None


def test_the_desk_of_an_org_opens_closes_and_raises_its_own(desk: Desk, unknown: Book) -> None:
    assert desk.open_execution("new", OURS)
    assert not desk.open_execution("x", OURS)
    assert [desk.redispatch("x", "n") for _ in range(2)] == [2, 3]
    desk.close_execution("x")


def test_a_desk_leaves_no_setting_behind_for_the_next_user_of_the_session(unknown: Book) -> None:
    with Desk(unknown.dsn, OURS) as desk:
        list(desk.calls())
        next(iter(desk.executions()))
        with pytest.raises(NotFound):
            desk.close_execution("y")
        assert desk._run("SELECT current_setting('fencepost.org', true)", []) == [(OURS,)]
        assert desk._connection().execute("SELECT current_setting('fencepost.org', true)").fetchone() == ("",)


def test_an_orchestrator_rules_on_nothing(logins: Logins, unknown: Book) -> None:
    with Desk(logins.new("orchestrator", "every_org")) as desk:
        assert desk.open_execution("new", THEIRS)
        assert desk.redispatch("y", "n") == 2
        with pytest.raises(LedgerUnavailable, match="permission denied"):
            RULINGS["released"](desk, rows(unknown)["x"])


# --- making the roles -------------------------------------------------------------------------------------------------


def test_roles_are_made_twice_and_at_once_and_beside_running_workers(
    logins: Logins, book: Book, holder: Holder
) -> None:
    with holder.connection.transaction():
        holder.run(call())
        said = at_once(*[partial(make_roles, book.dsn)] * 3)
    assert len(set(said)) == 1
    assert "fencepost_worker" in said[0]


def test_who_may_not_make_roles_is_told_so(logins: Logins, worker: str, book: Book, empty_database: str) -> None:
    with pytest.raises(LedgerUnavailable, match="run it as the tables' owner, with CREATEROLE") as refused:
        make_roles(worker)
    assert "sesame" not in str(refused.value)
    with pytest.raises(NotMigrated, match="fencepost migrate"):
        make_roles(empty_database)


# --- the migration ----------------------------------------------------------------------------------------------------


def migrate_to(dsn: str, revision: str) -> None:
    """As `migrate`, to an earlier revision."""
    with _Database(dsn) as connection:
        connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS fencepost")
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def test_a_deployers_view_in_the_place_of_executions_is_left_alone(empty_database: str) -> None:
    migrate_to(empty_database, "0001")
    with closing(Book(empty_database)) as book:
        book.ask("ALTER TABLE fencepost.executions RENAME TO runs")
        book.ask("CREATE VIEW fencepost.executions AS SELECT * FROM fencepost.runs")
        migrate(empty_database)
        book.open()
        book.open("y", THEIRS)
        with closing(Holder(empty_database, "h")) as holder, closing(Logins(empty_database)) as logins:
            holder.admit(call(), call(execution_id="y"))
            reader = logins.connect("reader", orgs=[OURS])
            for table in ("calls", "events", "generations", "unsettled"):
                assert reader.execute(f"SELECT execution_id FROM fencepost.{table}".encode()).fetchall() == [("x",)]


def test_isolation_is_switched_on_beside_running_workers(empty_database: str) -> None:
    migrate_to(empty_database, "0001")
    with closing(Book(empty_database)) as book, ExitStack() as stack:
        book.open()
        writers = [stack.enter_context(closing(Writer(empty_database, House(name, LEASE, TTL)))) for name in "ab"]
        enough = Event()
        running = [Thread(partial(keep_busy, writer, str(n), enough)) for n, writer in enumerate(writers)]
        book.wait(lambda: len(book.rows()) > 50)
        migrate(empty_database)
        before = len(book.rows())
        book.wait(lambda: len(book.rows()) > before + 50)
        enough.set()
        assert sum(thread.result() for thread in running) == len(book.rows())
        assert set(book.states()) == {State.completed}


def keep_busy(writer: Writer, node: str, enough: Event) -> int:
    """Ends a call and starts the next one in the same transaction, over and over → how many."""
    ended: list[Op] = []
    for number in count():
        if enough.is_set():
            break
        *_, answer = writer.ask(*ended, call(f"{node}-{number}", node_id=node, call_index=number))
        assert isinstance(answer.verdict, Start), answer
        assert answer.verdict.term is not None
        ended = [Finalize(answer.verdict.term, State.completed, result="1")]
    assert all(one.mine for one in writer.ask(*ended))
    return number
