"""What the ledger said, or how the tool ended → the outcome that answers one delivery of one dispatch. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencepost_dispatch.execute import Ended
from fencepost_ledger import CallRow, Ruling, Source, State
from fencepost_ledger.verdicts import (
    Admitted,
    Diverged,
    Expired,
    Fenced,
    Finalized,
    Refused,
    Rejected,
    Replay,
    Settle,
    Start,
    Verdict,
)
from fencepost_schemas import Dispatch, Outcome, OutcomeError, Resolution, ResultRef, Status, loads, outcome_id

# What a worker of another version, or a later moment, may answer differently.
_RETRYABLE_REJECTIONS = frozenset({"unknown_tool"})
_STATUS = {
    State.completed: Status.succeeded,
    State.failed: Status.failed,
    State.indeterminate: Status.indeterminate,
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivered dispatch with what its record told. `trace` are W3C trace context headers to carry on."""

    dispatch: Dispatch
    arguments_hash: bytes | None
    refused: Refused | None = None
    source: Source | None = None
    trace: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """An outcome to publish, and what the ledger is told once the broker has it (None: nothing is recorded)."""

    outcome: Outcome
    settle: Settle | None = None


def executed(
    delivery: Delivery,
    admitted: Admitted,
    start: Start,
    *,
    ended: Ended,
    end: Finalized,
    worker: str,
) -> Answer:
    """This delivery ran the tool, and its end is what the ledger records (or, read-only, nothing was to record)."""
    status = _STATUS[State(ended.state)]
    outcome = _outcome(
        delivery,
        admitted,
        status,
        executed=True,
        retryable=ended.retryable,
        attempt=start.attempt,
        result=None if ended.result is None else loads(ended.result),
        result_ref=ended.result_ref,
        error=ended.error,
        started_at=start.started_at,
        resolution=_resolution(start.ruling),
        finished_at=end.finished_at,
        worker=worker,
    )
    if start.term is None:
        return Answer(outcome)
    undecided = status is Status.indeterminate
    return Answer(outcome, Settle(start.term.execution_id, start.term.key, end.revision, undecided))


def answered(delivery: Delivery, admitted: Admitted, max_attempts: int) -> Answer:
    """The ledger answers, and nothing was run by this delivery."""
    match admitted.verdict:
        case Replay(row):
            return _replayed(delivery, admitted, row, max_attempts)
        case Fenced(generation):
            message = f"generation {delivery.dispatch.generation} is over: the node is at {generation}"
            return Answer(_refused(delivery, admitted, Status.fenced, "fenced", message))
        case Diverged(row):
            return Answer(_diverged(delivery, admitted, row))
        case Rejected(code, message):
            return Answer(_refused(delivery, admitted, Status.rejected, code, message))
        case Expired(code, message):
            return Answer(_refused(delivery, admitted, Status.expired, code, message))
        case verdict:
            raise _unanswerable(verdict)


def busy(delivery: Delivery, admitted: Admitted, seconds: float) -> Answer:
    """Another holder was still executing it after the wait bound of `seconds`."""
    message = f"another worker is still executing it after {seconds:g} s"
    return Answer(_refused(delivery, admitted, Status.busy, "busy", message))


def of_row(row: CallRow) -> Answer:
    """The outcome of a row whose event nobody holds any more (a crash before publishing, a person's ruling)."""
    fields = _recorded(row) | {
        "event_id": row.event_id,
        "execution_id": row.execution_id,
        "node_id": row.node_id,
        "call_index": row.call_index,
        "tool_call_id": _json(row.tool_call_id),
        "generation": row.generation,
        "org_id": row.org_id,
        "tool": row.tool,
        "metadata": _json(row.metadata),
        "retryable": row.retryable,
    }
    status = _STATUS[row.state]
    outcome = Outcome(
        outcome_id=outcome_id(row.execution_id, row.event_id, status),
        invocation_key=row.key.hex(),
        status=status,
        replayed=True,
        **fields,
    )
    return Answer(outcome, _settle(row))


def _outcome(delivery: Delivery, admitted: Admitted, status: Status, **rest: Any) -> Outcome:
    event = delivery.dispatch
    return Outcome(
        outcome_id=outcome_id(event.execution_id, event.event_id, status),
        event_id=event.event_id,
        execution_id=event.execution_id,
        node_id=event.node_id,
        call_index=event.call_index,
        tool_call_id=event.tool_call_id,
        generation=event.generation,
        org_id=admitted.org_id,
        tool=event.tool,
        invocation_key=None if admitted.key is None else admitted.key.hex(),
        status=status,
        metadata=event.metadata,
        **rest,
    )


def _replayed(delivery: Delivery, admitted: Admitted, row: CallRow, max_attempts: int) -> Answer:
    retryable = row.retryable and not row.decided and row.attempt < max_attempts
    outcome = _outcome(delivery, admitted, _STATUS[row.state], replayed=True, retryable=retryable, **_recorded(row))
    # The row's own event speaks for the row; another event of the same call leaves that to it, or to the sweeper.
    return Answer(outcome, _settle(row) if row.event_id == delivery.dispatch.event_id else None)


def _refused(delivery: Delivery, admitted: Admitted, status: Status, code: str, message: str) -> Outcome:
    retryable = status is Status.busy or code in _RETRYABLE_REJECTIONS
    return _outcome(delivery, admitted, status, retryable=retryable, error=OutcomeError(code=code, message=message))


def _diverged(delivery: Delivery, admitted: Admitted, row: CallRow) -> Outcome:
    did = {
        "invocation_key": row.key.hex(),
        "tool": row.tool,
        "call_index": row.call_index,
        "generation": row.generation,
        "state": row.state.value,
        "result": _json(row.result),
        "result_ref": _json(row.result_ref),
        "error": _json(row.error),
    }
    message = f"generation {row.generation} already has {row.tool} at this position ({row.state.value})"
    error = OutcomeError(code="diverged", message=message, detail=did)
    return _outcome(delivery, admitted, Status.diverged, error=error)


def _recorded(row: CallRow) -> dict[str, Any]:
    """What the row says of how the call ended."""
    error, ref = _json(row.error), _json(row.result_ref)
    return {
        "attempt": row.attempt,
        "result": _json(row.result),
        "result_ref": None if ref is None else ResultRef(**ref),
        "error": None if error is None else OutcomeError(**error),
        "resolution": _resolution(row.ruling),
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "worker": row.holder,
    }


def _resolution(ruling: Ruling | None) -> Resolution | None:
    return None if ruling is None else Resolution(by=ruling.by, reason=ruling.reason, at=ruling.at)


def _settle(row: CallRow) -> Settle:
    return Settle(row.execution_id, row.key, row.revision, undecided=row.state is State.indeterminate)


def _json(text: str | None) -> Any:
    return None if text is None else loads(text)


def _unanswerable(verdict: Verdict) -> AssertionError:
    return AssertionError(f"{type(verdict).__name__} is not the end of the line")
