"""Group commit: what waits goes into one transaction, a bad item stands alone, a lost connection loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import errors

from fencepost_ledger import State, Term, batch, migrate
from fencepost_ledger.batch import MAX_BATCH
from fencepost_ledger.case import Holding, House
from fencepost_ledger.connect import is_conflict, is_unavailable
from fencepost_ledger.verdicts import Admitted, Failed, Finalize, Finalized, Join, Op, Rejected, Settle, Start
from services.holder import ERROR, Book, Holder, Writer, call

NOWHERE = "postgresql://nobody:secret@127.0.0.1:1/none"
BAD = call("bad", tool="mail\x00send", call_index=9)


def verdicts(answers: Sequence[Any]) -> list[type]:
    return [type(answer.verdict) if isinstance(answer, Admitted) else type(answer) for answer in answers]


def calls(count: int, start: int = 0) -> list[Op]:
    return [call(f"e{n}", call_index=n) for n in range(start, start + count)]


def test_answers_come_in_the_order_of_their_items_whatever_their_kind(writer: Writer) -> None:
    (started,) = writer.ask(*calls(1))
    term = started.verdict.term
    ended, settled, new = writer.ask(Finalize(term, State.completed, "1"), Settle("x", term.key, 2), *calls(1, start=1))
    assert (type(ended), settled, verdicts([new])) == (Finalized, None, [Start])


def test_what_ended_in_a_batch_is_answered_to_duplicates_in_the_same_batch(writer: Writer) -> None:
    (started,) = writer.ask(call())
    replayed, _ = writer.ask(call("e2"), Finalize(started.verdict.term, State.completed, "1"))
    assert replayed.verdict.row.result == "1"


def test_what_waits_goes_into_one_transaction(writer: Writer, book: Book) -> None:
    writer.ask(*calls(1))
    with book.connection.transaction():
        book.ask("SELECT FROM fencepost.generations FOR UPDATE")
        writer.submit(*calls(1, start=1))
        book.wait_writer_blocked()
        for n in range(2, 7):
            writer.submit(*calls(1, start=n))
    assert len(writer.answers(6)) == 6
    assert writer.batches == [1, 1, 5]


def test_a_flood_is_cut_into_transactions_of_bounded_size(writer: Writer) -> None:
    answers = writer.ask(*calls(MAX_BATCH + 10))
    assert set(verdicts(answers)) == {Start}
    assert max(writer.batches) <= MAX_BATCH


# --- a bad item never fails its neighbours ----------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_bad_item_is_found_and_its_neighbours_start_once(writer: Writer, book: Book, at: int) -> None:
    items = calls(6)
    items.insert(at, BAD)
    answers = writer.ask(*items)
    assert [type(a) for a in answers].index(Failed) == at
    assert verdicts(answers).count(Start) == 6
    assert {row.attempt for row in book.rows()} == {1}
    assert len(book.rows()) == 6


def test_several_bad_items_are_each_found(writer: Writer) -> None:
    items = [call(f"e{n}", tool="bad\x00" if n % 3 == 0 else "good", call_index=n) for n in range(10)]
    assert [isinstance(a, Failed) for a in writer.ask(*items)] == [n % 3 == 0 for n in range(10)]


def test_an_end_that_the_tables_refuse_fails_alone_and_its_call_stays_held(writer: Writer, book: Book) -> None:
    first, second = (answer.verdict.term for answer in writer.ask(*calls(2)))
    refused, done = writer.ask(Finalize(first, State.failed, error=None), Finalize(second, State.completed, "1"))
    assert (type(refused), done.mine) == (Failed, True)
    assert verdicts(writer.ask(call("e0"))) == [Join]
    assert writer.ask(Finalize(first, State.failed, error=ERROR))[0].mine


def test_a_bug_in_our_own_code_fails_its_item_alone(writer: Writer) -> None:
    broken = call("broken", call_index="one")
    assert verdicts(writer.ask(*calls(1), broken, *calls(1, start=1))) == [Start, Failed, Start]


# --- conflicts and lost connections -----------------------------------------------------------------------------------


class Fault:
    """Stands in for `transact`: raises before or after the real one has committed, as often as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception, *, after: bool, times: int = 1) -> None:
        self._error, self._after, self.left, self._real = error, after, times, batch.transact
        monkeypatch.setattr(batch, "transact", self)

    def __call__(self, connection: Any, ops: Sequence[Op], house: House, holding: Holding) -> list[Any]:
        if not self._after:
            self._strike()
        answers = self._real(connection, ops, house, holding)
        self._strike()
        return answers

    def _strike(self) -> None:
        if self.left:
            self.left -= 1
            raise self._error


GONE = psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize("error", [errors.DeadlockDetected(), errors.SerializationFailure(), GONE], ids=repr)
def test_a_batch_that_was_rolled_back_is_applied_again(
    writer: Writer, book: Book, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    Fault(monkeypatch, error, after=False, times=2)
    assert verdicts(writer.ask(*calls(3))) == [Start] * 3
    assert len(book.rows()) == 3


def test_a_batch_whose_commit_went_unheard_is_applied_again_and_starts_once(
    writer: Writer, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, GONE, after=True)
    answers = writer.ask(*calls(3), call("dup"))
    assert sorted(t.__name__ for t in verdicts(answers)) == ["Start", "Start", "Start", "Waiting"]
    assert (fault.left, {row.attempt for row in book.rows()}) == (0, {1})


def test_ends_whose_commit_went_unheard_are_ours(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [answer.verdict.term for answer in writer.ask(*calls(3))]
    Fault(monkeypatch, GONE, after=True)
    states = [State.completed, State.failed, State.indeterminate]
    ends = writer.ask(*[Finalize(t, s, error=ERROR) for t, s in zip(terms, states, strict=True)])
    assert [end.mine for end in ends] == [True] * 3


def test_a_connection_cut_in_the_middle_of_a_batch_loses_nothing(writer: Writer, book: Book) -> None:
    writer.ask(*calls(1))
    with book.connection.transaction():
        book.ask("SELECT FROM fencepost.generations FOR UPDATE")
        writer.submit(*calls(5, start=1))
        pid = book.wait_writer_blocked()
        book.ask("SELECT pg_terminate_backend(%s)", pid)
        assert writer.heard.get(timeout=20) is not None
    assert verdicts(writer.answers(5)) == [Start] * 5
    assert writer.heard.get(timeout=20) is None
    assert {row.attempt for row in book.rows()} == {1}


def test_an_unreachable_ledger_is_said_once_without_its_password(holder: Holder) -> None:
    writer = Writer(NOWHERE, holder.house)
    writer.submit(*calls(1))
    reason = str(writer.heard.get(timeout=20))
    assert "127.0.0.1:1/none" in reason
    assert "FENCEPOST_LEDGER_DSN" in reason
    assert "secret" not in reason
    writer.close()
    assert not writer.thread.is_alive(), "without a database it ends at once"
    assert writer.heard.empty()


def test_a_ledger_that_is_migrated_later_is_waited_for(holder: Holder, empty_database: str) -> None:
    house = House("h", holder.house.lease, holder.house.ttl, default_org="solo")
    with closing(Writer(empty_database, house)) as writer:
        writer.submit(*calls(2))
        assert writer.heard.get(timeout=20) is not None
        migrate(empty_database)
        assert verdicts(writer.answers(2)) == [Start, Start]
        assert writer.heard.get(timeout=20) is None


def test_missing_rights_are_waited_for_and_fail_no_call(writer: Writer, book: Book) -> None:
    assert is_unavailable(errors.InsufficientPrivilege())
    assert not is_unavailable(errors.ProgramLimitExceeded()), "too large is the item's own fault"
    assert is_conflict(errors.UniqueViolation())


def test_what_is_queued_is_done_before_the_end(holder: Holder, book: Book) -> None:
    writer = Writer(book.dsn, holder.house)
    writer.submit(*calls(20))
    writer.close()
    assert len(writer.answers(20)) == 20
    assert not writer.thread.is_alive()


def test_a_term_that_never_was_is_lost_and_disturbs_nobody(writer: Writer) -> None:
    lost, new = writer.ask(Finalize(Term("x", b"?" * 32, 1), State.completed), *calls(1))
    assert (lost.mine, verdicts([new])) == (False, [Start])


def test_a_position_that_is_taken_between_look_and_write_is_looked_at_again(
    writer: Writer, other: Holder, holder: Holder, book: Book
) -> None:
    """A call of generation 1 is to be armed again under 2, and another call of 2 takes its position meanwhile."""
    holder.run(call(), "failed", retryable=True)
    with other.connection.transaction():
        other.start(call("e2", {"to": "bob"}, generation=2))
        writer.submit(call("e3", generation=2))
        book.wait_writer_blocked()
    (answer,) = writer.answers(1)
    assert isinstance(answer.verdict, Rejected)
    assert answer.verdict.code == "position_reused"


def test_two_calls_that_are_armed_again_for_one_position_are_told_apart(holder: Holder, book: Book) -> None:
    holder.run(call(), "failed", retryable=True)
    holder.run(call("e2", {"to": "bob"}, generation=2), "failed", retryable=True)
    both = [call("e3", generation=3), call("e4", {"to": "bob"}, generation=3)]
    assert sorted(v.__name__ for v in verdicts(holder.do(*both))) == ["Start", "Waiting"]
    assert sorted(v.__name__ for v in verdicts(holder.do(*both))) == ["Join", "Rejected"]
