"""What a tool returned, as the JSON text that is recorded and replayed.

JSON values stay exactly what they are. Beside them: tuples, sets, deques and named tuples are arrays, mappings
objects, enum members their values, dataclasses objects of their fields, and everything else is what
`pydantic_core.to_jsonable_python` makes of it: models as their types say, datetimes ISO 8601, timedeltas ISO 8601
durations, UUIDs, paths, URLs and Decimals text, bytes text when they are UTF-8. Refused, because reading it back
would give something else or nothing: NaN and the infinities, keys that are not strings, iterators, nesting beyond
`MAX_DEPTH`, and what pydantic does not know.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic_core import to_jsonable_python

from fencepost_schemas import MAX_DEPTH, Refused, dumps

_EXACT = frozenset({str, int, float, bool, type(None)})


def result_text(value: Any) -> str:
    """ASCII JSON text of a result.

    Raises:
        Refused: with the path of what JSON cannot say.
        Exception: whatever a model's own serializer raises.
    """
    return dumps(plain(value))


def plain(value: Any, depth: int = 0) -> Any:
    """The value made of dict, list, str, int, float, bool and None alone. Raises as `result_text` does."""
    if type(value) in _EXACT:
        return value
    match value:
        case dict() | Mapping():  # dict first: the quick way to most answers
            inside = _opened(depth)
            return {_name(key): _member(key, member, inside) for key, member in value.items()}
        case list() | tuple() | set() | frozenset() | deque():
            inside = _opened(depth)
            return [_member(index, member, inside) for index, member in enumerate(value)]
        case Enum():
            return plain(value.value, depth)
        case str() | int() | float():
            return value
        case Iterator():
            raise Refused("$", f"a {type(value).__name__} is not a value: return a list")
        case _ if dataclasses.is_dataclass(value) and not hasattr(value, "__pydantic_serializer__"):
            inside = _opened(depth)
            return {f.name: _member(f.name, getattr(value, f.name), inside) for f in dataclasses.fields(value)}
        case _:
            # Once more through here: pydantic lets NaN pass.
            return plain(to_jsonable_python(value), depth)


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    raise Refused("$", f"a key is {type(key).__name__}, not a string")


def _opened(depth: int) -> int:
    if depth == MAX_DEPTH:
        raise Refused("$", f"nested deeper than {MAX_DEPTH}")
    return depth + 1


def _member(step: str | int, value: Any, depth: int) -> Any:
    if type(value) in _EXACT:
        return value
    try:
        return plain(value, depth)
    except Refused as fault:
        raise fault.inside(step) from None
