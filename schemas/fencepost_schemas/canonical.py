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
from typing import Any, NoReturn

from .numerals import MAX_DIGITS, double, double_text, integer, integer_text
from .refused import Refused
from .scan import Scan

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "Refused", "canonical", "parse"]

MAX_DEPTH = 64
"""Arrays and objects that may be open at once: ``[[1]]`` has depth 2."""

_Quote = Callable[[str], str]


def parse(text: bytes | str) -> Any:
    """The value of a JSON text (RFC 8259, UTF-8 without a byte order mark).

    Raises `Refused` with the JSON path for everything that is not JSON, and for what two readers could understand in
    two ways: duplicate keys, lone surrogates, numbers beyond a double, integers beyond `MAX_DIGITS`, nesting beyond
    `MAX_DEPTH`.
    """
    try:
        value, is_plain = read(text)
        if not is_plain:
            canonical(value)  # finds what the fast reader lets through: depth and lone surrogates
    except (ValueError, RecursionError):
        explain(text, MAX_DEPTH, _raise)
    return value


def canonical(value: Any) -> bytes:
    """The canonical text of a value, in UTF-8. Raises `Refused` with the path of what is not JSON."""
    try:
        return _text(value, 0, encode_basestring).encode()
    except UnicodeEncodeError:
        _text(value, 0, _well_formed)
        raise


def read(text: bytes | str) -> tuple[Any, bool]:
    """The fast reader: the value, and whether its depth and its strings are certainly sound.

    Raises some ``ValueError`` or ``RecursionError`` without saying where; `explain` says it.
    """
    if isinstance(text, bytes):
        text = text.decode()
    value = _decode(text)
    is_plain = text.count("[") + text.count("{") <= MAX_DEPTH and "\\u" not in text and text.isascii()
    return value, is_plain


def explain(text: bytes | str, max_depth: int, refuse: Callable[[Refused], None]) -> Any:
    """The slow reader, for a text that the fast one did not take: hands each refusal, with its path, to ``refuse``.

    Returns the value when ``refuse`` let all of them pass. Raises `Refused` for what is not JSON at all.
    """
    if isinstance(text, str):
        return Scan(text, max_depth, refuse).document()
    try:
        return Scan(text.decode(), max_depth, refuse).document()
    except UnicodeDecodeError:
        # The bad bytes become surrogates, which no sound UTF-8 can hold: the scan finds them with their path.
        Scan(text.decode(errors="surrogateescape"), max_depth, _not_utf8).document()
        raise Refused("$", "not UTF-8") from None


def _raise(fault: Refused) -> NoReturn:
    raise fault


def _not_utf8(fault: Refused) -> None:
    if "surrogate" in fault.reason:
        raise Refused(fault.path, "not UTF-8")
    raise fault


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
    parts = []
    try:
        for element in elements:
            parts.append(_text(element, depth, quote))
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
