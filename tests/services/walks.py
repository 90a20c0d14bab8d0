"""Histories of one call: walks through the protocol's model, each decided by its seed and led to a good end.

Beside the model's own steps they take some that must change nothing (a wait, a ruling that comes too late, a sweep with
nothing to sweep), put settles into the transactions of other steps, and let somebody else's transaction cut into one
between what it reads and what it writes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from model.checker import good_end, unsafe
from model.protocol import SAID, VALID, Hand, Protocol, Scenario, Steps, World

ENDS = {"finalizes", "finds its own end", "lost the attempt"}
STARTS = {"reserves", "arms again", "resumes"}
REPLAYS = {"replays", "gives up", "records what was found"}
ADMITS = {"fenced", "expired", *STARTS, *REPLAYS}
SWEEPS = {"sweep: orphan", "sweep: publish", "sweep: forget"}
NOTHING = {"waits", "rules too late", *(f"sweep: no {what}" for what in ("orphan", "outcome", "memory"))}
LOCAL = {"takes", "crashes", "acts", "refuses", "ends unclear", "commits"}  # in memory, in the world, at the broker
VERBS = {"redispatch", "lease runs out", "resolve", "release", "probe", "renews", "publishes", "settles"}
VERBS |= ENDS | ADMITS | SWEEPS | NOTHING | LOCAL

# What is written by compare-and-set on what was read, and what may happen in between.
_SETS = {"arms again", "gives up", "records what was found", "sweep: orphan"}
CUTS = {"finalizes", "renews", "resolve", "release"}
# What would otherwise happen so often that nothing else gets far, or too rarely; everything else weighs 1.
_WEIGHTS = {"crashes": 0.25, "redispatch": 0.2, "settles": 0.3, "renews": 0.4, "release": 0.5, "resolve": 0.5}
_WEIGHTS |= {"probe": 3.0, "records what was found": 3.0, "rules too late": 0.3}
# How a history ends when nothing befalls it any more: a step of the first of these kinds that has one.
_CALM: tuple[set[str], ...] = (
    {"probe", "acts", "publishes", "settles", "commits", *ADMITS, *ENDS},
    {"sweep: publish"},
    {"takes"},
    {"lease runs out", "sweep: orphan", "redispatch"},
)
_LONGEST = 300  # steps: a good end takes far fewer


class Turn(NamedTuple):
    """What happens next, and the world after it. `worker` is -1 where none does it.

    `unheard`: its worker does not hear of the commit. `settles`, as (revision, undecided), ride in its transaction.
    `cut` happens between what it reads and what it writes, so that it changes nothing itself.
    """

    verb: str
    after: World
    worker: int = -1
    unheard: bool = False
    settles: tuple[tuple[int, bool], ...] = ()
    cut: Turn | None = None

    def __str__(self) -> str:
        who = f"w{self.worker} " * (self.worker >= 0)
        settles = ["settling " + " and ".join(f"r{revision}" for revision, _ in self.settles)] * bool(self.settles)
        return ", ".join(
            [who + self.verb, *settles, *["unheard"] * self.unheard, *[f"but {self.cut}"] * bool(self.cut)]
        )


class Renewing(Protocol):
    """The model, and leases that are renewed, also after they were over: the holder was only slow."""

    def steps(self, world: World) -> Steps:
        yield from super().steps(world)
        row = world.row
        for worker, hand in enumerate(world.hands):
            mine = row and (row.attempt, row.holder) == (hand.attempt, self._me(world, worker))
            if row and mine and row.state == "executing" and hand.phase in {"started", "ended"}:
                yield f"w{worker} renews", world._replace(row=self._leased(row))


def _scenario(chance: random.Random) -> Scenario:
    return Scenario(
        "history",
        generations=chance.choice([(1,), (1, 1), (1, 2), (1, 1, 2), (1, 2, 2), (1, 2, 3)]),
        tool=chance.choice(["protected", "protected", "idempotent", "probed"]),
        crashes=chance.randrange(3),
        unheard=chance.randrange(3),
        ruling=chance.choice(["", "resolve", "release"]),
        unclear=chance.random() < 0.5,
        refusing=chance.random() < 0.3,
        late=chance.random() < 0.5,
    )


class Walk:
    """One history. `next` says what happens next; None when all is well and it is over. `fixed` is of its scenario."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self.scenario = _scenario(self._chance)._replace(**fixed)
        self.world = World()
        self.taken: list[Turn] = []
        self._protocol = Renewing(self.scenario)
        self._wild = self._chance.randrange(8, 40)  # so many steps of any kind, and then calmly to the end
        self._seen = 0  # the revision at which a person first saw that the outcome is unknown
        self._given_up = False  # the outcome is unknown because somebody gave the call up, not by its holder's word

    def __str__(self) -> str:
        return "\n".join([f"history {self.seed}: {self.scenario}", *(f"    {turn}" for turn in self.taken)])

    def next(self) -> Turn | None:
        turn = self._any() if len(self.taken) < self._wild else None
        if turn is None and good_end(self.world, self.scenario):
            return None
        turn = turn or self._calm()
        self.taken.append(turn)
        self.world = turn.after
        self._remember(turn.cut or turn)
        assert len(self.taken) < _LONGEST, f"no good end in sight\n{self}"
        assert not (broken := unsafe(self.world, self.scenario)), f"the model's own promise: {broken}\n{self}"
        return turn

    def _remember(self, turn: Turn) -> None:
        row = self.world.row
        if row and row.state == "indeterminate":
            self._seen = self._seen or row.revision
            if turn.verb in {"gives up", "sweep: orphan", "finalizes"}:
                self._given_up = turn.verb != "finalizes"

    def _any(self) -> Turn | None:
        turns, idle = self._turns(), list(self._idle())
        if not turns or (idle and self._chance.random() < 0.15):
            return self._one_of(idle) if idle else None
        turn = self._one_of(turns)
        cuts = [cut for cut in turns if self._may_cut(cut, turn)]
        if cuts and self._chance.random() < 0.5:
            cut = self._one_of(cuts)
            return turn._replace(after=cut.after, cut=cut)
        return self._whole(turn)

    def _one_of(self, turns: list[Turn]) -> Turn:
        return self._chance.choices(turns, [_WEIGHTS.get(turn.verb, 1.0) for turn in turns])[0]

    def _calm(self) -> Turn:
        turns = [turn for turn in self._turns() if not turn.unheard]
        kinds = ((turn for turn in turns if turn.verb in verbs) for verbs in _CALM)
        turn = next((turn for kind in kinds for turn in kind), None)
        assert turn, f"no way to a good end\n{self}"
        return self._whole(turn)

    # --- the model's steps --------------------------------------------------------------------------------------------

    def _turns(self) -> list[Turn]:
        return [self._looks_again(turn) for turn in self._steps(self.world)]

    def _steps(self, world: World) -> Iterator[Turn]:
        for label, after in self._protocol.steps(world):
            verb, worker, unheard = _read(label)
            yield Turn(verb, after, worker, unheard)

    def _looks_again(self, turn: Turn) -> Turn:
        """The model takes a call that was given up for its own unclear end; the ledger says that it was lost."""
        hand = self.world.hands[turn.worker]
        if turn.verb != "finds its own end" or hand.status != "indeterminate" or not self._given_up:
            return turn
        return Turn("lost the attempt", self._put(turn.worker, Hand(hand.event, "deliver")), turn.worker)

    def _put(self, worker: int, hand: Hand) -> World:
        return self._protocol._put(self.world, worker, hand)

    # --- steps that change nothing ------------------------------------------------------------------------------------

    def _idle(self) -> Iterator[Turn]:
        world, row = self.world, self.world.row
        alive = row is not None and row.state == "executing" and row.lease == VALID
        # Its renewal began while the lease was valid, and commits when somebody has already read that it is over.
        late = Turn("is renewed in time", world)
        for worker, hand in enumerate(world.hands):
            if hand.phase == "deliver" and not any(self._protocol._deliver(world, worker, hand)):
                yield Turn("waits", world, worker)
                if alive and self.scenario.tool != "probed" and self.scenario.generations[hand.event] == 1:
                    yield Turn("waits", world, worker, cut=late)
        if alive:
            yield Turn("sweep: no orphan", world, cut=late)
        if self._seen and (row is None or row.revision != self._seen):
            yield Turn("rules too late", world)
        if row and not (world.owed and row.state in SAID and world.acknowledged < row.revision):
            yield Turn("sweep: no outcome", world)
        if row and (world.owed or row.state == "executing"):
            yield Turn("sweep: no memory", world)

    # --- transactions of more than one step ---------------------------------------------------------------------------

    def _may_cut(self, cut: Turn, turn: Turn) -> bool:
        """Whether `cut` moves what `turn` has read, without waiting for a lock that it holds."""
        if turn.verb not in _SETS or cut.verb not in CUTS or turn.worker == cut.worker or turn.unheard or cut.unheard:
            return False
        if turn.worker >= 0 and self.scenario.generations[self.world.hands[turn.worker].event] > 1:
            return False  # it may hold the row, by a claim for its generation
        row = self.world.row
        return cut.verb != "renews" or (row is not None and row.lease < VALID)

    def _whole(self, turn: Turn) -> Turn:
        """The turn with all that happens in its transaction: settles come after ends, and before admissions."""
        settles = tuple(settle[1:] for settle in self.world.settles if settle[0] == turn.worker)
        if not settles or turn.verb not in ADMITS | ENDS:
            return turn._replace(after=self._answered(turn))
        if turn.verb in ENDS:
            after = self._settled(turn.after, turn.worker)
        else:
            steps = self._steps(self._settled(self.world, turn.worker))
            after = self._answered(next(same for same in steps if same._replace(after=turn.after) == turn))
        if turn.unheard:
            after = after._replace(settles=self.world.settles)  # they go again
        return turn._replace(after=after, settles=settles)

    def _answered(self, turn: Turn) -> World:
        """Who finds out that nobody knows, or what happened, answers in the same breath."""
        if turn.verb not in {"gives up", "records what was found"}:
            return turn.after
        replay = next(self._protocol._deliver(turn.after, turn.worker, turn.after.hands[turn.worker]))
        return replay[1]

    def _settled(self, world: World, worker: int) -> World:
        while mine := [settle for settle in world.settles if settle[0] == worker]:
            rest = world.settles - {mine[0]}
            world = next(after for _, after in self._protocol._settling(world) if after.settles == rest)
        return world


@cache
def _read(label: str) -> tuple[str, int, bool]:
    """The model's label → what happens, which worker does it (-1: none), and whether its commit goes unheard."""
    label, comma, _ = label.partition(", ")
    if (match := re.fullmatch(r"w(\d)(?:'s)? (.*)", label)) is None:
        return label, -1, False
    verb = re.sub(r"^(takes|commits|publishes) .*|^(probe): .*", r"\1\2", match[2])
    return verb, int(match[1]), bool(comma)
