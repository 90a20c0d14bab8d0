"""A call's row: its states with their legal arrows, and the value that the rest of the program reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """What the ledger knows of a call. The arrows out of each state stand beside it; there are no others."""

    executing = "executing"  # → completed, failed, indeterminate; → executing (attempt+1, safe to run again)
    completed = "completed"  # final
    failed = "failed"  # → executing (attempt+1) when retryable and not decided; else final
    indeterminate = "indeterminate"  # → completed, failed (late truth, probe, person), released, executing (idempotent)
    released = "released"  # → executing (attempt+1): a person or the probe said that it did not happen


ARROWS: Mapping[State, frozenset[State]] = {
    State.executing: frozenset({State.executing, State.completed, State.failed, State.indeterminate}),
    State.completed: frozenset(),
    State.failed: frozenset({State.executing}),
    State.indeterminate: frozenset({State.executing, State.completed, State.failed, State.released}),
    State.released: frozenset({State.executing}),
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where on Kafka an event came from; `timestamp` is the record's, in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """Who may write a call: this attempt of it. Every write names its term and its holder."""

    execution_id: str
    key: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a person, or the tool's probe, decided about an unknown outcome: by whom, why and when."""

    by: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class CallRow:
    """One row of `fencepost.calls`; the fields are its columns, in the order in which statements select them.

    `result`, `result_ref`, `error` and `metadata` are JSON texts in ASCII, or None: Postgres `text` cannot hold
    U+0000, its escape can. `lease_over` and `grace_over` were judged by the database's clock when the row was read.
    """

    execution_id: str
    key: bytes
    org_id: str
    node_id: str
    call_index: int
    tool: str
    arguments_hash: bytes
    generation: int
    attempt: int
    state: State
    retryable: bool
    holder: str
    lease_until: datetime | None
    event_id: str
    tool_call_id: str | None
    metadata: str | None
    result: str | None
    result_ref: str | None
    error: str | None
    decided_by: str | None
    decided_reason: str | None
    decided_evidence: str | None
    decided_at: datetime | None
    decided_attempt: int | None
    claimed_by: bytes | None
    claimed_generation: int | None
    claimed_index: int | None
    revision: int
    started_at: datetime
    finished_at: datetime | None
    expires_at: datetime
    lease_over: bool = False
    grace_over: bool = False

    @property
    def term(self) -> Term:
        """The attempt that this row was read at."""
        return Term(self.execution_id, self.key, self.attempt)

    @property
    def decided(self) -> bool:
        """Whether somebody ruled how this attempt ended: nothing overwrites that, and nothing starts it again."""
        return self.decided_attempt == self.attempt and self.state is not State.released

    @property
    def ruling(self) -> Ruling | None:
        """The last ruling, of this attempt (`decided`, or released) or of an earlier one."""
        if self.decided_by is None or self.decided_reason is None or self.decided_at is None:
            return None
        return Ruling(self.decided_by, self.decided_reason, self.decided_at)

    def as_json(self) -> dict[str, Any]:
        """The row for people and programs: keys in hex, times in RFC 3339, JSON columns as JSON."""
        shown = {f.name: _shown(f.name, getattr(self, f.name)) for f in fields(self)}
        del shown["grace_over"]
        return {"invocation_key": shown.pop("key"), **shown}


COLUMNS = tuple(f.name for f in fields(CallRow))[:-2]
_JSON_COLUMNS = frozenset({"metadata", "result", "result_ref", "error", "tool_call_id"})


def _shown(name: str, value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case datetime():
            return value.isoformat()
        case str() if name in _JSON_COLUMNS:
            return json.loads(value)
        case _:
            return value


def call_row(values: tuple[Any, ...]) -> CallRow:
    """A row as selected by `COLUMNS` (+ `lease_over`, `grace_over`) → CallRow."""
    row = list(values)
    row[9] = State(row[9])
    return CallRow(*row)
