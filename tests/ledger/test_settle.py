"""What the broker has acknowledged is settled; what it has not is published by the sweeper, however late."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from fencepost_ledger import CallRow, LedgerUnavailable, State, Swept, Term, sweep
from fencepost_ledger.calls import Source
from fencepost_ledger.case import House
from fencepost_ledger.sweep import Sweeper
from fencepost_ledger.verdicts import Admit, Finalize, Policy, Replay, Settle, Start
from services.holder import Book, Holder, Thread, call

IDEMPOTENT = Policy("idempotent")
SWEEP = importlib.import_module("fencepost_ledger.sweep")
LONG = 1000.0  # seconds: far beyond every lease


def settled(term: Term, revision: int, undecided: bool = False) -> Settle:
    return Settle(term.execution_id, term.key, revision, undecided)


def swept(holder: Holder, book: Book, publish: Callable[[list[CallRow]], None] | None = None) -> list[CallRow]:
    """One pass of the sweeper → the rows that it handed over."""
    rows: list[CallRow] = []
    done = sweep(book.dsn, holder.house, publish or rows.extend)
    assert done is not None
    return rows


# --- settle -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_an_acknowledged_end_needs_nobody_any_more(holder: Holder, book: Book, state: str) -> None:
    term = holder.run(call(), state)
    holder.do(settled(term, 2))
    assert not book.unsettled()
    book.age(hours=1)
    assert not swept(holder, book)


def test_an_acknowledged_unknown_end_still_needs_a_person(holder: Holder, book: Book) -> None:
    term = holder.run(call(), "indeterminate")
    holder.do(settled(term, 2, undecided=True))
    assert book.unsettled() == [(2, 2)]
    book.age(hours=1000)
    assert not swept(holder, book)
    assert book.states() == [State.indeterminate]


def test_settling_twice_or_what_is_not_there_does_nothing(holder: Holder, book: Book) -> None:
    term = holder.run(call())
    holder.do(settled(term, 2), settled(term, 2), settled(Term("x", b"?" * 32, 1), 2))
    assert not book.unsettled()
    assert book.states() == [State.completed]


def test_a_late_settle_never_clears_a_later_attempt(holder: Holder, book: Book) -> None:
    failed = holder.run(call(), "failed", retryable=True)
    second = holder.start(call("e2"))
    holder.do(settled(failed, 2))
    assert book.unsettled() == [(3, 0)]
    holder.finalize(second)
    holder.do(settled(failed, 2))
    assert book.unsettled() == [(3, 0)]
    holder.do(settled(second, 4))
    assert not book.unsettled()


def test_a_late_settle_of_the_unknown_never_clears_the_truth(holder: Holder, book: Book) -> None:
    term = holder.run(call(), "indeterminate")
    holder.finalize(term)
    holder.do(settled(term, 2, undecided=True))
    book.age(hours=1)
    assert [row.state for row in swept(holder, book)] == [State.completed]


def test_a_late_settle_of_the_unknown_never_clears_a_ruling(holder: Holder, book: Book) -> None:
    term = holder.run(call(), "indeterminate")
    book.rule("failed")
    holder.do(settled(term, 2, undecided=True))
    book.age(hours=1)
    assert [row.decided_by for row in swept(holder, book)] == ["ann"]


def test_a_settle_that_waits_for_a_newer_truth_looks_at_it_anew(holder: Holder, other: Holder, book: Book) -> None:
    """Postgres re-reads the row that it waited for (EvalPlanQual): the revision is compared with what is there then."""
    failed = holder.run(call(), "failed", retryable=True)
    with other.connection.transaction():
        second = other.start(call("e2"))
        late = Thread(lambda: holder.do(settled(failed, 2)))
        book.wait_blocked(holder.pid)
    late.result()
    assert book.unsettled() == [(3, 0)]
    assert other.finalize(second).mine


def test_a_newer_truth_that_waits_for_a_settle_is_not_lost(holder: Holder, other: Holder, book: Book) -> None:
    failed = holder.run(call(), "failed", retryable=True)
    with holder.connection.transaction():
        holder.do(settled(failed, 2))
        late = Thread(lambda: other.start(call("e2")))
        book.wait_blocked(other.pid)
    late.result()
    assert book.unsettled() == [(3, 0)]


def test_settling_rides_with_other_work_and_is_answered_by_nothing(holder: Holder) -> None:
    term = holder.run(call())
    answers = holder.do(settled(term, 2), call("e2", call_index=1))
    assert answers[0] is None
    assert isinstance(answers[1].verdict, Start)


# --- the sweeper: publishes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed", "indeterminate"])
def test_an_end_that_a_crash_left_unpublished_is_handed_over_until_it_is_settled(
    holder: Holder, book: Book, state: str
) -> None:
    term = holder.run(call(), state)
    assert not swept(holder, book), "its own worker is about to publish it"
    book.age(hours=1)
    assert [(row.key, row.state, row.revision) for row in swept(holder, book)] == [(term.key, State(state), 2)]
    assert not swept(holder, book), "it was just handed over"
    book.age(hours=1)
    assert len(swept(holder, book)) == 1, "nobody acknowledged it"
    holder.do(settled(term, 2, undecided=state == "indeterminate"))
    book.age(hours=1)
    assert not swept(holder, book)


def test_a_ruling_is_published(holder: Holder, book: Book) -> None:
    term = holder.run(call(), "indeterminate")
    holder.do(settled(term, 2, undecided=True))
    book.rule("completed")
    book.age(hours=1)
    assert [row.result for row in swept(holder, book)] == ['"ruled"']


def test_an_executing_call_has_nothing_to_publish(holder: Holder, book: Book) -> None:
    holder.start(call())
    book.age(hours=1000)
    assert not swept(holder, book)
    assert book.states() == [State.executing]


# --- the sweeper: ends orphans ----------------------------------------------------------------------------------------


def test_an_orphan_that_nobody_came_back_for_is_unknown_and_published(
    holder: Holder, other: Holder, book: Book
) -> None:
    holder.start(call())
    book.lease_over(LONG)
    assert not swept(other, book)
    assert book.states() == [State.indeterminate]
    book.age(hours=1)
    assert [row.state for row in swept(other, book)] == [State.indeterminate]


def test_an_orphan_is_left_to_redeliveries_for_some_leases(holder: Holder, other: Holder, book: Book) -> None:
    holder.start(call())
    book.lease_over(60)
    swept(other, book)
    assert book.states() == [State.executing]


def test_a_call_with_a_live_lease_is_no_orphan_whosever_it_is(holder: Holder, book: Book) -> None:
    holder.start(call())
    swept(holder, book)
    assert book.states() == [State.executing]


def test_an_orphan_that_is_finalized_at_the_same_moment_keeps_its_result(
    holder: Holder, other: Holder, book: Book
) -> None:
    term = holder.start(call())
    book.lease_over(LONG)
    with holder.connection.transaction():
        holder.finalize(term)
        sweeping = Thread(lambda: sweep(book.dsn, other.house, lambda _: None))
        book.wait(lambda: book.ask("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
    assert sweeping.result() == Swept(0, 0, 0)
    assert book.states() == [State.completed]


# --- the sweeper: forgets ---------------------------------------------------------------------------------------------


def ended(holder: Holder, state: str, **more: object) -> None:
    term = holder.run(call(f"e-{state}", call_index=len(state)), state, **more)
    holder.do(settled(term, 2))


def test_what_is_past_its_memory_is_forgotten_with_its_events(holder: Holder, book: Book) -> None:
    ended(holder, "completed")
    ended(holder, "failed")
    book.age(hours=47)
    assert sweep(book.dsn, holder.house, lambda _: None) == Swept(0, 0, 0)
    book.age(hours=2)
    assert sweep(book.dsn, holder.house, lambda _: None) == Swept(0, 0, 4)
    assert not book.rows()
    assert not book.ask("SELECT * FROM fencepost.events")
    assert book.generation() == 1, "the fence is never forgotten"


def test_what_still_needs_somebody_is_never_forgotten(holder: Holder, book: Book) -> None:
    holder.start(call("e1"))
    holder.run(call("e2", call_index=1))
    holder.run(call("e3", call_index=2), "failed")
    undecided = holder.run(call("e4", call_index=3), "indeterminate")
    holder.do(settled(undecided, 2, undecided=True))
    book.age(hours=10_000)
    swept(holder, book)
    assert len(book.rows()) == 4


def test_a_call_that_starts_again_while_it_is_being_forgotten_is_kept(
    holder: Holder, other: Holder, book: Book
) -> None:
    """Forgetting an executing call would let the next delivery start it beside itself."""
    ended(holder, "failed", retryable=True)
    book.age(hours=49)
    item = call("e9", call_index=len("failed"))
    with other.connection.transaction():
        term = other.start(item)
        assert sweep(book.dsn, holder.house, lambda _: None) == Swept(0, 0, 1)  # its first event alone
    assert other.finalize(term).mine
    assert sweep(book.dsn, holder.house, lambda _: None) == Swept(0, 0, 0)


def test_more_than_one_batch_is_forgotten_in_one_pass(
    holder: Holder, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SWEEP, "_LIMIT", 2)
    terms = [holder.start(call(f"e{n}", call_index=n)) for n in range(5)]
    holder.do(*[Finalize(term, State.completed) for term in terms])
    holder.do(*[settled(term, 2) for term in terms])
    book.age(hours=49)
    assert sweep(book.dsn, holder.house, lambda _: None) == Swept(0, 0, 10)


# --- one at a time, and its thread ------------------------------------------------------------------------------------


def test_one_sweeper_at_a_time(holder: Holder, book: Book) -> None:
    holder.run(call())
    book.age(hours=1)
    second: list[Swept | None] = []

    def publish(_rows: list[CallRow]) -> None:
        second.append(sweep(book.dsn, holder.house, lambda _: None))

    assert sweep(book.dsn, holder.house, publish) == Swept(1, 0, 0)
    assert second == [None]
    assert sweep(book.dsn, holder.house, publish) is not None, "the first one is done"


def test_a_sweeper_that_dies_makes_room_for_the_next(holder: Holder, book: Book) -> None:
    holder.run(call())
    book.age(hours=1)

    def die(_rows: list[CallRow]) -> None:
        raise KeyError("died while publishing")

    with pytest.raises(KeyError):
        sweep(book.dsn, holder.house, die)
    book.age(hours=1)
    assert len(swept(holder, book)) == 1


def test_the_thread_goes_on_after_the_database_was_away(
    holder: Holder, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.run(call())
    book.age(hours=1)
    away = iter([LedgerUnavailable("away"), psycopg.OperationalError("cut")])
    published = threading.Event()

    def flaky(dsn: str, house: House, publish: Callable[[list[CallRow]], None], *_: object) -> Swept | None:
        if error := next(away, None):
            raise error
        return sweep(dsn, house, publish)

    monkeypatch.setattr(SWEEP, "sweep", flaky)
    sweeper = Sweeper(book.dsn, holder.house, 0.01, lambda _: published.set())
    sweeper.start()
    assert published.wait(20)
    sweeper.stop()
    sweeper.join(20)
    assert not sweeper.is_alive()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_call_is_remembered_as_long_as_its_last_attempt(holder: Holder, book: Book) -> None:
    holder.run(call(), "failed", retryable=True)
    book.age(hours=40)
    holder.run(call("e2"))
    ((left,),) = book.ask("SELECT expires_at - now() FROM fencepost.calls")
    assert left > timedelta(hours=47)


def delivered(event_id: str, hours_ago: float) -> Admit:
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    return call(event_id, source=Source("tool.dispatch", 0, 0, int(at.timestamp() * 1000)))


def test_a_call_is_remembered_as_long_as_any_event_that_asked_for_it_can_come_again(holder: Holder, book: Book) -> None:
    """Ran 40 hours ago; asked for once more, and answered, an hour ago: that event may be replayed for 47 hours yet."""
    term = holder.run(delivered("e1", hours_ago=0))
    holder.do(settled(term, 2))
    book.age(hours=40)
    assert isinstance(holder.look(delivered("e2", hours_ago=1)), Replay)
    book.age(hours=10)
    swept(holder, book)
    assert isinstance(holder.look(delivered("e2", hours_ago=11)), Replay)


def test_a_redelivery_of_the_event_that_ran_it_makes_nothing_be_remembered_longer(holder: Holder, book: Book) -> None:
    holder.run(delivered("e1", hours_ago=1))
    before = book.row().expires_at
    holder.look(delivered("e1", hours_ago=1))
    assert book.row().expires_at == before


def test_a_clock_that_runs_ahead_makes_nothing_be_remembered_for_ever(holder: Holder, book: Book) -> None:
    holder.run(delivered("e1", hours_ago=0))
    holder.look(delivered("e2", hours_ago=-10_000))
    ((left,),) = book.ask("SELECT expires_at - now() FROM fencepost.calls")
    assert left <= timedelta(hours=48)
