"""What commands print: data on stdout, as JSON lines or as a table for people; everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

SHOWN = 200  # rows of a table; a listing as JSON has no bound
PIPE_WIDTH = 10_000  # a table in a pipe is not cut to somebody's screen


def line(text: str) -> None:
    """One line of data."""
    sys.stdout.write(text + "\n")


def record(value: Mapping[str, Any]) -> None:
    """One JSON object on a line, in ASCII, integers exact."""
    from fencepost_schemas import dumps  # noqa: PLC0415

    line(dumps(value))


def listing(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], json: bool) -> None:
    """All rows as JSON lines, or the first 200 as a table; `columns` maps headings to fields."""
    if json:
        for row in rows:
            record(row)
        return
    rest = iter(rows)
    table([[_cell(row[field]) for field in columns.values()] for row in islice(rest, SHOWN)], list(columns))
    if next(rest, None) is not None:
        note(f"only the first {SHOWN} are shown: narrow it down, or use --json")


def card(fields: Mapping[str, Any]) -> None:
    """One thing: a name and a value a line."""
    table([[name, _cell(value)] for name, value in fields.items() if value is not None])


def table(rows: list[list[str]], headings: Iterable[str] = ()) -> None:
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    headings = list(headings)
    drawn = Table(*headings, box=box.SIMPLE_HEAD if headings else None, show_header=bool(headings), pad_edge=False)
    if not headings:
        drawn.add_column(style="bold")
        drawn.add_column(overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(drawn)


def note(text: str) -> None:
    """A line beside the data."""
    sys.stderr.write(" ".join(text.split()) + "\n")


def _cell(value: Any) -> str:
    from fencepost_schemas import dumps  # noqa: PLC0415

    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return dumps(value)
