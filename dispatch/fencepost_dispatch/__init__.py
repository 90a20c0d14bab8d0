"""What tool authors, orchestrators and outcome subscribers import.

What talks to Kafka or Postgres is imported when it is first asked for: a module of tools needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencepost_dispatch.context import ToolInvocationContext, bind_tool_invocation, current_tool_invocation_context
from fencepost_dispatch.event import InvalidDispatch
from fencepost_dispatch.registry import (
    Blocked,
    ClassificationBlocked,
    DuplicateTool,
    Registry,
    ToolsNotLoaded,
)
from fencepost_dispatch.signature import InvalidArguments, ToolRefused
from fencepost_dispatch.tools import Effect, NotDone, Tool, ToolFailed, tool

if TYPE_CHECKING:
    from fencepost_dispatch.client import Dispatched, Dispatcher
    from fencepost_dispatch.kafka import KafkaUnavailable, MissingTopic
    from fencepost_dispatch.line import Line
    from fencepost_dispatch.outcomes import Outcomes
    from fencepost_dispatch.sender import NotAcknowledged
    from fencepost_dispatch.settings import Settings, SettingsError

__all__ = [
    "Blocked",
    "ClassificationBlocked",
    "Dispatched",
    "Dispatcher",
    "DuplicateTool",
    "Effect",
    "InvalidArguments",
    "InvalidDispatch",
    "KafkaUnavailable",
    "Line",
    "MissingTopic",
    "NotAcknowledged",
    "NotDone",
    "Outcomes",
    "Registry",
    "Settings",
    "SettingsError",
    "Tool",
    "ToolFailed",
    "ToolInvocationContext",
    "ToolRefused",
    "ToolsNotLoaded",
    "bind_tool_invocation",
    "current_tool_invocation_context",
    "tool",
]

_LATER = {
    "Dispatched": "client",
    "Dispatcher": "client",
    "KafkaUnavailable": "kafka",
    "Line": "line",
    "MissingTopic": "kafka",
    "NotAcknowledged": "sender",
    "Outcomes": "outcomes",
    "Settings": "settings",
    "SettingsError": "settings",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
