"""A record's way inside of a span: `process`, as a part of the trace that its headers carry, and a `send` in it.

The outcome carries the `process` span on, so that whoever hears it continues the orchestrator's trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from fencepost_dispatch.answers import Answer
from fencepost_dispatch.path import Paths
from fencepost_dispatch.settings import Settings
from fencepost_dispatch.tracing import failed, headers, messaging, parent
from fencepost_schemas import Decoded, Poison
from fencepost_worker.events import Bury, Done, Passage, Publish, event
from fencepost_worker.records import Record

MakePassage = Callable[[Record, Decoded | Poison, Paths], Passage]


def passages(tracer: Tracer | None, settings: Settings) -> MakePassage:
    """What makes the ways of records: plainly, or each inside of a span where somebody has set up an SDK."""
    return event if tracer is None else partial(_processed, tracer, settings)


def _processed(tracer: Tracer, settings: Settings, record: Record, decoded: Decoded | Poison, paths: Paths) -> Passage:
    context = parent(record.headers)
    attributes = _attributes(settings, record, decoded)
    span = tracer.start_span(f"process {record.topic}", context, SpanKind.CONSUMER, attributes)
    if isinstance(decoded, Decoded):
        decoded = replace(decoded, trace=headers(span))
    try:
        done = yield from _sent(tracer, settings, span, event(record, decoded, paths))
        _conclude(span, done)
        return done
    except GeneratorExit:
        failed(span, "not_started")  # its partition has gone, or the worker ends
        raise
    except Exception as error:
        failed(span, type(error).__name__)
        raise
    finally:
        span.end()


def _sent(tracer: Tracer, settings: Settings, span: Span, passage: Passage) -> Passage:
    """The passage, with each record that it publishes in a span of its own, from the order to the acknowledgement."""
    answer: Any = None
    try:
        while True:
            step = passage.send(answer)
            sending = _sending(tracer, settings, span, step)
            answer = yield step
            if sending is not None:
                if answer is not None:
                    failed(sending, "too_large")
                sending.end()
    except StopIteration as end:
        done: Done = end.value
        return done
    finally:
        passage.close()


def _sending(tracer: Tracer, settings: Settings, span: Span, step: Any) -> Span | None:
    match step:
        case Publish(outcome):
            topic = settings.outcome_topic
            attributes = messaging("send", topic, outcome.outcome_id, outcome.execution_id)
        case Bury():
            topic = settings.dead_letter_topic
            attributes = messaging("send", topic)
        case _:
            return None
    return tracer.start_span(f"send {topic}", set_span_in_context(span), SpanKind.PRODUCER, attributes)


def _attributes(settings: Settings, record: Record, decoded: Decoded | Poison) -> dict[str, Any]:
    ids = () if isinstance(decoded, Poison) else (decoded.event.event_id, decoded.event.execution_id)
    return messaging("process", record.topic, *ids) | {
        "messaging.consumer.group.name": settings.group_id,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
        "messaging.message.body.size": len(record.value or b""),
    }


def _conclude(span: Span, done: Done) -> None:
    match done:
        case Answer(outcome):
            span.set_attribute("fencepost.status", outcome.status.value)
            span.set_attribute("fencepost.executed", outcome.executed)
            span.set_attribute("fencepost.replayed", outcome.replayed)
        case Bury(code=code):
            failed(span, code)
        case _:
            pass
