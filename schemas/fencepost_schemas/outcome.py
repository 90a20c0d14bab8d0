"""The event that answers: how a delivered dispatch ended. The compatibility rule stands in `dispatch.py`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pkgutil import resolve_name
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fencepost_schemas.fields import (
    CallIndex,
    EventId,
    ForeignId,
    Generation,
    Instant,
    Metadata,
    OrgId,
    ScopeId,
    ToolName,
)
from fencepost_schemas.plain import loads

OUTCOME_TYPE: Final = "tool.outcome.v1"
_FETCH: Final = "fencepost_ledger.blobs:fetch"
_WORDS: Final = 300  # characters of an error's message that a description repeats


class Status(StrEnum):
    """How one delivery of a dispatch ended."""

    succeeded = "succeeded"  # the tool returned, the result is recorded: happened, once
    failed = "failed"  # the tool said that it did not act: did not happen
    indeterminate = "indeterminate"  # entered, and nobody can say how it ended: unknown, never to be repeated
    fenced = "fenced"  # the event's generation is older than the node's: not by this event
    diverged = "diverged"  # an older generation already did something else at this position: not by this event
    busy = "busy"  # another holder is still executing after the wait bound: not by this event
    rejected = "rejected"  # refused before anything ran: did not happen
    expired = "expired"  # past its deadline, or older than the ledger remembers: not by this event


def _whole_text(value: Any) -> Any:
    # The words of an exception may hold lone surrogates (file names do); an outcome must still be writable.
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


Text = Annotated[str, BeforeValidator(_whole_text)]


class OutcomeError(BaseModel):
    """Why there is no plain success: ``code`` for programs, ``message`` for people, ``detail`` is any JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    code: Text
    message: Text
    detail: Any = None


class Resolution(BaseModel):
    """Who decided an unknown outcome (a person, or a tool's probe), why and when."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    by: Text
    reason: Text
    at: Instant


class ResultRef(BaseModel):
    """Where a large result lies: ``size`` in bytes, ``sha256`` in hex of those bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    uri: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    media_type: str


Fetch = Callable[[ResultRef, str | None], bytes | str]
"""What reads a stored result: (its reference, the org whose it must be) → its JSON text."""


class Outcome(BaseModel):
    """``tool.outcome.v1``: the answer to one delivery of one dispatch.

    ``executed``: this delivery ran the tool. ``replayed``: answered from the ledger. ``invocation_key`` is 64 hex
    digits. A ``None`` result is a result: ``status`` tells success, not the result's presence.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    outcome_id: Annotated[str, Field(min_length=1)]
    event_id: EventId
    execution_id: ScopeId
    node_id: ScopeId
    call_index: CallIndex
    tool_call_id: ForeignId | None = None
    generation: Generation
    org_id: OrgId | None = None
    tool: ToolName
    invocation_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    status: Annotated[Status, Field(strict=False)]
    executed: bool = False
    replayed: bool = False
    retryable: bool = False
    attempt: Annotated[int, Field(ge=0)] | None = None
    result: Any = None
    result_ref: ResultRef | None = None
    error: OutcomeError | None = None
    resolution: Resolution | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    worker: str | None = None
    metadata: Metadata = None

    def load_result(self, fetch: Fetch | None = None) -> Any:
        """The result wherever it lies: ``result``, or what ``result_ref`` names, read, checked and parsed.

        It blocks while it reads; in a coroutine: ``await asyncio.to_thread(outcome.load_result)``. The URI says which
        store, the store's own variables say with which credentials (``AWS_…``, ``GOOGLE_…``, ``AZURE_…``), and the
        extra ``fencepost[s3]`` has to be installed. ``fetch`` reads it in another way.

        The reader is the ledger's, and these events stand below the ledger: so it is looked up by its name, at the
        first reference that is followed. Every outcome can be asked, whoever decoded it, nobody has to register
        anything first, and who never meets a reference imports nothing for it.

        Raises:
            BlobMissing: forgotten with its call, or no blob of this outcome's org.
            BlobDamaged: other bytes lie there than were stored.
            BlobsUnavailable: the store cannot be read, or the extra is missing. All three are in ``fencepost_ledger``.
        """
        if self.result_ref is None:
            return self.result
        read: Fetch = fetch or resolve_name(_FETCH)
        return loads(read(self.result_ref, self.org_id))

    def describe(self) -> str:
        """One plain sentence for a model or a log: what happened, why, and whether to repeat the call."""
        return f"{self._what()}{self._because()}{self._found()}{self._advice()}"

    def _what(self) -> str:
        match self.status:
            case Status.succeeded:
                return "It happened"
            case Status.failed:
                return "It did not happen"
            case Status.indeterminate:
                return "It may or may not have happened"
            case Status.fenced:
                return "It was not started: a newer generation has taken over"
            case Status.diverged:
                return "It was not started: an older generation already did something else in its place"
            case Status.busy:
                return "It was not started: another worker is still executing it"
            case Status.rejected:
                return "It was refused before anything ran"
            case Status.expired:
                return "It was not started: its time had passed"

    def _because(self) -> str:
        if self.error is None:
            return ""
        words = " ".join(self.error.message.split())[:_WORDS]
        return f" ({self.error.code}: {words})" if words else f" ({self.error.code})"

    def _found(self) -> str:
        if self.resolution is None:
            return ""
        if self.started_at is not None and self.resolution.at < self.started_at:
            return f", started again because {self.resolution.by} had released it"
        return f", as {self.resolution.by} found"

    def _advice(self) -> str:
        match self.status:
            case Status.succeeded:
                return ". Do not repeat it."
            case Status.indeterminate:
                return ". Do not repeat it; a person or the tool's probe has to find out."
            case _ if self.retryable:
                return ". It may be repeated."
            case Status.failed | Status.rejected:
                return ". Do not repeat it as it is."
            case _:
                return ". Do not repeat it."
