"""One event's way through the ledger, as a generator without I/O. `Engine` drives many at once.

A path yields what it needs (`Look`, `Run`, `Record` …) and is sent the answer. Every transaction, tool entry and wait
is one `yield`: what can happen between two of them is what the protocol's model checks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from fencepost_dispatch import answers
from fencepost_dispatch.answers import Answer, Delivery
from fencepost_dispatch.context import ToolInvocationContext
from fencepost_dispatch.execute import Ended
from fencepost_dispatch.registry import Blocked, Registry
from fencepost_dispatch.signature import InvalidArguments
from fencepost_dispatch.tools import Tool
from fencepost_ledger import CallRow, State, Term
from fencepost_ledger.blobs import reference
from fencepost_ledger.verdicts import (
    Admit,
    Admitted,
    Ask,
    Failed,
    Finalize,
    Finalized,
    Join,
    Name,
    Policy,
    Probe,
    Raise,
    Refused,
    Start,
    Waiting,
)
from fencepost_schemas import Dispatch, OutcomeError, ResultRef, dumps, event_digest

AnyTool = Tool[..., Any]


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the ledger (one admission) → Admitted | Failed. Takes a slot, and keeps it when the answer is Start."""

    admit: Admit
    tenant: str


@dataclass(frozen=True, slots=True)
class Run:
    """Enter the tool → Ended. `shared`: somebody else may run it again if the lease is lost. `trace`: W3C headers.
    `enter_by`: not after this time of the monotonic clock, in seconds."""

    tool: AnyTool
    arguments: dict[str, Any]
    context: ToolInvocationContext
    term: Term | None
    shared: bool
    trace: tuple[tuple[str, bytes], ...] = ()
    enter_by: float = math.inf


@dataclass(frozen=True, slots=True)
class AskProbe:
    """Ask the tool's probe about a lost attempt → Probe, with whatever result it has."""

    tool: AnyTool
    arguments: dict[str, Any]
    context: ToolInvocationContext
    revision: int


@dataclass(frozen=True, slots=True)
class Store:
    """Put a large result where the reference says, whatever is cancelled meanwhile → whether it is there now."""

    ref: ResultRef
    data: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """Finalize an attempt → Finalized | Failed. Gives the slot back."""

    end: Finalize


@dataclass(frozen=True, slots=True)
class Lift:
    """Raise a generation (a fence event) → Rejected | None | Failed."""

    to: Raise


@dataclass(frozen=True, slots=True)
class Joined:
    """Wait until this process's own run of the call has ended."""

    execution_id: str
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Again:
    """Wait before the next look at another holder's run; → seconds waited since the first such wait of this path."""


Step = Look | Run | AskProbe | Name | Store | Record | Lift | Joined | Again
Path = Generator[Any, Any, Answer]


class LedgerRefused(Exception):
    """The ledger cannot take this one event, whoever sends it: a fault to look into, and no outcome can say more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What this worker would do with a dispatch: its tool and validated arguments, or why not (in `admit.refused`)."""

    admit: Admit
    tool: AnyTool | None
    arguments: dict[str, Any]


class Paths:
    """Makes the paths of a worker's tools.

    Args:
        tools: the registry. worker: this process's holder id. wait_seconds: bound of the wait for another holder.
        inline_result_bytes: the largest result that is recorded in the ledger. blobs: the store of larger ones.
    """

    def __init__(
        self, tools: Registry, *, worker: str, wait_seconds: float, inline_result_bytes: int, blobs: str | None = None
    ) -> None:
        self._tools = tools
        self._worker = worker
        self._wait = wait_seconds
        self._inline = inline_result_bytes
        self._blobs = blobs

    def path(self, delivery: Delivery) -> Path:
        """One dispatch, from its delivery to its answer: admit → execute → finalize, or what the ledger knows.

        Raises:
            LedgerRefused
        """
        plan = self._plan(delivery)
        admit = plan.admit
        tenant = admit.org_claim or admit.execution_id
        while True:
            admitted = yield from self._looked(Look(admit, tenant))
            match admitted.verdict:
                case Start() as start:
                    ended = yield from self._kept(
                        (yield self._run(delivery, plan, admitted, start)),  # held by no name here: see `_kept`
                        admit.execution_id,
                        admitted.org_id,
                        admitted.key,
                    )
                    ended, end = yield from self._recorded(start.term, ended, admit.policy.max_attempts)
                    if end.mine and not _may_start_again(ended, start, admit):
                        return answers.executed(delivery, admitted, start, ended=ended, end=end, worker=self._worker)
                    # The attempt was lost, and the ledger knows better than this worker; or the tool was not entered
                    # soon enough after the reservation, and whether it still may be is to be asked again.
                case Join():
                    yield Joined(admit.execution_id, admitted.key)
                case Waiting():
                    waited: float = yield Again()
                    if waited >= self._wait:
                        return answers.busy(delivery, admitted, self._wait)
                case Ask(row):
                    probe: Probe = yield self._probe(delivery, plan, admitted, row.revision)
                    admit = replace(admit, probe=(yield from self._kept_of_probe(probe, row)))
                case _:
                    return answers.answered(delivery, admitted, admit.policy.max_attempts)

    def _looked(self, look: Look) -> Generator[Any, Any, Admitted]:
        admitted: Admitted | Failed = yield look
        if isinstance(admitted, Failed):
            raise LedgerRefused(f"{type(admitted.error).__name__}: {admitted.error}") from admitted.error
        return admitted

    def _recorded(
        self, term: Term | None, ended: Ended, max_attempts: int
    ) -> Generator[Any, Any, tuple[Ended, Finalized]]:
        """Record the end → what is recorded; a result that the ledger cannot take is dropped, never the fact that the
        tool ended so. The last attempt there is may not be tried again, whoever tells of it."""
        if term is None:
            return ended, Finalized(mine=True, revision=0, finished_at=datetime.now(UTC))
        ended = replace(ended, retryable=ended.retryable and term.attempt < max_attempts)
        recorded: Finalized | Failed = yield Record(_finalize(term, ended))
        if isinstance(recorded, Failed):
            error = OutcomeError(code="result_not_recorded", message="the ledger could not take the result or error")
            ended = replace(ended, result=None, result_ref=None, error=error)
            recorded = yield Record(_finalize(term, ended))
        if isinstance(recorded, Failed):
            raise LedgerRefused(f"{type(recorded.error).__name__}: {recorded.error}") from recorded.error
        return ended, recorded

    def _run(self, delivery: Delivery, plan: Plan, admitted: Admitted, start: Start) -> Run:
        if plan.tool is None:
            raise AssertionError("the ledger started a refused dispatch")
        context = _context(delivery.dispatch, admitted, start.attempt)
        policy = plan.admit.policy
        shared = policy.effect == "idempotent" or policy.probed
        return Run(plan.tool, plan.arguments, context, start.term, shared, delivery.trace)

    def _kept(
        self, ended: Ended, execution_id: str, org_id: str | None, key: bytes | None
    ) -> Generator[Any, Any, Ended]:
        """A large result goes to the store. The effect is done: where its result goes changes nothing about that."""
        if ended.result is None or len(ended.result) <= self._inline:
            return ended
        data, ended = ended.result.encode(), replace(ended, result=None)  # its text is let go of: it may be 100 MB
        if self._blobs is None:
            return self._dropped(ended, len(data), "")
        if org_id is None or key is None:
            raise AssertionError("the ledger started a call without an identity")
        ref = reference(self._blobs, org_id, data)
        named: Failed | None = yield Name(execution_id, key, ref.uri)
        if named is None and (yield Store(ref, data)):
            return replace(ended, result_ref=ref)
        return self._dropped(ended, ref.size, ", and its upload failed")

    def _dropped(self, ended: Ended, size: int, why: str) -> Ended:
        message = f"the tool acted; its result of {size} bytes is over the {self._inline} that are kept{why}"
        return replace(ended, error=OutcomeError(code="result_too_large", message=message))

    def _kept_of_probe(self, probe: Probe, row: CallRow) -> Generator[Any, Any, Probe]:
        found = Ended("completed", probe.result)
        kept: Ended = yield from self._kept(found, row.execution_id, row.org_id, row.key)
        ref, error = _json(kept.result_ref), probe.error or _json(kept.error)
        return replace(probe, result=kept.result, result_ref=ref, error=error)

    def _probe(self, delivery: Delivery, plan: Plan, admitted: Admitted, revision: int) -> AskProbe:
        if plan.tool is None:
            raise AssertionError("the ledger asked for the probe of a refused dispatch")
        context = _context(delivery.dispatch, admitted, None)
        return AskProbe(plan.tool, plan.arguments, context, revision)

    def _plan(self, delivery: Delivery) -> Plan:
        tool, arguments, refused = self._runnable(delivery)
        return Plan(_admit(delivery, tool, refused), tool, arguments)

    def _runnable(self, delivery: Delivery) -> tuple[AnyTool | None, dict[str, Any], Refused | None]:
        event = delivery.dispatch
        tool = self._tools.get(event.tool)
        if delivery.refused is not None:
            return None, {}, delivery.refused
        if tool is None:
            return None, {}, Refused("unknown_tool", f"no worker of this version has a tool {event.tool!r}")
        if isinstance(tool, Blocked):
            return None, {}, Refused("classification_blocked", tool.message)
        try:
            return tool, tool.validate(event.arguments), None
        except InvalidArguments as error:
            return None, {}, Refused("invalid_arguments", str(error))


def _may_start_again(ended: Ended, start: Start, admit: Admit) -> bool:
    return not ended.entered and start.term is not None and start.attempt < admit.policy.max_attempts


def _admit(delivery: Delivery, tool: AnyTool | None, refused: Refused | None) -> Admit:
    event = delivery.dispatch
    digest = b"" if delivery.arguments_hash is None else event_digest(event, delivery.arguments_hash)
    return Admit(
        event_id=event.event_id,
        execution_id=event.execution_id,
        node_id=event.node_id,
        call_index=event.call_index,
        generation=event.generation,
        tool=event.tool,
        arguments_hash=delivery.arguments_hash,
        digest=digest,
        policy=Policy() if tool is None else _policy(tool),
        org_claim=event.org_id,
        deadline=event.deadline,
        tool_call_id=event.tool_call_id,
        metadata=None if event.metadata is None else dumps(event.metadata),
        source=delivery.source,
        refused=refused,
    )


def _policy(tool: AnyTool) -> Policy:
    return Policy(tool.effect.value, tool.max_attempts, tool.probe_function is not None, tool.on_divergence)


def _context(event: Dispatch, admitted: Admitted, attempt: int | None) -> ToolInvocationContext:
    key = None if admitted.key is None else admitted.key.hex()
    return ToolInvocationContext(
        # A dispatch without the provider's id still has one name per call.
        tool_call_id=event.tool_call_id or key or event.event_id,
        invocation_key=key,
        org_id=admitted.org_id,
        execution_id=event.execution_id,
        node_id=event.node_id,
        call_index=event.call_index,
        generation=event.generation,
        attempt=attempt,
        event_id=event.event_id,
        deadline=event.deadline,
    )


def _finalize(term: Term, ended: Ended) -> Finalize:
    ref, error = _json(ended.result_ref), _json(ended.error)
    return Finalize(term, State(ended.state), ended.result, ref, error, ended.retryable)


def _json(model: ResultRef | OutcomeError | None) -> str | None:
    return None if model is None else json.dumps(model.model_dump())
