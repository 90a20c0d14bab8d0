"""Dead letters: the original untouched, the reason added once, and a limit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fencepost_worker.deadletter import NAMES, DeadLetterLimit, dead_letter
from fencepost_worker.records import Record

ORIGINAL = Record("tool.dispatch", 3, 42, 1, b"key", b"\xff\x00", [("a", b"\xff"), ("a", None)], 1_700_000_000_000, 9)

headers = st.none() | st.lists(st.tuples(st.text(max_size=5) | st.sampled_from(NAMES), st.none() | st.binary()))


def test_original_key_value_and_headers_are_untouched() -> None:
    letter = dead_letter(ORIGINAL, "not_json", "unexpected end", "worker-1")
    assert (letter.key, letter.value) == (b"key", b"\xff\x00")
    assert letter.headers[:2] == [("a", b"\xff"), ("a", None)]


def test_the_reason_and_the_place_are_in_utf8_headers() -> None:
    letter = dead_letter(ORIGINAL, "not_json", "“quoted”", "worker-1")
    assert {name: (text or b"").decode() for name, text in letter.headers[2:]} == {
        "fencepost.error.code": "not_json",
        "fencepost.error.message": "“quoted”",
        "fencepost.source.topic": "tool.dispatch",
        "fencepost.source.partition": "3",
        "fencepost.source.offset": "42",
        "fencepost.source.timestamp": "1700000000000",
        "fencepost.worker": "worker-1",
    }


@given(headers)
def test_a_second_pass_replaces_and_never_grows(original: list[tuple[str, bytes | None]] | None) -> None:
    once = dead_letter(replace(ORIGINAL, headers=original), "first", "m", "w")
    again = replace(ORIGINAL, topic="tool.dead-letter", partition=0, offset=7, headers=once.headers)
    twice = dead_letter(again, "second", "m", "w")
    assert len(twice.headers) == len(once.headers)
    assert [header for header in twice.headers if header[0] not in NAMES] == [
        header for header in original or [] if header[0] not in NAMES
    ]
    assert dict(twice.headers)["fencepost.error.code"] == b"second"
    assert dict(twice.headers)["fencepost.source.offset"] == b"7"


def test_a_record_without_key_value_headers_and_timestamp_has_its_letter() -> None:
    bare = replace(ORIGINAL, key=None, value=None, headers=None, timestamp=None)
    letter = dead_letter(bare, "no_value", "a tombstone", "w")
    assert (letter.key, letter.value) == (None, None)
    assert dict(letter.headers)["fencepost.source.timestamp"] == b"-1"


def test_a_lone_surrogate_in_the_reason_does_not_stop_the_letter() -> None:
    assert dict(dead_letter(ORIGINAL, "c", "\ud800", "w").headers)["fencepost.error.message"] == b"?"


def test_dead_letters_in_a_row_stop_the_worker() -> None:
    limit = DeadLetterLimit(consecutive=3, window=100)
    assert [limit.dead(), limit.dead()] == [None, None]
    limit.decoded()
    assert [limit.dead(), limit.dead(), limit.dead()] == [None, None, "3 records in a row cannot be decoded"]


def test_too_many_dead_letters_among_the_last_records_stop_the_worker() -> None:
    limit = DeadLetterLimit(consecutive=100, ratio=0.5, window=10)
    answers = []
    for _ in range(5):
        limit.decoded()
        answers.append(limit.dead())
    assert answers == [None] * 5
    assert limit.dead() == "6 of the last 10 records cannot be decoded"


def test_old_dead_letters_are_forgotten() -> None:
    limit = DeadLetterLimit(consecutive=100, ratio=0.5, window=4)
    for _ in range(3):
        limit.dead()
    for _ in range(4):
        limit.decoded()
    assert [limit.dead(), limit.dead(), limit.dead()] == [None, None, "3 of the last 4 records cannot be decoded"]
