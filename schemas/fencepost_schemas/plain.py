"""Plain JSON with full fidelity: what is recorded and sent as it is, not reduced to its canonical form.

The standard library's JSON (a tuple is an array, a number as a key becomes text), except that integers keep their
digits beyond Python's conversion limit and that NaN, Infinity and duplicate keys do not pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from fencepost_schemas.canonical import read
from fencepost_schemas.numerals import integer_text
from fencepost_schemas.refused import Refused

MAX_PLAIN_DEPTH: Final = 200
"""What is written at any depth of the stack can be read back at any other."""

_utf8 = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode
_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode


def dumps(value: Any) -> str:
    """Compact ASCII JSON: U+0000 and lone surrogates are escapes in it, so that any database text can hold it.

    Raises `Refused` for what JSON cannot say, and for nesting beyond `MAX_PLAIN_DEPTH`.
    """
    return _written(_ascii, value)


def dump_bytes(value: Any) -> bytes:
    """Compact UTF-8 JSON. Raises `Refused` as `dumps` does."""
    try:
        return _written(_utf8, value).encode()
    except UnicodeEncodeError:
        return dumps(value).encode()  # lone surrogates exist as escapes only


def loads(text: bytes | str) -> Any:
    """What `dumps` and `dump_bytes` wrote. Raises `Refused` for what is not JSON."""
    try:
        return read(text.decode() if isinstance(text, bytes) else text)
    except Refused:
        raise
    except (ValueError, RecursionError):
        raise Refused("$", "not JSON") from None


def _written(encode: Callable[[Any], str], value: Any) -> str:
    try:
        text = encode(value)
    except (ValueError, TypeError, RecursionError):
        text = _exact(value, 0)
    if text.count("[") + text.count("{") > MAX_PLAIN_DEPTH and _is_deep(value):
        _exact(value, 0)  # says where
    return text


def _is_deep(value: Any) -> bool:
    level = _containers([value])
    for _ in range(MAX_PLAIN_DEPTH):
        level = [
            inner for outer in level for inner in _containers(outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list | tuple)]


def _exact(value: Any, depth: int) -> str:
    # Only what the fast encoder did not take comes here: long integers, and faults that need their path.
    match value:
        case dict() | list() | tuple() if depth == MAX_PLAIN_DEPTH:
            raise Refused("$", "nested too deep")
        case dict():
            return _object(value, depth + 1)
        case list() | tuple():
            return _array(value, depth + 1)
        case int() if not isinstance(value, bool):
            return integer_text(int(value))
        case float() if value - value != 0:
            raise Refused("$", "NaN and Infinity are not JSON")
    try:
        return _ascii(value)
    except TypeError:
        raise Refused("$", f"{type(value).__name__} is not JSON") from None


def _object(members: dict[Any, Any], depth: int) -> str:
    parts = []
    for key, member in members.items():
        name = _name(key)
        try:
            parts.append(f"{_ascii(name)}:{_exact(member, depth)}")
        except Refused as fault:
            raise fault.inside(name) from None
    return "{" + ",".join(parts) + "}"


def _array(elements: list[Any] | tuple[Any, ...], depth: int) -> str:
    parts: list[str] = []
    try:
        for element in elements:
            parts.append(_exact(element, depth))  # noqa: PERF401 - how far it came is the path
    except Refused as fault:
        raise fault.inside(len(parts)) from None
    return "[" + ",".join(parts) + "]"


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return _exact(key, 0)
    raise Refused("$", f"a key is {type(key).__name__}, not a string")
