"""Logs: one line each on stderr, JSON or for people; secrets are taken out, arguments and results never get in.

Everything goes through the standard library's logging, so that other libraries' lines look the same; names begin with
`fencepost`. What is logged inside of a call carries the call's ids, a tool's own lines included.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from fencepost_dispatch.context import current_tool_invocation_context

# What a call carries is its owner's business: never above debug.
_PAYLOAD = frozenset({"arguments", "result", "detail", "value", "payload"})
_SECRET_NAME = re.compile(r"password|passphrase|secret|token|dsn$", re.IGNORECASE)
_HEAD = ("timestamp", "level", "logger", "event")
_IDS = ("event_id", "execution", "node", "attempt")
HIDDEN = "***"

Redact = Callable[[str], str]


def set_up_logs(form: Literal["json", "console"], redact: Redact, *, debug: bool = False) -> None:
    """Configure logging for this process. `redact` takes secrets out of a text; `debug` shows debug lines too."""
    level = logging.DEBUG if debug else logging.INFO
    shared = _shared(redact, debug)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(form)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("fencepost").setLevel(level)
    for package in ("schemas", "ledger", "dispatch", "worker"):
        logging.getLogger(f"fencepost_{package}").setLevel(level)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _shared(redact: Redact, debug: bool) -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(_IDS),
        _call_ids,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,  # as text: a traceback with local variables would show arguments
        _Hider(redact, payloads=debug),
    ]


def _last(form: Literal["json", "console"]) -> list[Processor]:
    match form:
        case "json":
            return [_event_first, structlog.processors.JSONRenderer()]
        case "console":
            return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _call_ids(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    call = current_tool_invocation_context()
    if call is not None:
        ids = zip(_IDS, (call.event_id, call.execution_id, call.node_id, call.attempt), strict=True)
        return {**{name: value for name, value in ids if value is not None}, **event}
    return event


def _event_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    head: dict[str, Any] = {
        name: event.pop(name) for name in ("timestamp", "level", "logger", "event") if name in event
    }
    return {**head, **event}


class _Hider:
    """Takes out what must not be read: secrets by their name and by their text, and what a call carries."""

    def __init__(self, redact: Redact, *, payloads: bool) -> None:
        self._redact = redact
        self._payloads = payloads

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {name: self._shown(name, value) for name, value in event.items()}

    def _shown(self, name: str, value: Any) -> Any:
        if name.startswith("_") or value is None:
            return value
        if _SECRET_NAME.search(name) or (name in _PAYLOAD and not self._payloads):
            return HIDDEN
        match value:
            case str():
                return self._redact(value)
            case dict():
                return {key: self._shown(str(key), item) for key, item in value.items()}
            case list() | tuple():
                return [self._shown(name, item) for item in value]
            case bool() | int() | float():
                return value
            case _:
                return self._redact(str(value))
