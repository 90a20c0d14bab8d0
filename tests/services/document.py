"""A document's fenced blocks, and whether what a command printed is what the document says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ANY = "…"  # stands for anything within a line; alone on a line, for any number of lines

_FENCE = re.compile(r"^(?:<!-- (?P<remark>.*) -->\n)?```(?P<language>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
_NAME = re.compile(r"# (\S+\.\w+)\n")
_COMMAND = re.compile(r"^\$ (?P<text>.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_NUMBER = re.compile(r"[0-9a-f]{12}|\d+")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and the output that the document shows below it."""

    text: str
    output: str


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `remark` is the HTML comment on the line above it, `line` where it begins."""

    language: str
    text: str
    remark: str
    line: int

    @property
    def file(self) -> str | None:
        """The name that it has as a file: in its remark, or in a comment on its first line."""
        if self.remark.startswith("file: "):
            return self.remark.removeprefix("file: ")
        named = _NAME.match(self.text)
        return named[1] if named else None

    @property
    def commands(self) -> list[Command]:
        """What is typed in a console: lines that begin with `$ `."""
        return [Command(found["text"], found["output"]) for found in _COMMAND.finditer(self.text)]


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a document in Markdown."""
    return [
        Block(found["language"], found["text"], found["remark"] or "", text.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(text)
    ]


def same(shown: str, printed: str) -> bool:
    """Whether a program printed what is shown; blanks count as one, and empty lines not at all."""
    return _fits(_lines(shown), _lines(printed))


def same_story(shown: str, printed: str) -> bool:
    """Whether it is the same text but for its numbers, which also decide where lines are broken."""
    pattern = _NUMBER.sub("[0-9a-f]+", _pattern(" ".join(shown.split())))
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _fits(shown: Sequence[str], printed: Sequence[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == ANY:
        return any(_fits(shown[1:], printed[taken:]) for taken in range(len(printed) + 1))
    return bool(printed) and re.fullmatch(_pattern(shown[0]), printed[0]) is not None and _fits(shown[1:], printed[1:])


def _pattern(shown: str) -> str:
    return ".*".join(map(re.escape, shown.split(ANY)))
