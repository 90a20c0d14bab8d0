"""A JSON reader that knows where it is: slow, never recursive, asked only when the fast one has said no."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from fencepost_schemas.numerals import double, integer
from fencepost_schemas.refused import Refused, shown

_BLANKS = frozenset(" \t\n\r")
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
_BEFORE = -1  # the step of a container none of whose members is being read

_Container = dict[str, Any] | list[Any]


class Scan:
    """One reading of one text.

    What breaks the grammar raises `Refused`. So does what fits it and is refused all the same (a duplicate key, NaN,
    a number too large, a lone surrogate, a nesting too deep), except inside the member ``spared`` of the outermost
    object: there the first such fault is kept as ``fault``, and the reading goes on.
    """

    def __init__(self, text: str, max_depth: int, spared: str | None = None) -> None:
        self.fault: Refused | None = None
        self._text = text
        self._at = 0
        self._max_depth = max_depth
        self._spared = spared
        self._open: list[_Container] = []
        self._steps: list[str | int] = []  # beside each open container: which of its members is being read

    def document(self) -> Any:
        """The value of the whole text; meaningless where ``fault`` is set."""
        if self._text.startswith("\ufeff"):
            self._fail("a byte order mark is not JSON")
        value = self._begin()
        while self._open:
            value = self._first() if value is _OPENED else self._next(value)
        if self._peek():
            self._fail("there is text after the value")
        return value

    def _peek(self) -> str:
        found = self._text[self._at : self._at + 1]
        if found in _BLANKS:
            self._take(_SPACE)
            return self._text[self._at : self._at + 1]
        return found

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

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

    def _enter(self, container: _Container) -> Any:
        if len(self._open) == self._max_depth:
            self._refuse("nested too deep")
        self._at += 1
        self._open.append(container)
        self._steps.append(_BEFORE)
        return _OPENED

    def _first(self) -> Any:
        return self._leave() if self._peek() == self._closing() else self._member()

    def _next(self, value: Any) -> Any:
        top = self._open[-1]
        if isinstance(top, dict):
            top[str(self._steps[-1])] = value
        else:
            top.append(value)
        found = self._peek()
        if found == self._closing():
            return self._leave()
        if found != ",":
            self._fail("a comma or a closing bracket is missing")
        self._at += 1
        return self._member()

    def _closing(self) -> str:
        return "}" if isinstance(self._open[-1], dict) else "]"

    def _leave(self) -> Any:
        self._at += 1
        self._steps.pop()
        return self._open.pop()

    def _member(self) -> Any:
        top = self._open[-1]
        if isinstance(top, dict):
            self._key(top)
        else:
            self._steps[-1] = len(top)
        return self._begin()

    def _key(self, top: dict[str, Any]) -> None:
        self._steps[-1] = _BEFORE
        if self._peek() != '"':
            self._fail("a key in double quotes is missing")
        key = self._steps[-1] = self._characters()
        if _SURROGATE.search(key):
            self._refuse("a lone surrogate")
        if key in top:
            self._refuse("duplicate key")
        if self._peek() != ":":
            self._fail("a colon is missing")
        self._at += 1

    def _scalar(self) -> Any:
        number = _NUMBER.match(self._text, self._at)
        if number:
            self._at = number.end()
            return self._number(number[0], is_double=bool(number[1]))
        word = _WORD.match(self._text, self._at)
        name = word[0] if word else ""
        if name in _FOREIGN:
            self._refuse(_FOREIGN[name])
        elif name not in _WORDS:
            self._fail("a value is missing")
        self._at += len(name)
        return _WORDS.get(name)

    def _number(self, token: str, *, is_double: bool) -> int | float:
        try:
            return double(token) if is_double else integer(token)
        except Refused as fault:
            self._refuse(fault.reason)
            return 0

    def _string(self) -> str:
        text = self._characters()
        if _SURROGATE.search(text):
            self._refuse("a lone surrogate")
        return text

    def _characters(self) -> str:
        self._at += 1
        parts = [self._take(_RUN)]
        while (found := self._text[self._at : self._at + 1]) != '"':
            if found != "\\":
                self._fail("a control character in a string")
            self._at += 1
            parts += self._escape(), self._take(_RUN)
        self._at += 1
        return "".join(parts)

    def _escape(self) -> str:
        letter = self._text[self._at : self._at + 1]
        if letter not in _ESCAPES and letter != "u":
            self._fail("an unknown escape")
        self._at += 1
        if letter != "u":
            return _ESCAPES[letter]
        unit = self._unit()
        if 0xD800 <= unit < 0xDC00 and self._text.startswith("\\u", self._at):
            return self._pair(unit)
        return chr(unit)

    def _pair(self, high: int) -> str:
        before = self._at
        self._at += 2
        low = self._unit()
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        self._at = before  # not a pair: the second escape stands for itself
        return chr(high)

    def _unit(self) -> int:
        digits = self._take(_HEX)
        if not digits:
            self._fail("four hex digits are missing")
        return int(digits, 16)

    def _refuse(self, reason: str) -> None:
        if self._spared is None or self._steps[:1] != [self._spared]:
            raise Refused(self._path(), reason)
        self.fault = self.fault or Refused(self._path(), reason)

    def _fail(self, reason: str) -> NoReturn:
        raise Refused(self._path(), "the text ends too early" if self._at >= len(self._text) else reason)

    def _path(self) -> str:
        # Where a fault is spared, the nesting may go on for a million levels: the path does not.
        return "$" + "".join(shown(step) for step in self._steps[: self._max_depth] if step != _BEFORE)
