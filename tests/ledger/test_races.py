"""Races, each one shown to be lost without the rule that wins it. Threads meet at locks, barriers and statements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from fencepost_ledger import Desk, fence, statements
from fencepost_ledger.verdicts import Admit, Fenced, Policy, Raise, Start, Waiting
from services.holder import EXECUTION, NODE, PATIENCE, Book, Holder, Thread, at_once, call

IDEMPOTENT = Policy("idempotent")


@pytest.fixture
def desk(book: Book) -> Iterator[Desk]:
    with Desk(book.dsn) as desk:
        yield desk


def overtaken(holder: Holder, desk: Desk, book: Book, item: Admit) -> bool:
    """`holder` admits `item` and has not committed yet: does a redispatch return before it has?"""
    with holder.connection.transaction():
        assert isinstance(holder.look(item), Start)
        raising = Thread(lambda: desk.redispatch(EXECUTION, NODE))
        pid = desk._connection().info.backend_pid
        blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        book.wait(lambda: not raising.is_alive() or book.ask(blocked, pid) == [(True,)])
        returned = not raising.is_alive()
    assert raising.result() == 2
    return returned


def fresh(_holder: Holder, _book: Book) -> Admit:
    return call("late", call_index=1)


def retried(holder: Holder, _book: Book) -> Admit:
    holder.run(call("e2", call_index=1), "failed", retryable=True)
    return call("late", call_index=1)


def reclaimed(holder: Holder, book: Book) -> Admit:
    holder.start(call("e2", call_index=1, policy=IDEMPOTENT))
    holder.holding.end(holder.holding.terms()[-1])
    book.lease_over()
    book.ask("UPDATE fencepost.calls SET holder = 'gone' WHERE call_index = 1")
    return call("late", call_index=1, policy=IDEMPOTENT)


def resumed(holder: Holder, _book: Book) -> Admit:
    holder.unheard(call("late", call_index=1))
    return call("late", call_index=1)


WAYS_TO_START = (fresh, retried, reclaimed, resumed)


@pytest.mark.parametrize("way", WAYS_TO_START)
def test_no_stale_call_starts_once_a_redispatch_has_returned(
    holder: Holder, desk: Desk, book: Book, way: Callable[[Holder, Book], Admit]
) -> None:
    holder.run(call())
    item = way(holder, book)
    assert not overtaken(holder, desk, book, item), "it waited until the start was committed"
    assert holder.look(item) == Fenced(2)


@pytest.mark.parametrize("way", WAYS_TO_START)
def test_without_the_lock_on_the_generation_a_stale_call_starts_behind_the_fence(
    holder: Holder, desk: Desk, book: Book, monkeypatch: pytest.MonkeyPatch, way: Callable[[Holder, Book], Admit]
) -> None:
    unlocked = statements.LOCK_GENERATIONS.replace("FOR SHARE OF g", "")
    assert unlocked != statements.LOCK_GENERATIONS
    monkeypatch.setattr(statements, "LOCK_GENERATIONS", unlocked)
    holder.run(call())
    assert overtaken(holder, desk, book, way(holder, book))


def test_the_very_first_call_of_a_node_holds_the_fence_too(holder: Holder, desk: Desk, book: Book) -> None:
    assert not overtaken(holder, desk, book, call())


def test_an_admission_waits_for_a_raise_on_its_way_and_is_fenced(holder: Holder, other: Holder, book: Book) -> None:
    holder.run(call())
    with other.connection.transaction():
        other.do(Raise(EXECUTION, NODE, 2))
        late = Thread(lambda: holder.look(call("e2", call_index=1)))
        book.wait_blocked(holder.pid)
    assert late.result() == Fenced(2)


def test_an_admission_goes_on_when_the_raise_it_waits_for_is_taken_back(
    holder: Holder, other: Holder, book: Book
) -> None:
    holder.run(call())
    with other.connection.transaction(force_rollback=True):
        other.do(Raise(EXECUTION, NODE, 2))
        late = Thread(lambda: holder.look(call("e2", call_index=1)))
        book.wait_blocked(holder.pid)
    assert isinstance(late.result(), Start)


def raised_together(holder: Holder, other: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two admissions of a new generation, each past its first look at the fence before either raises it."""
    barrier, real, late = threading.Barrier(2, timeout=PATIENCE), fence._raise, [holder, other]

    def met(*args: Any) -> Any:
        if late:
            late.pop()
            barrier.wait()
        return real(*args)

    monkeypatch.setattr(fence, "_raise", met)
    first, second = call("e1", generation=2), call("e2", generation=2, call_index=1)
    verdicts = at_once(partial(holder.look, first), partial(other.look, second))
    assert [type(verdict) for verdict in verdicts] == [Start, Start]


def test_two_workers_that_raise_one_node_at_once_do_not_deadlock(
    holder: Holder, other: Holder, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would hold a share of the row that the other one writes: a second of Postgres's patience, and one dies."""
    holder.run(call("e0", {"to": "bob"}, call_index=7))
    raised_together(holder, other, monkeypatch)
    assert book.generation() == 2


def test_two_workers_that_make_one_node_at_once_both_go_on(
    holder: Holder, other: Holder, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised_together(holder, other, monkeypatch)
    assert book.generation() == 2


def test_batches_in_opposite_order_do_not_deadlock(holder: Holder, other: Holder, book: Book) -> None:
    for n in range(10):
        items = [call(f"e{n}-{m}", node_id=f"n{m % 3}", call_index=m + 100 * n) for m in range(12)]
        mine, theirs = at_once(partial(holder.admit, *items), partial(other.admit, *items[::-1]))
        verdicts = mine + theirs
        assert sum(isinstance(verdict, Start) for verdict in verdicts) == len(items)
        assert sum(verdict == Waiting() for verdict in verdicts) == len(items)


# --- one reservation --------------------------------------------------------------------------------------------------


def select_then_insert(who: Holder, item: Admit, meet: Callable[[], Any]) -> bool:
    """What looks right: look whether it is there, and if not, it is ours."""
    there = who.connection.execute(
        "SELECT FROM fencepost.calls WHERE execution_id = %s", [item.execution_id]
    ).fetchone()
    meet()
    if there is None:
        who.do(item)
    return there is None


def conditional_insert(who: Holder, item: Admit, meet: Callable[[], Any]) -> bool:
    """What is done: insert it, and it is ours when the row is."""
    meet()
    return isinstance(who.look(item), Start)


def callers_that_execute(how: Callable[..., bool], *holders: Holder) -> int:
    barrier = threading.Barrier(len(holders), timeout=PATIENCE)
    threads = [Thread(partial(how, who, call(), barrier.wait)) for who in holders]
    return sum(thread.result() for thread in threads)


def test_select_then_insert_lets_both_callers_execute(holder: Holder, other: Holder) -> None:
    assert callers_that_execute(select_then_insert, holder, other) == 2


def test_the_conditional_insert_lets_one_caller_execute(new_holder: Any, book: Book) -> None:
    holders = [new_holder() for _ in range(6)]
    for _ in range(20):
        assert callers_that_execute(conditional_insert, *holders) == 1
        book.ask("DELETE FROM fencepost.calls")


def test_of_many_that_take_over_a_lost_call_one_does(new_holder: Any, book: Book) -> None:
    item = call(policy=IDEMPOTENT)
    holders = [new_holder() for _ in range(6)]
    holders[0].start(item)
    for attempt in range(2, 12):
        book.lease_over()
        book.ask("UPDATE fencepost.calls SET holder = 'gone', attempt = 1")
        verdicts = at_once(*[partial(who.look, item) for who in holders])
        assert sum(isinstance(verdict, Start) for verdict in verdicts) == 1, attempt
