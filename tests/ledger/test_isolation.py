"""Isolation: what belongs to one org is never shown to another, nor changed by it, whoever asks and however."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from psycopg import errors

from fencepost_ledger.tables import metadata
from services.holder import Book, Connection, Holder, call, key_of
from services.logins import Logins

TABLES = sorted(table.name for table in metadata.sorted_tables)
DATA = [name for name in TABLES if name != "org_roles"]
OURS, THEIRS = "acme", "zeta"
MINE, OTHER = call(execution_id="x"), call(execution_id="y")


@pytest.fixture(scope="module")
def logins(module_database: str) -> Iterator[Logins]:
    with closing(Logins(module_database)) as made:
        yield made


@pytest.fixture
def two_orgs(book: Book, holder: Holder) -> Book:
    """Execution x of acme and y of zeta, each with a row in every table."""
    book.open("y", THEIRS)
    book.ask("DELETE FROM fencepost.blobs")
    for item in (MINE, OTHER):
        holder.run(item, "indeterminate")
        book.ask("INSERT INTO fencepost.blobs VALUES (%s, %s, %s, now())", item.execution_id, b"k" * 32, "file:///b")
    return book


@pytest.fixture
def reader(logins: Logins, two_orgs: Book) -> Connection:
    """A login of acme that may read."""
    return logins.connect("reader", orgs=[OURS])


def seen(connection: Connection, table: str) -> set[str]:
    """The executions whose rows it sees."""
    return {name for (name,) in connection.execute(f"SELECT execution_id FROM fencepost.{table}".encode())}


def test_there_is_something_to_see_in_every_table(two_orgs: Book) -> None:
    assert all(seen(two_orgs.connection, table) == {"x", "y"} for table in DATA)


def test_every_table_has_row_level_security(book: Book) -> None:
    secured = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relrowsecurity ORDER BY 1"
    )
    assert [name for (name,) in book.ask(secured)] == TABLES


# --- who sees what ----------------------------------------------------------------------------------------------------


def test_a_reader_sees_the_rows_of_its_org(reader: Connection) -> None:
    assert all(seen(reader, table) == {"x"} for table in DATA)


def test_who_is_listed_for_no_org_sees_nothing(logins: Logins, two_orgs: Book) -> None:
    nobody = logins.connect("reader")
    assert not any(seen(nobody, table) for table in DATA)


def test_who_is_listed_for_two_orgs_sees_both(logins: Logins, two_orgs: Book) -> None:
    both = logins.connect("reader", orgs=[OURS, THEIRS])
    assert all(seen(both, table) == {"x", "y"} for table in DATA)


def test_a_stranger_may_not_even_ask(logins: Logins, two_orgs: Book) -> None:
    stranger = logins.connect()
    for table in TABLES:
        with pytest.raises(errors.InsufficientPrivilege):
            stranger.execute(f"SELECT count(*) FROM fencepost.{table}".encode())


@pytest.mark.parametrize("groups, orgs", [(["every_org"], []), ([], [OURS, THEIRS])], ids=["every org", "two orgs"])
def test_the_setting_narrows_to_one_org(logins: Logins, two_orgs: Book, groups: list[str], orgs: list[str]) -> None:
    wide = logins.connect("reader", *groups, orgs=orgs)
    for setting, executions in [("zeta", {"y"}), ("acme", {"x"}), ("none", set()), ("", {"x", "y"})]:
        wide.execute("SELECT set_config('fencepost.org', %s, false)", [setting])
        assert all(seen(wide, table) == executions for table in DATA)
    wide.execute("RESET fencepost.org")
    assert all(seen(wide, table) == {"x", "y"} for table in DATA)


# --- a reader of acme tries to get at what is zeta's ------------------------------------------------------------------

SETTINGS = {
    "another's": "SET fencepost.org = 'zeta'",
    "both": "SET fencepost.org = 'acme, zeta'",
    "a wildcard": "SET fencepost.org = '%'",
    "nothing": "SET fencepost.org = ''",
    "taken back": "RESET fencepost.org",
    "all taken back": "DISCARD ALL",
    "another path": "SET search_path = pg_temp, fencepost",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_setting_never_widens(reader: Connection, setting: str) -> None:
    for table in DATA:
        reader.execute(f"PREPARE {table}_before AS SELECT execution_id FROM fencepost.{table}".encode())
    reader.execute(SETTINGS[setting].encode())
    for table in DATA:
        assert seen(reader, table) <= {"x"}
        if setting != "all taken back":
            assert {name for (name,) in reader.execute(f"EXECUTE {table}_before".encode())} <= {"x"}


WAYS = {
    "its key": "SELECT * FROM fencepost.calls WHERE key = %(key)s",
    "its execution and key": "SELECT * FROM fencepost.calls WHERE execution_id = 'y' AND key = %(key)s",
    "its event": "SELECT * FROM fencepost.events WHERE execution_id = 'y' AND event_id = 'e1'",
    "its node": "SELECT * FROM fencepost.generations WHERE execution_id = 'y' AND node_id = 'n'",
    "its org": "SELECT * FROM fencepost.executions WHERE org_id = 'zeta'",
    "a join": "SELECT * FROM fencepost.executions JOIN fencepost.calls c USING (execution_id) WHERE c.org_id = 'zeta'",
    "a list": "SELECT c FROM (VALUES ('y')) v(e) JOIN fencepost.calls c ON c.execution_id = v.e",
    "all but its own": "SELECT * FROM fencepost.unsettled WHERE execution_id <> 'x'",
    "a fault of what is hidden": "SELECT 1 FROM fencepost.calls WHERE 1 / (execution_id = 'x')::int = 0",
    "the row's place": "SELECT * FROM fencepost.calls WHERE ctid < '(9,0)' AND execution_id <> 'x'",
    "statistics": "SELECT * FROM pg_stats WHERE schemaname = 'fencepost' AND tablename <> 'alembic_version'",
    "whom others may see": "SELECT * FROM fencepost.org_roles WHERE role <> current_user",
}


@pytest.mark.parametrize("way", WAYS)
def test_another_orgs_rows_are_not_found_by(reader: Connection, logins: Logins, book: Book, way: str) -> None:
    logins.new("reader", orgs=[THEIRS])
    book.ask("ANALYZE fencepost.executions, fencepost.calls")
    assert reader.execute(WAYS[way].encode(), {"key": key_of(OTHER, THEIRS)}).fetchall() == []


def test_a_function_that_tells_what_it_is_shown_is_shown_nothing(reader: Connection) -> None:
    """A cheap function in the WHERE is called first, unless a policy stands before it."""
    told: list[str | None] = []
    reader.add_notice_handler(lambda notice: told.append(notice.message_primary))
    reader.execute(
        "CREATE FUNCTION pg_temp.tell(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS"
        " $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
    )
    for table in DATA:
        reader.execute(f"SELECT * FROM fencepost.{table} WHERE pg_temp.tell(execution_id)".encode())
    assert (set(told), len(told)) == ({"x"}, len(DATA))


def test_its_own_table_in_front_of_the_list_changes_nothing(reader: Connection) -> None:
    reader.execute("CREATE TEMP TABLE org_roles AS SELECT current_user::text AS role, 'zeta' AS org_id")
    reader.execute("SET search_path = pg_temp, fencepost")
    assert all(seen(reader, table) == {"x"} for table in DATA)


POWERS = {
    "no security": "SET row_security = off; SELECT * FROM fencepost.calls",
    "a role of the house": "SET ROLE fencepost_worker",
    "another session": "SET SESSION AUTHORIZATION fencepost_worker",
    "membership": "GRANT fencepost_every_org TO CURRENT_USER",
    "a role": "CREATE ROLE fencepost_test_evil",
    "a line in the list": "INSERT INTO fencepost.org_roles SELECT current_user, 'zeta'",
    "another line": "UPDATE fencepost.org_roles SET org_id = 'zeta'",
    "a policy": "CREATE POLICY mine ON fencepost.calls USING (true)",
    "no policies": "ALTER TABLE fencepost.calls DISABLE ROW LEVEL SECURITY",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON fencepost.calls EXECUTE FUNCTION pg_notify()",
    "a table in the schema": "CREATE TABLE fencepost.mine (id int)",
    "all of it gone": "TRUNCATE fencepost.calls",
    "locks": "SELECT * FROM fencepost.calls FOR KEY SHARE",
    "a file": "COPY fencepost.calls TO '/tmp/fencepost-test-calls'",
}


@pytest.mark.parametrize("power", POWERS)
def test_a_reader_cannot_give_itself(reader: Connection, power: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        reader.execute(POWERS[power].encode())


@pytest.mark.parametrize(
    "change", ["DELETE FROM {0}", "UPDATE {0} SET execution_id = 'x'", "INSERT INTO {0} SELECT * FROM {0}"]
)
def test_a_reader_changes_nothing(reader: Connection, change: str) -> None:
    for table in DATA:
        with pytest.raises(errors.InsufficientPrivilege):
            reader.execute(change.format(f"fencepost.{table}").encode())


# --- row-level security alone: an intruder of acme with every right on the tables ------------------------------------


@pytest.fixture
def intruder(logins: Logins, two_orgs: Book) -> Connection:
    made = logins.connect("reader", orgs=[OURS])
    two_orgs.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA fencepost TO {made.info.user}")
    two_orgs.ask(f"REVOKE ALL ON fencepost.org_roles FROM {made.info.user}")
    return made


def theirs(book: Book, table: str) -> dict[str, Any]:
    ((row,),) = book.ask(f"SELECT to_jsonb(t) FROM fencepost.{table} t WHERE execution_id = 'y'")
    found: dict[str, Any] = row
    return found


@pytest.mark.parametrize("narrowed", ["", THEIRS, OURS])
def test_another_orgs_rows_are_not_changed_even_with_the_right_to(
    intruder: Connection, two_orgs: Book, narrowed: str
) -> None:
    before = {table: theirs(two_orgs, table) for table in DATA}
    intruder.execute("SELECT set_config('fencepost.org', %s, false)", [narrowed])
    for table, change in product(DATA, ["UPDATE fencepost.{} SET execution_id = 'x'", "DELETE FROM fencepost.{}"]):
        statement = change.format(table) + " WHERE execution_id = 'y'"
        assert intruder.execute(statement.encode()).rowcount == 0
    assert {table: theirs(two_orgs, table) for table in DATA} == before


@pytest.mark.parametrize("conflict", ["", "ON CONFLICT DO NOTHING"])
def test_rows_of_another_org_are_not_made_even_with_the_right_to(
    intruder: Connection, two_orgs: Book, conflict: str
) -> None:
    for table in DATA:
        row = f"jsonb_populate_record(NULL::fencepost.{table}, %s)"
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            intruder.execute(
                f"INSERT INTO fencepost.{table} SELECT * FROM {row} {conflict}".encode(),
                [json.dumps(theirs(two_orgs, table))],
            )


def test_its_own_rows_are_not_given_away_even_with_the_right_to(intruder: Connection) -> None:
    for table in DATA:
        column = "org_id" if table in {"executions", "calls"} else "execution_id"
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            intruder.execute(f"UPDATE fencepost.{table} SET {column} = 'y'".encode())
