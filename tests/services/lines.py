"""A line as tests see it: dispatches in a word, and tools that say when they run and wait to be let go."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from fencepost_dispatch import Line, Settings, Tool, ToolInvocationContext, current_tool_invocation_context, tool
from fencepost_schemas import Dispatch, Outcome
from services.holder import EXECUTION, NODE, ORG

MAIL = "mail.send"


def line(dsn: str, *tools: Tool[..., Any], **settings: Any) -> Line:
    defaults: dict[str, Any] = {"default_org": ORG, "wait_seconds": 5.0, "drain_seconds": 5.0, "concurrency": 16}
    return Line(tools, Settings.load(ledger_dsn=dsn, **defaults | settings))


def ask(name: str, arguments: dict[str, Any] | None = None, event_id: str = "e1", **more: Any) -> Dispatch:
    """A dispatch: position 0 of one node, generation 1, unless `more` says otherwise."""
    where = {"execution_id": EXECUTION, "node_id": NODE, "call_index": 0, "generation": 1}
    fields = where | {"event_id": event_id, "tool": name, "arguments": arguments or {}} | more
    return Dispatch.model_validate(fields)


def said(outcome: Outcome) -> tuple[str, bool, bool, bool]:
    return outcome.status.value, outcome.executed, outcome.replayed, outcome.retryable


def code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


class Gate:
    """A tool that runs until `let_go`; `entered` is set by its first run, `runs` counts them by key."""

    def __init__(self, name: str = MAIL, result: Any = "done", **policy: Any) -> None:
        self.entered, self.cancelled = asyncio.Event(), asyncio.Event()
        self.runs: Counter[str | None] = Counter()
        self.contexts: list[ToolInvocationContext] = []
        self._open = asyncio.Event()
        self.tool: Tool[..., Any] = tool(name, **policy)(self._run)
        self._result = result

    async def _run(self, **arguments: Any) -> Any:
        context = current_tool_invocation_context()
        assert context is not None
        self.contexts.append(context)
        self.runs[context.invocation_key] += 1
        self.entered.set()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._result

    def let_go(self) -> None:
        self._open.set()

    @property
    def name(self) -> str:
        return self.tool.name
