"""Admission on real Postgres, steps 4 and 5: one reservation for each call, and what becomes of a row that is there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fencepost_ledger import State
from fencepost_ledger.verdicts import Admit, Ask, Join, Policy, Probe, Replay, Start, Verdict, Waiting
from services.holder import ERROR, Book, Holder, Thread, call

IDEMPOTENT, PROBED = Policy("idempotent"), Policy(probed=True)


def code(verdict: Verdict) -> str | None:
    return getattr(verdict, "code", None)


# --- 4. reserve -------------------------------------------------------------------------------------------------------


def test_a_reservation_names_its_holder_lease_attempt_and_generation(holder: Holder, book: Book) -> None:
    holder.start(call(generation=4, tool_call_id="call_0", metadata='{"a": "b"}'))
    row = book.row()
    assert (row.state, row.holder, row.attempt, row.generation) == (State.executing, "h1", 1, 4)
    assert row.lease_until is not None
    assert timedelta(seconds=29) < row.lease_until - row.started_at <= timedelta(seconds=31)
    assert (row.tool_call_id, row.metadata, row.event_id) == ('"call_0"', '{"a": "b"}', "e1")
    assert book.unsettled() == [(1, 0)]


def test_of_duplicates_in_one_batch_one_starts_and_the_others_join(holder: Holder) -> None:
    verdicts = holder.admit(*[call(f"e{n}") for n in range(5)])
    assert [type(v) for v in verdicts] == [Start, Join, Join, Join, Join]


def test_of_duplicates_on_two_connections_one_starts_and_the_other_waits_for_it(
    holder: Holder, other: Holder, book: Book
) -> None:
    with holder.connection.transaction():
        holder.start(call())
        late = Thread(lambda: other.look(call("e2")))
        book.wait_blocked(other.pid)
    assert late.result() == Waiting()


def test_of_duplicates_on_two_connections_the_second_starts_when_the_first_fails(
    holder: Holder, other: Holder, book: Book
) -> None:
    with holder.connection.transaction(force_rollback=True):
        holder.start(call())
        late = Thread(lambda: other.look(call("e2")))
        book.wait_blocked(other.pid)
    assert isinstance(late.result(), Start)


def test_another_call_at_a_position_of_this_generation_is_refused(holder: Holder) -> None:
    holder.run(call())
    assert code(holder.look(call("e2", {"to": "bob"}))) == "position_reused"
    assert code(holder.look(call("e3", tool="mail.draft"))) == "position_reused"
    assert isinstance(holder.look(call("e4", {"to": "bob"}, call_index=1)), Start)


def test_within_one_batch_a_position_belongs_to_one_call(holder: Holder, book: Book) -> None:
    verdicts = holder.admit(call("e1"), call("e2", {"to": "bob"}))
    assert sorted(str(code(v)) for v in verdicts) == ["None", "position_reused"]
    assert len(book.rows()) == 1


def test_calls_that_differ_only_in_their_position_are_two_calls(holder: Holder) -> None:
    assert all(isinstance(v, Start) for v in holder.admit(call("e1"), call("e2", call_index=1)))


# --- 5. find ----------------------------------------------------------------------------------------------------------


def test_a_definite_failure_is_armed_again_until_its_attempts_are_used_up(holder: Holder, book: Book) -> None:
    policy = Policy(max_attempts=2)
    holder.run(call(policy=policy), "failed", retryable=True)
    assert holder.run(call("e2", policy=policy), "failed", retryable=True).attempt == 2
    verdict = holder.look(call("e3", policy=policy))
    assert isinstance(verdict, Replay)
    row = book.row()
    assert (row.state, row.attempt, row.event_id) == (State.failed, 2, "e2")


def test_of_duplicates_that_would_arm_a_call_again_one_does(holder: Holder) -> None:
    holder.run(call(), "failed", retryable=True)
    assert sorted(type(v).__name__ for v in holder.admit(call("e2"), call("e3"))) == ["Start", "Waiting"]


def test_a_released_call_starts_again_as_the_next_attempt(holder: Holder, book: Book) -> None:
    holder.run(call(), "indeterminate")
    book.rule("released")
    assert holder.start(call()).attempt == 2
    row = book.row()
    assert (row.state, row.decided, row.error) == (State.executing, False, None)


def test_a_call_armed_again_carries_the_new_generation(holder: Holder, book: Book) -> None:
    holder.run(call(), "failed", retryable=True)
    holder.start(call("e2", generation=2))
    assert book.row().generation == 2


def test_a_lost_attempt_of_a_protected_call_is_unknown_and_stays_so(holder: Holder, other: Holder, book: Book) -> None:
    holder.start(call())
    book.lease_over()
    for item in (call(), call("e2")):
        verdict = other.look(item)
        assert isinstance(verdict, Replay)
        assert verdict.row.state is State.indeterminate
    assert '"lost_holder"' in str(book.row().error)


def test_a_lost_attempt_of_an_idempotent_call_runs_again(holder: Holder, other: Holder, book: Book) -> None:
    holder.start(call(policy=IDEMPOTENT))
    assert other.look(call("e2", policy=IDEMPOTENT)) == Waiting()
    book.lease_over()
    assert other.start(call("e2", policy=IDEMPOTENT)).attempt == 2
    assert (book.row().holder, book.unsettled()) == ("h2", [(2, 0)])


def asked(other: Holder, item: Admit, answer: Any, result: str | None = None) -> Verdict:
    """Look, be told to ask the probe, and look again with its answer."""
    ask = other.look(item)
    assert isinstance(ask, Ask), ask
    return other.look(replace(item, probe=Probe(ask.row.revision, answer, result)))


@pytest.fixture
def lost(holder: Holder, book: Book) -> Admit:
    """A probed call whose holder has been gone for longer than the grace."""
    item = call(policy=PROBED)
    holder.start(item)
    book.lease_over(seconds=31)
    return item


def test_a_probe_is_asked_only_after_lease_and_grace(holder: Holder, other: Holder, book: Book) -> None:
    item = call(policy=PROBED)
    holder.start(item)
    assert other.look(item) == Waiting()
    book.lease_over(seconds=29)
    assert other.look(item) == Waiting()
    book.lease_over(seconds=31)
    assert isinstance(other.look(item), Ask)


def test_what_the_probe_found_is_recorded_as_its_ruling(lost: Admit, other: Holder, book: Book) -> None:
    verdict = asked(other, lost, "found", "null")
    assert isinstance(verdict, Replay)
    row = book.row()
    assert (row.state, row.result, row.decided_by) == (State.completed, "null", "probe")
    assert book.unsettled() == [(2, 0)]


def test_what_the_probe_found_undone_starts_again(lost: Admit, other: Holder) -> None:
    verdict = asked(other, lost, "not_done")
    assert isinstance(verdict, Start)
    assert verdict.attempt == 2


def test_what_the_probe_cannot_tell_is_unknown(lost: Admit, other: Holder) -> None:
    verdict = asked(other, lost, "unknown")
    assert isinstance(verdict, Replay)
    assert verdict.row.state is State.indeterminate


@pytest.mark.parametrize("answer", ["found", "not_done", "unknown"])
def test_a_probe_that_was_overtaken_decides_nothing(lost: Admit, other: Holder, new_holder: Any, answer: Any) -> None:
    stale = other.look(lost)
    assert isinstance(stale, Ask)
    third = new_holder()
    assert isinstance(asked(third, lost, "not_done"), Start)
    assert other.look(replace(lost, probe=Probe(stale.row.revision, answer, "1"))) == Waiting()


def test_replays_carry_what_was_recorded(holder: Holder) -> None:
    holder.run(call(), "failed", error=ERROR)
    verdict = holder.look(call())
    assert isinstance(verdict, Replay)
    assert (verdict.row.error, verdict.row.holder, verdict.row.attempt) == (ERROR, "h1", 1)
