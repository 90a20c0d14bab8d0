from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import fencepost_dispatch.feed as feed_module
from fencepost_dispatch.client import Dispatched, Dispatcher
from fencepost_dispatch.event import InvalidDispatch, new_event_id
from fencepost_dispatch.kafka import KafkaUnavailable, MissingTopic
from fencepost_dispatch.settings import Settings, SettingsError
from fencepost_schemas import Dispatch, Fence, Outcome, Refused, Status
from services.answering import FakeWorker, outcome_of


async def ask(dispatcher: Dispatcher, number: int = 0, **fields: Any) -> Dispatched:
    given: dict[str, Any] = {"execution_id": "e", "node_id": "n", "call_index": number} | fields
    return await dispatcher.dispatch("jira.create", {"n": number}, **given)


async def test_a_dispatch_is_answered_and_every_wait_gives_the_same(
    settings: Settings, fake_worker: FakeWorker
) -> None:
    async with Dispatcher(settings) as dispatcher:
        call = await ask(dispatcher)
        first, second = await asyncio.gather(call.outcome(timeout=30), call.outcome(timeout=30))
        assert first is second is await call.outcome(timeout=0)
        assert (first.event_id, first.status, first.result) == (call.event_id, Status.succeeded, {"n": 0})


async def test_the_very_first_outcome_is_not_missed(settings: Settings, fake_worker: FakeWorker) -> None:
    for _ in range(3):
        async with Dispatcher(settings) as dispatcher:
            assert (await (await ask(dispatcher)).outcome(timeout=30)).result == {"n": 0}


async def test_what_is_dispatched_is_what_arrives(settings: Settings, fake_worker: FakeWorker) -> None:
    deadline = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)
    optional: dict[str, Any] = {
        "tool_call_id": "call_0",
        "session_key": "s",
        "org_id": "acme",
        "metadata": {"a": "b"},
        "deadline": deadline,
    }
    async with Dispatcher(settings) as dispatcher:
        call = await dispatcher.dispatch(
            "pay",
            {"ü": 2**70},
            execution_id="é",
            node_id="n",
            call_index=7,
            generation=3,
            **optional,
        )
    [decoded] = fake_worker.wait(1)
    assert decoded.event == call.event
    assert decoded.event.model_dump(exclude_none=True) == {
        "event_id": call.event_id,
        "execution_id": "é",
        "node_id": "n",
        "call_index": 7,
        "generation": 3,
        "tool": "pay",
        "arguments": {"ü": 2**70},
        **optional,
    }
    record = fake_worker.records[0]
    assert record.key() == "é".encode()
    headers = fake_worker.headers(0)
    assert headers["ce_id"] == call.event_id.encode()
    assert headers["ce_type"] == b"tool.dispatch.v1"
    assert "traceparent" not in headers


async def test_the_current_span_travels_with_the_dispatch(settings: Settings, fake_worker: FakeWorker) -> None:
    tracer = TracerProvider().get_tracer("test")
    async with Dispatcher(settings, listen=False) as dispatcher:
        with tracer.start_as_current_span("orchestrate") as span:
            await ask(dispatcher)
    fake_worker.wait(1)
    header = fake_worker.headers(0)["traceparent"].decode()
    assert trace.format_trace_id(span.get_span_context().trace_id) in header


async def test_an_event_id_is_a_uuid_of_version_7_and_rises_with_time() -> None:
    ids = []
    for _ in range(3):
        ids.append(new_event_id())
        await asyncio.sleep(0.002)
    assert ids == sorted(ids)
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", one) for one in ids)


async def test_an_event_id_of_another_execution_is_another_event(settings: Settings, fake_worker: FakeWorker) -> None:
    def other_execution(event: Dispatch) -> list[Outcome]:
        return [outcome_of(event.model_copy(update={"execution_id": "other"})), outcome_of(event, result="mine")]

    fake_worker.answer = other_execution
    async with Dispatcher(settings) as dispatcher:
        await ask(dispatcher, execution_id="other", event_id="unanswered")
        call = await ask(dispatcher, event_id="same")
        assert (await call.outcome(timeout=30)).result == "mine"


async def test_the_same_event_dispatched_again_waits_for_its_next_outcome(
    settings: Settings, fake_worker: FakeWorker
) -> None:
    statuses = iter([Status.busy, Status.succeeded])
    fake_worker.answer = lambda event: [outcome_of(event, next(statuses))]
    async with Dispatcher(settings) as dispatcher:
        first = await ask(dispatcher, event_id="x")
        assert (await first.outcome(timeout=30)).status is Status.busy
        again = await ask(dispatcher, event_id="x")
        assert (await again.outcome(timeout=30)).status is Status.succeeded
        assert (await first.outcome(timeout=0)).status is Status.busy


async def test_a_call_that_is_still_running_times_out_and_can_be_awaited_again(
    settings: Settings, fake_worker: FakeWorker
) -> None:
    fake_worker.answer = lambda _: []
    async with Dispatcher(settings) as dispatcher:
        call = await ask(dispatcher)
        with pytest.raises(TimeoutError):
            await call.outcome(timeout=0.05)
        assert isinstance(call.event, Dispatch)
        fake_worker.publish(outcome_of(call.event, Status.failed))
        assert (await call.outcome(timeout=30)).status is Status.failed


async def test_many_calls_at_once_each_get_their_own_outcome(settings: Settings, fake_worker: FakeWorker) -> None:
    async with Dispatcher(settings) as dispatcher:
        calls = await asyncio.gather(*(ask(dispatcher, number, execution_id=f"e{number % 7}") for number in range(300)))
        outcomes = await asyncio.gather(*(call.outcome(timeout=60) for call in calls))
    assert [outcome.result["n"] for outcome in outcomes] == list(range(300))


async def test_outcomes_that_nobody_waits_for_are_not_kept(settings: Settings, fake_worker: FakeWorker) -> None:
    async with Dispatcher(settings) as dispatcher:
        for number in range(20):
            await ask(dispatcher, number)
        call = await ask(dispatcher, 20)
        await call.outcome(timeout=30)
        gc.collect()
        assert len(dispatcher._waiting) == 1
        del call
        gc.collect()
        assert len(dispatcher._waiting) == 0
        assert not dispatcher._waiting.concerns(b"e")


async def test_a_fence_is_an_event_without_an_outcome(settings: Settings, fake_worker: FakeWorker) -> None:
    async with Dispatcher(settings) as dispatcher:
        event_id = await dispatcher.fence("e", "n", 5)
    [decoded] = fake_worker.wait(1)
    assert decoded.event == Fence(event_id=event_id, execution_id="e", node_id="n", generation=5)


async def test_partitions_that_are_added_later_are_heard(
    settings: Settings, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "partitions", lambda *_: [0])
    monkeypatch.setattr(feed_module, "REFRESH_SECONDS", 0.2)
    async with Dispatcher(settings) as dispatcher:
        calls = [await ask(dispatcher, number, execution_id=f"e{number}") for number in range(16)]
        outcomes = [await call.outcome(timeout=30) for call in calls]
    assert len(outcomes) == 16


@pytest.mark.parametrize(
    "fields",
    [
        {"call_index": -1},
        {"generation": 0},
        {"execution_id": ""},
        {"node_id": "a\nb"},
        {"metadata": {"a": "x" * 5000}},
        {"deadline": datetime(2040, 1, 1)},  # noqa: DTZ001 - what is refused
    ],
)
async def test_an_event_against_the_contract_is_refused_before_anything_is_sent(fields: dict[str, Any]) -> None:
    async with Dispatcher(Settings.load(kafka_bootstrap="localhost:1")) as dispatcher:
        with pytest.raises(InvalidDispatch, match=next(iter(fields))) as caught:
            await ask(dispatcher, **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments, path", [({"a": [float("nan")]}, "$.a[0]"), ({"a": {1: 2}}, "$.a"), ({"a": object()}, "$.a")]
)
async def test_arguments_that_are_not_json_are_refused_with_their_path(arguments: dict[str, Any], path: str) -> None:
    async with Dispatcher(Settings.load(kafka_bootstrap="localhost:1")) as dispatcher:
        with pytest.raises(Refused) as caught:
            await dispatcher.dispatch("t", arguments, execution_id="e", node_id="n", call_index=0)
    assert caught.value.path.startswith(path)


async def test_an_event_too_large_for_the_brokers_is_refused(settings: Settings, fake_worker: FakeWorker) -> None:
    async with Dispatcher(settings) as dispatcher:
        with pytest.raises(InvalidDispatch, match="larger than"):
            await dispatcher.dispatch("t", {"a": "x" * 1_030_000}, execution_id="e", node_id="n", call_index=0)
        assert (await (await ask(dispatcher)).outcome(timeout=30)).status is Status.succeeded


async def test_a_full_queue_is_waited_for(settings: Settings, fake_worker: FakeWorker) -> None:
    small = settings.model_copy(update={"kafka": {"queue.buffering.max.messages": "2"}})
    async with Dispatcher(small, listen=False) as dispatcher:
        calls = await asyncio.gather(*(ask(dispatcher, number) for number in range(40)))
    assert {decoded.event.event_id for decoded in fake_worker.wait(40)} == {call.event_id for call in calls}


async def test_closing_tells_whoever_still_waits(settings: Settings, fake_worker: FakeWorker) -> None:
    fake_worker.answer = lambda _: []
    dispatcher = Dispatcher(settings)
    call = await ask(dispatcher)
    waiting = asyncio.create_task(call.outcome())
    await asyncio.sleep(0)
    await dispatcher.close()
    with pytest.raises(RuntimeError, match="closed before the outcome came"):
        await waiting
    with pytest.raises(RuntimeError, match="closed"):
        await ask(dispatcher)


async def test_a_missing_topic_is_named(settings: Settings) -> None:
    for missing in ("dispatch_topic", "outcome_topic"):
        async with Dispatcher(settings.model_copy(update={missing: "tool.nowhere"})) as dispatcher:
            with pytest.raises(MissingTopic, match=r"tool\.nowhere does not exist: .*fencepost topics"):
                await ask(dispatcher)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: refused
        yield bound.getsockname()[1]


async def test_an_unreachable_broker_is_one_line_that_says_what_to_do(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost_dispatch.sender.CONNECT_SECONDS", 0.5)
    begun = time.monotonic()
    async with Dispatcher(Settings.load(kafka_bootstrap=f"127.0.0.1:{closed_port}")) as dispatcher:
        with pytest.raises(KafkaUnavailable, match=r"no Kafka broker answers at .*refused.*FENCEPOST_KAFKA_BOOTSTRAP"):
            await ask(dispatcher)
    assert time.monotonic() - begun < 10


async def test_an_unknown_librdkafka_property_is_named_as_it_is_set() -> None:
    async with Dispatcher(Settings.load(kafka={"sasl.mechansim": "PLAIN"})) as dispatcher:
        with pytest.raises(SettingsError, match="FENCEPOST_KAFKA__SASL_MECHANSIM is not a property"):
            await ask(dispatcher)


async def test_a_dispatcher_without_a_dsn_says_so_only_when_it_needs_one() -> None:
    async with Dispatcher(Settings.load()) as dispatcher:
        with pytest.raises(SettingsError, match="FENCEPOST_LEDGER_DSN is not set"):
            await dispatcher.open_execution("e", "acme")


async def test_executions_and_generations_are_kept_in_the_ledger(database: str) -> None:
    async with Dispatcher(Settings.load(ledger_dsn=database)) as dispatcher:
        assert await dispatcher.open_execution("e", org_id="acme")
        assert not await dispatcher.open_execution("e", org_id="acme")
        assert [await dispatcher.redispatch("e", "n") for _ in range(2)] == [2, 3]
        await dispatcher.close_execution("e")


async def test_a_lost_connection_to_the_ledger_is_made_anew(database: str) -> None:
    import psycopg

    async with Dispatcher(Settings.load(ledger_dsn=database)) as dispatcher:
        await dispatcher.open_execution("e", "acme")
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert await dispatcher.redispatch("e", "n") == 2
