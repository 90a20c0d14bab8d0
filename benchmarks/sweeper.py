"""How fast the sweeper forgets: fills a ledger with calls past their memory, sweeps, and prints rows a second.

    python benchmarks/sweeper.py [--rows 100000] [--snapshot] [--dsn postgresql://…]

Of a hundred expired calls two must stay (one executing, one undecided). Each call has one event. Without `--dsn` it
runs on an embedded Postgres that writes to disk as a production server does (fsync). `--snapshot` holds a transaction
open all the while, as a backup does: what is deleted then stays in the indexes, and must not be walked through again.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg

from fencepost_ledger import migrate, sweep
from fencepost_ledger.case import House

WANTED = 2_000  # rows a second
HOUSE = House("benchmark", timedelta(seconds=30), timedelta(hours=48))

EXECUTIONS = """
INSERT INTO fencepost.executions (execution_id, org_id)
SELECT 'x' || i, 'acme' FROM generate_series(0, %(rows)s / 100) i
"""
EVENTS = """
INSERT INTO fencepost.events (execution_id, event_id, digest, key, expires_at)
SELECT 'x' || i / 100, 'e' || i, sha256(i::text::bytea), sha256(i::text::bytea),
    now() - interval '1 hour' + i * interval '1 ms'
FROM generate_series(0, %(rows)s - 1) i
"""
CALLS = """
INSERT INTO fencepost.calls (execution_id, key, org_id, node_id, call_index, tool, arguments_hash, generation, attempt,
    state, holder, lease_until, event_id, result, error, started_at, finished_at, expires_at)
SELECT 'x' || i / 100, sha256(i::text::bytea), 'acme', 'n', i, 'mail.send', sha256(i::text::bytea), 1, 1,
    s.state, 'gone', CASE s.state WHEN 'executing' THEN now() + interval '1 hour' END, 'e' || i,
    CASE s.state WHEN 'completed' THEN repeat(md5(i::text), 8) END, CASE s.state WHEN 'indeterminate' THEN '{}' END,
    now() - interval '49 hours', CASE s.state WHEN 'completed' THEN now() - interval '49 hours' END,
    now() - interval '1 hour' + i * interval '1 ms'
FROM generate_series(0, %(rows)s - 1) i,
    LATERAL (SELECT CASE i %% 100 WHEN 0 THEN 'executing' WHEN 1 THEN 'indeterminate' ELSE 'completed' END) s(state)
"""
UNSETTLED = """
INSERT INTO fencepost.unsettled (execution_id, key, revision, acknowledged)
SELECT execution_id, key, 1, 1 FROM fencepost.calls WHERE state <> 'completed'
"""


def main() -> None:
    options = _options()
    with _server(options.dsn) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        print(migrate(dsn))
        for statement in (EXECUTIONS, EVENTS, CALLS, UNSETTLED):
            connection.execute(statement.encode(), {"rows": options.rows})
        with _snapshot(dsn) if options.snapshot else contextlib.nullcontext():
            gone, seconds = _sweep_all(dsn)
        left = connection.execute("SELECT state, count(*) FROM fencepost.calls GROUP BY state ORDER BY 1").fetchall()
    rate = gone / seconds
    print(f"forgot {gone} rows in {seconds:.1f} s: {rate:,.0f} rows/s (wanted: {WANTED:,})")
    print("left: " + ", ".join(f"{count} {state}" for state, count in left))
    raise SystemExit(rate < WANTED)


def _sweep_all(dsn: str) -> tuple[int, float]:
    """Sweep until nothing goes any more → rows forgotten, seconds."""
    gone, began = 0, time.perf_counter()
    while (swept := sweep(dsn, HOUSE, lambda _: None)) and swept.forgotten:
        gone += swept.forgotten
    return gone, time.perf_counter() - began


@contextlib.contextmanager
def _server(dsn: str | None) -> Iterator[str]:
    if dsn is not None:
        yield dsn
        return
    from fencepost_worker.embedded import EmbeddedPostgres  # noqa: PLC0415 - an extra

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres") as server:
            yield server.dsn()


@contextlib.contextmanager
def _snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM fencepost.executions")
        yield


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="calls to forget, and as many events")
    parser.add_argument("--snapshot", action="store_true", help="hold a snapshot all the while")
    parser.add_argument("--dsn", help="an empty database that may be filled")
    return parser.parse_args()


if __name__ == "__main__":
    main()
