"""The limits of the contract, on dispatches and fences, to the letter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from fencepost_schemas import Dispatch, Fence, canonical

LEAST: dict[str, Any] = {
    "event_id": "evt-1",
    "execution_id": "exec-42",
    "node_id": "triage",
    "call_index": 0,
    "generation": 1,
    "tool": "jira.create_ticket",
    "arguments": {},
}
LIMITS = {"event_id": 128, "execution_id": 256, "node_id": 256, "tool": 128}
LIMITS |= {"tool_call_id": 256, "session_key": 256, "org_id": 128}
STORED = [name for name in LIMITS if name != "tool"]


def accepts(**fields: Any) -> bool:
    try:
        Dispatch.model_validate(LEAST | fields)
    except ValidationError:
        return False
    return True


def deadline(text: Any) -> datetime | None:
    return Dispatch.model_validate(LEAST | {"deadline": text}).deadline


@pytest.mark.parametrize("name", list(LEAST))
def test_a_required_field_is_required(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        Dispatch.model_validate({key: value for key, value in LEAST.items() if key != name})


def test_what_is_optional_is_none_when_absent_or_null() -> None:
    optional = dict.fromkeys(set(Dispatch.model_fields) - set(LEAST))
    assert Dispatch.model_validate(LEAST | optional) == Dispatch.model_validate(LEAST)
    assert Dispatch.model_validate(LEAST).model_dump(exclude=set(LEAST)) == optional


@pytest.mark.parametrize("name,limit", LIMITS.items())
def test_a_text_has_one_character_at_least_and_its_limit_at_most(name: str, limit: int) -> None:
    assert accepts(**{name: "a"})
    assert accepts(**{name: "a" * limit})
    assert not accepts(**{name: "a" * (limit + 1)})
    assert not accepts(**{name: ""})


@pytest.mark.parametrize("name", STORED)
def test_lengths_are_counted_in_characters(name: str) -> None:
    assert accepts(**{name: "😀" * LIMITS[name]})


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [1, 1.0, True, b"a", ["a"], {"a": 1}], ids=repr)
def test_a_text_is_a_text(name: str, value: Any) -> None:
    assert not accepts(**{name: value})


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("value", ["a\0b", "\0", "\ud800"], ids=ascii)
def test_an_id_that_postgres_cannot_hold_is_refused(name: str, value: str) -> None:
    assert not accepts(**{name: value})


@pytest.mark.parametrize("name", ["execution_id", "node_id"])
@pytest.mark.parametrize("control", ["\n", "\t", "\r", "\x1f", "\x7f", "\x80", "\x9f"], ids=ascii)
def test_executions_and_nodes_have_no_control_characters(name: str, control: str) -> None:
    assert not accepts(**{name: f"a{control}b"})
    assert not accepts(**{name: f"a{control}"})
    assert accepts(**{name: "a b\u00a0é😀"})


@pytest.mark.parametrize("tool", ["jira.create_ticket", "a", "A-Z/0:9_.", "mcp:server/tool"])
def test_a_tool_is_named_by_letters_digits_and_some_marks(tool: str) -> None:
    assert accepts(tool=tool)


@pytest.mark.parametrize("tool", ["a b", "a\n", "\na", "é", "a,b", "a\0", "a*"], ids=ascii)
def test_a_tool_is_named_by_nothing_else(tool: str) -> None:
    assert not accepts(tool=tool)


@pytest.mark.parametrize("name,least,most", [("call_index", 0, 2**31 - 1), ("generation", 1, 2**63 - 1)])
def test_a_count_keeps_to_its_range(name: str, least: int, most: int) -> None:
    assert accepts(**{name: least})
    assert accepts(**{name: most})
    assert not accepts(**{name: least - 1})
    assert not accepts(**{name: most + 1})
    assert not accepts(**{name: 10**5000})


@pytest.mark.parametrize("name", ["call_index", "generation"])
@pytest.mark.parametrize("value", [True, False, "1", 1.5, None, [1], float("inf"), float("nan"), 2.0**63], ids=repr)
def test_a_count_is_an_integer_and_a_truth_is_none(name: str, value: Any) -> None:
    assert not accepts(**{name: value})


def test_a_double_without_a_fraction_is_the_integer() -> None:
    event = Dispatch.model_validate(LEAST | {"call_index": 3.0, "generation": 2.0**53})
    assert (event.call_index, event.generation) == (3, 2**53)
    assert type(event.call_index) is type(event.generation) is int


@pytest.mark.parametrize(
    "text,instant",
    [
        ("2030-01-01T12:00:00Z", datetime(2030, 1, 1, 12, tzinfo=UTC)),
        ("2030-01-01t12:00:00z", datetime(2030, 1, 1, 12, tzinfo=UTC)),
        ("2030-01-01T12:00:00+02:00", datetime(2030, 1, 1, 10, tzinfo=UTC)),
        ("2030-01-01T12:00:00-00:00", datetime(2030, 1, 1, 12, tzinfo=UTC)),
        ("2030-01-01T00:00:00.5+23:59", datetime(2029, 12, 31, 0, 1, 0, 500_000, tzinfo=UTC)),
        ("2030-01-01T12:00:00.123456789Z", datetime(2030, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_a_deadline_is_read_as_rfc_3339_says(text: str, instant: datetime) -> None:
    found = deadline(text)
    assert found == instant
    assert found is not None
    assert found.utcoffset() == timedelta()


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01T12:00:00",
        "2030-01-01 12:00:00Z",
        "2030-01-01T12:00Z",
        "2030-01-01",
        "2030-1-1T12:00:00Z",
        "2030-02-30T12:00:00Z",
        "2023-02-29T12:00:00Z",
        "2030-01-01T24:00:00Z",
        "2030-01-01T12:60:00Z",
        "2030-01-01T12:00:61Z",
        "2030-01-01T12:00:00.Z",
        "2030-01-01T12:00:00+0200",
        "2030-01-01T12:00:00+24:00",
        "2030-01-01T12:00:00Z\n",
        "٢٠٣٠-01-01T12:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:60Z",
        "9999-12-31T23:59:59-01:00",
        "0000-01-01T00:00:00Z",
        "",
        1893499200,
        True,
    ],
)
def test_a_deadline_is_nothing_else(text: Any) -> None:
    assert not accepts(deadline=text)


def test_a_deadline_from_python_needs_its_zone_and_is_kept_in_utc() -> None:
    assert not accepts(deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - the point of it
    found = deadline(datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))))
    assert found is not None
    assert found.isoformat() == "2030-01-01T10:00:00+00:00"


def test_metadata_is_texts_of_4_kib_at_most() -> None:
    room = 4096 - len(canonical({"key": ""}))
    assert accepts(metadata={})
    assert accepts(metadata={"key": "x" * room})
    assert not accepts(metadata={"key": "x" * (room + 1)})
    assert not accepts(metadata={"key": "é" * (room // 2 + 1)})
    for value in ({"a": 1}, {"a": None}, {"a": {}}, {1: "a"}, [], "a", {"a": "\ud800"}):
        assert not accepts(metadata=value)


@pytest.mark.parametrize("arguments", [None, [], "{}", 1, {1: 2}], ids=repr)
def test_arguments_are_an_object(arguments: Any) -> None:
    assert not accepts(arguments=arguments)


def test_unknown_fields_are_ignored() -> None:
    assert Dispatch.model_validate(LEAST | {"future": 1}) == Dispatch.model_validate(LEAST)


def test_an_event_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Dispatch.model_validate(LEAST).generation = 2  # type: ignore[misc]


def test_a_fence_is_the_event_its_node_and_a_generation() -> None:
    fence = Fence.model_validate(LEAST)
    assert fence.model_dump() == {name: LEAST[name] for name in ("event_id", "execution_id", "node_id", "generation")}
    for name in Fence.model_fields:
        with pytest.raises(ValidationError, match=name):
            Fence.model_validate({key: value for key, value in LEAST.items() if key != name})
