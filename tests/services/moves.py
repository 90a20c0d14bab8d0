"""One step of a history: what it asks of the ledger, what must be answered, and what must stand there afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4

from fencepost_ledger import CallRow, State, Term
from fencepost_ledger.calls import ARROWS, Source
from fencepost_ledger.verdicts import (
    Admit,
    Ask,
    Expired,
    Fenced,
    Finalize,
    Op,
    Policy,
    Probe,
    Raise,
    Replay,
    Settle,
    Start,
    Verdict,
    Waiting,
)
from model.protocol import GRACE_OVER, MAX_ATTEMPTS, OVER, SAID, VALID, Hand, World
from services.holder import ERROR, NODE, call, key_of
from services.walks import ENDS, REPLAYS, STARTS, Turn, Walk

UNCLEAR = '{"code": "timeout", "message": "nobody knows", "detail": null}'
FOUND = '"found"'
_ANSWERS: dict[str, Literal["found", "not_done", "unknown"]] = {
    "found": "found",
    "not done": "not_done",
    "unknown": "unknown",
}


@dataclass(slots=True, eq=False)
class Story:
    """A history on its way. `row` is its call as last read, `shown` as a person first saw its unknown outcome."""

    number: int
    walk: Walk
    event: Admit
    key: bytes
    row: CallRow | None = None
    shown: CallRow | None = None
    fault: str = ""

    @property
    def execution(self) -> str:
        return self.event.execution_id

    def differs(self, what: object) -> None:
        self.fault = self.fault or f"{self.walk}\nthe ledger: {what}"

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong in the block is this history's fault."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a broken ledger may raise anything
            self.differs(repr(error))


def new_story(number: int, walk: Walk) -> Story:
    tool = walk.scenario.tool
    policy = Policy("idempotent" if tool == "idempotent" else "protected", MAX_ATTEMPTS, probed=tool == "probed")
    event = call("e", execution_id=uuid4().hex, policy=policy)
    return Story(number, walk, event, key_of(event))


@dataclass(frozen=True, slots=True)
class Move:
    """A turn of a story, and the world before it."""

    story: Story
    before: World
    turn: Turn

    @property
    def cut(self) -> Move | None:
        return replace(self, turn=self.turn.cut) if self.turn.cut else None

    @property
    def start(self) -> tuple[int, int]:
        """The worker and which of its starts; the first one's for what no worker does."""
        worker = max(self.turn.worker, 0)
        return worker, self.before.lives[worker]

    @property
    def hand(self) -> Hand:
        """The worker's, before."""
        return self.before.hands[self.turn.worker]

    @property
    def term(self) -> Term:
        return Term(self.story.execution, self.story.key, self.hand.attempt)

    def ops(self) -> list[Op]:
        """What the writer is asked for, in one transaction; nothing for what is no transaction of a worker."""
        settles: list[Op] = [Settle(self.story.execution, self.story.key, *settle) for settle in self._settles()]
        match self.turn.verb:
            case "redispatch":
                return [Raise(self.story.execution, NODE, self.turn.after.fence)]
            case "settles" | "publishes":
                return settles
            case verb if verb in ENDS:
                return [self._end(), *settles]
            case _:
                return [*settles, self._admit()]

    def _settles(self) -> list[tuple[int, bool]]:
        match self.turn.verb:
            case "settles":
                return [settle[1:] for settle in self.before.settles - self.turn.after.settles]
            case "publishes" if self.hand.revision and not self.story.walk.scenario.late:
                return [(self.hand.revision, self.hand.status == "indeterminate")]
            case _:
                return list(self.turn.settles)

    def _end(self) -> Finalize:
        match self.hand.status:
            case "completed":
                return Finalize(self.term, State.completed, f'"{self.hand.attempt}"')
            case "failed":
                return Finalize(self.term, State.failed, error=ERROR, retryable=True)
            case _:
                return Finalize(self.term, State.indeterminate, error=UNCLEAR)

    def _admit(self) -> Admit:
        revision, said = self.hand.probe
        event = f"e{self.hand.event}"
        return replace(
            self.story.event,
            event_id=event,
            generation=self.story.walk.scenario.generations[self.hand.event],
            digest=event.encode().ljust(32),
            source=Source("dispatch", 0, self.hand.event, self._produced()),
            probe=Probe(revision, _ANSWERS[said], FOUND if said == "found" else None) if said else None,
        )

    def _produced(self) -> int | None:
        """When the event was, in milliseconds; unsaid for some, and where remembering it would lock the row."""
        if self.before.forgotten:
            return 1
        return None if self.turn.cut or self.story.number % 3 else time.time_ns() // 1_000_000

    # --- what must be answered ----------------------------------------------------------------------------------------

    def agrees(self, op: Op, answer: Any) -> bool:
        row = self.turn.after.row
        match op:
            case Admit():
                return self._same(answer.verdict)
            case Finalize() if self.turn.verb == "lost the attempt":
                return not answer.mine
            case Finalize():
                return row is not None and (answer.mine, answer.revision) == (True, row.revision)
            case _:
                return answer is None

    def _same(self, verdict: Verdict) -> bool:
        verb, world = self.turn.verb, self.turn.after
        hand = world.hands[self.turn.worker]
        match verdict:
            case Waiting():
                return verb == "waits" or self.turn.cut is not None
            case _ if self.turn.cut:
                return False
            case Start(term, attempt):
                mine = world.row is not None and term == replace(self.term, attempt=world.row.attempt)
                return verb in STARTS and mine and world.row is not None and attempt == world.row.attempt
            case Ask(row):
                return verb == "probe" and row.revision == hand.probe[0]
            case Fenced(generation):
                return verb == "fenced" and generation == world.fence
            case Expired(code, _):
                return verb == "expired" and code == "beyond_memory"
            case Replay(row, adopted):
                revision = row.revision if row.event_id == f"e{hand.event}" else 0
                said = SAID.get(row.state), revision
                return verb in REPLAYS and not adopted and said == (hand.status, hand.revision)
            case _:
                return False


# --- what must stand there --------------------------------------------------------------------------------------------


def expected(world: World) -> dict[str, Any]:
    """The ledger, as the model has it."""
    row, ledger = world.row, {"generation": world.fence, "unsettled": world.owed}
    if row is None:
        return ledger | {"state": None}
    return ledger | {
        "state": row.state,
        "attempt": row.attempt,
        "start": row.holder,
        "event": f"e{row.event}",
        "revision": row.revision,
        "decided": row.decided,
        "lease": row.lease if row.state == "executing" else None,
        "acknowledged": bool(world.owed) and world.acknowledged == row.revision,
    }


def found(row: CallRow | None, generation: int | None, owed: int | None, acknowledged: int | None) -> dict[str, Any]:
    """The ledger, as it is; the holder goes by its id."""
    ledger = {"generation": generation or 1, "unsettled": owed or 0}
    if row is None:
        return ledger | {"state": None}
    lease = None if row.lease_until is None else GRACE_OVER if row.grace_over else OVER if row.lease_over else VALID
    return ledger | {
        "state": row.state.value,
        "attempt": row.attempt,
        "start": row.holder,
        "event": row.event_id,
        "revision": row.revision,
        "decided": row.decided_attempt == row.attempt,
        "lease": lease,
        "acknowledged": acknowledged == row.revision,
    }


def broken_law(before: CallRow | None, after: CallRow | None) -> str:
    """What of this may never be between two looks, whatever the model says; or ''."""
    if after is None:
        return ""
    if after.state is State.completed and after.result not in {FOUND, f'"{after.attempt}"'}:
        return "the result is not that of the attempt"
    if before is None or before.state is after.state is State.executing:
        return ""
    if before.state is not after.state and after.state not in ARROWS[before.state]:
        return f"no arrow leads from {before.state} to {after.state}"
    final = before.state is State.completed or before.decided
    return "what was final or decided has changed" if final and _kept(before) != _kept(after) else ""


def _kept(row: CallRow) -> tuple[Any, ...]:
    return row.state, row.attempt, row.result, row.error, row.ruling, row.decided_attempt
