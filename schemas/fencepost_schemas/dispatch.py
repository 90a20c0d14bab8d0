"""The events that ask: a dispatch (one tool call) and a fence (a raised generation).

Compatibility, of these events and of the outcome:

- A field may be added, optional, with a meaning for its absence that is today's. Readers ignore what they do not know.
- A name, a type, a limit and a meaning never change within ``.v1``; no required field is added, none removed.
- Statuses are a closed set; ``error.code`` is an open one: treat an unknown code as its status says.
- What enters a key or a digest (`fencepost_schemas.identity`) never changes: old calls must be known again.
- Anything else is a new type (``tool.dispatch.v2``), read beside the old one for as long as topics can replay it.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from fencepost_schemas.fields import (
    CallIndex,
    EventId,
    ForeignId,
    Generation,
    Instant,
    Metadata,
    OrgId,
    ScopeId,
    ToolName,
)

DISPATCH_TYPE: Final = "tool.dispatch.v1"
FENCE_TYPE: Final = "tool.fence.v1"


class Fence(BaseModel):
    """``tool.fence.v1``: raises the generation of a node; from then on no older call of it starts."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    event_id: EventId
    execution_id: ScopeId
    node_id: ScopeId
    generation: Generation


class Dispatch(BaseModel):
    """``tool.dispatch.v1``: run this tool with these arguments, once, as call ``call_index`` of the node's run.

    ``org_id`` is a claim, believed only when the execution's row says the same. ``deadline`` is the instant (kept in
    UTC) after which the call is not started. ``metadata`` is echoed on the outcome.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    event_id: EventId
    execution_id: ScopeId
    node_id: ScopeId
    call_index: CallIndex
    generation: Generation
    tool: ToolName
    arguments: dict[str, Any]
    tool_call_id: ForeignId | None = None
    session_key: ForeignId | None = None
    org_id: OrgId | None = None
    deadline: Instant | None = None
    metadata: Metadata = None
