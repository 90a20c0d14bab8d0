"""The commands that talk to Kafka and Postgres, from outside."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fencepost_dispatch import Line, Settings, tool
from fencepost_ledger import Desk
from fencepost_schemas import Dispatch, Fence, Outcome
from fencepost_worker.cli import app
from services import answering
from services.answering import FakeWorker, outcome_of
from services.brokers import Broker, Embedded, Kafka

CALL = ["--execution", "e", "--node", "n", "--index", "0", "--tool", "t.x", "--arguments", '{"a": 1}']


def fencepost(*words: str, **options: Any) -> Result:
    return CliRunner().invoke(app, list(words), **options)


def done(*words: str, **options: Any) -> str:
    """What it prints when all is well."""
    result = fencepost(*words, **options)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def ledger(environment: pytest.MonkeyPatch, database: str) -> str:
    environment.setenv("FENCEPOST_LEDGER_DSN", database)
    return database


@pytest.fixture
def brokers(environment: pytest.MonkeyPatch, embedded_kafka: Embedded) -> Settings:
    return point_at(environment, embedded_kafka)


def point_at(environment: pytest.MonkeyPatch, broker: Broker) -> Settings:
    environment.setenv("FENCEPOST_KAFKA_BOOTSTRAP", broker.bootstrap)
    for role in ("dispatch", "outcome", "dead_letter"):
        environment.setenv(f"FENCEPOST_{role.upper()}_TOPIC", broker.new_topic(role))
    return Settings.load()


@pytest.fixture
def fake_worker(brokers: Settings) -> Iterator[FakeWorker]:
    with answering.fake_worker(brokers) as worker:
        yield worker


# --- dispatch and outcomes ---


def test_a_dispatch_prints_the_id_of_its_event(fake_worker: FakeWorker) -> None:
    event_id = done("dispatch", *CALL).strip()
    [decoded] = fake_worker.wait(1)
    assert isinstance(decoded.event, Dispatch)
    assert (decoded.event.event_id, decoded.event.generation) == (event_id, 1)
    assert decoded.event.arguments == {"a": 1}


def test_every_field_of_a_dispatch_can_be_given(fake_worker: FakeWorker) -> None:
    options = {"generation": 3, "event-id": "x", "tool-call-id": "call_0", "session-key": "s", "org": "acme"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert done("dispatch", *CALL, *words, "--deadline", "2040-01-02T03:04:05+02:00") == "x\n"
    event = fake_worker.wait(1)[0].event.model_dump(mode="json")
    assert (event["generation"], event["tool_call_id"], event["session_key"]) == (3, "call_0", "s")
    assert (event["org_id"], event["deadline"]) == ("acme", "2040-01-02T01:04:05Z")


def test_waiting_prints_the_outcome_exactly(fake_worker: FakeWorker) -> None:
    result = {"big": 2**80, "nul": "a\x00b", "ü": [None, 0, False, ""]}
    fake_worker.answer = lambda event: [outcome_of(event, result=result)]
    text = done("dispatch", *CALL, "--wait", "30")
    assert text.isascii()
    assert json.loads(text)["result"] == result


def test_waiting_in_vain_is_exit_1_and_names_the_event(fake_worker: FakeWorker) -> None:
    fake_worker.answer = lambda _: []
    result = fencepost("dispatch", *CALL, "--event-id", "x", "--wait", "0.05")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no outcome of event x within 0.05 s" in result.stderr


@pytest.mark.parametrize(
    "options, named",
    [(["--index", "-1"], "call_index"), (["--tool", "a b"], "tool"), (["--deadline", "tomorrow"], "deadline")],
)
def test_a_field_against_the_contract_is_exit_2_and_named(
    options: list[str], named: str, environment: pytest.MonkeyPatch
) -> None:
    result = fencepost("dispatch", *CALL, *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert named in result.stderr


EVENTS = """\
{"event_id": "first", "execution_id": "e", "node_id": "n", "call_index": 0, "tool": "t", "arguments": {"n": 1}}
{"execution_id": "e", "node_id": "n", "call_index": 1, "tool": "t", "arguments": {"n": 1, "n": 2}}

not json
{"execution_id": "e", "node_id": "n", "call_index": 2, "tool": "t"}
{"type": "tool.fence.v1", "event_id": "fence", "execution_id": "e", "node_id": "n"}
{"event_id": "last", "execution_id": "e", "node_id": "n", "call_index": 3, "generation": 7, "tool": "t", "arguments":{}}
"""


def test_a_bad_line_is_named_and_stops_no_other(fake_worker: FakeWorker, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(EVENTS)
    result = fencepost("dispatch", "--file", str(file), "--generation", "4")
    assert result.exit_code == 1
    assert result.stdout.split() == ["first", "fence", "last"]
    *named, summary = result.stderr.splitlines()
    assert [line.removeprefix(f"{file}:")[:2] for line in named] == ["2:", "4:", "5:"]
    assert "$.arguments.n: duplicate key" in named[0]
    assert summary == "dispatched 3 of 6 events"
    sent = [decoded.event for decoded in fake_worker.wait(3)]
    assert [event.event_id for event in sent] == ["first", "fence", "last"]
    assert [event.generation for event in sent] == [4, 4, 7]
    assert isinstance(sent[1], Fence)


def test_events_are_read_from_stdin_and_their_outcomes_printed_in_their_order(fake_worker: FakeWorker) -> None:
    lines = [
        {"execution_id": f"e{n % 5}", "node_id": "n", "call_index": n, "tool": "t", "arguments": {"n": n}}
        for n in range(60)
    ]
    text = "\n".join(map(json.dumps, lines))
    result = fencepost("dispatch", "--file", "-", "--wait", "30", input=text)
    assert (result.exit_code, result.stderr) == (0, "dispatched 60 of 60 events\n")
    assert [json.loads(line)["result"]["n"] for line in result.stdout.splitlines()] == list(range(60))


def test_a_missing_topic_is_exit_1_with_its_cure(brokers: Settings, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FENCEPOST_DISPATCH_TOPIC", "tool.nowhere")
    environment.setenv("FENCEPOST_OUTCOME_TOPIC", "tool.nowhere-too")
    for command in (["dispatch", *CALL], ["outcomes"]):
        result = fencepost(*command)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert "fencepost topics" in result.stderr


def some_outcomes() -> list[Outcome]:
    fields: dict[str, Any] = {"execution_id": "e", "node_id": "n", "generation": 1, "tool": "t"}
    return [outcome_of(Dispatch(event_id=f"x{n}", call_index=n, arguments={"n": n}, **fields)) for n in range(3)]


@pytest.mark.parametrize("options", [[], ["--from-beginning"], ["--json"]])
def test_outcomes_are_printed_once_each_and_then_it_ends(options: list[str], fake_worker: FakeWorker) -> None:
    fake_worker.publish(*some_outcomes(), *some_outcomes())
    shown = [json.loads(line) for line in done("outcomes", *options).splitlines()]
    assert [outcome["event_id"] for outcome in shown] == ["x0", "x1", "x2"]


def test_following_goes_on_with_what_comes(fake_worker: FakeWorker) -> None:
    first, *others = some_outcomes()
    fake_worker.publish(first)
    command = [sys.executable, "-m", "fencepost_worker.cli", "outcomes", "--from-beginning", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["event_id"] == "x0"
        fake_worker.publish(*others)
        assert [json.loads(follower.stdout.readline())["event_id"] for _ in others] == ["x1", "x2"]
        follower.terminate()


# --- the ledger ---


def test_executions_are_opened_listed_and_closed(ledger: str) -> None:
    assert "is open under acme" in done("executions", "open", "e", "--org", "acme")
    assert "was open already" in done("executions", "open", "e", "--org", "acme")
    done("executions", "open", "other", "--org", "zeta")
    listed = [json.loads(line) for line in done("executions", "list", "--json").splitlines()]
    assert [(row["execution_id"], row["org_id"]) for row in listed] == [("e", "acme"), ("other", "zeta")]
    assert "zeta" not in done("executions", "list", "--org", "acme")
    done("executions", "close", "e")
    assert json.loads(done("executions", "list", "--org", "acme", "--json"))["closed_at"] is not None


def test_an_execution_never_changes_hands(ledger: str) -> None:
    done("executions", "open", "e", "--org", "acme")
    result = fencepost("executions", "open", "e", "--org", "zeta")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_what_is_not_there_is_exit_1(ledger: str) -> None:
    for command in (["executions", "close", "e"], ["redispatch", "e", "n"], ["calls", "show", "abcdef"]):
        result = fencepost(*command)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_a_redispatch_prints_the_raised_generation(ledger: str) -> None:
    done("executions", "open", "e", "--org", "acme")
    assert [done("redispatch", "e", "n") for _ in range(2)] == ["2\n", "3\n"]


def test_migrating_twice_is_fine(environment: pytest.MonkeyPatch, empty_database: str) -> None:
    environment.setenv("FENCEPOST_LEDGER_DSN", empty_database)
    result = fencepost("executions", "list")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "fencepost migrate" in result.stderr
    for _ in range(2):
        done("migrate")
    assert done("executions", "list", "--json") == ""


@tool("t.good")
async def good(n: int) -> dict[str, Any]:
    return {"n": n, "nul": "a\x00b", "[red]": "[/]"}


@tool("t.bad")
async def bad(n: int) -> None:
    raise RuntimeError("nobody knows")


@pytest.fixture
def calls(ledger: str) -> list[Outcome]:
    """One that is completed and one of which nobody knows."""
    with Desk(ledger) as desk:
        desk.open_execution("e", "acme")

    async def run() -> list[Outcome]:
        fields: dict[str, Any] = {"execution_id": "e", "node_id": "n", "generation": 1}
        async with Line([good, bad]) as line:
            return [
                await line.run(Dispatch(event_id=name, call_index=number, tool=name, arguments={"n": number}, **fields))
                for number, name in enumerate(["t.good", "t.bad"])
            ]

    return asyncio.run(run())


def test_calls_are_listed_by_what_is_asked_for(calls: list[Outcome]) -> None:
    def listed(*options: str) -> list[str]:
        return [json.loads(line)["tool"] for line in done("calls", "list", "--json", *options).splitlines()]

    assert listed() == ["t.good", "t.bad"]
    assert listed("--limit", "1") == ["t.good"]
    assert listed("--state", "indeterminate") == ["t.bad"]
    assert listed("--execution", "e", "--org", "acme") == ["t.good", "t.bad"]
    assert listed("--execution", "other") == listed("--org", "other") == []


def test_the_table_of_calls_is_whole_in_a_pipe(calls: list[Outcome]) -> None:
    text = done("calls", "list")
    for outcome in calls:
        assert outcome.invocation_key is not None
        [row] = [line for line in text.splitlines() if outcome.invocation_key[:12] in line]
        assert {"acme", "e", "n", outcome.tool} <= set(row.split())


def test_a_call_is_shown_by_any_unique_beginning_of_its_key(calls: list[Outcome]) -> None:
    key = calls[0].invocation_key
    assert key is not None
    for prefix in (key, key[:12], key[:12].upper()):
        shown = json.loads(done("calls", "show", prefix, "--json"))
        assert (shown["invocation_key"], shown["state"]) == (key, "completed")
        assert shown["result"] == {"n": 0, "nul": "a\x00b", "[red]": "[/]"}
    text = done("calls", "show", key)
    assert r'{"n":0,"nul":"a\u0000b","[red]":"[/]"}' in text


@pytest.mark.parametrize("key", ["xyz", "ab", "0" * 65])
def test_what_is_no_key_is_exit_2(key: str, ledger: str) -> None:
    assert fencepost("calls", "show", key).exit_code == 2


# --- topics and doctor ---


def test_topics_are_made_and_said_again(environment: pytest.MonkeyPatch, embedded_kafka: Embedded) -> None:
    environment.setenv("FENCEPOST_KAFKA_BOOTSTRAP", embedded_kafka.bootstrap)
    for _ in range(2):
        found = [json.loads(line) for line in done("topics", "--json").splitlines()]
        assert [finding["subject"] for finding in found] == ["tool.dispatch", "tool.outcome", "tool.dead-letter"]


def test_a_doctor_finds_a_sound_house_sound(brokers: Settings, ledger: str) -> None:
    found = [json.loads(line) for line in done("doctor", "--json").splitlines()]
    assert {finding["level"] for finding in found} == {"ok"}
    assert {"brokers", "database", "schema", "clock"} <= {finding["subject"] for finding in found}


def test_a_doctor_names_a_missing_schema_and_its_cure(
    brokers: Settings, environment: pytest.MonkeyPatch, empty_database: str
) -> None:
    environment.setenv("FENCEPOST_LEDGER_DSN", empty_database)
    result = fencepost("doctor")
    assert result.exit_code == 1
    [fault] = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert "schema" in fault
    assert "fencepost migrate" in fault


def test_a_doctor_names_a_dsn_that_is_not_set(brokers: Settings) -> None:
    result = fencepost("doctor")
    assert result.exit_code == 1
    assert "FENCEPOST_LEDGER_DSN is not set" in result.stdout


def test_a_doctor_who_cannot_reach_a_service_is_exit_3_and_shows_no_password(
    brokers: Settings, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("FENCEPOST_LEDGER_DSN", "postgresql://ann:hunter2@127.0.0.1:1/x")
    result = fencepost("doctor")
    assert result.exit_code == 3
    assert "hunter2" not in result.stdout + result.stderr


def test_a_doctor_says_when_the_clocks_disagree(
    brokers: Settings, ledger: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr("fencepost_worker.doctor.clock_offset", lambda _: 90.0)
    [clock] = [line for line in done("doctor").splitlines() if " clock: " in line]
    assert clock.startswith("warning")
    assert "90.0 s behind the database" in clock


@pytest.mark.kafka
def test_a_doctor_finds_a_memory_that_is_shorter_than_the_topic_s(
    real_kafka_broker: Kafka, ledger: str, environment: pytest.MonkeyPatch
) -> None:
    point_at(environment, real_kafka_broker)
    topic = real_kafka_broker.new_topic("dispatch", config={"retention.ms": str(30 * 24 * 3_600_000)})
    environment.setenv("FENCEPOST_DISPATCH_TOPIC", topic)
    result = fencepost("doctor", "--json")
    assert result.exit_code == 1
    [fault] = [found for line in result.stdout.splitlines() if (found := json.loads(line))["level"] == "error"]
    assert fault["subject"] == topic
    assert "FENCEPOST_TTL_HOURS" in fault["cure"]
