"""Memory: what is past its time goes, and quickly; nothing goes that is needed, or without which a call could start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product

import psycopg
import pytest

from fencepost_ledger import Desk, State, memory, sweep
from fencepost_ledger.case import House
from fencepost_ledger.memory import GRACE, PLANS, Walk, forget
from fencepost_ledger.sweep import Sweeper
from fencepost_ledger.verdicts import Fenced, Policy, Raise, Rejected
from services.holder import Book, Connection, Holder, call

HOUSE = House("sweeper", timedelta(days=99), timedelta(hours=48))
POLICIES = {"protected": Policy(), "idempotent": Policy("idempotent"), "read-only": Policy("read_only")}

FILL = """
WITH made AS (
    INSERT INTO fencepost.calls (execution_id, key, org_id, node_id, call_index, tool, arguments_hash, generation,
        attempt, state, holder, lease_until, event_id, result, error,
        decided_by, decided_reason, decided_at, decided_attempt, started_at, finished_at, expires_at)
    SELECT 'x', sha256((kind || i)::bytea), 'acme', kind, i, 't', sha256(''), 1,
        1, state, 'h', CASE state WHEN 'executing' THEN now() END, kind || i,
        CASE state WHEN 'completed' THEN '1' END, CASE WHEN state IN ('failed', 'indeterminate') THEN '{}' END,
        ruled, ruled, now() + ruled::interval, 1 + ruled::integer,
        now(), CASE WHEN state IN ('completed', 'failed') THEN now() END, now() + age + i * age / 1e9
    FROM (VALUES (%(state)s, %(age)s::interval, %(kind)s)) v(state, age, kind),
        LATERAL (VALUES (CASE state WHEN 'released' THEN '0' END)) w(ruled), generate_series(1, %(count)s) i
    RETURNING execution_id, event_id, key, expires_at
), asked AS (
    INSERT INTO fencepost.events (execution_id, event_id, digest, key, expires_at)
    SELECT execution_id, event_id, key, key, expires_at FROM made
)
INSERT INTO fencepost.unsettled (execution_id, key, revision) SELECT execution_id, key, 1 FROM made WHERE %(unsettled)s
"""


def fill(book: Book, number: int, state: str = "completed", age: str = "-1 hour", unsettled: bool = False) -> str:
    """So many calls of one kind, each with its event; `age` is when they expire → the node at which they stand."""
    kind = f"{state}, {age}, {unsettled}"
    params = {"count": number, "state": state, "age": age, "unsettled": unsettled, "kind": kind}
    book.connection.execute(FILL, params)
    return kind


def count(book: Book, table: str) -> int:
    ((number,),) = book.ask(f"SELECT count(*) FROM fencepost.{table}")
    return int(number)


@pytest.fixture
def sweeping(book: Book) -> Iterator[Connection]:
    """A connection as the sweeper has it."""
    with psycopg.connect(book.dsn, autocommit=True, options=PLANS) as connection:
        yield connection


# --- calls and events -------------------------------------------------------------------------------------------------


def test_calls_go_that_are_past_their_time_and_have_ended_and_are_settled(book: Book) -> None:
    kinds = list(product(State, ["1 hour", "-5 minutes", "-16 minutes", "-9 days"], [True, False]))
    nodes = {fill(book, 2, state, age, unsettled): (state, age, unsettled) for state, age, unsettled in kinds}
    sweep(book.dsn, HOUSE, lambda _: None)
    stays = {
        node
        for node, (state, age, unsettled) in nodes.items()
        if unsettled or state in (State.executing, State.indeterminate) or age in ("1 hour", "-5 minutes")
    }
    left = [node for (node,) in book.ask("SELECT node_id FROM fencepost.calls")]
    assert sorted(left) == sorted([*stays, *stays])
    assert count(book, "events") == len(kinds), "of each age alike, two of every four"
    assert count(book, "unsettled") == len(kinds)


TABLES = "fencepost.calls, fencepost.events, fencepost.unsettled"
FOUND = {
    memory._CALLS: ["calls_expires on calls c\n +Index Cond: ..expires_at >=", "calls_pkey on calls d\n +Index Cond"],
    memory._EVENTS: [
        "events_expires on events v\n +Index Cond: ..expires_at >=",
        "events_pkey on events d\n +Index Cond",
    ],
    memory._GENERATIONS: ["generations_pkey on generations g\n +Index Cond: .ROW"],
}


@pytest.mark.parametrize("statistics", ["none", "of empty tables", "of full tables"])
def test_what_goes_is_found_by_an_index_whatever_the_statistics_say(
    book: Book, sweeping: Connection, statistics: str
) -> None:
    book.ask(f"TRUNCATE {TABLES}")
    if statistics == "of empty tables":
        book.ask(f"ANALYZE {TABLES}")
    fill(book, 5_000)
    if statistics == "of full tables":
        book.ask(f"ANALYZE {TABLES}")
    values = {"after": "-infinity", "grace": GRACE, "kept": GRACE, "limit": 500, "execution": "", "node": ""}
    for statement, indexes in FOUND.items():
        cur = psycopg.ClientCursor(sweeping).execute(f"EXPLAIN (COSTS OFF) {statement}".encode(), values)
        plan = "\n".join(line for (line,) in cur)
        assert all(re.search(index, plan) for index in indexes), plan
        assert not re.search(r"Seq Scan|Bitmap|Hash|Merge", plan), plan


def test_what_is_deleted_is_not_walked_through_again_while_a_backup_holds_it(book: Book, sweeping: Connection) -> None:
    """Twenty batches, each from the beginning, would read ten times as many entries of the index."""
    book.ask(f"TRUNCATE {TABLES}")
    fill(book, 2_000)
    before = read_entries(book)
    with psycopg.connect(book.dsn) as backup:
        backup.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        backup.execute("SELECT 1 FROM fencepost.calls LIMIT 1")
        assert forget(sweeping, HOUSE, 100, None).rows == 4_000
    sweeping.execute("SELECT pg_stat_force_next_flush()")
    assert 2_000 <= read_entries(book) - before < 4_000


def read_entries(book: Book) -> int:
    book.ask("SELECT pg_stat_clear_snapshot()")
    ((entries,),) = book.ask("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'calls_expires'")
    return int(entries)


def test_a_row_that_somebody_works_on_is_left_for_another_pass(book: Book, sweeping: Connection) -> None:
    fill(book, 3)
    with psycopg.connect(book.dsn) as other:
        other.execute("SELECT FROM fencepost.calls WHERE call_index = 2 FOR SHARE")
        assert forget(sweeping, HOUSE, 100, None).rows == 5
    assert forget(sweeping, HOUSE, 100, None).rows == 1


def test_a_backlog_is_forgotten_in_passes_that_follow_at_once(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them outcomes are published and orphans ended."""
    monkeypatch.setattr(memory, "PASS", 1_000)
    fill(book, 2_500)
    sweeper = Sweeper(book.dsn, HOUSE, 60.0, lambda _: None)
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) > 4

    monkeypatch.setattr(sweeper._stopping, "wait", wait)
    sweeper.run()
    assert (pauses, count(book, "calls")) == ([60.0, 0, 0, 60.0, 60.0], 0)


# --- generations ------------------------------------------------------------------------------------------------------


def raised(holder: Holder, book: Book, *, closed: str | None, raised: str) -> None:
    """Node n at generation 5, raised and its execution closed so long ago."""
    holder.do(Raise("x", "n", 5))
    book.ask("UPDATE fencepost.generations SET raised_at = now() - %s::interval", raised)
    book.ask("UPDATE fencepost.executions SET closed_at = now() - %s::interval", closed)


@pytest.mark.parametrize(
    "closed, ago, left",
    [
        (None, "9 years", 5),
        ("1 hour", "9 years", 5),
        ("48 hours", "9 years", 5),
        ("49 hours", "1 hour", 5),
        ("49 hours", "48 hours", 5),
        ("49 hours", "49 hours", None),
    ],
)
def test_a_generation_goes_with_a_closed_execution_once_both_are_past_the_memory(
    holder: Holder, book: Book, closed: str | None, ago: str, left: int | None
) -> None:
    raised(holder, book, closed=closed, raised=ago)
    sweep(book.dsn, HOUSE, lambda _: None)
    assert book.generation() == left


@pytest.mark.parametrize("state", [State.completed, State.indeterminate, State.released, State.failed])
def test_a_generation_stays_while_a_call_of_its_node_is_on_record(holder: Holder, book: Book, state: State) -> None:
    holder.run(call(), State.indeterminate if state is State.released else state)
    if state is State.released:
        book.rule(state)
    raised(holder, book, closed="9 years", raised="9 years")
    sweep(book.dsn, HOUSE, lambda _: None)
    assert book.generation() == 5


@pytest.mark.parametrize("policy", POLICIES)
def test_of_an_open_execution_no_older_call_starts_however_long_ago_it_was_raised(
    holder: Holder, book: Book, policy: str
) -> None:
    raised(holder, book, closed=None, raised="9 years")
    sweep(book.dsn, HOUSE, lambda _: None)
    assert holder.look(call(generation=4, policy=POLICIES[policy])) == Fenced(5)


@pytest.mark.parametrize("generation", [1, 4, 5, 6])
@pytest.mark.parametrize("policy", POLICIES)
def test_where_the_fence_is_forgotten_nothing_starts(
    new_holder: Callable[..., Holder], book: Book, policy: str, generation: int
) -> None:
    holder = new_holder(default_org="solo")
    raised(holder, book, closed="9 years", raised="9 years")
    sweep(book.dsn, HOUSE, lambda _: None)
    assert book.generation() is None
    with Desk(book.dsn) as desk:
        assert not desk.open_execution("x", "acme"), "closed for good"
    verdict = holder.look(call(generation=generation, policy=POLICIES[policy]))
    assert isinstance(verdict, Rejected)
    assert (verdict.code, book.rows()) == ("unknown_execution", [])


def test_an_execution_is_never_forgotten(holder: Holder, book: Book) -> None:
    book.ask("UPDATE fencepost.executions SET opened_at = '2001-01-01', closed_at = '2002-01-01'")
    sweep(book.dsn, HOUSE, lambda _: None)
    assert count(book, "executions") == 1


def test_the_generations_are_walked_a_piece_a_pass_and_all_over_again(
    book: Book, sweeping: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PIECE", 2)
    book.ask("UPDATE fencepost.executions SET closed_at = '2020-01-01'")
    nodes = "INSERT INTO fencepost.generations SELECT 'x', %s || i, 1, %s FROM generate_series(1, 3) i"
    book.ask(nodes, "a", "2020-01-01")
    book.ask(nodes, "b", "2099-01-01")
    walk, left = Walk(), []
    for _ in range(5):
        forget(sweeping, HOUSE, 100, walk)
        left.append((count(book, "generations"), walk.at[1]))
    assert left == [(4, "a2"), (3, "b1"), (3, "b3"), (3, ""), (3, "b2")]
    book.ask(nodes, "c", "2020-01-01")
    assert forget(sweeping, HOUSE, 100, None).rows == 3, "without a walk, all of them"
