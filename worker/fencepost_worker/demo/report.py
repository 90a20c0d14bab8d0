"""What the demo says while it runs, and at its end: for people, on a terminal or in a log, and for programs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fencepost_worker.demo.verdict import Counts, Promise

_WIDTH = 100  # of lines that go to no terminal


@dataclass(frozen=True, slots=True)
class Unknown:
    """A call that a person has to settle: its name and key, and the command that does it once they know."""

    call: str
    invocation_key: str
    command: str


class Telling:
    """Sentences, with a moving line below them on a terminal. `json`: on stderr, since stdout is for the object."""

    def __init__(self, *, json: bool) -> None:
        console = Console(stderr=json, highlight=False)
        self._console = console if console.is_terminal else Console(stderr=json, highlight=False, width=_WIDTH)

    def say(self, text: str, *, style: str = "") -> None:
        self._console.print(Text(text, style=style))

    def act(self, number: int, text: str) -> None:
        """What happens now."""
        self._console.print()
        self._paragraph(text, f"{number}  ", style="bold")

    def found(self, text: str) -> None:
        """What came of it."""
        self._paragraph(text, "   ")

    @contextmanager
    def doing(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """On a terminal, a line that moves while the block runs; what it yields takes how much of `total` is done."""
        counter = (BarColumn(30), MofNCompleteColumn()) if total else ()
        columns = SpinnerColumn(), TextColumn("{task.description}"), *counter, TimeElapsedColumn()
        shown = self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=not shown) as progress:
            task = progress.add_task(text, total=total)
            yield lambda done: progress.update(task, completed=done)

    def table(self, promises: Sequence[Promise]) -> None:
        table = Table("promised", box=None, pad_edge=False, header_style="bold")
        for title in ("wanted", "counted", "held"):
            table.add_column(title, justify="right")
        for one in promises:
            style = "" if one.held else "bold red"
            table.add_row(one.text, str(one.wanted), str(one.counted), "yes" if one.held else "NO", style=style)
        self._console.print()
        self._console.print(table)
        self._console.print()

    def unknown(self, calls: Sequence[Unknown]) -> None:
        """What is left for a person, with the command."""
        for one in calls:
            self._paragraph(f"{one.call} is left for a person: look into the ticket system, then say what is there:")
            self._console.print(Text(f"   {one.command}"), soft_wrap=True)
        self._console.print()

    def words(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(Text(line, style="dim"), soft_wrap=True)

    def _paragraph(self, text: str, first: str = "", style: str = "") -> None:
        rest = " " * len(first)
        filled = textwrap.fill(
            text, self._console.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        )
        self._console.print(Text(filled, style=style), soft_wrap=True)


def stuck_as_json(reason: str) -> dict[str, Any]:
    """The verdict when it never came to one."""
    return {"ok": False, "stuck": reason}


def as_json(counts: Counts, promises: Sequence[Promise], unknown: Sequence[Unknown], seconds: float) -> dict[str, Any]:
    """The verdict for programs; sets of calls are given by their size, except those that are named."""
    return {
        "ok": all(promise.held for promise in promises),
        "seconds": round(seconds, 2),
        "counts": {name: _size(value) for name, value in asdict(counts).items()},
        "promises": [asdict(promise) for promise in promises],
        "indeterminate": [asdict(one) for one in unknown],
    }


def print_json(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")


def _size(value: Any) -> int:
    match value:
        case int():
            return value
        case dict():
            return sum(value.values())
        case _:
            return len(value)
