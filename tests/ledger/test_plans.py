"""Plans: what is best for a new ledger's first calls does not stay once there are many."""

from __future__ import annotations

from fencepost_ledger import State
from fencepost_ledger.verdicts import Finalize, Start
from services.holder import Book, Writer, call

MANY = 5_000
FILL = """
INSERT INTO fencepost.calls (execution_id, key, org_id, node_id, call_index, tool, arguments_hash, generation, attempt,
    state, holder, event_id, result, started_at, finished_at, expires_at)
SELECT 'x', sha256(i::text::bytea), 'acme', 'filled', i, 't', sha256(''), 1, 1,
    'completed', 'gone', 'e' || i, '1', now(), now(), now() + interval '1 day'
FROM generate_series(1, %s) i
"""


def run(writer: Writer, first: int, last: int) -> None:
    """Calls one after the other, each a batch of its own to start and another to end."""
    for number in range(first, last):
        (started,) = writer.ask(call(f"e{number}", call_index=number))
        assert isinstance(started.verdict, Start)
        assert started.verdict.term is not None
        writer.ask(Finalize(started.verdict.term, State.completed, "1"))


def rows_read(writer: Writer, book: Book) -> int:
    """Of the calls, by whatever index, so far."""
    assert writer.thread._connection is not None
    writer.thread._connection.execute("SELECT pg_stat_force_next_flush()")
    book.ask("SELECT pg_stat_clear_snapshot()")
    ((read,),) = book.ask("SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'calls'")
    return int(read)


def test_a_plan_that_was_made_for_an_empty_ledger_does_not_last(writer: Writer, book: Book) -> None:
    book.ask("TRUNCATE fencepost.calls")
    run(writer, 0, 30)
    book.ask(FILL, MANY)
    run(writer, 30, 70)  # beyond the 128th batch
    before = rows_read(writer, book)
    run(writer, 70, 90)
    assert rows_read(writer, book) - before < MANY, "not one of twenty ends read all the calls that there are"
