"""Plain JSON: what is recorded comes back as it was."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost_schemas import Refused, dumps, loads
from fencepost_schemas.plain import MAX_PLAIN_DEPTH, dump_bytes


@pytest.mark.parametrize(
    "value",
    [None, 0, False, "", [], {}, "None", 1.0, -0.0, "\0", "\ud800", "é😀", 10**20_000, {"b": 1, "a": [1e300]}],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_exactly(value: Any) -> None:
    for text in (dumps(value), dumps(value).encode(), dump_bytes(value)):
        read = loads(text)
        assert (type(read), str(read) if isinstance(read, float) else read) == (
            type(value),
            str(value) if isinstance(value, float) else value,
        )


def test_recorded_text_is_ascii_without_a_null_character() -> None:
    text = dumps({"a\0": "\0é\ud800"})
    assert text.isascii()
    assert "\0" not in text


def test_sent_bytes_are_utf8_as_short_as_it_goes() -> None:
    assert dump_bytes({"a": "é"}) == b'{"a":"\xc3\xa9"}'


def test_tuples_and_simple_keys_are_written_as_the_standard_library_does() -> None:
    value = {0: (1, 2), None: "x", True: 1.5, 2.5: []}
    assert loads(dumps(value)) == json.loads(json.dumps(value))
    assert loads(dumps(value | {"big": 10**5000})) == json.loads(json.dumps(value)) | {"big": 10**5000}


@pytest.mark.parametrize(
    "value,where",
    [
        ({"a": [math.nan]}, "$.a[0]: NaN and Infinity are not JSON"),
        ([{"b": -math.inf}], "$[0].b: NaN and Infinity are not JSON"),
        ({"a": {1}}, "$.a: set is not JSON"),
        ([datetime(2030, 1, 1, tzinfo=UTC)], "$[0]: datetime is not JSON"),
        ({"a": {(1, 2): 3}}, "$.a: a key is tuple, not a string"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_path(value: Any, where: str) -> None:
    for write in (dumps, dump_bytes):
        with pytest.raises(Refused) as caught:
            write(value)
        assert str(caught.value) == where


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_has_one_limit_at_any_depth_of_the_stack() -> None:
    assert loads(dumps(nested(MAX_PLAIN_DEPTH))) == nested(MAX_PLAIN_DEPTH)
    assert loads(dumps([[]] * 10_000)) == [[]] * 10_000
    for depth in (MAX_PLAIN_DEPTH + 1, 5_000, 100_000):
        with pytest.raises(Refused, match="nested too deep"):
            dumps(nested(depth))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    with pytest.raises(Refused, match="nested too deep"):
        dumps(loop)


@pytest.mark.parametrize("text", ["", "NaN", '{"a":1,"a":2}', "[" * 100_000, b"\xff", "[1,]", "1e400"])
def test_what_was_never_written_is_refused(text: str | bytes) -> None:
    with pytest.raises(Refused):
        loads(text)
