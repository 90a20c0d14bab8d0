"""The schema: what SQLAlchemy says and what the migrations make are one; migrating is safe twice, at once and late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import create_engine, text

from fencepost_ledger import LedgerUnavailable, NotMigrated, State, migrate, require_current, schema_status
from fencepost_ledger.calls import ARROWS
from fencepost_ledger.tables import SCHEMA, metadata
from services.holder import Book, Holder, at_once, call
from services.postgres import Postgres
from services.valve import Valve

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'fencepost'::regnamespace
"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'fencepost'"


def catalog(dsn: str) -> dict[str, set[tuple[Any, ...]]]:
    """Columns, constraints and indexes of the ledger's tables, as Postgres spells them."""
    with psycopg.connect(dsn) as connection:
        found = {
            "columns": connection.execute(COLUMNS).fetchall(),
            "constraints": connection.execute(CONSTRAINTS).fetchall(),
            "indexes": connection.execute(INDEXES).fetchall(),
        }
    ours = {kind: {row for row in rows if "alembic_version" not in row[0]} for kind, rows in found.items()}
    assert all(ours.values())
    return ours


@pytest.fixture
def second_database(postgres: Postgres) -> Iterator[str]:
    name = postgres.new_database()
    yield postgres.dsn(name)
    postgres.drop(name)


@pytest.mark.parametrize("kind", ["columns", "constraints", "indexes"])
def test_models_and_migrations_make_the_same(empty_database: str, second_database: str, kind: str) -> None:
    migrate(empty_database)
    engine = create_engine(second_database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        metadata.create_all(connection)
    engine.dispose()
    assert catalog(empty_database)[kind] == catalog(second_database)[kind]


def words(check: str) -> set[str]:
    """What stands in quotes in a constraint's text."""
    return set(check.split("'")[1::2])


def test_every_state_is_in_the_check_and_no_other_word(book: Book) -> None:
    ((check,),) = book.ask("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'calls_state'")
    assert words(check) == {state.value for state in State}


def test_every_state_has_its_arrows_and_they_lead_to_states() -> None:
    assert set(ARROWS) == set(State)
    assert set().union(*ARROWS.values()) == set(State)
    assert not ARROWS[State.completed]


# --- the checks repeat the invariants ---------------------------------------------------------------------------------

BROKEN = {
    "a state that there is not": "state = 'paused'",
    "executing without a lease": "lease_until = NULL",
    "ended with a lease": "state = 'failed', error = '{}', finished_at = now()",
    "ended without an end": "state = 'completed', lease_until = NULL",
    "executing with an end": "finished_at = now()",
    "a result without success": "result = '1'",
    "a failure without an error": "state = 'failed', lease_until = NULL, finished_at = now()",
    "an unknown end without an error": "state = 'indeterminate', lease_until = NULL",
    "a ruling without a ruler": "decided_at = now()",
    "a claim without a claimant": "claimed_generation = 2",
    "a key of another length": "key = ''",
    "no attempt": "attempt = 0",
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_tables_refuse(book: Book, holder: Holder, what: str) -> None:
    holder.start(call())
    with pytest.raises(errors.CheckViolation):
        book.ask(f"UPDATE fencepost.calls SET {BROKEN[what]}")


def test_a_position_has_one_call_in_a_generation(book: Book, holder: Holder) -> None:
    holder.start(call())
    holder.start(call("e2", call_index=1))
    with pytest.raises(errors.UniqueViolation):
        book.ask("UPDATE fencepost.calls SET call_index = 0")


# --- migrate ----------------------------------------------------------------------------------------------------------


def test_migrating_twice_changes_nothing_and_says_so(empty_database: str) -> None:
    assert migrate(empty_database).startswith("migrated the ledger: None")
    before = catalog(empty_database)
    assert migrate(empty_database).endswith("nothing to do")
    assert catalog(empty_database) == before


def test_two_that_migrate_at_once_do_it_once(empty_database: str) -> None:
    said = at_once(*[partial(migrate, empty_database)] * 3)
    assert sorted(line.endswith("nothing to do") for line in said) == [False, True, True]


def test_migrating_keeps_what_is_recorded_beside_running_workers(book: Book, holder: Holder) -> None:
    with holder.connection.transaction():
        holder.run(call())
        migrate(book.dsn)
    assert book.states() == [State.completed]


def version(dsn: str, number: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE fencepost.alembic_version SET version_num = %s", [number])


def test_a_newer_ledger_is_not_touched_and_the_cure_is_named(empty_database: str) -> None:
    migrate(empty_database)
    version(empty_database, "9999")
    with pytest.raises(NotMigrated, match=r"newer version.*update fencepost"):
        migrate(empty_database)
    status, line = schema_status(empty_database)
    assert (status, "update fencepost" in line) == ("newer", True)
    require_current(empty_database)  # a worker of the old version may run on while the others are replaced


def test_a_ledger_that_is_not_there_is_named_with_its_cure(empty_database: str) -> None:
    status, line = schema_status(empty_database)
    assert (status, "fencepost migrate" in line) == ("missing", True)
    with pytest.raises(NotMigrated, match="fencepost migrate"):
        require_current(empty_database)


def test_a_ledger_that_is_up_to_date_is_current(database: str) -> None:
    assert schema_status(database)[0] == "current"
    require_current(database)


@pytest.mark.parametrize("ask", [migrate, schema_status, require_current])
def test_an_unreachable_database_is_one_line_without_the_password(ask: Callable[[str], Any]) -> None:
    with pytest.raises(LedgerUnavailable) as raised:
        ask("postgresql://ann:s3cret@127.0.0.1:1/none")
    said = str(raised.value)
    assert "127.0.0.1:1/none" in said
    assert "s3cret" not in said
    assert "\n" not in said


@pytest.mark.faults
def test_a_database_that_goes_away_while_it_is_asked_is_unavailable(database: str) -> None:
    with closing(Valve(database)) as valve:
        valve.swallow()
        with pytest.raises(LedgerUnavailable, match="FENCEPOST_LEDGER_DSN"):
            schema_status(valve.dsn)
        assert schema_status(valve.dsn)[0] == "current"


@pytest.mark.parametrize("dsn", ["", "not a dsn", "http://x", "postgresql://h/d?nonsense=1"])
def test_what_is_no_dsn_is_said_so(dsn: str) -> None:
    with pytest.raises(LedgerUnavailable, match="FENCEPOST_LEDGER_DSN"):
        schema_status(dsn or "nonsense=1")
