"""A JSON reader that knows where it is: slow, never recursive, asked only when the fast one has said no."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from .numerals import double, integer
from .refused import Refused, shown

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_WORD = re.compile(r"-?[A-Za-z]+")
_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_FOREIGN = {"NaN": "NaN is not JSON", "Infinity": "Infinity is not JSON", "-Infinity": "Infinity is not JSON"}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_OPENED: Any = object()


class Scan:
    """One reading of one text.

    What breaks the grammar raises `Refused` at once. What fits the grammar and is refused all the same (a duplicate
    key, NaN, a number too large, a lone surrogate, a nesting too deep) is handed to ``refuse``, which may raise it or
    let the reading go on.
    """

    def __init__(self, text: str, max_depth: int, refuse: Callable[[Refused], None]) -> None:
        self._text = text
        self._at = 0
        self._max_depth = max_depth
        self._refuse = refuse
        self._open: list[dict[str, Any] | list[Any]] = []
        self._steps: list[str | int] = []  # beside each open container: the member that is being read

    def document(self) -> Any:
        """The value of the whole text."""
        if self._text.startswith("\ufeff"):
            self._fail("a byte order mark is not JSON")
        value = self._begin()
        while self._open:
            value = self._first() if value is _OPENED else self._next(value)
        if self._peek():
            self._fail("there is text after the value")
        return value

    def _peek(self) -> str:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _begin(self) -> Any:
        match self._peek():
            case "{":
                return self._enter({})
            case "[":
                return self._enter([])
            case '"':
                return self._string()
            case _:
                return self._scalar()

    def _enter(self, container: dict[str, Any] | list[Any]) -> Any:
        if len(self._open) == self._max_depth:
            self._soft("nested too deep")
        self._at += 1
        self._open.append(container)
        self._steps.append(-1)
        return _OPENED

    def _first(self) -> Any:
        top = self._open[-1]
        if self._peek() == ("}" if isinstance(top, dict) else "]"):
            return self._leave()
        return self._member(top)

    def _next(self, value: Any) -> Any:
        top, step = self._open[-1], self._steps[-1]
        if isinstance(top, dict):
            top[str(step)] = value
        else:
            top.append(value)
        found = self._peek()
        if found == ",":
            self._at += 1
            return self._member(top)
        if found == ("}" if isinstance(top, dict) else "]"):
            return self._leave()
        self._fail("a comma or a closing bracket is missing")

    def _member(self, top: dict[str, Any] | list[Any]) -> Any:
        if isinstance(top, list):
            self._steps[-1] = len(top)
        else:
            self._key(top)
        return self._begin()

    def _key(self, top: dict[str, Any]) -> None:
        self._steps[-1] = -1
        if self._peek() != '"':
            self._fail("a key in double quotes is missing")
        key = self._steps[-1] = self._string(is_key=True)
        if _SURROGATE.search(key):
            self._soft("a lone surrogate in a key")
        if key in top:
            self._soft("duplicate key")
        if self._peek() != ":":
            self._fail("a colon is missing")
        self._at += 1

    def _leave(self) -> Any:
        self._at += 1
        self._steps.pop()
        return self._open.pop()

    def _scalar(self) -> Any:
        number = _NUMBER.match(self._text, self._at)
        if number:
            self._at = number.end()
            return self._number(number[0], is_double=bool(number[1]))
        word = _WORD.match(self._text, self._at)
        name = word[0] if word else ""
        if name in _FOREIGN:
            self._soft(_FOREIGN[name])
        elif name not in _WORDS:
            self._fail("a value is missing")
        self._at += len(name)
        return _WORDS.get(name)

    def _number(self, token: str, *, is_double: bool) -> int | float:
        try:
            return double(token) if is_double else integer(token)
        except Refused as fault:
            self._soft(fault.reason)
            return 0

    def _string(self, *, is_key: bool = False) -> str:
        self._at += 1
        parts: list[str] = []
        while True:
            start = self._at
            run = _RUN.match(self._text, start)
            self._at = run.end() if run else start
            parts.append(self._text[start : self._at])
            found = self._text[self._at : self._at + 1]
            self._at += 1
            if found == '"':
                break
            if found != "\\":
                self._fail("a control character in a string" if found else "the text ends within a string")
            parts.append(self._escape())
        text = "".join(parts)
        if not is_key and _SURROGATE.search(text):
            self._soft("a lone surrogate")
        return text

    def _escape(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        unit = self._unit() if letter == "u" else None
        if unit is None:
            self._fail("an unknown escape")
        if 0xD800 <= unit < 0xDC00 and self._text.startswith("\\u", self._at):
            return self._pair(unit)
        return chr(unit)

    def _pair(self, high: int) -> str:
        before = self._at
        self._at += 2
        low = self._unit()
        if low is not None and 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        self._at = before
        return chr(high)

    def _unit(self) -> int | None:
        found = _HEX.match(self._text, self._at)
        if not found:
            return None
        self._at = found.end()
        return int(found[0], 16)

    def _path(self) -> str:
        return "$" + "".join(shown(step) for step in self._steps if step != -1)

    def _soft(self, reason: str) -> None:
        self._refuse(Refused(self._path(), reason))

    def _fail(self, reason: str) -> NoReturn:
        if self._at >= len(self._text):
            reason = "the text ends too early"
        raise Refused(self._path(), reason)
