"""Drives the real ledger through many histories at once, and finds where it differs from the protocol's model.

All histories take their next steps together: what one start of a worker does in all of them becomes one transaction of
the writer, with many calls in it. Each history has an execution of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, Self

import psycopg

from fencepost_ledger import CallRow, Desk, Moved, NotFound, State, memory, statements
from fencepost_ledger.batch import _PLANS, transact
from fencepost_ledger.calls import COLUMNS, call_row
from fencepost_ledger.case import Holding, House, run
from fencepost_ledger.sweep import _orphans, _unsettled
from fencepost_ledger.verdicts import Settle
from model.protocol import GRACE_OVER, OVER
from services.holder import NODE, ORG
from services.moves import Move, Story, broken_law, expected, found, new_story
from services.walks import LOCAL, Walk

LEASE, TTL = timedelta(hours=1), timedelta(hours=48)  # no lease and no memory is over by itself
ORPHANED = 9.0  # leases

_READ = f"""
SELECT i.e, g.generation, u.revision, u.acknowledged, {", ".join(f"c.{name}" for name in COLUMNS)},
    c.lease_until < clock_timestamp(), c.lease_until + %(lease)s < clock_timestamp()
FROM json_array_elements_text(%(items)s::json) AS i(e)
LEFT JOIN fencepost.generations g ON g.execution_id = i.e
LEFT JOIN fencepost.unsettled u ON u.execution_id = i.e
LEFT JOIN fencepost.calls c ON c.execution_id = i.e
"""
_OPEN = """
INSERT INTO fencepost.executions (execution_id, org_id)
SELECT i.e, %(org)s FROM json_array_elements_text(%(items)s::json) AS i(e)
"""
_LEASES = """
UPDATE fencepost.calls c SET lease_until = clock_timestamp() - %(lease)s * i.n
FROM json_to_recordset(%(items)s::json) AS i(e text, n float) WHERE c.execution_id = i.e AND c.state = 'executing'
"""
_LONG_OWED = """
WITH owed AS (
    UPDATE fencepost.unsettled u SET since = since - interval '1 h'
    FROM json_array_elements_text(%(items)s::json) AS i(e) WHERE u.execution_id = i.e
)
UPDATE fencepost.calls c SET finished_at = finished_at - interval '1 h'
FROM json_array_elements_text(%(items)s::json) AS i(e) WHERE c.execution_id = i.e AND c.finished_at IS NOT NULL
"""
_REMEMBERED = """
UPDATE fencepost.calls c SET expires_at = clock_timestamp() + %(longer)s
FROM json_array_elements_text(%(items)s::json) AS i(e) WHERE c.execution_id = i.e
"""
_FORGET = """
DELETE FROM fencepost.calls c USING json_array_elements_text(%(items)s::json) AS i(e) WHERE c.execution_id = i.e
"""

Connection = psycopg.Connection[tuple[Any, ...]]
Start = tuple[int, int]  # a worker, and which of its starts


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """Lets `cut` happen before the first write that depends on what was read."""

    cut: Callable[[], None] | None = None

    def execute(self, query: Any, *rest: Any, **more: Any) -> Self:
        if Cursor.cut and query in {s.encode() for s in (statements.REARM, statements.GIVE_UP, statements.FOUND)}:
            cut, Cursor.cut = Cursor.cut, None
            cut()
        return super().execute(query, *rest, **more)


class Fleet:
    """Histories side by side, `width` of them at a time. `name` gives each start of a worker its holder id."""

    name = staticmethod("w{}.{}".format)

    def __init__(self, dsn: str, *, width: int = 500) -> None:
        self._dsn, self._width = dsn, width
        self._holders: dict[Start, tuple[House, Holding]] = {}
        self.told = Counter[str]()  # how often each kind of step was taken

    def run(self, walks: Iterable[Walk]) -> str:
        """All to their ends → how the ledger differs in the first one in which it does, or ''."""
        waiting, going = enumerate(walks), list[Story]()
        with ExitStack() as stack:
            self._writer, self._other = (stack.enter_context(closing(self._connect())) for _ in range(2))
            self._desk = stack.enter_context(Desk(self._dsn))
            self._other.execute("DELETE FROM fencepost.unsettled")  # whatever broken histories left
            while going := going + self._joined(waiting, self._width - len(going)):
                moves = self._step(going)
                if faults := [story.fault for story in going if story.fault]:
                    return faults[0]
                self._forget_all(set(going) - {move.story for move in moves})
                going = [move.story for move in moves]
        return ""

    def _forget_all(self, over: Iterable[Story]) -> None:
        """The desk finds a call by its key alone, and looks through all of them for that."""
        run(self._other.cursor(), _FORGET, [story.execution for story in over])

    def _joined(self, waiting: Iterable[tuple[int, Walk]], count: int) -> list[Story]:
        stories = [new_story(number, walk) for number, walk in islice(waiting, count)]
        run(self._other.cursor(), _OPEN, [story.execution for story in stories], org=ORG)
        return stories

    def _connect(self) -> Connection:
        connection = psycopg.connect(self._dsn, autocommit=True, cursor_factory=Cursor, options=_PLANS)
        connection.execute("SET lock_timeout = '5s'")  # of a cut that waits for what it cuts into
        return connection

    def _step(self, going: list[Story]) -> list[Move]:
        worlds = [(story, story.walk.world) for story in going]
        moves = [Move(story, world, turn) for story, world in worlds if (turn := story.walk.next())]
        by_kind: dict[Callable[[list[Move]], None], list[Move]] = defaultdict(list)
        for move in moves:
            self.told.update([move.turn.verb, *(f"cut by: {cut.verb}" for cut in [move.turn.cut] if cut)])
            if kind := self._kind(move):
                by_kind[kind].append(move)
        for kind, some in by_kind.items():
            kind(some)
        self._compare([move for some in by_kind.values() for move in some])
        return moves

    def _kind(self, move: Move) -> Callable[[list[Move]], None] | None:
        match move.turn.verb:
            case verb if verb in LOCAL or (verb == "publishes" and not move.ops()):
                return None
            case "lease runs out":
                return self._run_out
            case "sweep: orphan" | "sweep: no orphan":
                return self._end_orphans
            case "sweep: publish" | "sweep: no outcome":
                return self._publish
            case "sweep: forget" | "sweep: no memory":
                return self._forget
            case "resolve" | "release" | "rules too late":
                return self._rule
            case "redispatch" if move.story.number % 2:
                return self._rule
            case "renews":
                return self._renew
            case _:
                return self._transact

    # --- time, people, the sweeper ------------------------------------------------------------------------------------

    def _run_out(self, moves: list[Move]) -> None:
        for lease, over in ((OVER, 0.5), (GRACE_OVER, 1.5)):
            self._leases([m for m in moves if m.turn.after.row and m.turn.after.row.lease == lease], over)

    def _leases(self, moves: list[Move], over: float) -> None:
        """Their leases have been over for so many leases."""
        run(self._other.cursor(), _LEASES, [{"e": move.story.execution, "n": over} for move in moves], lease=LEASE)

    def _rule(self, moves: list[Move]) -> None:
        for move in moves:
            with move.story.blamed():
                self._ruled(move)

    def _ruled(self, move: Move) -> None:
        match move.turn.verb, move.story.row:
            case "redispatch", _:
                if (raised := self._desk.redispatch(move.story.execution, NODE)) != move.turn.after.fence:
                    move.story.differs(f"raised to {raised}")
            case "resolve", CallRow() as row:
                self._desk.resolve(row, by="ann", reason="asked the customer", failed="not_there")
            case "release", CallRow() as row:
                self._desk.release(row, by="ann", reason="looked in the mailbox")
            case _:
                self._rule_late(move.story)

    def _rule_late(self, story: Story) -> None:
        assert story.shown
        try:
            ruled = self._desk.resolve(story.shown, by="bob", reason="was told yesterday", succeeded='"yes"')
        except (Moved, NotFound):
            return
        story.differs(f"ruled {ruled}")

    def _end_orphans(self, moves: list[Move]) -> None:
        self._leases(moves, ORPHANED)
        with self._cut_into(moves):
            _orphans(self._writer, self._holder(0, 0)[0])

    def _publish(self, moves: list[Move]) -> None:
        run(self._other.cursor(), _LONG_OWED, [move.story.execution for move in moves])
        left = {row.execution_id: row for row in _unsettled(self._other)}
        acknowledged = []
        for move in moves:
            row, due = left.get(move.story.execution), move.turn.verb == "sweep: publish"
            if due != (row is not None) or (row and move.story.row and row.revision != move.story.row.revision):
                move.story.differs(f"to publish: {row}")
            elif row:
                acknowledged.append(Settle(row.execution_id, row.key, row.revision, row.state is State.indeterminate))
        self._desk.settle(acknowledged)

    def _forget(self, moves: list[Move]) -> None:
        executions = [move.story.execution for move in moves]
        run(self._other.cursor(), _REMEMBERED, executions, longer=-TTL)
        memory.forget(self._other, self._holder(0, 0)[0], 100, memory.Walk())
        run(self._other.cursor(), _REMEMBERED, executions, longer=TTL)

    # --- a worker's transactions --------------------------------------------------------------------------------------

    def _holder(self, worker: int, life: int) -> tuple[House, Holding]:
        if (worker, life) not in self._holders:
            self._holders[worker, life] = House(self.name(worker, life), LEASE, TTL), Holding()
        return self._holders[worker, life]

    def _renew(self, moves: list[Move]) -> None:
        for start, some in _by_start(moves).items():
            items = [{"e": m.term.execution_id, "k": m.term.key.hex(), "a": m.term.attempt} for m in some]
            holder = self._holder(*start)[0].holder
            renewed = {row[0] for row in run(self._other.cursor(), statements.RENEW, items, holder=holder, lease=LEASE)}
            for move in some:
                if move.story.execution not in renewed:
                    move.story.differs("not renewed")

    def _transact(self, moves: list[Move]) -> None:
        """One transaction for each start of a worker; what goes unheard, or is cut into, by itself."""
        for cut, unheard in ((False, False), (False, True), (True, False)):
            some = [m for m in moves if (m.turn.cut is not None, m.turn.unheard) == (cut, unheard)]
            self._leases([m for m in some if m.turn.verb == "waits" and cut], ORPHANED)
            for start, theirs in _by_start(some).items():
                with self._cut_into(theirs):
                    self._commit(self._writer, start, theirs, unheard=unheard)

    @contextmanager
    def _cut_into(self, moves: list[Move]) -> Iterator[None]:
        """The cuts of `moves` happen between what the transaction in the block reads and what it writes."""
        cuts = [move.cut for move in moves if move.cut]
        Cursor.cut = (lambda: self._cut(cuts)) if cuts else None
        try:
            yield
        finally:
            left, Cursor.cut = Cursor.cut, None
        if left:  # nothing was going to be written
            left()

    def _cut(self, moves: list[Move]) -> None:
        self._leases([move for move in moves if move.turn.verb == "is renewed in time"], -1.0)
        self._rule([move for move in moves if move.turn.verb in {"resolve", "release"}])
        self._renew([move for move in moves if move.turn.verb == "renews"])
        for start, theirs in _by_start(move for move in moves if move.turn.verb == "finalizes").items():
            self._commit(self._other, start, theirs)

    def _commit(self, connection: Connection, start: Start, moves: list[Move], *, unheard: bool = False) -> None:
        """All in one transaction; when it fails each by itself, to find whose fault it is."""
        house, holding = self._holder(*start)
        ops = [(move, op) for move in moves for op in move.ops()]
        try:
            answers = transact(connection, [op for _, op in ops], house, holding)
        except Exception as error:  # noqa: BLE001 - a broken ledger may raise anything
            holding.drop()
            if len(moves) == 1:
                return moves[0].story.differs(repr(error))
            for move in moves:
                self._commit(connection, start, [move], unheard=unheard)
            return None
        holding.drop() if unheard else holding.keep()
        for (move, op), answer in zip(ops, answers, strict=True):
            if not move.agrees(op, answer):
                move.story.differs(f"answered {answer}")
        return None

    # --- the ledger and the model, compared ---------------------------------------------------------------------------

    def _compare(self, moves: list[Move]) -> None:
        executions = [move.story.execution for move in moves]
        told = {row[0]: row[1:] for row in run(self._other.cursor(), _READ, executions, lease=LEASE)}
        for story in (move.story for move in moves):
            generation, owed, acknowledged, *values = told[story.execution]
            row = call_row(tuple(values)) if values[0] is not None else None
            is_, should = found(row, generation, owed, acknowledged), expected(story.walk.world)
            if "start" in should:
                should["start"] = self.name(*should["start"])
            if wrong := {k: f"{is_.get(k)}, not {v}" for k, v in should.items() if is_.get(k) != v}:
                story.differs(wrong)
            if law := broken_law(story.row, row):
                story.differs(f"{law}: {row}")
            self._compare_holding(story)
            story.row = row
            story.shown = story.shown or (row if row and row.state is State.indeterminate else None)

    def _compare_holding(self, story: Story) -> None:
        """What a worker takes for running is what is renewed, and what is joined."""
        world = story.walk.world
        for worker, hand in enumerate(world.hands):
            running = hand.attempt if hand.phase in {"started", "ended"} else None
            _, holding = self._holder(worker, world.lives[worker])
            if (held := holding._running.get((story.execution, story.key))) != running:
                story.differs(f"w{worker} takes attempt {held} for running, not {running}")


def _by_start(moves: Iterable[Move]) -> dict[Start, list[Move]]:
    by_start: dict[Start, list[Move]] = defaultdict(list)
    for move in moves:
        by_start[move.start].append(move)
    return by_start
