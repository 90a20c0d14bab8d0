"""What a call of a raised generation means to an older one's effects: cases, and laws over whole re-dispatches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_ledger import CallRow, State
from fencepost_ledger.calls import COLUMNS
from fencepost_ledger.diverge import Claim, New, Own, Turn, turn
from fencepost_ledger.verdicts import Admit, Diverged, OnDivergence, Rejected
from services.holder import call, key_of

ACTED = (State.completed, State.executing, State.indeterminate)
DID_NOT_ACT = (State.failed, State.released)
A, B = {"to": "ann"}, {"to": "bob"}


def asked(arguments: dict[str, Any], index: int = 0, generation: int = 2, **more: Any) -> Admit:
    return call(f"g{generation}i{index}", arguments, call_index=index, generation=generation, **more)


def did(arguments: dict[str, Any], index: int = 0, generation: int = 1, **more: Any) -> CallRow:
    """The row of a call, by default completed in generation 1 and claimed by nobody."""
    item = asked(arguments, index, generation, **{k: more.pop(k) for k in ("tool",) if k in more})
    known = {name: getattr(item, name) for name in COLUMNS if hasattr(item, name)}
    blank: dict[str, Any] = dict.fromkeys(COLUMNS)
    fields = blank | known | {"key": key_of(item), "state": State.completed, "attempt": 1, "revision": 2} | more
    return CallRow(**fields | {"started_at": datetime(2026, 1, 1, tzinfo=UTC)})


def claimed(row: CallRow, by: Admit) -> CallRow:
    return replace(row, claimed_by=key_of(by), claimed_generation=by.generation, claimed_index=by.call_index)


def turned(item: Admit, *rows: CallRow, on_divergence: OnDivergence = "refuse") -> Turn:
    return turn(item, key_of(item), rows, on_divergence)


def test_a_node_without_a_past_is_new_work() -> None:
    assert turned(asked(A)) == New()


def test_the_same_call_is_claimed_for_its_new_generation() -> None:
    assert turned(asked(A), row := did(A)) == Own(row)


@pytest.mark.parametrize("state", ACTED)
def test_a_call_that_moved_is_claimed_and_answered_by_the_older_one(state: State) -> None:
    assert turned(asked(A, 5), row := did(A, 0, state=state)) == Claim(row)


@pytest.mark.parametrize("state", DID_NOT_ACT)
def test_what_did_not_act_answers_for_nobody_and_bars_nobody(state: State) -> None:
    assert turned(asked(A, 5), did(A, 0, state=state)) == New()
    assert turned(asked(B, 0), did(A, 0, state=state)) == New()


def test_another_tool_with_the_same_arguments_has_not_moved() -> None:
    assert turned(asked(A, 5, tool="mail.draft"), did(A, 0)) == New()


@pytest.mark.parametrize("state", ACTED)
def test_a_changed_call_is_refused_adopted_or_executed_as_set(state: State) -> None:
    row = did(A, state=state)
    assert turned(asked(B), row) == Diverged(row)
    assert turned(asked(B), row, on_divergence="adopt") == Claim(row, adopted=True)
    assert turned(asked(B), row, on_divergence="execute") == New()


def test_of_several_older_calls_at_a_position_the_newest_is_named() -> None:
    newer = did(B, generation=2)
    assert turned(asked({}, generation=3), did(A), newer) == Diverged(newer)


def test_what_another_call_of_this_generation_claimed_is_free_for_nobody_else() -> None:
    row = claimed(did(A, 0), by=asked(A, 7))
    assert turned(asked(A, 8), row) == New()
    assert turned(asked(B, 0), row) == New()


def test_a_call_whose_own_row_was_claimed_by_another_has_diverged() -> None:
    row = claimed(did(A, 0), by=asked(A, 7))
    assert turned(asked(A, 0), row) == Diverged(row)


def test_a_claim_of_an_older_generation_binds_nobody() -> None:
    row = claimed(did(A, 0), by=asked(A, 7, generation=2))
    assert turned(asked(A, 8, generation=3), row) == Claim(row)
    assert turned(asked(A, 0, generation=3), row) == Own(row)


@pytest.mark.parametrize("by", [asked(A, 7), asked(B, 0)], ids=["moved", "adopted"])
def test_a_redelivery_of_the_claiming_event_gives_the_same_answer(by: Admit) -> None:
    row = did(A, 0)
    first = turned(by, row, on_divergence="adopt")
    again = turned(by, claimed(row, by), on_divergence="adopt")
    assert isinstance(first, Claim)
    assert again == Claim(claimed(row, by), first.adopted)


def test_a_position_is_taken_by_the_call_that_stands_there() -> None:
    assert isinstance(turned(asked(B, 0), did(A, 0, generation=2)), Rejected)


def test_a_position_is_taken_by_the_call_that_claimed_for_it() -> None:
    assert isinstance(turned(asked(B, 7), claimed(did(A, 0), by=asked(A, 7))), Rejected)


@pytest.mark.parametrize("state", DID_NOT_ACT)
def test_a_claim_on_a_call_that_then_did_not_act_is_void_for_its_claimant(state: State) -> None:
    """Executing when it was claimed, it failed: the claimant must run, not be told that it is in its own way."""
    by = asked(A, 7)
    assert turned(by, claimed(did(A, 0, state=state), by)) == New()


@pytest.mark.parametrize("state", DID_NOT_ACT)
def test_a_claim_on_a_call_that_then_did_not_act_is_void_for_that_call(state: State) -> None:
    assert turned(asked(A, 0), claimed(did(A, 0, state=state), by=asked(A, 7))) == New()


# --- laws over whole re-dispatches ------------------------------------------------------------------------------------

contents = st.sampled_from([A, B, {}])
plans = st.lists(contents, min_size=1, max_size=4)


class Node:
    """Every call that this node is asked for, answered and applied one after the other."""

    def __init__(self, first: list[dict[str, Any]]) -> None:
        self.rows = [did(arguments, index) for index, arguments in enumerate(first)]

    def ask(self, item: Admit, on_divergence: OnDivergence) -> Turn:
        answer = turned(item, *self.rows, on_divergence=on_divergence)
        match answer:
            case Own(row) | Claim(row):
                self.rows[self.rows.index(row)] = claimed(row, item)
            case New() if key_of(item) not in {row.key for row in self.rows}:
                self.rows.append(replace(did({}), **_reserved(item)))
        return answer


def _reserved(item: Admit) -> dict[str, Any]:
    names = ("call_index", "arguments_hash", "generation")
    return {"key": key_of(item)} | {name: getattr(item, name) for name in names}


def kind(answer: Turn) -> tuple[str, bytes | None, bool]:
    row = getattr(answer, "row", None)
    return type(answer).__name__, row.key if row else None, getattr(answer, "adopted", False)


@given(plans, plans, st.data())
def test_a_redispatch_acts_no_more_often_than_the_larger_of_the_two_runs(
    first: list[dict[str, Any]], second: list[dict[str, Any]], data: st.DataObject
) -> None:
    node = Node(first)
    for index in data.draw(st.permutations(range(len(second)))):
        node.ask(asked(second[index], index), "refuse")
    acted = Counter(row.arguments_hash for row in node.rows)
    wanted = Counter(did(arguments).arguments_hash for arguments in first)
    again = Counter(did(arguments).arguments_hash for arguments in second)
    assert all(count <= max(wanted[content], again[content]) for content, count in acted.items())


@given(plans, plans, st.sampled_from(["refuse", "adopt", "execute"]), st.data())
def test_a_redelivery_gives_the_answer_that_stands(
    first: list[dict[str, Any]], second: list[dict[str, Any]], mode: OnDivergence, data: st.DataObject
) -> None:
    node = Node(first)
    for index in data.draw(st.permutations(range(len(second)))):
        item = asked(second[index], index)
        match node.ask(item, mode):
            case Own() | New():  # its own row is there now, and is found
                assert node.ask(item, mode) == New()
            case answer:
                assert kind(node.ask(item, mode)) == kind(answer)


@given(plans, plans, st.sampled_from(["refuse", "adopt", "execute"]), st.data())
def test_no_older_call_answers_two_calls_of_one_generation(
    first: list[dict[str, Any]], second: list[dict[str, Any]], mode: OnDivergence, data: st.DataObject
) -> None:
    node = Node(first)
    answers = [node.ask(asked(second[i], i), mode) for i in data.draw(st.permutations(range(len(second))))]
    used = Counter(answer.row.key for answer in answers if isinstance(answer, Own | Claim))
    assert not [key for key, count in used.items() if count > 1]


@given(plans)
def test_the_same_plan_again_runs_nothing(plan: list[dict[str, Any]]) -> None:
    node = Node(plan)
    for index, arguments in enumerate(plan):
        assert isinstance(node.ask(asked(arguments, index), "refuse"), Own)
