"""The promises hold in every interleaving of these worlds, and each rule of the protocol is needed for that."""

from __future__ import annotations

import pytest

from fencepost_ledger import State
from fencepost_ledger.calls import ARROWS
from model.checker import check
from model.protocol import RULES, Protocol, Scenario, World

ONE = Scenario("one event, two crashes", (1,), crashes=2, late=True)
TWO = Scenario("two events of one call", (1, 1), crashes=1)
UNHEARD = Scenario("two events, commits unheard", (1, 1), unheard=2)
AGAIN = Scenario("re-dispatch of the same call", (1, 2), crashes=1)
UNCLEAR = Scenario("re-dispatch, tool unclear, a commit unheard", (1, 2), unheard=1, unclear=True)
RESOLVED = Scenario("resolved", (1, 1), crashes=1, ruling="resolve", unclear=True)
RELEASED = Scenario("released", (1,), crashes=1, ruling="release", unclear=True)
REFUSED = Scenario(
    "refused, run again, resolved", (1, 1), ruling="resolve", unclear=True, refusing=True, workers=1, late=True
)
IDEMPOTENT = Scenario("idempotent, two crashes", (1,), tool="idempotent", crashes=2)
PROBED = Scenario("probed, a crash, a commit unheard", (1,), tool="probed", crashes=1, unheard=1)
SCENARIOS = (ONE, TWO, UNHEARD, AGAIN, UNCLEAR, RESOLVED, RELEASED, REFUSED, IDEMPOTENT, PROBED)

# Where each rule is missed first, and what breaks without it.
MISSED = {
    "fence": (AGAIN, "a stale call started"),
    "lease": (ONE, "an outcome was called unknown while its holder was alive and well"),
    "indeterminate": (ONE, "a protected call ran more often than allowed"),
    "finalize-holder": (RELEASED, "an attempt that did not hold the call wrote its end"),
    "finalize-state": (RELEASED, "a ruling was overwritten"),
    "offset-last": (AGAIN, "no good end can be reached"),
    "sweeper": (ONE, "no good end can be reached"),
    "orphans": (RELEASED, "no good end can be reached"),
    "unique-holder": (ONE, "a protected call ran more often than allowed"),
    "resume-leases": (UNHEARD, "a call started without a lease"),
    "settle-revision": (REFUSED, "an unknown outcome was forgotten"),
    "settle-undecided": (ONE, "an unknown outcome was forgotten"),
    "probe-state": (PROBED, "a protected call ran more often than allowed"),
    "comeback": (PROBED, "a protected call ran more often than allowed"),
    "grace": (PROBED, "a protected call ran more often than allowed"),
    "lapse": (PROBED, "a protected call ran more often than allowed"),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_promises_hold_whatever_happens_in_which_order(scenario: Scenario) -> None:
    broken, steps, states = check(scenario)
    assert not broken, " / ".join(steps)
    assert states > 1000


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_a_promise_breaks(rule: str) -> None:
    scenario, expected = MISSED[rule]
    broken, steps, _ = check(scenario, dropped=rule)
    assert broken == expected, " / ".join(steps)


def test_the_model_moves_only_along_the_arrows_of_the_code() -> None:
    protocol, seen, todo = Protocol(REFUSED), {World()}, [World()]
    moves = set()
    while todo:
        world = todo.pop()
        for _, after in protocol.steps(world):
            if world.row and after.row and world.row.revision != after.row.revision:
                moves.add((State(world.row.state), State(after.row.state)))
            if after not in seen:
                seen.add(after)
                todo.append(after)
    assert moves
    assert not {(before, after) for before, after in moves if after not in ARROWS[before]}
