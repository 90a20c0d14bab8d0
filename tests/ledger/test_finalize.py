"""The far end of a call: its result is recorded by whoever still holds the attempt, and by nobody else."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from fencepost_ledger import State, Term, admit
from fencepost_ledger.verdicts import Finalize, Finalized, Join, Policy, Replay, Start, Waiting
from services.holder import ERROR, LOST, Book, Holder, Thread, call

IDEMPOTENT = Policy("idempotent")
LONG_AGO = 1000.0  # seconds


def test_an_end_is_recorded_under_its_term(holder: Holder, book: Book) -> None:
    end = holder.finalize(holder.start(call()), result='{"id": 7}')
    row = book.row()
    assert end == Finalized(True, 2, row.finished_at)
    assert (row.state, row.result, row.revision, row.lease_until) == (State.completed, '{"id": 7}', 2, None)


@pytest.mark.parametrize("state", ["completed", "failed", "indeterminate"])
def test_only_the_holder_of_the_attempt_writes(holder: Holder, other: Holder, book: Book, state: str) -> None:
    term = holder.start(call())
    assert other.finalize(term, state) == LOST
    assert holder.finalize(Term(term.execution_id, term.key, 2), state) == LOST
    assert book.states() == [State.executing]


@pytest.mark.parametrize("first", ["completed", "failed"])
@pytest.mark.parametrize("then", ["completed", "failed", "indeterminate"])
def test_what_is_final_is_never_overwritten(holder: Holder, book: Book, first: str, then: str) -> None:
    term = holder.run(call(), first)
    before = book.row()
    assert (
        not holder.finalize(term, then, error='{"code": "other", "message": "", "detail": null}').mine or first == then
    )
    assert book.row() == before


def test_a_lost_attempt_learns_that_it_is_lost_and_reads_what_is_recorded(
    holder: Holder, other: Holder, book: Book
) -> None:
    item = call(policy=IDEMPOTENT)
    lost = holder.start(item)
    book.lease_over()
    other.run(item, result='"theirs"')
    assert holder.finalize(lost, result='"mine"') == LOST
    verdict = holder.look(item)
    assert isinstance(verdict, Replay)
    assert verdict.row.result == '"theirs"'


def test_a_lost_attempt_and_the_next_one_of_the_same_holder_end_apart_in_one_batch(holder: Holder, book: Book) -> None:
    """Both of one process: the lost one must not take the other's end for its own."""
    item = call(policy=IDEMPOTENT)
    lost = holder.start(item)
    holder.holding.end(lost)
    holder.holding.keep()
    assert holder.finalize(lost, "indeterminate").mine
    second = holder.start(item)
    ends = holder.do(Finalize(lost, State.completed, '"first"'), Finalize(second, State.completed, '"second"'))
    assert ends == [LOST, Finalized(True, 4, book.row().finished_at)]
    assert book.row().result == '"second"'


def test_the_end_of_a_lost_attempt_does_not_end_a_later_one_here(holder: Holder, other: Holder, book: Book) -> None:
    """Were it forgotten that the later one runs here, a duplicate would start it again, and nobody renew its lease."""
    first = holder.start(call())
    book.lease_over()
    other.look(call())
    book.rule("released")
    second = holder.start(call())
    assert holder.finalize(first) == LOST
    assert holder.holding.terms() == [second]
    assert holder.look(call("e2")) == Join()


# --- the late truth ---------------------------------------------------------------------------------------------------


@pytest.fixture
def given_up(holder: Holder, other: Holder, book: Book) -> Term:
    """The term of a live attempt that somebody else called unknown."""
    term = holder.start(call())
    book.lease_over()
    assert isinstance(other.look(call("e2")), Replay)
    assert book.states() == [State.indeterminate]
    return term


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_the_truth_is_welcome_after_the_call_was_called_unknown(
    given_up: Term, holder: Holder, book: Book, state: str
) -> None:
    assert holder.finalize(given_up, state).mine
    assert book.states() == [State(state)]
    assert book.unsettled() == [(3, 0)]


def test_an_unknown_end_adds_nothing_to_what_is_called_unknown(given_up: Term, holder: Holder, book: Book) -> None:
    """What the other one recorded stands: this end must not be reported as the recorded one."""
    before = book.row()
    assert holder.finalize(given_up, "indeterminate") == LOST
    assert book.row() == before


@pytest.mark.parametrize("ruling", ["completed", "failed", "released"])
@pytest.mark.parametrize("state", ["completed", "failed", "indeterminate"])
def test_a_ruling_is_never_overwritten_by_the_late_truth(
    given_up: Term, holder: Holder, book: Book, ruling: str, state: str
) -> None:
    book.rule(ruling)
    before = book.row()
    assert holder.finalize(given_up, state) == LOST
    assert book.row() == before


def test_the_late_truth_of_an_attempt_that_was_released_and_started_again_is_lost(
    given_up: Term, holder: Holder, other: Holder, book: Book
) -> None:
    book.rule("released")
    other.start(call())
    assert holder.finalize(given_up) == LOST
    assert book.row().attempt == 2


# --- commits that nobody heard of -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed", "indeterminate"])
def test_our_own_end_whose_commit_went_unheard_is_ours(holder: Holder, book: Book, state: str) -> None:
    term = holder.start(call())
    fields: dict[str, Any] = {"result": "1"} if state == "completed" else {"error": ERROR}
    holder.unheard(Finalize(term, State(state), **fields))
    assert holder.finalize(term, state, **fields) == Finalized(True, 2, book.row().finished_at)


def test_a_reservation_whose_commit_went_unheard_starts_once(holder: Holder, other: Holder) -> None:
    holder.unheard(call())
    assert other.look(call()) == Waiting()
    assert [type(v) for v in holder.admit(call(), call("e2"))] == [Start, Waiting]
    assert holder.look(call("e2")) == Join()


def test_what_is_resumed_is_leased_anew(holder: Holder, other: Holder, book: Book) -> None:
    """Reserved, unheard of, the database away for long: from its start on nobody may take it for lost."""
    item = call(policy=Policy(probed=True))
    holder.unheard(item)
    book.lease_over(LONG_AGO)
    assert holder.start(item).attempt == 1
    assert other.look(item) == Waiting()


def test_what_somebody_took_over_meanwhile_is_not_resumed(holder: Holder, other: Holder, book: Book) -> None:
    item = call(policy=IDEMPOTENT)
    holder.unheard(item)
    book.lease_over(LONG_AGO)
    with other.connection.transaction():
        other.start(item)
        late = Thread(lambda: holder.look(item))
        book.wait_blocked(holder.pid)
    assert late.result() == Waiting()
    assert book.row().holder == "h2"


def test_what_somebody_takes_over_between_our_look_and_our_write_is_not_resumed(
    holder: Holder, other: Holder, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = call(policy=IDEMPOTENT)
    holder.unheard(item)
    book.lease_over(LONG_AGO)
    real, late = admit._resume, [other]

    def overtaken(*args: Any) -> None:
        if late:
            late.pop().start(item)
        real(*args)

    monkeypatch.setattr(admit, "_resume", overtaken)
    assert holder.look(item) == Waiting()
    assert book.row().holder == "h2"


def test_an_arming_whose_commit_went_unheard_starts_once(holder: Holder, book: Book) -> None:
    holder.run(call(), "failed", retryable=True)
    holder.unheard(call("e2"))
    assert holder.start(call("e2")).attempt == 2
    assert book.row().attempt == 2


# --- races ------------------------------------------------------------------------------------------------------------


def test_a_takeover_waits_for_an_end_on_its_way_and_answers_by_it(holder: Holder, other: Holder, book: Book) -> None:
    item = call(policy=IDEMPOTENT)
    term = holder.start(item)
    book.lease_over()
    with holder.connection.transaction():
        holder.finalize(term, result='"done"')
        late = Thread(lambda: other.look(item))
        book.wait_blocked(other.pid)
    verdict = late.result()
    assert isinstance(verdict, Replay)
    assert verdict.row.result == '"done"'


def test_an_end_waits_for_a_takeover_on_its_way_and_is_lost(holder: Holder, other: Holder, book: Book) -> None:
    item = call(policy=IDEMPOTENT)
    term = holder.start(item)
    book.lease_over()
    with other.connection.transaction():
        other.start(item)
        late = Thread(lambda: holder.finalize(term))
        book.wait_blocked(holder.pid)
    assert late.result() == LOST
    assert (book.row().attempt, book.row().holder) == (2, "h2")


def test_of_a_renewal_and_a_takeover_at_once_the_call_has_one_holder(holder: Holder, other: Holder, book: Book) -> None:
    item = call(policy=IDEMPOTENT)
    holder.start(item)
    book.lease_over()
    with book.connection.transaction():
        book.ask("UPDATE fencepost.calls SET lease_until = now() + interval '30 s'")  # the holder's renewal
        late = Thread(lambda: other.look(item))
        book.wait_blocked(other.pid)
    assert late.result() == Waiting()
    assert book.row().holder == "h1"


# --- what is recorded -------------------------------------------------------------------------------------------------

TEXTS = ["null", "0", "false", '""', "[]", "{}", '"None"', '"\\u0000"', "1" + "0" * 400, '"\\ud800"']


@pytest.mark.parametrize("text", TEXTS)
def test_results_come_back_exactly(holder: Holder, other: Holder, text: str) -> None:
    holder.run(call(), result=text)
    verdict = other.look(call())
    assert isinstance(verdict, Replay)
    assert verdict.row.result == text


def test_a_missing_result_is_not_the_result_null(holder: Holder, other: Holder) -> None:
    holder.run(call(), result=None, error=ERROR)
    verdict = other.look(call())
    assert isinstance(verdict, Replay)
    assert (verdict.row.result, verdict.row.error) == (None, ERROR)


def test_messages_come_back_exactly(holder: Holder, other: Holder) -> None:
    error = json.dumps({"code": "x\x00", "message": "a\x00b\ud800", "detail": {"\x00": "\x00"}})
    holder.run(call(), "failed", error=error)
    verdict = other.look(call())
    assert isinstance(verdict, Replay)
    assert verdict.row.error == error


def test_a_batch_of_ends_is_answered_one_by_one(holder: Holder, book: Book) -> None:
    terms = [holder.start(call(f"e{n}", call_index=n)) for n in range(6)]
    states = [State.completed, State.failed, State.indeterminate] * 2
    ends = [Finalize(t, s, error=ERROR, result=None) for t, s in zip(terms, states, strict=True)]
    gone = Finalize(Term("x", b"?" * 32, 1), State.completed)
    answers = holder.do(*ends[:3], gone, *ends[3:])
    assert [a.mine for a in answers] == [True, True, True, False, True, True, True]
    assert sorted(book.states()) == sorted(states)
    assert not holder.holding.terms()


def test_times_are_the_databases(holder: Holder, book: Book) -> None:
    holder.run(call())
    row = book.row()
    ((now,),) = book.ask("SELECT clock_timestamp()")
    assert row.finished_at is not None
    assert now - timedelta(seconds=20) < row.started_at <= row.finished_at <= now
