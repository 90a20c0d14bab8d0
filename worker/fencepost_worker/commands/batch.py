"""`fencepost dispatch --file`: many events, in the order of the file, without one bad line stopping the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fencepost_dispatch.client import Dispatcher
from fencepost_dispatch.event import InvalidDispatch, new_event_id
from fencepost_dispatch.sender import NotAcknowledged
from fencepost_dispatch.settings import Settings
from fencepost_schemas import Dispatch, Fence, Outcome, Poison, Refused, decode, dumps, parse
from fencepost_worker.commands import output
from fencepost_worker.commands.dispatching import print_outcome
from fencepost_worker.commands.lines import opened, progress

AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    sent: asyncio.Task[Outcome | str]


async def dispatch_file(settings: Settings, path: Path, generation: int, wait: float | None) -> int:
    """Send every line → exit code. Event ids, or outcomes, are printed in the order of the lines."""
    under_way: deque[_Line] = deque()
    good = bad = 0
    async with Dispatcher(settings, listen=wait is not None) as dispatcher:
        with opened(path) as lines, progress(path) as advance, _ended(under_way):
            for number, text in enumerate(lines, 1):
                if text.strip():
                    under_way.append(_Line(number, asyncio.create_task(_send(dispatcher, text, generation, wait))))
                    await asyncio.sleep(0)  # lets it be sent now: the file's order is the topic's
                while len(under_way) >= AT_ONCE or (under_way and under_way[0].sent.done()):
                    good, bad = await _finish(under_way.popleft(), path, good, bad)
                advance(good + bad)
            while under_way:
                good, bad = await _finish(under_way.popleft(), path, good, bad)
                advance(good + bad)
    output.note(f"dispatched {good} of {good + bad} events")
    return 1 if bad else 0


async def _send(dispatcher: Dispatcher, text: bytes, generation: int, wait: float | None) -> Outcome | str:
    event = read_event(text, generation)
    call = await dispatcher.send(event)
    if wait is None or isinstance(event, Fence):
        return call.event_id
    try:
        return await call.outcome(timeout=wait)
    except TimeoutError:
        raise InvalidDispatch(f"no outcome of event {call.event_id} within {wait:g} s") from None


async def _finish(line: _Line, path: Path, good: int, bad: int) -> tuple[int, int]:
    try:
        answer = await line.sent
    except (InvalidDispatch, Refused, NotAcknowledged) as error:
        output.note(f"{path}:{line.number}: {error}")
        return good, bad + 1
    if isinstance(answer, str):
        output.line(answer)
    else:
        print_outcome(answer)
    return good + 1, bad


@contextmanager
def _ended(under_way: deque[_Line]) -> Iterator[None]:
    """When one line's error ends it all, nothing is left behind that would complain later."""
    try:
        yield
    finally:
        for line in under_way:
            line.sent.cancel()
            line.sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())


def read_event(text: bytes, generation: int) -> Dispatch | Fence:
    """One line of the file as the event that a worker would read.

    Raises:
        Refused: no strict JSON. InvalidDispatch: no event.
    """
    fields = parse(text)
    if isinstance(fields, dict):
        fields = {"event_id": new_event_id(), "generation": generation, **fields}
    try:
        decoded = decode(dumps(fields).encode())
    except Poison as poison:
        raise InvalidDispatch(str(poison.message)) from None
    if decoded.refusal is not None:
        raise InvalidDispatch(decoded.refusal.message)
    return decoded.event
