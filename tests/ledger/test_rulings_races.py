"""Rulings against everything that may happen at the same time, and in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost_ledger import CallRow, Desk, Moved, State, Term
from fencepost_ledger.verdicts import Policy, Start
from services.holder import LOST, Book, Holder, Thread, call
from services.rulings import ANN, OTHERS, RULINGS, every_ruling

IDEMPOTENT = Policy("idempotent", max_attempts=9)


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    with Desk(database) as desk:
        yield desk


@pytest.fixture
def term(holder: Holder) -> Term:
    """The term of an attempt that ended nobody knows how."""
    return holder.run(call(), "indeterminate")


def pid(desk: Desk) -> int:
    """Of the server's process for this desk."""
    return desk._connection().info.backend_pid


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other_ruling", OTHERS)
@every_ruling
def test_two_operators_and_one_of_them_wins(term: Term, desk: Desk, book: Book, ruling: str, other_ruling: str) -> None:
    shown = book.row()
    with Desk(book.dsn) as bobs:
        with book.connection.transaction():
            book.ask("SELECT FROM fencepost.calls FOR UPDATE")  # both are at the door when it opens
            ann = Thread(lambda: RULINGS[ruling](desk, shown))
            book.wait_blocked(pid(desk))
            bob = Thread(lambda: OTHERS[other_ruling](bobs, shown))
            book.wait_blocked(pid(bobs))
        won = ann.result()
        with pytest.raises(Moved, match="ruled by ann"):
            bob.result()
    assert book.row() == won


@every_ruling
def test_of_a_late_truth_and_a_ruling_at_once_the_second_sees_the_first(
    term: Term, desk: Desk, holder: Holder, book: Book, ruling: str
) -> None:
    shown = book.row()
    with holder.connection.transaction():
        assert holder.finalize(term).mine
        late = Thread(lambda: RULINGS[ruling](desk, shown))
        book.wait_blocked(pid(desk))
    with pytest.raises(Moved, match="is completed now"):
        late.result()
    assert book.row().result == '"done"'


@every_ruling
def test_of_a_ruling_and_a_late_truth_at_once_the_second_sees_the_first(
    term: Term, desk: Desk, holder: Holder, book: Book, ruling: str
) -> None:
    shown = book.row()
    with desk._connection().transaction():
        RULINGS[ruling](desk, shown)
        late = Thread(lambda: holder.finalize(term))
        book.wait_blocked(holder.pid)
    assert late.result() == LOST
    assert book.row().decided_by == "ann"


@every_ruling
def test_of_a_new_attempt_and_a_ruling_at_once_the_second_sees_the_first(
    term: Term, desk: Desk, other: Holder, book: Book, ruling: str
) -> None:
    shown = book.row()
    with other.connection.transaction():
        other.start(call(policy=IDEMPOTENT))
        late = Thread(lambda: RULINGS[ruling](desk, shown))
        book.wait_blocked(pid(desk))
    with pytest.raises(Moved, match="is executing now"):
        late.result()
    assert book.row().attempt == 2


def test_a_ruling_that_meets_a_worker_head_on_is_tried_again(term: Term, desk: Desk, book: Book) -> None:
    """The worker settles the outcome and then touches the call, the ruling the other way round: a deadlock."""
    shown = book.row()
    book.ask("SET deadlock_timeout = '5s'")
    desk._connection().execute("SET deadlock_timeout = '500ms'")  # so that it is the desk that gives way
    with suppress(psycopg.errors.DeadlockDetected), book.connection.transaction():
        book.ask("UPDATE fencepost.unsettled SET acknowledged = 2")
        ruling = Thread(lambda: desk.resolve(shown, succeeded="1", **ANN))
        book.wait_blocked(pid(desk))
        book.ask("UPDATE fencepost.calls SET expires_at = expires_at + interval '1 s'")
    assert ruling.result().decided


# --- any order --------------------------------------------------------------------------------------------------------

MOVES = (
    "deliver",
    "deliver elsewhere",
    "complete",
    "fail",
    "lose",
    "give up",
    "resolve",
    "resolve otherwise",
    "release",
)


class Story:
    """One call, and what may happen to it."""

    def __init__(self, holders: list[Holder], book: Book, desk: Desk, policy: Policy) -> None:
        self.holders, self.book, self.desk, self.policy = holders, book, desk, policy
        self.execution = f"x-{uuid4().hex}"
        desk.open_execution(self.execution, "acme")
        self.running: list[tuple[Holder, Term]] = []
        self.starts = self.releases = 0

    @property
    def row(self) -> CallRow | None:
        found = list(self.desk.calls(execution=self.execution))
        return found[0] if found else None

    def happen(self, move: str) -> None:
        match move:
            case "deliver" | "deliver elsewhere":
                self._deliver(self.holders[move == "deliver"])
            case "complete" | "fail" | "lose" if self.running:
                holder, term = self.running[0]
                holder.finalize(term, {"complete": "completed", "fail": "failed", "lose": "indeterminate"}[move])
            case "give up":
                self.book.lease_over()
            case "resolve" | "resolve otherwise" | "release":
                self._rule({"resolve": "succeeded", "resolve otherwise": "failed", "release": "released"}[move])

    def _deliver(self, holder: Holder) -> None:
        item = call(execution_id=self.execution, policy=self.policy)
        verdict = holder.look(item)
        if isinstance(verdict, Start) and verdict.term is not None:
            self.starts += 1
            self.running.insert(0, (holder, verdict.term))

    def _rule(self, ruling: str) -> None:
        if (row := self.row) is None:
            return
        try:
            RULINGS[ruling](self.desk, row)
        except Moved:
            return
        self.releases += ruling == "released" and row.state is State.indeterminate


@settings(max_examples=25, deadline=None)
@given(moves=st.lists(st.sampled_from(MOVES), min_size=4, max_size=14), idempotent=st.booleans())
def test_in_any_order_what_was_decided_stands(module_database: str, moves: list[str], idempotent: bool) -> None:
    with ExitStack() as stack:
        desk = stack.enter_context(Desk(module_database))
        book = stack.enter_context(closing(Book(module_database)))
        holders = [stack.enter_context(closing(Holder(module_database, name))) for name in ("h1", "h2")]
        story = Story(holders, book, desk, IDEMPOTENT if idempotent else Policy())
        for move in moves:
            before = story.row
            story.happen(move)
            if before is not None and (after := story.row) is not None:
                hold(before, after)
        assert idempotent or story.starts <= 1 + story.releases


def hold(before: CallRow, after: CallRow) -> None:
    """The laws between any two moments."""
    if before.state is State.completed or before.decided:
        assert kept(after) == kept(before)
    if after.attempt != before.attempt:
        assert after.attempt == before.attempt + 1
        assert (after.ruling, after.decided_attempt) == (before.ruling, before.decided_attempt)


def kept(row: CallRow) -> tuple[Any, ...]:
    return row.state, row.attempt, row.result, row.error, row.ruling, row.decided_attempt, row.finished_at
