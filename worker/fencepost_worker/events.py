"""One record's way, from its bytes to its acknowledged answer: the straight line, with the ledger's part in `Paths`."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from fencepost_dispatch.answers import Answer, Delivery, of_row
from fencepost_dispatch.path import LedgerRefused, Lift, Paths
from fencepost_ledger import CallRow, Source
from fencepost_ledger.verdicts import Failed, Raise, Refused, Rejected, Settle
from fencepost_schemas import Decoded, Dispatch, Fence, Outcome, OutcomeError, Poison
from fencepost_worker.records import Record

Event = Generator[Any, Any, Settle | None]


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish an outcome and wait for all in-sync replicas → None, or the error of a record that is too large."""

    outcome: Outcome
    trace: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Bury:
    """Publish the record to the dead-letter topic and wait, likewise."""

    record: Record
    code: str
    message: str


class Unpublished(Exception):
    """An outcome cannot be published, and its event must not count as answered."""


class Unburied(Exception):
    """A record that neither the ledger nor the dead-letter topic can take: the worker must not go past it."""


Done = Answer | Fence | Bury
"""What came of a record: its answer was published, the fence was raised, it was buried."""
Passage = Generator[Any, Any, Done]


def event(record: Record, decoded: Decoded | Poison, paths: Paths) -> Passage:
    """A record's way: decode → admit → execute → finalize → publish; its answer is settled, then its offset is."""
    if isinstance(decoded, Poison):
        return (yield from buried(record, decoded.code, decoded.message))
    if isinstance(decoded.event, Fence):
        return (yield from _fence(record, decoded.event))
    try:
        answer = yield from paths.path(_delivery(record, decoded, decoded.event))
    except LedgerRefused as error:
        return (yield from buried(record, "ledger_refused", str(error)))
    return (yield from published(answer, decoded.trace))


def left(row: CallRow) -> Event:
    """The way of an outcome that nobody published: a worker crashed, or a person ruled."""
    answer = yield from published(of_row(row), ())
    return answer.settle


def published(answer: Answer, trace: tuple[tuple[str, bytes], ...]) -> Generator[Any, Any, Answer]:
    """Publish; an outcome over the broker's limit goes without its result, and says so.

    Raises:
        Unpublished: it is too large all the same. It is not settled.
    """
    error = yield Publish(answer.outcome, trace)
    if error is not None:
        error = yield Publish(_without_result(answer.outcome), trace)
    if error is not None:
        raise Unpublished("an outcome does not fit even without its result: raise max.message.bytes of its topic")
    return answer


def buried(record: Record, code: str, message: str) -> Generator[Any, Any, Bury]:
    """Publish as a dead letter; it is never dropped.

    Raises:
        Unburied: it is too large for the dead-letter topic.
    """
    step = Bury(record, code, message)
    error = yield step
    if error is not None:
        raise Unburied("a dead letter does not fit: raise max.message.bytes of the dead-letter topic")
    return step


def _fence(record: Record, fence: Fence) -> Passage:
    answer: Rejected | Failed | None = yield Lift(Raise(fence.execution_id, fence.node_id, fence.generation))
    match answer:
        case None:
            return fence
        case Rejected(code, message):
            return (yield from buried(record, code, message))
        case Failed(error):
            return (yield from buried(record, "ledger_refused", f"{type(error).__name__}: {error}"))


def _delivery(record: Record, decoded: Decoded, dispatch: Dispatch) -> Delivery:
    refusal = decoded.refusal
    refused = None if refusal is None else Refused(refusal.code, refusal.message)
    source = Source(record.topic, record.partition, record.offset, record.timestamp)
    return Delivery(dispatch, decoded.arguments_hash, refused, source, decoded.trace)


def _without_result(outcome: Outcome) -> Outcome:
    """What is left must fit: the result and the error's detail are what can be large."""
    message = "the outcome is larger than its topic takes; `fencepost calls show` has the result"
    error = outcome.error or OutcomeError(code="result_too_large", message=message)
    small = error.model_copy(update={"detail": None, "message": error.message[:1000]})
    return outcome.model_copy(update={"result": None, "error": small})
