"""Plain JSON with full fidelity: what goes over the wire as it is, not reduced to its canonical form.

The standard library's JSON but for two things: integers keep their digits beyond Python's conversion limit, and
nothing that is not JSON (NaN, duplicate keys) passes.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import Any

from .canonical import read
from .numerals import integer_text
from .refused import Refused

_utf8 = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode
_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode


def dumps(value: Any) -> str:
    """Compact ASCII JSON: U+0000 and lone surrogates become escapes, so any database text and any UTF-8 can hold it.

    Raises `Refused` for what JSON cannot say.
    """
    return _written(_ascii, value)


def dumpb(value: Any) -> bytes:
    """Compact UTF-8 JSON. Raises `Refused` for what JSON cannot say."""
    try:
        return _written(_utf8, value).encode()
    except UnicodeEncodeError:
        return dumps(value).encode()  # lone surrogates exist as escapes only


def loads(text: bytes | str) -> Any:
    """What `dumps` and `dumpb` wrote. Raises `Refused` for other things than JSON."""
    try:
        return read(text)[0]
    except Refused:
        raise
    except (ValueError, RecursionError):
        raise Refused("$", "not JSON") from None


def _written(encode: Any, value: Any) -> str:
    try:
        return str(encode(value))
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        return _exact(value)
    except RecursionError:
        raise Refused("$", "nested too deep") from None


def _exact(value: Any) -> str:
    match value:
        case bool() | None:
            return str(_ascii(value))
        case int():
            return integer_text(value)
        case str():
            return encode_basestring_ascii(value)
        case dict():
            return "{" + ",".join(f"{_name(key)}:{_inside(key, member)}" for key, member in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(_inside(index, element) for index, element in enumerate(value)) + "]"
        case float() if value - value == 0:
            return repr(value)
        case _:
            raise Refused("$", f"{value if isinstance(value, float) else type(value).__name__} is not JSON")


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise Refused("$", f"a key is {type(key).__name__}, not a string")
    return encode_basestring_ascii(key)


def _inside(step: str | int, value: Any) -> str:
    try:
        return _exact(value)
    except Refused as fault:
        raise fault.inside(step) from None
