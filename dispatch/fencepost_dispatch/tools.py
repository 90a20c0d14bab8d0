"""`@tool`: what a function declares so that it can be run once. What would be unsafe is refused here, at import."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from fencepost_dispatch.context import current_tool_invocation_context
from fencepost_dispatch.signature import Arguments, Body, ToolRefused, read_body

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

OnDivergence = Literal["refuse", "adopt", "execute"]

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MCP_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_DIVERGENCES: tuple[OnDivergence, ...] = ("refuse", "adopt", "execute")

# After these the effect may have happened: the request can be on its way, or there already.
_NEVER_DEFINITE = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, asyncio.CancelledError)


class Effect(StrEnum):
    """What running a tool twice would mean.

    protected: a second effect; run at most once. idempotent: nothing, because the tool hands `invocation_key` to a
    service that honours it; safe to run again. read_only: nothing, because it changes nothing; no ledger at all.
    """

    protected = "protected"
    idempotent = "idempotent"
    read_only = "read_only"


class ToolFailed(Exception):
    """Raised by a tool that knows that it did not act. `retryable`: another attempt may go better.

    `detail` is anything JSON can carry. A subclass may set the four as class attributes.
    """

    code: str = "tool_failed"
    message: str = ""
    retryable: bool = False
    detail: Any = None

    def __init__(self, code: str, message: str = "", *, retryable: bool = False, detail: Any = None) -> None:
        super().__init__(code, message)
        self.code, self.message, self.retryable, self.detail = code, message, retryable, detail

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class NotDone:
    """A probe's answer: the lost attempt did not act, so the call may start again. The class itself will do too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NotDone()"


@dataclass(eq=False, repr=False, kw_only=True)
class Tool(Generic[P, R]):
    """A declared tool. Calling it is calling its function, with no ledger in between; the worker goes by `body`.

    The fields are `tool()`'s own, see there; `timeout` is in seconds.
    """

    name: str
    body: Body
    arguments: Arguments
    effect: Effect
    timeout: float | None
    max_attempts: int
    definite_failures: tuple[type[BaseException], ...]
    http_method: str | None
    mcp_hints: Mapping[str, Any]
    idempotency_parameter: str | None
    override_classification: str | None
    on_divergence: OnDivergence | None
    probe_body: Body | None = None
    _schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.body.function, updated=())

    @property
    def function(self) -> Callable[..., Any]:
        """The function as it was written."""
        return self.body.function

    @property
    def probe_function(self) -> Callable[..., Any] | None:
        """What `@probe` decorated, if anything."""
        return self.probe_body.function if self.probe_body else None

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise in a thread."""
        return self.body.is_async

    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments object, as a model is shown it: no trace of the context. A copy of your own."""
        if self._schema is None:
            self._schema = self.arguments.schema()
        return copy.deepcopy(self._schema)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function: converted by pydantic (lax mode), defaults filled in, others refused.

        Raises:
            InvalidArguments: one line that names the parameter.
        """
        return self.arguments.validate(arguments)

    def probe(self, function: F) -> F:
        """Decorator: the function that says whether a lost attempt happened, given the same arguments.

        It returns what the tool would have returned, `NotDone`, or None when it cannot tell. Sync or async; with a
        timeout of the tool's own, or 30 seconds.

        Raises:
            ToolRefused: when it could not be called with the tool's arguments, or there is a probe already.
        """
        if self.probe_body is not None:
            raise ToolRefused(f"tool {self.name!r} has a probe already: {self.probe_body.function.__qualname__}")
        with _about(self.name + " (probe)"):
            body = read_body(function, _names_of_caller())
            _refuse_other_arguments(self.body, body)
        self.probe_body = body
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        hidden = self.body.context_parameter
        if hidden is not None and hidden not in kwargs and len(args) <= self.body.context_position:
            kwargs[hidden] = current_tool_invocation_context()
        result: R = self.body.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<Tool {self.name} {self.effect}>"


def tool(
    name: str,
    *,
    effect: Effect | Literal["protected", "idempotent", "read_only"] | None = None,
    timeout: float | None = None,
    max_attempts: int = 3,
    definite_failures: Iterable[type[BaseException]] = (),
    http_method: str | None = None,
    mcp_hints: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
    idempotency_parameter: str | None = None,
    override_classification: str | None = None,
    on_divergence: OnDivergence | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Declare a sync or async function as a tool. Without `effect` it is protected.

    Args:
        name: 1 to 128 of `A-Z a-z 0-9 _ . : / -`, the `tool` of a dispatch.
        effect: see `Effect`; `read_only` and `idempotent` are promises of yours.
        timeout: seconds. After it the outcome of a protected tool is unknown; a sync tool's thread runs on, and keeps
            its slot, until the function returns. An async tool is cancelled and waited for.
        max_attempts: how often the tool may start in all. A protected one starts again only after it did not act.
        definite_failures: exception types after which nothing has happened. A time-out or a lost connection is not one.
        http_method, mcp_hints, idempotency_parameter: what is known of the operation behind the tool: its HTTP method,
            its MCP annotations (`readOnlyHint`, `destructiveHint` …; a dict or the SDK's model), the parameter that
            carries an idempotency key. Held against `effect="read_only"`; none of them lowers the protection.
        override_classification: why `read_only` is right in spite of such evidence. Logged at start.
        on_divergence: `refuse`, `adopt` or `execute`, for this tool instead of the setting.

    Raises:
        ToolRefused: for a declaration that could not be run safely.
    """
    with _about(name):
        kind = _checked_effect(effect)
        definite = _checked_failures(definite_failures)
        hints = _checked_hints(dict(mcp_hints or ()))
        _refuse_policy(name, timeout, max_attempts, on_divergence)
        _refuse_empty(http_method=http_method, override_classification=override_classification)

    def declare(function: Callable[P, R]) -> Tool[P, R]:
        with _about(name):
            body = read_body(function, _names_of_caller())
            return Tool(
                name=name,
                body=body,
                arguments=Arguments(body),
                effect=kind,
                timeout=timeout,
                max_attempts=max_attempts,
                definite_failures=definite,
                http_method=http_method,
                mcp_hints=hints,
                idempotency_parameter=idempotency_parameter,
                override_classification=override_classification,
                on_divergence=on_divergence,
            )

    return declare


@contextmanager
def _about(name: object) -> Iterator[None]:
    try:
        yield
    except ToolRefused as refusal:
        raise ToolRefused(f"tool {name!r}: {refusal}") from None


def _names_of_caller() -> Mapping[str, Any]:
    """What the decorated function's annotations may name: the locals of where our caller was called from."""
    return sys._getframe(2).f_locals  # noqa: SLF001 - what typing itself reads


def _checked_effect(effect: str | None) -> Effect:
    if effect is None:
        return Effect.protected
    _refuse_other_than("effect", effect, [known.value for known in Effect])
    return Effect(effect)


def _checked_failures(failures: Any) -> tuple[type[BaseException], ...]:
    definite = (failures,) if isinstance(failures, type) else tuple(failures)
    for kind in definite:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ToolRefused(f"definite_failures: {kind!r} is not an exception type")
        covered = next((unclear for unclear in _NEVER_DEFINITE if issubclass(unclear, kind)), None)
        if covered is not None:
            also = "" if covered is kind else f" covers {covered.__name__}, and"
            raise ToolRefused(f"definite_failures: {kind.__name__}{also} after that the request may have arrived")
    return definite


def _checked_hints(hints: dict[str, Any]) -> dict[str, Any]:
    for name in _MCP_HINTS:
        if not isinstance(hints.get(name), bool | None):
            raise ToolRefused(f"mcp_hints[{name!r}]={hints[name]!r}: give True, False or None")
    return hints


def _refuse_policy(name: object, timeout: object, max_attempts: object, on_divergence: str | None) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolRefused('a name is 1 to 128 of A-Z a-z 0-9 _ . : / - as in @tool("jira.create_ticket")')
    seconds = timeout if isinstance(timeout, int | float) and not isinstance(timeout, bool) else math.nan
    if timeout is not None and not 0 < seconds < math.inf:
        raise ToolRefused(f"timeout={timeout!r}: give seconds above 0, or leave it out for none")
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
        raise ToolRefused(f"max_attempts={max_attempts!r}: give a whole number from 1")
    if on_divergence is not None:
        _refuse_other_than("on_divergence", on_divergence, _DIVERGENCES)


def _refuse_empty(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise ToolRefused(f"{name} is empty: leave it out, or fill it in")


def _refuse_other_than(name: str, value: str, known: Sequence[str]) -> None:
    if value in known:
        return
    near = get_close_matches(str(value), known, n=1)
    cure = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
    raise ToolRefused(f"{name}={value!r} is not known: {cure}")


def _refuse_other_arguments(tool: Body, probe: Body) -> None:
    """A probe is given the tool's arguments by name: it must take each of them and need no other."""
    ours = {parameter.name for parameter in tool.parameters}
    named = {p.name for p in probe.parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    missing = ours - named if len(named) == len(probe.parameters) else set()
    needed = {p.name for p in probe.parameters if p.name in named - ours and p.default is inspect.Parameter.empty}
    if missing or needed:
        raise ToolRefused(f"it is called with the tool's arguments, so mind {', '.join(sorted(missing | needed))}")
