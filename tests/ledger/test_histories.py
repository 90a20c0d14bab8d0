"""The real ledger, driven through the protocol's model: in each history both are in the same state after each step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fencepost_ledger import admit, decide, memory, settle, statements
from model.protocol import RULES
from services.fleet import Fleet
from services.walks import CUTS, VERBS, Walk

HISTORIES = int(os.environ.get("FENCEPOST_TEST_HISTORIES", "2000"))
ENOUGH = 400  # histories, to find what is broken
ELSEWHERE = {"offset-last", "lapse"}  # rules that the worker and the engine keep, not the ledger

Patch = pytest.MonkeyPatch


@pytest.mark.slow
@pytest.mark.timeout(60 + HISTORIES)
def test_in_every_history_the_ledger_does_what_the_protocol_says(module_database: str) -> None:
    fleet = Fleet(module_database)
    assert not (fault := fleet.run(map(Walk, range(HISTORIES)))), fault
    untold = (VERBS | {f"cut by: {verb}" for verb in CUTS}) - set(fleet.told)
    assert HISTORIES < ENOUGH or not untold, "steps that no history took"


# --- and it can fail: each rule, taken out of the ledger --------------------------------------------------------------

LEASE_OVER = " AND (c.lease_until IS NULL OR c.lease_until < clock_timestamp())"
REVISION = " AND c.revision = i.r"


def without(patch: Patch, what: str, *names: str, instead: str = "", module: Any = statements) -> None:
    for name in names:
        assert what in getattr(module, name)
        patch.setattr(module, name, getattr(module, name).replace(what, instead))


def believing(patch: Patch, **clock: Callable[[Any], bool]) -> None:
    """The decision takes the row to be of another time than it is."""

    def told(row: Any, policy: Any, **more: Any) -> Any:
        return decide.decide(replace(row, **{name: says(row) for name, says in clock.items()}), policy, **more)

    patch.setattr(admit, "decide", told)


def no_fence(patch: Patch) -> None:
    patch.setattr(admit, "fence", lambda *_: None)


def lease_ignored(patch: Patch) -> None:
    believing(patch, lease_over=lambda _: True)
    without(patch, LEASE_OVER, "REARM", "GIVE_UP", "FOUND")


def run_again(patch: Patch) -> None:
    patch.setattr(decide, "_safe_to_rerun", lambda row, policy: not row.decided and decide._attempts_left(row, policy))


def anybody_finalizes(patch: Patch) -> None:
    without(patch, " AND c.attempt = i.a AND c.holder = %(holder)s", "FINALIZE", "FINALIZE_RARE")


def rulings_overwritten(patch: Patch) -> None:
    free = statements.FINALIZE_RARE.partition("AND c.decided_attempt")[2].partition("    RETURNING")[0]
    without(patch, f"AND c.decided_attempt{free}", "FINALIZE_RARE")


def ends_overwritten(patch: Patch) -> None:
    without(patch, " AND c.state = 'executing'", "FINALIZE")


def nothing_published(patch: Patch) -> None:
    without(patch, "LIMIT %(limit)s", "PICK_UNSETTLED", instead="LIMIT 0")


def no_orphans(patch: Patch) -> None:
    without(patch, "LIMIT %(limit)s", "PICK_ORPHANS", instead="LIMIT 0")


def same_holder_after_a_restart(patch: Patch) -> None:
    patch.setattr(Fleet, "name", staticmethod(lambda worker, _life: f"w{worker}"))


def not_leased_anew(patch: Patch) -> None:
    patch.setattr(statements, "RENEW", statements.STILL_MINE)


def settled_whatever_came_later(patch: Patch) -> None:
    without(patch, " AND u.revision <= i.r", "SETTLE")


def undecided_settled(patch: Patch) -> None:
    patch.setattr(statements, "ACKNOWLEDGE", statements.SETTLE)


def old_probes_believed(patch: Patch) -> None:
    real = decide._probed
    patch.setattr(
        decide, "_probed", lambda row, how, said: real(row, how, said and replace(said, revision=row.revision))
    )


def back_unseen(patch: Patch) -> None:
    without(patch, "(c.lease_until < clock_timestamp())::integer", "RENEW", instead="0")


def no_grace(patch: Patch) -> None:
    believing(patch, grace_over=lambda row: row.lease_over)


def armed_again_whatever_it_is(patch: Patch) -> None:
    without(patch, REVISION, "REARM")


def armed_again_though_renewed(patch: Patch) -> None:
    without(patch, LEASE_OVER, "REARM")


def given_up_whatever_it_is(patch: Patch) -> None:
    without(patch, REVISION, "GIVE_UP")
    without(patch, " AND c.state = 'executing'", "GIVE_UP")


def given_up_though_renewed(patch: Patch) -> None:
    without(patch, LEASE_OVER, "GIVE_UP")


def found_whatever_it_is(patch: Patch) -> None:
    without(patch, REVISION, "FOUND")
    without(patch, " AND c.state IN ('executing', 'indeterminate')", "FOUND")


def ruled_unseen(patch: Patch) -> None:
    without(patch, " AND c.revision = %(revision)s", "RULE")


def released_and_still_unsettled(patch: Patch) -> None:
    without(patch, "WHERE c.state = 'released' AND", "RULE", instead="WHERE false AND")


def attempts_without_end(patch: Patch) -> None:
    patch.setattr(decide, "_attempts_left", lambda *_: True)


def own_end_unknown(patch: Patch) -> None:
    patch.setattr(settle, "_unheard", lambda *_: {})


def unsettled_forgotten(patch: Patch) -> None:
    without(patch, "NOT EXISTS", "_CALLS", instead="true OR NOT EXISTS", module=memory)


def late_events_run(patch: Patch) -> None:
    patch.setattr(admit, "_produced", lambda *_: None)


IDEMPOTENT, PROBED = {"tool": "idempotent"}, {"tool": "probed"}
# The model's rules by their names, and some that are the ledger's own; and in which world each is missed.
BROKEN: dict[str, tuple[Callable[[Patch], None], dict[str, Any]]] = {
    "fence": (no_fence, {}),
    "lease": (lease_ignored, {}),
    "indeterminate": (run_again, {}),
    "finalize-holder": (anybody_finalizes, {}),
    "finalize-state": (rulings_overwritten, {}),
    "sweeper": (nothing_published, {}),
    "orphans": (no_orphans, {}),
    "unique-holder": (same_holder_after_a_restart, {"crashes": 2}),
    "resume-leases": (not_leased_anew, {}),
    "settle-revision": (settled_whatever_came_later, {"late": True}),
    "settle-undecided": (undecided_settled, {}),
    "probe-state": (old_probes_believed, PROBED),
    "comeback": (back_unseen, {}),
    "grace": (no_grace, PROBED),
    "an end stands": (ends_overwritten, {"unheard": 2}),
    "set again as it was read": (armed_again_whatever_it_is, IDEMPOTENT),
    "set again when the lease is over": (armed_again_though_renewed, IDEMPOTENT),
    "given up as it was read": (given_up_whatever_it_is, {}),
    "given up when the lease is over": (given_up_though_renewed, {}),
    "found as it was read": (found_whatever_it_is, PROBED),
    "ruled as it was shown": (ruled_unseen, IDEMPOTENT | {"ruling": "", "unclear": True}),
    "nothing to publish of a release": (released_and_still_unsettled, {"ruling": "release"}),
    "attempts end": (attempts_without_end, IDEMPOTENT | {"crashes": 2}),
    "an own end is known": (own_end_unknown, {"unheard": 2}),
    "unsettled is remembered": (unsettled_forgotten, {}),
    "beyond memory is not run": (late_events_run, {"generations": (1, 1)}),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_ledger_without_the_rule_is_found(module_database: str, monkeypatch: Patch, rule: str) -> None:
    break_it, world = BROKEN[rule]
    break_it(monkeypatch)
    assert Fleet(module_database, width=50).run(map(partial(Walk, **world), range(ENOUGH)))


def test_each_rule_of_the_protocol_is_taken_out_once() -> None:
    assert set(RULES) - set(BROKEN) == ELSEWHERE
