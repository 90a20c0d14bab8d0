"""Spans, by the OpenTelemetry API alone: whoever sets up an SDK gets them, and nobody else pays for them.

Names and attributes are those of the semantic conventions for messaging (`send` and `process`, Kafka) and for
generative AI (`execute_tool`). A trace travels in W3C headers, whatever propagators are configured: they are part of
the contract. Arguments, results and texts of errors are never in a span.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fencepost_dispatch.execute import Ended
from fencepost_dispatch.path import Run
from fencepost_schemas import Dispatch, Fence

Trace = tuple[tuple[str, bytes], ...]
Enter = Callable[[Run], Coroutine[Any, Any, Ended]]

_W3C = TraceContextTextMapPropagator()
_HEADERS = ("traceparent", "tracestate")
# The text of an exception may show what a call carries.
_SILENT: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}


def find_tracer() -> Tracer | None:
    """Ours, from the SDK that was set up before now; None when there is none, and then no span must be made."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("fencepost")


def headers(span: Span | None = None) -> Trace:
    """The W3C headers that carry on this span, or the current one; none where there is no trace."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, None if span is None else trace.set_span_in_context(span))
    return tuple((name, carrier[name].encode()) for name in _HEADERS if carrier.get(name))


def parent(carried: Sequence[tuple[str, bytes | None]] | None, *, remote: bool = True) -> Context:
    """The context of these W3C headers, for a span's `context=`: a new trace where there are none, or no valid ones."""
    carrier = {name: text.decode(errors="replace") for name, text in carried or () if name in _HEADERS and text}
    context = _W3C.extract(carrier, Context())
    if remote:
        return context
    found = trace.get_current_span(context).get_span_context()
    here = SpanContext(found.trace_id, found.span_id, False, found.trace_flags, found.trace_state)
    return trace.set_span_in_context(NonRecordingSpan(here), Context())


def messaging(
    operation: str, topic: str, message_id: str | None = None, execution_id: str | None = None
) -> dict[str, Any]:
    """The attributes of `send` and `process` spans."""
    known = {
        "messaging.system": "kafka",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.message.id": message_id,
        "messaging.message.conversation_id": execution_id,
    }
    return _without_none(known)


def failed(span: Span, error_type: str) -> None:
    """Mark the span as failed."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


@contextmanager
def sending(tracer: Tracer | None, topic: str, event: Dispatch | Fence) -> Iterator[Trace]:
    """Around the sending of an event → the headers it carries: those of a `send` span, or of the caller's own."""
    if tracer is None:
        yield headers()
        return
    attributes = messaging("send", topic, event.event_id, event.execution_id)
    name = f"send {topic}"
    with tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes, **_SILENT) as span:
        try:
            yield headers(span)
        except Exception as error:
            failed(span, type(error).__name__)
            raise


def around_runs(tracer: Tracer | None) -> Callable[[Enter], Enter] | None:
    """For an engine: each run of a tool in a span, which is current while the tool runs."""
    return None if tracer is None else partial(_around, tracer)


def _around(tracer: Tracer, enter: Enter) -> Enter:
    async def within(run: Run) -> Ended:
        name, context = f"execute_tool {run.tool.name}", parent(run.trace, remote=False)
        with tracer.start_as_current_span(name, context, attributes=_tool(run), **_SILENT) as span:
            ended = await enter(run)
            if ended.state != "completed":
                failed(span, ended.state if ended.error is None else ended.error.code)
            return ended

    return within


def _tool(run: Run) -> dict[str, Any]:
    call = run.context
    known = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": run.tool.name,
        "gen_ai.tool.call.id": call.tool_call_id,
        "fencepost.execution_id": call.execution_id,
        "fencepost.node_id": call.node_id,
        "fencepost.call_index": call.call_index,
        "fencepost.generation": call.generation,
        "fencepost.attempt": call.attempt,
        "fencepost.event_id": call.event_id,
        "fencepost.invocation_key": call.invocation_key,
    }
    return _without_none(known)


def _without_none(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
