"""The table of admission for a row that was already there, and the laws that hold over all of it. No database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_ledger import CallRow, State
from fencepost_ledger.decide import Decision, Found, GiveUp, Rearm, Resume, decide
from fencepost_ledger.verdicts import Ask, Effect, Join, Policy, Probe, Replay, Waiting

ME, OTHER = "me", "other"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDEMPOTENT, PROBED = Policy("idempotent"), Policy(probed=True)
ONCE = Policy("idempotent", max_attempts=1)


def row(state: State | str, **more: Any) -> CallRow:
    executing = state == "executing"
    fields: dict[str, Any] = {
        "execution_id": "x",
        "key": b"k" * 32,
        "org_id": "acme",
        "node_id": "n",
        "call_index": 0,
        "tool": "t",
        "arguments_hash": b"h" * 32,
        "generation": 1,
        "attempt": 1,
        "state": State(state),
        "retryable": False,
        "holder": OTHER,
        "lease_until": NOW if executing else None,
        "event_id": "e1",
        **dict.fromkeys(("tool_call_id", "metadata", "result", "result_ref", "error")),
        **dict.fromkeys(("decided_by", "decided_reason", "decided_evidence", "decided_at", "decided_attempt")),
        **dict.fromkeys(("claimed_by", "claimed_generation", "claimed_index")),
        "revision": 7,
        "started_at": NOW,
        "finished_at": NOW if state in {"completed", "failed"} else None,
        "expires_at": NOW,
    }
    return CallRow(**fields | more)


def said(answer: Any, revision: int = 7) -> Probe:
    return Probe(revision, answer, '"found"' if answer == "found" else None)


def decided(found: CallRow, policy: Policy, running: bool = False, probe: Probe | None = None) -> Decision:
    return decide(found, policy, holder=ME, running=running, probe=probe)


LEASED = row("executing")
OVER = row("executing", lease_over=True)
GRACE_OVER = row("executing", lease_over=True, grace_over=True)
UNKNOWN = row("indeterminate", error="{}")


def ruled_on(attempt: int) -> dict[str, Any]:
    return {"decided_by": "ann", "decided_at": NOW, "decided_reason": "looked", "decided_attempt": attempt}


RULED, RULED_BEFORE = ruled_on(1), {"attempt": 2, **ruled_on(1)}

TABLE: dict[str, tuple[CallRow, Policy, Decision]] = {
    "completed": (done := row("completed"), Policy(), Replay(done)),
    "completed, idempotent": (done, IDEMPOTENT, Replay(done)),
    "failed for good": (final := row("failed"), IDEMPOTENT, Replay(final)),
    "failed, retryable": (row("failed", retryable=True), Policy(), Rearm()),
    "failed, retryable, last attempt": (last := row("failed", retryable=True, attempt=3), Policy(), Replay(last)),
    "failed, ruled": (ruled := row("failed", retryable=True, **RULED), Policy(), Replay(ruled)),
    "failed again after a release": (row("failed", retryable=True, **RULED_BEFORE), Policy(), Rearm()),
    "unknown again after a release": (again := row("indeterminate", **RULED_BEFORE), Policy(), Replay(again)),
    "unknown again after a release, idempotent": (row("indeterminate", **RULED_BEFORE), IDEMPOTENT, Rearm()),
    "released": (row("released", **RULED), Policy(), Rearm()),
    "released, however many attempts": (row("released", attempt=99, **ruled_on(99)), Policy(), Rearm()),
    "executing elsewhere": (LEASED, Policy(), Waiting()),
    "executing elsewhere, idempotent": (LEASED, IDEMPOTENT, Waiting()),
    "executing elsewhere, probed": (LEASED, PROBED, Waiting()),
    "lease over, idempotent": (OVER, IDEMPOTENT, Rearm()),
    "lease over, idempotent, last attempt": (OVER, ONCE, GiveUp()),
    "lease over, probed": (OVER, PROBED, Waiting()),
    "grace over, probed": (GRACE_OVER, PROBED, Ask(GRACE_OVER)),
    "lease over, protected": (OVER, Policy(), GiveUp()),
    "lease over, probed and idempotent": (OVER, Policy("idempotent", probed=True), Rearm()),
    "unknown, protected": (UNKNOWN, Policy(), Replay(UNKNOWN)),
    "unknown, probed": (UNKNOWN, PROBED, Replay(UNKNOWN)),
    "unknown, idempotent": (UNKNOWN, IDEMPOTENT, Rearm()),
    "unknown, idempotent, last attempt": (UNKNOWN, ONCE, Replay(UNKNOWN)),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_line_of_the_table(case: str) -> None:
    found, policy, expected = TABLE[case]
    assert decided(found, policy) == expected


PROBES = {
    "found": (said("found"), Found('"found"')),
    "not done": (said("not_done"), Rearm()),
    "unknown": (said("unknown"), GiveUp()),
    "said of an older state": (said("not_done", revision=6), Ask(GRACE_OVER)),
}


@pytest.mark.parametrize("case", PROBES)
def test_what_the_probe_says_decides(case: str) -> None:
    probe, expected = PROBES[case]
    assert decided(GRACE_OVER, PROBED, probe=probe) == expected


def test_a_probe_never_starts_more_attempts_than_there_are() -> None:
    """A call that kills its worker each time, and each time has not acted, would go round for ever."""
    last = row("executing", lease_over=True, grace_over=True, attempt=3)
    assert decided(last, PROBED, probe=said("not_done")) == GiveUp()


def test_a_probe_is_not_believed_while_the_grace_lasts() -> None:
    assert decided(OVER, PROBED, probe=said("not_done")) == Waiting()


@pytest.mark.parametrize("found", [LEASED, OVER, GRACE_OVER], ids=["leased", "over", "grace_over"])
def test_what_this_process_runs_is_joined_whatever_its_lease(found: CallRow) -> None:
    mine = row("executing", holder=ME, lease_over=found.lease_over, grace_over=found.grace_over)
    assert decided(mine, PROBED, running=True) == Join()
    assert decided(mine, IDEMPOTENT, running=True) == Join()


def test_what_this_process_reserved_without_hearing_of_it_is_resumed() -> None:
    assert decided(row("executing", holder=ME), Policy()) == Resume()


# --- laws -------------------------------------------------------------------------------------------------------------

policies = st.builds(
    Policy, st.sampled_from(["protected", "idempotent"]), st.integers(1, 4), st.booleans(), st.none()
)  # read-only calls have no row
probes = st.none() | st.builds(said, st.sampled_from(["found", "not_done", "unknown"]), st.integers(6, 7))


def rulings(state: State, attempt: int) -> list[int | None]:
    """Attempts that may have been ruled on."""
    match state:
        case State.released:
            return [attempt]
        case State.completed | State.failed:
            return [None, *range(1, attempt + 1)]
        case _:
            return [None, *range(1, attempt)]


@st.composite
def rows(draw: st.DrawFn) -> CallRow:
    state = draw(st.sampled_from(State))
    over = state == "executing" and draw(st.booleans())
    attempt = draw(st.integers(1, 4))
    ruling = draw(st.sampled_from(rulings(state, attempt)))
    return row(
        state,
        attempt=attempt,
        retryable=state == "failed" and draw(st.booleans()),
        holder=draw(st.sampled_from([ME, OTHER])),
        lease_over=over,
        grace_over=over and draw(st.booleans()),
        **({} if ruling is None else ruled_on(ruling)),
    )


def starts(decision: Decision) -> bool:
    return isinstance(decision, Rearm | Resume)


@given(rows(), policies, st.booleans(), probes)
def test_completed_is_only_ever_replayed(found: CallRow, policy: Policy, running: bool, probe: Probe | None) -> None:
    if found.state is State.completed:
        assert decided(found, policy, running, probe) == Replay(found)


@given(rows(), policies, st.booleans(), probes)
def test_a_ruling_is_never_armed_again(found: CallRow, policy: Policy, running: bool, probe: Probe | None) -> None:
    if found.decided:
        assert decided(found, policy, running, probe) == Replay(found)


@given(rows(), policies, st.booleans(), probes)
def test_a_valid_lease_of_another_holder_is_waited_for(
    found: CallRow, policy: Policy, running: bool, probe: Probe | None
) -> None:
    if found.state is State.executing and found.holder == OTHER and not found.lease_over:
        assert decided(found, policy, running, probe) == Waiting()


@given(rows(), policies, st.booleans(), probes)
def test_a_protected_call_that_may_have_acted_starts_again_only_by_its_probe(
    found: CallRow, policy: Policy, running: bool, probe: Probe | None
) -> None:
    entered = found.state is State.indeterminate or (found.state is State.executing and found.holder == OTHER)
    if entered and policy.effect == "protected" and starts(decided(found, policy, running, probe)):
        assert policy.probed
        assert probe == said("not_done", found.revision)
        assert found.grace_over


@given(rows(), policies, probes)
def test_what_runs_here_is_never_started_beside_itself(found: CallRow, policy: Policy, probe: Probe | None) -> None:
    if found.state is State.executing and found.holder == ME:
        assert decided(found, policy, True, probe) == Join()


@given(rows(), policies, st.booleans(), probes)
def test_nobody_but_a_person_starts_more_attempts_than_there_are(
    found: CallRow, policy: Policy, running: bool, probe: Probe | None
) -> None:
    if found.state is not State.released and decided(found, policy, running, probe) == Rearm():
        assert found.attempt < policy.max_attempts


@given(rows(), policies, st.booleans(), probes)
def test_only_an_executing_call_is_given_up_or_found(
    found: CallRow, policy: Policy, running: bool, probe: Probe | None
) -> None:
    if isinstance(decided(found, policy, running, probe), GiveUp | Found | Ask):
        assert found.state is State.executing
        assert found.lease_over


@pytest.mark.parametrize("effect", ["protected", "idempotent"])
@pytest.mark.parametrize("state", State)
def test_every_state_has_an_answer(state: State, effect: Effect) -> None:
    assert decided(row(state), Policy(effect)) is not None
