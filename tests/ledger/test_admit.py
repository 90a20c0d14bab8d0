"""Admission on real Postgres, steps 1 to 3 (org, fence, inbox), and what bars a call that is not on record."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost_ledger import State
from fencepost_ledger.calls import Source
from fencepost_ledger.verdicts import (
    Admitted,
    Expired,
    Fenced,
    Policy,
    Raise,
    Refused,
    Rejected,
    Replay,
    Start,
    Verdict,
    Waiting,
)
from services.holder import ORG, Book, Holder, call, key_of

UNKNOWN_TOOL = Refused("unknown_tool", "no such tool here")
READ_ONLY, IDEMPOTENT = Policy("read_only"), Policy("idempotent")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def code(verdict: Verdict) -> str | None:
    return getattr(verdict, "code", None)


def produced(hours_ago: float) -> Source:
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    return Source("tool.dispatch", 0, 0, int(at.timestamp() * 1000))


# --- 1. org -----------------------------------------------------------------------------------------------------------


def test_the_org_is_the_one_on_the_executions_row(holder: Holder) -> None:
    item = call()
    answer: Admitted = holder.do(item)[0]
    assert (answer.org_id, answer.key) == (ORG, key_of(item))


def test_a_call_of_an_execution_that_nobody_opened_never_starts(holder: Holder, book: Book) -> None:
    answer: Admitted = holder.do(call(execution_id="nobody's"))[0]
    assert (code(answer.verdict), answer.org_id, answer.key) == ("unknown_execution", None, None)
    assert not book.rows()
    assert book.generation() is None


def test_a_claim_of_another_org_never_starts_and_raises_no_generation(holder: Holder, book: Book) -> None:
    assert code(holder.look(call(org_claim="evil", generation=9))) == "org_mismatch"
    assert not book.rows()
    assert book.generation() is None


def test_a_claim_of_the_right_org_is_fine(holder: Holder) -> None:
    assert isinstance(holder.look(call(org_claim=ORG)), Start)


def test_with_a_default_org_an_unknown_execution_is_opened_under_it(new_holder: Any, book: Book) -> None:
    holder = new_holder(default_org="solo")
    answers = holder.do(call(execution_id="new"), call("e2", execution_id="new", call_index=1), call("e3"))
    assert [(a.org_id, type(a.verdict)) for a in answers] == [("solo", Start), ("solo", Start), (ORG, Start)]
    assert book.ask("SELECT org_id FROM fencepost.executions WHERE execution_id = 'new'") == [("solo",)]


def test_with_a_default_org_a_claim_of_another_is_refused(new_holder: Any) -> None:
    assert code(new_holder(default_org="solo").look(call(execution_id="new", org_claim="evil"))) == "org_mismatch"


def test_the_same_call_in_two_orgs_is_two_calls(holder: Holder, book: Book) -> None:
    book.open("y", "other")
    holder.run(call())
    assert isinstance(holder.look(call(execution_id="y")), Start)


def test_a_closed_execution_starts_nothing_new_and_still_answers(holder: Holder, book: Book) -> None:
    holder.run(call())
    book.ask("UPDATE fencepost.executions SET closed_at = now()")
    recorded, new = holder.admit(call(), call("e2", call_index=1))
    assert isinstance(recorded, Replay)
    assert code(new) == "unknown_execution"


@pytest.mark.parametrize("policy", [Policy(), IDEMPOTENT], ids=["protected", "idempotent"])
def test_a_closed_execution_arms_nothing_again(holder: Holder, book: Book, policy: Policy) -> None:
    holder.run(call(policy=policy), "failed", retryable=True)
    book.ask("UPDATE fencepost.executions SET closed_at = now()")
    verdict = holder.look(call("e2", policy=policy))
    assert isinstance(verdict, Replay)
    assert verdict.row.state is State.failed


def test_what_a_lost_holder_left_in_a_closed_execution_is_unknown(holder: Holder, other: Holder, book: Book) -> None:
    holder.start(call(policy=IDEMPOTENT))
    book.lease_over()
    book.ask("UPDATE fencepost.executions SET closed_at = now()")
    verdict = other.look(call(policy=IDEMPOTENT))
    assert isinstance(verdict, Replay)
    assert verdict.row.state is State.indeterminate


def test_a_released_call_of_a_closed_execution_stays_where_it_is(holder: Holder, book: Book) -> None:
    holder.run(call(), "indeterminate")
    book.rule("released")
    book.ask("UPDATE fencepost.executions SET closed_at = now()")
    assert code(holder.look(call())) == "unknown_execution"


# --- 2. fence ---------------------------------------------------------------------------------------------------------


def test_the_first_event_makes_the_fence(holder: Holder, book: Book) -> None:
    holder.start(call())
    assert book.generation() == 1


def test_a_generation_rises_by_an_event_and_never_falls(holder: Holder, book: Book) -> None:
    holder.start(call(generation=5))
    assert holder.look(call("e2", call_index=1, generation=4)) == Fenced(5)
    assert book.generation() == 5


def test_a_fence_event_stops_older_calls_of_its_node_alone(holder: Holder, book: Book) -> None:
    assert holder.do(Raise("x", "n", 3), Raise("x", "n", 2)) == [None, None]
    assert holder.look(call(generation=2)) == Fenced(3)
    assert isinstance(holder.look(call(generation=3)), Start)
    assert isinstance(holder.look(call("e3", node_id="m")), Start)


def test_a_fence_event_of_an_unknown_execution_raises_nothing(holder: Holder, book: Book) -> None:
    known, unknown = holder.do(Raise("x", "n", 3), Raise("nobody's", "n", 3))
    assert (known, code(unknown)) == (None, "unknown_execution")


def test_of_one_batch_the_highest_generation_counts_whatever_the_order(holder: Holder) -> None:
    old, new = holder.admit(call("e1"), call("e2", call_index=1, generation=2))
    assert (old, type(new)) == (Fenced(2), Start)


def test_an_older_generation_is_fenced_even_from_what_is_recorded(holder: Holder) -> None:
    holder.run(call())
    holder.do(Raise("x", "n", 2))
    assert holder.look(call()) == Fenced(2)


def test_what_was_reserved_and_never_heard_of_does_not_start_behind_the_fence(holder: Holder) -> None:
    holder.unheard(call())
    holder.do(Raise("x", "n", 2))
    assert holder.look(call()) == Fenced(2)


# --- 3. inbox ---------------------------------------------------------------------------------------------------------


def test_a_redelivery_gets_the_recorded_answer(holder: Holder, other: Holder, book: Book) -> None:
    holder.run(call())
    for who in (holder, other):
        verdict = who.look(call())
        assert isinstance(verdict, Replay)
        assert verdict.row == replace(book.row(), lease_over=verdict.row.lease_over, grace_over=verdict.row.grace_over)


def test_an_event_id_with_other_content_is_refused_and_leaves_nothing(holder: Holder, book: Book) -> None:
    holder.run(call())
    assert code(holder.look(call("e1", {"to": "bob"}, call_index=1))) == "event_id_reused"
    assert len(book.rows()) == 1


def test_within_one_batch_the_first_event_of_an_id_counts(holder: Holder) -> None:
    first, second = holder.admit(call("e1", node_id="a"), call("e1", {"to": "bob"}, node_id="b"))
    assert (type(first), code(second)) == (Start, "event_id_reused")


def test_event_ids_are_scoped_to_their_execution(holder: Holder, book: Book) -> None:
    book.open("y", "other")
    assert all(isinstance(v, Start) for v in holder.admit(call("e1"), call("e1", execution_id="y", call_index=3)))


def test_inbox_and_reservation_are_one_transaction(holder: Holder, book: Book) -> None:
    """An event that was taken note of, and whose call then was not reserved, would be answered as done."""
    with holder.connection.transaction(force_rollback=True):
        holder.do(call())
    assert not book.ask("SELECT * FROM fencepost.events")
    assert not book.rows()


# --- what bars a new call, and never a recorded answer ----------------------------------------------------------------

BARS: dict[str, dict[str, Any]] = {
    "deadline": {"deadline": LONG_AGO},
    "beyond memory": {"source": produced(hours_ago=49)},
    "refused": {"refused": UNKNOWN_TOOL},
}


@pytest.mark.parametrize("bar", BARS)
def test_a_barred_call_never_starts_and_a_recorded_one_is_answered(holder: Holder, book: Book, bar: str) -> None:
    barred = call("e2", **BARS[bar], digest=b"d" * 32)
    assert isinstance(holder.look(barred), Expired | Rejected)
    assert not book.rows()
    holder.run(call())
    assert isinstance(holder.look(barred), Replay)


def test_a_deadline_still_to_come_bars_nothing(holder: Holder) -> None:
    assert isinstance(holder.look(call(deadline=datetime.now(UTC) + timedelta(hours=1))), Start)


def test_an_event_within_memory_bars_nothing(holder: Holder) -> None:
    assert isinstance(holder.look(call(source=produced(hours_ago=47))), Start)


def test_what_was_reserved_and_never_heard_of_does_not_start_past_its_deadline(holder: Holder, book: Book) -> None:
    item = call(deadline=datetime.now(UTC) + timedelta(hours=1))
    holder.unheard(item)
    late = replace(item, deadline=LONG_AGO)
    assert holder.look(late) == Waiting()
    book.lease_over()
    verdict = holder.look(late)
    assert isinstance(verdict, Replay)
    assert verdict.row.state is State.indeterminate


def test_arguments_without_a_canonical_form_have_no_identity_and_are_refused(holder: Holder, book: Book) -> None:
    refused = Refused("invalid_arguments", "$.a: NaN is not JSON")
    answer: Admitted = holder.do(call(arguments_hash=None, digest=b"", refused=refused))[0]
    assert (code(answer.verdict), answer.org_id, answer.key) == ("invalid_arguments", ORG, None)
    assert not book.ask("SELECT * FROM fencepost.events")


def test_a_worker_without_the_tool_says_nothing_of_a_lost_attempt(holder: Holder, other: Holder, book: Book) -> None:
    holder.start(call(policy=IDEMPOTENT))
    book.lease_over()
    assert other.look(call("e2", refused=UNKNOWN_TOOL)) == Waiting()
    assert book.states() == [State.executing]


# --- read-only --------------------------------------------------------------------------------------------------------


def test_a_read_only_call_is_reserved_nowhere_and_runs_each_time(holder: Holder, book: Book) -> None:
    for verdict in holder.admit(call(policy=READ_ONLY), call(policy=READ_ONLY)):
        assert isinstance(verdict, Start)
        assert verdict.term is None
    assert not book.rows()
    assert not book.ask("SELECT * FROM fencepost.events")


def test_a_read_only_call_passes_org_and_fence_like_any_other(holder: Holder, book: Book) -> None:
    looks: dict[str | None, dict[str, Any]] = {
        "unknown_execution": {"execution_id": "nobody's"},
        "org_mismatch": {"org_claim": "evil"},
        "deadline_passed": {"deadline": LONG_AGO},
        "beyond_memory": {"source": produced(hours_ago=49)},
    }
    for expected, more in looks.items():
        assert code(holder.look(call(policy=READ_ONLY, **more))) == expected
    holder.do(Raise("x", "n", 2))
    assert holder.look(call(policy=READ_ONLY)) == Fenced(2)
    assert isinstance(holder.look(call(policy=READ_ONLY, generation=3)), Start)
    assert book.generation() == 3
