"""What goes into the ledger (`Admit`, `Raise`, `Finalize`, `Settle`) and what comes out (verdicts): frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fencepost_ledger.calls import CallRow, Ruling, Source, State, Term

Effect = Literal["protected", "idempotent", "read_only"]
OnDivergence = Literal["refuse", "adopt", "execute"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a tool may be run: what `decide` needs to know of it. `on_divergence` overrides the setting when not None."""

    effect: Effect = "protected"
    max_attempts: int = 3
    probed: bool = False
    on_divergence: OnDivergence | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a dispatch cannot be run, known before the ledger is asked; a recorded outcome is still replayed."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What the tool's probe said of a lost attempt, read at `revision`.

    `result`, `result_ref` and `error` (found, and what of it cannot be kept) are JSON texts in ASCII.
    """

    revision: int
    answer: Literal["found", "not_done", "unknown"]
    result: str | None = None
    result_ref: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Admit:
    """One delivered dispatch event. `arguments_hash` (32 bytes) is None only when `refused` says why."""

    event_id: str
    execution_id: str
    node_id: str
    call_index: int
    generation: int
    tool: str
    arguments_hash: bytes | None
    digest: bytes
    policy: Policy = Policy()
    org_claim: str | None = None
    deadline: datetime | None = None
    tool_call_id: str | None = None
    metadata: str | None = None
    source: Source | None = None
    refused: Refused | None = None
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Raise:
    """A fence event: raise the node's generation to at least this one."""

    execution_id: str
    node_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Name:
    """A blob that is about to be stored for a call: named first, so that it is swept whatever becomes of the call."""

    execution_id: str
    key: bytes
    uri: str


@dataclass(frozen=True, slots=True)
class Finalize:
    """How an attempt ended. `result`, `result_ref` and `error` are JSON texts in ASCII."""

    term: Term
    state: State
    result: str | None = None
    result_ref: str | None = None
    error: str | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """The broker acknowledged the outcome of this revision of the call; `undecided`: that outcome was indeterminate."""

    execution_id: str
    key: bytes
    revision: int
    undecided: bool = False


Op = Admit | Raise | Name | Finalize | Settle


@dataclass(frozen=True, slots=True)
class Start:
    """Run the tool now. `term` is None for a read-only tool: nothing was reserved.

    `ruling` is what was decided about an earlier attempt, such as its release.
    """

    term: Term | None
    attempt: int
    started_at: datetime
    ruling: Ruling | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The ledger knows the answer, or knows that nobody knows it (an indeterminate row)."""

    row: CallRow
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """This process is running the call: wait for it here."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another holder is executing the call: look again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The holder is gone for good and the tool has a probe: ask it."""

    row: CallRow


@dataclass(frozen=True, slots=True)
class Fenced:
    """The node's generation is newer than the event's."""

    generation: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused before anything ran."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Expired:
    """Past its deadline, or older than the ledger remembers."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """An older generation already did something else at this position: `row`."""

    row: CallRow


Verdict = Start | Replay | Join | Waiting | Ask | Fenced | Rejected | Expired | Diverged


@dataclass(frozen=True, slots=True)
class Admitted:
    """A verdict with what identity the ledger gave the call: org of the trusted row, key of 32 bytes."""

    org_id: str | None
    key: bytes | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Finalized:
    """`mine`: this attempt's end is the recorded truth. `revision` names it for `Settle`."""

    mine: bool
    revision: int
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The ledger refused this one item; its neighbours went through."""

    error: Exception
