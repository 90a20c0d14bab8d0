"""What a tool may know of the call it runs in: bound while it runs, and not a moment longer.

A task or thread that a tool starts and leaves behind keeps the binding it was started with (PEP 567: a copy).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token
from dataclasses import dataclass
from datetime import datetime

from fencepost_schemas import session_invocation_key


@dataclass(frozen=True, slots=True)
class ToolInvocationContext:
    """One call as its tool sees it. Nothing of it is in the tool's schema or among its arguments.

    `invocation_key` (64 hex) is the same for every attempt of one call: hand it downstream as the idempotency key.
    `deadline` (aware) is when the call would no longer have been started; `attempt` counts from 1.
    """

    tool_call_id: str
    invocation_key: str | None = None
    org_id: str | None = None
    execution_id: str | None = None
    node_id: str | None = None
    call_index: int | None = None
    generation: int | None = None
    attempt: int | None = None
    event_id: str | None = None
    deadline: datetime | None = None


_current: ContextVar[ToolInvocationContext | None] = ContextVar("fencepost_tool_invocation", default=None)


def current_tool_invocation_context() -> ToolInvocationContext | None:
    """The call that is running here; None outside a tool call."""
    return _current.get()


def bound_in(context: Context) -> ToolInvocationContext | None:
    """The call that is bound in another task's context, or None."""
    return context.get(_current)


def bind(context: ToolInvocationContext) -> Token[ToolInvocationContext | None]:
    """Bind until `unbind` is given the token: the fast form of `bind_tool_invocation`, for the worker."""
    return _current.set(context)


def unbind(token: Token[ToolInvocationContext | None]) -> None:
    """Restore what was bound before."""
    _current.reset(token)


@contextmanager
def bind_tool_invocation(tool_call_id: str, session_key: str | None = None) -> Iterator[ToolInvocationContext]:
    """Bind a call for hosts without Kafka, such as an agent runner: `with bind_tool_invocation("call_0", "chat-7"):`.

    `invocation_key` comes from both ids. Without a session key (None or empty) it is None: providers repeat ids
    such as `call_0` every turn, so an id alone identifies nothing.

    Raises:
        ValueError: for an empty `tool_call_id`.
    """
    if not tool_call_id:
        raise ValueError("tool_call_id is empty: pass the model provider's id of this call")
    key = session_invocation_key(session_key, tool_call_id) if session_key else None
    context = ToolInvocationContext(tool_call_id=tool_call_id, invocation_key=key)
    token = bind(context)
    try:
        yield context
    finally:
        unbind(token)
