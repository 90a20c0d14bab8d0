"""Rulings from the command line to Kafka: published as another outcome of their event, or its record produced again."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from fencepost_dispatch import tool
from fencepost_ledger import CallRow, State
from services.brokers import Broker, Embedded
from services.commands import complaint, done, fencepost, process, told
from services.rig import Rig

WHO = ("--by", "ann", "--reason", "looked in the ticket system")


@contextmanager
def rigged(broker: Broker, database: str, topics: Any = None) -> Iterator[Rig]:
    """A rig, and an environment in which the commands find it."""
    roles = ("dispatch", "outcome", "dead_letter")
    topics = topics or SimpleNamespace(**{role: broker.new_topic(role) for role in roles})
    rig = Rig(broker, topics, database)
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
            environment.delenv(name)
        environment.setenv("FENCEPOST_LEDGER_DSN", database)
        environment.setenv("FENCEPOST_KAFKA_BOOTSTRAP", broker.bootstrap)
        for role in roles:
            environment.setenv(f"FENCEPOST_{role.upper()}_TOPIC", getattr(topics, role))
        yield rig
    rig.close()


@pytest.fixture
def rig(broker: Broker, topics: Any, database: str) -> Iterator[Rig]:
    with rigged(broker, database, topics) as rig:
        yield rig


@pytest.fixture
def one_rig(embedded_kafka: Embedded, database: str) -> Iterator[Rig]:
    """For what does not depend on the kind of broker."""
    with rigged(embedded_kafka, database) as rig:
        yield rig


@pytest.fixture
def runs() -> list[int]:
    return []


@pytest.fixture
def create(runs: list[int]) -> Any:
    """Acts, and the first time does not come to say so."""

    @tool("desk.create")
    async def create() -> int:
        runs.append(len(runs) + 1)
        if len(runs) == 1:
            raise ConnectionResetError("peer went away")
        return len(runs)

    return create


@pytest.fixture
def lose() -> Any:
    @tool("desk.lose")
    async def lose() -> None:
        raise ConnectionResetError("peer went away")

    return lose


async def unknown(rig: Rig, create: Any, **fields: Any) -> tuple[dict[str, Any], CallRow]:
    """An outcome that nobody knows, with its row; its worker has left."""
    async with rig.worker(create):
        rig.produce(rig.event(**fields), headers=[("theirs", b"\x00\xff"), ("traceparent", b"00-ab-cd-01")])
        (outcome,) = await rig.outcomes(1)
    assert outcome["status"] == "indeterminate"
    return outcome, row_of(rig)


def row_of(rig: Rig) -> CallRow:
    (row,) = rig.desk.calls()
    return row


def in_ledger(rig: Rig, statement: str, *params: Any) -> None:
    with psycopg.connect(rig.database) as connection:
        connection.execute(statement.encode(), params)


def judged(outcome: dict[str, Any]) -> tuple[Any, ...]:
    return outcome["status"], outcome["executed"], outcome["replayed"], outcome["retryable"], outcome["attempt"]


async def test_a_ruling_is_published_by_any_worker_as_a_second_outcome_of_its_event(
    rig: Rig, create: Any, runs: list[int]
) -> None:
    async with rig.worker(create, lease_seconds=1):
        rig.produce(event := rig.event(metadata={"turn": "3"}))
        (first,) = await rig.outcomes(1)
        words = ["calls", "resolve", first["invocation_key"], "--failed", "not_there", *WHO]
        assert (await asyncio.to_thread(process, *words)).returncode == 0
        (second,) = await rig.outcomes(1)
        rig.produce(event)
        (again,) = await rig.outcomes(1)
    assert judged(second) == judged(again) == ("failed", False, True, False, 1)
    assert second["event_id"] == first["event_id"] == event["event_id"]
    assert second["outcome_id"] != first["outcome_id"]
    assert (second["resolution"]["by"], second["resolution"]["reason"]) == ("ann", WHO[3])
    assert again["resolution"] == second["resolution"]
    assert (second["error"]["code"], second["metadata"]) == ("not_there", {"turn": "3"})
    assert runs == [1]
    assert not list(rig.desk.calls(State.indeterminate))


async def test_a_sweep_by_hand_publishes_every_ruling_once(rig: Rig, create: Any) -> None:
    first, row = await unknown(rig, create)
    done("calls", "resolve", row.key.hex(), "--succeeded", '{"big": 1180591620717411303424, "nul": "\\u0000"}', *WHO)
    swept = told("sweep")
    assert (swept["swept"], swept["published"]) == (True, 1)
    (second,) = await rig.outcomes(1)
    assert judged(second) == ("succeeded", False, True, False, 1)
    assert (second["event_id"], second["error"]) == (first["event_id"], None)
    assert second["result"] == {"big": 2**70, "nul": "\x00"}
    assert told("sweep")["published"] == 0
    in_ledger(rig, "UPDATE fencepost.unsettled SET since = since - interval '1 min'")
    in_ledger(rig, "UPDATE fencepost.calls SET finished_at = finished_at - interval '1 min'")
    assert told("sweep")["published"] == 0, "it was acknowledged"


async def test_a_released_call_is_dispatched_again_as_it_was_and_runs_once(
    rig: Rig, create: Any, runs: list[int]
) -> None:
    first, row = await unknown(rig, create, metadata={"turn": "3"})
    async with rig.worker(create):
        words = ["calls", "release", row.key.hex(), "--replay", *WHO, "--json"]
        answer = await asyncio.to_thread(process, *words)
        assert (answer.returncode, json.loads(answer.stdout)["replayed"]) == (0, True)
        assert answer.stderr == f"event {row.event_id} is dispatched again\n"
        (second,) = await rig.outcomes(1)
        rig.produce(rig.event(event_id=row.event_id, call_index=row.call_index, metadata={"turn": "3"}))
        (third,) = await rig.outcomes(1)
    assert runs == [1, 2]
    assert judged(second) == ("succeeded", True, False, False, 2)
    assert judged(third) == ("succeeded", False, True, False, 2)
    assert second["event_id"] == first["event_id"]
    assert second["resolution"]["by"] == "ann", "it stays known why the call ran twice"
    assert third["resolution"] == second["resolution"]
    records = [m for m in await rig._read(rig.topics.dispatch, 3) if dict(m.headers() or ()).get("theirs")]
    original, replayed = ((m.key(), m.value(), m.headers(), m.partition()) for m in records)
    assert original == replayed


GONE = {
    "past its end": """SET "offset" = 1000""",
    "another record": """SET "offset" = CASE "offset" WHEN 0 THEN 1 ELSE 0 END""",
    "a partition less": "SET partition = 1000",
    "no such topic": "SET topic = 'tool.nowhere'",
}


async def test_a_record_that_is_gone_is_said_to_be_and_the_release_holds(rig: Rig, lose: Any) -> None:
    async with rig.worker(lose):
        rig.produce(*[rig.event(tool="desk.lose") for _ in GONE])
        await rig.outcomes(len(GONE))
    for row, case in zip(list(rig.desk.calls()), GONE, strict=True):
        in_ledger(rig, f"UPDATE fencepost.events {GONE[case]} WHERE event_id = %s", row.event_id)
        result = fencepost("calls", "release", row.key.hex(), "--replay", *WHO)
        assert (case, result.exit_code, result.stderr.count("\n")) == (case, 1, 1)
        assert result.stdout.startswith(f"{row.key.hex()[:12]} is released")
        assert result.stderr.startswith(f"the release holds, but its event {row.event_id} is no longer at ")
    assert {row.state for row in rig.desk.calls()} == {State.released}


@pytest.mark.kafka
async def test_a_record_that_the_topic_has_deleted_is_gone(rig: Rig, broker: Broker, create: Any) -> None:
    _, row = await unknown(rig, create)
    source = rig.desk.origin(row)
    assert source is not None
    rig.produce(rig.event())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_records([TopicPartition(source.topic, source.partition, source.offset + 1)]).values():
        deleted.result(20)
    result = fencepost("calls", "release", row.key.hex(), "--replay", *WHO)
    assert result.exit_code == 1
    assert "is no longer at" in result.stderr


async def test_a_release_that_is_repeated_dispatches_its_event_again(one_rig: Rig, create: Any) -> None:
    """The first time the program may have ended between the two."""
    _, row = await unknown(one_rig, create)
    words = ["calls", "release", row.key.hex(), *WHO]
    done(*words)
    answer = fencepost(*words, "--replay", "--json")
    assert [json.loads(answer.stdout)[name] for name in ("changed", "replayed")] == [False, True]


async def test_a_replay_past_its_deadline_says_what_will_come_of_it(
    one_rig: Rig, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, row = await unknown(one_rig, create, deadline=(datetime.now(UTC) + timedelta(hours=1)).isoformat())

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Later:
            return cls.fromtimestamp(datetime.now(UTC).timestamp() + 7200, tz)

    monkeypatch.setattr("fencepost_worker.replay.datetime", Later)
    answer = fencepost("calls", "release", row.key.hex(), "--replay", *WHO)
    assert (answer.exit_code, answer.stderr.count("\n")) == (0, 1)
    assert "it will be answered `expired`" in answer.stderr


async def test_while_no_broker_answers_a_release_with_replay_changes_nothing(
    one_rig: Rig, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, row = await unknown(one_rig, create)
    monkeypatch.setattr("fencepost_worker.replay.CONNECT_SECONDS", 0.3)
    monkeypatch.setenv("FENCEPOST_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    said = complaint(3, "calls", "release", row.key.hex(), "--replay", *WHO)
    assert "no Kafka broker answers" in said
    assert row_of(one_rig).state is State.indeterminate


async def test_an_outcome_that_cannot_be_written_is_named_and_stops_no_other(one_rig: Rig, lose: Any) -> None:
    async with one_rig.worker(lose):
        one_rig.produce(*[one_rig.event(tool="desk.lose") for _ in range(2)])
        await one_rig.outcomes(2)
    damaged, sound = (row.key.hex() for row in list(one_rig.desk.calls()))
    for key in (damaged, sound):
        done("calls", "resolve", key, "--failed", "not_there", *WHO)
    in_ledger(one_rig, "UPDATE fencepost.calls SET metadata = '[]' WHERE key = decode(%s, 'hex')", damaged)
    result = fencepost("sweep", "--json")
    assert (result.exit_code, json.loads(result.stdout)["published"]) == (1, 1)
    assert result.stderr.startswith(f"call {damaged[:12]}: ")
    assert result.stderr.count("\n") == 1
    (outcome,) = await one_rig.outcomes(1)
    assert outcome["invocation_key"] == sound


async def test_a_file_of_rulings_is_published_whole(one_rig: Rig, lose: Any) -> None:
    async with one_rig.worker(lose):
        one_rig.produce(*[one_rig.event(tool="desk.lose") for _ in range(40)])
        first = await one_rig.outcomes(40)
    text = "\n".join(
        json.dumps({"key": outcome["invocation_key"], "succeeded": outcome["call_index"]}) for outcome in first
    )
    result = fencepost("calls", "resolve", "--from", "-", *WHO, input=text)
    assert (result.exit_code, result.stderr) == (0, "resolved 40 of 40 calls\n")
    assert told("sweep")["published"] == 40
    second = await one_rig.outcomes(40)
    assert {o["event_id"]: o["result"] for o in second} == {o["event_id"]: o["call_index"] for o in first}
