"""Login roles on the test's Postgres, with the rights of `roles.sql`; gone after the tests.

The groups that `roles.sql` makes belong to the whole server, and others may be using them: they stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors, sql

from fencepost_ledger.isolation import ROLES_SQL

Connection = psycopg.Connection[tuple[Any, ...]]


class Logins:
    """Makes roles that may log in to the database of `dsn`, whose role owns the tables."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._owner: Connection = psycopg.connect(dsn, autocommit=True)
        self._made: list[str] = []
        self._connections: list[Connection] = []
        try:
            self._owner.execute(ROLES_SQL.read_bytes())
        except errors.InsufficientPrivilege:
            pytest.skip("makes roles, which the role of FENCEPOST_TEST_DSN may not")

    def new(self, *groups: str, orgs: Iterable[str] = ()) -> str:
        """A role that is a member of these groups and is listed for these orgs → its DSN."""
        name = f"fencepost_test_{uuid.uuid4().hex[:12]}"
        self._do("CREATE ROLE {} LOGIN PASSWORD 'sesame'", name)
        self._made.append(name)
        for group in groups:
            self._do("GRANT {} TO {}", f"fencepost_{group}", name)
        for org in orgs:
            self._owner.execute("INSERT INTO fencepost.org_roles VALUES (%s, %s)", [name, org])
        where = urlsplit(self._dsn)
        return where._replace(netloc=f"{name}:sesame@{where.netloc.rpartition('@')[2]}").geturl()

    def connect(self, *groups: str, orgs: Iterable[str] = ()) -> Connection:
        """A session of such a role."""
        connection: Connection = psycopg.connect(self.new(*groups, orgs=orgs), autocommit=True)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for name in self._made:
            self._do("DROP OWNED BY {}", name)
            self._do("DROP ROLE {}", name)
        self._owner.close()

    def _do(self, statement: str, *names: str) -> None:
        self._owner.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
