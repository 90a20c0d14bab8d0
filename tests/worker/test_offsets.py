"""The watermark against a naive model, and its rules by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fencepost_worker.offsets import Tracker


def delivered(*offsets: int) -> Tracker:
    tracker = Tracker()
    for offset in offsets:
        tracker.delivered(offset, at=float(offset))
    return tracker


class AgainstAList(RuleBasedStateMachine):
    """The model is a list of the open deliveries."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker()
        self.open: list[int] = []
        self.left: set[int] = set()
        self.highest: int | None = None

    @rule(gap=st.integers(1, 5))
    def deliver_the_next(self, gap: int) -> None:
        self._deliver(0 if self.highest is None else self.highest + gap)

    @rule(offset=st.integers(0, 60))
    def deliver_anything(self, offset: int) -> None:
        self._deliver(offset)

    def _deliver(self, offset: int) -> None:
        self.tracker.delivered(offset)
        self.open.append(offset)
        self.highest = max(offset, -1 if self.highest is None else self.highest)

    @rule(data=st.data())
    def finish_an_open_one(self, data: st.DataObject) -> None:
        if self.open:
            offset = data.draw(st.sampled_from(self.open))
            assert self.tracker.done(offset)
            self.open.remove(offset)
            if offset not in self.open:
                self.left.discard(offset)

    @rule(offset=st.integers(0, 80))
    def finish_anything(self, offset: int) -> None:
        assert self.tracker.done(offset) == (offset in self.open)
        if offset in self.open:
            self.open.remove(offset)
            if offset not in self.open:
                self.left.discard(offset)

    @rule(offset=st.integers(0, 80))
    def leave_anything(self, offset: int) -> None:
        self.tracker.leave(offset)
        if offset in self.open:
            self.left.add(offset)

    @invariant()
    def they_agree(self) -> None:
        after = None if self.highest is None else self.highest + 1
        assert self.tracker.watermark() == min(self.open, default=after)
        assert len(self.tracker) == len(set(self.open))
        assert self.tracker.awaited == len(set(self.open) - self.left)
        assert self.tracker.span == (0 if not self.open else (self.highest or 0) - min(self.open) + 1)
        oldest = self.tracker.oldest()
        assert (None if oldest is None else oldest[0]) == min(self.open, default=None)


TestAgainstAList = AgainstAList.TestCase


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=200), st.randoms())
def test_the_watermark_never_passes_an_unfinished_offset_in_any_order_of_completion(offsets, random) -> None:
    tracker = delivered(*sorted(offsets))
    unfinished = list(offsets)
    random.shuffle(unfinished)
    while unfinished:
        assert tracker.watermark(position=10**6) == min(unfinished)
        tracker.done(unfinished.pop())
    assert tracker.watermark(position=10**6) == 10**6


def test_an_out_of_order_completion_never_commits_past_an_unfinished_event() -> None:
    tracker = delivered(0, 1, 2)
    tracker.done(2)
    tracker.done(1)
    assert tracker.watermark() == 0


def test_gaps_are_neither_waited_for_nor_counted() -> None:
    tracker = delivered(0, 1, 4, 9)
    for offset in (0, 1):
        tracker.done(offset)
    assert tracker.watermark() == 4
    for offset in (9, 4):
        tracker.done(offset)
    assert tracker.watermark() == 10


def test_with_nothing_open_the_position_is_committed() -> None:
    tracker = delivered(0, 1)
    tracker.done(1)
    assert tracker.watermark(position=3) == 0
    tracker.done(0)
    assert tracker.watermark(position=3) == 3


def test_nothing_delivered_is_nothing_to_commit() -> None:
    assert Tracker().watermark() is None
    assert Tracker().oldest() is None


def test_an_offset_that_is_left_holds_the_watermark_and_is_not_awaited() -> None:
    tracker = delivered(5, 6)
    tracker.leave(5)
    tracker.done(6)
    assert (tracker.awaited, tracker.watermark()) == (0, 5)


def test_an_offset_delivered_twice_has_to_be_done_twice() -> None:
    tracker = delivered(5, 5, 5)
    assert tracker.done(5)
    assert tracker.done(5)
    assert tracker.watermark() == 5
    assert tracker.done(5)
    assert not tracker.done(5)
    assert tracker.watermark() == 6


def test_the_oldest_is_named_with_the_time_of_its_delivery() -> None:
    tracker = delivered(3, 4, 8)
    tracker.done(3)
    assert tracker.oldest() == (4, 4.0)
    assert tracker.span == 5


def test_a_hundred_thousand_completions_in_the_worst_order_are_quick() -> None:
    count = 100_000
    tracker = delivered(*range(count))
    for offset in reversed(range(count)):
        tracker.done(offset)
    assert tracker.watermark() == count
