"""Epochs and limits: pure rules."""

from __future__ import annotations

import pytest

from fencepost_worker.assignment import Assignment
from fencepost_worker.limits import BATCH, Limits, Room
from fencepost_worker.records import Record


def record(assignment: Assignment, partition: int, offset: int, size: int = 10) -> Record:
    epoch = assignment.epoch(partition)
    assert epoch is not None
    made = Record("topic", partition, offset, epoch, None, None, None, None, size)
    assignment.delivered(made, at=float(offset))
    return made


def owning(*partitions: int) -> Assignment:
    assignment = Assignment()
    assignment.begin(partitions)
    return assignment


def test_a_record_of_a_lost_partition_is_not_current() -> None:
    assignment = owning(0, 1)
    lost, kept = record(assignment, 0, 5), record(assignment, 1, 5)
    assignment.end([0])
    assert not assignment.current(lost)
    assert assignment.current(kept)


def test_a_record_of_an_earlier_epoch_is_not_current_when_its_partition_comes_back() -> None:
    assignment = owning(0)
    early = record(assignment, 0, 5)
    assignment.end([0])
    assignment.begin([0])
    late = record(assignment, 0, 5)
    assert (assignment.current(early), assignment.current(late)) == (False, True)


def test_completions_of_an_old_epoch_change_nothing() -> None:
    assignment = owning(0)
    early = record(assignment, 0, 5)
    assignment.begin([0])
    record(assignment, 0, 5)
    assignment.done(early)
    assert [share.tracker.watermark() for share in assignment.shares()] == [5]
    assert assignment.records == 1


def test_nothing_starts_on_a_closing_partition_and_what_started_is_awaited() -> None:
    assignment = owning(0)
    started, queued = record(assignment, 0, 1), record(assignment, 0, 2)
    assignment.closing([0])
    assert not assignment.current(queued)
    assignment.leave(queued)
    assert assignment.awaited([0]) == 1
    assignment.done(started)
    assert assignment.awaited([0]) == 0
    assert [share.tracker.watermark() for share in assignment.shares()] == [2]


def test_what_is_in_flight_is_counted_in_records_and_bytes() -> None:
    assignment = owning(0, 1)
    first, second = record(assignment, 0, 1, size=100), record(assignment, 1, 1, size=20)
    record(assignment, 1, 2, size=3)
    assert (assignment.records, assignment.size) == (3, 123)
    for _ in range(2):
        assignment.done(first)
    assert (assignment.records, assignment.size) == (2, 23)
    assignment.end([1])
    assignment.done(second)
    assert (assignment.records, assignment.size) == (0, 0)


def test_the_record_that_has_waited_longest_is_named() -> None:
    assignment = owning(0, 1)
    record(assignment, 0, 7)
    record(assignment, 1, 3)
    assert assignment.oldest() == (3.0, 1, 3)


def test_room_is_bounded_by_count_and_by_bytes() -> None:
    room, assignment = Room(Limits(records=800, size=100_000)), owning(0)
    assert room.free(0, 0) == 9  # little, while nothing is known about the records
    for offset in range(12):
        room.learn([record(assignment, 0, offset, size=100)])
    assert room.free(0, 0) == BATCH
    assert room.free(600, 0) == 200
    assert room.free(701, 0) == 0  # fewer than an eighth is not worth a turn
    assert room.free(0, 80_000) < 200
    assert room.free(0, 100_000) == 0


def test_large_records_are_taken_few_at_a_time() -> None:
    room, assignment = Room(Limits(size=1_000_000)), owning(0)
    room.learn([record(assignment, 0, 0, size=100)])
    room.learn([record(assignment, 0, 1, size=400_000)])
    assert room.free(1, 400_000) == 2


def test_pausing_and_resuming_have_a_distance() -> None:
    room = Room(Limits(records=100, size=1_000, span=10))
    assert not room.may_resume(51, 0)
    assert not room.may_resume(0, 501)
    assert room.may_resume(50, 500)
    assert (room.too_wide(10, paused=False), room.too_wide(11, paused=False)) == (False, True)
    assert (room.too_wide(6, paused=True), room.too_wide(5, paused=True)) == (True, False)


@pytest.mark.parametrize("wrong", [{"records": 0}, {"size": 0}, {"span": 0}, {"low": 0.0}, {"low": 1.5}])
def test_limits_that_would_stop_everything_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="limits must be"):
        Limits(**wrong)  # type: ignore[arg-type]
