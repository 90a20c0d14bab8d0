"""Re-dispatch on real Postgres: an older generation's effects answer, refuse or make room for a new one's calls."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from fencepost_ledger import State
from fencepost_ledger.verdicts import (
    Admit,
    Ask,
    Diverged,
    Policy,
    Raise,
    Refused,
    Rejected,
    Replay,
    Start,
    Verdict,
    Waiting,
)
from services.holder import Book, Holder, Thread, at_once, call

A, B = {"to": "ann"}, {"to": "bob"}
ADOPT, EXECUTE = Policy(on_divergence="adopt"), Policy(on_divergence="execute")
LONG = 1000.0  # seconds: beyond every grace


def older(arguments: dict[str, Any] | None = None, index: int = 0, **more: Any) -> Admit:
    return call(f"g1-{index}", A if arguments is None else arguments, call_index=index, **more)


def newer(arguments: dict[str, Any], index: int = 0, generation: int = 2, **more: Any) -> Admit:
    return call(f"g{generation}-{index}-{arguments}", arguments, call_index=index, generation=generation, **more)


def replayed(verdict: Verdict) -> tuple[State, str | None, bool]:
    assert isinstance(verdict, Replay), verdict
    return verdict.row.state, verdict.row.result, verdict.adopted


def test_the_same_call_is_replayed_and_never_run_again(holder: Holder, book: Book) -> None:
    holder.run(older(), result='"sent"')
    assert replayed(holder.look(newer(A))) == (State.completed, '"sent"', False)
    assert len(book.rows()) == 1


def test_a_call_that_moved_is_answered_by_the_older_one(holder: Holder, book: Book) -> None:
    holder.run(older(A, 0), result='"sent"')
    for _ in range(2):  # a redelivery too
        assert replayed(holder.look(newer(A, 3))) == (State.completed, '"sent"', False)
    row = book.row()
    assert (row.claimed_generation, row.claimed_index) == (2, 3)


def test_a_node_whose_calls_were_only_reordered_runs_nothing(holder: Holder, book: Book) -> None:
    holder.run(older(A, 0), result='"a"')
    holder.run(older(B, 1), result='"b"')
    verdicts = holder.admit(newer(B, 0), newer(A, 1))
    assert [replayed(v)[1] for v in verdicts] == ['"b"', '"a"']
    assert len(book.rows()) == 2


def test_a_changed_call_is_refused_with_what_the_older_one_did(holder: Holder, book: Book) -> None:
    holder.run(older(), result='"sent"')
    for _ in range(2):
        verdict = holder.look(newer(B))
        assert isinstance(verdict, Diverged)
        assert (verdict.row.result, verdict.row.generation) == ('"sent"', 1)
    assert len(book.rows()) == 1


@pytest.mark.parametrize("by", ["tool", "execution", "house"])
def test_adopting_is_set_by_the_tool_the_execution_or_the_house(new_holder: Any, book: Book, by: str) -> None:
    holder = new_holder(on_divergence="adopt" if by == "house" else "refuse")
    holder.run(older(), result='"sent"')
    if by == "execution":
        book.ask("UPDATE fencepost.executions SET on_divergence = 'adopt'")
    item = newer(B, policy=ADOPT if by == "tool" else Policy())
    for _ in range(2):
        assert replayed(holder.look(item)) == (State.completed, '"sent"', True)


def test_the_tool_wins_over_the_execution_and_that_over_the_house(new_holder: Any, book: Book) -> None:
    holder = new_holder(on_divergence="refuse")
    book.ask("UPDATE fencepost.executions SET on_divergence = 'execute'")
    holder.run(older())
    assert isinstance(holder.look(newer(B, policy=Policy(on_divergence="refuse"))), Diverged)
    assert isinstance(holder.look(newer(B)), Start)


def test_executing_runs_the_new_call_beside_the_older_one_and_replays_it_afterwards(holder: Holder, book: Book) -> None:
    holder.run(older(), result='"old"')
    holder.run(newer(B, policy=EXECUTE), result='"new"')
    assert replayed(holder.look(newer(B, policy=EXECUTE)))[1] == '"new"'
    assert len(book.rows()) == 2


def test_more_of_the_same_than_before_is_new_work(holder: Holder) -> None:
    holder.run(older(A, 0))
    verdicts = holder.admit(newer(A, 0), newer(A, 1))
    assert sorted(type(v).__name__ for v in verdicts) == ["Replay", "Start"]


def test_what_failed_before_bars_nobody(holder: Holder) -> None:
    holder.run(older(), "failed")
    assert isinstance(holder.look(newer(B)), Start)


def test_a_third_generation_may_be_answered_by_the_first(holder: Holder) -> None:
    holder.run(older(A, 0), result='"sent"')
    holder.look(newer(A, 1))
    assert replayed(holder.look(newer(A, 2, generation=3)))[1] == '"sent"'


# --- older calls that are still under way -----------------------------------------------------------------------------


@pytest.mark.parametrize("item", [newer(A, 3), newer(B, 0, policy=ADOPT)], ids=["moved", "adopted"])
def test_an_older_call_that_still_runs_is_waited_for_then_answers(holder: Holder, other: Holder, item: Admit) -> None:
    term = holder.start(older())
    other.do(Raise("x", "n", 2))
    assert other.look(item) == Waiting()
    assert holder.look(item) == Waiting(), "not even its own holder may run it beside itself"
    holder.finalize(term, result='"sent"')
    assert replayed(other.look(item))[1] == '"sent"'


def test_when_the_older_call_then_did_not_act_its_claimant_runs(holder: Holder, other: Holder, book: Book) -> None:
    """The claim was made while it was executing: it must not stand in the claimant's own way."""
    term = holder.start(older(A, 0))
    moved = newer(A, 3)
    assert other.look(moved) == Waiting()
    holder.finalize(term, "failed")
    other.run(moved)
    assert sorted(book.states()) == [State.completed, State.failed]
    assert isinstance(other.look(newer(A, 0)), Replay), "the older one's own call is answered as it failed"


@pytest.mark.parametrize("policy", [Policy(), Policy("idempotent")], ids=["protected", "idempotent"])
def test_a_moved_call_whose_older_holder_is_gone_is_unknown(
    holder: Holder, other: Holder, book: Book, policy: Policy
) -> None:
    """The older row cannot be armed again under another call's position, whatever the tool allows."""
    holder.start(older(policy=policy))
    book.lease_over(LONG)
    assert replayed(other.look(newer(A, 3, policy=policy)))[0] is State.indeterminate


def test_a_moved_call_asks_its_probe_for_the_older_one(holder: Holder, other: Holder, book: Book) -> None:
    probed = Policy(probed=True)
    holder.start(older(policy=probed))
    book.lease_over(LONG)
    assert isinstance(other.look(newer(A, 3, policy=probed)), Ask)


@pytest.mark.parametrize("more", [{"tool": "mail.draft"}, {}], ids=["other tool", "other arguments"])
def test_an_adopted_call_is_judged_as_what_it_was_and_not_by_the_new_ones_probe(
    holder: Holder, other: Holder, book: Book, more: dict[str, Any]
) -> None:
    """The new call's probe, asked with the new arguments, would answer for something else."""
    holder.start(older(A))
    book.lease_over(LONG)
    item = newer(B, policy=Policy(probed=True, on_divergence="adopt"), **more)
    assert replayed(other.look(item))[0] is State.indeterminate


# --- claims -----------------------------------------------------------------------------------------------------------


def test_of_two_workers_that_claim_one_older_call_one_gets_it(holder: Holder, other: Holder, book: Book) -> None:
    holder.run(older(A, 0))
    holder.do(Raise("x", "n", 2))
    with holder.connection.transaction():
        assert isinstance(holder.look(newer(A, 3)), Replay)
        late = Thread(lambda: other.look(newer(A, 4)))
        book.wait_blocked(other.pid)
    assert late.result() == Waiting()
    assert isinstance(other.look(newer(A, 4)), Start), "the older one is taken: this is one more"


def test_of_one_batch_every_call_first_takes_its_own_row(holder: Holder) -> None:
    """Whatever the order of their keys: a new call must not take the row of one that comes behind it."""
    count = 8
    for index in range(count):
        holder.run(older(A, index), result=str(index))
    verdicts = holder.admit(*[newer(A, index) for index in (*range(count, count + 3), *range(count))])
    assert [type(v) for v in verdicts[:3]] == [Start] * 3
    assert [replayed(v)[1] for v in verdicts[3:]] == [str(index) for index in range(count)]


def test_a_whole_redispatch_in_many_hands_runs_nothing_twice(new_holder: Any, book: Book) -> None:
    holders = [new_holder() for _ in range(3)]
    for index in range(6):
        holders[0].run(older(A, index))
    items = [newer(A, index) for index in range(8)]
    started: set[str] = set()
    for _ in range(4):  # each worker sees every event, more than once
        looks = at_once(*[partial(who.admit, *items) for who in holders])
        started |= {
            item.event_id for seen in looks for item, v in zip(items, seen, strict=True) if isinstance(v, Start)
        }
    assert len(started) == 2
    assert len(book.rows()) == 8


def test_a_position_of_the_new_generation_belongs_to_who_claimed_for_it(holder: Holder) -> None:
    holder.run(older(A, 0))
    holder.look(newer(A, 3))
    verdict = holder.look(newer(B, 3))
    assert isinstance(verdict, Rejected)
    assert verdict.code == "position_reused"


def test_a_claim_makes_the_older_call_be_remembered(holder: Holder, book: Book) -> None:
    holder.run(older())
    book.age(hours=40)
    holder.look(newer(A, 3))
    ((left,),) = book.ask("SELECT expires_at - now() FROM fencepost.calls")
    assert left > timedelta(hours=47)


def test_a_closed_execution_answers_moved_calls_and_starts_no_new_ones(holder: Holder, book: Book) -> None:
    holder.run(older(A, 0), result='"sent"')
    book.ask("UPDATE fencepost.executions SET closed_at = now()")
    moved, new = holder.admit(newer(A, 3), newer({}, 4))
    assert replayed(moved)[1] == '"sent"'
    assert getattr(new, "code", None) == "unknown_execution"


def test_a_worker_without_the_tool_still_answers_what_is_recorded(holder: Holder) -> None:
    holder.run(older(A, 0), result='"sent"')
    unknown = Refused("unknown_tool", "no such tool here")
    assert isinstance(holder.look(newer(B, 0, refused=unknown)), Diverged)
    assert replayed(holder.look(newer(A, 3, refused=unknown)))[1] == '"sent"'


def test_other_nodes_are_other_worlds(holder: Holder) -> None:
    holder.run(older(A, 0))
    assert isinstance(holder.look(newer(A, 3, node_id="m")), Start)
