"""Every reading command, and every ruling, scoped to an org: another's is not there."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from fencepost_dispatch import Outcomes, Settings
from fencepost_ledger import State
from fencepost_schemas import Dispatch
from services.answering import FakeWorker, outcome_of
from services.brokers import Embedded
from services.commands import complaint, done, fencepost
from services.holder import Book, Holder, call

WHO = ["--by", "ann", "--reason", "looked in the ticket system"]
RULINGS = {
    "resolve": ["calls", "resolve", "--succeeded", "1", *WHO],
    "release": ["calls", "release", *WHO],
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def keys(database: str, environment: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Of a call of unknown outcome in each of two orgs."""
    environment.setenv("FENCEPOST_LEDGER_DSN", database)
    with closing(Book(database)) as book, closing(Holder(database, "h")) as holder:
        for org in ("acme", "zeta"):
            book.open(f"{org}'s", org)
            holder.run(call(execution_id=f"{org}'s"), "indeterminate")
        yield {row.org_id: row.key.hex() for row in book.rows()}


def listed(*words: str) -> list[str]:
    return [json.loads(line)["org_id"] for line in done(*words, "--json").splitlines()]


def test_listings_show_one_org_alone(keys: dict[str, str]) -> None:
    for words in (["calls", "list"], ["calls", "list", "--state", "indeterminate"], ["executions", "list"]):
        assert sorted(listed(*words)) == ["acme", "zeta"]
        assert listed(*words, "--org", "zeta") == ["zeta"]
        assert listed(*words, "--org", "nobody") == []
    assert listed("calls", "list", "--org", "acme", "--execution", "zeta's") == []


@pytest.mark.parametrize("length", [8, 64])
def test_a_key_of_another_org_is_not_found(keys: dict[str, str], length: int) -> None:
    prefix = keys["zeta"][:length]
    assert f"no call begins with {prefix}" in complaint(1, "calls", "show", prefix, "--org", "acme")
    assert json.loads(done("calls", "show", prefix, "--org", "zeta", "--json"))["org_id"] == "zeta"


@pytest.mark.parametrize("ruling", RULINGS)
def test_nobody_rules_on_a_call_of_another_org(keys: dict[str, str], ruling: str, database: str) -> None:
    complaint(1, *RULINGS[ruling], keys["zeta"], "--org", "acme")
    with closing(Book(database)) as book:
        assert book.states() == [State.indeterminate] * 2
    done(*RULINGS[ruling], keys["zeta"], "--org", "zeta")


def test_a_file_of_rulings_is_scoped_as_a_whole(keys: dict[str, str], database: str) -> None:
    lines = "".join(json.dumps({"key": key, "succeeded": 1}) + "\n" for key in keys.values())
    result = fencepost("calls", "resolve", "--from", "-", *WHO, "--org", "acme", input=lines)
    assert result.exit_code == 1
    with closing(Book(database)) as book:
        assert {row.org_id: row.state for row in book.rows()} == {
            "acme": State.completed,
            "zeta": State.indeterminate,
        }


def test_outcomes_come_of_one_org_alone(embedded_kafka: Embedded, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FENCEPOST_KAFKA_BOOTSTRAP", embedded_kafka.bootstrap)
    environment.setenv("FENCEPOST_OUTCOME_TOPIC", embedded_kafka.new_topic("outcome"))
    fields = {"execution_id": "x", "node_id": "n", "call_index": 0, "generation": 1, "tool": "t", "arguments": {}}
    events = [Dispatch.model_validate({"event_id": f"e{number}", **fields}) for number in range(5)]
    orgs = ["acme", "zeta", None, "acme", "ACME"]
    FakeWorker(Settings.load()).publish(*(outcome_of(e, org_id=org) for e, org in zip(events, orgs, strict=True)))

    async def read() -> list[str]:
        async with Outcomes(org="acme", from_beginning=True, follow=False) as outcomes:
            return [outcome.event_id async for outcome in outcomes]

    assert asyncio.run(read()) == ["e0", "e3"]
    assert [json.loads(line)["event_id"] for line in done("outcomes", "--org", "zeta").splitlines()] == ["e1"]
