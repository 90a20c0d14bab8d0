"""The real ledger under whatever order of events hypothesis thinks of, held to the promises of the protocol's model.

Two processes and one call of one kind of tool. They take events, hear of their commits or not, act, end, sleep through
their leases, crash and start anew; a person rules, the orchestrator raises the generation, the sweeper passes. What
must hold is asked after each step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencepost_ledger import CallRow, Desk, State, Term, sweep
from fencepost_ledger.case import Holding
from fencepost_ledger.lease import LeaseKeeper
from fencepost_ledger.verdicts import Admit, Ask, Finalize, Finalized, Policy, Probe, Replay, Settle, Start
from services.holder import ERROR, EXECUTION, NODE, Book, Holder, call, emptied

TOOLS = {"protected": Policy(), "idempotent": Policy("idempotent"), "probed": Policy(probed=True)}
LONG = 1000.0  # seconds: beyond every lease and grace
workers = st.integers(0, 1)


@dataclass
class Hand:
    """The attempt that a process runs: lost in a crash."""

    term: Term
    acted: bool = False
    end: Finalize | None = None


class LedgerMachine(RuleBasedStateMachine):
    dsn = ""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(emptied(self.dsn))
        self.book.open()
        self.desk = Desk(self.dsn)
        self.processes = [Holder(self.dsn, "p0"), Holder(self.dsn, "p1")]
        self.hands: list[Hand | None] = [None, None]
        self.said: list[Probe | None] = [None, None]
        self.settles: list[Settle] = []
        self.started: set[int] = set()
        self.fence = self.allowed = 1
        self.lives = self.effects = 0
        self.excused = False
        self.last: CallRow | None = None
        self.policy = Policy()

    @initialize(tool=st.sampled_from(sorted(TOOLS)))
    def choose(self, tool: str) -> None:
        self.policy = TOOLS[tool]

    def item(self, who: int, event: int, behind: int) -> Admit:
        generation = max(1, self.fence - behind)
        return call(f"e{event}-{generation}", generation=generation, policy=self.policy, probe=self.said[who])

    def row(self) -> CallRow | None:
        return next(iter(self.book.rows()), None)

    # --- a process ----------------------------------------------------------------------------------------------------

    @rule(who=workers, event=st.integers(0, 2), behind=st.integers(0, 1))
    def look(self, who: int, event: int, behind: int) -> None:
        """An event is delivered, perhaps of a generation that is over."""
        if self.hands[who] is not None:
            return
        item = self.item(who, event, behind)
        match self.processes[who].look(item):
            case Start(term=Term() as term):
                self.starts(who, item, term)
            case Replay(row):
                assert row.state in {State.completed, State.failed, State.indeterminate}
            case Ask(row):
                self.said[who] = Probe(row.revision, "found" if self.effects else "not_done", '"found"')
            case _:
                pass  # told to wait, fenced …

    def starts(self, who: int, item: Admit, term: Term) -> None:
        assert item.generation >= self.fence, "a stale call started"
        assert term.attempt not in self.started, "an attempt started twice"
        self.started.add(term.attempt)
        self.hands[who] = Hand(term)
        row = self.row()
        assert row is not None
        assert (row.state, row.lease_over, row.attempt) == (State.executing, False, term.attempt)

    @rule(who=workers, event=st.integers(0, 2))
    def look_unheard(self, who: int, event: int) -> None:
        """The commit is not heard of; some event of the call is looked at again at some later time."""
        if self.hands[who] is None:
            self.processes[who].unheard(self.item(who, event, 0))

    @rule(who=workers)
    def act(self, who: int) -> None:
        hand = self.hands[who]
        if hand is not None and not hand.acted and hand.end is None:
            hand.acted = True
            self.effects += 1

    @rule(who=workers, unclear=st.booleans(), unheard=st.booleans())
    def end(self, who: int, unclear: bool, unheard: bool) -> None:
        hand = self.hands[who]
        if hand is None:
            return
        hand.end = hand.end or self.how(hand, unclear)
        if unheard:
            self.processes[who].unheard(hand.end)
        else:
            self.ended(who, hand.end)

    def how(self, hand: Hand, unclear: bool) -> Finalize:
        self.excused |= unclear
        if hand.acted and not unclear:
            return Finalize(hand.term, State.completed, f'"by {hand.term.attempt}"')
        state = State.indeterminate if unclear else State.failed
        return Finalize(hand.term, state, error=ERROR, retryable=not unclear)

    def ended(self, who: int, end: Finalize) -> None:
        finalized: Finalized = self.processes[who].do(end)[0]
        self.hands[who] = None
        row = self.row()
        assert row is not None
        if finalized.mine:
            assert (row.state, row.result, row.revision) == (end.state, end.result, finalized.revision)
            self.settles.append(settle(row))

    @rule(who=workers)
    def crash(self, who: int) -> None:
        self.lives += 1
        process = self.processes[who]
        process.house = replace(process.house, holder=f"p{who}-{self.lives}")
        process.holding = Holding()
        self.hands[who] = self.said[who] = None
        self.excused = True

    @rule(who=workers)
    def renew(self, who: int) -> None:
        process, lost = self.processes[who], list[list[Term]]()
        keeper = LeaseKeeper(self.dsn, process.house, process.holding, lost.append, lambda _: None)
        keeper._connection = process.connection
        held = process.holding.terms()
        keeper._renew(held)
        row = self.row()
        if row is not None and row.state is State.executing and row.holder == process.house.holder and held:
            assert not lost
            assert not row.lease_over

    # --- the world around them ----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, LONG]))
    def sleep(self, seconds: float) -> None:
        self.book.lease_over(seconds)
        self.excused = True

    @rule()
    def redispatch(self) -> None:
        if self.fence < 3:
            self.fence = self.desk.redispatch(EXECUTION, NODE)

    @precondition(lambda self: self.last is not None and self.last.state is State.indeterminate)
    @rule(how=st.sampled_from(["completed", "failed", "released"]))
    def decide(self, how: str) -> None:
        self.book.rule(how)
        self.allowed += how == "released"

    @rule()
    def sweep(self) -> None:
        self.book.ask("UPDATE fencepost.unsettled SET since = since - interval '1 hour'")
        sweep(self.dsn, self.processes[0].house, lambda rows: self.settles.extend(map(settle, rows)))

    @precondition(lambda self: bool(self.settles))
    @rule(which=st.integers(0, 5))
    def settle(self, which: int) -> None:
        self.processes[0].do(self.settles.pop(which % len(self.settles)))

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def promises(self) -> None:
        row, last = self.row(), self.last
        self.last = row
        if self.policy.effect == "protected" and not self.policy.probed:
            assert self.effects <= self.allowed, "a protected call ran more often than allowed"
        if row is None:
            assert last is None, "a call was forgotten"
            return
        assert row.state is not State.indeterminate or self.excused, "called unknown without a reason"
        assert row.state is not State.completed or self.effects or row.decided, "success without an effect"
        if row.state in {State.executing, State.indeterminate}:
            assert self.book.unsettled(), "nobody looks after it"
        if last is not None:
            moved(last, row)

    def teardown(self) -> None:
        for process in self.processes:
            process.close()
        self.desk.close()
        self.book.close()


def settle(row: CallRow) -> Settle:
    return Settle(row.execution_id, row.key, row.revision, row.state is State.indeterminate)


def moved(last: CallRow, row: CallRow) -> None:
    """What holds between any two looks at a call."""
    assert (row.revision, row.attempt, row.generation) >= (last.revision, last.attempt, last.generation)
    assert row.attempt >= last.attempt
    if last.state is State.completed or last.decided:
        assert replace(row, **_BESIDE) == replace(last, **_BESIDE), "what is final was changed"
    if row.attempt == last.attempt:
        assert row.holder == last.holder, "an attempt changed hands"


_BESIDE: dict[str, Any] = {
    **dict.fromkeys(("claimed_by", "claimed_generation", "claimed_index", "expires_at")),
    "lease_over": False,
}


def test_the_promises_hold_for_the_real_ledger_in_any_order_of_events(module_database: str) -> None:
    machine = type("Machine", (LedgerMachine,), {"dsn": module_database})
    fewer = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
    run_state_machine_as_test(machine, settings=fewer)
