from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost_dispatch import Blocked, ClassificationBlocked, Registry, Tool, tool
from fencepost_dispatch.classify import evidence, words


def declare(name: str = "jira.search", **policy: Any) -> Tool[..., Any]:
    policy.setdefault("effect", "read_only")

    @tool(name, **policy)
    def function(query: str) -> str:
        return query

    return function


@pytest.mark.parametrize(
    "name, expected",
    [
        ("jira.create_ticket", "jira create ticket"),
        ("jira/createTicket", "jira create ticket"),
        ("CREATE-TICKET", "create ticket"),
        ("HTTPApi:sendMail2", "http api send mail 2"),
        ("created_report_list", "created report list"),
    ],
)
def test_a_name_is_cut_into_words_at_separators_and_camel_case(name: str, expected: str):
    assert words(name) == expected.split()


@pytest.mark.parametrize(
    "name",
    [
        "jira.create_ticket",
        "ticketCreate",
        "mail:send",
        "crm/DELETE-user",
        "user.update",
        "pay",
        "slack.postMessage",
        "get_or_create",
    ],
)
def test_a_verb_in_its_name_speaks_against_read_only(name: str):
    assert evidence(declare(name))


@pytest.mark.parametrize(
    "name",
    [
        "created_report_list",
        "list_payments",
        "sendgrid.search",
        "payload.get",
        "updates.list",
        "address_book",
        "get_settings",
        "deleted",
    ],
)
def test_a_verb_inside_another_word_is_no_verb(name: str):
    assert not evidence(declare(name))


@pytest.mark.parametrize("method", ["POST", "put", "PATCH", "DELETE", "LOCK", "FROBNICATE"])
def test_an_unsafe_http_method_speaks_against_read_only(method: str):
    assert method.upper() in evidence(declare(http_method=method))[0]


@pytest.mark.parametrize("method", ["GET", "head", "OPTIONS", "TRACE"])
def test_a_safe_http_method_does_not(method: str):
    assert not evidence(declare(http_method=method))


@pytest.mark.parametrize(
    "hints, found",
    [
        ({"destructiveHint": True}, 1),
        ({"readOnlyHint": False}, 1),
        ({"readOnlyHint": False, "destructiveHint": True}, 2),
        ({"readOnlyHint": True, "destructiveHint": False}, 0),
        ({"readOnlyHint": None, "title": "Search"}, 0),
    ],
)
def test_mcp_hints_that_it_acts_speak_against_read_only(hints: dict[str, object], found: int):
    assert len(evidence(declare(mcp_hints=hints))) == found


class Annotations(BaseModel):
    title: str | None = None
    readOnlyHint: bool | None = None  # noqa: N815


def test_mcp_annotations_may_be_the_sdks_model():
    assert evidence(declare(mcp_hints=Annotations(readOnlyHint=False))) == ("readOnlyHint is false",)


def test_a_probe_speaks_against_read_only():
    declared = declare()

    @declared.probe
    def look(query: str) -> None: ...

    assert evidence(declared) == ("it has a probe",)


def test_an_idempotency_parameter_speaks_against_read_only():
    @tool("search", effect="read_only")
    def search(query: str, idempotency_key: str) -> None: ...

    assert "idempotency_key" in evidence(search)[0]
    assert "request_id" in evidence(declare(idempotency_parameter="request_id"))[0]


@pytest.mark.parametrize("effect", [None, "protected", "idempotent"])
def test_no_hint_lowers_protection(effect: str | None):
    declared = declare(effect=effect, http_method="GET", mcp_hints={"readOnlyHint": True, "idempotentHint": True})
    assert declared.effect == (effect or "protected")


@pytest.mark.parametrize("effect", [None, "idempotent"])
def test_what_is_in_the_ledger_needs_no_evidence(effect: str | None):
    registry = Registry(strict=True)
    registry.add(declare("user.delete", effect=effect, http_method="DELETE"))
    assert registry.names() == ["user.delete"]


def test_a_strict_registry_blocks_read_only_against_evidence_and_still_knows_the_tool():
    registry = Registry(strict=True)
    declared = declare("user.delete", http_method="DELETE")
    with pytest.raises(
        ClassificationBlocked, match="claims read_only, but its HTTP method is DELETE and its name says"
    ):
        registry.add(declared)
    found = registry.get("user.delete")
    assert isinstance(found, Blocked)
    assert found.tool is declared
    assert "override_classification" in found.message
    assert registry.names() == []
    assert registry.blocked() == [found]
    assert registry.get("user.undelete") is None


def test_a_registry_that_is_not_strict_warns_counts_and_serves(caplog: pytest.LogCaptureFixture):
    registry = Registry(strict=False)
    declared = declare("user.delete")
    registry.add(declared)
    assert registry.get("user.delete") is declared
    assert registry.contradictions == 1
    assert "claims read_only" in caplog.text


def test_an_override_lets_it_through_and_its_reason_is_logged_at_start(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    registry = Registry(strict=True)
    declared = declare("query.post", http_method="POST", override_classification="a search whose query is a body")
    registry.add(declared)
    assert registry.get("query.post") is declared
    assert registry.contradictions == 0
    assert "a search whose query is a body" in caplog.text


def test_an_override_without_evidence_says_nothing(caplog: pytest.LogCaptureFixture):
    Registry(strict=True).add(declare(override_classification="to be sure"))
    assert caplog.text == ""


def test_strict_is_the_default():
    assert Registry().strict
