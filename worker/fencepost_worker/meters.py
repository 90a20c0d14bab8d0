"""What a worker counts of itself, in plain numbers: a call passes here several times, and may not be slowed down.

Each field is written by one thread alone, and read by whoever scrapes: a number that is a moment old does no harm.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fencepost_dispatch.answers import Answer
from fencepost_dispatch.watch import Watch as EngineWatch
from fencepost_ledger.watch import Backlog
from fencepost_ledger.watch import Watch as LedgerWatch
from fencepost_schemas import Status
from fencepost_worker.events import Bury, Done
from fencepost_worker.pulse import NOBODY
from fencepost_worker.records import Record

MOST_TOOLS = 100
OTHER = "other"  # what tools beyond the most, and tools that are not ours, are called

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
ITEMS = (1, 2, 5, 10, 20, 50, 100, 200, 500)

STATUSES = tuple(Status)
_place = STATUSES.index  # several times as fast as the hash of an enum's member
HOW = ("answered", "executed", "replayed", "left")  # why an outcome was published; left: by the sweeper
_ANSWERED, _EXECUTED, _REPLAYED, _LEFT = range(len(HOW))


class Histogram:
    """How often values fell at or below each of `bounds`, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Tally:
    """The counts of one tool."""

    __slots__ = ("outcomes", "run_seconds")

    def __init__(self) -> None:
        self.run_seconds = Histogram(SECONDS)
        self.outcomes = [0] * (len(STATUSES) * len(HOW))

    def published(self, status: Status, how: int) -> None:
        """The brokers have an outcome; `how`: an index of `HOW`."""
        self.outcomes[_place(status) * len(HOW) + how] += 1


class Meters(EngineWatch, LedgerWatch):
    """All counts of one worker; `tools` are the names that it serves. Labels are bounded, whatever records name."""

    def __init__(self, tools: Iterable[str]) -> None:
        # The loop's
        self.tools = {name: Tally() for name in sorted(tools)[:MOST_TOOLS]}
        self.other = Tally()
        self.raised = 0
        self.dead_letters: dict[str, int] = defaultdict(int)  # by code
        self.unknown_fields = 0
        self.event_seconds = Histogram(SECONDS)
        self.wait_seconds = Histogram(SECONDS)
        # The ledger's threads'
        self.batch_items = Histogram(ITEMS)
        self.commit_seconds = Histogram(SECONDS)
        self.renewals = 0
        self.lost_leases = 0
        self._backlog: tuple[Backlog, float] | None = None
        self._write_trouble: str | None = None
        self._sweep_trouble: str | None = None
        # The pulse's
        self.stalls: dict[str, int] = defaultdict(int)  # by tool
        self.stall_seconds: dict[str, float] = defaultdict(float)

    # From the engine and the worker, on the loop

    def waited(self, seconds: float) -> None:
        self.wait_seconds.add(seconds)

    def ran(self, tool: str, seconds: float) -> None:
        self.tools.get(tool, self.other).run_seconds.add(seconds)

    def done(self, record: Record, done: Done) -> None:
        """A record needs nothing more."""
        if record.timestamp is not None:
            self.event_seconds.add(max(0.0, time.time() - record.timestamp / 1000))
        if isinstance(done, Answer):
            outcome = done.outcome
            how = _EXECUTED if outcome.executed else _REPLAYED if outcome.replayed else _ANSWERED
            self.tools.get(outcome.tool, self.other).published(outcome.status, how)
        elif isinstance(done, Bury):
            self.dead_letters[done.code] += 1
        else:
            self.raised += 1

    def left(self, tool: str, status: Status) -> None:
        """The brokers have an outcome that the sweeper came upon."""
        self.tools.get(tool, self.other).published(status, _LEFT)

    # From the ledger's threads

    def committed(self, items: int, seconds: float) -> None:
        self.batch_items.add(items)
        self.commit_seconds.add(seconds)

    def renewed(self, leases: int) -> None:
        self.renewals += leases

    def lost(self, leases: int) -> None:
        self.lost_leases += leases

    def found(self, backlog: Backlog) -> None:
        self._backlog = backlog, time.monotonic()

    def swept(self, trouble: str | None) -> None:
        self._sweep_trouble = trouble

    def written(self, trouble: str | None) -> None:
        """The ledger takes what is written (None), or why it does not."""
        self._write_trouble = trouble

    @property
    def ledger_trouble(self) -> str | None:
        """Why the ledger cannot be used, in one line; None while it can."""
        return self._write_trouble or self._sweep_trouble

    @property
    def backlog(self) -> Backlog | None:
        """As the last pass of the sweeper found it, with the age as it is now; None before the first."""
        if self._backlog is None:
            return None
        found, at = self._backlog
        age = found.oldest_undecided + time.monotonic() - at if found.undecided else 0.0
        return Backlog(found.undecided, age, found.unsettled)

    # From the pulse's thread

    def stalled(self, tool: str, begins: bool, seconds: float) -> None:
        """The loop has stood still for these seconds more, inside of this tool."""
        label = tool if tool in self.tools or tool == NOBODY else OTHER
        self.stalls[label] += begins
        self.stall_seconds[label] += seconds
