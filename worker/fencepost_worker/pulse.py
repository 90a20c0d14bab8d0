"""Whether the event loop turns, seen from a thread of its own, and which tool holds it up when it does not."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from fencepost_dispatch.engine import Engine
from fencepost_dispatch.path import Run

BEAT = 0.1  # seconds between beats of the loop, and between looks at them
STALL = 0.5  # seconds without a beat that are worth a word: every other call waits meanwhile
NOBODY = "(none)"  # no tool's name has brackets

log = structlog.get_logger("fencepost.worker")


class Pulse(threading.Thread):
    """Watches the running loop of the thread that makes it, from `start` until `stop`.

    `on_stall` is called in this thread, with a tool's name: once with True when a stall is noticed, and with the
    seconds that it has lasted since the last call for as long as it lasts.
    """

    def __init__(self, engine: Engine, on_stall: Callable[[str, bool, float], None]) -> None:
        super().__init__(name="fencepost-pulse", daemon=True)
        self._engine = engine
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beaten = time.monotonic()
        self._stopping = threading.Event()
        self._stalled: tuple[str, float] | None = None  # the tool, and until when the stall is counted

    @property
    def still(self) -> float:
        """Seconds since the loop last turned, less than `BEAT` while all is well."""
        return time.monotonic() - self._beaten

    @property
    def holding(self) -> str | None:
        """The tool that holds up the loop now; None while it turns."""
        stalled = self._stalled
        return None if stalled is None else stalled[0]

    def start(self) -> None:
        self._beat()
        super().start()

    def stop(self) -> None:
        """May be called by the loop's thread: does not wait for long."""
        self._stopping.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        looked = time.monotonic()
        while not self._stopping.wait(BEAT):
            now = time.monotonic()
            # Was this thread held up too, the process stood still (SIGSTOP, a sleeping machine): nobody's fault.
            if now - looked < STALL:
                self._look(now)
            looked = now

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        if not self._stopping.is_set():
            self._loop.call_later(BEAT, self._beat)

    def _look(self, now: float) -> None:
        beaten = self._beaten
        if self._stalled is not None:
            tool, counted = self._stalled
            over = beaten > counted
            self._on_stall(tool, False, (beaten if over else now) - counted)
            self._stalled = None if over else (tool, now)
        elif now - beaten >= STALL:
            run = self._engine.inside(asyncio.current_task(self._loop))
            tool = NOBODY if run is None else run.tool.name
            self._stalled = tool, now
            self._on_stall(tool, True, now - beaten)
            log.warning(
                "the event loop stands still", tool=tool, seconds=round(now - beaten, 3), at=self._place(), **_ids(run)
            )

    def _place(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way to another thread
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"


def _ids(run: Run | None) -> dict[str, Any]:
    if run is None:
        return {}
    call = run.context
    return {"event_id": call.event_id, "execution": call.execution_id, "node": call.node_id, "attempt": call.attempt}
