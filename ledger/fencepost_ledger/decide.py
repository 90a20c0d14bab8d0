"""Rows found → what to do: one pure function of (row, policy, who asks), with the database's time already judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from fencepost_ledger.calls import CallRow, State
from fencepost_ledger.verdicts import Ask, Join, Policy, Probe, Replay, Waiting


@dataclass(frozen=True, slots=True)
class Rearm:
    """Run it again: compare-and-set to attempt+1 under this holder, then start."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Reserved by this very process in a transaction whose commit went unheard: start it now."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The holder is gone and nobody can say what it did: compare-and-set to indeterminate."""


@dataclass(frozen=True, slots=True)
class Found:
    """The probe found the effect: compare-and-set to completed with its result (a JSON text)."""

    result: str | None
    result_ref: str | None = None
    error: str | None = None


Decision = Replay | Rearm | Resume | Join | Waiting | Ask | GiveUp | Found


def decide(row: CallRow, policy: Policy, *, holder: str, running: bool, probe: Probe | None = None) -> Decision:
    """The table of the protocol's §5 for a row that was already there.

    `holder` is the asking process's id; `running` says whether that process is executing this call now; `probe` is
    what the tool's probe answered when it was asked about this row.
    """
    match row.state:
        case State.completed:
            return Replay(row)
        case State.failed:
            again = row.retryable and not row.decided and _attempts_left(row, policy)
            return Rearm() if again else Replay(row)
        case State.released:
            return Rearm()
        case State.indeterminate:
            return Rearm() if _safe_to_rerun(row, policy) else Replay(row)
        case State.executing:
            return _executing(row, policy, holder, running, probe)
        case _:
            assert_never(row.state)


def _executing(row: CallRow, policy: Policy, holder: str, running: bool, probe: Probe | None) -> Decision:
    if row.holder == holder:
        return Join() if running else Resume()
    if not row.lease_over:
        return Waiting()
    if _safe_to_rerun(row, policy):
        return Rearm()
    if policy.probed:
        # "Absent" while the old holder still runs is how two rivals run a call twice: hence the grace.
        return _probed(row, policy, probe) if row.grace_over else Waiting()
    return GiveUp()


def _probed(row: CallRow, policy: Policy, probe: Probe | None) -> Decision:
    if probe is None or probe.revision != row.revision:
        return Ask(row)
    match probe.answer:
        case "found":
            return Found(probe.result, probe.result_ref, probe.error)
        case "not_done" if _attempts_left(row, policy):
            return Rearm()
        case "not_done":
            return GiveUp()  # it takes its worker along each time: for a person to look at
        case "unknown":
            return GiveUp()


def _safe_to_rerun(row: CallRow, policy: Policy) -> bool:
    return policy.effect == "idempotent" and not row.decided and _attempts_left(row, policy)


def _attempts_left(row: CallRow, policy: Policy) -> bool:
    return row.attempt < policy.max_attempts
