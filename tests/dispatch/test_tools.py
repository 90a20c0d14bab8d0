from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sys
import textwrap
import threading
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field

from fencepost_dispatch import (
    ClassificationBlocked,
    DuplicateTool,
    Effect,
    InvalidArguments,
    NotDone,
    Registry,
    Tool,
    ToolFailed,
    ToolInvocationContext,
    ToolRefused,
    ToolsNotLoaded,
    bind_tool_invocation,
    tool,
)


class Item(BaseModel):
    sku: str
    count: int = 1


def declare(**policy: Any) -> Tool[..., Any]:
    @tool("t", **policy)
    def function(query: str) -> str:
        return query

    return function


def refusal(function: Any, **policy: Any) -> str:
    with pytest.raises(ToolRefused) as caught:
        tool("t", **policy)(function)
    assert str(caught.value).startswith("tool 't': ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Declaration


def test_a_tool_without_an_effect_is_protected():
    assert declare().effect is Effect.protected


@pytest.mark.parametrize("effect", list(Effect))
def test_an_effect_is_given_by_its_name_or_its_member(effect: Effect):
    assert declare(effect=effect.value).effect is declare(effect=effect).effect is effect


@pytest.mark.parametrize("name", ["t", "a" * 128, "jira.create_ticket", "a/b:c-D_9.z"])
def test_a_name_of_the_contract_is_taken(name: str):
    assert tool(name)(lambda: None).name == name


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a\n", "é", "a,b", "a\x00", 7, None])
def test_any_other_name_is_refused(name: Any):
    with pytest.raises(ToolRefused, match="a name is 1 to 128 of"):
        tool(name)


@pytest.mark.parametrize("timeout", [0, -1, 0.0, float("nan"), float("inf"), True, "30"])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any):
    with pytest.raises(ToolRefused, match="give seconds above 0"):
        declare(timeout=timeout)


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5, "3", None])
def test_fewer_than_one_attempt_is_refused(attempts: Any):
    with pytest.raises(ToolRefused, match="give a whole number from 1"):
        declare(max_attempts=attempts)


def test_an_unknown_effect_is_refused_with_the_nearest():
    with pytest.raises(ToolRefused, match="did you mean 'read_only'"):
        declare(effect="readonly")
    with pytest.raises(ToolRefused, match="choose one of protected, idempotent, read_only"):
        declare(effect="xyz")


def test_an_unknown_answer_to_divergence_is_refused_with_the_nearest():
    assert declare(on_divergence="adopt").on_divergence == "adopt"
    with pytest.raises(ToolRefused, match="did you mean 'adopt'"):
        declare(on_divergence="adapt")


@pytest.mark.parametrize(
    "failures",
    [Exception, BaseException, OSError, ConnectionError, ConnectionResetError, TimeoutError, asyncio.CancelledError],
)
def test_a_lost_connection_or_a_timeout_is_never_a_definite_failure(failures: Any):
    with pytest.raises(ToolRefused, match="after that the request may have arrived"):
        declare(definite_failures=(ValueError, failures))


def test_definite_failures_are_exception_types():
    assert declare(definite_failures=ValueError).definite_failures == (ValueError,)
    assert declare(definite_failures=[ConnectionRefusedError]).definite_failures == (ConnectionRefusedError,)
    with pytest.raises(ToolRefused, match="'ValueError' is not an exception type"):
        declare(definite_failures=["ValueError"])


@pytest.mark.parametrize("name", ["http_method", "override_classification"])
def test_an_empty_reason_is_refused(name: str):
    with pytest.raises(ToolRefused, match=f"{name} is empty"):
        declare(**{name: " "})


def test_an_mcp_hint_is_true_false_or_none():
    with pytest.raises(ToolRefused, match="readOnlyHint"):
        declare(mcp_hints={"readOnlyHint": "false"})


def test_what_would_not_run_when_called_is_refused():
    def generator() -> Any:
        yield 1

    async def async_generator() -> Any:
        yield 1

    assert "return one value" in refusal(generator)
    assert "return one value" in refusal(async_generator)
    assert "is not a function" in refusal(functools.partial(print, "x"))
    assert "is not a function" in refusal(Item)


def test_parameters_without_a_name_are_refused():
    def positional(a: int, /) -> None: ...
    def variable(*parts: int) -> None: ...
    def method(self: Any, a: int) -> None: ...

    assert "'a': arguments arrive by name" in refusal(positional)
    assert "'*parts': arguments arrive by name" in refusal(variable)
    assert "bound method" in refusal(method)


def test_an_annotation_that_json_cannot_fill_is_refused():
    def typed(a: threading.Lock) -> None: ...
    def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert "a parameter's type cannot be read from JSON" in refusal(typed)
    assert "define or import the type above the tool" in refusal(unknown)


# The function stays a function


def test_calling_a_tool_is_calling_its_function():
    @tool("t")
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert double(21) == double(number=21) == 42
    assert (double.__name__, double.__doc__, double.is_async) == ("double", "Twice.", False)
    assert list(inspect.signature(double).parameters) == ["number"]
    assert repr(double) == "<Tool t protected>"


async def test_an_async_tool_is_awaited_like_its_function():
    @tool("t")
    async def double(number: int) -> int:
        return 2 * number

    assert await double(21) == 42
    assert double.is_async


def test_a_bound_method_can_be_a_tool():
    class Desk:
        def look(self, number: int) -> int:
            return number

    assert tool("t")(Desk().look)(3) == 3


def test_tool_failed_carries_what_the_tool_said():
    said = ToolFailed("bad_request", "no such project", retryable=True, detail={"status": 400})
    assert (said.code, said.message, said.retryable, said.detail) == (
        "bad_request",
        "no such project",
        True,
        {"status": 400},
    )
    assert str(said) == "bad_request: no such project"
    assert str(ToolFailed("gone")) == "gone"


# Arguments


def test_arguments_are_converted_and_defaults_filled_in():
    @tool("t")
    def function(
        when: datetime, item: Item, ids: list[UUID], note: str | None = None, count: int = Field(3, ge=1)
    ) -> None: ...

    named = function.validate({"when": "2026-01-02T03:04:05Z", "item": {"sku": "a"}, "ids": ["0" * 32]})
    assert named["item"] == Item(sku="a", count=1)
    assert named["ids"] == [UUID(int=0)]
    assert (named["when"].year, named["note"], named["count"]) == (2026, None, 3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "argument 'query': Missing required argument"),
        ({"query": 1}, "argument 'query': Input should be a valid string"),
        ({"query": "a", "limit": 0}, "argument 'limit': Input should be greater than or equal to 1"),
        ({"query": "a", "items": [{"sku": "b"}, {}]}, "argument 'items.1.sku': Field required"),
        ({"query": "a", "qurey": "b"}, "argument 'qurey': Unexpected keyword argument"),
        ({"limit": 0}, "argument 'query': Missing required argument (and 1 more)"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(arguments: dict[str, Any], message: str):
    @tool("t")
    def function(query: str, limit: Annotated[int, Field(ge=1)] = 5, items: list[Item] | None = None) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        function.validate(arguments)
    assert str(caught.value) == message


def test_a_refusal_is_one_short_line_whatever_a_validator_says():
    def angry(value: str) -> str:
        raise ValueError("no\n" * 1000)

    def broken(value: str) -> str:
        raise RuntimeError("a\nb")

    @tool("t")
    def function(
        a: Annotated[str, AfterValidator(angry)] = "", b: Annotated[str, AfterValidator(broken)] = ""
    ) -> None: ...

    for name in "ab":
        with pytest.raises(InvalidArguments) as caught:
            function.validate({name: "x"})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) <= 500
    assert "RuntimeError: a b" in str(caught.value)


def test_further_arguments_are_taken_only_by_a_function_that_takes_them():
    @tool("t")
    def function(query: str, **more: int) -> None: ...

    assert function.validate({"query": "a", "x": "1"}) == {"query": "a", "x": 1}
    with pytest.raises(InvalidArguments, match="'x'"):
        function.validate({"query": "a", "x": "b"})


@pytest.mark.parametrize("name", ["schema", "json", "copy", "model_config", "_private", "kwargs", "arguments"])
def test_a_parameter_may_have_any_name(name: str):
    scope: dict[str, Any] = {}
    exec(f"def function({name}: int) -> int: return {name}", scope)
    declared = tool("t")(scope["function"])
    assert declared.validate({name: "7"}) == {name: 7}
    assert list(declared.schema()["properties"]) == [name]


def test_the_schema_is_a_json_schema_of_the_arguments():
    schema = declare().schema()
    assert schema == {
        "type": "object",
        "properties": {"query": {"type": "string", "title": "Query"}},
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_changed_schema_is_the_callers_own():
    declared = declare()
    declared.schema()["properties"].clear()
    assert declared.schema()["properties"]


# The context


def without(query: str, limit: int = 5) -> None: ...
def plain(query: str, context: ToolInvocationContext, limit: int = 5) -> None: ...
def optional(query: str, limit: int = 5, context: ToolInvocationContext | None = None) -> None: ...
def old_optional(query: str, limit: int = 5, context: Optional[ToolInvocationContext] = None) -> None: ...  # noqa: UP045
def text(query: str, context: "ToolInvocationContext", limit: int = 5) -> None: ...  # noqa: UP037
def keyword(query: str, limit: int = 5, *, context: ToolInvocationContext) -> None: ...
def annotated(context: Annotated[ToolInvocationContext, "mine"], query: str, limit: int = 5) -> None: ...


@pytest.mark.parametrize("function", [plain, optional, old_optional, text, keyword, annotated])
def test_a_context_parameter_leaves_no_trace_in_schema_and_arguments(function: Any):
    declared = tool("t")(function)
    assert json.dumps(declared.schema()) == json.dumps(tool("t")(without).schema())
    assert declared.validate({"query": "a"}) == {"query": "a", "limit": 5}
    assert declared.body.context_parameter == "context"


@pytest.mark.parametrize("function", [plain, optional, keyword])
def test_arguments_cannot_forge_a_context(function: Any):
    with pytest.raises(InvalidArguments, match="'context'"):
        tool("t")(function).validate({"query": "a", "context": {"tool_call_id": "x"}})


def test_further_arguments_cannot_forge_a_context():
    @tool("t")
    def function(context: ToolInvocationContext, **more: Any) -> None: ...

    with pytest.raises(InvalidArguments, match="'context'"):
        function.validate({"context": {"tool_call_id": "x"}})


def test_a_context_imported_for_type_checkers_alone_is_understood():
    source = "def function(query: str, context: 'ToolInvocationContext'): ..."
    scope: dict[str, Any] = {}
    exec(source, scope)
    assert tool("t")(scope["function"]).body.context_parameter == "context"


def test_a_context_inside_another_type_is_refused():
    def union(context: ToolInvocationContext | str) -> None: ...
    def many(contexts: list[ToolInvocationContext]) -> None: ...
    def further(**contexts: ToolInvocationContext) -> None: ...
    def two(one: ToolInvocationContext, other: ToolInvocationContext) -> None: ...

    for function in (union, many, further):
        assert "a context cannot come from arguments" in refusal(function)
    assert "one parameter annotated" in refusal(two)


def test_called_as_a_function_a_tool_fills_in_the_context_that_is_bound():
    @tool("t")
    def function(query: str, context: ToolInvocationContext | None) -> Any:
        return context

    assert function("a") is None  # type: ignore[call-arg]
    with bind_tool_invocation("call_0") as bound:
        assert function(query="a") is bound  # type: ignore[call-arg]
        given = ToolInvocationContext("mine")
        assert function("a", given) is function("a", context=given) is given


# The probe


def some_and_more(project: str, **more: Any) -> None: ...
def with_default(project: str, title: str, strict: bool = False) -> None: ...
def any_arguments(**arguments: Any) -> None: ...
def too_few(project: str) -> None: ...
def too_many(project: str, title: str, extra: str) -> None: ...
def unnamed(*args: str) -> None: ...
def of_query(query: str) -> None: ...


def test_a_probe_stays_a_function():
    @tool("t")
    def act(project: str, title: str) -> dict[str, str]:
        return {}

    @act.probe
    def find(project: str, title: str) -> dict[str, str] | NotDone | None:
        return None

    assert find("a", "b") is None
    assert act.probe_function is find


@pytest.mark.parametrize(
    "probe",
    [
        some_and_more,
        with_default,
        any_arguments,
    ],
)
def test_a_probe_may_take_the_arguments_in_its_own_way(probe: Any):
    @tool("t")
    def act(project: str, title: str) -> None: ...

    act.probe(probe)
    assert act.probe_function is probe


@pytest.mark.parametrize(
    "probe, name",
    [(too_few, "title"), (too_many, "extra"), (unnamed, "args")],
)
def test_a_probe_that_cannot_be_called_with_the_tools_arguments_is_refused(probe: Any, name: str):
    @tool("t")
    def act(project: str, title: str) -> None: ...

    with pytest.raises(ToolRefused, match=rf"tool 't \(probe\)'.*{name}"):
        act.probe(probe)
    assert act.probe_function is None


def test_a_second_probe_is_refused():
    declared = declare()
    declared.probe(of_query)
    with pytest.raises(ToolRefused, match="has a probe already"):
        declared.probe(of_query)


# The registry


def test_an_unknown_name_is_none_and_a_known_one_its_tool():
    registry, declared = Registry(), declare()
    registry.add(declared)
    assert registry.get("t") is declared
    assert registry.get("other") is None
    assert registry.names() == ["t"]


def test_two_tools_of_one_name_are_refused_and_one_tool_twice_is_not():
    registry, declared = Registry(), declare()
    registry.add(declared)
    registry.add(declared)
    with pytest.raises(DuplicateTool, match="tool 't' is declared twice"):
        registry.add(declare())
    assert registry.get("t") is declared


def test_two_tools_of_one_name_are_refused_even_when_the_first_is_blocked():
    registry = Registry(strict=True)
    with pytest.raises(ClassificationBlocked):
        registry.add(declare(effect="read_only", http_method="POST"))
    with pytest.raises(DuplicateTool):
        registry.add(declare())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module and names it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> str:
        tmp_path.joinpath(f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_loading_a_module_adds_each_of_its_tools_once(module: Any):
    name = module(
        "fencepost_tools_good",
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from fencepost_dispatch import tool
        if TYPE_CHECKING:
            from fencepost_dispatch import ToolInvocationContext

        @tool("jira.create_ticket")
        async def create(title: str, context: ToolInvocationContext): ...

        again = create

        @tool("jira.search", effect="read_only")
        def search(query: str): ...

        @tool("jira.delete", effect="read_only")
        def delete(query: str): ...
        """,
    )
    registry = Registry(strict=True)
    assert [found.name for found in registry.load(name)] == ["jira.create_ticket", "jira.search"]
    registry.load(name)
    assert registry.names() == ["jira.create_ticket", "jira.search"]
    assert [blocked.tool.name for blocked in registry.blocked()] == ["jira.delete"]


@pytest.mark.parametrize(
    "source, cure",
    [
        ("import fencepost_nowhere", "needs 'fencepost_nowhere', which is not installed here: install it"),
        ("x = 1", 'has no tool: decorate a function in it with @tool("name")'),
        ("def (", "SyntaxError"),
        ("raise ValueError('first\\nsecond')", "ValueError: first second"),
        ("raise SystemExit('stop')", "SystemExit: stop"),
        ("from fencepost_dispatch import tool\n@tool('t', timeout=0)\ndef f(): ...", "timeout=0: give seconds above 0"),
    ],
)
def test_a_module_that_cannot_be_used_is_one_line_with_a_cure(module: Any, source: str, cure: str):
    name = module("fencepost_tools_bad", source)
    with pytest.raises(ToolsNotLoaded) as caught:
        Registry().load(name)
    assert cure in str(caught.value)
    assert "\n" not in str(caught.value)
    assert f"module {name!r}" in str(caught.value)


@pytest.mark.parametrize(
    "name, cure",
    [
        ("fencepost_nowhere.tools", "put that on PYTHONPATH"),
        ("tools/jira.py", "give its dotted name"),
        ("", "could not be imported"),
        (".jira", "could not be imported"),
    ],
)
def test_a_module_that_is_not_there_is_one_line_with_a_cure(name: str, cure: str):
    with pytest.raises(ToolsNotLoaded, match=cure):
        Registry().load(name)


if TYPE_CHECKING:  # what a type checker sees: the function's own types
    from typing import assert_type

    @tool("typed")
    async def typed(number: int, *, note: str = "") -> list[int]:
        return [number]

    async def check() -> None:
        assert_type(await typed(1, note="x"), list[int])
