"""Files of many things, one a line: read as they come, with how far it got on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's lines; `-` is stdin."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    with path.open("rb") as lines:
        yield lines


@contextmanager
def progress(path: Path) -> Iterator[Callable[[int], None]]:
    """On a terminal, how many are done; the lines are not counted first, since the file may be a pipe."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = SpinnerColumn(), TextColumn("{task.completed} of {task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task(str(path), total=None)
        yield lambda done: shown.update(bar, completed=done)
