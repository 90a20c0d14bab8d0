"""Outcomes: what they carry, and what they say to a reader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from fencepost_schemas import Outcome, OutcomeError, Resolution, ResultRef, Status

CONTRACT = {
    "outcome_id", "event_id", "execution_id", "node_id", "call_index", "tool_call_id", "generation", "org_id", "tool",
    "invocation_key", "status", "executed", "replayed", "retryable", "attempt", "result", "result_ref", "error",
    "resolution", "started_at", "finished_at", "worker", "metadata",
}  # fmt: skip
LEAST: dict[str, Any] = {
    "outcome_id": "o-1",
    "event_id": "evt-1",
    "execution_id": "exec-42",
    "node_id": "triage",
    "call_index": 0,
    "generation": 1,
    "tool": "jira.create_ticket",
    "status": "succeeded",
}


def outcome(status: str, **fields: Any) -> Outcome:
    return Outcome.model_validate(LEAST | {"status": status} | fields)


def test_an_outcome_has_the_fields_of_the_contract() -> None:
    assert set(Outcome.model_fields) == CONTRACT
    assert set(OutcomeError.model_fields) == {"code", "message", "detail"}
    assert set(Resolution.model_fields) == {"by", "reason", "at"}
    assert set(ResultRef.model_fields) == {"uri", "sha256", "size", "media_type"}


def test_the_statuses_are_those_of_the_contract() -> None:
    assert " ".join(Status) == "succeeded failed indeterminate fenced diverged busy rejected expired"


def test_a_status_is_read_from_text_and_no_other_is_known() -> None:
    assert outcome("busy").status is Status.busy
    for wrong in ("done", "Busy", "", None, 1):
        with pytest.raises(ValidationError, match="status"):
            outcome(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["ab" * 31, "AB" * 32, "ab" * 32 + "\n", "zz" * 32, b"ab" * 32])
def test_an_invocation_key_is_64_hex_digits(key: Any) -> None:
    assert outcome("succeeded", invocation_key="ab" * 32).invocation_key == "ab" * 32
    with pytest.raises(ValidationError, match="invocation_key"):
        outcome("succeeded", invocation_key=key)


def test_unknown_fields_are_ignored() -> None:
    error = {"code": "c", "message": "m", "hint": "new"}
    assert outcome("failed", error=error, adopted=True) == outcome("failed", error=OutcomeError(code="c", message="m"))


def test_words_with_lone_surrogates_are_still_an_error_that_can_be_written() -> None:
    message = OutcomeError(code="unclear", message="no file '\udcff' 😀\0").message
    assert message == "no file '\ufffd' 😀\0"


INDETERMINATE = "It may or may not have happened. Do not repeat it; a person or the tool's probe has to find out."


@pytest.mark.parametrize(
    "status,fields,sentence",
    [
        ("succeeded", {}, "It happened. Do not repeat it."),
        (
            "succeeded",
            {"error": {"code": "result_too_large", "message": ""}},
            "It happened (result_too_large). Do not repeat it.",
        ),
        (
            "failed",
            {"error": {"code": "bad_request", "message": "no such\n project"}},
            "It did not happen (bad_request: no such project). Do not repeat it as it is.",
        ),
        ("failed", {"retryable": True}, "It did not happen. It may be repeated."),
        ("indeterminate", {}, INDETERMINATE),
        ("indeterminate", {"retryable": True}, INDETERMINATE),
        ("fenced", {}, "It was not started: a newer generation has taken over. Do not repeat it."),
        (
            "diverged",
            {},
            "It was not started: an older generation already did something else in its place. Do not repeat it.",
        ),
        (
            "busy",
            {"retryable": True},
            "It was not started: another worker is still executing it. It may be repeated.",
        ),
        (
            "rejected",
            {"error": {"code": "org_mismatch", "message": ""}},
            "It was refused before anything ran (org_mismatch). Do not repeat it as it is.",
        ),
        (
            "rejected",
            {"retryable": True, "error": {"code": "unknown_tool", "message": ""}},
            "It was refused before anything ran (unknown_tool). It may be repeated.",
        ),
        ("expired", {}, "It was not started: its time had passed. Do not repeat it."),
    ],
)
def test_every_status_says_what_happened_and_whether_to_repeat(status: str, fields: Any, sentence: str) -> None:
    assert outcome(status, **fields).describe() == sentence


def test_a_ruling_is_told_with_who_made_it() -> None:
    ruling = Resolution(by="ops@acme", reason="seen in Jira", at=datetime(2030, 1, 1, tzinfo=UTC))
    assert outcome("succeeded", resolution=ruling).describe() == "It happened, as ops@acme found. Do not repeat it."


def test_a_release_is_told_as_the_reason_for_another_start() -> None:
    released = datetime(2030, 1, 1, tzinfo=UTC)
    ruling = Resolution(by="ops@acme", reason="not in Jira", at=released)
    described = outcome("succeeded", resolution=ruling, started_at=released + timedelta(seconds=1)).describe()
    assert described == "It happened, started again because ops@acme had released it. Do not repeat it."


def test_a_description_is_one_short_line_whatever_the_error_says() -> None:
    described = outcome("failed", error={"code": "c", "message": "line\n" * 10_000}).describe()
    assert "\n" not in described
    assert len(described) < 400
