"""The orchestrator's trace goes through produce, process, tool and outcome; without an SDK nobody makes a span."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fencepost_dispatch import Dispatcher, Line, ToolFailed, tool
from fencepost_dispatch.tracing import around_runs, find_tracer, headers, parent
from fencepost_schemas import Dispatch
from fencepost_worker import events
from fencepost_worker.spans import passages
from services.brokers import Embedded
from services.observed import embedded_rig
from services.rig import Rig

THEIRS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "sesame"


@pytest.fixture
def rig(embedded_kafka: Embedded, database: str) -> Iterator[Rig]:
    with embedded_rig(embedded_kafka, database) as made:
        yield made


class Spans:
    """What an SDK in this process exports."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all() if span.name == name]
        return found


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    made = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.provider)  # the API sets it once and for ever
    return made


def chain(*spans: ReadableSpan) -> bool:
    """Whether each span is the next one's parent, all of one trace."""
    pairs = pairwise(spans)
    return len({span.context.trace_id for span in spans}) == 1 and all(
        after.parent is not None and after.parent.span_id == before.context.span_id for before, after in pairs
    )


def traceparent(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


async def carried(rig: Rig, topic: str) -> dict[str, str]:
    """The headers of the next record of a topic, those that are text."""
    (message,) = await rig._read(topic, 1)
    return {name: value.decode() for name, value in message.headers() or () if isinstance(value, bytes)}


@tool("desk.create")
async def create(secret: str = "") -> str:
    return secret


async def test_a_trace_goes_from_the_orchestrator_through_the_tool_to_the_outcome(rig: Rig, spans: Spans) -> None:
    orchestrator = spans.provider.get_tracer("orchestrator")

    @tool("desk.nest")
    def nest(secret: str) -> str:
        with orchestrator.start_as_current_span("the tool's own"):
            return secret

    async with rig.worker(nest), Dispatcher(rig.settings(), listen=False) as dispatcher:
        with orchestrator.start_as_current_span("plan"):
            where: dict[str, Any] = {"execution_id": rig.execution, "node_id": "n", "call_index": 0}
            await dispatcher.dispatch("desk.nest", {"secret": SECRET}, event_id="e1", **where)
        outcome = await carried(rig, rig.topics.outcome)
    sent, processed = spans.named(f"send {rig.topics.dispatch}"), spans.named(f"process {rig.topics.dispatch}")
    ran, published = spans.named("execute_tool desk.nest"), spans.named(f"send {rig.topics.outcome}")
    assert chain(spans.named("plan"), sent, processed, ran, spans.named("the tool's own"))
    assert chain(processed, published)
    assert outcome["traceparent"] == traceparent(processed)
    kinds = [span.kind for span in (sent, processed, ran, published)]
    assert kinds == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.INTERNAL, SpanKind.PRODUCER]
    assert processed.parent is not None
    assert processed.parent.is_remote
    assert ran.parent is not None
    assert not ran.parent.is_remote
    assert SECRET not in "".join(span.to_json() for span in spans.all())


async def test_spans_say_what_the_conventions_want(rig: Rig, spans: Spans) -> None:
    async with rig.worker(create):
        rig.produce(event := rig.event(tool_call_id="call_0"), partition=2)
        (outcome,) = await rig.outcomes(1)
    processed = dict(spans.named(f"process {rig.topics.dispatch}").attributes or {})
    assert processed == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": rig.topics.dispatch,
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 0,
        "messaging.consumer.group.name": rig.group,
        "messaging.message.id": event["event_id"],
        "messaging.message.conversation_id": rig.execution,
        "messaging.message.body.size": len(json.dumps(event)),
        "fencepost.status": "succeeded",
        "fencepost.executed": True,
        "fencepost.replayed": False,
    }
    published = dict(spans.named(f"send {rig.topics.outcome}").attributes or {})
    assert published["messaging.operation.type"] == "send"
    assert published["messaging.message.id"] == outcome["outcome_id"]
    ran = dict(spans.named("execute_tool desk.create").attributes or {})
    assert ran["gen_ai.operation.name"] == "execute_tool"
    assert ran["gen_ai.tool.name"] == "desk.create"
    assert ran["gen_ai.tool.call.id"] == "call_0"
    assert ran["fencepost.invocation_key"] == outcome["invocation_key"]


async def test_what_failed_is_marked_by_its_code_and_never_by_its_text(rig: Rig, spans: Spans) -> None:
    @tool("desk.refuse")
    async def refuse() -> None:
        raise ToolFailed("full", SECRET)

    @tool("desk.lose")
    async def lose() -> None:
        raise ConnectionResetError(SECRET)

    async with rig.worker(refuse, lose):
        rig.produce(rig.event(tool="desk.refuse"), rig.event(tool="desk.lose"), SECRET.encode())
        await rig.outcomes(2)
        await rig.dead_letters(1)
    marks = {
        span.name: (span.attributes or {})["error.type"]
        for span in spans.all()
        if span.status.status_code is StatusCode.ERROR
    }
    assert marks == {
        "execute_tool desk.refuse": "full",
        "execute_tool desk.lose": "unclear_error",
        f"process {rig.topics.dispatch}": "not_json",
    }
    assert SECRET not in "".join(span.to_json() for span in spans.all())


async def test_a_call_that_is_not_started_any_more_ends_its_span(rig: Rig, spans: Spans) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @tool("desk.wait")
    async def wait() -> None:
        entered.set()
        await go.wait()

    async with rig.worker(wait, concurrency=1) as worker:
        rig.produce(rig.event(tool="desk.wait"), rig.event(tool="desk.wait"), partition=0)
        await entered.wait()
        await rig.until(lambda: worker._engine.slots.waiting == 1)
        worker.stop()
        go.set()
    ends = sorted(str((span.attributes or {}).get("error.type")) for span in spans.all() if span.name[:7] == "process")
    assert ends == ["None", "not_started"]


async def test_a_line_continues_its_callers_trace(rig: Rig, spans: Spans) -> None:
    call = Dispatch(
        event_id="e",
        execution_id=rig.execution,
        node_id="n",
        call_index=0,
        generation=1,
        tool="desk.create",
        arguments={},
    )
    async with Line([create], rig.settings()) as line:
        with spans.provider.get_tracer("runner").start_as_current_span("turn"):
            await line.run(call)
    assert chain(spans.named("turn"), spans.named("execute_tool desk.create"))


async def test_without_an_sdk_no_span_is_made_and_a_records_trace_is_carried_on(rig: Rig) -> None:
    assert find_tracer() is None
    assert around_runs(None) is None
    assert passages(None, rig.settings()) is events.event
    async with rig.worker(create):
        rig.produce(rig.event(), headers=[("traceparent", THEIRS), ("tracestate", "a=b"), ("baggage", "c=d")])
        outcome = await carried(rig, rig.topics.outcome)
    assert (outcome["traceparent"], outcome["tracestate"]) == (THEIRS, "a=b")
    assert "baggage" not in outcome


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", None])
def test_headers_that_are_no_trace_begin_a_new_one(value: bytes | None) -> None:
    assert not trace.get_current_span(parent([("traceparent", value)])).get_span_context().is_valid
    assert not trace.get_current_span(parent([("traceparent", value)], remote=False)).get_span_context().is_valid


def test_a_trace_that_comes_in_goes_out_as_it_was() -> None:
    carried_in = (("traceparent", THEIRS.encode()), ("tracestate", b"a=b"))
    span = trace.get_current_span(parent(carried_in))
    assert headers(span) == carried_in
    assert headers() == ()
