"""Slots: how many at once, whose turn it is, and what becomes of those that want none any more."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_dispatch.slots import Slots


class Desk:
    """Slots with the list of who was granted one."""

    def __init__(self, size: int) -> None:
        self.granted: list[str] = []
        self.slots: Slots[str] = Slots(size, self.granted.append)

    def line_up(self, *who: str) -> None:
        """`a1` is of the tenant `a`."""
        for one in who:
            self.slots.acquire(one[0], one)


def test_no_more_than_there_are_slots_and_the_next_when_one_comes_back() -> None:
    desk = Desk(2)
    desk.line_up("a1", "a2", "a3", "a4")
    assert (desk.granted, desk.slots.waiting) == (["a1", "a2"], 2)
    desk.slots.release()
    assert desk.granted == ["a1", "a2", "a3"]


def test_within_a_tenant_first_come_first_served() -> None:
    desk = Desk(1)
    desk.line_up("a1", "a2", "a3")
    for _ in range(2):
        desk.slots.release()
    assert desk.granted == ["a1", "a2", "a3"]


def test_a_tenant_with_a_long_line_does_not_keep_the_others_waiting() -> None:
    desk = Desk(1)
    desk.line_up(*(f"a{n}" for n in range(100)), "b1", "c1", "b2")
    for _ in range(5):
        desk.slots.release()
    assert desk.granted == ["a0", "a1", "b1", "c1", "a2", "b2"]


def test_nothing_is_granted_while_paused_and_everything_afterwards() -> None:
    desk = Desk(2)
    desk.slots.pause(True)
    desk.line_up("a1", "b1", "c1")
    desk.slots.release()
    assert desk.granted == []
    desk.slots.pause(False)
    assert desk.granted == ["a1", "b1", "c1"]


def test_who_wants_no_turn_any_more_leaves_the_line_and_the_others_keep_their_place() -> None:
    desk = Desk(1)
    desk.line_up("a1", "a2", "b1", "b2", "a3")
    assert desk.slots.take_out(lambda who: who in {"a2", "b1"}) == ["a2", "b1"]
    assert desk.slots.waiting == 2
    for _ in range(2):
        desk.slots.release()
    assert desk.granted == ["a1", "a3", "b2"]


def test_a_slot_that_is_given_back_at_once_goes_on_to_the_next_however_many_do_so() -> None:
    """As when partitions were taken away while thousands of their records stood in line."""
    granted = []

    def give_back(who: int) -> None:
        granted.append(who)
        slots.release()

    slots: Slots[int] = Slots(1, give_back)
    slots.pause(True)
    many = sys.getrecursionlimit() * 3
    for who in range(many):
        slots.acquire("a", who)
    slots.pause(False)
    assert granted == list(range(many))


def test_a_slot_whose_taker_raises_is_not_granted_twice_and_the_others_go_on() -> None:
    granted = []

    def fail_once(who: str) -> None:
        granted.append(who)
        if who == "a1":
            raise KeyError(who)

    slots: Slots[str] = Slots(1, fail_once)
    with pytest.raises(KeyError):
        slots.acquire("a", "a1")
    slots.release()
    slots.acquire("a", "a2")
    assert granted == ["a1", "a2"]


@given(
    st.integers(1, 3), st.lists(st.sampled_from(["acquire a", "acquire b", "release", "pause", "go on", "take out"]))
)
def test_whatever_happens_none_is_lost_none_doubled_and_no_slot_is_left_idle(size: int, steps: list[str]) -> None:
    desk, asked, taken = Desk(size), [], []
    busy = paused = 0
    for number, step in enumerate(steps):
        match step.split():
            case ["acquire", tenant]:
                asked.append(f"{tenant}{number}")
                desk.line_up(asked[-1])
            case ["release"] if len(desk.granted) > busy:
                busy += 1
                desk.slots.release()
            case ["pause"] | ["go", "on"]:
                paused = step == "pause"
                desk.slots.pause(bool(paused))
            case ["take", "out"]:
                taken += desk.slots.take_out(lambda who: who[0] == "a")
            case _:
                pass  # nothing to release
    assert Counter(desk.granted + taken) <= Counter(asked)
    assert len(asked) == len(desk.granted) + len(taken) + desk.slots.waiting
    assert len(desk.granted) - busy <= size
    assert paused or not desk.slots.waiting or len(desk.granted) - busy == size
