"""Topics: what is wrong with them is said in one line with its cure, and the missing ones are made soundly."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from fencepost_worker.topics import (
    MAX_MESSAGE_BYTES,
    AccessRefused,
    BrokersUnavailable,
    Finding,
    check,
    create,
    memory,
    record_limits,
)
from services.brokers import Broker, unique

HOUR = 3_600_000


@dataclass
class Names:
    dispatch_topic: str
    outcome_topic: str
    dead_letter_topic: str
    ttl_hours: float = 48.0
    strict: bool = True


def fresh(**changes: object) -> Names:
    names = Names(unique("tool.dispatch"), unique("tool.outcome"), unique("tool.dead-letter"))
    for name, value in changes.items():
        setattr(names, name, value)
    return names


def config(broker: Broker) -> dict[str, object]:
    return {"bootstrap.servers": broker.bootstrap}


def wrong(findings: list[Finding]) -> list[str]:
    return [str(finding) for finding in findings if finding.level != "ok"]


def test_what_was_created_has_nothing_wrong_with_it(broker: Broker) -> None:
    names = fresh()
    made = create(config(broker), names)
    assert [finding.subject for finding in made] == [names.dispatch_topic, names.outcome_topic, names.dead_letter_topic]
    assert wrong(made) == []
    assert wrong(check(config(broker), names)) == []


def test_creating_twice_leaves_topics_as_they_are(broker: Broker) -> None:
    names = fresh()
    create(config(broker), names, partitions=3)
    again = create(config(broker), names, partitions=7)
    assert {finding.level for finding in again} == {"ok"}
    if broker.real:
        assert again[0].text.startswith("3 partitions")


@pytest.mark.kafka
def test_missing_topics_are_named_with_the_cure(broker: Broker) -> None:
    names = fresh()
    assert wrong(check(config(broker), names)) == [
        f"{name}: does not exist; run `fencepost topics`"
        for name in (names.dispatch_topic, names.outcome_topic, names.dead_letter_topic)
    ]


def test_the_embedded_broker_says_what_it_cannot_do() -> None:
    from fencepost_worker.embedded import EmbeddedBroker

    with EmbeddedBroker() as embedded:
        names, settings = fresh(), {"bootstrap.servers": embedded.bootstrap}
        assert all("embedded broker has no topic settings" in made.text for made in create(settings, names))
        assert all("embedded broker has no topic settings" in seen.text for seen in check(settings, names))
        assert set(record_limits(settings, names).values()) == {MAX_MESSAGE_BYTES}


@pytest.mark.kafka
def test_a_dispatch_topic_that_outlives_the_ledgers_memory_is_an_error_when_strict(broker: Broker) -> None:
    names = fresh()
    create(config(broker), names)
    names.ttl_hours = 24
    (finding,) = [one for one in check(config(broker), names) if one.level != "ok"]
    assert (finding.level, finding.subject) == ("error", names.dispatch_topic)
    assert "keeps records for 36 h, the ledger remembers 24 h" in finding.text
    names.strict = False
    assert [one.level for one in check(config(broker), names) if one.level != "ok"] == ["warning"]


@pytest.mark.kafka
def test_a_compacted_topic_is_an_error(broker: Broker) -> None:
    names = fresh(outcome_topic=broker.new_topic(config={"cleanup.policy": "compact"}))
    create(config(broker), names)
    assert f"{names.outcome_topic}: is compacted: it keeps only the newest record of an execution; set " in "".join(
        line for line in wrong(check(config(broker), names)) if "compacted" in line
    )


@pytest.mark.kafka
def test_a_dead_letter_topic_of_smaller_records_is_a_warning(broker: Broker) -> None:
    small = broker.new_topic(config={"max.message.bytes": "1000", "retention.ms": str(HOUR), "segment.ms": str(HOUR)})
    names = fresh(dead_letter_topic=small)
    create(config(broker), names)
    assert any("a large one would not fit" in line for line in wrong(check(config(broker), names)))
    assert record_limits(config(broker), names) == {names.outcome_topic: MAX_MESSAGE_BYTES, small: 1_000}


def test_one_topic_in_two_roles_is_an_error(broker: Broker) -> None:
    names = fresh()
    names.outcome_topic = names.dispatch_topic
    create(config(broker), names)
    assert wrong(check(config(broker), names)) == [
        f"{names.dispatch_topic}: serves as 2 of the three topics; give each a name of its own"
    ]


def test_no_broker_is_one_line_with_the_cure() -> None:
    with pytest.raises(BrokersUnavailable) as caught:
        check({"bootstrap.servers": "127.0.0.1:1"}, fresh(), timeout=0.5)
    assert str(caught.value).startswith("no Kafka answers at 127.0.0.1:1: ")
    assert "Connection refused" in str(caught.value)
    assert "check FENCEPOST_KAFKA_BOOTSTRAP" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_does_not_resolve_is_one_line_with_the_cure() -> None:
    with pytest.raises(BrokersUnavailable, match=r"Failed to resolve 'no\.such\.host\.invalid:9092'.*KAFKA_BOOTSTRAP"):
        check({"bootstrap.servers": "no.such.host.invalid:9092"}, fresh(), timeout=1)


@pytest.mark.kafka
def test_refused_credentials_are_named_at_once(broker: Broker) -> None:
    refused = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "somebody",
        "sasl.password": "a-secret-word",
    }
    began = time.monotonic()
    with pytest.raises(AccessRefused, match=r"refuses us.*FENCEPOST_KAFKA__SECURITY_PROTOCOL") as caught:
        check({**config(broker), **refused}, fresh(), timeout=30)
    assert time.monotonic() - began < 10
    assert "a-secret-word" not in str(caught.value)


@pytest.mark.parametrize(
    "retention, segment, level",
    [(47 * HOUR, HOUR, "ok"), (48 * HOUR, HOUR, "warning"), (49 * HOUR, HOUR, "error"), (-1, HOUR, "error")],
)
def test_the_ledger_must_remember_longer_than_the_topic_can_replay(retention: int, segment: int, level: str) -> None:
    found = memory("tool.dispatch", retention, segment, ttl_hours=48)
    assert found.level == level
    assert bool(found.cure) == (level != "ok")


def test_without_strict_a_short_memory_is_a_warning() -> None:
    assert memory("tool.dispatch", -1, HOUR, ttl_hours=48, strict=False).level == "warning"
