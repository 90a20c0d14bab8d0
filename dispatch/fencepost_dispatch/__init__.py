"""What tool authors, orchestrators and outcome subscribers import."""

from fencepost_dispatch.context import ToolInvocationContext, bind_tool_invocation, current_tool_invocation_context
from fencepost_dispatch.registry import (
    Blocked,
    ClassificationBlocked,
    DuplicateTool,
    Registry,
    ToolsNotLoaded,
)
from fencepost_dispatch.signature import InvalidArguments, ToolRefused
from fencepost_dispatch.tools import Effect, NotDone, Tool, ToolFailed, tool

__all__ = [
    "Blocked",
    "ClassificationBlocked",
    "DuplicateTool",
    "Effect",
    "InvalidArguments",
    "NotDone",
    "Registry",
    "Tool",
    "ToolFailed",
    "ToolInvocationContext",
    "ToolRefused",
    "ToolsNotLoaded",
    "bind_tool_invocation",
    "current_tool_invocation_context",
    "tool",
]
