"""What a tool's function takes: read once at registration, checked before every reservation."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from fencepost_dispatch.context import ToolInvocationContext

_MESSAGE_CHARACTERS = 500
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class ToolRefused(ValueError):
    """A tool, as declared, could not be run safely; the text is one line that names the tool and what to change."""


class InvalidArguments(ValueError):
    """The arguments do not fit the tool's signature; the text is one line that names the parameter."""


@dataclass(frozen=True, slots=True)
class Body:
    """A function to be called with named arguments. `parameters` is without the context's: they are the model's own."""

    function: Callable[..., Any]
    is_async: bool
    parameters: tuple[inspect.Parameter, ...]
    context_parameter: str | None
    context_position: int

    def filled(self, arguments: dict[str, Any], context: ToolInvocationContext | None) -> dict[str, Any]:
        """The arguments with the context under its parameter, where there is one."""
        return arguments if self.context_parameter is None else {**arguments, self.context_parameter: context}


def read_body(function: Callable[..., Any], scope: Mapping[str, Any]) -> Body:
    """Read a function's signature; `scope` holds the names its string annotations may use beside the module's.

    Raises:
        ToolRefused: for what named JSON arguments cannot call, or what would not run when called.
    """
    _refuse_what_is_not_one_call(function)
    hints = _hints(function, scope)
    everything = [p.replace(annotation=hints.get(p.name, Any)) for p in inspect.signature(function).parameters.values()]
    for parameter in everything:
        _refuse_unnamed(parameter)
    contexts = [(at, p.name) for at, p in enumerate(everything) if _is_context(p)]
    if len(contexts) > 1:
        raise ToolRefused(f"{contexts[1][1]!r}: one parameter annotated ToolInvocationContext is enough")
    position, name = contexts[0] if contexts else (0, None)
    parameters = tuple(p for p in everything if p.name != name)
    return Body(function, inspect.iscoroutinefunction(function), parameters, name, position)


def _refuse_what_is_not_one_call(function: Callable[..., Any]) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ToolRefused(f"{type(function).__name__} is not a function: wrap it in a `def` or an `async def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolRefused("a generator does nothing when it is called: return one value instead of `yield`")


def _hints(function: Callable[..., Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    # A type checker is content with the context imported under TYPE_CHECKING only, and so are we.
    names = {ToolInvocationContext.__name__: ToolInvocationContext, **getattr(function, "__globals__", {}), **scope}
    try:
        return typing.get_type_hints(function, localns=names, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ToolRefused(f"an annotation cannot be read ({error}): define or import the type above the tool") from None


def _refuse_unnamed(parameter: inspect.Parameter) -> None:
    if parameter.kind in _POSITIONAL:
        raise ToolRefused(f"{str(parameter).split(':')[0]!r}: arguments arrive by name; no positional-only, no *args")
    if parameter.name in {"self", "cls"}:
        raise ToolRefused(f"{parameter.name!r} would be an argument: decorate a function, or the bound method")


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if not _mentions_context(annotation):
        return False
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    alternatives = set(get_args(plain)) if get_origin(plain) in {Union, UnionType} else {plain}
    if alternatives <= {ToolInvocationContext, NoneType} and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
        return True
    raise ToolRefused(f"{parameter.name!r}: a context cannot come from arguments; annotate it ToolInvocationContext")


def _mentions_context(annotation: Any) -> bool:
    return annotation is ToolInvocationContext or any(_mentions_context(part) for part in get_args(annotation))


class Arguments:
    """One prebuilt pydantic validator for a body's named arguments, and their JSON schema."""

    __slots__ = ("_adapter", "_hidden")

    def __init__(self, body: Body) -> None:
        self._hidden = body.context_parameter
        try:
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(_collector(body))
        except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
            raise ToolRefused(f"a parameter's type cannot be read from JSON: {_one_line(str(error))}") from None

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments for the function: converted, defaults filled in, the context left out.

        Raises:
            InvalidArguments: and nothing else, whatever a parameter's own validators raise.
        """
        if self._hidden is not None and self._hidden in arguments:
            raise InvalidArguments(f"argument {self._hidden!r}: unexpected")
        try:
            return self._adapter.validate_python(arguments)
        except ValidationError as error:
            raise InvalidArguments(_describe(error)) from None
        except Exception as error:
            raise InvalidArguments(_one_line(f"a validator raised {type(error).__name__}: {error}")) from error

    def schema(self) -> dict[str, Any]:
        """JSON schema (2020-12) of the arguments object, as a model is shown it."""
        return self._adapter.json_schema()


def _collector(body: Body) -> Any:
    """A function with the body's signature that returns its arguments: pydantic validates a call, the tool waits."""

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    collect.__signature__ = inspect.Signature(list(body.parameters))  # type: ignore[attr-defined]
    collect.__annotations__ = {parameter.name: parameter.annotation for parameter in body.parameters}
    collect.__module__ = body.function.__module__
    return collect


def _describe(error: ValidationError) -> str:
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    path = ".".join(str(step) for step in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    return _one_line(f"argument {path!r}: {first['msg']}") + more


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"
