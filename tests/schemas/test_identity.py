"""Keys, ids and digests: equal for equal things, and never equal for others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_schemas import (
    Dispatch,
    Refused,
    Status,
    arguments_hash,
    event_digest,
    invocation_key,
    outcome_id,
    session_invocation_key,
)

# Cuts of one text, so that a careless join of two ids would often meet another pair's.
ids = st.text(st.sampled_from('a,"\n\\:|0\x1f]['), max_size=4)
calls = st.tuples(ids, ids, ids, st.integers(0, 2), ids, st.sampled_from([b"\0" * 32, b"\1" * 32]))

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
EVENT: dict[str, Any] = {
    "event_id": "evt-1",
    "execution_id": "exec-42",
    "node_id": "triage",
    "call_index": 0,
    "generation": 1,
    "tool": "jira.create_ticket",
    "arguments": {"title": "Disk full"},
    "tool_call_id": "call_0",
    "session_key": "session-1",
    "org_id": "acme",
    "deadline": NOON,
    "metadata": {"trace": "1"},
}
CHANGES: dict[str, Any] = {
    "execution_id": "exec-43",
    "node_id": "other",
    "call_index": 1,
    "generation": 2,
    "tool": "jira.search",
    "arguments": {"title": "Disk empty"},
    "tool_call_id": None,
    "session_key": "call_0",
    "org_id": None,
    "deadline": NOON + timedelta(microseconds=1),
    "metadata": {},
}


def digest(**changes: Any) -> bytes:
    event = Dispatch(**(EVENT | changes))
    return event_digest(event, arguments_hash(event.arguments))


@given(calls, calls)
def test_two_calls_have_one_key_only_if_they_are_one_call(one: Any, other: Any) -> None:
    assert (invocation_key(*one) == invocation_key(*other)) == (one == other)


@given(st.tuples(ids, ids), st.tuples(ids, ids))
def test_two_session_calls_have_one_key_only_if_they_are_one_call(one: Any, other: Any) -> None:
    assert (session_invocation_key(*one) == session_invocation_key(*other)) == (one == other)


@given(st.tuples(ids, ids, st.sampled_from(Status)), st.tuples(ids, ids, st.sampled_from(Status)))
def test_two_outcomes_have_one_id_only_if_event_and_status_are_the_same(one: Any, other: Any) -> None:
    assert (outcome_id(*one) == outcome_id(*other)) == (one == other)


def test_a_session_key_is_64_hex_digits_and_no_call_has_it() -> None:
    key = session_invocation_key("s", "call_0")
    assert bytes.fromhex(key) != invocation_key("s", "call_0", "", 0, "", b"")
    assert len(key) == 64


def test_the_providers_id_is_scoped_to_its_session() -> None:
    assert session_invocation_key("session-1", "call_0") != session_invocation_key("session-2", "call_0")


def test_an_event_id_is_scoped_to_its_execution() -> None:
    assert outcome_id("exec-1", "evt", Status.busy) != outcome_id("exec-2", "evt", Status.busy)


def test_every_named_field_but_the_event_id_is_in_the_digest() -> None:
    assert {*CHANGES, "event_id"} == set(Dispatch.model_fields)
    changed = {name: digest(**{name: value}) for name, value in CHANGES.items()}
    assert len({digest(), *changed.values()}) == len(CHANGES) + 1
    assert digest(event_id="evt-2") == digest()


def test_a_deadline_counts_as_an_instant() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert elsewhere.isoformat() != NOON.isoformat()
    assert digest(deadline=elsewhere) == digest()


def test_the_order_of_metadata_does_not_count() -> None:
    assert digest(metadata={"a": "1", "b": "2"}) == digest(metadata={"b": "2", "a": "1"})


@pytest.mark.parametrize("arguments", [[], "text", None, 1, ()], ids=repr)
def test_arguments_are_an_object(arguments: Any) -> None:
    with pytest.raises(Refused, match=r"^\$: an object is required$"):
        arguments_hash(arguments)


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(Refused, match="a lone surrogate"):
        invocation_key("\ud800", "e", "n", 0, "t", b"")
