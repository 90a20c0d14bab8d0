"""The ledger's protocol as a program that walks every interleaving of a small world.

Two workers and one call: an event of generation 1, the same call again in generation 1 or 2, crashes, pauses (a worker
that simply does not step), commits that nobody hears of, leases that run out at any moment, an orchestrator that raises
the generation, a person who rules. Every action is one transaction, one tool entry, one acknowledgement of the broker
or one fault: a rule that needs two of them to be one is visibly one here. The rules have names, and each can be
dropped; `checker.py` walks every world that can be reached, and finds what then breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_ATTEMPTS = 3
VALID, OVER, GRACE_OVER = 2, 1, 0  # a lease, by the database's clock
SAID = {"completed": "succeeded", "failed": "failed", "indeterminate": "indeterminate"}

RULES = {
    "fence": "an event of an older generation than the node's is fenced",
    "lease": "another holder's valid lease is waited for",
    "indeterminate": "what may have acted is not run again unless the tool is idempotent",
    "finalize-holder": "only the holder of the attempt writes its end",
    "finalize-state": "a ruling is not overwritten by the attempt that it is about",
    "offset-last": "the offset is committed after the outcome is acknowledged",
    "sweeper": "an outcome that a crash or a ruling left is published by the sweeper",
    "orphans": "an attempt that nobody comes back for is ended by the sweeper",
    "unique-holder": "holder ids are unique per process start",
    "resume-leases": "what is resumed is leased anew",
    "settle-revision": "a settle clears what it has seen and nothing newer",
    "settle-undecided": "an acknowledged unknown outcome still needs a person",
    "probe-state": "a probe's answer holds for the state that it was asked about",
    "comeback": "a lease that was over comes back as a change of state",
    "grace": "a probe is asked only after the lease and a grace",
    "lapse": "a worker that could not renew cancels what others may run again",
}


class Scenario(NamedTuple):
    """What may happen. `generations`: of each event. `tool`: protected, idempotent or probed."""

    name: str
    generations: tuple[int, ...]
    tool: str = "protected"
    crashes: int = 0
    unheard: int = 0
    ruling: str = ""  # resolve | release
    unclear: bool = False  # the tool may end without saying whether it acted
    refusing: bool = False  # the tool may say that it did not act: retryable
    workers: int = 2
    late: bool = False  # settles may stay in memory for long; otherwise they arrive with the acknowledgement


class Row(NamedTuple):
    state: str
    attempt: int
    holder: tuple[int, int]  # worker, and which of its starts
    event: int  # whose outcome speaks for the row
    lease: int
    revision: int
    decided: bool = False


class Hand(NamedTuple):
    """What one worker holds in memory for the event that it works on: lost in a crash."""

    event: int = -1
    phase: str = "idle"  # idle, deliver, started, ended, publish, commit
    attempt: int = 0
    status: str = ""  # how the attempt ended, then what will be published
    revision: int = 0  # of the row that the outcome speaks for, 0: of none
    probe: tuple[int, str] = (0, "")  # the revision that the probe was asked about, and what it said


class World(NamedTuple):
    hands: tuple[Hand, ...] = (Hand(), Hand())
    lives: tuple[int, ...] = (0, 0)
    row: Row | None = None
    fence: int = 1
    owed: int = 0  # the revision that `unsettled` knows of, 0: no entry
    acknowledged: int = 0
    settles: frozenset[tuple[int, int, bool]] = frozenset()  # in memory, on their way to the ledger
    published: frozenset[tuple[int, str]] = frozenset()
    told: int = 0  # the newest revision whose outcome was published for the row
    committed: frozenset[int] = frozenset()
    effects: int = 0
    crashes: int = 0
    unheard: int = 0
    releases: int = 0
    forgotten: bool = False  # past the memory: every event that is still in some hand is older than that
    excused: bool = False  # a crash, a lost lease, an unclear end: a reason for an unknown outcome
    broken: str = ""  # a promise that an action broke


Steps = Iterator[tuple[str, World]]


class Protocol:
    """The steps that are possible in a world, without the rules in `dropped`."""

    def __init__(self, scenario: Scenario, dropped: str = "") -> None:
        self.scenario = scenario
        self._dropped = dropped

    def holds(self, rule: str) -> bool:
        return rule != self._dropped

    def steps(self, world: World) -> Steps:
        yield from self._outside(world)
        yield from self._sweeper(world)
        yield from self._settling(world)
        for worker in range(self.scenario.workers):
            hand = world.hands[worker]
            if hand.phase != "idle" and world.crashes < self.scenario.crashes:
                yield f"w{worker} crashes", self._crashed(world, worker)
            yield from getattr(self, f"_{hand.phase}")(world, worker, hand)

    # --- the world around the workers ---------------------------------------------------------------------------------

    def _outside(self, world: World) -> Steps:
        row = world.row
        if world.fence < max(self.scenario.generations):
            yield "redispatch", world._replace(fence=world.fence + 1)
        if row and row.state == "executing" and row.lease and not self._cancels_in_time(world, row):
            yield "lease runs out", world._replace(row=row._replace(lease=row.lease - 1), excused=True)
        if row and row.state == "indeterminate" and self.scenario.ruling == "resolve":
            ruled = row._replace(state="failed", decided=True, revision=row.revision + 1)
            yield "resolve", world._replace(row=ruled, owed=ruled.revision)
        if row and row.state == "indeterminate" and self.scenario.ruling == "release" and not world.releases:
            ruled = row._replace(state="released", decided=True, revision=row.revision + 1)
            yield "release", world._replace(row=ruled, owed=0, releases=1)

    def _cancels_in_time(self, world: World, row: Row) -> bool:
        """A probed tool whose worker runs on is cancelled before the grace is over (nobody is frozen here)."""
        runs = any(
            hand.phase == "started" and hand.attempt == row.attempt and row.holder == (worker, world.lives[worker])
            for worker, hand in enumerate(world.hands)
        )
        return self.scenario.tool == "probed" and self.holds("lapse") and row.lease == OVER and runs

    def _crashed(self, world: World, worker: int) -> World:
        lives = tuple(life + (n == worker) for n, life in enumerate(world.lives))
        settles = frozenset(s for s in world.settles if s[0] != worker)
        crashed = self._put(world, worker, Hand())
        return crashed._replace(lives=lives, settles=settles, crashes=world.crashes + 1, excused=True)

    def _sweeper(self, world: World) -> Steps:
        row = world.row
        if row and row.state == "executing" and row.lease == GRACE_OVER and self.holds("orphans"):
            yield "sweep: orphan", self._given_up(world, row)
        if row and world.owed and row.state in SAID and world.acknowledged < row.revision and self.holds("sweeper"):
            said = world._replace(published=world.published | {(row.event, SAID[row.state])}, told=row.revision)
            yield "sweep: publish", self._settled(said, row.revision, row.state == "indeterminate")

        if (
            row
            and row.state != "executing"
            and not world.owed
            and len(world.committed) == len(self.scenario.generations)
        ):
            lost = "an unknown outcome was forgotten" if row.state == "indeterminate" else ""
            yield "sweep: forget", world._replace(row=None, forgotten=True, broken=world.broken or lost)

    def _settling(self, world: World) -> Steps:
        for settle in world.settles:
            rest = world._replace(settles=world.settles - {settle})
            yield f"w{settle[0]} settles", self._settled(rest, settle[1], settle[2])

    def _settled(self, world: World, revision: int, undecided: bool) -> World:
        if undecided and self.holds("settle-undecided"):
            return world._replace(acknowledged=max(world.acknowledged, revision)) if world.owed else world
        if world.owed > revision and self.holds("settle-revision"):
            return world
        return world._replace(owed=0, acknowledged=0)

    def _given_up(self, world: World, row: Row) -> World:
        unknown = row._replace(state="indeterminate", lease=GRACE_OVER, revision=row.revision + 1)
        return world._replace(row=unknown, owed=unknown.revision)

    # --- a worker, phase by phase -------------------------------------------------------------------------------------

    def _put(self, world: World, worker: int, hand: Hand) -> World:
        return world._replace(hands=tuple(hand if n == worker else h for n, h in enumerate(world.hands)))

    def _me(self, world: World, worker: int) -> tuple[int, int]:
        return worker, world.lives[worker] if self.holds("unique-holder") else 0

    def _idle(self, world: World, worker: int, _hand: Hand) -> Steps:
        for event, generation in enumerate(self.scenario.generations):
            if event not in world.committed and generation <= world.fence:
                yield f"w{worker} takes e{event}", self._put(world, worker, Hand(event, "deliver"))

    def _deliver(self, world: World, worker: int, hand: Hand) -> Steps:
        """Admission: one transaction."""
        generation, row = self.scenario.generations[hand.event], world.row
        if generation < world.fence and self.holds("fence"):
            yield f"w{worker} fenced", self._put(world, worker, Hand(hand.event, "publish", status="fenced"))
        elif world.forgotten:
            yield f"w{worker} expired", self._put(world, worker, Hand(hand.event, "publish", status="expired"))
        elif row is None:
            yield from self._start(world, worker, hand, Row("executing", 1, (0, 0), hand.event, VALID, 1), "reserves")
        elif row.state == "released" or self._rerun(row):
            yield from self._rearm(world, worker, hand, row)
        elif row.state in SAID:
            revision = row.revision if row.event == hand.event else 0
            said = Hand(hand.event, "publish", status=SAID[row.state], revision=revision)
            yield f"w{worker} replays", self._put(world, worker, said)
        else:
            yield from self._executing(world, worker, hand, row)

    def _rerun(self, row: Row) -> bool:
        """Not executing any more, and safe to run again."""
        if row.decided or row.attempt >= MAX_ATTEMPTS:
            return False
        unknown = row.state == "indeterminate" and (
            self.scenario.tool == "idempotent" or not self.holds("indeterminate")
        )
        return row.state == "failed" or unknown

    def _executing(self, world: World, worker: int, hand: Hand, row: Row) -> Steps:
        again = row.attempt < MAX_ATTEMPTS and (self.scenario.tool == "idempotent" or not self.holds("indeterminate"))
        if row.holder == self._me(world, worker):
            yield from self._enter(world._replace(row=self._leased(row)), worker, hand, "resumes")
        elif row.lease == VALID and self.holds("lease"):
            return  # it waits, and looks again
        elif again:
            yield from self._rearm(world, worker, hand, row)
        elif self.scenario.tool == "probed":
            yield from self._probed(world, worker, hand, row)
        else:
            yield f"w{worker} gives up", self._given_up(world, row)

    def _leased(self, row: Row) -> Row:
        if not self.holds("resume-leases"):
            return row
        back = row.lease < VALID and self.holds("comeback")
        return row._replace(lease=VALID, revision=row.revision + back)

    def _probed(self, world: World, worker: int, hand: Hand, row: Row) -> Steps:
        if row.lease > (GRACE_OVER if self.holds("grace") else OVER):
            return
        revision, said = hand.probe
        if not said or (revision != row.revision and self.holds("probe-state")):
            for answer in ("found" if world.effects else "not done", "unknown"):
                asked = hand._replace(probe=(row.revision, answer))
                yield f"w{worker}'s probe: {answer}", self._put(world, worker, asked)
        elif said == "found":
            done = row._replace(state="completed", decided=True, lease=GRACE_OVER, revision=row.revision + 1)
            yield f"w{worker} records what was found", world._replace(row=done, owed=done.revision)
        elif said == "not done" and row.attempt < MAX_ATTEMPTS:
            yield from self._rearm(world, worker, hand, row)
        else:
            yield f"w{worker} gives up", self._given_up(world, row)

    def _rearm(self, world: World, worker: int, hand: Hand, row: Row) -> Steps:
        after = Row("executing", row.attempt + 1, (0, 0), hand.event, VALID, row.revision + 1)
        yield from self._start(world, worker, hand, after, "arms again")

    def _start(self, world: World, worker: int, hand: Hand, row: Row, how: str) -> Steps:
        ours = world._replace(row=row._replace(holder=self._me(world, worker)), owed=row.revision)
        yield from self._enter(ours, worker, hand, how)
        if world.unheard < self.scenario.unheard:
            yield f"w{worker} {how}, unheard", ours._replace(unheard=world.unheard + 1)

    def _enter(self, world: World, worker: int, hand: Hand, how: str) -> Steps:
        """From the commit on the call is started."""
        row = world.row
        assert row is not None
        stale = self.scenario.generations[hand.event] < world.fence
        broken = "a stale call started" if stale else "a call started without a lease" if row.lease != VALID else ""
        started = self._put(world, worker, Hand(hand.event, "started", row.attempt))
        yield f"w{worker} {how}", started._replace(broken=world.broken or broken)

    def _started(self, world: World, worker: int, hand: Hand) -> Steps:
        """The tool: from here on the world may change."""
        acted = world._replace(effects=world.effects + 1)
        yield f"w{worker} acts", self._put(acted, worker, hand._replace(phase="ended", status="completed"))
        if self.scenario.refusing:
            yield f"w{worker} refuses", self._put(world, worker, hand._replace(phase="ended", status="failed"))
        row = world.row
        over = row is not None and row.lease < VALID and self.scenario.tool == "probed" and self.holds("lapse")
        if self.scenario.unclear or over:
            unclear = self._put(world, worker, hand._replace(phase="ended", status="indeterminate"))
            yield f"w{worker} ends unclear", unclear._replace(excused=True)

    def _ended(self, world: World, worker: int, hand: Hand) -> Steps:
        """Finalize: compare-and-set on holder and attempt."""
        row = world.row
        if row is None:
            yield f"w{worker} lost the attempt", self._put(world, worker, Hand(hand.event, "deliver"))
            return
        mine = row.attempt == hand.attempt and row.holder == self._me(world, worker)
        late = row.state == "indeterminate" and not row.decided and hand.status != "indeterminate"
        free = row.state == "executing" or late
        if self._may_write(row, hand, mine, free):
            after = row._replace(state=hand.status, lease=GRACE_OVER, revision=row.revision + 1)
            # The common end leaves `unsettled` alone: what stands there since the start is as good.
            owed = world.owed if row.state == "executing" and hand.status != "indeterminate" else after.revision
            broken = "" if mine else "an attempt that did not hold the call wrote its end"
            broken = "a ruling was overwritten" if row.decided else broken
            ended = world._replace(row=after, owed=owed, broken=world.broken or broken)
            said = hand._replace(phase="publish", status=SAID[hand.status], revision=after.revision)
            yield f"w{worker} finalizes", self._put(ended, worker, said)
            if world.unheard < self.scenario.unheard:
                yield f"w{worker} finalizes, unheard", ended._replace(unheard=world.unheard + 1)
        elif mine and row.state == hand.status and not row.decided:
            said = hand._replace(phase="publish", status=SAID[hand.status], revision=row.revision)
            yield f"w{worker} finds its own end", self._put(world, worker, said)
        else:
            yield f"w{worker} lost the attempt", self._put(world, worker, Hand(hand.event, "deliver"))

    def _may_write(self, row: Row, hand: Hand, mine: bool, free: bool) -> bool:
        if mine and free:
            return True
        ruled = mine and row.decided and row.state in ("failed", "released")
        return (free and not self.holds("finalize-holder")) or (ruled and not self.holds("finalize-state"))

    def _publish(self, world: World, worker: int, hand: Hand) -> Steps:
        """The broker acknowledged the outcome; the settle rides along with a later transaction."""
        told = max(world.told, hand.revision)
        said = world._replace(published=world.published | {(hand.event, hand.status)}, told=told)
        if hand.revision:
            settle = (worker, hand.revision, hand.status == "indeterminate")
            late = said._replace(settles=world.settles | {settle})
            said = late if self.scenario.late else self._settled(said, *settle[1:])
        yield f"w{worker} publishes {hand.status}", self._put(said, worker, Hand(hand.event, "commit"))
        if not self.holds("offset-last"):
            yield f"w{worker} commits early", self._committed(world, worker, hand)

    def _commit(self, world: World, worker: int, hand: Hand) -> Steps:
        yield f"w{worker} commits e{hand.event}", self._committed(world, worker, hand)

    def _committed(self, world: World, worker: int, hand: Hand) -> World:
        return self._put(world._replace(committed=world.committed | {hand.event}), worker, Hand())
