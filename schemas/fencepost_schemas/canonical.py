"""Canonical JSON: one value, one text, on every platform and in every process.

RFC 8785 (JCS) with one extension. A number token with a fraction or an exponent is a double, written as ECMAScript
writes it (``1.0`` is ``1``, ``-0.0`` is ``0``, ``1e21`` is ``1e+21``). A token of digits alone is an integer, written
with its exact digits, whatever its size up to `MAX_DIGITS`: RFC 8785 would round it to a double.

JSON is ``dict`` with ``str`` keys, ``list``, ``str``, ``int``, ``float``, ``bool`` and ``None``, each of exactly that
type. Everything else is refused and never coerced: tuples, keys that are not strings, dates, and subclasses too
(an enum member, a numpy scalar), because what a subclass would be in another process is not ours to guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from fencepost_schemas.numerals import MAX_DIGITS, double, double_text, integer, integer_text
from fencepost_schemas.refused import Refused
from fencepost_schemas.scan import Scan

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "Refused", "canonical", "parse"]

MAX_DEPTH: Final = 64
"""Arrays and objects that may be open at once: ``[[1]]`` has depth 2."""

_Quote = Callable[[str], str]


def parse(text: bytes | str) -> Any:
    """The value of a JSON text (RFC 8259, UTF-8 without a byte order mark).

    Raises `Refused` with the JSON path for everything that is not JSON, and for what two readers could understand in
    two ways: duplicate keys, lone surrogates, numbers beyond a double, integers beyond `MAX_DIGITS`, nesting beyond
    `MAX_DEPTH`.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = read(text)
        if not _is_surely_sound(text):
            canonical(value)
    except (ValueError, RecursionError):
        return scan(text, MAX_DEPTH).document()
    return value


def canonical(value: Any) -> bytes:
    """The canonical text of a value, in UTF-8. Raises `Refused` with the path of what is not JSON."""
    try:
        return _text(value, 0, encode_basestring).encode()
    except UnicodeEncodeError:
        _text(value, 0, _well_formed)  # says where
        raise


def read(text: str) -> Any:
    """The fast reader. Raises some ``ValueError`` or ``RecursionError``: `scan` then says where and why.

    Of what `parse` refuses, it lets pass lone surrogates, and nesting up to the interpreter's own limit.
    """
    return _decode(text)


def scan(text: bytes | str, max_depth: int, spared: str | None = None) -> Scan:
    """The slow reader of a text that the fast one did not take. Raises `Refused` when bytes are not UTF-8."""
    if isinstance(text, str):
        return Scan(text, max_depth, spared)
    try:
        return Scan(text.decode(), max_depth, spared)
    except UnicodeDecodeError as error:
        raise Refused(_end_of(text[: error.start].decode()), "not UTF-8") from None


def _end_of(text: str) -> str:
    # The path at which a text that breaks off has arrived.
    try:
        Scan(text, MAX_DEPTH).document()
    except Refused as fault:
        return fault.path
    return "$"


def _is_surely_sound(text: str) -> bool:
    return text.count("[") + text.count("{") <= MAX_DEPTH and "\\u" not in text and text.isascii()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Refused("$", "duplicate key")
    return members


def _foreign(token: str) -> NoReturn:
    raise Refused("$", f"{token} is not JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=integer, parse_float=double, parse_constant=_foreign
).decode


def _text(value: Any, depth: int, quote: _Quote) -> str:
    kind = type(value)
    if kind is str:
        return quote(value)
    if kind is int:
        return integer_text(value)
    if kind is dict:
        return _object(value, depth + 1, quote)
    if kind is list:
        return _array(value, depth + 1, quote)
    if kind is float:
        return double_text(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    raise Refused("$", f"{kind.__name__} is not JSON")


def _object(members: dict[Any, Any], depth: int, quote: _Quote) -> str:
    if depth > MAX_DEPTH:
        raise Refused("$", "nested too deep")
    parts = []
    for key in _ordered(members):
        try:
            parts.append(f"{quote(key)}:{_text(members[key], depth, quote)}")
        except Refused as fault:
            raise fault.inside(key) from None
    return "{" + ",".join(parts) + "}"


def _array(elements: list[Any], depth: int, quote: _Quote) -> str:
    if depth > MAX_DEPTH:
        raise Refused("$", "nested too deep")
    parts: list[str] = []
    try:
        for element in elements:
            parts.append(_text(element, depth, quote))  # noqa: PERF401 - how far it came is the path
    except Refused as fault:
        raise fault.inside(len(parts)) from None
    return "[" + ",".join(parts) + "]"


def _ordered(members: dict[Any, Any]) -> list[str]:
    for key in members:
        if type(key) is not str:
            raise Refused("$", f"a key is {type(key).__name__}, not a string")
    keys: list[str] = sorted(members)
    if "".join(keys).isascii():
        return keys
    return sorted(keys, key=_utf16)  # RFC 8785 §3.2.3: code units, which differ from code points above U+FFFF


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("$", "a lone surrogate") from None
    return encode_basestring(text)
